"""The parallel STS-Benchmark development files: 1,500 pairs in eleven languages, row i the same pair in each."""

from __future__ import annotations

import csv
import os
from dataclasses import dataclass
from pathlib import Path

FILES = {
    "eng_Latn": "en",
    "deu_Latn": "de",
    "spa_Latn": "es",
    "fra_Latn": "fr",
    "ita_Latn": "it",
    "jpn_Jpan": "ja",
    "nld_Latn": "nl",
    "pol_Latn": "pl",
    "por_Latn": "pt",
    "rus_Cyrl": "ru",
    "zho_Hans": "zh",
}


@dataclass
class Pairs:
    """Pairs in one or more languages.

    Args:
        texts: Every text once a side, ``{code: text}``: the first sentences of all pairs, then the second.
        gold: The human score of each pair, 0 to 5.
    """

    texts: list[dict[str, str]]
    gold: list[float]

    def in_language(self, code: str) -> list[str]:
        """Return the texts in one language."""
        return [text[code] for text in self.texts]


def shared_folder() -> Path:
    """Return the folder with the data: ``$DYSEM_SHARED``, or ``shared`` beside the checkout.

    Raises:
        FileNotFoundError: The data is not there.
    """
    folder = Path(os.environ.get("DYSEM_SHARED") or Path(__file__).parents[2] / "shared")
    if not (folder / "data" / "stsb-multi-mt").is_dir():
        raise FileNotFoundError(
            f"no data/stsb-multi-mt in {folder}: get the files of PhilipMay/stsb-multi-mt, name them "
            "dev.<lang>.csv, and set DYSEM_SHARED"
        )
    return folder


def read_dev(codes: list[str], rows: range) -> Pairs:
    """Read rows of the development files in the languages asked for.

    Raises:
        ValueError: A language has no file.
    """
    if unknown := sorted(set(codes) - set(FILES)):
        raise ValueError(f"no development file in {unknown}; there are {list(FILES)}")
    folder = shared_folder() / "data" / "stsb-multi-mt"
    tables = {}
    for code in codes:
        with (folder / f"dev.{FILES[code]}.csv").open(encoding="utf-8", newline="") as file:
            table = list(csv.reader(file))
        tables[code] = [table[row] for row in rows]
    texts = [{code: tables[code][i][side] for code in codes} for side in (0, 1) for i in range(len(rows))]
    return Pairs(texts, [float(row[2]) for row in tables[codes[0]]])
