"""Training-free semantic similarity with decoder language models, as a sentence-transformers plugin (DySem)."""

from ._version import __version__
from .calibration import calibrate
from .layouts import BlockLayout
from .model import build, export, load
from .packaged import PACKAGED
from .pooling import ConsensusPooling
from .reader import ViewReader
from .similarity import (
    joint_cosine,
    joint_dimensions,
    pack,
    pairwise_joint_cosine,
    pairwise_joint_dimensions,
    unpack,
)
from .translation import TranslationError, TranslationMemory, Translator
from .views import View

__all__ = [
    "PACKAGED",
    "BlockLayout",
    "ConsensusPooling",
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
]
