"""Where the language versions of a text come from."""

from .base import CallableTranslator, TranslationError, Translator, resolve_translator
from .memory import TranslationMemory

__all__ = ["CallableTranslator", "TranslationError", "TranslationMemory", "Translator", "resolve_translator"]
