"""A model is the same model after it was saved, in another process too, and saving writes no more than it must."""

from __future__ import annotations

import contextlib
import copy
import io
import json
import logging
import os
import pickle
import re
import shutil
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import numpy as np
import peft
import pytest
import torch
from sentence_transformers import SentenceTransformer
from transformers import AutoModel, AutoModelForCausalLM, AutoTokenizer

import dysem_st
from dysem_st import TranslationError, TranslationMemory

pytestmark = pytest.mark.usefixtures("no_network")

TEXTS = ["Un homme joue de la guitare.", "La banque a relevé ses taux."]
GERMAN = ["Ein Mann spielt Gitarre.", "Die Bank hat ihre Zinsen erhöht."]
ENGLISH = ["A man is playing the guitar.", "The bank raised its rates."]
COMMIT = "0123456789abcdef0123456789abcdef01234567"
# Two rows whose union, zero-masked and plain cosines are -0.700, 0.200 and 0.382.
PAIR = (([1.0, 2.0, -3.0, 5.0], [True, True, False, False]), ([2.0, -1.0, 4.0, 6.0], [True, False, True, False]))
JOINT, PLAIN = -0.700, 0.382

# Loads a folder with every socket closed and writes down what it got.
FRESH = """
import json, socket, sys
from dataclasses import asdict

attempts = []

def refuse(*args, **kwargs):
    attempts.append(repr(args[1:]))
    raise OSError("no network")

socket.socket.connect = socket.create_connection = socket.getaddrinfo = refuse
import numpy as np
from sentence_transformers import SentenceTransformer

folder, out, texts, pair = json.loads(sys.argv[1])
report = {}
for how in ("stock", "dysem_st"):
    if how == "stock":
        assert "dysem_st" not in sys.modules
        model = SentenceTransformer(folder, trust_remote_code=True)
    else:
        import dysem_st
        model = dysem_st.load(folder)
    import dysem_st
    a, b = (dysem_st.pack(*row) for row in pair)
    report[how] = {
        "class": type(model).__name__,
        "modules": [type(module).__name__ for module in model],
        "config": asdict(model[0].reader_config),
        "views": [list(view) for view in model[0].views],
        "pooling": model[-1].get_config_dict(),
        "max_seq_length": model.max_seq_length,
        "translator": model[0].translator and model[0].translator.identity,
        "calibration": model[1].means.tolist() if len(model) == 3 else None,
        "calibrated_on": [model[1].count, model[1].fingerprint] if len(model) == 3 else None,
        "similarity_fn_name": str(model.similarity_fn_name),
        "named": bool(model.similarity_fn_name),
        "similarity": [model.similarity(a, b).item(), model.similarity_pairwise(a[None], b[None]).item()],
        "prompts": model.prompts,
        "training": model[0].body.training,
    }
    np.save(f"{out}/{how}.npy", model.encode(texts))
report["attempts"] = attempts
with open(f"{out}/report.json", "w", encoding="utf-8") as file:
    json.dump(report, file)
"""


def load_freshly(folder, out, texts=TEXTS):
    """Load a folder in a fresh process by the stock class and by dysem_st; return its report and both embeddings."""
    out.mkdir()
    environment = {key: value for key, value in os.environ.items() if key != "HF_HUB_OFFLINE"}
    arguments = json.dumps([str(folder), str(out), texts, PAIR])
    done = subprocess.run(
        [sys.executable, "-c", FRESH, arguments], env=environment, cwd=out, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr
    report = json.loads((out / "report.json").read_text(encoding="utf-8"))
    return report, {how: np.load(out / f"{how}.npy") for how in ("stock", "dysem_st")}


def config_of(model):
    return asdict(model[0].reader_config)


def weight_files(folder):
    return [path.name for path in Path(folder).rglob("*") if path.suffix in (".safetensors", ".bin", ".pt")]


def save(model, folder):
    model.save(str(folder))
    return folder


def pair_scores(model):
    a, b = (dysem_st.pack(*row) for row in PAIR)
    return model.similarity(a, b).item(), model.similarity_pairwise(a[None], b[None]).item()


def card_of(folder):
    return (Path(folder) / "README.md").read_text(encoding="utf-8")


def run_example(folder):
    """Run the Python block of a folder's model card on that folder and return what it printed."""
    code = re.search(r"```python\n(.*?)```", card_of(folder), re.S)[1]
    assert '"path/to/this/folder"' in code
    with contextlib.redirect_stdout(io.StringIO()) as output:
        exec(code.replace("path/to/this/folder", str(folder)), {})
    return output.getvalue()


# The whole model in a fresh process


@pytest.fixture(scope="module")
def memory(tmp_path_factory):
    folder = tmp_path_factory.mktemp("memory")
    for name, texts in (("fr", TEXTS), ("de", GERMAN), ("en", ENGLISH)):
        (folder / f"{name}.txt").write_text("\n".join(texts) + "\n", encoding="utf-8")
    return TranslationMemory.from_parallel_files({name: folder / f"{name}.txt" for name in ("fr", "de", "en")})


@pytest.fixture(scope="module")
def full(base, memory):
    """A model with no setting at its default."""
    model = dysem_st.build(
        base("gemma2"),
        views=[("fra_Latn", "fra_Latn"), ("deu_Latn", "eng_Latn"), ("source", "eng_Latn")],
        prompt={"eng_Latn": 'Say "{text}" shortly:"'},
        vector="source",
        k=5,
        rank_by="vector",
        component="ffn",
        layers=(2, 4),
        readout="module",
        missing="drop",
        max_seq_length=120,
        source_language="fra_Latn",
        translator=memory,
        base_license="gemma",
        notes="A remark.",
        store_weights=False,
        revision="main",
        prompts={"query": "Q: "},
        model_kwargs={"dtype": "float32"},
    )
    more = [
        {"fra_Latn": "Un chat dort.", "deu_Latn": "Eine Katze schläft."},
        {"fra_Latn": "Non.", "deu_Latn": "Nein."},
    ]
    return dysem_st.calibrate(model, [*TEXTS, *more], show_progress_bar=False)


@pytest.fixture(scope="module")
def full_reloaded(full, tmp_path_factory):
    root = tmp_path_factory.mktemp("full")
    report, rows = load_freshly(save(full, root / "model"), root / "out")
    return root / "model", report, rows


@pytest.mark.parametrize("how", ["stock", "dysem_st"])
def test_a_fresh_process_gets_every_setting_back(full, base, memory, full_reloaded, how):
    found = full_reloaded[1][how]
    assert found["class"] == "SentenceTransformer"
    assert found["modules"] == ["ViewReader", "Centering", "ConsensusPooling"]
    expected = {
        "base": base("gemma2"),
        "revision": "main",
        "views": [["fra_Latn", "fra_Latn"], ["deu_Latn", "eng_Latn"], ["source", "eng_Latn"]],
        "templates": {
            "fra_Latn": 'Cette phrase : "{text}" veut dire en un mot :"',
            "eng_Latn": 'Say "{text}" shortly:"',
        },
        "source_language": "fra_Latn",
        "component": "ffn",
        "layers": [2, 4],
        "readout": "module",
        "missing": "drop",
        "max_seq_length": 120,
        "base_license": "gemma",
        "notes": "A remark.",
        "store_weights": False,
        "dtype": "float32",
    }
    assert {key: found["config"][key] for key in expected} == expected
    assert found["views"] == expected["views"]
    assert found["pooling"] == {"k": 5, "vector": "source", "rank_by": "vector"}
    assert found["max_seq_length"] == 120
    assert found["translator"] == memory.identity
    assert found["calibration"] == full[1].means.tolist()
    assert found["calibrated_on"] == [4, full[1].fingerprint]
    assert found["prompts"]["query"] == "Q: "
    assert found["training"] is False


@pytest.mark.parametrize("how", ["stock", "dysem_st"])
def test_a_fresh_process_gives_the_same_embeddings_bit_for_bit(full, full_reloaded, how):
    rows = full.encode(TEXTS)
    assert not np.array_equal(rows[0], rows[1])
    np.testing.assert_array_equal(full_reloaded[2][how], rows)


@pytest.mark.parametrize("how", ["stock", "dysem_st"])
def test_a_fresh_process_scores_with_the_joint_similarity(full_reloaded, how):
    found = full_reloaded[1][how]
    assert found["similarity"] == pytest.approx([JOINT, JOINT], abs=1e-3)
    assert (found["similarity_fn_name"], found["named"]) == ("joint_cosine", False)


def test_a_fresh_process_asks_the_network_for_nothing(full_reloaded):
    assert full_reloaded[1]["attempts"] == []


def test_a_folder_with_its_weights_is_complete_after_its_base_is_gone(base, tmp_path):
    copied = tmp_path / "base"
    shutil.copytree(base(), copied)
    model = dysem_st.build(str(copied), languages=["en", "fr"], prompt="source-text", k=3)
    rows = model.encode(ENGLISH)
    save(model, tmp_path / "model")
    shutil.rmtree(copied)
    moved = (tmp_path / "model").rename(tmp_path / "moved")
    report, found = load_freshly(moved, tmp_path / "out", ENGLISH)
    for how in ("stock", "dysem_st"):
        np.testing.assert_array_equal(found[how], rows)
        assert report[how]["config"]["base"] is None
        assert report[how]["translator"] is None
    assert report["attempts"] == []


# Similarity


@pytest.fixture(scope="module")
def small(base, tmp_path_factory):
    """A source-text model and the folder that it was saved to."""
    model = dysem_st.build(base(), languages=["en", "fr", "de"], prompt="source-text", k=4)
    return model, save(model, tmp_path_factory.mktemp("small") / "model")


def load_both(folder, **kwargs):
    return [SentenceTransformer(str(folder), trust_remote_code=True, **kwargs), dysem_st.load(folder, **kwargs)]


def test_joint_scores_of_a_reloaded_model_are_cosines_over_the_union(small):
    for model in load_both(small[1]):
        rows = model.encode(ENGLISH)
        vectors, masks = (part.double().numpy() for part in dysem_st.unpack(rows))
        union = (masks[0] + masks[1]) > 0
        x, y = vectors[0][union], vectors[1][union]
        oracle = x @ y / np.sqrt((x @ x) * (y @ y))
        dense = vectors[0] @ vectors[1] / np.sqrt((vectors[0] @ vectors[0]) * (vectors[1] @ vectors[1]))
        assert abs(oracle - dense) > 1e-3
        assert model.similarity(rows, rows)[0, 1].item() == pytest.approx(oracle, abs=1e-5)
        assert model.similarity_pairwise(rows[:1], rows[1:]).item() == pytest.approx(oracle, abs=1e-5)


def test_the_name_of_the_joint_similarity_is_falsy_and_says_what_it_is(small):
    for model in (small[0], *load_both(small[1])):
        assert pair_scores(model) == pytest.approx((JOINT, JOINT), abs=1e-3)
        assert not model.similarity_fn_name
        assert model.similarity_fn_name == "joint_cosine"
        assert pair_scores(model) == pytest.approx((JOINT, JOINT), abs=1e-3)


def test_a_model_that_was_asked_for_cosine_keeps_it(small, tmp_path):
    for model in load_both(small[1], similarity_fn_name="cosine"):
        assert model.similarity_fn_name == "cosine"
        assert pair_scores(model) == pytest.approx((PLAIN, PLAIN), abs=1e-3)
        folder = save(model, tmp_path / str(id(model)))
        for again in load_both(folder):
            assert again.similarity_fn_name == "cosine"
            assert pair_scores(again) == pytest.approx((PLAIN, PLAIN), abs=1e-3)


def test_a_model_is_saved_and_loaded_again_and_again(small, tmp_path):
    folder, rows = small[1], small[0].encode(ENGLISH)
    for step in range(2):
        model = SentenceTransformer(str(folder), trust_remote_code=True)
        folder = save(model, tmp_path / str(step))
    again = dysem_st.load(folder)
    np.testing.assert_array_equal(again.encode(ENGLISH), rows)
    assert config_of(again) == {**config_of(small[0]), "base": None}


# Trust


def test_the_stock_class_asks_for_trust_and_dysem_st_does_not(small):
    with pytest.raises(ValueError, match="trust_remote_code"):
        SentenceTransformer(str(small[1]))
    np.testing.assert_array_equal(dysem_st.load(small[1]).encode(ENGLISH), small[0].encode(ENGLISH))


def test_a_module_of_another_package_is_refused_and_not_run(small, tmp_path, monkeypatch):
    folder, marker = tmp_path / "model", tmp_path / "ran"
    shutil.copytree(small[1], folder)
    code = f"open({str(marker)!r}, 'w')\nclass Pool: pass\n"
    (tmp_path / "foreign_pooling.py").write_text(code, encoding="utf-8")
    (folder / "foreign_pooling.py").write_text(code, encoding="utf-8")
    modules = json.loads((folder / "modules.json").read_text(encoding="utf-8"))
    modules[1]["type"] = "foreign_pooling.Pool"
    (folder / "modules.json").write_text(json.dumps(modules), encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ValueError, match="foreign_pooling.Pool"):
        dysem_st.load(folder)
    assert not marker.exists()


def test_a_package_whose_name_only_begins_alike_is_refused(small, tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(small[1], folder)
    text = (folder / "modules.json").read_text(encoding="utf-8")
    (folder / "modules.json").write_text(text.replace("dysem_st.pooling", "dysem_st_extra.pooling"), encoding="utf-8")
    with pytest.raises(ValueError, match="dysem_st_extra"):
        dysem_st.load(folder)


# Weights


@pytest.fixture
def hub(base, tmp_path, monkeypatch):
    """A Hub cache that holds the tiny llama as acme/tiny, and the arguments to build from it."""
    root = tmp_path / "hub"
    repository = root / "models--acme--tiny"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text(COMMIT)
    shutil.copytree(base(), repository / "snapshots" / COMMIT)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    return {"cache_folder": str(root), "local_files_only": True}


def build_referenced(hub, **kwargs):
    return dysem_st.build("acme/tiny", languages=["en", "fr"], prompt="source-text", **hub, **kwargs)


def change_a_weight(model):
    with torch.no_grad():
        next(model[0].body.parameters()).mul_(1.5)
    return model


def test_a_hub_base_is_saved_by_its_name_and_commit(hub, tmp_path):
    model = build_referenced(hub)
    folder = save(model, tmp_path / "model")
    assert weight_files(folder) == []
    assert sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) < 20_000
    for again in load_both(folder, **hub):
        assert config_of(again) == config_of(model)
        assert (again[0].reader_config.base, again[0].reader_config.revision) == ("acme/tiny", COMMIT)
        np.testing.assert_array_equal(again.encode(ENGLISH), model.encode(ENGLISH))


def test_a_cached_hub_base_loads_with_every_socket_closed(hub, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    assert build_referenced(hub).encode(ENGLISH).shape == (2, 64)


def test_the_card_of_a_hub_base_names_it_and_its_commit(hub, tmp_path):
    card = card_of(save(build_referenced(hub, base_license="mit"), tmp_path / "model"))
    assert "base_model: acme/tiny\n" in card
    assert "license: mit\n" in card
    assert "[acme/tiny](https://huggingface.co/acme/tiny)" in card
    assert COMMIT in card


def copied(model):
    return copy.deepcopy(model)


def pickled(model):
    return pickle.loads(pickle.dumps(model))


UNCHANGED = {
    "encoding": lambda model: model.encode(ENGLISH) is not None and model,
    "moving": lambda model: model.to("cpu"),
    "halving": lambda model: model.half(),
    "casting": lambda model: model.to(torch.bfloat16),
    "training mode": lambda model: model.train(),
    "copying": copied,
    "pickling": pickled,
    "calibrating": lambda model: dysem_st.calibrate(model, ENGLISH, show_progress_bar=False),
}


@pytest.mark.parametrize("name", UNCHANGED)
def test_unchanged_weights_of_a_hub_base_are_not_stored(hub, tmp_path, name):
    model = UNCHANGED[name](build_referenced(hub))
    folder = save(model, tmp_path / "model")
    assert set(weight_files(folder)) <= {"calibration.safetensors"}
    assert json.loads((folder / "dysem_config.json").read_text(encoding="utf-8"))["base"] == "acme/tiny"


CHANGED = {
    "in place": change_a_weight,
    "then copied": lambda model: copied(change_a_weight(model)),
    "then pickled": lambda model: pickled(change_a_weight(model)),
    "in a copy": lambda model: change_a_weight(copied(model)),
    "in a pickled copy": lambda model: change_a_weight(pickled(model)),
    "then moved": lambda model: change_a_weight(model).to("cpu"),
    "by load_state_dict": lambda model: (
        model[0].body.load_state_dict({key: value * 1.5 for key, value in model[0].body.state_dict().items()})
        and model
    ),
}


@pytest.mark.parametrize("name", CHANGED)
def test_weights_that_were_changed_are_stored(hub, tmp_path, name):
    model = CHANGED[name](build_referenced(hub))
    rows = model.encode(ENGLISH)
    assert not np.array_equal(rows, build_referenced(hub).encode(ENGLISH))
    folder = save(model, tmp_path / "model")
    assert weight_files(folder) == ["model.safetensors"]
    for again in load_both(folder):
        np.testing.assert_array_equal(again.encode(ENGLISH), rows)


def test_changing_a_copy_leaves_the_model_it_was_copied_from_unchanged(hub, tmp_path):
    model = build_referenced(hub)
    change_a_weight(copied(model))
    assert weight_files(save(model, tmp_path / "model")) == []


def test_an_optimiser_step_counts_as_a_change(hub, tmp_path):
    model = build_referenced(hub)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    features = model.preprocess(ENGLISH)
    model(features)["vector"].sum().backward()
    optimiser.step()
    assert weight_files(save(model, tmp_path / "model")) == ["model.safetensors"]


def test_store_weights_decides_where_it_is_given(hub, base, tmp_path):
    stored = save(build_referenced(hub, store_weights=True), tmp_path / "stored")
    assert weight_files(stored) == ["model.safetensors"]
    assert dysem_st.load(stored).encode(ENGLISH).shape == (2, 64)
    local = dysem_st.build(base(), languages=["en"], store_weights=False)
    folder = save(local, tmp_path / "referenced")
    assert weight_files(folder) == []
    assert sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) < 20_000
    for again in load_both(folder):
        assert again[0].reader_config.base == base()
        np.testing.assert_array_equal(again.encode(ENGLISH), local.encode(ENGLISH))


def test_a_local_base_is_stored_since_no_one_else_could_load_it(small):
    assert weight_files(small[1]) == ["model.safetensors"]
    assert {"config.json", "tokenizer.json"} <= {path.name for path in small[1].iterdir()}


def test_saving_leaves_the_model_as_it_was(full, small, base, tmp_path):
    function = dysem_st.build(base(), languages=["en"], translator=lambda texts, source, target: texts)
    for number, model in enumerate((full, small[0], function)):
        before = copy.deepcopy((config_of(model), model[-1].get_config_dict(), model._get_model_config()))
        translator, rows = model[0].translator, model.encode(TEXTS, language="fra_Latn")
        save(model, tmp_path / str(number))
        assert (config_of(model), model[-1].get_config_dict(), model._get_model_config()) == before
        assert model[0].translator is translator
        np.testing.assert_array_equal(model.encode(TEXTS, language="fra_Latn"), rows)


def test_a_save_that_fails_leaves_the_model_as_it_was(base, tmp_path):
    model = dysem_st.build(base(), languages=["en"])
    before = config_of(model)
    blocked = tmp_path / "model"
    (blocked / "dysem_config.json").mkdir(parents=True)
    with pytest.raises(OSError):
        save(model, blocked)
    assert config_of(model) == before


# Base objects and adapters


def test_a_model_object_is_stored_without_its_head(base, tmp_path):
    torch.manual_seed(0)
    body = AutoModelForCausalLM.from_pretrained(base("qwen2"))
    tokenizer = AutoTokenizer.from_pretrained(base("qwen2"))
    model = dysem_st.build(body, tokenizer=tokenizer, languages=["en", "ja"], prompt="source-text")
    folder = save(model, tmp_path / "model")
    for again in load_both(folder):
        assert type(again[0].body).__name__ == "Qwen2Model"
        np.testing.assert_array_equal(again.encode(ENGLISH), model.encode(ENGLISH))


def make_adapter(base, folder, kind):
    """Save a random LoRA adapter of the tiny llama, and return the model with that adapter merged into it."""
    torch.manual_seed(1)
    config = peft.LoraConfig(r=2, target_modules=["q_proj", "v_proj", "down_proj"], init_lora_weights=False)
    adapted = peft.get_peft_model(kind.from_pretrained(base()), config)
    adapted.save_pretrained(folder)
    return adapted.merge_and_unload()


@pytest.mark.parametrize("kind", [AutoModel, AutoModelForCausalLM])
def test_an_adapter_folder_reads_as_the_merged_model_does(base, tmp_path, kind):
    merged = make_adapter(base, tmp_path / "adapter", kind)
    model = dysem_st.build(str(tmp_path / "adapter"), languages=["en"])
    expected = dysem_st.build(merged, tokenizer=AutoTokenizer.from_pretrained(base()), languages=["en"])
    rows = model.encode(ENGLISH)
    np.testing.assert_allclose(rows, expected.encode(ENGLISH), rtol=1e-4, atol=1e-5)
    assert np.abs(rows - dysem_st.build(base(), languages=["en"]).encode(ENGLISH)).max() > 0.1


def test_an_adapter_model_is_saved_whole(base, tmp_path):
    make_adapter(base, tmp_path / "adapter", AutoModelForCausalLM)
    model = dysem_st.build(str(tmp_path / "adapter"), languages=["en"])
    rows = model.encode(ENGLISH)
    folder = save(model, tmp_path / "model")
    shutil.rmtree(tmp_path / "adapter")
    for again in load_both(folder):
        np.testing.assert_allclose(again.encode(ENGLISH), rows, rtol=1e-4, atol=1e-5)


def test_an_adapter_can_be_referenced(base, tmp_path):
    make_adapter(base, tmp_path / "adapter", AutoModel)
    model = dysem_st.build(str(tmp_path / "adapter"), languages=["en"], store_weights=False)
    folder = save(model, tmp_path / "model")
    assert weight_files(folder) == []
    for again in load_both(folder):
        np.testing.assert_array_equal(again.encode(ENGLISH), model.encode(ENGLISH))


@pytest.mark.parametrize("kind", [AutoModel, AutoModelForCausalLM])
def test_a_peft_object_reads_and_is_saved_as_the_merged_model(base, tmp_path, kind):
    torch.manual_seed(1)
    config = peft.LoraConfig(r=2, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    adapted = peft.get_peft_model(kind.from_pretrained(base()), config)
    tokenizer = AutoTokenizer.from_pretrained(base())
    model = dysem_st.build(adapted, tokenizer=tokenizer, languages=["en"])
    rows = model.encode(ENGLISH)
    folder = save(model, tmp_path / "model")
    for again in load_both(folder):
        np.testing.assert_allclose(again.encode(ENGLISH), rows, rtol=1e-4, atol=1e-5)
    merged = dysem_st.build(adapted.merge_and_unload(), tokenizer=tokenizer, languages=["en"])
    np.testing.assert_allclose(merged.encode(ENGLISH), rows, rtol=1e-4, atol=1e-5)


# Loading options


def test_the_dtype_that_was_asked_for_is_remembered(base, tmp_path):
    model = dysem_st.build(base(), languages=["en"], store_weights=False, model_kwargs={"dtype": torch.bfloat16})
    folder = save(model, tmp_path / "model")
    for again in load_both(folder):
        assert again[0].body.dtype == torch.bfloat16
        np.testing.assert_array_equal(again.encode(ENGLISH), model.encode(ENGLISH))
    for again in load_both(folder, model_kwargs={"dtype": "float32"}):
        assert again[0].body.dtype == torch.float32


def test_a_dtype_asked_for_at_loading_is_remembered_too(base, tmp_path):
    model = dysem_st.build(base(), languages=["en"], store_weights=False, model_kwargs={"dtype": "bfloat16"})
    loaded = dysem_st.load(save(model, tmp_path / "one"), model_kwargs={"dtype": "float32"})
    again = dysem_st.load(save(loaded, tmp_path / "two"))
    assert again[0].body.dtype == torch.float32


def test_stored_weights_keep_the_dtype_that_they_were_cast_to(base, tmp_path):
    model = dysem_st.build(base(), languages=["en"]).to(torch.bfloat16)
    again = dysem_st.load(save(model, tmp_path / "model"))
    stored, cast = again[0].body.state_dict(), model[0].body.state_dict()
    assert stored.keys() == cast.keys()
    for name, tensor in cast.items():
        assert stored[name].dtype == torch.bfloat16
        assert torch.equal(stored[name], tensor)


def test_device_map_and_attention_implementation_reach_the_base(base, small):
    options = {"model_kwargs": {"device_map": {"": "cpu"}, "attn_implementation": "eager"}}
    built = dysem_st.build(base(), languages=["en", "fr", "de"], prompt="source-text", k=4, **options)
    for model in (built, *load_both(small[1], **options)):
        assert model[0].body.config._attn_implementation == "eager"
        assert model.device.type == "cpu"
        np.testing.assert_allclose(model.encode(ENGLISH), small[0].encode(ENGLISH), rtol=1e-4, atol=1e-5)


def test_processor_and_config_options_reach_their_loaders(base, small):
    options = {"processor_kwargs": {"model_max_length": 77}, "config_kwargs": {"rms_norm_eps": 0.25}}
    for model in (dysem_st.build(base(), languages=["en"], **options), *load_both(small[1], **options)):
        assert model.tokenizer.model_max_length == 77
        assert model[0].body.config.rms_norm_eps == 0.25
        assert model[0].body.norm.variance_epsilon == 0.25


# What loading can replace


def test_pooling_settings_can_be_replaced(small):
    model = dysem_st.load(small[1], k=2, vector="source")
    assert model[-1].get_config_dict() == {"k": 2, "vector": "source", "rank_by": "mean"}
    _, mask = dysem_st.unpack(model.encode(ENGLISH))
    assert mask.sum(-1).max() <= 2


def test_reader_settings_can_be_replaced(small, base):
    model = dysem_st.load(small[1], component="hidden", layers=2, languages=["en", "nld_Latn"], prompt="english", k=64)
    config = model[0].reader_config
    assert (config.component, config.layers) == ("hidden", 2)
    assert config.views == [["eng_Latn", "eng_Latn"], ["nld_Latn", "eng_Latn"]]
    assert list(config.templates) == ["eng_Latn"]
    expected = dysem_st.build(base(), languages=["en", "nld_Latn"], component="hidden", layers=2, k=64)
    text = {"eng_Latn": "A house.", "nld_Latn": "Een huis."}
    np.testing.assert_array_equal(model.encode(text), expected.encode(text))


def test_views_can_be_replaced(small):
    model = dysem_st.load(small[1], views=[("source", "ja")])
    assert [tuple(view) for view in model[0].views] == [("source", "jpn_Jpan")]


def test_a_prompt_alone_cannot_be_replaced(small):
    with pytest.raises(ValueError, match="languages="):
        dysem_st.load(small[1], prompt="english")


def test_a_translator_can_be_replaced(base, tmp_path, memory):
    model = dysem_st.build(base(), languages=["fr", "de"], source_language="fr", translator=memory)
    folder = save(model, tmp_path / "model")
    swapped = TranslationMemory([dict(zip(("fra_Latn", "deu_Latn"), (TEXTS[0], GERMAN[1]), strict=True))])
    again = dysem_st.load(folder, translator=swapped)
    expected = model.encode({"fra_Latn": TEXTS[0], "deu_Latn": GERMAN[1]})
    np.testing.assert_array_equal(again.encode(TEXTS[0]), expected)
    assert not np.array_equal(dysem_st.load(folder).encode(TEXTS[0]), expected)


def test_a_replaced_translator_needs_no_file_of_the_saved_one(base, tmp_path):
    path = tmp_path / "memory.csv"
    path.write_text("fra_Latn,deu_Latn\nUn.,Eins.\n", encoding="utf-8")
    saved = TranslationMemory.from_file(path)
    model = dysem_st.build(base(), languages=["fr", "de"], source_language="fr", translator=saved)
    folder = save(model, tmp_path / "model")
    rows = model.encode("Un.")
    path.unlink()
    moved = dysem_st.load(folder)
    np.testing.assert_array_equal(moved.encode({"fr": "Un.", "de": "Eins."}), rows)
    with pytest.raises(TranslationError, match="memory.csv.*translator="):
        moved.encode("Un.")
    again = dysem_st.load(folder, translator=lambda texts, source, target: ["Eins."] * len(texts))
    np.testing.assert_array_equal(again.encode("Un."), rows)


def test_the_base_can_be_replaced(base, tmp_path):
    first = dysem_st.build(base(), languages=["en"], store_weights=False, revision="main")
    folder = save(first, tmp_path / "model")
    again = dysem_st.load(folder, base=base("mistral"))
    config = again[0].reader_config
    assert (config.base, config.revision) == (base("mistral"), None)
    expected = dysem_st.build(base("mistral"), languages=["en"])
    np.testing.assert_array_equal(again.encode(ENGLISH), expected.encode(ENGLISH))


def test_the_base_can_be_replaced_by_a_loaded_model(small, base):
    body, tokenizer = AutoModel.from_pretrained(base("mistral")), AutoTokenizer.from_pretrained(base("mistral"))
    again = dysem_st.load(small[1], base=body, tokenizer=tokenizer)
    expected = dysem_st.build(base("mistral"), languages=["en", "fr", "de"], prompt="source-text", k=4)
    np.testing.assert_array_equal(again.encode(ENGLISH), expected.encode(ENGLISH))


def test_a_calibration_can_be_dropped_and_given(full, full_reloaded, tmp_path):
    dropped = dysem_st.load(full_reloaded[0], calibration=None)
    assert [type(module).__name__ for module in dropped] == ["ViewReader", "ConsensusPooling"]
    assert not np.array_equal(dropped.encode(TEXTS), full.encode(TEXTS))
    full[1].write(tmp_path / "calibration.safetensors")
    given = dysem_st.load(full_reloaded[0], calibration=tmp_path / "calibration.safetensors")
    assert [type(module).__name__ for module in given] == ["ViewReader", "Centering", "ConsensusPooling"]
    np.testing.assert_array_equal(given.encode(TEXTS), full.encode(TEXTS))


def test_a_calibration_of_other_settings_is_refused_with_what_differs(full_reloaded):
    with pytest.raises(ValueError, match="component was 'ffn', is 'attention'.*calibration=None"):
        dysem_st.load(full_reloaded[0], component="attention")
    assert len(dysem_st.load(full_reloaded[0], component="attention", calibration=None)) == 2


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        ({"kk": 3}, TypeError, ["kk", "help(dysem_st.load)"]),
        ({"languges": ["en"]}, TypeError, ["languges"]),
        ({"k": 0}, ValueError, ["k=0"]),
        ({"component": "mlp"}, ValueError, ["component='mlp'", "attention"]),
        ({"translator": 3}, TypeError, ["3", "translate(texts, source, target)"]),
        ({"languages": ["klingon"], "prompt": "english"}, ValueError, ["'klingon'"]),
        ({"languages": ["en"]}, ValueError, ["prompt="]),
        ({"prompt": "english"}, ValueError, ["languages="]),
        ({"languages": ["en"], "views": [("en", "en")], "prompt": "english"}, ValueError, ["either"]),
    ],
)
def test_wrong_arguments_of_load_are_refused(small, arguments, error, says):
    with pytest.raises(error) as caught:
        dysem_st.load(small[1], **arguments)
    assert [part for part in says if part not in str(caught.value)] == []


# Damaged and foreign folders


def damaged(small, tmp_path, *names):
    folder = tmp_path / "model"
    shutil.copytree(small[1], folder)
    for name in names:
        (folder / name).unlink()
    return folder


def test_a_folder_without_a_file_that_it_needs_is_an_error_that_names_it(small, tmp_path):
    for number, (name, error) in enumerate(
        [("modules.json", FileNotFoundError), ("dysem_config.json", FileNotFoundError), ("model.safetensors", OSError)]
    ):
        folder = damaged(small, tmp_path / str(number), name)
        with pytest.raises(error, match=re.escape(name)):
            dysem_st.load(folder)


def test_a_calibrated_folder_without_its_calibration_is_an_error_that_names_it(full_reloaded, tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(full_reloaded[0], folder)
    (folder / "1_Centering" / "calibration.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match="calibration.safetensors"):
        dysem_st.load(folder)


@pytest.mark.parametrize("name", ["modules.json", "dysem_config.json"])
def test_a_file_that_was_cut_short_is_an_error_that_names_it(small, tmp_path, name):
    folder = damaged(small, tmp_path)
    text = (folder / name).read_text(encoding="utf-8")
    (folder / name).write_text(text[: len(text) // 2], encoding="utf-8")
    with pytest.raises((ValueError, OSError), match=re.escape(name)):
        dysem_st.load(folder)


def test_a_list_of_no_modules_is_an_error_that_says_so(small, tmp_path):
    folder = damaged(small, tmp_path)
    (folder / "modules.json").write_text("[]", encoding="utf-8")
    with pytest.raises(ValueError, match="not a DySem model"):
        dysem_st.load(folder)


def test_settings_of_a_newer_version_are_refused_by_name(small, tmp_path):
    folder = damaged(small, tmp_path)
    config = json.loads((folder / "dysem_config.json").read_text(encoding="utf-8"))
    (folder / "dysem_config.json").write_text(json.dumps({**config, "flux": 1}), encoding="utf-8")
    with pytest.raises(ValueError, match="flux.*newer dysem_st"):
        dysem_st.load(folder)


def test_a_plain_language_model_is_answered_with_build(base):
    with pytest.raises(FileNotFoundError, match=r"modules\.json.*dysem_st\.build\("):
        dysem_st.load(base())


def test_a_model_of_sentence_transformers_own_is_refused(tmp_path, base):
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

    reader = Transformer(base())
    stock = SentenceTransformer(modules=[reader, Pooling(32, "mean")])
    with pytest.raises(ValueError, match="not a DySem model.*Transformer"):
        dysem_st.load(save(stock, tmp_path / "model"))


def test_an_absent_folder_is_an_error_that_lists_presets(tmp_path):
    with pytest.raises(FileNotFoundError, match="absent.*dysem/llama3.1-8b"):
        dysem_st.load(tmp_path / "absent", local_files_only=True)


# Translators that cannot be saved


def make_translator():
    def glossary(texts, source, target):
        return [f"{target} {text}" for text in texts]

    return glossary


@pytest.mark.parametrize("kind", ["function", "memory of rows"])
def test_a_translator_that_cannot_be_saved_is_named_in_one_warning(base, tmp_path, caplog, kind):
    rows = TranslationMemory([{"eng_Latn": text, "deu_Latn": "Etwas."} for text in ENGLISH])
    translator = make_translator() if kind == "function" else rows
    model = dysem_st.build(base(), languages=["en", "de"], translator=translator)
    with caplog.at_level(logging.WARNING, logger="dysem_st"):
        folder = save(model, tmp_path / "model")
    warnings = [record.getMessage() for record in caplog.records if record.name.startswith("dysem_st")]
    assert len(warnings) == 1
    assert ("glossary" if kind == "function" else rows.identity) in warnings[0]
    assert "dysem_st.load" in warnings[0]
    assert dysem_st.load(folder)[0].translator is None
    with pytest.raises(ValueError, match="no version in deu_Latn.*translator="):
        dysem_st.load(folder).encode(ENGLISH)
    again = dysem_st.load(folder, translator=translator)
    np.testing.assert_array_equal(again.encode(ENGLISH), model.encode(ENGLISH))


def test_a_translator_that_can_be_saved_gives_no_warning(full, tmp_path, caplog):
    with caplog.at_level(logging.WARNING, logger="dysem_st"):
        save(full, tmp_path / "model")
    assert [record for record in caplog.records if record.name.startswith("dysem_st")] == []


# The model card


def test_the_card_states_the_models_settings(full, full_reloaded, base, memory):
    card = card_of(full_reloaded[0])
    for statement in (
        "license: gemma\n",
        "joint-dimension cosine",
        "**Views:** 3",
        'French in the `fra_Latn` template: `Cette phrase : "{text}" veut dire en un mot :"`',
        'German in the `eng_Latn` template: `Say "{text}" shortly:"`',
        'source text in the `eng_Latn` template: `Say "{text}" shortly:"`',
        "ffn, layers [2, 4], module readout",
        "vector source, k = 5, ranked by vector",
        "each view's mean over 4 texts",
        "`fra_Latn`",
        memory.identity,
        "120 tokens",
        "**Base model license:** gemma",
        "A remark.",
    ):
        assert re.sub(r"\s+", " ", statement) in re.sub(r"\s+", " ", card)


def test_the_card_names_a_cosine_model_by_its_similarity(small, tmp_path):
    card = card_of(save(dysem_st.load(small[1], similarity_fn_name="cosine"), tmp_path / "model"))
    assert "**Similarity:** cosine" in card
    assert "joint-dimension" not in card


EXAMPLES = {
    "source text": {"languages": ["en", "ja"], "prompt": "source-text"},
    "language specific": {"languages": ["en", "zh"], "prompt": "language-specific"},
    "a language without an example": {"languages": ["en", "nld_Latn"], "prompt": "english"},
    "only languages without an example": {"languages": ["nld_Latn", "dan_Latn"], "prompt": "english"},
    "another source": {"languages": ["fr", "de"], "prompt": "language-specific", "source_language": "fr"},
    "a source without an example": {"languages": ["en", "fr"], "source_language": "nld_Latn"},
    "the source's vector": {"languages": ["en", "fr"], "vector": "source"},
    "a source text among translations": {"views": [("source", "ja"), ("fr", "fr")]},
    "the source's vector of a source-text model": {"languages": ["ja"], "prompt": "source-text", "vector": "source"},
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_example_on_the_card_runs(base, tmp_path, name):
    model = dysem_st.build(base(), **EXAMPLES[name])
    printed = run_example(save(model, tmp_path / "model"))
    values = [float(value) for value in re.findall(r"-?\d+\.\d*", printed)]
    assert len(values) == 4
    assert [values[0], values[3]] == pytest.approx([1, 1], abs=1e-3)
    assert values[1] == pytest.approx(values[2], abs=1e-3)
    assert values[1] < 1


def test_the_example_of_all_twelve_languages_runs(base, tmp_path):
    codes = list(dysem_st.languages.CANDIDATES)
    model = dysem_st.build(base(), languages=codes, prompt="language-specific")
    folder = save(model, tmp_path / "model")
    assert all(card_of(folder).count(f"{code!r}: ") == 2 for code in codes)
    # The consensus of twelve views of a tiny random model may be empty, so only the range is certain.
    values = [float(value) for value in re.findall(r"-?\d+\.\d*", run_example(folder))]
    assert len(values) == 4
    assert all(-1 <= value <= 1 for value in values)


def test_saving_a_card_runs_no_translator(base, tmp_path):
    def refuse(texts, source, target):
        raise AssertionError("the translator was called")

    model = dysem_st.build(base(), languages=["en", "de"], translator=refuse)
    assert "joint-dimension cosine" in card_of(save(model, tmp_path / "model"))


@pytest.mark.parametrize("how", [0, 1])
def test_a_card_is_rewritten_after_calibration(small, tmp_path, how):
    assert "**Calibration:** none" in card_of(small[1])
    model = load_both(small[1])[how]
    dysem_st.calibrate(model, [*ENGLISH, "A third text."], show_progress_bar=False)
    folder = save(model, tmp_path / "model")
    assert "each view's mean over 3 texts" in card_of(folder)
    assert [type(module).__name__ for module in dysem_st.load(folder)] == [
        "ViewReader",
        "Centering",
        "ConsensusPooling",
    ]


def test_weights_edited_behind_pytorchs_back_are_noticed(base, tmp_path):
    model = dysem_st.build(base(), languages=["en"], store_weights=None)
    assert not model[0].weights_changed()
    model[0].body.layers[0].self_attn.q_proj.weight.data.mul_(3)
    assert model[0].weights_changed()


def test_leaving_out_changed_weights_is_said(base, tmp_path, caplog):
    model = dysem_st.build(base(), languages=["en"], store_weights=False)
    with torch.no_grad():
        model[0].body.layers[0].self_attn.q_proj.weight.mul_(3)
    model.save(str(tmp_path))
    assert "weights were changed" in caplog.text
