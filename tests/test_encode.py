"""What `encode` does with batches, lengths, inputs of every kind, languages, prompts and its own options."""

from __future__ import annotations

import logging
import random

import numpy as np
import pandas as pd
import pytest
import torch
from datasets import Dataset
from transformers import AutoModel, AutoTokenizer

import dysem_st
from dysem_st import prompts

EN, FR, DE, JA = "eng_Latn", "fra_Latn", "deu_Latn", "jpn_Jpan"
SOURCE_VIEWS = [("source", EN), ("source", FR)]
ARCHITECTURES = ["llama", "gemma3_text", "gpt2", "qwen3_moe"]
SPECIAL_IDS = {0, 1, 2}  # <bos>, <eos>, <pad>
TEXTS = [
    "A man is playing the guitar.",
    "cat",
    "A woman eats an apple, and then another apple, and after that one more apple, until all of them are gone.",
    "Is it raining?",
    "The dog runs, the bird sings.",
    "a",
    "Two people sit at a table and talk about the weather, which is what people do when they have nothing to say.",
    "Stock prices fell.",
    "He said: no.",
]
HEAD, TAIL = prompts.split(prompts.TEMPLATES[EN])


def build(base, **settings):
    chosen = {"k": 8, "device": "cpu", **settings}
    if "languages" not in chosen:
        chosen.setdefault("views", SOURCE_VIEWS)
    return dysem_st.build(base, **chosen)


def build_from(body, tokenizer, **settings):
    return build(body, tokenizer=tokenizer, **settings)


@pytest.fixture(scope="module")
def model(base):
    """Two views of the text as it is, so that nothing is translated."""
    return build(base("llama"))


@pytest.fixture(scope="module")
def parallel(base):
    """English and German text in the English template, without a translator."""
    return build(base("llama"), languages=[EN, DE])


def features(model, texts, **options):
    return model.encode(texts, output_value=None, **options)


def assert_same_reading(one, other):
    """Vectors agree to 1e-4 of their norm; sets differ only where that noise can move a dimension in or out."""
    for key in ("view_vectors", "vector"):
        assert (one[key] - other[key]).norm() <= 1e-4 * one[key].norm()
    noise = 1e-4 * one["view_vectors"].norm()
    changed = one["mask"] ^ other["mask"]
    if changed.any():
        last = one["vector"][one["mask"]].min()
        near = (one["view_vectors"].abs() < noise).any(0) | ((one["vector"] - last).abs() < noise)
        assert not (changed & ~near).any()


def prompts_read(model, texts, **options):
    """The decoded prompts ``[B][m]`` that a batch is turned into, and their ids without padding."""
    batch = model.preprocess(texts, **options)
    tokenizer = model[0].tokenizer
    rows = [
        [row[kept.bool()].tolist() for row, kept in zip(ids, mask, strict=True)]
        for ids, mask in zip(batch["input_ids"], batch["attention_mask"], strict=True)
    ]
    decoded = [[tokenizer.decode(row, clean_up_tokenization_spaces=False) for row in views] for views in rows]
    return decoded, rows


class Recorder:
    """A translator that marks every text with where it came from and went, and keeps its calls."""

    def __init__(self):
        self.calls = []

    def __call__(self, texts, source, target):
        self.calls.append((source, target, list(texts)))
        return [marked(text, source, target) for text in texts]


def marked(text, source, target):
    return f"{target} of {source}: {text}"


def refusing(texts, source, target):
    raise AssertionError(f"the translator was called with {texts}")


# Batches


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_row_does_not_depend_on_its_batch(base, name):
    model = build(base(name))
    alone = [features(model, [text])[0] for text in TEXTS]
    order = list(range(len(TEXTS)))
    random.Random(0).shuffle(order)
    for batch_size in (1, 8):
        together = features(model, [TEXTS[i] for i in order], batch_size=batch_size)
        for i, row in zip(order, together, strict=True):
            assert_same_reading(alone[i], row)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_batch_reads_the_state_that_transformers_gives_for_each_prompt_alone(base, name):
    layer = 3  # before the last: transformers applies the final norm to the last state it returns
    model = build(base(name), component="hidden", layers=layer)
    body, tokenizer = AutoModel.from_pretrained(base(name)).eval(), AutoTokenizer.from_pretrained(base(name))
    for text, row in zip(TEXTS, features(model, TEXTS), strict=True):
        for (_, template), vector in zip(SOURCE_VIEWS, row["view_vectors"], strict=True):
            filled = prompts.TEMPLATES[template].replace("{text}", prompts.normalise(text))
            with torch.no_grad():
                output = body(**tokenizer(filled, return_tensors="pt"), output_hidden_states=True)
            expected = output.hidden_states[layer][0, -1]
            assert (vector - expected).norm() <= 1e-4 * expected.norm()


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_nan_in_the_pad_tokens_embedding_reaches_no_row(base, name):
    body, tokenizer = AutoModel.from_pretrained(base(name)), AutoTokenizer.from_pretrained(base(name))
    model = build_from(body, tokenizer)
    expected = model.encode(TEXTS)
    with torch.no_grad():
        body.get_input_embeddings().weight[tokenizer.pad_token_id] = torch.nan
    np.testing.assert_array_equal(model.encode(TEXTS), expected)


@pytest.mark.parametrize("pad_token", [None, "<eos>", "<bos>"])
def test_the_choice_of_pad_token_changes_nothing(base, model, pad_token):
    tokenizer = AutoTokenizer.from_pretrained(base("llama"))
    tokenizer.pad_token = pad_token
    other = build_from(AutoModel.from_pretrained(base("llama")), tokenizer)
    for one, two in zip(features(model, TEXTS), features(other, TEXTS), strict=True):
        assert_same_reading(one, two)


@pytest.mark.parametrize("name", ["gpt2", "phi3"])
def test_encode_is_deterministic_after_train(base, name):
    model = build(base(name))
    expected = model.encode(TEXTS)
    for _ in range(2):
        model.train()
        np.testing.assert_array_equal(model.encode(TEXTS), expected)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_bodies_give_float32_rows_near_the_full_ones(base, model, dtype):
    half = build(base("llama"), model_kwargs={"dtype": dtype})
    assert half[0].body.dtype == dtype
    rows = half.encode(TEXTS)
    assert rows.dtype == np.float32
    vectors, _ = dysem_st.unpack(rows)
    expected, _ = dysem_st.unpack(model.encode(TEXTS))
    assert torch.cosine_similarity(vectors, expected).min() > 0.99
    # A float32 sum of half-precision terms is not itself a half-precision number.
    assert not torch.equal(vectors, vectors.to(dtype).float())


def overflowing(folder, dtype):
    body = AutoModel.from_pretrained(folder)
    with torch.no_grad():
        for layer in body.layers:
            layer.self_attn.o_proj.weight.mul_(1e5)
    assert all(parameter.to(dtype).isfinite().all() for parameter in body.parameters())
    return build_from(body.to(dtype), AutoTokenizer.from_pretrained(folder))


def test_an_overflow_in_float16_raises_and_names_the_dtype(base):
    with pytest.raises(FloatingPointError, match=r"torch\.float16"):
        overflowing(base("llama"), torch.float16).encode(TEXTS)


def test_the_weights_that_overflow_float16_encode_in_bfloat16(base):
    assert np.isfinite(overflowing(base("llama"), torch.bfloat16).encode(TEXTS)).all()


# Length


LONG = "The quick brown fox — naïve, 日本語 and 😀 — jumps over the lazy dog. " * 12


@pytest.mark.parametrize("limit", [40, 64, 128])
@pytest.mark.parametrize("text", [LONG, "x" * 900, "日本語" * 200, "😀" * 200, "word " * 300 + "?"])
def test_a_long_text_is_shortened_as_little_as_possible_inside_its_template(base, text, limit):
    model = build(base("llama"), views=[("source", EN)], max_seq_length=limit)
    tokenizer = model[0].tokenizer
    (((decoded,),), ((row,),)) = prompts_read(model, [text])
    assert len(row) <= limit
    assert decoded.startswith("<bos>" + HEAD)
    assert decoded.endswith(TAIL)
    kept = decoded.removeprefix("<bos>" + HEAD).removesuffix(TAIL)
    normal = prompts.normalise(text)
    assert kept
    assert normal.startswith(kept)
    assert len(tokenizer(HEAD + normal[: len(kept) + 1] + TAIL).input_ids) > limit


def test_a_text_that_just_fits_is_left_whole(base):
    text = "A woman eats an apple and another apple."
    length = len(AutoTokenizer.from_pretrained(base("llama"))(HEAD + text + TAIL).input_ids)
    for limit, kept in ((length, text), (length - 1, None)):
        model = build(base("llama"), views=[("source", EN)], max_seq_length=limit)
        decoded = prompts_read(model, [text])[0][0][0].removeprefix("<bos>" + HEAD).removesuffix(TAIL)
        assert (decoded == text) == (kept is not None)


def test_shortening_is_reported_once_a_call_with_counts(base, caplog):
    model = build(base("llama"), max_seq_length=64)
    texts = [*TEXTS[:2], LONG, "b", LONG + "!", LONG + "?", "c"]
    with caplog.at_level(logging.WARNING, logger="dysem_st"):
        model.encode(texts, batch_size=1)
    (record,) = [record for record in caplog.records if record.name.startswith("dysem_st")]
    assert "3 of 7 texts" in record.getMessage()
    assert "64" in record.getMessage()


def test_nothing_is_reported_when_every_text_fits(model, caplog):
    with caplog.at_level(logging.WARNING, logger="dysem_st"):
        model.encode(TEXTS)
    assert not [record for record in caplog.records if record.name.startswith("dysem_st")]


def test_a_limit_shorter_than_a_template_raises_when_it_is_set(base):
    model = build(base("llama"))
    template = len(model[0].tokenizer(HEAD + TAIL).input_ids)
    with pytest.raises(ValueError, match=f"max_seq_length={template - 1}"):
        model.max_seq_length = template - 1
    assert model.max_seq_length == 256
    with pytest.raises(ValueError, match="max_seq_length=5"):
        build(base("llama"), max_seq_length=5)


def test_a_limit_shorter_than_prompt_and_template_raises_when_encoding(base):
    model = build(base("llama"), max_seq_length=64)
    with pytest.raises(ValueError, match="max_seq_length=64"):
        model.encode(["a"], prompt="an instruction " * 20)


@pytest.mark.parametrize("value", [None, "64", 64.0, True])
def test_a_limit_that_is_no_number_of_tokens_raises(base, value):
    model = build(base("llama"))
    with pytest.raises(TypeError, match="max_seq_length"):
        model.max_seq_length = value


# Kinds of input


def gapped_series(texts):
    series = pd.Series(["dropped", *texts, "dropped"], index=range(10, 10 + 3 * (len(texts) + 2), 3))
    return series[series != "dropped"]


@pytest.mark.parametrize(
    "make",
    [
        gapped_series,
        np.array,
        lambda texts: np.array(texts, dtype=object),
        lambda texts: [np.str_(text) for text in texts],
        lambda texts: Dataset.from_dict({"text": texts})["text"],
        tuple,
        lambda texts: (text for text in texts),
        lambda texts: dict.fromkeys(texts).keys(),
    ],
    ids=["series", "numpy str", "numpy object", "str subclass", "dataset column", "tuple", "generator", "dict keys"],
)
def test_every_ordered_collection_gives_its_rows_in_order(model, make):
    np.testing.assert_array_equal(model.encode(make(TEXTS)), model.encode(TEXTS))


def test_a_single_text_gives_one_row(model):
    np.testing.assert_array_equal(model.encode(TEXTS[0]), model.encode([TEXTS[0]])[0])


def test_a_single_mapping_gives_one_row(parallel):
    ready = {EN: "A cat.", DE: "Eine Katze."}
    np.testing.assert_array_equal(parallel.encode(ready), parallel.encode([ready])[0])


def test_mappings_of_ready_translations_are_read_as_given(base, parallel):
    ready = [{"en": text, "German": text.upper()} for text in TEXTS]
    decoded, _ = prompts_read(parallel, ready)
    for text, views in zip(TEXTS, decoded, strict=True):
        for version, prompt in zip((text, text.upper()), views, strict=True):
            assert prompt == "<bos>" + HEAD + prompts.normalise(version) + TAIL
    assert parallel.encode(ready).shape == (len(TEXTS), 64)


@pytest.mark.parametrize("inputs", [set(TEXTS), frozenset(TEXTS)])
def test_a_set_is_refused_for_its_lack_of_order(model, inputs):
    with pytest.raises(TypeError, match="order"):
        model.encode(inputs)


@pytest.mark.parametrize("inputs", [b"bytes", 3, 2.5, np.array([["a", "b"]])])
def test_what_is_no_batch_is_refused(model, inputs):
    with pytest.raises(TypeError):
        model.encode(inputs)


@pytest.mark.parametrize("bad", [None, float("nan"), 3, b"x", ["a"], ("a", "b"), np.nan, pd.NA])
@pytest.mark.parametrize("method", ["encode", "encode_query", "encode_document"])
def test_an_input_that_is_no_text_is_named_by_the_callers_position(model, bad, method):
    texts = ["a", "a longer text than the others", "bb", bad, "the longest text of them all, by some margin", "c"]
    with pytest.raises(TypeError, match=r"input 3\b"):
        getattr(model, method)(texts, batch_size=2)


def test_a_gap_in_a_series_is_named_by_its_position_not_by_its_index(model):
    with pytest.raises(TypeError, match=r"input 1\b"):
        model.encode(pd.Series(["a", np.nan, "b"], index=[30, 20, 10]))


def test_a_mapping_that_holds_no_text_is_named_by_its_position(parallel):
    with pytest.raises(TypeError, match=r"input 1\b.*de"):
        parallel.encode([{"en": "a", "de": "b"}, {"en": "a longer one", "de": 3}])
    with pytest.raises(ValueError, match=r"input 1\b"):
        parallel.encode([{"en": "a longer text", "de": "b"}, {}])


@pytest.mark.parametrize("gap", [None, "", " \n"])
def test_a_gap_in_a_mapping_is_an_absent_version_and_not_a_text(parallel, gap):
    texts = {"en": "a longer one", "de": gap}
    with pytest.raises(ValueError, match="'a longer one'.*no version in deu_Latn"):
        parallel.encode(texts)
    np.testing.assert_array_equal(
        parallel.encode(texts, missing="drop"), parallel.encode({"en": "a longer one"}, missing="drop")
    )


@pytest.mark.parametrize("blank", ["", " ", "\n\t ", "\u3000"])
def test_a_blank_text_gives_the_row_of_a_lone_full_stop(model, blank):
    rows = model.encode([blank, "."])
    assert np.isfinite(rows).all()
    np.testing.assert_array_equal(rows[0], rows[1])


ODD = [
    "<bos>", "<eos>", "a<eos>b", "<pad><pad>", "<bos> <eos> <pad>", "{", "}", "{text}", "{0} {}", "*sent 0*",
    "'a'", '"a"', "“a”", "«a»", "「a」", "‘a’", "„a‟", '"', '""""', "a\0b", "\0", "zero\u200bwidth\u200d\ufeff",
    "\u200b", "👩\u200d👩\u200d👧 😀", "שלום עולם", "\u202eمرحبا بالعالم", "e\u0301\u0301\u0301", "\r\n", "a\nb",
    "means in one word:\"", TAIL, HEAD, "\x7f\x80\x9f", "\U0010ffff", "%s %d \\n \\",
]  # fmt: skip


@pytest.mark.parametrize("text", ODD, ids=ascii)
def test_an_odd_text_stays_inside_its_template_and_brings_no_special_token(model, text):
    decoded, rows = prompts_read(model, [text])
    for (_, code), prompt, row in zip(SOURCE_VIEWS, decoded[0], rows[0], strict=True):
        head, tail = prompts.split(prompts.TEMPLATES[code])
        assert prompt == "<bos>" + head + prompts.normalise(text) + tail
        assert row[0] == 0
        assert not SPECIAL_IDS & set(row[1:])


def test_odd_texts_give_one_finite_row_each(model):
    rows = model.encode([*ODD, "\ud800", "a\udc00b"], batch_size=5)
    assert rows.shape == (len(ODD) + 2, 64)
    assert np.isfinite(rows).all()


@pytest.mark.parametrize("text", ["\ud800", "a\udc00b", "\udfff\ud800"])
def test_a_lone_surrogate_becomes_the_replacement_character(model, text):
    replaced = "".join("\ufffd" if "\ud800" <= character <= "\udfff" else character for character in text)
    assert prompts_read(model, [text])[0] == prompts_read(model, [replaced])[0]


@pytest.mark.parametrize("text", ["a", "<eos>", "a<bos>b"])
def test_special_tokens_count_in_a_users_template_and_never_in_a_text(base, text):
    template = "<eos>Sentence: {text}<bos> in one word:<eos>"
    model = build(base("llama"), views=[("source", EN)], prompt={EN: template})
    (((decoded,),), ((row,),)) = prompts_read(model, [text])
    assert decoded == "<bos>" + template.replace("{text}", text + ".")
    assert [token for token in row if token in SPECIAL_IDS] == [0, 1, 0, 1]
    assert row[1] == row[-1] == 1


def test_a_shortened_text_that_looks_special_stays_plain(base):
    model = build(base("llama"), views=[("source", EN)], prompt={EN: "<eos>{text} word:<eos>"}, max_seq_length=32)
    (((decoded,),), ((row,),)) = prompts_read(model, ["<eos>" * 40])
    assert len(row) <= 32
    assert [token for token in row if token in SPECIAL_IDS] == [0, 1, 1]
    assert decoded.endswith(" word:<eos>")


@pytest.mark.parametrize("empty", [[], (), np.array([], dtype=str), pd.Series([], dtype=object)])
def test_no_texts_give_an_empty_result_in_every_mode_and_call_no_translator(base, empty):
    model = build(base("llama"), languages=[EN, DE], translator=refusing)
    rows = model.encode(empty)
    assert isinstance(rows, np.ndarray)
    assert len(rows) == 0
    tensor = model.encode(empty, convert_to_tensor=True)
    assert isinstance(tensor, torch.Tensor)
    assert len(tensor) == 0
    assert model.encode(empty, convert_to_numpy=False) == []
    assert model.encode(empty, output_value=None) == []
    assert model.encode(empty, language=[]).size == 0


def test_an_empty_result_scores_against_rows(model):
    rows = model.encode(TEXTS)
    assert model.similarity(model.encode([]), rows).shape == (0, len(TEXTS))
    assert model.similarity(rows, model.encode([])).shape == (len(TEXTS), 0)


# Languages and translation

MIXED = [
    (EN, TEXTS[2]),
    (FR, "un"),
    (DE, "Ein Satz von mittlerer Länge."),
    (FR, "Deux hommes. " * 8),
    (EN, "b"),
    (DE, ""),
]


def expected_mixed(reference, **options):
    rows = []
    for code, text in MIXED:
        ready = {code: text}
        for target in (FR, DE):
            if target != code:
                ready[target] = marked(text, code, target) if text.strip() else text
        rows.append(reference.encode([ready], language=code, **options)[0])
    return np.stack(rows)


@pytest.mark.parametrize("vector", ["mean", "source"])
@pytest.mark.parametrize("batch_size", [1, 4, 32])
def test_one_language_a_text_stays_with_its_text(base, vector, batch_size):
    views = [("source", EN), (FR, EN), (DE, EN), (FR, FR)]
    reference = build(base("llama"), views=views, vector=vector)
    model = build(base("llama"), views=views, vector=vector, translator=Recorder())
    rows = model.encode(
        [text for _, text in MIXED], language=[code for code, _ in MIXED], batch_size=batch_size, convert_to_numpy=True
    )
    expected = expected_mixed(reference)
    np.testing.assert_allclose(rows[:, :32], expected[:, :32], atol=1e-4 * np.abs(expected).max())


def test_one_language_holds_for_every_text_and_not_for_the_next_call(base):
    translator = Recorder()
    model = build(base("llama"), languages=[EN, DE], translator=translator)
    model.encode(["eins", "zwei drei"], language="de", batch_size=1)
    model.encode(["one"])
    model.encode(["un", "deux"], language=["fr", "de"])
    model.encode(["two"])
    assert [(source, target, texts) for source, target, texts in translator.calls] == [
        (DE, EN, ["zwei drei"]),
        (DE, EN, ["eins"]),
        (EN, DE, ["one"]),
        (DE, EN, ["deux"]),
        (FR, EN, ["un"]),
        (FR, DE, ["un"]),
        (EN, DE, ["two"]),
    ]


@pytest.mark.parametrize("kind", [tuple, np.array, pd.Series])
def test_languages_come_in_any_ordered_collection(base, kind):
    model = build(base("llama"), languages=[EN, DE], translator=Recorder())
    codes = [DE, EN, DE]
    np.testing.assert_array_equal(
        model.encode(TEXTS[:3], language=kind(codes)), model.encode(TEXTS[:3], language=codes)
    )


@pytest.mark.parametrize("codes", [[], [EN], [EN] * 4])
def test_a_wrong_number_of_languages_raises(model, codes):
    with pytest.raises(ValueError, match=f"{len(codes)} languages for 3"):
        model.encode(["a", "b", "c"], language=codes)


def test_a_mapping_whose_source_cannot_be_told_raises(parallel):
    with pytest.raises(ValueError, match=r"input 1\b.*language="):
        parallel.encode([{"en": "a", "de": "b"}, {"fr": "un", "de": "eins"}])
    with pytest.raises(ValueError, match=r"input 0\b.*fra_Latn"):
        parallel.encode([{"en": "a", "de": "b"}], language="fr")


def test_a_mapping_that_names_a_language_twice_raises(parallel):
    with pytest.raises(ValueError, match="twice"):
        parallel.encode([{"en": "a", "eng_Latn": "b", "de": "c"}])


def test_a_missing_version_is_named_with_its_text_and_language(parallel):
    with pytest.raises(ValueError, match=r"'only English'.*deu_Latn"):
        parallel.encode([{"en": "a", "de": "b"}, "only English"])


def test_a_text_that_the_translator_has_nothing_for_is_named(base):
    model = build(base("llama"), languages=[EN, DE], translator=lambda texts, source, target: [None] * len(texts))
    with pytest.raises(ValueError, match=r"'A cat\.'.*deu_Latn"):
        model.encode(["A cat."])


@pytest.mark.parametrize("when", ["call", "build"])
def test_dropping_a_view_equals_a_model_without_it(base, when):
    settings = {"missing": "drop"} if when == "build" else {}
    options = {} if when == "build" else {"missing": "drop"}
    model = build(base("llama"), languages=[EN, DE, FR], **settings)
    complete = {"en": "A cat sits.", "de": "Eine Katze sitzt.", "fr": "Un chat."}
    rows = model.encode(["A dog runs away.", complete, {"en": "One.", "fr": "Un."}], **options)
    for row, codes, text in (
        (rows[0], [EN], "A dog runs away."),
        (rows[1], [EN, DE, FR], complete),
        (rows[2], [EN, FR], {"en": "One.", "fr": "Un."}),
    ):
        alone = build(base("llama"), languages=codes).encode([text])[0]
        np.testing.assert_allclose(row, alone, atol=1e-5 * np.abs(alone).max())


def test_a_text_with_no_view_left_raises_even_when_dropping(base):
    model = build(base("llama"), languages=[FR, DE], missing="drop")
    with pytest.raises(ValueError, match="'only English'"):
        model.encode([{"en": "a", "de": "b"}, "only English"])


def test_an_unknown_choice_for_missing_raises(parallel):
    with pytest.raises(ValueError, match="error, drop"):
        parallel.encode(["a"], missing="skip")


def test_a_batch_is_translated_by_source_each_distinct_text_once(base):
    translator = Recorder()
    model = build(base("llama"), languages=[EN, DE], translator=translator)
    texts = ["same", "un", "same", " ", "", "Ein Satz.", "un", "other"]
    codes = [EN, FR, EN, EN, FR, DE, FR, EN]
    model.encode(texts, language=codes)
    calls = {(source, target): sorted(texts) for source, target, texts in translator.calls}
    assert len(calls) == len(translator.calls)
    assert calls == {(FR, EN): ["un"], (DE, EN): ["Ein Satz."], (EN, DE): ["other", "same"], (FR, DE): ["un"]}


def test_a_text_in_the_wanted_language_is_read_as_it_is(base):
    model = build(base("llama"), languages=[DE], source_language="de", translator=refusing)
    expected = build(base("llama"), views=[("source", EN)]).encode(TEXTS)
    np.testing.assert_array_equal(model.encode(TEXTS), expected)


def test_ready_versions_are_not_translated_again(base):
    translator = Recorder()
    model = build(base("llama"), languages=[EN, DE, FR], translator=translator)
    model.encode([{"en": "A cat.", "de": "Eine Katze."}])
    assert translator.calls == [(EN, FR, ["A cat."])]


@pytest.mark.parametrize("prompt", [None, "Query: "])
@pytest.mark.parametrize("error", [TypeError("boom"), AttributeError("boom"), RuntimeError("boom")])
def test_an_error_inside_a_translator_surfaces_after_one_call(base, error, prompt):
    seen = []

    def failing(texts, source, target):
        seen.append(list(texts))
        raise error

    model = build(base("llama"), languages=[EN, DE], translator=failing)
    with pytest.raises(dysem_st.TranslationError, match=r"failing.*boom") as raised:
        model.encode(["a cat"], prompt=prompt)
    assert raised.value.__cause__ is error
    assert seen == [["a cat"]]


@pytest.mark.parametrize("results", [[], ["a"], ["a", "b", "c"], ["a", 3]])
def test_a_translator_must_return_one_text_for_each(base, results):
    model = build(base("llama"), languages=[EN, DE], translator=lambda texts, source, target: results)
    with pytest.raises(dysem_st.TranslationError):
        model.encode(["one", "two"])


@pytest.mark.parametrize(("code", "near"), [("deu_Latin", "deu_Latn"), ("germn", "deu_Latn"), ("xx", "NLLB-200")])
def test_an_unknown_language_raises_and_lists_near_ones(base, model, code, near):
    for attempt in (
        lambda: model.encode(["a"], language=code),
        lambda: model.encode(["a", "b"], language=["en", code]),
        lambda: model.encode([{code: "a"}]),
        lambda: build(base("llama"), languages=["en", code]),
        lambda: build(base("llama"), source_language=code),
    ):
        with pytest.raises(ValueError, match=f"unknown language '{code}'.*{near}"):
            attempt()


# Prompts


def test_a_prompt_precedes_the_whole_filled_template(model):
    instruction = "Instruct: compare. {braces} "
    decoded, _ = prompts_read(model, ["A cat."], prompt=instruction)
    for (_, code), prompt in zip(SOURCE_VIEWS, decoded[0], strict=True):
        filled = prompts.TEMPLATES[code].replace("{text}", "A cat.")
        assert prompt == "<bos>" + instruction + filled


def test_a_prompt_equals_a_template_that_begins_with_it(base):
    plain = build(base("llama"), views=[("source", EN)])
    whole = build(base("llama"), views=[("source", EN)], prompt={EN: "Query: " + prompts.TEMPLATES[EN]})
    expected = whole.encode(TEXTS)
    assert np.abs(expected - plain.encode(TEXTS)).max() > 1e-3
    np.testing.assert_array_equal(plain.encode(TEXTS, prompt="Query: "), expected)


def test_named_prompts_and_the_two_sides_of_retrieval_use_their_prompt(base, model):
    named = build(base("llama"), prompts={"query": "Q: ", "document": "D: ", "other": "O: "})
    for rows, prompt in (
        (named.encode_query(TEXTS), "Q: "),
        (named.encode_document(TEXTS), "D: "),
        (named.encode(TEXTS, prompt_name="other"), "O: "),
        (named.encode(TEXTS), None),
        (named.encode_query(TEXTS, prompt="P: "), "P: "),
    ):
        np.testing.assert_array_equal(rows, model.encode(TEXTS, prompt=prompt))
    with pytest.raises(ValueError, match="unheard"):
        named.encode(TEXTS, prompt_name="unheard")


def test_a_default_prompt_is_used_unless_another_is_given(base, model):
    named = build(base("llama"), prompts={"all": "A: "}, default_prompt_name="all")
    np.testing.assert_array_equal(named.encode(TEXTS), model.encode(TEXTS, prompt="A: "))
    np.testing.assert_array_equal(named.encode(TEXTS, prompt=""), model.encode(TEXTS))


def test_a_prompt_with_the_placeholder_raises(base, model):
    with pytest.raises(ValueError, match="build"):
        model.encode(TEXTS, prompt="Say {text} again: ")
    with pytest.raises(ValueError, match="build"):
        build(base("llama"), prompts={"query": "Say {text}: "}).encode_query(TEXTS)


def test_a_prompt_is_not_translated(base):
    translator = Recorder()
    model = build(base("llama"), languages=[DE], translator=translator)
    decoded, _ = prompts_read(model, ["a cat"], prompt="Query: ")
    assert translator.calls == [(EN, DE, ["a cat"])]
    assert decoded[0][0] == "<bos>Query: " + HEAD + prompts.normalise(marked("a cat", EN, DE)) + TAIL


# encode's own options


def test_the_kinds_of_output_hold_the_same_rows(model):
    rows = model.encode(TEXTS)
    assert rows.shape == (len(TEXTS), 64)
    assert rows.dtype == np.float32
    tensor = model.encode(TEXTS, convert_to_tensor=True)
    assert isinstance(tensor, torch.Tensor)
    listed = model.encode(TEXTS, convert_to_numpy=False)
    assert isinstance(listed, list)
    assert torch.equal(tensor, torch.from_numpy(rows))
    assert torch.equal(torch.stack(listed), tensor)
    for other in (tensor, listed):
        assert torch.equal(model.similarity(other, rows), model.similarity(rows, rows))


def test_normalised_rows_have_unit_length_and_the_same_similarities(model):
    rows, unit = model.encode(TEXTS), model.encode(TEXTS, normalize_embeddings=True)
    np.testing.assert_allclose(np.linalg.norm(unit, axis=1), 1, rtol=1e-5)
    torch.testing.assert_close(model.similarity(unit, unit), model.similarity(rows, rows), atol=1e-6, rtol=0)


def test_every_feature_of_a_text_comes_with_its_shape(parallel):
    ready = [{"en": text, "de": text.upper()} for text in TEXTS]
    rows = parallel.encode(ready, convert_to_tensor=True)
    for row, out in zip(rows, parallel.encode(ready, output_value=None, batch_size=2), strict=True):
        shapes = {key: tuple(out[key].shape) for key in ("view_vectors", "view_mask", "vector", "mask")}
        assert shapes == {"view_vectors": (2, 32), "view_mask": (2,), "vector": (32,), "mask": (32,)}
        assert out["input_ids"].shape == out["attention_mask"].shape
        assert out["source_view"] == 0
        assert out["mask"].dtype == torch.bool
        torch.testing.assert_close(out["sentence_embedding"], row, atol=1e-5 * row.abs().max().item(), rtol=0)
        torch.testing.assert_close(out["vector"], out["view_vectors"].mean(0))
        consensus = (out["view_vectors"] > 0).all(0)
        expected = sorted(consensus.nonzero().flatten().tolist(), key=lambda j: -out["vector"][j])[:8]
        assert sorted(expected) == out["mask"].nonzero().flatten().tolist()


def test_one_text_gives_one_set_of_features(model):
    assert features(model, TEXTS[0])["vector"].shape == (32,)


@pytest.mark.parametrize("value", ["token_embeddings", "embedding"])
def test_an_output_that_does_not_exist_is_refused(model, value):
    with pytest.raises(ValueError, match=value):
        model.encode(TEXTS, output_value=value)
    with pytest.raises(ValueError, match=value):
        model.encode(TEXTS, None, None, 8, False, value)


@pytest.mark.parametrize("precision", ["int8", "uint8", "binary", "ubinary"])
def test_quantised_rows_are_never_scored(model, precision):
    rows = model.encode(TEXTS * 12, precision=precision)
    assert len(rows) == 12 * len(TEXTS)
    for score in (model.similarity, model.similarity_pairwise):
        with pytest.raises(TypeError, match="precision"):
            score(rows, rows)


@pytest.mark.parametrize("width", [1, 15, 16, 32, 40, 63])
def test_truncated_rows_are_never_scored(base, model, width):
    rows = model.encode(TEXTS, truncate_dim=width)
    assert rows.shape == (len(TEXTS), width)
    whole = build(base("llama"), truncate_dim=width)
    np.testing.assert_array_equal(whole.encode(TEXTS), rows)
    for score in (model.similarity, model.similarity_pairwise):
        with pytest.raises(ValueError, match="truncate_dim"):
            score(rows, rows)


def test_a_progress_bar_is_shown_on_request(model, capsys):
    rows = model.encode(TEXTS, show_progress_bar=True, batch_size=3)
    assert "Batches" in capsys.readouterr().err
    shown = model.encode(TEXTS, show_progress_bar=False, batch_size=3)
    assert "Batches" not in capsys.readouterr().err
    np.testing.assert_array_equal(rows, shown)


def test_an_unknown_argument_raises(model):
    with pytest.raises(ValueError, match="languages"):
        model.encode(TEXTS, languages=["en"])
    with pytest.raises(ValueError, match="processing_kwargs"):
        model.encode(TEXTS, processing_kwargs={"text": {"max_length": 8}})


def test_the_old_name_of_the_inputs_still_works(model):
    np.testing.assert_array_equal(model.encode(sentences=TEXTS), model.encode(TEXTS))


def test_the_callers_inputs_are_left_as_they_were(base):
    model = build(base("llama"), languages=[EN, DE], translator=Recorder())
    inputs = [{"en": "A cat."}, {"en": "A dog runs.", "de": "Ein Hund."}]
    codes = ["en", "de"]
    model.encode(inputs, language=codes)
    model.encode(inputs)
    assert inputs == [{"en": "A cat."}, {"en": "A dog runs.", "de": "Ein Hund."}]
    assert codes == ["en", "de"]


# Normalisation


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("A cat", "A cat."),
        ("  A cat \n", "A cat."),
        ("A cat.", "A cat."),
        ("A cat. ", "A cat."),
        ("A cat!", "A cat!."),
        ("A cat?", "A cat."),
        ("A cat??", "A cat?."),
        ("A cat...", "A cat..."),
        ("the 'cat'", "the 'cat'"),
        ('the "cat"', "the 'cat'"),
        ('the "cat" sat', "the 'cat' sat."),
        ('Is it "cold"?', "Is it 'cold'."),
        ('He asked: "Is it?"', "He asked: 'Is it?'"),
        ("", "."),
        (" \t", "."),
        ("?", "."),
        ('"', "'"),
        ("猫。", "猫。."),
        ("«chat»", "«chat»."),
        ("\ud83d\ude00", "😀."),
        ("a\ud800", "a\ufffd."),
        ("{text}", "{text}."),
    ],
)
def test_a_text_is_normalised_as_the_method_says(text, normal):
    assert prompts.normalise(text) == normal


def test_a_data_frame_is_refused_with_what_to_give(model):
    with pytest.raises(TypeError, match="to_dict"):
        model.encode(pd.DataFrame({"text": ["a", "b", "c"]}))


def test_nothing_to_preprocess_gives_nothing(model):
    assert model[0].preprocess([])["input_ids"].shape[0] == 0
