"""Joint-dimension cosine over packed rows (DySem §3.2 and §3.3, Eq. 14 to 16).

A packed row is ``[v ; eps * mask]``: the vector of a text, then its semantic set as zeros and one positive number. The
number is so small beside the vector that plain cosine over rows is the vector's own cosine to within 1e-5, while any
positive scaling, and float16, leave the mask readable.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Iterator

# The mask part's norm over the vector's norm. Plain cosine over rows is then off by at most its square, 1e-6.
MASK_NORM = 1e-3
# Bytes that one call to `joint_cosine` may hold above its inputs and its result.
MEMORY_BUDGET = 512 * 2**20


def pack(vector: Any, mask: Any) -> Tensor:  # noqa: ANN401
    """Write vectors and semantic sets as packed rows.

    Args:
        vector: ``[n, d]`` or ``[d]`` floating numbers: numpy array, tensor or nested list.
        mask: The same shape, boolean: which dimensions belong to the text's semantic set S(x).

    Returns:
        ``[n, 2d]`` or ``[2d]``, float32 (float64 where the vector is).

    Raises:
        ValueError: The shapes differ, or a vector holds NaN or infinity.

    Example:
        >>> row = pack([3.0, -4.0], [True, False])
        >>> unpack(row)
        (tensor([ 3., -4.]), tensor([ True, False]))
    """
    values = _as_float(vector, "vector")
    flags = torch.as_tensor(mask, device=values.device)
    if flags.dtype != torch.bool:
        raise ValueError(f"mask has dtype {flags.dtype}; give booleans")
    if flags.shape != values.shape or values.ndim not in (1, 2):
        raise ValueError(
            f"vector {list(values.shape)} and mask {list(flags.shape)} must have one shape, [n, d] or [d]"
        )
    finite = torch.isfinite(values).all(dim=-1)
    if not bool(finite.all()):
        bad = torch.nonzero(~finite.reshape(-1)).flatten().tolist()
        raise ValueError(f"vectors {bad[:10]} hold NaN or infinity and cannot be packed")
    # Norm by way of the largest entry, so that no square over- or underflows.
    largest = values.abs().amax(dim=-1, keepdim=True) if values.shape[-1] else values.sum(-1, keepdim=True)
    unit = values / torch.where(largest > 0, largest, torch.ones_like(largest))
    norm = largest * unit.norm(dim=-1, keepdim=True)
    count = flags.sum(dim=-1, keepdim=True).clamp_min(1)
    eps = torch.where(norm > 0, norm, torch.ones_like(norm)) * (MASK_NORM / count.sqrt())
    return torch.cat([values, torch.where(flags, eps, torch.zeros_like(eps))], dim=-1)


def unpack(rows: Any) -> tuple[Tensor, Tensor]:  # noqa: ANN401
    """Read packed rows back.

    Args:
        rows: ``[n, 2d]`` or ``[2d]``: numpy array, tensor, list of rows; what `encode` returned.

    Returns:
        ``vector`` (float32, or float64 where the rows are) and ``mask`` (boolean), both ``[n, d]`` or ``[d]``. A row
        with NaN keeps it in its vector, and one whose mask part is not finite becomes NaN.

    Raises:
        TypeError: The rows are integers, as ``precision="int8"`` or ``"binary"`` make them.
        ValueError: The rows are not packed rows, for instance after ``truncate_dim``.
    """
    values = _as_float(rows, "rows")
    if values.ndim == 1 and len(values) == 0:
        values = values.reshape(0, 0)
    if values.ndim not in (1, 2):
        raise ValueError(f"packed rows have shape [n, 2d] or [2d], got {list(values.shape)}")
    width = values.shape[-1]
    if width % 2:
        raise ValueError(
            f"rows of odd width {width} are not packed rows [v ; eps*mask]. Truncated rows (truncate_dim) cannot be "
            "decoded: encode without truncate_dim"
        )
    vector, flags = values[..., : width // 2], values[..., width // 2 :]
    mask = flags > 0
    if width:
        top = flags.amax(dim=-1, keepdim=True)
        finite = torch.isfinite(flags).all(dim=-1)
        wrong = finite & ~((flags == 0) | (mask & (flags == top))).all(dim=-1)
        if bool(wrong.any()):
            bad = torch.nonzero(wrong.reshape(-1)).flatten().tolist()
            raise ValueError(
                f"rows {bad[:10]} of width {width} are not packed rows: their second half must hold zeros and one "
                "positive number. Were they truncated (truncate_dim), quantised, averaged or made by another model?"
            )
        if not bool(finite.all()):  # a mask that cannot be read spoils its row, and no other
            vector = torch.where(finite[..., None], vector, torch.nan)
    return vector, mask


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
        >>> x = pack([1.0, 2.0, -3.0, 5.0], [True, True, False, False])
        >>> y = pack([2.0, -1.0, 4.0, 6.0], [True, False, True, False])
        >>> round(joint_cosine(x, y).item(), 3)
        -0.7
    """
    va, ma, vb, mb = _pairable(a, b)
    out = va.new_zeros(len(va), len(vb))
    if not out.numel():
        return out
    dim = va.shape[1]
    # Per row of a block and side: the scaled vector, s, r, its square and the mask; per cell, three products.
    block = int(max(1, min(memory_budget // (va.element_size() * (10 * dim + 3 * 4096)), 4096)))
    for rows_b in _spans(len(vb), block):
        y = _Side(vb[rows_b], mb[rows_b])
        for rows_a in _spans(len(va), block):
            x = _Side(va[rows_a], ma[rows_a])
            numerator = (x.selected @ y.vector.T).addmm_(x.rest, y.selected.T)
            norm_x = (x.rest_squared @ y.mask.T).add_(x.square[:, None])
            norm_y = (x.mask @ y.rest_squared.T).add_(y.square[None, :])
            out[rows_a, rows_b] = _ratio(numerator, norm_x, norm_y)
    _spread_nan(out, va, vb)
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
        >>> x = pack([[1.0, 0.0], [1.0, 1.0]], [[True, False], [True, True]])
        >>> pairwise_joint_cosine(x, x)
        tensor([1., 1.])
    """
    va, ma, vb, mb = _pairable(a, b)
    if len(va) != len(vb):
        raise ValueError(f"pairwise scores need as many rows on both sides, got {len(va)} and {len(vb)}")
    out = va.new_zeros(len(va))
    block = int(max(1, memory_budget // (va.element_size() * 8 * max(va.shape[1], 1))))
    for rows in _spans(len(va), block):
        union = ma[rows] | mb[rows]
        x, y = _scaled(va[rows]) * union, _scaled(vb[rows]) * union
        out[rows] = _ratio((x * y).sum(-1), (x * x).sum(-1), (y * y).sum(-1))
    bad = ~(torch.isfinite(va).all(-1) & torch.isfinite(vb).all(-1))
    out[bad] = torch.nan
    return out[0] if _is_single(a) and _is_single(b) else out


def joint_dimensions(a: Any, b: Any) -> Tensor:  # noqa: ANN401
    """Count the dimensions |U(x, y)| that `joint_cosine` compares each pair on: ``[n, m]`` integers."""
    va, ma, _, mb = _pairable(a, b)
    if not (len(ma) and len(mb)):
        return torch.zeros(len(ma), len(mb), dtype=torch.long, device=ma.device)
    both = ma.to(va.dtype) @ mb.to(va.dtype).T
    return ma.sum(-1)[:, None] + mb.sum(-1)[None, :] - both.round().long()


def pairwise_joint_dimensions(a: Any, b: Any) -> Tensor:  # noqa: ANN401
    """Count the dimensions |U(x, y)| that `pairwise_joint_cosine` compares each pair on: ``[n]`` integers.

    The paper reports a run's dimension as the mean of these over its pairs.

    Raises:
        ValueError: The two sides have different numbers of rows.
    """
    _, ma, _, mb = _pairable(a, b)
    if len(ma) != len(mb):
        raise ValueError(f"pairwise counts need as many rows on both sides, got {len(ma)} and {len(mb)}")
    count = (ma | mb).sum(-1)
    return count[0] if _is_single(a) and _is_single(b) else count


class _Side:
    """The operands that one block of rows brings to the four products."""

    def __init__(self, vector: Tensor, mask: Tensor) -> None:
        self.vector = _scaled(vector)
        self.mask = mask.to(vector.dtype)
        self.selected = self.vector * self.mask
        self.rest = self.vector - self.selected
        self.rest_squared = self.rest.square()
        self.square = self.selected.square().sum(-1)


def _scaled(vector: Tensor) -> Tensor:
    """Divide each row by its largest entry: cosine does not change, and no square over- or underflows."""
    largest = vector.abs().amax(dim=-1, keepdim=True) if vector.shape[-1] else vector.sum(-1, keepdim=True)
    scaled = vector / torch.where(largest > 0, largest, torch.ones_like(largest))
    return scaled.nan_to_num_(nan=0.0, posinf=0.0, neginf=0.0)


def _ratio(numerator: Tensor, square_x: Tensor, square_y: Tensor) -> Tensor:
    norm = square_x.clamp_min_(0).sqrt_().mul_(square_y.clamp_min_(0).sqrt_())
    return torch.where(norm > 0, numerator / norm.clamp_min(torch.finfo(norm.dtype).tiny), norm).clamp_(-1, 1)


def _spread_nan(out: Tensor, va: Tensor, vb: Tensor) -> None:
    # `_scaled` zeroed the bad entries so that they could not reach other pairs; their own pairs get NaN back here.
    out[~torch.isfinite(va).all(-1)] = torch.nan
    out[:, ~torch.isfinite(vb).all(-1)] = torch.nan


def _pairable(a: Any, b: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # noqa: ANN401
    va, ma = unpack(a)
    vb, mb = unpack(b)
    va, ma, vb, mb = (half.unsqueeze(0) if half.ndim == 1 else half for half in (va, ma, vb, mb))
    vb, mb = vb.to(va.device), mb.to(va.device)
    if len(va) and len(vb) and va.shape[1] != vb.shape[1]:
        raise ValueError(f"rows of width {2 * va.shape[1]} and {2 * vb.shape[1]} come from different models")
    dtype = torch.promote_types(va.dtype, vb.dtype)
    return va.to(dtype), ma, vb.to(dtype), mb


def _as_float(values: Any, name: str) -> Tensor:  # noqa: ANN401
    if isinstance(values, (list, tuple)) and len(values) and isinstance(values[0], (Tensor, np.ndarray)):
        tensor = torch.stack([torch.as_tensor(row) for row in values])
    else:
        tensor = torch.as_tensor(values)
    if not tensor.is_floating_point():
        if tensor.numel() == 0:
            return tensor.float()
        raise TypeError(
            f"{name} of dtype {tensor.dtype} cannot be decoded: give floating numbers. Rows made with "
            "precision='int8', 'uint8', 'binary' or 'ubinary' lose the vector: encode with precision='float32'"
        )
    return tensor if tensor.dtype == torch.float64 else tensor.float()


def _is_single(rows: Any) -> bool:  # noqa: ANN401
    if isinstance(rows, (list, tuple)):
        return bool(len(rows)) and np.ndim(rows[0]) == 0
    return rows.ndim == 1 and len(rows) > 0


def _spans(length: int, block: int) -> Iterator[slice]:
    for start in range(0, length, block):
        yield slice(start, start + block)
