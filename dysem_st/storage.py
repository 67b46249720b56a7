"""Writing a reader to a folder and reading it back, LLM included."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from torch import nn

from .body import LoadOptions, load_body, resolved_revision, unchanged_adapter, without_adapters
from .config import ReaderConfig
from .translation.base import Translator, name_of, saved_form

if TYPE_CHECKING:
    from .reader import ViewReader

logger = logging.getLogger(__name__)
R = TypeVar("R", bound="ViewReader")


def save_reader(reader: ViewReader, folder: Path) -> None:
    """Write a reader's configuration, and its LLM with the tokenizer where they cannot be had from the base again.

    Args:
        reader: The reader; it is not changed.
        folder: An existing folder.

    Raises:
        RuntimeError: Weights are to be stored, and the reader was made without any.
    """
    config = reader.reader_config
    changed = reader.weights_changed()
    if (store := config.store_weights) is None:
        local = config.base is None or Path(config.base).exists()
        store = reader.body is not None and (local or changed)
    elif not store and changed:
        logger.warning("The LLM's weights were changed, and store_weights=False leaves them out of %s", folder)
    if reader.translator is not None and saved_form(reader.translator) is None:
        logger.warning(
            "The translator %s cannot be saved with the model: pass translator=... to dysem_st.load again",
            name_of(reader.translator),
        )
    if not store:
        reader.save_config(str(folder))
        return
    if reader.body is None:
        raise RuntimeError("store_weights=True, and this model holds no LLM to store")
    if adapter_files := unchanged_adapter(config.base, changed):
        for file in adapter_files:
            shutil.copy(file, folder)
    else:
        body: Any = without_adapters(reader.body)
        body.save_pretrained(folder)
    reader.tokenizer.save_pretrained(folder)
    try:
        reader.reader_config = replace(config, base=None, revision=None, gguf_file=None)
        reader.save_config(str(folder))
    finally:
        reader.reader_config = config


def load_reader(
    reader_class: type[R],
    name: str,
    subfolder: str = "",
    *,
    token: bool | str | None = None,
    cache_folder: str | None = None,
    revision: str | None = None,
    local_files_only: bool = False,
    trust_remote_code: bool = False,
    model_kwargs: Mapping[str, Any] | None = None,
    processor_kwargs: Mapping[str, Any] | None = None,
    config_kwargs: Mapping[str, Any] | None = None,
    overrides: Mapping[str, Any] | None = None,
    translator: Translator | None = None,
    loaded: tuple[nn.Module, Any] | None = None,
    **kwargs: Any,  # noqa: ANN401
) -> R:
    """Load a saved reader and the LLM that it names.

    Args:
        reader_class: `ViewReader`, or a class made from it.
        name: A folder or a Hub repository.
        subfolder: Where in it the configuration lies.
        token: See sentence-transformers, as for the arguments that follow.
        cache_folder: Where Hub files are kept.
        revision: The repository's revision; the base's own is in the configuration.
        local_files_only: Never ask the Hub.
        trust_remote_code: Let the base model run code from its repository.
        model_kwargs: For ``AutoModel.from_pretrained``.
        processor_kwargs: For ``AutoTokenizer.from_pretrained``.
        config_kwargs: For ``AutoConfig.from_pretrained``.
        overrides: Settings to use instead of the saved ones.
        translator: A translator to use instead of the saved one.
        loaded: A body and its tokenizer to use instead of loading them.
        kwargs: Ignored; what sentence-transformers passes to modules of other kinds.

    Raises:
        FileNotFoundError: There is no saved reader there.
        ValueError: Its configuration is broken.
        OSError: The base model cannot be loaded.
    """
    hub = {"token": token, "cache_folder": cache_folder, "local_files_only": local_files_only}
    config = ReaderConfig.from_dict({**read_config(reader_class, name, subfolder, revision, hub), **(overrides or {})})
    if loaded is not None:
        return reader_class(*loaded, config, translator)
    options = LoadOptions(
        revision=config.revision if config.base is not None else revision,
        token=token,
        cache_folder=cache_folder,
        local_files_only=local_files_only,
        trust_remote_code=trust_remote_code,
        model_kwargs=dict(model_kwargs or {}),
        processor_kwargs=dict(processor_kwargs or {}),
        config_kwargs=dict(config_kwargs or {}),
    )
    return reader_from_base(reader_class, config, options, translator, folder=name)


def read_config(
    reader_class: type[R], name: str, subfolder: str, revision: str | None, hub: Mapping[str, Any]
) -> dict[str, Any]:
    """Return a saved reader's configuration as it stands in its file.

    Raises:
        FileNotFoundError: There is none.
        ValueError: It is not JSON.
    """
    try:
        saved = reader_class.load_config(name, subfolder=subfolder, revision=revision, **hub)
    except json.JSONDecodeError as error:
        raise ValueError(
            f"{reader_class.config_file_name} of {name} is not JSON ({error}); is the model complete?"
        ) from error
    if not saved:
        raise FileNotFoundError(f"no {reader_class.config_file_name} in {name}")
    return dict(saved)


def reader_from_base(
    reader_class: type[R],
    config: ReaderConfig,
    options: LoadOptions,
    translator: Translator | None = None,
    folder: str | None = None,
) -> R:
    """Load the LLM that a configuration names and make a reader of it.

    Args:
        reader_class: `ViewReader`, or a class made from it.
        config: The settings.
        options: How to load the LLM.
        translator: Where missing language versions come from.
        folder: Where the weights lie if ``config.base`` is None.

    Raises:
        OSError: The LLM cannot be loaded.
    """
    if config.base is not None and Path(config.base).exists():
        # Absolute, so that it is still a local folder after a change of the working directory.
        config.base = str(Path(config.base).resolve())
    source = config.base if config.base is not None else folder
    if source is None:
        raise ValueError("the configuration names no base model")
    if config.gguf_file:
        options.model_kwargs.setdefault("gguf_file", config.gguf_file)
    if config.dtype and "torch_dtype" not in options.model_kwargs:
        options.model_kwargs.setdefault("dtype", config.dtype)
    if (dtype := options.model_kwargs.get("dtype", options.model_kwargs.get("torch_dtype"))) is not None:
        config.dtype = str(dtype).removeprefix("torch.")
    body, tokenizer = load_body(source, options)
    if config.base is not None:
        config.revision = resolved_revision(config.base, config.revision, options.cache_folder)
    return reader_class(body, tokenizer, config, translator)
