"""Training-free semantic similarity with decoder language models, as a sentence-transformers plugin (DySem)."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from ._version import __version__

if TYPE_CHECKING:
    from .calibration import Centering, calibrate
    from .evaluator import SimilarityEvaluator
    from .layouts import BlockLayout
    from .model import build, export, load
    from .packing import pack, unpack
    from .pooling import ConsensusPooling, use_joint_similarity
    from .reader import ViewReader
    from .similarity import joint_cosine, joint_dimensions, pairwise_joint_cosine, pairwise_joint_dimensions
    from .translation import TranslationError, TranslationMemory, Translator
    from .views import View

# Imported when first used: torch and transformers take seconds, which `dysem-st --help` need not.
_HOMES = {
    "BlockLayout": "layouts",
    "Centering": "calibration",
    "ConsensusPooling": "pooling",
    "SimilarityEvaluator": "evaluator",
    "TranslationError": "translation",
    "TranslationMemory": "translation",
    "Translator": "translation",
    "View": "views",
    "ViewReader": "reader",
    "build": "model",
    "calibrate": "calibration",
    "export": "model",
    "joint_cosine": "similarity",
    "joint_dimensions": "similarity",
    "load": "model",
    "pack": "packing",
    "pairwise_joint_cosine": "similarity",
    "pairwise_joint_dimensions": "similarity",
    "unpack": "packing",
    "use_joint_similarity": "pooling",
}

__all__ = [
    "BlockLayout",
    "Centering",
    "ConsensusPooling",
    "SimilarityEvaluator",
    "TranslationError",
    "TranslationMemory",
    "Translator",
    "View",
    "ViewReader",
    "__version__",
    "build",
    "calibrate",
    "export",
    "joint_cosine",
    "joint_dimensions",
    "load",
    "pack",
    "pairwise_joint_cosine",
    "pairwise_joint_dimensions",
    "unpack",
    "use_joint_similarity",
]


def __getattr__(name: str) -> Any:  # noqa: ANN401
    if name in _HOMES:
        value = getattr(importlib.import_module(f".{_HOMES[name]}", __name__), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
