"""Packed rows ``[v ; eps * mask]``: the vector of a text, then its semantic set as zeros and one positive number.

The number is so small beside the vector that plain cosine over rows is the vector's own cosine to within 1e-5, while
any positive scaling, and float16, leave the mask readable. One tensor so passes through everything that expects an
embedding.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

# The mask part's norm over the vector's norm. Plain cosine over rows is then off by at most its square, 1e-6.
MASK_NORM = 1e-3


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
    values = as_float(vector, "vector")
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
        rows: ``[n, 2d]`` or ``[2d]``: numpy array, tensor, DataFrame, list of rows; what `encode` returned.

    Returns:
        ``vector`` (float32, or float64 where the rows are) and ``mask`` (boolean), both ``[n, d]`` or ``[d]``. A row
        with NaN keeps it in its vector, and one whose mask part is not finite becomes NaN.

    Raises:
        TypeError: The rows are integers, as ``precision="int8"`` or ``"binary"`` make them.
        ValueError: The rows are not packed rows, for instance after ``truncate_dim``.
    """
    return unpack_floats(as_rows(rows))


def as_rows(rows: Any) -> Tensor:  # noqa: ANN401
    """Return packed rows as a floating tensor of even width, ``[n, 2d]`` or ``[2d]``, without reading them.

    Raises:
        TypeError: The rows are integers.
        ValueError: The shape is not that of packed rows.
    """
    values = as_float(rows, "rows")
    if values.ndim == 1 and len(values) == 0:
        values = values.reshape(0, 0)
    if values.ndim not in (1, 2):
        raise ValueError(f"packed rows have shape [n, 2d] or [2d], got {list(values.shape)}")
    if values.shape[-1] % 2:
        raise ValueError(
            f"rows of odd width {values.shape[-1]} are not packed rows [v ; eps*mask]. Truncated rows (truncate_dim) "
            "cannot be decoded: encode without truncate_dim"
        )
    return values


def unpack_floats(values: Tensor, first: int = 0) -> tuple[Tensor, Tensor]:
    """Read what `as_rows` returned, or a block of it.

    Args:
        values: ``[n, 2d]`` or ``[2d]``.
        first: The number of the block's first row, for messages.

    Raises:
        ValueError: A second half does not hold zeros and one positive number.
    """
    width = values.shape[-1]
    vector, flags = values[..., : width // 2], values[..., width // 2 :]
    mask = flags > 0
    if not width:
        return vector, mask
    top = flags.amax(dim=-1, keepdim=True)
    finite = torch.isfinite(flags).all(dim=-1)
    wrong = finite & ~((flags == 0) | (mask & (flags == top))).all(dim=-1)
    if bool(wrong.any()):
        bad = [first + row for row in torch.nonzero(wrong.reshape(-1)).flatten().tolist()]
        raise ValueError(
            f"rows {bad[:10]} of width {width} are not packed rows: their second half must hold zeros and one "
            "positive number. Were they truncated (truncate_dim), quantised, averaged or made by another model?"
        )
    if not bool(finite.all()):  # a mask that cannot be read spoils its row, and no other
        vector = torch.where(finite[..., None], vector, torch.nan)
    return vector, mask


def as_float(values: Any, name: str) -> Tensor:  # noqa: ANN401
    """Return numbers of any container as a float32 tensor, float64 where they are.

    Raises:
        TypeError: They are integers, or no numbers.
    """
    if hasattr(values, "to_numpy"):
        values = values.to_numpy()
    if isinstance(values, (list, tuple)) and len(values) and isinstance(values[0], (Tensor, np.ndarray)):
        tensor = torch.stack([torch.as_tensor(row) for row in values])
    elif isinstance(values, np.ndarray):
        if values.dtype.kind not in "fiub":
            raise TypeError(f"{name} of dtype {values.dtype} are not numbers")
        # torch reads neither reversed nor big-endian arrays.
        tensor = torch.as_tensor(np.ascontiguousarray(values, dtype=values.dtype.newbyteorder("=")))
    else:
        tensor = torch.as_tensor(values)
    if tensor.is_floating_point():
        return tensor if tensor.dtype == torch.float64 else tensor.float()
    if tensor.numel() == 0:
        return tensor.float()
    raise TypeError(
        f"{name} of dtype {tensor.dtype} cannot be decoded: give floating numbers. Rows made with precision='int8', "
        "'uint8', 'binary' or 'ubinary' lose the vector: encode with precision='float32'"
    )
