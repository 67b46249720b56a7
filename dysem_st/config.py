"""The settings of a reader, as they are saved with a model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from . import languages, layouts, prompts
from .views import View

Missing = Literal["error", "drop"]


@dataclass
class ReaderConfig:
    """What a saved reader consists of, as JSON.

    Args:
        base: Where the LLM comes from (see `dysem_st.body.load_body`); None where the weights lie beside the config.
        views: ``[language, template]`` pairs.
        templates: The templates by code, each with ``{text}`` once.
        revision: The base's commit, branch or tag.
        base_license: The base model's license, for the model card.
        gguf_file: The base's GGUF file, where it has one.
        dtype: The dtype to load the base in, where one was asked for.
        source_language: The language of plain-string inputs.
        component: ``"attention"``, ``"ffn"`` or ``"hidden"``.
        layers: See `dysem_st.layouts.layer_range`.
        readout: ``"residual"`` or ``"module"``.
        layout: A `BlockLayout` as a mapping, for architectures outside `dysem_st.layouts.LAYOUTS`.
        missing: What a text without a version in some language does: ``"error"`` or ``"drop"`` that view for it.
        max_seq_length: The most tokens of one prompt.
        translator: A translator's saved form.
        store_weights: Whether `save` writes the LLM's weights; None writes them where they were changed or where the
            base is a local folder or an object, which no one else could load.
        notes: A remark for the model card, such as a provisional choice.
    """

    base: str | None
    views: list[list[str]]
    templates: dict[str, str]
    revision: str | None = None
    base_license: str | None = None
    gguf_file: str | None = None
    dtype: str | None = None
    source_language: str = "eng_Latn"
    component: layouts.Component = "attention"
    layers: Any = "all"
    readout: layouts.Readout = "residual"
    layout: dict[str, str] | None = None
    missing: Missing = "error"
    max_seq_length: int | None = None
    translator: dict[str, Any] | None = None
    store_weights: bool | None = None
    notes: str = ""

    def __post_init__(self) -> None:
        """Check what does not need the model.

        Raises:
            TypeError: A value has the wrong type.
            ValueError: A value is not among its choices.
        """
        if self.store_weights not in (True, False, None):
            raise TypeError(f"store_weights is True, False or None, got {self.store_weights!r}")
        self.source_language = languages.resolve(self.source_language)
        for name, choices in (
            ("component", layouts.COMPONENTS),
            ("readout", layouts.READOUTS),
            ("missing", ("error", "drop")),
        ):
            if (value := getattr(self, name)) not in choices:
                raise ValueError(f"{name}={value!r}: choose one of {', '.join(choices)}")
        for pair in self.views:
            if len(pair) != 2:
                raise ValueError(f"a view is a pair (language, template), got {pair!r}")
        self.views = [list(View(*pair)) for pair in self.views]
        for language, template in self.views:
            if template not in self.templates:
                raise ValueError(
                    f"the view ({language}, {template}) has no template; there are {list(self.templates)}"
                )
        for name, template in self.templates.items():
            prompts.check_template(name, template)
        if isinstance(self.layers, tuple):
            self.layers = list(self.layers)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> ReaderConfig:
        """Rebuild a saved configuration.

        Raises:
            ValueError: It lacks settings, or holds some that this version does not know.
        """
        if unknown := sorted(set(values) - set(cls.__dataclass_fields__)):
            raise ValueError(f"unknown settings {unknown}: was this model saved by a newer dysem_st?")
        if absent := sorted({"base", "views", "templates"} - set(values)):
            raise ValueError(f"the settings lack {absent}; is the model complete?")
        return cls(**values)
