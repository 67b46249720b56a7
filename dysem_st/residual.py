"""What each block of a decoder adds to the residual stream, read at one token per row.

A decoder computes ``h^l = h^(l-1) + a^l + f^l`` for its blocks ``l = 1..L`` (DySem §2.1, Eq. 1 to 6): ``a`` comes from
attention, ``f`` from the feed-forward network. This module knows where the supported architectures keep those two
tensors and sums them with forward hooks; ``h^L = h^0 + A + F`` is the identity that shows they are the right ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from torch.utils.hooks import RemovableHandle

Component = Literal["attention", "ffn", "hidden"]
Readout = Literal["residual", "module"]

COMPONENTS: tuple[Component, ...] = ("attention", "ffn", "hidden")
READOUTS: tuple[Readout, ...] = ("residual", "module")


@dataclass(frozen=True)
class BlockLayout:
    """Where a decoder keeps its blocks, and a block the modules whose outputs enter the residual stream.

    All names are dotted module paths: ``layers`` from the decoder body, the others from one block.

    Args:
        layers: The list of blocks.
        attention: The attention block; its output is the "module" readout of attention.
        ffn: The feed-forward block; its output is the "module" readout of the feed-forward component.
        attention_added: The module whose output is added to the residual stream, where a norm follows attention.
        ffn_added: The same for the feed-forward block.
        scale: An attribute of a block that multiplies both contributions before they are added.
    """

    layers: str = "layers"
    attention: str = "self_attn"
    ffn: str = "mlp"
    attention_added: str | None = None
    ffn_added: str | None = None
    scale: str | None = None

    def to_dict(self) -> dict[str, str]:
        """Return the fields that are set, as they are stored in a model's configuration."""
        return {key: value for key, value in asdict(self).items() if value is not None}

    @classmethod
    def from_dict(cls, values: dict[str, str]) -> BlockLayout:
        """Build a layout from a mapping of field names.

        Raises:
            ValueError: A key is not a field of the layout.
        """
        known = [field.name for field in fields(cls)]
        if unknown := sorted(set(values) - set(known)):
            raise ValueError(f"unknown layout fields {unknown}; a layout has {known}")
        return cls(**values)


_PRE_NORM = BlockLayout()
_POST_NORM = BlockLayout(attention_added="post_attention_layernorm", ffn_added="post_feedforward_layernorm")

# Keyed by `config.model_type`. Every entry is held to the identity and to an oracle in tests/test_residual.py.
# On pre-norm models `post_attention_layernorm` is the norm *before* the feed-forward block and is not a contribution.
LAYOUTS: dict[str, BlockLayout] = {
    "llama": _PRE_NORM,
    "mistral": _PRE_NORM,
    "qwen2": _PRE_NORM,
    "qwen3": _PRE_NORM,
    "qwen2_moe": _PRE_NORM,
    "qwen3_moe": _PRE_NORM,
    "mixtral": _PRE_NORM,
    "phi3": _PRE_NORM,
    "gemma": _PRE_NORM,
    "olmo": _PRE_NORM,
    "smollm3": _PRE_NORM,
    "starcoder2": _PRE_NORM,
    "cohere": _PRE_NORM,
    "cohere2": _PRE_NORM,
    "granite": BlockLayout(scale="residual_multiplier"),
    "gemma2": _POST_NORM,
    "gemma3_text": _POST_NORM,
    "olmo2": _POST_NORM,
    "olmo3": _POST_NORM,
    "gpt2": BlockLayout(layers="h", attention="attn"),
    "gpt_neox": BlockLayout(attention="attention"),
    "falcon": BlockLayout(layers="h", attention="self_attention"),
}


def unwrap(body: nn.Module) -> nn.Module:
    """Return the text decoder inside a body that PEFT or a multimodal model wraps."""
    if hasattr(body, "peft_config") and hasattr(body, "get_base_model"):
        body = body.get_base_model()
    return getattr(body, "language_model", body)


def find_layout(body: nn.Module) -> BlockLayout:
    """Return the layout of a body by its ``config.model_type``.

    Raises:
        ValueError: The architecture is not a supported one.
    """
    config = getattr(unwrap(body), "config", None)
    model_type = getattr(config, "model_type", None)
    if model_type in LAYOUTS:
        return LAYOUTS[model_type]
    lists = [name for name, child in unwrap(body).named_modules() if isinstance(child, nn.ModuleList) and len(child)]
    children = []
    if lists:
        block = unwrap(body).get_submodule(lists[0])[0]  # type: ignore[index]
        children = [name for name, _ in block.named_children()]
    raise ValueError(
        f"{type(unwrap(body)).__name__} (model_type {model_type!r}) is not among the architectures whose residual "
        f"stream is known: {', '.join(sorted(LAYOUTS))}. Its lists of blocks are {lists or 'none'}, and the first "
        f"block of the first list holds {children or 'nothing'}. Tell where to look with "
        'layout={"layers": ..., "attention": ..., "ffn": ...} (see dysem_st.BlockLayout); what you give is checked '
        "against h^L = h^0 + A + F."
    )


def blocks_of(body: nn.Module, layout: BlockLayout) -> list[nn.Module]:
    """Return the decoder's blocks, first to last.

    Raises:
        ValueError: The layout names a module that the body or a block lacks.
    """
    decoder = unwrap(body)
    try:
        blocks = list(decoder.get_submodule(layout.layers))  # type: ignore[call-overload]
        for path in (layout.attention, layout.ffn, layout.attention_added, layout.ffn_added):
            if path is not None:
                blocks[0].get_submodule(path)
    except (AttributeError, TypeError, IndexError) as error:
        raise ValueError(f"{type(decoder).__name__} does not have the layout {layout.to_dict()}: {error}") from error
    return blocks


def layer_range(layers: Any, n_layers: int, component: Component = "attention") -> tuple[int, int]:  # noqa: ANN401
    """Resolve a choice of layers to ``(first, last)``, both included, counted from 1 as in the paper.

    Args:
        layers: ``"all"``; one layer ``l`` alone; or a pair ``(first, last)``, so ``(1, l)`` sums up to layer ``l``.
            Negative numbers count from the end: ``(-4, -1)`` is the last four.
        n_layers: The number of blocks L.
        component: ``"hidden"`` is a state and not a sum: one layer, or a pair that begins at 1, selects the state
            after the (last) layer named.

    Raises:
        TypeError: ``layers`` has none of the forms above.
        ValueError: A layer lies outside 1..L, the pair runs backwards, or a hidden state is asked for a part.
    """
    whole = isinstance(layers, int) and not isinstance(layers, bool)
    if isinstance(layers, str) and layers == "all":
        return 1, n_layers
    if whole:
        pair = (layers, layers)
    elif isinstance(layers, (tuple, list)) and len(layers) == 2 and all(type(layer) is int for layer in layers):
        pair = (layers[0], layers[1])
    else:
        raise TypeError(f"layers={layers!r}: give 'all', one layer as an integer, or a pair (first, last) of integers")
    first, last = (layer + n_layers + 1 if layer < 0 else layer for layer in pair)
    if not 1 <= first <= last <= n_layers:
        raise ValueError(f"layers={layers!r}: this model has layers 1 to {n_layers}, and a pair runs from low to high")
    if component == "hidden":
        if first not in (1, last):
            raise ValueError(
                f"layers={layers!r}: component='hidden' is the state after one layer, not a sum over several; give "
                f"one layer, or (1, {last})"
            )
        return last, last
    return first, last


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
        embedding=sums["embedding"].result(1),
        attention=sums["attention"].result(len(blocks)),
        ffn=sums["ffn"].result(len(blocks)),
        hidden=sums["hidden"].result(1),
    )
