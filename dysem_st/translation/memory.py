"""Ready translations, read from files."""

from __future__ import annotations

import csv
import hashlib
import json
import logging
import threading
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from .. import languages

logger = logging.getLogger(__name__)
_reading = threading.Lock()  # two threads' first look-ups read the files once; not kept on the memory, which pickles


class TranslationMemory:
    """A translator that looks texts up.

    Texts are matched as they are, ends stripped. Where one text has two translations in a language, the first stands
    and `conflicts` counts the others.

    Args:
        rows: Mappings ``{language code: text}``, each one sentence in several languages.

    Raises:
        TypeError: A row holds something that is not a text.
        ValueError: A language code is unknown.

    Example:
        >>> memory = TranslationMemory([{"eng_Latn": "A cat.", "deu_Latn": "Eine Katze."}])
        >>> memory.translate(["A cat.", "A dog."], "eng_Latn", "deu_Latn")
        ['Eine Katze.', None]
    """

    def __init__(self, rows: Iterable[Mapping[str, str]] = ()) -> None:
        self.conflicts = 0
        self._files: list[dict[str, Any]] | None = None
        self._unread = False
        self._table: dict[tuple[str, str], dict[str, str]] = {}
        self._digest = hashlib.sha256()
        self._add(rows)

    def _add(self, rows: Iterable[Mapping[str, str]]) -> None:
        codes: dict[str, str] = {}
        for number, row in enumerate(rows):
            texts = {}
            for key, text in row.items():
                code = codes.get(key) or codes.setdefault(key, languages.resolve(key))
                if text is None:
                    continue
                if not isinstance(text, str):
                    raise TypeError(f"row {number} has {text!r} for {key}, not a text")
                if text.strip():
                    if code in texts:
                        raise ValueError(f"row {number} gives {code} twice, once as {key!r}")
                    texts[code] = text.strip()
            self._digest.update(json.dumps(texts, sort_keys=True).encode())
            for code, text in texts.items():
                known = self._table.setdefault((code, text), {})
                for other, translation in texts.items():
                    if other != code and known.setdefault(other, translation) != translation:
                        self.conflicts += 1

    @property
    def identity(self) -> str:
        """A digest of the rows."""
        self.read()
        return f"memory:{self._digest.hexdigest()[:16]}"

    def __len__(self) -> int:
        """Return the number of distinct (language, text) entries."""
        self.read()
        return len(self._table)

    def translate(self, texts: Sequence[str], source: str, target: str) -> list[str | None]:
        """Look texts up; ``None`` where the memory has none (see `Translator.translate`)."""
        self.read()
        return [self._table.get((source, text.strip()), {}).get(target) for text in texts]

    @classmethod
    def from_file(cls, *paths: str | Path) -> TranslationMemory:
        """Read CSV, TSV or JSONL files whose columns or keys are language codes.

        Raises:
            FileNotFoundError: A file is not there.
            ValueError: A file is of another kind, is malformed, or names an unknown language.
        """
        return cls.from_dict({"files": [{"path": str(Path(path).resolve())} for path in paths]}).read()

    @classmethod
    def from_parallel_files(cls, paths: Mapping[str, str | Path], columns: Sequence[int] = (0,)) -> TranslationMemory:
        """Read one CSV, TSV or plain-text file a language, without header, row i of each being the same sentences.

        Args:
            paths: A file for each language code.
            columns: Which columns hold sentences (STS files have two: ``(0, 1)``).

        Raises:
            FileNotFoundError: A file is not there.
            ValueError: The files have different numbers of rows, a row is too short, or a language is unknown.
        """
        parallel: dict[str, str] = {}
        for key, path in paths.items():
            code = languages.resolve(key)
            if code in parallel:
                raise ValueError(f"two files for {code}: {parallel[code]} and {path}")
            parallel[code] = str(Path(path).resolve())
        return cls.from_dict({"files": [{"parallel": parallel, "columns": list(columns)}]}).read()

    @classmethod
    def from_dict(cls, settings: Mapping[str, Any]) -> TranslationMemory:
        """Rebuild a memory from what `to_dict` returned.

        Its files are read when something is first looked up, so that a model that was saved with them loads where
        they are not, and works there with ready translations.
        """
        memory = cls()
        memory._files = list(settings["files"])
        memory._unread = True
        return memory

    def read(self) -> TranslationMemory:
        """Read the files, if that has not been done, and return the memory.

        Raises:
            FileNotFoundError: A file is not there.
            ValueError: A file is malformed.
        """
        with _reading:
            if self._unread:
                for entry in self._files or []:
                    self._add(_read_parallel(entry) if "parallel" in entry else _read_file(Path(entry["path"])))
                self._unread = False
                if self.conflicts:
                    logger.info("%d further translations of the same text were left aside", self.conflicts)
        return self

    def to_dict(self) -> dict[str, Any] | None:
        """Return the files that the memory was read from, or None where it was made from rows."""
        return None if self._files is None else {"name": "memory", "files": self._files}


def _read_file(path: Path) -> Iterable[Mapping[str, str]]:
    if not path.is_file():
        raise FileNotFoundError(f"no translation memory at {path}; give the model another with translator=...")
    kind = path.suffix.lower()
    if kind in (".csv", ".tsv"):
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file, delimiter="\t" if kind == ".tsv" else ",", restkey="", restval=None)
            names = reader.fieldnames or []
            if repeated := sorted({name for name in names if names.count(name) > 1}):
                raise ValueError(f"{path}: the header repeats {repeated}")
            for row in reader:
                if "" in row:
                    raise ValueError(f"{path}, line {reader.line_num}: more fields than columns in the header")
                yield row
    elif kind in (".jsonl", ".ndjson"):
        with path.open(encoding="utf-8-sig") as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    try:
                        row = json.loads(line)
                    except json.JSONDecodeError as error:
                        raise ValueError(f"{path}, line {number}: not JSON ({error})") from error
                    if not isinstance(row, dict):
                        raise ValueError(f"{path}, line {number}: expected an object, found {line.strip()[:60]}")
                    yield row
    else:
        raise ValueError(f"{path}: a translation memory is a .csv, .tsv or .jsonl file")


def _read_parallel(entry: Mapping[str, Any]) -> Iterable[Mapping[str, str]]:
    tables = {code: _read_rows(Path(path)) for code, path in entry["parallel"].items()}
    if len({len(table) for table in tables.values()}) > 1:
        raise ValueError(f"parallel files differ in length: { {code: len(table) for code, table in tables.items()} }")
    for number, rows in enumerate(zip(*tables.values(), strict=True), 1):
        for column in entry["columns"]:
            for code, row in zip(tables, rows, strict=True):
                if column >= len(row):
                    raise ValueError(f"{entry['parallel'][code]}, row {number}: no column {column} in {row}")
            yield {code: row[column] for code, row in zip(tables, rows, strict=True)}


def _read_rows(path: Path) -> list[list[str]]:
    if not path.is_file():
        raise FileNotFoundError(f"no translation memory at {path}; give the model another with translator=...")
    with path.open(encoding="utf-8-sig", newline="") as file:
        if path.suffix.lower() in (".csv", ".tsv"):
            return list(csv.reader(file, delimiter="\t" if path.suffix.lower() == ".tsv" else ","))
        return [[line.rstrip("\r\n")] for line in file]
