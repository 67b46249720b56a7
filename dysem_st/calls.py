"""What a whole `encode` call knows and its batches do not: which input is which, and what to report at the end.

`SentenceTransformer.encode` sorts its inputs by length and hands them to the input module in batches, so a source
language for each text cannot reach the right text there, an error cannot name the caller's position, and a warning
would come once a batch. The input module therefore puts `encode` below on the model it belongs to; the class stays
the stock one, and everything that encodes (`encode_query`, mteb, the evaluators) goes through it.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from .versions import as_versions, check_text, languages_of

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

logger = logging.getLogger(__name__)


@dataclass
class _Report:
    shortened: int = 0
    limit: int | None = None


_report: ContextVar[_Report | None] = ContextVar("dysem_st_call_report", default=None)


def note_shortened(count: int, total: int, limit: int | None) -> None:
    """Count shortened texts towards the running call's one warning; outside a call, warn at once."""
    report = _report.get()
    if report is None:
        _warn_shortened(count, total, limit)
    else:
        report.shortened += count
        report.limit = limit


def _warn_shortened(count: int, total: int, limit: int | None) -> None:
    logger.warning(
        "%d of %d texts did not fit in max_seq_length=%s and were shortened inside their quotes", count, total, limit
    )


def install_encode(model: SentenceTransformer) -> None:
    """Put this module's `encode` on a model."""
    # A partial, not a closure: it pickles with the model into worker processes.
    model.encode = functools.partial(encode, model)


def encode(model: SentenceTransformer, inputs: Any = None, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
    """Encode texts: `SentenceTransformer.encode` with every argument it has, and two more.

    Args:
        model: The model.
        inputs: A text or a batch. A text is a string, or a mapping ``{language code: text}`` of ready translations; a
            batch is a list, tuple, array, Series, dataset column or any other ordered iterable of them.
        args: As in `SentenceTransformer.encode`.
        kwargs: The same, and ``language`` (the source language: one code, or one for each text) and ``missing``
            (``"error"`` or ``"drop"``: what a text without a version in some language does).

    Returns:
        What `SentenceTransformer.encode` returns: by default packed rows ``[n, 2d]``.

    Raises:
        TypeError: An input is not a text; its position is named. A set has no order.
        ValueError: ``output_value="token_embeddings"``, or there are not as many languages as texts.
    """
    if inputs is None and "sentences" in kwargs:
        inputs = kwargs.pop("sentences")
    value = kwargs.get("output_value", args[4] if len(args) > 4 else "sentence_embedding")  # its place after inputs
    if value not in ("sentence_embedding", None):
        raise ValueError(
            f"output_value={value!r}: a DySem model keeps each view's last token alone. Use 'sentence_embedding', or "
            "None for every feature of a text (view_vectors, vector, mask, ...)"
        )
    single = isinstance(inputs, (str, Mapping))
    batch = [inputs] if single else as_list(inputs)
    batch = [check_text(value, position) for position, value in enumerate(batch)]
    language = kwargs.get("language")
    if language is not None and not isinstance(language, str):
        language = as_list(language)
        kwargs["language"] = None  # one for each text: from here on it travels with its text
    codes = languages_of(batch, language)
    default = model[0].reader_config.source_language
    # Mappings are read here too, where a message can name the caller's position.
    batch = [
        value if isinstance(value, str) and not isinstance(language, list) else as_versions(value, code, default, i)
        for i, (value, code) in enumerate(zip(batch, codes, strict=True))
    ]
    token = _report.set(report := _Report())
    try:
        return type(model).encode(model, batch[0] if single else batch, *args, **kwargs)
    finally:
        _report.reset(token)
        if report.shortened:
            _warn_shortened(report.shortened, len(batch), report.limit)


def as_list(inputs: Any) -> list[Any]:  # noqa: ANN401
    """Return a batch as a list.

    Raises:
        TypeError: It is no ordered one-dimensional collection.
    """
    if isinstance(inputs, (set, frozenset)):
        raise TypeError("a set has no order to return rows in; give a list")
    if hasattr(inputs, "columns") or getattr(inputs, "ndim", 1) != 1:
        raise TypeError(
            f"give a one-dimensional batch of texts, got a {type(inputs).__name__}: a column, frame['text'], or its "
            "rows as mappings, frame.to_dict('records')"
        )
    if isinstance(inputs, (bytes, bytearray)) or not isinstance(inputs, Iterable):
        raise TypeError(f"give a text or a batch of texts, got {inputs!r:.80} of type {type(inputs).__name__}")
    return list(inputs.tolist() if isinstance(inputs, np.ndarray) else inputs)
