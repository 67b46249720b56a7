"""Language codes. Inside the package a language is its NLLB (FLORES-200) code, such as ``eng_Latn``."""

from __future__ import annotations

import difflib
from functools import lru_cache

# The paper's twelve candidates (§5.3), in its order, under their English names.
CANDIDATES: dict[str, str] = {
    "eng_Latn": "English",
    "zho_Hans": "Chinese",
    "fra_Latn": "French",
    "deu_Latn": "German",
    "spa_Latn": "Spanish",
    "rus_Cyrl": "Russian",
    "arb_Arab": "Arabic",
    "jpn_Jpan": "Japanese",
    "kor_Hang": "Korean",
    "ita_Latn": "Italian",
    "por_Latn": "Portuguese",
    "hin_Deva": "Hindi",
}

# ISO 639-1 codes, 639-3 codes and English names of the twelve, which people type instead of NLLB codes.
_ALIASES: dict[str, str] = {
    **dict(zip(("en", "zh", "fr", "de", "es", "ru", "ar", "ja", "ko", "it", "pt", "hi"), CANDIDATES, strict=True)),
    **{code.split("_")[0]: code for code in CANDIDATES},
    **{name.lower(): code for code, name in CANDIDATES.items()},
    "ara": "arb_Arab",
}


@lru_cache(maxsize=1)
def known_codes() -> frozenset[str]:
    """Return the 202 codes of NLLB-200, as transformers lists them."""
    from transformers.models.nllb.tokenization_nllb import FAIRSEQ_LANGUAGE_CODES

    return frozenset(FAIRSEQ_LANGUAGE_CODES)


def resolve(code: object) -> str:
    """Return the NLLB code that a user's code, or the English name of one of the twelve candidates, stands for.

    Raises:
        TypeError: The code is not a string.
        ValueError: The language is unknown; the message lists the nearest codes.

    Example:
        >>> resolve("de"), resolve("Japanese"), resolve("nld_Latn")
        ('deu_Latn', 'jpn_Jpan', 'nld_Latn')
    """
    if not isinstance(code, str):
        raise TypeError(f"a language is a code such as 'eng_Latn', got {code!r} of type {type(code).__name__}")
    if code in known_codes():
        return code
    if (alias := _ALIASES.get(code.lower())) is not None:
        return alias
    folded = {known.lower(): known for known in known_codes()}
    if code.lower() in folded:
        return folded[code.lower()]
    near = difflib.get_close_matches(code.lower(), [*folded, *_ALIASES], n=5, cutoff=0.5)
    near += [known for known in folded if known.split("_")[0] == code.lower().split("_")[0] and known not in near]
    choices = [folded.get(name) or f"{name} ({_ALIASES[name]})" for name in near]
    raise ValueError(
        f"unknown language {code!r}. "
        + (f"Near ones: {', '.join(choices)}. " if choices else "")
        + "Languages are NLLB-200 codes (dysem_st.languages.known_codes()); short codes are known for "
        + ", ".join(f"{CANDIDATES[alias]} ({short})" for short, alias in _ALIASES.items() if len(short) == 2)
    )
