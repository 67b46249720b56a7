"""Running many prompts through an LLM in few passes of similar length."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from . import residual
from .body import compute_dtype
from .layouts import BlockLayout, Component, Readout, unwrap
from .locks import lock_of

# The fewest rows of a pass, so that one text in twelve views is not twelve passes.
MIN_ROWS = 8


def read_prompts(
    body: nn.Module,
    input_ids: Tensor,
    attention_mask: Tensor,
    *,
    rows: int,
    layout: BlockLayout,
    component: Component,
    layers: Any,  # noqa: ANN401
    readout: Readout,
) -> Tensor:
    """Read one component at each prompt's last token.

    Args:
        body: The decoder without its head.
        input_ids: ``[N, T]``, padded on the right.
        attention_mask: ``[N, T]``, 1 for real tokens.
        rows: The most rows of a pass; below `MIN_ROWS` it is `MIN_ROWS`.
        layout: Where the contributions are.
        component: See `dysem_st.residual.read`.
        layers: See `dysem_st.layouts.layer_range`.
        readout: See `dysem_st.residual.read`.

    Returns:
        ``[N, d]`` float32, in the prompts' order and on their device.

    Raises:
        FloatingPointError: A vector holds NaN or infinity: the body overflows in its dtype.
        RuntimeError: The hooked modules were not called exactly once each.
    """
    lengths = attention_mask.sum(-1)
    order = torch.argsort(lengths, descending=True, stable=True)
    parts = []
    for chunk in torch.split(order, max(rows, MIN_ROWS)):
        width = int(lengths[chunk].max())
        batch = {"input_ids": input_ids[chunk, :width], "attention_mask": attention_mask[chunk, :width]}
        with lock_of(unwrap(body)):  # hooks live on shared modules
            part = residual.read(
                body,
                partial(body, **batch, use_cache=False),
                lengths[chunk] - 1,
                layout=layout,
                component=component,
                layers=layers,
                readout=readout,
            )
        parts.append(part.to(input_ids.device))
    found = torch.cat(parts)
    vectors = torch.empty_like(found)
    vectors[order] = found
    if not bool(torch.isfinite(vectors).all()):
        bad = int((~torch.isfinite(vectors)).any(-1).sum())
        raise FloatingPointError(
            f"{bad} of {len(vectors)} prompts gave NaN or infinity in {compute_dtype(body)}: this model overflows in "
            "it. Load it with another dtype, such as model_kwargs={'dtype': torch.float32}"
        )
    return vectors
