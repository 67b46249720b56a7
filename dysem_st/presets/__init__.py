"""Presets: the paper's ten models in both prompt settings, and the small model that needs no Hub.

One JSON file a model. ``dysem/<model>-ep`` and ``dysem/<model>-lp`` are the paper's English and language-specific
prompts; ``dysem/<model>`` is the one with the higher average in the paper's tables.
"""

from __future__ import annotations

import difflib
import json
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

ORGANISATION = "dysem"
_FOLDER = Path(__file__).parent
_PROVISIONAL = (
    "The paper publishes which languages it keeps below twelve only as figures: English first, French and Spanish "
    "near the top. The list here is provisional: rank the candidates on a development split of yours and keep "
    "the best."
)


@dataclass(frozen=True)
class Preset:
    """A named set of arguments for `dysem_st.build`.

    Args:
        name: ``dysem/<model>`` with its setting, if it has several.
        base: The language model.
        base_license: Its license.
        settings: The other arguments of `dysem_st.build`.
        calibration: A calibration file that comes with the preset.
        paper: The paper's average over seven tasks (Spearman x 100) and mean |U|, where it has this setting.
        notes: What a reader of the model card should know.
    """

    name: str
    base: str
    base_license: str
    settings: dict[str, Any]
    calibration: Path | None
    paper: dict[str, float] | None
    notes: str


@lru_cache(maxsize=1)
def presets() -> dict[str, Preset]:
    """Return every preset by its full name, each model's default name included."""
    found: dict[str, Preset] = {}
    for path in sorted(_FOLDER.glob("*.json")):
        data = json.loads(path.read_text(encoding="utf-8"))
        settings = data["settings"]
        for key, values in settings.items():
            values = dict(values)
            paper = values.pop("paper", None)
            calibration = values.pop("calibration", None)
            listed = values.get("languages", [])
            preset = Preset(
                name=f"{ORGANISATION}/{path.stem}-{key}" if len(settings) > 1 else f"{ORGANISATION}/{path.stem}",
                base=data["base"],
                base_license=data["base_license"],
                settings=values,
                calibration=_FOLDER / calibration if calibration else None,
                paper=paper,
                notes=_PROVISIONAL if paper and len(listed) < 12 else data.get("notes", ""),
            )
            found[preset.name] = preset
            if len(settings) > 1 and key == data["default"]:
                found[f"{ORGANISATION}/{path.stem}"] = preset
    return found


def find_preset(name: str) -> Preset | None:
    """Return the preset of a name, with or without ``dysem/`` in front, or None."""
    return presets().get(name) or presets().get(f"{ORGANISATION}/{name}")


def near_presets(name: str) -> list[str]:
    """Return preset names that resemble a name, or one a model where none does."""
    full = name if "/" in name else f"{ORGANISATION}/{name}"
    near = difflib.get_close_matches(full, presets(), n=5, cutoff=0.7)
    return near or sorted(known for known in presets() if not known.endswith(("-ep", "-lp")))
