"""Views: the pairs (language of the text, template) that a text is read in, and the texts that fill them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from . import languages, prompts

if TYPE_CHECKING:
    from .translation.base import Translator

SOURCE = "source"
"""Stands for the untranslated text in a view, whatever its language is."""

PROMPTS = ("english", "language-specific", "source-text")


class View(NamedTuple):
    """One reading of a text: which language version of it goes into which template.

    Args:
        language: The NLLB code of the version, or ``"source"`` for the text as it was given.
        template: The NLLB code under which the template is stored.
    """

    language: str
    template: str

    def __str__(self) -> str:
        return f"{self.language} text in the {self.template} template"


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


def make_views(
    languages_: Sequence[str] | None,
    prompt: str | Mapping[str, str],
    views: Iterable[tuple[str, str]] | None,
) -> tuple[list[View], dict[str, str]]:
    """Resolve the shorthands ``languages`` + ``prompt``, or an explicit list of views, to views and their templates.

    Args:
        languages_: Language codes, for the shorthands.
        prompt: ``"english"`` (the paper's EP: every version in the English template), ``"language-specific"`` (LP:
            each in its own), ``"source-text"`` (the untranslated text in each language's template), a mapping
            ``{code: template}`` of own templates (used as LP), or one template for every language.
        views: Explicit pairs; ``prompt`` then only supplies templates.

    Returns:
        The views in order, and the templates that they use by code.

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: Neither or both of ``languages`` and ``views``, an unknown language or prompt, a repeated view, or a
            language that has no template.
    """
    if (languages_ is None) == (views is None):
        raise ValueError("give either languages=[...] (with prompt=...) or views=[(language, template), ...]")
    own: dict[str, str] = {}
    setting = "language-specific"
    if isinstance(prompt, Mapping):
        own = prompts.resolve_templates(prompt)
    elif not isinstance(prompt, str):
        raise TypeError(f"prompt is one of {', '.join(PROMPTS)}, a template or a mapping, got {type(prompt).__name__}")
    elif prompt in PROMPTS:
        setting = prompt
    elif prompts.PLACEHOLDER in prompt:
        own = {"eng_Latn": prompts.check_template("prompt", prompt)}
        setting = "english"
    else:
        raise ValueError(
            f"prompt={prompt!r}: give one of {', '.join(PROMPTS)}, a template with {prompts.PLACEHOLDER}, or a "
            "mapping {code: template}"
        )
    if languages_ is not None:
        codes = [languages.resolve(code) for code in _listed(languages_, "languages")]
        pairs = {
            "english": [View(code, "eng_Latn") for code in codes],
            "language-specific": [View(code, code) for code in codes],
            "source-text": [View(SOURCE, code) for code in codes],
        }[setting]
    else:
        pairs = [_view(pair) for pair in _listed(views, "views")]
    if not pairs:
        raise ValueError("a model needs at least one view, got none")
    if len(set(pairs)) < len(pairs):
        raise ValueError(f"repeated views: {[str(view) for view in sorted(set(pairs)) if pairs.count(view) > 1]}")
    available = {**prompts.TEMPLATES, **own}
    if missing := sorted({view.template for view in pairs} - set(available)):
        raise ValueError(
            f"no template in {', '.join(missing)}: templates come with the package for "
            f"{', '.join(prompts.TEMPLATES)}. Give yours as prompt={{{missing[0]!r}: '... {{text}} ...'}}, or use "
            "prompt='english', which works for every language"
        )
    return pairs, {view.template: available[view.template] for view in pairs}


def _listed(values: Any, name: str) -> list[Any]:  # noqa: ANN401
    if isinstance(values, (str, bytes)) or not isinstance(values, Iterable):
        raise TypeError(f"{name} is a list, got {values!r}")
    return list(values)


def _view(pair: Any) -> View:  # noqa: ANN401
    if isinstance(pair, str) or not isinstance(pair, Sequence) or len(pair) != 2:
        raise TypeError(f"a view is a pair (language, template), got {pair!r}")
    language, template = pair
    return View(SOURCE if language == SOURCE else languages.resolve(language), languages.resolve(template))


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
            if not isinstance(text, str):
                raise TypeError(f"input {position} has {text!r} of type {type(text).__name__} for {key!r}, not a text")
        return value
    raise TypeError(
        f"input {position} is {value!r:.80} of type {type(value).__name__}; give a string, or a mapping "
        "{language code: text} of ready translations"
    )


def as_versions(value: str | Mapping[str, str], language: str | None, default: str, position: int) -> Versions:
    """Return the versions that an input brings, and which is its source.

    Args:
        value: A string, or a mapping of ready translations.
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
        texts[code] = text
    source = language or (default if default in texts else next(iter(texts)) if len(texts) == 1 else None)
    if source not in texts:
        raise ValueError(
            f"input {position} has versions in {', '.join(texts)}, and "
            + (f"language={language!r} is not among them" if language else f"the model's {default} is not among them")
            + "; say which one is the source with encode(..., language=...)"
        )
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
    from .translation.base import translate_checked

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
                if translated is not None:
                    for versions in waiting[original]:
                        versions[target] = translated
    return filled
