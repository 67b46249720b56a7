"""The pooling module: consensus over views, the k largest dimensions, and the packed row (DySem §3.1 to §3.3)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import torch
from sentence_transformers.base.modules import Module
from torch import Tensor

from .checks import whole_number
from .packing import pack
from .similarity import joint_cosine, pairwise_joint_cosine

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

VectorChoice = Literal["mean", "source"]
RankBy = Literal["mean", "vector"]


class _JointName(str):
    """The name of the joint similarity in `similarity_fn_name`.

    Not None, which sentence-transformers would replace by "cosine", resetting both functions; and falsy, since mteb
    scores with a model's own functions only where the name is falsy, and with plain cosine otherwise.
    """

    __slots__ = ()

    def __bool__(self) -> bool:
        return False


JOINT_COSINE = _JointName("joint_cosine")


def use_joint_similarity(model: SentenceTransformer) -> None:
    """Make a model score by the joint cosine.

    Every DySem model does so from construction on; this brings it back after ``model.similarity_fn_name = ...``, which
    replaces it (by plain cosine where it is set to None).
    """
    model._similarity = joint_cosine
    model._similarity_pairwise = pairwise_joint_cosine
    model._similarity_fn_name = JOINT_COSINE


def select(scores: Tensor, allowed: Tensor, k: int) -> Tensor:
    """Return the k allowed dimensions with the largest scores, fewer where fewer are allowed (DySem Eq. 13).

    Args:
        scores: ``[B, d]``.
        allowed: ``[B, d]`` boolean, the consensus set I(x).
        k: How many to keep.

    Returns:
        ``[B, d]`` boolean, the semantic set S(x).
    """
    ranked = scores.masked_fill(~allowed, -torch.inf)
    top = ranked.topk(min(k, scores.shape[-1]), dim=-1).indices
    return torch.zeros_like(allowed).scatter_(-1, top, True) & allowed


def pool(
    views: Tensor,
    view_mask: Tensor,
    source_view: Tensor,
    *,
    k: int,
    vector: VectorChoice = "mean",
    rank_by: RankBy = "mean",
) -> tuple[Tensor, Tensor]:
    """Pool the views of each text to a vector and a semantic set.

    A dimension is in the consensus I(x) when it is above zero in every view that the text has (Eq. 11); the mean is
    over those views (Eq. 12).

    Args:
        views: ``[B, m, d]``; rows of absent views are ignored.
        view_mask: ``[B, m]`` boolean, which views are there.
        source_view: ``[B]`` integers, the view of the source-language text, -1 where there is none.
        k: The most dimensions to select.
        vector: ``"mean"`` of the views, or the ``"source"`` view (Eq. 15).
        rank_by: Select by the ``"mean"``, as the paper, or by the ``"vector"``, as the authors' program. They differ
            only where ``vector="source"``.

    Returns:
        ``vector`` ``[B, d]`` and ``mask`` ``[B, d]`` boolean.

    Raises:
        ValueError: ``vector="source"``, and a text has no view of its source-language version.
    """
    there = view_mask[..., None]
    positive = ((views > 0) | ~there).all(dim=1) & view_mask.any(dim=1, keepdim=True)
    mean = views.masked_fill(~there, 0).sum(dim=1) / view_mask.sum(dim=1, keepdim=True).clamp_min(1)
    chosen = mean
    if vector == "source":
        if bool((source_view < 0).any()):
            raise ValueError(
                "vector='source' compares the source-language text, and none of the model's views holds it for "
                f"{int((source_view < 0).sum())} of {len(views)} texts. Add the source language to languages, state "
                "the texts' language with encode(..., language=...), or use vector='mean'"
            )
        chosen = views[torch.arange(len(views), device=views.device), source_view.to(views.device)]
    mask = select(mean if rank_by == "mean" else chosen, positive, k)
    return chosen, mask


class ConsensusPooling(Module):
    """Turns ``view_vectors`` ``[B, m, d]`` into ``vector`` and ``mask`` ``[B, d]`` and packed rows ``[B, 2d]``.

    It also gives the model its similarity: `joint_cosine` and `pairwise_joint_cosine`, unless the model was loaded
    with a ``similarity_fn_name`` of sentence-transformers' own.

    Args:
        k: The most dimensions in a semantic set S(x); the paper uses 1024.
        vector: ``"mean"`` or ``"source"`` (see `pool`).
        rank_by: ``"mean"`` or ``"vector"`` (see `pool`).

    Raises:
        TypeError: ``k`` is not an integer.
        ValueError: ``k`` is below 1, or another value is not among its choices.
    """

    config_keys = ["k", "vector", "rank_by"]

    def __init__(self, k: int = 1024, vector: VectorChoice = "mean", rank_by: RankBy = "mean") -> None:
        super().__init__()
        k = whole_number("k", k, "a number of dimensions")
        if k < 1:
            raise ValueError(f"k={k}: a semantic set has at least one dimension")
        for name, value, choices in (("vector", vector, ("mean", "source")), ("rank_by", rank_by, ("mean", "vector"))):
            if value not in choices:
                raise ValueError(f"{name}={value!r}: choose one of {', '.join(choices)}")
        self._dim: int | None = None  # d, known once the model is
        self.k = k
        self.vector: VectorChoice = vector
        self.rank_by: RankBy = rank_by

    def forward(self, features: dict[str, Tensor]) -> dict[str, Tensor]:
        """Add ``vector``, ``mask`` and ``sentence_embedding``, all float32 whatever the LLM's dtype.

        Raises:
            ValueError: See `pool`.
        """
        vector, mask = pool(
            features["view_vectors"],
            features["view_mask"],
            features["source_view"],
            k=self.k,
            vector=self.vector,
            rank_by=self.rank_by,
        )
        features["vector"], features["mask"] = vector, mask
        features["sentence_embedding"] = pack(vector, mask)
        return features

    def on_model_ready(self, model: SentenceTransformer) -> None:
        """Give the model the joint similarity; called at the end of construction and of every reload."""
        self._dim = model[0].get_embedding_dimension()
        if not model._similarity_fn_name:  # otherwise the caller asked for one of sentence-transformers' own functions
            use_joint_similarity(model)

    def get_embedding_dimension(self) -> int | None:
        """Return 2d, the width of a packed row."""
        return None if self._dim is None else 2 * self._dim

    def save(self, output_path: str, *args: Any, safe_serialization: bool = True, **kwargs: Any) -> None:  # noqa: ANN401
        """Write the configuration."""
        self.save_config(output_path)
