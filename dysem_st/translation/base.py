"""The translator protocol, and how a translator is called, named and saved."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable


class TranslationError(RuntimeError):
    """A translator failed, or returned something that is not one text, or None, for each text."""


@runtime_checkable
class Translator(Protocol):
    """Anything that turns texts of one language into another."""

    @property
    def identity(self) -> str:
        """What decides the output: model, revision and settings. Two translators that differ have two identities."""

    def translate(self, texts: Sequence[str], source: str, target: str) -> Sequence[str | None]:
        """Translate texts.

        Args:
            texts: Distinct, non-blank texts.
            source: Their NLLB code.
            target: The NLLB code to translate into, never ``source``.

        Returns:
            One result a text, in order; ``None`` where there is no translation.
        """


class CallableTranslator:
    """Any function ``(texts, source, target) -> texts`` as a translator. It cannot be saved with a model."""

    def __init__(self, function: Callable[[Sequence[str], str, str], Sequence[str | None]]) -> None:
        self.function = function

    @property
    def identity(self) -> str:
        """The function's qualified name."""
        name = getattr(self.function, "__qualname__", type(self.function).__qualname__)
        return f"callable:{getattr(self.function, '__module__', '?')}.{name}"

    def translate(self, texts: Sequence[str], source: str, target: str) -> Sequence[str | None]:
        """Call the function."""
        return self.function(texts, source, target)


def translate_checked(translator: Translator, texts: list[str], source: str, target: str) -> list[str | None]:
    """Translate and check that there is one text, or None, for each.

    Raises:
        TranslationError: The translator raised, or its result is not one text or None for each text.
    """
    try:
        results: Any = translator.translate(texts, source, target)
        if not isinstance(results, (str, Mapping)):
            results = list(results)
    except TranslationError:
        raise
    except Exception as error:
        # Not re-raised as it is: sentence-transformers takes a TypeError from `preprocess` for an old signature and
        # calls again with the prompt glued to the text.
        what = f"{type(error).__name__}: {error}"
        raise TranslationError(f"{name_of(translator)} failed from {source} to {target}: {what}") from error
    if isinstance(results, (str, Mapping)):
        kind = type(results).__name__
        raise TranslationError(f"{name_of(translator)} returned a {kind}, not a list with one text, or None, for each")
    if len(results) != len(texts):
        counts = f"{len(results)} results for {len(texts)} texts"
        raise TranslationError(f"{name_of(translator)} returned {counts} from {source} to {target}")
    for text, result in zip(texts, results, strict=True):
        if result is not None and not isinstance(result, str):
            raise TranslationError(f"{name_of(translator)} returned {result!r} for {text!r:.60}, not a text or None")
    return results


def name_of(translator: Translator) -> str:
    """Return a translator's identity for a message, or its class where the identity itself cannot be had."""
    try:
        return translator.identity
    except Exception:
        return type(translator).__name__


def resolve_translator(spec: Any) -> Translator | None:  # noqa: ANN401
    """Return the translator that an argument or a saved configuration stands for.

    Args:
        spec: ``None``; a translator; a function ``(texts, source, target) -> texts``; or the mapping that a
            translator's ``to_dict`` gave, ``{"name": ..., **settings}``.

    Raises:
        TypeError: It is none of these.
        ValueError: A mapping names an unknown translator.
    """
    if spec is None:
        return None
    if isinstance(spec, Mapping):
        from .memory import TranslationMemory

        settings = dict(spec)
        backends = {"memory": TranslationMemory}
        name = settings.pop("name", None)
        if name not in backends:
            raise ValueError(f"unknown translator {name!r}; the choices are {', '.join(backends)}")
        return backends[name].from_dict(settings)
    if isinstance(spec, Translator) and not isinstance(spec, type):
        return spec
    if callable(spec) and not isinstance(spec, type):
        return CallableTranslator(spec)
    raise TypeError(
        f"translator={spec!r} of type {type(spec).__name__}: give an object with translate(texts, source, target) and "
        "identity, such as dysem_st.TranslationMemory, or a function"
    )


def saved_form(translator: Translator | None) -> dict[str, Any] | None:
    """Return what a model's configuration keeps of its translator, or None if there is nothing it can keep."""
    to_dict = getattr(translator, "to_dict", None)
    return to_dict() if callable(to_dict) else None
