"""Joint-dimension cosine over packed rows (DySem §3.2 and §3.3, Eq. 14 to 16)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from .packing import as_rows, unpack_floats

if TYPE_CHECKING:
    from collections.abc import Iterator

# Bytes that one call may hold above its inputs and its result.
MEMORY_BUDGET = 512 * 2**20


def joint_cosine(a: Any, b: Any, *, memory_budget: int = MEMORY_BUDGET) -> Tensor:  # noqa: ANN401
    """Cosine of every row of ``a`` with every row of ``b`` over the union of the two semantic sets.

    With s = v*mask and r = v*(1-mask), the numerator is ``s_x.v_y + r_x.s_y`` and a squared norm is
    ``|s_x|^2 + (r_x^2).mask_y``: four matrix products, exact, and never an ``n*m*d`` tensor.

    Args:
        a: Packed rows ``[n, 2d]`` or one row ``[2d]``; numpy, tensor or list, on any device.
        b: Packed rows ``[m, 2d]`` or one row ``[2d]``; moved to ``a``'s device.
        memory_budget: Bytes to hold above the inputs and the result; rows are taken in blocks that fit.

    Returns:
        ``[n, m]`` scores in [-1, 1] on ``a``'s device. A pair whose union is empty, or of a zero vector, scores 0; a
        row that holds NaN or infinity scores NaN against every other.

    Raises:
        TypeError: The rows are integers.
        ValueError: The rows are not packed rows, or the two widths differ.

    Example:
        >>> from dysem_st import pack
        >>> x = pack([1.0, 2.0, -3.0, 5.0], [True, True, False, False])
        >>> y = pack([2.0, -1.0, 4.0, 6.0], [True, False, True, False])
        >>> round(joint_cosine(x, y).item(), 3)
        -0.7
    """
    rows_a, rows_b = _pairable(a, b)
    out = rows_a.new_zeros(len(rows_a), len(rows_b))
    if not out.numel():
        return out
    # Per row of a block and side: the vector, its scaled copy, s, r, its square and the mask, besides the booleans of
    # reading it; per cell of a block, three products.
    dim = rows_a.shape[1] // 2
    block = int(max(1, min(memory_budget // (rows_a.element_size() * (14 * dim + 3 * 4096)), 4096)))
    with torch.autocast(rows_a.device.type, enabled=False):
        for span_b in _spans(len(rows_b), block):
            y = _Side(rows_b[span_b], span_b.start)
            for span_a in _spans(len(rows_a), block):
                x = _Side(rows_a[span_a], span_a.start)
                numerator = (x.selected @ y.vector.T).addmm_(x.rest, y.selected.T)
                norm_x = (x.rest_squared @ y.mask.T).add_(x.square[:, None])
                norm_y = (x.mask @ y.rest_squared.T).add_(y.square[None, :])
                scores = _ratio(numerator, norm_x, norm_y)
                scores[x.bad] = torch.nan
                scores[:, y.bad] = torch.nan
                out[span_a, span_b] = scores
    return out


def pairwise_joint_cosine(a: Any, b: Any, *, memory_budget: int = MEMORY_BUDGET) -> Tensor:  # noqa: ANN401
    """Cosine of row i of ``a`` with row i of ``b`` over the union of the two semantic sets (DySem Eq. 14 to 16).

    Args:
        a: Packed rows ``[n, 2d]`` or one row ``[2d]``; numpy, tensor or list, on any device.
        b: As many packed rows; moved to ``a``'s device.
        memory_budget: Bytes to hold above the inputs and the result.

    Returns:
        ``[n]`` scores in [-1, 1]; a scalar tensor for two single rows. Zeros and NaN as in `joint_cosine`.

    Raises:
        TypeError: The rows are integers.
        ValueError: The rows are not packed rows, or the two shapes differ.

    Example:
        >>> from dysem_st import pack
        >>> x = pack([[1.0, 0.0], [1.0, 1.0]], [[True, False], [True, True]])
        >>> pairwise_joint_cosine(x, x)
        tensor([1., 1.])
    """
    rows_a, rows_b = _pairable(a, b)
    if len(rows_a) != len(rows_b):
        raise ValueError(f"pairwise scores need as many rows on both sides, got {len(rows_a)} and {len(rows_b)}")
    out = rows_a.new_zeros(len(rows_a))
    block = int(max(1, memory_budget // (rows_a.element_size() * 6 * max(rows_a.shape[1], 1))))
    for span in _spans(len(rows_a), block):
        va, ma = unpack_floats(rows_a[span], span.start)
        vb, mb = unpack_floats(rows_b[span], span.start)
        union = ma | mb
        x, y = _scaled(va) * union, _scaled(vb) * union
        out[span] = _ratio((x * y).sum(-1), (x * x).sum(-1), (y * y).sum(-1))
        out[span][_not_finite(va) | _not_finite(vb)] = torch.nan
    return out[0] if _is_single(a) and _is_single(b) else out


def joint_dimensions(a: Any, b: Any, *, memory_budget: int = MEMORY_BUDGET) -> Tensor:  # noqa: ANN401
    """Count the dimensions |U(x, y)| that `joint_cosine` compares each pair on (DySem Eq. 14).

    Args:
        a: Packed rows, as `joint_cosine` takes them.
        b: The same.
        memory_budget: Bytes to hold above the inputs and the result.

    Returns:
        ``[n, m]`` integers from 0 to d.

    Raises:
        TypeError: The rows are integers.
        ValueError: The rows are not packed rows, or the two widths differ.
    """
    rows_a, rows_b = _pairable(a, b)
    out = torch.zeros(len(rows_a), len(rows_b), dtype=torch.long, device=rows_a.device)
    if not out.numel():
        return out
    block = int(max(1, min(memory_budget // (32 * rows_a.shape[1]), 4096)))
    with torch.autocast(rows_a.device.type, enabled=False):
        for span_b in _spans(len(rows_b), block):
            mb = unpack_floats(rows_b[span_b], span_b.start)[1].float()
            for span_a in _spans(len(rows_a), block):
                ma = unpack_floats(rows_a[span_a], span_a.start)[1].float()
                both = ma @ mb.T  # counts below 2^24 are exact in float32
                out[span_a, span_b] = (ma.sum(-1)[:, None] + mb.sum(-1)[None, :] - both).long()
    return out


def pairwise_joint_dimensions(a: Any, b: Any) -> Tensor:  # noqa: ANN401
    """Count the dimensions |U(x, y)| that `pairwise_joint_cosine` compares each pair on (DySem Eq. 14).

    The paper reports a run's dimension as the mean of these over its pairs.

    Args:
        a: Packed rows, as `pairwise_joint_cosine` takes them.
        b: As many packed rows.

    Returns:
        ``[n]`` integers from 0 to d; a scalar tensor for two single rows.

    Raises:
        TypeError: The rows are integers.
        ValueError: The rows are not packed rows, or the two shapes differ.
    """
    rows_a, rows_b = _pairable(a, b)
    if len(rows_a) != len(rows_b):
        raise ValueError(f"pairwise counts need as many rows on both sides, got {len(rows_a)} and {len(rows_b)}")
    count = (unpack_floats(rows_a)[1] | unpack_floats(rows_b)[1]).sum(-1)
    return count[0] if _is_single(a) and _is_single(b) else count


class _Side:
    """The operands that one block of packed rows brings to the four products."""

    def __init__(self, rows: Tensor, first: int) -> None:
        vector, mask = unpack_floats(rows, first)
        self.bad = _not_finite(vector)
        self.vector = _scaled(vector)
        self.mask = mask.to(vector.dtype)
        self.selected = self.vector * self.mask
        self.rest = self.vector - self.selected
        self.rest_squared = self.rest.square()
        self.square = self.selected.square().sum(-1)


def _scaled(vector: Tensor) -> Tensor:
    """Divide each row by its largest entry: cosine does not change, and no square over- or underflows.

    What is not finite becomes 0, so that it cannot reach other rows' scores; the row's own are set to NaN at the end.
    """
    largest = vector.abs().amax(dim=-1, keepdim=True) if vector.shape[-1] else vector.sum(-1, keepdim=True)
    scaled = vector / torch.where(largest > 0, largest, torch.ones_like(largest))
    return scaled.nan_to_num_(nan=0.0, posinf=0.0, neginf=0.0)


def _ratio(numerator: Tensor, square_x: Tensor, square_y: Tensor) -> Tensor:
    norm = square_x.clamp_min_(0).sqrt_().mul_(square_y.clamp_min_(0).sqrt_())
    return torch.where(norm > 0, numerator / norm.clamp_min(torch.finfo(norm.dtype).tiny), norm).clamp_(-1, 1)


def _not_finite(vector: Tensor) -> Tensor:
    return ~torch.isfinite(vector).all(-1)


def _pairable(a: Any, b: Any) -> tuple[Tensor, Tensor]:  # noqa: ANN401
    rows_a, rows_b = (rows.unsqueeze(0) if rows.ndim == 1 else rows for rows in (as_rows(a), as_rows(b)))
    if len(rows_a) and len(rows_b) and rows_a.shape[1] != rows_b.shape[1]:
        raise ValueError(
            f"rows of width {rows_a.shape[1]} and {rows_b.shape[1]} cannot be compared: they come from "
            "different models, or one side was truncated (truncate_dim)"
        )
    dtype = torch.promote_types(rows_a.dtype, rows_b.dtype)
    return rows_a.to(dtype), rows_b.to(device=rows_a.device, dtype=dtype)


def _is_single(rows: Any) -> bool:  # noqa: ANN401
    if isinstance(rows, (list, tuple)):
        return bool(len(rows)) and np.ndim(rows[0]) == 0
    return rows.ndim == 1 and len(rows) > 0


def _spans(length: int, block: int) -> Iterator[slice]:
    for start in range(0, length, block):
        yield slice(start, start + block)
