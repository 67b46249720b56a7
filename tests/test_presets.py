"""The presets against the paper's table, and the folders that they export to."""

from __future__ import annotations

import contextlib
import io
import json
import re
from pathlib import Path

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer

import dysem_st
from dysem_st.presets import find_preset, near_presets, presets
from dysem_st.views import View, make_views

pytestmark = pytest.mark.usefixtures("no_network")

# The paper's vector, m, average of seven tasks and mean |U|: with English prompts, then with language-specific ones.
PAPER = {
    "llama2-7b": ("meta-llama/Llama-2-7b-hf", ("source", 12, 78.64, 1238), ("mean", 4, 78.98, 1240)),
    "llama2-7b-it": ("meta-llama/Llama-2-7b-chat-hf", ("source", 12, 75.38, 968), ("mean", 6, 77.16, 1193)),
    "llama3.1-8b": ("meta-llama/Llama-3.1-8B", ("source", 11, 77.11, 1103), ("mean", 6, 79.82, 995)),
    "llama3.1-8b-it": ("meta-llama/Llama-3.1-8B-Instruct", ("mean", 12, 79.76, 1176), ("mean", 10, 81.20, 772)),
    "qwen2.5-7b": ("Qwen/Qwen2.5-7B", ("mean", 12, 79.63, 978), ("mean", 7, 78.52, 940)),
    "qwen2.5-7b-it": ("Qwen/Qwen2.5-7B-Instruct", ("mean", 11, 79.44, 1001), ("mean", 8, 78.82, 900)),
    "qwen3-8b": ("Qwen/Qwen3-8B-Base", ("mean", 12, 79.65, 1027), ("mean", 12, 80.54, 675)),
    "qwen3-8b-it": ("Qwen/Qwen3-8B", ("mean", 12, 78.82, 1066), ("mean", 10, 80.16, 728)),
    "phi3-mini-it": ("microsoft/Phi-3-mini-128k-instruct", ("mean", 8, 76.84, 987), ("mean", 4, 78.51, 869)),
    "phi3.5-mini-it": ("microsoft/Phi-3.5-mini-instruct", ("mean", 10, 77.14, 997), ("mean", 8, 76.67, 658)),
}
SETTINGS = [(model, setting) for model in PAPER for setting in ("ep", "lp")]
CANDIDATES = {
    "eng_Latn", "zho_Hans", "fra_Latn", "deu_Latn", "spa_Latn", "rus_Cyrl",
    "arb_Arab", "jpn_Jpan", "kor_Hang", "ita_Latn", "por_Latn", "hin_Deva",
}  # fmt: skip
TEXTS = [
    {
        "eng_Latn": "A child is playing in the garden.",
        "fra_Latn": "Un enfant joue dans le jardin.",
        "spa_Latn": "Un niño juega en el jardín.",
        "por_Latn": "Uma criança brinca no jardim.",
        "ita_Latn": "Un bambino gioca in giardino.",
        "deu_Latn": "Ein Kind spielt im Garten.",
    },
    {
        "eng_Latn": "The bank raised its interest rates.",
        "fra_Latn": "La banque a relevé ses taux d'intérêt.",
        "spa_Latn": "El banco subió sus tipos de interés.",
        "por_Latn": "O banco subiu as taxas de juro.",
        "ita_Latn": "La banca ha alzato i tassi d'interesse.",
        "deu_Latn": "Die Bank hat ihre Zinsen erhöht.",
    },
]


def row_of(model, setting):
    return PAPER[model][1 if setting == "ep" else 2]


def views_of(preset):
    settings = preset.settings
    return make_views(settings.get("languages"), settings.get("prompt", "english"), settings.get("views"))


@pytest.mark.parametrize(("model", "setting"), SETTINGS)
def test_a_preset_has_the_papers_settings_and_results(model, setting):
    vector, count, average, dimensions = row_of(model, setting)
    preset = find_preset(f"dysem/{model}-{setting}")
    assert preset.base == PAPER[model][0]
    assert preset.settings["vector"] == vector
    assert preset.settings["k"] == 1024
    assert len(preset.settings["languages"]) == count
    assert preset.paper == {"average": average, "mean_dimensions": dimensions}


@pytest.mark.parametrize("model", PAPER)
def test_a_models_own_name_is_its_better_setting(model):
    better = max(("ep", "lp"), key=lambda setting: row_of(model, setting)[2])
    assert find_preset(f"dysem/{model}") is find_preset(f"dysem/{model}-{better}")


@pytest.mark.parametrize(("model", "setting"), SETTINGS)
def test_a_preset_resolves_to_its_views(model, setting):
    preset = find_preset(f"{model}-{setting}")
    pairs, templates = views_of(preset)
    languages = [view.language for view in pairs]
    assert len(set(languages)) == row_of(model, setting)[1]
    assert languages[0] == "eng_Latn"
    assert {"fra_Latn", "spa_Latn"} <= set(languages) <= CANDIDATES
    own = [View(language, "eng_Latn" if setting == "ep" else language) for language in languages]
    assert pairs == own
    assert set(templates) == {view.template for view in pairs}


@pytest.mark.parametrize(("model", "setting"), SETTINGS)
def test_a_list_that_the_paper_does_not_publish_is_marked_provisional(model, setting):
    note = find_preset(f"{model}-{setting}").notes
    assert ("provisional" in note) == (row_of(model, setting)[1] < 12)
    assert ("rank" in note) == ("provisional" in note)


def test_a_preset_is_found_with_and_without_its_organisation():
    for name in PAPER:
        assert find_preset(name) is find_preset(f"dysem/{name}")
    assert find_preset("dysem/llama3.1-8b-xx") is None


def test_every_base_has_a_license():
    assert all(preset.base_license for preset in presets().values())


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """A function from a preset's name to its exported folder."""
    root = tmp_path_factory.mktemp("exported")
    made = {}
    return lambda name: made.setdefault(name, dysem_st.export(name, root))


@pytest.mark.parametrize("name", ["llama3.1-8b", "llama2-7b-ep", "phi3.5-mini-it-lp"])
def test_an_exported_folder_is_small_and_holds_no_weights(exported, name):
    folder = exported(f"dysem/{name}")
    assert folder.parts[-2:] == ("dysem", name)
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 20_000
    assert {path.suffix for path in files} <= {".json", ".md"}
    assert {"README.md", "modules.json", "dysem_config.json"} <= {path.name for path in files}


@pytest.mark.parametrize("name", ["llama3.1-8b", "llama2-7b-ep", "phi3.5-mini-it-lp"])
def test_an_exported_folder_has_the_presets_settings(exported, name):
    preset, folder = find_preset(name), exported(f"dysem/{name}")
    reader = json.loads((folder / "dysem_config.json").read_text(encoding="utf-8"))
    pooling = json.loads((folder / "1_ConsensusPooling" / "config.json").read_text(encoding="utf-8"))
    pairs, templates = views_of(preset)
    assert reader["base"] == preset.base
    assert [tuple(pair) for pair in reader["views"]] == [tuple(view) for view in pairs]
    assert reader["templates"] == templates
    assert reader["component"] == "attention"
    assert reader["layers"] == "all"
    assert (pooling["k"], pooling["vector"]) == (1024, preset.settings["vector"])


def test_an_exported_card_states_the_model(exported):
    preset = find_preset("llama3.1-8b")
    card = (exported("dysem/llama3.1-8b") / "README.md").read_text(encoding="utf-8")
    assert "base_model: meta-llama/Llama-3.1-8B\n" in card
    assert "license: llama3.1\n" in card
    assert "joint-dimension cosine" in card
    assert "k = 1024" in card
    assert preset.notes.splitlines()[0] in card
    assert 'SentenceTransformer("dysem/llama3.1-8b", trust_remote_code=True)' in card


def test_a_short_name_exports_to_the_full_one(tmp_path):
    assert dysem_st.export("qwen3-8b-lp", tmp_path) == tmp_path / "dysem" / "qwen3-8b-lp"


@pytest.fixture
def local_preset(tmp_path, monkeypatch, base):
    """The working directory holds the exported llama3.1-8b preset, its base a tiny local one."""
    folder = dysem_st.export("dysem/llama3.1-8b", tmp_path)
    config = json.loads((folder / "dysem_config.json").read_text(encoding="utf-8"))
    config["base"] = base()
    (folder / "dysem_config.json").write_text(json.dumps(config), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return folder


def test_an_exported_preset_loads_under_its_name_by_the_stock_class(local_preset, base):
    model = SentenceTransformer("dysem/llama3.1-8b", trust_remote_code=True)
    assert type(model) is SentenceTransformer
    assert model[1].k == 1024
    assert [view.language for view in model[0].views] == list(TEXTS[0])
    expected = dysem_st.build(base(), languages=list(TEXTS[0]), prompt="language-specific").encode(TEXTS)
    np.testing.assert_array_equal(model.encode(TEXTS), expected)


def test_the_example_on_an_exported_card_runs(local_preset):
    code = re.search(r"```python\n(.*?)```", Path("dysem/llama3.1-8b/README.md").read_text(encoding="utf-8"), re.S)[1]
    with contextlib.redirect_stdout(io.StringIO()) as output:
        exec(code, {})
    assert "tensor([[1.0000," in output.getvalue()


def test_a_local_folder_goes_before_a_preset(local_preset):
    assert Path(dysem_st.load("dysem/llama3.1-8b")[0].reader_config.base).is_dir()


def test_a_preset_loads_on_another_copy_of_its_base(base):
    model = dysem_st.load("dysem/llama3.1-8b", base=base())
    expected = dysem_st.build(
        base(), languages=list(TEXTS[0]), prompt="language-specific", vector="mean", k=1024
    ).encode(TEXTS)
    np.testing.assert_array_equal(model.encode(TEXTS), expected)


def test_a_presets_settings_can_be_replaced(base):
    model = dysem_st.load(
        "llama2-7b-ep", base=base(), languages=["en", "ja"], prompt="source-text", k=3, vector="mean"
    )
    assert [tuple(view) for view in model[0].views] == [("source", "eng_Latn"), ("source", "jpn_Jpan")]
    assert (model[1].k, model[1].vector) == (3, "mean")
    assert len(model.encode("No translation is needed.")) == 64


def test_replacing_only_the_prompt_keeps_the_languages(base):
    model = dysem_st.load("llama3.1-8b", base=base(), prompt="english")
    assert [tuple(view) for view in model[0].views] == [(code, "eng_Latn") for code in TEXTS[0]]


def test_an_unknown_argument_of_a_preset_is_refused(base):
    with pytest.raises(TypeError, match="languges"):
        dysem_st.load("llama3.1-8b", base=base(), languges=["en"])


def test_an_unknown_preset_is_refused_with_near_names(tmp_path):
    with pytest.raises(ValueError, match=r"'dysem/lama3\.1-8b'.*dysem/llama3\.1-8b"):
        dysem_st.export("dysem/lama3.1-8b", tmp_path)
    with pytest.raises(FileNotFoundError, match=r"'lama3\.1-8b'.*dysem/llama3\.1-8b"):
        dysem_st.load("lama3.1-8b", local_files_only=True)
    assert not list(tmp_path.iterdir())


def test_a_name_near_nothing_is_answered_with_every_preset(tmp_path):
    assert {f"dysem/{name}" for name in PAPER} <= set(near_presets("xyzzy"))
    with pytest.raises(ValueError) as error:
        dysem_st.export("xyzzy", tmp_path)
    assert all(name in str(error.value) for name in PAPER)


def test_an_absent_base_is_an_error_that_names_it(tmp_path):
    with pytest.raises(OSError, match="absent-folder"):
        dysem_st.load("llama3.1-8b", base=str(tmp_path / "absent-folder"))


def test_a_preset_on_another_base_claims_no_license_of_the_old_one(base):
    arguments = {"languages": ["en"], "prompt": "source-text"}
    assert dysem_st.load("dysem/llama3.1-8b", base=base(), **arguments)[0].reader_config.base_license is None
    stated = dysem_st.load("dysem/llama3.1-8b", base=base(), base_license="mit", **arguments)
    assert stated[0].reader_config.base_license == "mit"
