"""What a model consists of, for the model card, the command line and people."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .calibration import Centering
from .pooling import ConsensusPooling

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer


def centering_of(model: SentenceTransformer) -> Centering | None:
    """Return a model's calibration, or None."""
    return next((module for module in model if isinstance(module, Centering)), None)


def pooling_of(model: SentenceTransformer) -> ConsensusPooling:
    """Return a model's pooling module."""
    return next(module for module in model if isinstance(module, ConsensusPooling))


def describe(model: SentenceTransformer) -> dict[str, Any]:
    """Return what a model reads and how, ready for JSON."""
    reader, pooling, centering = model[0], pooling_of(model), centering_of(model)
    config = reader.reader_config
    return {
        "base": config.base or "stored weights",
        "views": [str(view) for view in reader.views],
        "component": config.component,
        "layers": config.layers,
        "vector": pooling.vector,
        "k": pooling.k,
        "calibrated_on": centering.count if centering is not None else None,
    }
