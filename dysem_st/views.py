"""Views: the pairs (language of the text, template) that a text is read in."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from . import languages, prompts

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
        views: Explicit pairs; ``prompt`` then only supplies templates, a mapping or one for all.

    Returns:
        The views in order, and the templates that they use by code.

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: Neither or both of ``languages`` and ``views``, an unknown language or prompt, a repeated view, or
            a language that has no template.
    """
    if (languages_ is None) == (views is None):
        raise ValueError("give either languages=[...] (with prompt=...) or views=[(language, template), ...]")
    own: dict[str, str] = {}
    one: str | None = None
    setting = "language-specific"
    if isinstance(prompt, Mapping):
        own = prompts.resolve_templates(prompt)
    elif not isinstance(prompt, str):
        raise TypeError(f"prompt is one of {', '.join(PROMPTS)}, a template or a mapping, got {type(prompt).__name__}")
    elif prompt in PROMPTS:
        setting = prompt
    elif prompts.PLACEHOLDER in prompt:
        one = prompts.check_template("prompt", prompt)
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
    used = {view.template for view in pairs}
    if own and not used & set(own):
        # A table of more templates than are needed is welcome; one of which none is needed is a mistake.
        raise ValueError(f"prompt has templates for {', '.join(own)}, which no view uses; the views: {list(pairs)}")
    if one is not None:
        own = dict.fromkeys(used, one)
    available = {**prompts.TEMPLATES, **own}
    if missing := sorted(used - set(available)):
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
