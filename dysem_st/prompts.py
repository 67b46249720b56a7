"""PromptEOL templates and the text that goes into them (DySem §3.1, Eq. 9)."""

from __future__ import annotations

from collections.abc import Mapping

from . import languages

PLACEHOLDER = "{text}"

# The English wording is PromptEOL's; the others are this project's translations of it.
TEMPLATES: dict[str, str] = {
    "eng_Latn": 'This sentence : "{text}" means in one word:"',
    "zho_Hans": "这句话：“{text}”用一个词来概括是：“",
    "fra_Latn": 'Cette phrase : "{text}" veut dire en un mot :"',
    "deu_Latn": 'Dieser Satz : "{text}" bedeutet mit einem Wort:"',
    "spa_Latn": 'Esta frase : "{text}" quiere decir en una palabra:"',
    "rus_Cyrl": 'Это предложение : "{text}" одним словом означает:"',
    "arb_Arab": 'هذه الجملة : "{text}" تعني في كلمة واحدة:"',
    "jpn_Jpan": "この文:「{text}」を一語で表すと:「",
    "kor_Hang": '이 문장 : "{text}"을 한 단어로 말하면:"',
    "ita_Latn": 'Questa frase : "{text}" vuol dire in una parola:"',
    "por_Latn": 'Esta frase : "{text}" quer dizer em uma palavra:"',
    "hin_Deva": 'इस वाक्य : "{text}" का एक शब्द में अर्थ है:"',
}


def check_template(name: str, template: object) -> str:
    """Return a template that holds the placeholder ``{text}`` once.

    Raises:
        TypeError: The template is not a string.
        ValueError: ``{text}`` is missing or repeated.
    """
    if not isinstance(template, str):
        raise TypeError(f"the template {name!r} must be a string, got {type(template).__name__}")
    if (count := template.count(PLACEHOLDER)) != 1:
        raise ValueError(f"the template {name!r} must hold {PLACEHOLDER} once, found {count} times in {template!r}")
    return template


def resolve_templates(prompt: Mapping[str, str]) -> dict[str, str]:
    """Return a user's templates under their NLLB codes.

    Raises:
        TypeError: A template is not a string.
        ValueError: A code is unknown or given twice, or a template does not hold ``{text}`` once.
    """
    templates: dict[str, str] = {}
    for name, template in prompt.items():
        code = languages.resolve(name)
        if code in templates:
            raise ValueError(f"two templates for {code} (one of them under {name!r})")
        templates[code] = check_template(name, template)
    return templates


def normalise(text: str) -> str:
    """Return a text as the method puts it between the template's quotes.

    Strip; end with a full stop unless one of ``. ? " '`` ends it; make double quotes single; and turn a final question
    mark into a full stop. Lone surrogates, which no tokenizer accepts, become U+FFFD.

    Example:
        >>> normalise(' Is it "cold"? '), normalise("")
        ("Is it 'cold'.", '.')
    """
    text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace").strip()
    if not text.endswith((".", "?", '"', "'")):
        text += "."
    text = text.replace('"', "'")
    return text[:-1] + "." if text.endswith("?") else text


def split(template: str, prompt: str = "") -> tuple[str, str]:
    """Return what stands before and after the text, an `encode` prompt in front of everything.

    Raises:
        ValueError: The prompt holds ``{text}``: it is a template, and templates belong to `build`.
    """
    if PLACEHOLDER in prompt:
        raise ValueError(
            f"encode's prompt {prompt!r} holds {PLACEHOLDER}. It is put in front of the model's own template and "
            "cannot replace it: give templates to dysem_st.build(prompt=...)"
        )
    head, tail = template.split(PLACEHOLDER)
    return prompt + head, tail
