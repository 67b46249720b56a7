"""What each command of ``dysem-st`` does. Each takes the parsed arguments and prints its result."""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer


# Fewer texts than this give a noisy mean vector, and a remark.
FEW_TEXTS = 200


def similarity(args: Namespace) -> None:
    """Score two texts by joint-dimension cosine, and say on how many dimensions and in which views."""
    from .describe import describe
    from .similarity import pairwise_joint_cosine, pairwise_joint_dimensions

    if blank := [text for text in args.text if not text.strip()]:
        raise ValueError(f"{blank[0]!r} is no text to compare")
    model = _load(args)
    rows = model.encode(args.text, convert_to_tensor=True, **_encode_options(args))
    result = {
        "score": float(pairwise_joint_cosine(rows[0], rows[1])),
        "dimensions": int(pairwise_joint_dimensions(rows[0], rows[1])),
        "of": rows.shape[1] // 2,
        **describe(model),
        "language": args.language or model[0].reader_config.source_language,
    }
    if args.json:
        _print_json(result)
        return
    _print(f"{result['score']:.4f}   joint cosine on {result['dimensions']} of {result['of']} dimensions")
    _print(f"model   {args.model}: {result['base']}, {result['component']}, k = {result['k']}")
    _print(f"views   {'; '.join(result['views'])}")
    calibrated = result["calibrated_on"]
    _print(
        f"        {'centred on ' + str(calibrated) + ' texts a view' if calibrated else 'not calibrated'}; ", end=""
    )
    _print(f"texts read as {result['language']}")


def encode(args: Namespace) -> None:
    """Encode the texts of a file to packed rows (.npy) or to vectors and semantic sets (.npz)."""
    from .describe import describe
    from .packing import unpack

    output = Path(args.output)
    if output.suffix not in (".npy", ".npz"):
        raise ValueError(f"{output}: give a .npy file for packed rows or a .npz file for vector and mask")
    if not output.parent.is_dir():
        raise FileNotFoundError(f"no folder {output.parent} to write {output.name} to")
    if not (texts := list(read_texts(Path(args.file)))):
        raise ValueError(f"no texts in {args.file}")
    model = _load(args)
    rows = model.encode(texts, show_progress_bar=_shows_progress(args), **_encode_options(args))
    if output.suffix == ".npy":
        np.save(output, rows)
    else:
        vector, mask = unpack(rows)
        np.savez(output, vector=vector.numpy(), mask=mask.numpy())
    result = {"texts": len(texts), "shape": list(rows.shape), "output": str(output), **describe(model)}
    if args.json:
        _print_json(result)
    else:
        _print(f"{len(texts)} texts to {output}, {result['shape']}")


def calibrate(args: Namespace) -> None:
    """Take each view's mean over unlabelled texts, centre the model on it, and save the model to a folder."""
    from .calibration import calibrate as calibrate_model
    from .describe import describe

    output = Path(args.output)
    if output.exists() and (not output.is_dir() or any(output.iterdir())) and not args.force:
        raise ValueError(f"{output} is there already; give another folder, or --force to write over it")
    lines = list(read_texts(Path(args.file)))
    texts = [text for text in lines if not isinstance(text, str) or text.strip()]
    if len(texts) < len(lines):
        _note(f"{len(lines) - len(texts)} blank lines of {args.file} were left out")
    if len(texts) < FEW_TEXTS:
        _note(f"{len(texts)} texts are few for a mean; a few hundred are better")
    model = _load(args, calibration=None)
    options = _encode_options(args)
    calibrate_model(model, texts, show_progress_bar=_shows_progress(args), **options)
    model.save(args.output)
    result = {"output": args.output, **describe(model)}
    if args.json:
        _print_json(result)
    else:
        _print(f"{args.output}: {len(result['views'])} views, each centred on {result['calibrated_on']} texts")


def export(args: Namespace) -> None:
    """Write a preset as a folder of a few kilobytes; its LLM is fetched when the folder is loaded."""
    from .model import export as export_preset

    hush()
    folder = export_preset(args.preset, args.folder)
    name = folder.relative_to(args.folder).as_posix()
    if args.json:
        _print_json({"folder": str(folder), "name": name})
        return
    _print(f"{folder}")
    _print(f'in {args.folder}: SentenceTransformer("{name}", trust_remote_code=True)')


def push(args: Namespace) -> None:
    """Upload a model folder to the Hub, making the repository if it is not there. Needs a login (hf auth login)."""
    from huggingface_hub import HfApi

    folder = Path(args.folder)
    if not (folder / "modules.json").is_file():
        raise FileNotFoundError(f"{folder} is not a model folder: it has no modules.json")
    api = HfApi()
    try:
        api.create_repo(args.repository, private=args.private, exist_ok=True)
        commit = api.upload_folder(repo_id=args.repository, folder_path=folder, commit_message="Add a DySem model")
    except Exception as error:
        raise RuntimeError(
            f"{folder} was not published as {args.repository}: {type(error).__name__}: {error}"
        ) from error
    if args.json:
        _print_json({"url": str(commit)})
    else:
        _print(str(commit))


def presets(args: Namespace) -> None:
    """List the presets: each model in the paper's two prompt settings, and the one that needs no download."""
    from .presets import presets as all_presets

    listed = [
        {
            "name": name,
            "setting": preset.name,
            "base": preset.base,
            "license": preset.base_license,
            "prompt": preset.settings.get("prompt", "views"),
            "views": len(preset.settings.get("languages") or preset.settings.get("views", [])),
            "vector": preset.settings.get("vector", "mean"),
            "k": preset.settings["k"],
            "paper_average": (preset.paper or {}).get("average"),
        }
        for name, preset in sorted(all_presets().items())
    ]
    if args.json:
        _print_json(listed)
        return
    columns = ["name", "base", "prompt", "views", "vector", "k", "paper_average", "license"]
    _print_table([[column.replace("_", " ") for column in columns], *[[row[c] for c in columns] for row in listed]])
    _print("\npaper average: Spearman x 100 over seven STS tasks, from the paper's tables 1 and 2.")
    _print("A name without -ep or -lp stands for the setting with the higher average.")


def demo(args: Namespace) -> None:
    """Score sentence pairs in several languages with Gemma 3 270M from its Python package; no Hub is needed."""
    from .demo import run

    hush()
    result = run(device=_device(args.device))
    if args.json:
        _print_json({key: value for key, value in result.items() if key != "table"})
    else:
        _print(result["table"])


def read_texts(path: Path) -> Iterator[str | Mapping[str, str]]:
    """Yield the texts of a file: each line of a .txt, or each string or ``{code: text}`` of a .jsonl.

    Raises:
        FileNotFoundError: The file is not there.
        ValueError: It is of another kind, or a line of a .jsonl is neither.
    """
    if not path.is_file():
        raise FileNotFoundError(f"no file {path}")
    if path.suffix.lower() not in (".txt", ".jsonl"):
        raise ValueError(f"{path}: give a .txt file with a text a line, or a .jsonl file")
    try:
        # Windows editors put a byte-order mark in front, which is no part of the first text.
        with path.open(encoding="utf-8-sig") as file:
            for number, line in enumerate(file, 1):
                if path.suffix.lower() == ".txt":
                    yield line.rstrip("\r\n")
                elif line.strip():
                    yield _json_text(line, f"{path}, line {number}")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8: {error}") from error


def _json_text(line: str, where: str) -> str | Mapping[str, str]:
    try:
        value = json.loads(line)
    except json.JSONDecodeError as error:
        raise ValueError(f"{where}: not JSON ({error})") from error
    if not isinstance(value, (str, dict)):
        raise ValueError(f"{where}: a string or {{code: text}}, found {line.strip()[:60]}")
    return value


def _load(args: Namespace, **overrides: Any) -> SentenceTransformer:  # noqa: ANN401
    from .model import load
    from .translation import TranslationMemory

    hush()
    if args.base:
        overrides["base"] = args.base
    if args.device:
        overrides["device"] = _device(args.device)
    if args.dtype:
        overrides["model_kwargs"] = {"dtype": args.dtype}
    if args.translations:
        overrides["translator"] = TranslationMemory.from_file(*args.translations)
    try:
        return load(args.model, **overrides)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise OSError(
            f"the LLM of {args.model} cannot be loaded: {error}\nIf the Hub cannot be reached, or gives no "
            "access, name another copy: --base FOLDER"
        ) from error


def _device(name: str | None) -> str | None:
    """Return a device's name, if it can be used here."""
    import torch

    try:
        torch.empty(0, device=name or "cpu")
    except (RuntimeError, AssertionError) as error:  # torch asserts that it was built with CUDA
        raise ValueError(f"--device {name}: {error}") from error
    return name


def _shows_progress(args: Namespace) -> bool:
    return not args.json and sys.stderr.isatty()


def _encode_options(args: Namespace) -> dict[str, Any]:
    options: dict[str, Any] = {"batch_size": args.batch_size}
    if args.language:
        options["language"] = args.language
    if args.missing:
        options["missing"] = args.missing
    return options


def hush() -> None:
    """Keep the host libraries' loading bars off the screen; this command's own bars stay."""
    from transformers.utils import logging as transformers_logging

    transformers_logging.disable_progress_bar()
    transformers_logging.set_verbosity_error()


def _note(text: str) -> None:
    sys.stderr.write(f"dysem-st: {text}\n")


def _print(text: str, end: str = "\n") -> None:
    sys.stdout.write(text + end)


def _print_json(value: Any) -> None:  # noqa: ANN401
    _print(json.dumps(value, ensure_ascii=False, indent=2))


def _print_table(rows: list[list[Any]]) -> None:
    cells = [["" if cell is None else str(cell) for cell in row] for row in rows]
    widths = [max(len(row[column]) for row in cells) for column in range(len(cells[0]))]
    for row in cells:
        _print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
