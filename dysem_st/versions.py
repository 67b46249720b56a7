"""The language versions of a text: what an input brings, and what a translator adds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from . import languages
from .translation.base import name_of, translate_checked
from .views import SOURCE, View

if TYPE_CHECKING:
    from .translation.base import Translator


class Versions(dict[str, str]):
    """One text in the languages at hand, ``{code: text}``, and which of them is the source.

    Args:
        texts: Texts by NLLB code.
        source: The code of the source version, a key of ``texts``.
    """

    def __init__(self, texts: Mapping[str, str], source: str) -> None:
        super().__init__(texts)
        self.source = source

    def __reduce__(self) -> tuple[type[Versions], tuple[dict[str, str], str]]:
        return Versions, (dict(self), self.source)


def check_text(value: object, position: int) -> str | Mapping[str, str]:
    """Return an input that is a string or a mapping of language codes to strings.

    Raises:
        TypeError: It is anything else; the message names its position.
        ValueError: A mapping is empty.
    """
    if isinstance(value, str):
        return str(value) if type(value) is not str else value
    if isinstance(value, Mapping):
        if not value:
            raise ValueError(f"input {position} is an empty mapping; give at least one {{language code: text}}")
        for key, text in value.items():
            if text is not None and not isinstance(text, str):
                raise TypeError(f"input {position} has {text!r} of type {type(text).__name__} for {key!r}, not a text")
        return value
    raise TypeError(
        f"input {position} is {value!r:.80} of type {type(value).__name__}; give a string, or a mapping "
        "{language code: text} of ready translations"
    )


def as_versions(value: str | Mapping[str, str], language: str | None, default: str, position: int) -> Versions:
    """Return the versions that an input brings, and which is its source.

    Args:
        value: A string, or a mapping of ready translations, where None and blank versions count as absent.
        language: The source language that the caller stated, if any.
        default: The model's source language.
        position: The input's place, for messages.

    Raises:
        ValueError: A mapping has an unknown code, or its source cannot be told.
    """
    if isinstance(value, Versions):
        return value
    if isinstance(value, str):
        return Versions({language or default: value}, language or default)
    texts: dict[str, str] = {}
    for key, text in value.items():
        code = languages.resolve(key)
        if code in texts:
            raise ValueError(f"input {position} gives {code} twice, once as {key!r}")
        if text is not None:
            texts[code] = text
    source = language or (default if default in texts else next(iter(texts)) if len(texts) == 1 else None)
    if source not in texts:
        raise ValueError(
            f"input {position} has versions in {', '.join(texts)}, and "
            + (f"language={language!r} is not among them" if language else f"the model's {default} is not among them")
            + "; say which one is the source with encode(..., language=...)"
        )
    if texts[source].strip():
        # A blank beside a text that is none is a gap in the table, not a translation.
        texts = {code: text for code, text in texts.items() if text.strip()}
    return Versions(texts, source)


def complete(texts: Sequence[Versions], views: Sequence[View], translator: Translator | None) -> list[Versions]:
    """Add the versions that the views need and a translator can give.

    Texts are grouped by source, each distinct text is translated once a language, and blank text is its own
    translation, so that it never reaches a model.

    Args:
        texts: What the inputs brought; not changed.
        views: The views to fill.
        translator: Where missing versions come from; ``None`` adds only the blank ones.

    Returns:
        New versions in the same order; what could not be had is absent.

    Raises:
        TranslationError: The translator failed, or did not return one result a text.
    """
    filled = [Versions(text, text.source) for text in texts]
    targets = [language for language in dict.fromkeys(view.language for view in views) if language != SOURCE]
    for target in targets:
        by_source: dict[str, dict[str, list[Versions]]] = {}
        for versions in filled:
            if target in versions:
                continue
            original = versions[versions.source]
            if not original.strip():
                versions[target] = original
            else:
                by_source.setdefault(versions.source, {}).setdefault(original, []).append(versions)
        if translator is None:
            continue
        for source, waiting in by_source.items():
            for original, translated in zip(
                waiting, translate_checked(translator, list(waiting), source, target), strict=True
            ):
                if translated is not None and translated.strip():
                    for versions in waiting[original]:
                        versions[target] = translated
    return filled


def languages_of(inputs: Sequence[object], language: str | Sequence[str] | None) -> list[str | None]:
    """Return the stated source language of each input, None where none is.

    Raises:
        TypeError: A code is not a string.
        ValueError: A code is unknown, or there are not as many as inputs.
    """
    if language is None:
        return [None] * len(inputs)
    if isinstance(language, str):
        return [languages.resolve(language)] * len(inputs)
    codes: list[str | None] = [languages.resolve(code) for code in language]
    if len(codes) != len(inputs):
        raise ValueError(f"{len(codes)} languages for {len(inputs)} texts; give one, or one for each text")
    return codes


def check_present(
    texts: Sequence[Versions],
    views: Sequence[View],
    present: Sequence[Sequence[bool]],
    missing: str,
    translator: Translator | None,
) -> None:
    """Check that each text has every view, or with ``missing="drop"`` at least one.

    Args:
        texts: The completed texts.
        views: The model's views.
        present: Which views each text has, ``[B][m]``.
        missing: ``"error"`` or ``"drop"``.
        translator: Who was asked for the absent versions, for the message.

    Raises:
        ValueError: A text lacks a version; the text and the languages are named.
    """
    for text, there in zip(texts, present, strict=True):
        if all(there) or (missing == "drop" and any(there)):
            continue
        lacking = dict.fromkeys(view.language for view, has in zip(views, there, strict=True) if not has)
        asked = name_of(translator) if translator is not None else None
        raise ValueError(
            f"{text[text.source]!r:.80} ({text.source}) has no version in {', '.join(lacking)}: "
            + (f"{asked} gave none" if asked else "the model has no translator")
            + ". Give the text as {language code: text}, set translator=..., leave absent languages out with "
            "missing='drop', or build with prompt='source-text', which needs no translation"
            + (". Nothing is left of this text to read" if missing == "drop" else "")
        )
