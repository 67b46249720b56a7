"""Calibration: what each view shows on average is taken off before consensus.

Consensus asks for dimensions above zero. Off zero, most dimensions of a language model are above or below for every
text alike; subtracting each view's mean over unlabelled texts turns the question into "above what this view usually
shows". The paper does without, so a model is calibrated only where someone asks.
"""

from __future__ import annotations

import itertools
import json
import sys
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import safe_open
from safetensors.torch import save
from sentence_transformers.base.modules import Module
from torch import Tensor
from tqdm import tqdm

from .checks import whole_number
from .config import Missing
from .layouts import blocks_of, unwrap, width_of
from .reader import ViewReader
from .versions import check_text

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

if sys.version_info >= (3, 11):
    from typing import Self
else:
    from typing_extensions import Self

FILE_NAME = "calibration.safetensors"
# Texts are sorted by length within this many batches, so that a stream of any length pads little and is never held.
_WINDOW = 16


class Centering(Module):
    """Subtracts each view's mean vector from ``view_vectors``.

    Args:
        means: ``[m, d]``, the mean of each view over the calibration texts.
        fingerprint: What was read when the means were taken (`fingerprint`); it must match the model's reader.
        count: How many texts each view's mean is over.

    Raises:
        ValueError: The means are not ``[m, d]`` finite numbers.
    """

    def __init__(self, means: Tensor, fingerprint: Mapping[str, Any], count: int) -> None:
        super().__init__()
        if means.ndim != 2 or not bool(torch.isfinite(means).all()):
            raise ValueError(f"calibration means are [m, d] finite numbers, got {list(means.shape)}")
        # Not a buffer: `.half()` on the model would round it, and it is small enough to travel with each batch.
        self.means = means.detach().float().cpu()
        self.fingerprint = dict(fingerprint)
        self.count = count

    def forward(self, features: dict[str, Tensor]) -> dict[str, Tensor]:
        """Replace ``view_vectors`` ``[B, m, d]`` by their difference from the means; absent views stay zero."""
        views = features["view_vectors"]
        centred = views - self.means.to(views.device)
        features["view_vectors"] = centred.masked_fill(~features["view_mask"][..., None], 0)
        return features

    def on_model_ready(self, model: SentenceTransformer) -> None:
        """Check that the model still reads what it was calibrated on.

        Raises:
            ValueError: Views, templates, component, layers or readout differ.
        """
        current = fingerprint(model[0])
        if model[0].body is None:
            del current["architecture"]  # exported without its LLM
        differ = [key for key in current if current[key] != self.fingerprint.get(key)]
        if differ:
            raise ValueError(
                "the calibration was taken with other settings: "
                + "; ".join(
                    f"{key} was {self.fingerprint.get(key)!r:.200}, is {current[key]!r:.200}" for key in differ
                )
                + ". Calibrate again, or load with calibration=None"
            )

    def get_config_dict(self) -> dict[str, Any]:
        """Return what `repr` shows."""
        return {"views": len(self.means), "dim": self.means.shape[1], "count": self.count}

    def save(self, output_path: str, *args: Any, safe_serialization: bool = True, **kwargs: Any) -> None:  # noqa: ANN401
        """Write the means and what they were taken with to one safetensors file."""
        self.write(Path(output_path) / FILE_NAME)

    def write(self, path: Path) -> None:
        """Write the calibration to a file that `read` reads."""
        metadata = {"fingerprint": json.dumps(self.fingerprint, ensure_ascii=False), "count": str(self.count)}
        # Not `save_file`, which makes a file that only its owner can read.
        path.write_bytes(save({"means": self.means.contiguous()}, metadata=metadata))

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a calibration file.

        Raises:
            FileNotFoundError: It is not there.
        """
        if not path.is_file():
            raise FileNotFoundError(f"no calibration at {path}")
        with safe_open(str(path), framework="pt") as file:
            metadata = file.metadata()
            return cls(file.get_tensor("means"), json.loads(metadata["fingerprint"]), int(metadata["count"]))

    @classmethod
    def load(cls, model_name_or_path: str, subfolder: str = "", **kwargs: Any) -> Self:  # noqa: ANN401
        """Load from a model folder or a Hub repository (sentence-transformers calls this)."""
        hub = {key: kwargs.get(key) for key in ("token", "cache_folder", "revision")}
        path = cls.load_file_path(
            model_name_or_path,
            FILE_NAME,
            subfolder=subfolder,
            local_files_only=bool(kwargs.get("local_files_only")),
            **hub,
        )
        if path is None:
            raise FileNotFoundError(f"no {FILE_NAME} in {model_name_or_path}/{subfolder}")
        return cls.read(Path(path))


def fingerprint(reader: ViewReader) -> dict[str, Any]:
    """Return what the means depend on: the LLM's shape, the views and their templates, and what is read.

    The LLM's name is not in it: another copy of the same model, under another name, keeps its calibration.
    """
    config = reader.reader_config
    architecture = None
    if reader.body is not None:
        model_type = getattr(unwrap(reader.body).config, "model_type", None)
        architecture = [model_type, len(blocks_of(reader.body, reader.layout)), width_of(reader.body)]
    return {
        "architecture": architecture,
        "views": [list(view) for view in reader.views],
        "templates": dict(sorted(config.templates.items())),
        "component": config.component,
        "layers": config.layers,
        "readout": config.readout,
    }


@torch.inference_mode()
def mean_vectors(
    model: SentenceTransformer,
    texts: Iterable[str | Mapping[str, str]],
    *,
    batch_size: int = 32,
    show_progress_bar: bool | None = None,
    language: str | None = None,
    missing: Missing | None = None,
    prompt: str | None = None,
    prompt_name: str | None = None,
) -> tuple[Tensor, Tensor]:
    """Average each view over texts, in one pass over any iterable and in constant memory.

    Args:
        model: A DySem model; calibrated or not, its raw readings are averaged.
        texts: Unlabelled texts, as `encode` takes them.
        batch_size: Texts a batch.
        show_progress_bar: Whether to show progress; None shows it for long runs.
        language: The texts' language, one code; mappings say their own.
        missing: ``"error"`` or ``"drop"``, as in `encode`.
        prompt: As in `encode`; give the one that you encode with.
        prompt_name: As in `encode`; by default the model's default prompt, as there.

    Returns:
        ``means`` ``[m, d]`` float64, and how many texts each view was averaged over, ``[m]``.

    Raises:
        TypeError: ``texts`` is a single string, or an input is not a text.
        ValueError: A view had no text.
    """
    if isinstance(texts, (str, Mapping, Path)) or not isinstance(texts, Iterable) or hasattr(texts, "columns"):
        raise TypeError(f"calibration takes an iterable of many texts, got a {type(texts).__name__}")
    if language is not None and not isinstance(language, str):
        raise TypeError(f"language is one code for all calibration texts, got {language!r}; mappings say their own")
    if whole_number("batch_size", batch_size, "a number of texts") < 1:
        raise ValueError(f"batch_size={batch_size}: a batch has at least one text")
    prompt = model._resolve_prompt(prompt, prompt_name)
    reader: ViewReader = model[0]
    model.eval()
    total: Tensor | None = None
    counts = torch.zeros(len(reader.views), dtype=torch.long)
    stream, seen = iter(texts), 0
    with tqdm(desc="Calibrating", unit=" texts", disable=show_progress_bar is False, delay=2) as bar:
        while window := list(itertools.islice(stream, batch_size * _WINDOW)):
            for position, text in enumerate(window, seen):
                check_text(text, position)
            seen += len(window)
            window.sort(key=model._input_length)
            for start in range(0, len(window), batch_size):
                batch = window[start : start + batch_size]
                features = model.preprocess(batch, prompt=prompt, language=language, missing=missing)
                features = {key: value.to(model.device) for key, value in features.items()}
                features = reader(features)
                summed = features["view_vectors"].double().sum(dim=0).cpu()
                total = summed if total is None else total + summed
                counts += features["view_mask"].sum(dim=0).cpu()
                bar.update(len(batch))
    if total is None or bool((counts == 0).any()):
        empty = [str(view) for view, count in zip(reader.views, counts.tolist(), strict=True) if not count]
        raise ValueError(f"no calibration texts for the views: {', '.join(empty)}")
    return total / counts[:, None], counts


def calibrate(
    model: SentenceTransformer,
    texts: Iterable[str | Mapping[str, str]],
    *,
    batch_size: int = 32,
    show_progress_bar: bool | None = None,
    language: str | None = None,
    missing: Missing | None = None,
    prompt: str | None = None,
    prompt_name: str | None = None,
) -> SentenceTransformer:
    """Centre a model on unlabelled texts; a few hundred of the kind to be compared are enough.

    Args:
        model: A DySem model. It is changed in place, and returned: its `Centering` module is added or replaced.
        texts: Unlabelled texts, as `encode` takes them, from any iterable.
        batch_size: Texts a batch.
        show_progress_bar: Whether to show progress; None shows it for long runs.
        language: The texts' language, one code; mappings say their own.
        missing: ``"error"`` or ``"drop"``, as in `encode`.
        prompt: As in `encode`; give the one that you encode with.
        prompt_name: As in `encode`; by default the model's default prompt, as there.

    Returns:
        The same model.

    Raises:
        TypeError: See `mean_vectors`.
        ValueError: See `mean_vectors`; or the model is not a DySem model.
    """
    if not isinstance(model[0], ViewReader):
        raise ValueError(f"calibrate takes a DySem model; this one reads with {type(model[0]).__name__}")
    means, counts = mean_vectors(
        model,
        texts,
        batch_size=batch_size,
        show_progress_bar=show_progress_bar,
        language=language,
        missing=missing,
        prompt=prompt,
        prompt_name=prompt_name,
    )
    set_calibration(model, Centering(means, fingerprint(model[0]), int(counts.min())))
    return model


def set_calibration(model: SentenceTransformer, centering: Centering | None) -> None:
    """Put a calibration between a model's reader and the rest, in place of any other; None removes it."""
    rest = [module for module in model if not isinstance(module, Centering)]
    chain = [rest[0], *([centering] if centering is not None else []), *rest[1:]]
    if centering is not None:
        centering.on_model_ready(model)
    model._modules = OrderedDict((str(index), module) for index, module in enumerate(chain))
    model._model_card_text = None  # a card kept from loading no longer describes it
