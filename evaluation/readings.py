"""Reading views once and scoring many settings of them."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from scipy.stats import spearmanr
from torch import Tensor
from tqdm import tqdm

from dysem_st.packing import pack
from dysem_st.pooling import pool
from dysem_st.similarity import pairwise_joint_cosine, pairwise_joint_dimensions

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer


@torch.inference_mode()
def read_views(
    model: SentenceTransformer, texts: Sequence[str | Mapping[str, str]], batch_size: int = 32, label: str = "Reading"
) -> Tensor:
    """Return the raw view vectors of texts, ``[n, m, d]``, in their order."""
    order = sorted(range(len(texts)), key=lambda i: model._input_length(texts[i]))
    parts: list[Tensor] = []
    for start in tqdm(range(0, len(order), batch_size), desc=label, leave=False):
        features = model.preprocess([texts[i] for i in order[start : start + batch_size]])
        parts.append(model[0]({key: value.to(model.device) for key, value in features.items()})["view_vectors"].cpu())
    out = torch.empty_like(torch.cat(parts))
    out[order] = torch.cat(parts)
    return out


def spearman(scores: Tensor, gold: Sequence[float]) -> float:
    """Return Spearman's correlation x 100; NaN where a side is constant, as scipy says."""
    return 100 * float(spearmanr(scores.tolist(), gold).statistic)


def score_dense(vectors: Tensor, gold: Sequence[float]) -> float:
    """Score pairs by plain cosine; the first halves of the pairs come first."""
    half = len(vectors) // 2
    return spearman(torch.cosine_similarity(vectors[:half], vectors[half:]), gold)


def score_joint(views: Tensor, gold: Sequence[float], k: int, means: Tensor | None = None) -> tuple[float, float]:
    """Score pairs by joint cosine over pooled views ``[2n, m, d]``; return Spearman x 100 and mean |U|."""
    if means is not None:
        views = views - means
    there = torch.ones(views.shape[:2], dtype=torch.bool)
    rows = pack(*pool(views, there, torch.zeros(len(views), dtype=torch.long), k=k))
    half = len(rows) // 2
    scores = pairwise_joint_cosine(rows[:half], rows[half:])
    return spearman(scores, gold), float(pairwise_joint_dimensions(rows[:half], rows[half:]).float().mean())


class Clock:
    """The seconds since it was made."""

    def __init__(self) -> None:
        self.start = time.monotonic()

    def __str__(self) -> str:
        return f"{time.monotonic() - self.start:.0f} s"
