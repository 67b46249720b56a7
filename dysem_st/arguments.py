"""Sorting keyword arguments: sentence-transformers' own, by who uses them, and making the model of its modules."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from sentence_transformers import SentenceTransformer
from torch import nn

from .body import LoadOptions
from .calibration import Centering
from .reader import ViewReader

# `SentenceTransformer`'s own arguments: those for loading the base model, and those for the constructor.
LOADING = (
    "revision", "token", "cache_folder", "local_files_only", "trust_remote_code",
    "model_kwargs", "processor_kwargs", "config_kwargs",
)  # fmt: skip
CONSTRUCTOR = ("device", "prompts", "default_prompt_name", "truncate_dim", "similarity_fn_name", "model_card_data")
# `ConsensusPooling`'s, among the arguments of `build`.
POOLING = ("k", "vector", "rank_by")


def take(kwargs: dict[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """Remove the named arguments from a mapping and return them."""
    return {name: kwargs.pop(name) for name in names if name in kwargs}


def load_options(loading: Mapping[str, Any]) -> LoadOptions:
    """Return loading arguments as `LoadOptions`, those that are None left at their defaults."""
    options = LoadOptions()
    for name, value in loading.items():
        if value is not None:
            setattr(options, name, dict(value) if name.endswith("_kwargs") else value)
    return options


def as_calibration(value: str | Path | Centering | None) -> Centering | None:
    """Return a calibration that is given as an object or as a file.

    Raises:
        FileNotFoundError: The file is not there.
    """
    return value if value is None or isinstance(value, Centering) else Centering.read(Path(value))


def construct(
    chain: Sequence[nn.Module], constructor: Mapping[str, Any], model_kwargs: Mapping[str, Any] | None
) -> SentenceTransformer:
    """Make a stock `SentenceTransformer` of modules.

    Args:
        chain: The modules, a `ViewReader` first.
        constructor: The constructor's arguments; those that are None are left at their defaults.
        model_kwargs: What the base model was loaded with.
    """
    arguments = {key: value for key, value in constructor.items() if value is not None}
    reader = chain[0]
    if model_kwargs and model_kwargs.get("device_map") is not None and isinstance(reader, ViewReader):
        if reader.body is not None:
            # The body is where its map put it; without this, the constructor would move it to the default device.
            arguments["device"] = str(next(reader.body.parameters()).device)
    return SentenceTransformer(modules=list(chain), **arguments)
