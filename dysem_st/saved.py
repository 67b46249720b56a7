"""Loading saved models: only this package's and sentence-transformers' modules are made, so no code of others runs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sentence_transformers import SentenceTransformer
from sentence_transformers.util import import_from_string, load_file_path
from torch import nn

from .arguments import CONSTRUCTOR, LOADING, POOLING, as_calibration, construct, take
from .body import body_of
from .calibration import Centering, set_calibration
from .config import ReaderConfig
from .layouts import BlockLayout
from .pooling import ConsensusPooling
from .presets import near_presets
from .reader import ViewReader
from .translation.base import resolve_translator
from .views import make_views


def load_saved(name: str, kwargs: Mapping[str, Any]) -> SentenceTransformer:
    """Load a folder or a Hub repository with the settings it was saved with, some of them replaced.

    Args:
        name: The folder or repository.
        kwargs: Arguments of `dysem_st.build` that replace saved settings.

    Raises:
        FileNotFoundError: Nothing is there, or it is not a sentence-transformers model.
        TypeError: An argument is unknown.
        ValueError: A setting is wrong, or a module belongs to another package.
        OSError: The LLM cannot be loaded.
    """
    kwargs = dict(kwargs)
    constructor, loading = take(kwargs, CONSTRUCTOR), take(kwargs, LOADING)
    hub = {key: loading.get(key) for key in ("token", "cache_folder", "revision", "local_files_only")}
    hub["local_files_only"] = bool(hub["local_files_only"])
    try:
        listing = load_file_path(name, "modules.json", **hub)
    except Exception as error:
        raise _not_found(name, repr(error)) from error
    if listing is None:
        raise _not_found(name, "it has no modules.json")
    keep_calibration = "calibration" not in kwargs
    calibration = as_calibration(kwargs.pop("calibration", None))
    pooling_overrides = take(kwargs, POOLING)
    translator = resolve_translator(kwargs.pop("translator", None))
    loaded = None
    if isinstance(kwargs.get("base"), nn.Module):
        loaded = body_of(kwargs["base"]).eval(), kwargs.pop("tokenizer", None)
        if loaded[1] is None:
            raise TypeError("a base that is a loaded model needs tokenizer=...")
        kwargs["base"] = None
    reader_overrides = _reader_overrides(kwargs)
    model_config = _read_json(name, "config_sentence_transformers.json", hub)
    modules: list[nn.Module] = []
    for entry in _parse(Path(listing)):
        module_class = _module_class(entry["type"], name)
        if issubclass(module_class, Centering) and not keep_calibration:
            continue
        extra: dict[str, Any] = {}
        if issubclass(module_class, ViewReader):
            extra = {"overrides": reader_overrides, "translator": translator, "loaded": loaded}
        module = module_class.load(
            name,
            subfolder=entry["path"],
            trust_remote_code=bool(loading.get("trust_remote_code")),
            **{key: loading.get(key) for key in ("model_kwargs", "processor_kwargs", "config_kwargs")},
            **hub,
            **extra,
        )
        if isinstance(module, ConsensusPooling) and pooling_overrides:
            module = ConsensusPooling(**{**module.get_config_dict(), **pooling_overrides})
        modules.append(module)
    for key in ("prompts", "default_prompt_name", "truncate_dim"):
        constructor.setdefault(key, model_config.get(key))
    if (similarity := model_config.get("similarity_fn_name")) in SentenceTransformer.SUPPORTED_SIMILARITY_FN_NAMES:
        constructor.setdefault("similarity_fn_name", similarity)
    if not modules or not isinstance(modules[0], ViewReader):
        found = [type(module).__name__ for module in modules]
        raise ValueError(f"{name} is not a DySem model: its modules are {found}")

    model = construct(modules, constructor, loading.get("model_kwargs"))
    if calibration is not None:
        set_calibration(model, calibration)
    return model


def _reader_overrides(kwargs: dict[str, Any]) -> dict[str, Any]:
    """Turn `build`'s remaining arguments into `ReaderConfig` fields."""
    overrides: dict[str, Any] = {}
    if "languages" in kwargs or "views" in kwargs:
        pairs, templates = make_views(
            kwargs.pop("languages", None), kwargs.pop("prompt", "english"), kwargs.pop("views", None)
        )
        overrides = {"views": [list(pair) for pair in pairs], "templates": templates}
    elif "prompt" in kwargs:
        raise ValueError("prompt=... replaces the views of a saved model: give languages=... or views=... with it")
    allowed = set(ReaderConfig.__dataclass_fields__) - {"views", "templates", "translator", "revision"}
    if unknown := sorted(set(kwargs) - allowed):
        raise TypeError(f"unknown arguments {unknown}; see help(dysem_st.load)")
    if isinstance(layout := kwargs.get("layout"), BlockLayout):
        kwargs["layout"] = layout.to_dict()
    if "base" in kwargs:
        overrides["revision"] = None
    return {**overrides, **kwargs}


def _module_class(reference: str, name: str) -> Any:  # noqa: ANN401
    if reference.startswith(("dysem_st.", "sentence_transformers.")):
        return import_from_string(reference)
    raise ValueError(
        f"{name} names the module {reference!r} of another package, whose code would run on this machine. If you "
        f"trust it: SentenceTransformer({name!r}, trust_remote_code=True)"
    )


def _read_json(name: str, filename: str, hub: Mapping[str, Any]) -> dict[str, Any]:
    path = load_file_path(name, filename, **hub)
    return {} if path is None else _parse(Path(path))


def _parse(path: Path) -> Any:  # noqa: ANN401
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is not JSON ({error}); is the model complete?") from error


def _not_found(name: str, why: str) -> FileNotFoundError:
    return FileNotFoundError(
        f"no DySem model {name!r}: it is no local folder and no preset, and as a Hub repository: {why}. "
        f"Presets: {', '.join(near_presets(name))}. For any other LLM use dysem_st.build({name!r}, languages=[...])"
    )
