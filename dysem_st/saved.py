"""Loading saved models: only this package's and sentence-transformers' modules are made, so no code of others runs."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from huggingface_hub.errors import RepositoryNotFoundError
from sentence_transformers import SentenceTransformer
from sentence_transformers.util import import_from_string, load_file_path
from torch import nn

from . import languages as codes
from .arguments import CONSTRUCTOR, LOADING, POOLING, as_calibration, construct, take
from .body import body_of, execution_device
from .calibration import Centering, set_calibration
from .config import ReaderConfig
from .layouts import BlockLayout
from .pooling import ConsensusPooling
from .presets import near_presets
from .reader import ViewReader
from .storage import read_config
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
        ValueError: A setting is wrong, the folder holds another kind of model, or a module belongs to another package.
        OSError: The LLM cannot be loaded.
    """
    kwargs = dict(kwargs)
    constructor, loading, pooling = take(kwargs, CONSTRUCTOR), take(kwargs, LOADING), take(kwargs, POOLING)
    hub = {key: loading.get(key) for key in ("token", "cache_folder", "revision", "local_files_only")}
    hub["local_files_only"] = bool(hub["local_files_only"])
    calibrated = "calibration" not in kwargs
    calibration = as_calibration(kwargs.pop("calibration", None))
    translator = resolve_translator(kwargs["translator"]) if "translator" in kwargs else None

    entries = _modules(name, hub)
    loaded = _loaded_base(kwargs, constructor)
    reader_hub = {key: value for key, value in hub.items() if key != "revision"}
    saved = read_config(ViewReader, name, entries[0][1], hub["revision"], reader_hub)
    reader_arguments = {
        "overrides": _reader_overrides(saved, kwargs),
        "translator": translator,
        "loaded": loaded,
        "trust_remote_code": bool(loading.get("trust_remote_code")),
        **{key: loading.get(key) for key in ("model_kwargs", "processor_kwargs", "config_kwargs")},
    }
    modules: list[nn.Module] = []
    for module_class, subfolder in entries:
        if issubclass(module_class, Centering) and not calibrated:
            continue
        extra = reader_arguments if issubclass(module_class, ViewReader) else {}
        module = module_class.load(name, subfolder=subfolder, **hub, **extra)
        if isinstance(module, ConsensusPooling) and pooling:
            module = ConsensusPooling(**{**module.get_config_dict(), **pooling})
        modules.append(module)
    model_config = _read_json(name, "config_sentence_transformers.json", hub)
    for key in ("prompts", "default_prompt_name", "truncate_dim"):
        constructor.setdefault(key, model_config.get(key))
    if (similarity := model_config.get("similarity_fn_name")) in SentenceTransformer.SUPPORTED_SIMILARITY_FN_NAMES:
        constructor.setdefault("similarity_fn_name", similarity)
    model = construct(modules, constructor, loading.get("model_kwargs"))
    if calibration is not None:
        set_calibration(model, calibration)
    return model


def _modules(name: str, hub: Mapping[str, Any]) -> list[tuple[Any, str]]:
    """Return the classes and subfolders that a model's list of modules names, a reader first."""
    try:
        listing = load_file_path(name, "modules.json", **hub)
    except RepositoryNotFoundError as error:
        raise not_found(name, "there is no such repository, or it is private") from error
    if listing is None:
        raise not_found(name, "it has no modules.json")
    entries = _parse(Path(listing))
    if not isinstance(entries, list) or not all(isinstance(e, dict) and {"type", "path"} <= set(e) for e in entries):
        raise ValueError(f"{listing} is no list of modules; is the model complete?")
    modules = [(_module_class(entry["type"], name), entry["path"]) for entry in entries]
    if not modules or not issubclass(modules[0][0], ViewReader):
        raise ValueError(f"{name} is not a DySem model: its modules are {[entry['type'] for entry in entries]}")
    return modules


def _loaded_base(kwargs: dict[str, Any], constructor: dict[str, Any]) -> tuple[nn.Module, Any] | None:
    """Take a base that is a loaded model out of the arguments."""
    if isinstance(kwargs.get("base"), os.PathLike):
        kwargs["base"] = os.fspath(kwargs["base"])
    base = kwargs.get("base")
    if not isinstance(base, nn.Module):
        return None
    if (tokenizer := kwargs.pop("tokenizer", None)) is None:
        raise TypeError("a base that is a loaded model needs tokenizer=...")
    kwargs["base"] = None
    constructor.setdefault("device", str(execution_device(base)))  # the caller's model stays where it is
    return body_of(base), tokenizer


def _reader_overrides(saved: Mapping[str, Any], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Turn `build`'s remaining arguments into `ReaderConfig` fields."""
    overrides: dict[str, Any] = {}
    languages, views, prompt = (kwargs.pop(key, None) for key in ("languages", "views", "prompt"))
    if views is not None and prompt is None:
        # The saved templates stay; a view in another language takes the package's.
        views = list(views)
        used = {codes.resolve(pair[1]) for pair in views if len(pair) == 2}
        prompt = {code: template for code, template in saved["templates"].items() if code in used}
    if languages is not None and prompt is None:
        raise ValueError("languages=... replaces the views of a saved model: say in which prompts, with prompt=...")
    if prompt is not None and languages is None and views is None:
        raise ValueError("prompt=... replaces the views of a saved model: give languages=... or views=... with it")
    if prompt is not None:
        pairs, templates = make_views(languages, prompt, views)
        overrides = {"views": [list(pair) for pair in pairs], "templates": templates}
    if "translator" in kwargs:
        overrides["translator"] = None
        del kwargs["translator"]
    if "base" in kwargs:
        # What was said of the old base does not hold of another.
        overrides.update(revision=None, gguf_file=None, dtype=None, layout=None, base_license=None)
    allowed = set(ReaderConfig.__dataclass_fields__) - {"views", "templates", "translator", "revision"}
    if unknown := sorted(set(kwargs) - allowed):
        raise TypeError(f"unknown arguments {unknown}; see help(dysem_st.load)")
    if isinstance(layout := kwargs.get("layout"), BlockLayout):
        kwargs["layout"] = layout.to_dict()
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


def not_found(name: str, why: str) -> FileNotFoundError:
    """Return the error for a name under which there is no saved model."""
    if Path(name).is_dir():
        return FileNotFoundError(
            f"{name} is a folder, but not a saved model: {why}. For an LLM in it use dysem_st.build({name!r}, "
            "languages=[...])"
        )
    return FileNotFoundError(
        f"no DySem model {name!r}: it is no local folder and no preset, and as a Hub repository: {why}. "
        f"Presets: {', '.join(near_presets(name))}. For any other LLM use dysem_st.build({name!r}, languages=[...])"
    )
