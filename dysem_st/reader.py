"""The input module: texts to views, views to prompts, and one component of the LLM at each prompt's last token."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from sentence_transformers.base.modules import InputModule
from torch import Tensor, nn

from . import layouts, prompts
from .body import WeightRecord, check_identity, compiled_part
from .calls import install_encode, note_shortened
from .card import use_card
from .checks import whole_number
from .config import Missing, ReaderConfig
from .passes import read_prompts
from .tokens import Prompt, PromptTokenizer, pad
from .translation.base import Translator, resolve_translator, saved_form
from .versions import Versions, as_versions, check_present, check_text, complete, languages_of
from .views import SOURCE, View

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

if sys.version_info >= (3, 11):
    from typing import Self
else:
    from typing_extensions import Self

# The authors' program cuts prompts at 512 tokens; a longer limit is one assignment away (`model.max_seq_length`).
DEFAULT_MAX_SEQ_LENGTH = 512


class ViewReader(InputModule):
    """Reads each text in m views and returns one vector a view, ``[B, m, d]`` (DySem §3.1, Eq. 9 and 10).

    Args:
        body: The decoder without its head; None makes a module that can be saved but not run.
        tokenizer: Its tokenizer.
        config: The settings.
        translator: Where missing language versions come from; by default what ``config.translator`` names.

    Raises:
        ValueError: The architecture is unknown, or ``config.layers`` or ``config.layout`` do not fit the body.
    """

    config_file_name = "dysem_config.json"
    forward_kwargs = {"language", "missing"}

    def __init__(
        self,
        body: nn.Module | None,
        tokenizer: Any,  # noqa: ANN401
        config: ReaderConfig,
        translator: Translator | None = None,
    ) -> None:
        super().__init__()
        self.body = body
        self.reader_config = config
        self.views = [View(*pair) for pair in config.views]
        self.translator = translator if translator is not None else resolve_translator(config.translator)
        self.tokenizer = tokenizer
        self._weights = WeightRecord(body)
        if body is None:
            return
        self.layout = layouts.BlockLayout.from_dict(config.layout) if config.layout else layouts.find_layout(body)
        layouts.layer_range(config.layers, len(layouts.blocks_of(body, self.layout)), config.component)
        self._positions = getattr(layouts.unwrap(body).config, "max_position_embeddings", None) or sys.maxsize
        if config.max_seq_length is None:
            self.max_seq_length = min(DEFAULT_MAX_SEQ_LENGTH, self._positions)
        else:
            self.max_seq_length = config.max_seq_length
        if config.layout:
            template = next(iter(config.templates.values()))
            ids = self.prompt_tokenizer.encode([Prompt(*_around(template))], sys.maxsize)[0]
            check_identity(body, self.layout, torch.tensor(ids))

    @property
    def tokenizer(self) -> Any:  # noqa: ANN401
        """The base model's tokenizer."""
        return self.prompt_tokenizer.tokenizer

    @tokenizer.setter
    def tokenizer(self, value: Any) -> None:  # noqa: ANN401
        self.prompt_tokenizer = PromptTokenizer(value)

    @property
    def max_seq_length(self) -> int | None:
        """The most tokens of one prompt, template included; a longer text is shortened inside its quotes.

        Raises:
            TypeError: It is set to something else than an integer.
            ValueError: It is set to less than a template has tokens, or to more than the LLM has positions.
        """
        return self.reader_config.max_seq_length

    @max_seq_length.setter
    def max_seq_length(self, value: int) -> None:
        value = whole_number("max_seq_length", value, "a number of tokens")
        if value > self._positions:
            raise ValueError(f"max_seq_length={value}: this LLM has {self._positions} positions")
        bare = [Prompt(*_around(self.reader_config.templates[view.template])) for view in self.views]
        self.prompt_tokenizer.encode(bare, value)
        self.reader_config.max_seq_length = value

    def get_embedding_dimension(self) -> int | None:
        """Return d, the width of one view's vector; None without a body."""
        return None if self.body is None else layouts.width_of(self.body)

    def on_model_ready(self, model: SentenceTransformer) -> None:
        """Give the model its card, and the `encode` that takes one source language a text and reports once a call."""
        use_card(model)
        install_encode(model)

    def preprocess(
        self,
        inputs: Sequence[str | Mapping[str, str]],
        prompt: str | None = None,
        *,
        language: str | Sequence[str] | None = None,
        missing: Missing | None = None,
        processing_kwargs: Mapping[str, Any] | None = None,
        task: str | None = None,
        **kwargs: Any,  # noqa: ANN401
    ) -> dict[str, Tensor]:
        """Turn B inputs into B*m tokenised prompts.

        Args:
            inputs: Strings, or mappings ``{language code: text}`` of ready translations.
            prompt: Put in front of the whole filled template, in every view, as it is. The template stays last and
                whole, so the method still reads at its end.
            language: The source language: one code, or one for each input. Default: the model's `source_language`.
            missing: ``"error"`` or ``"drop"``; default: the model's own.
            processing_kwargs: Refused: tokenisation has no options of its own here.
            task: Ignored; `encode_query` and `encode_document` pass it to every model.
            kwargs: Ignored; other modules' arguments.

        Returns:
            ``input_ids`` and ``attention_mask`` ``[B, m, T]``, ``view_mask`` ``[B, m]`` (which views are there) and
            ``source_view`` ``[B]`` (the view that holds the source-language text, -1 where there is none).

        Raises:
            TypeError: An input is neither a string nor a mapping of strings; its position is named.
            ValueError: A version is missing, a language is unknown, or ``max_seq_length`` is shorter than a template.
            TranslationError: The translator failed.
        """
        if processing_kwargs:
            raise ValueError(
                f"processing_kwargs={dict(processing_kwargs)!r}: set options on model[0].tokenizer instead"
            )
        missing = missing or self.reader_config.missing
        if missing not in ("error", "drop"):
            raise ValueError(f"missing={missing!r}: choose one of error, drop")
        checked = [check_text(value, position) for position, value in enumerate(inputs)]
        default = self.reader_config.source_language
        texts = [
            as_versions(value, code, default, position)
            for position, (value, code) in enumerate(zip(checked, languages_of(checked, language), strict=True))
        ]
        texts = complete(texts, self.views, self.translator)
        present = [[view.language == SOURCE or view.language in text for view in self.views] for text in texts]
        check_present(texts, self.views, present, missing, self.translator)
        view_mask = torch.tensor(present, dtype=torch.bool).reshape(len(texts), len(self.views))
        filled = self._fill(texts, present, prompt or "")
        encoded, shortened = self.prompt_tokenizer.encode(filled, self.max_seq_length or DEFAULT_MAX_SEQ_LENGTH)
        if shortened:
            owner = torch.nonzero(view_mask)[:, 0]
            note_shortened(len(set(owner[shortened].tolist())), len(texts), self.max_seq_length)
        rows = iter(encoded)
        ids, mask = pad([next(rows) if there else [] for there in view_mask.flatten().tolist()])
        self._check_vocabulary(ids)
        shape = (len(texts), len(self.views), ids.shape[1])
        return {
            "input_ids": ids.reshape(shape),
            "attention_mask": mask.reshape(shape),
            "view_mask": view_mask,
            "source_view": torch.tensor([self._source_view(text) for text in texts]),
        }

    def _fill(self, texts: Sequence[Versions], present: Sequence[Sequence[bool]], prompt: str) -> list[Prompt]:
        """Return the filled templates of the views that are there, text by text."""
        filled = []
        for text, has in zip(texts, present, strict=True):
            for view, there in zip(self.views, has, strict=True):
                if there:
                    version = text[text.source if view.language == SOURCE else view.language]
                    head, tail = prompts.split(self.reader_config.templates[view.template], prompt)
                    filled.append(Prompt(head, prompts.normalise(version), tail))
        return filled

    def forward(self, features: dict[str, Tensor], **kwargs: Any) -> dict[str, Tensor]:  # noqa: ANN401
        """Read every view's last token; add ``view_vectors`` ``[B, m, d]`` float32, zeros where a view is absent.

        Raises:
            FloatingPointError: A vector holds NaN or infinity: the body overflows in its dtype.
            RuntimeError: The module was made without a body, or the body was compiled.
        """
        body = self._running_body()
        if (part := compiled_part(body)) is not None:
            raise RuntimeError(
                f"{part} is compiled by torch.compile, inside which hooks read nothing; load the model without it"
            )
        view_mask = features["view_mask"]
        ids, mask = features["input_ids"][view_mask], features["attention_mask"][view_mask]
        width = layouts.width_of(body)
        vectors = torch.zeros(*view_mask.shape, width, device=view_mask.device)
        if len(ids):
            vectors[view_mask] = read_prompts(
                body,
                ids,
                mask,
                rows=len(view_mask),
                layout=self.layout,
                component=self.reader_config.component,
                layers=self.reader_config.layers,
                readout=self.reader_config.readout,
            )
        features["view_vectors"] = vectors
        return features

    def _check_vocabulary(self, ids: Tensor) -> None:
        embedding = getattr(self.body, "get_input_embeddings", lambda: None)()
        size = getattr(embedding, "num_embeddings", None)
        if size is not None and ids.numel() and int(ids.max()) >= size:
            raise ValueError(
                f"the tokenizer gave token {int(ids.max())}, and the LLM knows {size}: they do not belong together"
            )

    def _source_view(self, text: Versions) -> int:
        """Return the view whose text is in the source language, one in that language's template first."""
        holding = [i for i, view in enumerate(self.views) if view.language in (SOURCE, text.source)]
        return next((i for i in holding if self.views[i].template == text.source), holding[0] if holding else -1)

    def _running_body(self) -> nn.Module:
        if self.body is None:
            raise RuntimeError("this model was made to be saved (dysem-st export) and holds no LLM; load it to encode")
        return self.body

    def __getstate__(self) -> dict[str, Any]:
        # A copy's tensors count their changes anew, so what travels is whether the weights had changed.
        return {**self.__dict__, "_weights": WeightRecord(None) if self.weights_changed() else None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if self._weights is None:
            self._weights = WeightRecord(self.body)

    def weights_changed(self) -> bool:
        """Tell whether the LLM's weights differ from those that were loaded."""
        return self.body is not None and self._weights.differs(self.body)

    def get_config_dict(self) -> dict[str, Any]:
        """Return the configuration that `save` writes."""
        return {**asdict(self.reader_config), "translator": saved_form(self.translator)}

    def save(self, output_path: str, *args: Any, safe_serialization: bool = True, **kwargs: Any) -> None:  # noqa: ANN401
        """Write the configuration, and the LLM where it cannot be had from its base (`dysem_st.storage`)."""
        from .storage import save_reader

        save_reader(self, Path(output_path))

    @classmethod
    def load(cls, model_name_or_path: str, subfolder: str = "", **kwargs: Any) -> Self:  # noqa: ANN401
        """Load a saved reader and its LLM; sentence-transformers calls this.

        Args:
            model_name_or_path: A folder or a Hub repository.
            subfolder: Where in it the configuration lies.
            kwargs: See `dysem_st.storage.load_reader`.
        """
        from .storage import load_reader

        return load_reader(cls, model_name_or_path, subfolder, **kwargs)

    def __repr__(self) -> str:
        config = self.reader_config
        return (
            f"{type(self).__name__}(base={config.base!r}, views={[tuple(view) for view in self.views]}, "
            f"component={config.component!r}, layers={config.layers!r}, readout={config.readout!r})"
        )


def _around(template: str) -> tuple[str, str, str]:
    head, tail = prompts.split(template)
    return head, "", tail
