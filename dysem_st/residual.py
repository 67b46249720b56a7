"""What each block of a decoder adds to the residual stream, read at one token per row.

A decoder computes ``h^l = h^(l-1) + a^l + f^l`` for its blocks ``l = 1..L`` (DySem §2.1, Eq. 1 to 6): ``a`` comes from
attention, ``f`` from the feed-forward network. This module sums those tensors with forward hooks at the places that
`dysem_st.layouts` names; ``h^L = h^0 + A + F`` is the identity that shows they are the right ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from .layouts import COMPONENTS, BlockLayout, Component, Readout, blocks_of, layer_range

if TYPE_CHECKING:
    from torch.utils.hooks import RemovableHandle


def _first_tensor(output: Any) -> Tensor:  # noqa: ANN401
    return output if isinstance(output, Tensor) else output[0]


class _Sum:
    """A float32 running sum of the last-token rows that hooks hand over."""

    def __init__(self, last: Tensor) -> None:
        self.last = last
        self.total: Tensor | None = None
        self.count = 0

    def add(self, tensor: Tensor, scale: float = 1.0) -> None:
        # Indexing copies, so a later in-place addition to the hooked tensor (Falcon's) cannot reach the rows.
        rows = tensor[torch.arange(len(tensor), device=tensor.device), self.last.to(tensor.device)].float()
        if scale != 1.0:
            rows = rows * scale
        self.total = rows if self.total is None else self.total + rows.to(self.total.device)
        self.count += 1

    def result(self, expected: int) -> Tensor:
        if self.count != expected or self.total is None:
            raise RuntimeError(
                f"{self.count} of {expected} expected module outputs were seen. Hooks do not fire inside a body "
                "that torch.compile has traced, and a layout must name modules that every block calls once."
            )
        return self.total


def _on_output(_module: nn.Module, _args: Any, output: Any, *, into: _Sum, scale: float) -> None:  # noqa: ANN401
    into.add(_first_tensor(output), scale)


def _on_input(_module: nn.Module, args: Any, kwargs: Any, *, into: _Sum) -> None:  # noqa: ANN401
    into.add(args[0] if args else kwargs["hidden_states"])


@contextmanager
def _removing(handles: list[RemovableHandle]) -> Iterator[None]:
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _hook_component(
    blocks: list[nn.Module],
    layout: BlockLayout,
    component: Component,
    readout: Readout,
    span: tuple[int, int],
    into: _Sum,
    handles: list[RemovableHandle],
) -> None:
    """Register the hooks that feed one component's sum, appending each handle as it is made."""
    for block in blocks[span[0] - 1 : span[1]]:
        scale = 1.0
        if component == "hidden":
            target = block
        else:
            module, added = (
                (layout.attention, layout.attention_added)
                if component == "attention"
                else (layout.ffn, layout.ffn_added)
            )
            residual = readout == "residual"
            target = block.get_submodule(added if residual and added else module)
            if residual and layout.scale:
                scale = float(getattr(block, layout.scale))
        handles.append(target.register_forward_hook(partial(_on_output, into=into, scale=scale)))


def read(
    body: nn.Module,
    run: Callable[[], Any],
    last: Tensor,
    *,
    layout: BlockLayout,
    component: Component = "attention",
    layers: Any = "all",  # noqa: ANN401
    readout: Readout = "residual",
) -> Tensor:
    """Run a decoder body once and return one component at one token per row, summed over layers in float32.

    Hooks live for this call alone, and only the chosen rows are kept: nothing of ``[batch, tokens, d]`` outlives its
    layer. Hooks sit on shared modules, so calls on one body must not overlap; `ViewReader` holds a lock.

    Args:
        body: The decoder without its language-model head.
        run: Calls the body once on a batch of N rows.
        last: Token position to read in each row, ``[N]`` integers.
        layout: Where the contributions are (see `find_layout`).
        component: ``"attention"`` sums a^l, ``"ffn"`` sums f^l, ``"hidden"`` is h^l before the final norm.
        layers: Which layers (see `layer_range`).
        readout: ``"residual"`` reads what is added to the residual stream; ``"module"`` the module's own output, which
            differs where a norm or a factor follows it (Gemma 2 and 3, OLMo 2, Granite). No effect on ``"hidden"``.

    Returns:
        ``[N, d]`` float32.

    Raises:
        RuntimeError: The hooked modules were not called exactly once each.
    """
    blocks = blocks_of(body, layout)
    span = layer_range(layers, len(blocks), component)
    total = _Sum(last)
    handles: list[RemovableHandle] = []
    with _removing(handles):
        _hook_component(blocks, layout, component, readout, span, total, handles)
        run()
    return total.result(expected=span[1] - span[0] + 1)


class Decomposition(NamedTuple):
    """The parts of ``h^L = h^0 + A + F`` at one token per row, each ``[N, d]`` float32."""

    embedding: Tensor
    attention: Tensor
    ffn: Tensor
    hidden: Tensor

    def error(self) -> float:
        """Return the largest absolute difference of the two sides over the largest value of h^L."""
        gap = (self.embedding + self.attention + self.ffn - self.hidden).abs().max()
        return float(gap / self.hidden.abs().max().clamp_min(torch.finfo(torch.float32).tiny))


def decompose(body: nn.Module, run: Callable[[], Any], last: Tensor, *, layout: BlockLayout) -> Decomposition:
    """Run a decoder body once and return every part of the identity (DySem §2.1, Eq. 6).

    Args:
        body: The decoder without its language-model head.
        run: Calls the body once on a batch of N rows.
        last: Token position to read in each row, ``[N]`` integers.
        layout: Where the contributions are.

    Raises:
        RuntimeError: The hooked modules were not called exactly once each.
    """
    blocks = blocks_of(body, layout)
    span = (1, len(blocks))
    sums = {name: _Sum(last) for name in ("embedding", *COMPONENTS)}
    handles: list[RemovableHandle] = []
    with _removing(handles):
        handles.append(
            blocks[0].register_forward_pre_hook(partial(_on_input, into=sums["embedding"]), with_kwargs=True)
        )
        for component in COMPONENTS:
            only = (len(blocks), len(blocks)) if component == "hidden" else span
            _hook_component(blocks, layout, component, "residual", only, sums[component], handles)
        run()
    return Decomposition(
        # To one device: the blocks of a sharded body are on several.
        embedding=sums["embedding"].result(1).cpu(),
        attention=sums["attention"].result(len(blocks)).cpu(),
        ffn=sums["ffn"].result(len(blocks)).cpu(),
        hidden=sums["hidden"].result(1).cpu(),
    )
