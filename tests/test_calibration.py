"""Centering: the means, what they do to an encoding, and how they travel with a model."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer

import dysem_st
from dysem_st import unpack
from dysem_st.calibration import Centering, calibrate, fingerprint, mean_vectors

WORDS = "a man is playing the guitar and a woman eats an apple in one word this sentence means".split()
TEXTS = [" ".join(np.random.default_rng(i).choice(WORDS, 1 + i % 9)) for i in range(40)]
OTHER_TEXTS = ["mot guitare", "une phrase", "un mot veut dire"]
GAPPY = [
    {"en": "a man is playing", "fr": "un mot"},
    {"en": "a woman eats an apple"},
    {"en": "one word", "fr": "cette phrase"},
    {"en": "the guitar"},
    {"en": "a man"},
]


def make(base, **settings):
    settings = {"languages": ["en", "fr", "ja"], "prompt": "source-text", "k": 6, **settings}
    return dysem_st.build(base(), **settings)


def make_gappy(base, **settings):
    return dysem_st.build(base(), languages=["en", "fr"], k=6, missing="drop", **settings)


def read(model, texts, key="view_vectors") -> torch.Tensor:
    return torch.stack([features[key] for features in model.encode(texts, output_value=None)])


def naive_means(views, view_mask) -> tuple[np.ndarray, list[int]]:
    """Each view's mean over the texts that have it, text by text in float64."""
    m, d = views.shape[1:]
    total, counts = np.zeros((m, d)), [0] * m
    for text, present in zip(views, view_mask, strict=True):
        for j in range(m):
            if present[j]:
                total[j] += text[j].double().numpy()
                counts[j] += 1
    return total / np.array(counts)[:, None], counts


def naive_centred_rows(views, view_mask, means, k) -> tuple[np.ndarray, list[list[bool]]]:
    """Centre, then pool to the mean vector and the semantic set, text by text."""
    vectors, masks = [], []
    for text, present in zip(views.double().numpy(), view_mask.tolist(), strict=True):
        there = [text[j] - means[j] for j in range(len(text)) if present[j]]
        mean = np.mean(there, axis=0)
        consensus = [j for j in range(len(mean)) if all(view[j] > 0 for view in there)]
        chosen = sorted(consensus, key=lambda j: -mean[j])[:k]
        vectors.append(mean)
        masks.append([j in chosen for j in range(len(mean))])
    return np.array(vectors), masks


def near(actual, expected, tolerance=1e-6) -> bool:
    """Equal to within a share of the largest value."""
    actual, expected = np.asarray(actual, dtype=np.float64), np.asarray(expected, dtype=np.float64)
    return actual.shape == expected.shape and np.abs(actual - expected).max() <= tolerance * np.abs(expected).max()


# The means


def test_the_means_are_the_means_of_what_an_uncalibrated_model_reads(base):
    model = make(base)
    expected, _ = naive_means(read(model, TEXTS), read(model, TEXTS, "view_mask"))
    means, counts = mean_vectors(model, TEXTS)
    assert means.dtype == torch.float64 and near(means, expected)
    assert counts.tolist() == [40, 40, 40]


def test_absent_views_are_not_counted(base):
    model = make_gappy(base)
    expected, expected_counts = naive_means(read(model, GAPPY), read(model, GAPPY, "view_mask"))
    means, counts = mean_vectors(model, GAPPY, batch_size=2)
    assert counts.tolist() == expected_counts == [5, 2]
    assert near(means, expected)


@pytest.mark.parametrize("batch_size", [1, 2, 7, 64])
def test_a_stream_gives_what_a_list_gives_in_any_batch_size(base, batch_size):
    model = make(base)
    expected, _ = mean_vectors(model, TEXTS)
    means, counts = mean_vectors(model, (text for text in TEXTS), batch_size=batch_size)
    assert near(means, expected) and counts.tolist() == [40, 40, 40]


def test_a_stream_is_read_as_it_comes_and_never_collected(base):
    model = make(base, languages=["en"])
    given, read_so_far, ahead = 0, 0, []

    def stream():
        nonlocal given
        for i in range(200):
            given += 1
            yield TEXTS[i % 40]

    def note(_module, args):
        nonlocal read_so_far
        ahead.append(given - read_so_far)
        read_so_far += len(args[0]["view_mask"])

    handle = model[0].register_forward_pre_hook(note)
    mean_vectors(model, stream(), batch_size=2)
    handle.remove()
    assert read_so_far == given == 200 and max(ahead) <= 64


def test_the_order_of_texts_does_not_matter(base):
    model = make(base)
    assert near(mean_vectors(model, TEXTS[::-1], batch_size=3)[0], mean_vectors(model, TEXTS, batch_size=3)[0])


def test_a_calibrated_models_raw_readings_are_averaged(base):
    model = make(base)
    before, _ = mean_vectors(model, TEXTS)
    calibrate(model, OTHER_TEXTS)
    assert near(mean_vectors(model, TEXTS)[0], before, 0)


def test_taking_means_leaves_the_model_and_the_texts_alone(base):
    model, texts = make(base), list(TEXTS)
    before = model.encode(TEXTS[:5])
    mean_vectors(model, texts, batch_size=2)
    assert np.array_equal(model.encode(TEXTS[:5]), before) and texts == TEXTS


def test_the_stated_language_reaches_the_texts(base):
    model = make_gappy(base)
    with pytest.raises(ValueError, match="no calibration texts for the views: eng_Latn text"):
        mean_vectors(model, ["un mot", "cette phrase"], language="fr")
    model = dysem_st.build(base(), languages=["fr"], k=6)
    means, counts = mean_vectors(model, ["un mot", "cette phrase"], language="fr")
    expected = read(model, [{"fr": "un mot"}, {"fr": "cette phrase"}]).double().mean(0)
    assert counts.tolist() == [2] and near(means, expected)


# What they do


def test_a_calibrated_model_pools_centred_views(base):
    model = make(base)
    texts = TEXTS[3:20]
    views, view_mask = read(model, texts), read(model, texts, "view_mask")
    means, _ = naive_means(read(model, TEXTS), read(model, TEXTS, "view_mask"))
    raw = model.encode(texts)
    assert calibrate(model, TEXTS) is model
    vectors, masks = unpack(model.encode(texts))
    expected_vectors, expected_masks = naive_centred_rows(views, view_mask, means, k=6)
    assert near(vectors, expected_vectors, 1e-5) and masks.tolist() == expected_masks
    assert not near(raw[:, :32], expected_vectors, 0.1)  # centering matters here


def test_views_average_to_zero_over_the_calibration_texts(base):
    model = make(base)
    scale = read(model, TEXTS).abs().max()
    centred = read(calibrate(model, TEXTS), TEXTS)
    assert centred.double().mean(0).abs().max() < 1e-6 * scale


def test_absent_views_stay_zero_and_count_for_nothing(base):
    model = make_gappy(base)
    views, view_mask = read(model, GAPPY), read(model, GAPPY, "view_mask")
    means, _ = naive_means(views, view_mask)
    calibrate(model, GAPPY)
    assert model[1].count == 2  # the fewest texts that any view's mean is over
    centred = read(model, GAPPY)
    assert centred[~view_mask].eq(0).all() and not centred[view_mask].eq(0).all(-1).any()
    vectors, masks = unpack(model.encode(GAPPY))
    expected_vectors, expected_masks = naive_centred_rows(views, view_mask, means, k=6)
    assert near(vectors, expected_vectors, 1e-5) and masks.tolist() == expected_masks
    assert any(any(mask) for mask in expected_masks)


def test_calibrating_again_replaces_and_does_not_stack(base):
    twice = calibrate(calibrate(make(base), OTHER_TEXTS), TEXTS)
    once = calibrate(make(base), TEXTS)
    assert [type(module) for module in twice] == [type(module) for module in once]
    assert sum(isinstance(module, Centering) for module in twice) == 1
    assert np.array_equal(twice.encode(TEXTS), once.encode(TEXTS))


def test_centering_does_not_modify_what_it_is_given():
    centering = Centering(torch.ones(2, 3), {}, 5)
    views, view_mask = torch.zeros(1, 2, 3), torch.tensor([[True, False]])
    features = centering({"view_vectors": views, "view_mask": view_mask})
    assert features["view_vectors"].tolist() == [[[-1.0] * 3, [0.0] * 3]]
    assert views.eq(0).all() and centering.means.eq(1).all()


# How they travel


@pytest.mark.parametrize("reload", [lambda path: SentenceTransformer(path, trust_remote_code=True), dysem_st.load])
def test_a_saved_calibration_comes_back_bit_for_bit(base, tmp_path, reload):
    model = calibrate(make(base), TEXTS)
    model.save(str(tmp_path))
    again = reload(str(tmp_path))
    assert again[1].means.equal(model[1].means) and again[1].count == model[1].count == 40
    assert again[1].fingerprint == model[1].fingerprint
    assert np.array_equal(again.encode(TEXTS), model.encode(TEXTS))


def test_a_calibration_can_be_left_out_or_replaced_when_loading(base, tmp_path):
    plain, model = make(base), calibrate(make(base), TEXTS)
    model.save(str(tmp_path / "model"))
    dropped = dysem_st.load(tmp_path / "model", calibration=None)
    assert not any(isinstance(module, Centering) for module in dropped)
    assert np.array_equal(dropped.encode(TEXTS), plain.encode(TEXTS))
    assert not np.array_equal(dropped.encode(TEXTS), model.encode(TEXTS))
    other = calibrate(make(base), OTHER_TEXTS)
    other[1].write(tmp_path / "other.safetensors")
    replaced = dysem_st.load(tmp_path / "model", calibration=tmp_path / "other.safetensors")
    assert np.array_equal(replaced.encode(TEXTS), other.encode(TEXTS))


def test_a_model_can_be_built_with_a_calibration(base, tmp_path):
    model = calibrate(make(base), TEXTS)
    model[1].write(tmp_path / "means.safetensors")
    for given in (tmp_path / "means.safetensors", str(tmp_path / "means.safetensors"), model[1]):
        assert np.array_equal(make(base, calibration=given).encode(TEXTS), model.encode(TEXTS))


def test_halving_a_model_leaves_the_means_in_float32(base):
    model = calibrate(make(base), TEXTS)
    kept = model[1].means.clone()
    for cast in (model.half, model.bfloat16, model.float):
        cast()
        assert model[1].means.dtype == torch.float32 and model[1].means.equal(kept)
        assert model.encode(TEXTS[:3]).dtype == np.float32


def test_means_of_a_bfloat16_body_are_float32_sums_of_what_it_reads(base, tmp_path):
    model = make(base, model_kwargs={"dtype": torch.bfloat16})
    expected, _ = naive_means(read(model, TEXTS), read(model, TEXTS, "view_mask"))
    calibrate(model, TEXTS)
    assert model[1].means.dtype == torch.float32
    # Rows of a bfloat16 body depend a little on how a batch is padded.
    assert near(model[1].means, expected, 0.01)
    assert not model[1].means.equal(model[1].means.bfloat16().float())
    model.save(str(tmp_path))
    assert dysem_st.load(tmp_path)[1].means.equal(model[1].means)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"component": "ffn"}, "component was 'attention', is 'ffn'"),
        ({"layers": 2}, "layers was"),
        ({"readout": "module"}, "readout was 'residual', is 'module'"),
        ({"languages": ["en", "ja"], "prompt": "source-text"}, "views was"),
        ({"languages": ["en", "ja", "fr"], "prompt": "source-text"}, "views was"),
        ({"languages": ["en", "fr", "ja"], "prompt": "language-specific"}, "views was"),
        (
            {"languages": ["en", "fr", "ja"], "prompt": {"en": "Say {text}", "fr": "Dis {text}", "ja": "{text} は"}},
            "templates was",
        ),
    ],
)
def test_a_calibration_of_another_reading_is_refused(base, tmp_path, change, named):
    calibrate(make(base), TEXTS).save(str(tmp_path))
    with pytest.raises(ValueError, match="calibration") as refusal:
        dysem_st.load(tmp_path, **change)
    assert named in str(refusal.value) and "calibration=None" in str(refusal.value)
    assert not any(isinstance(module, Centering) for module in dysem_st.load(tmp_path, calibration=None, **change))


def test_a_calibration_of_another_reading_is_refused_by_build(base):
    centering = calibrate(make(base), TEXTS)[1]
    with pytest.raises(ValueError, match="component was 'attention', is 'hidden'"):
        make(base, calibration=centering, component="hidden")


@pytest.mark.parametrize("change", [{"k": 3}, {"vector": "source"}, {"rank_by": "vector"}, {"max_seq_length": 100}])
def test_settings_that_do_not_change_the_reading_keep_the_calibration(base, tmp_path, change):
    model = calibrate(make(base), TEXTS)
    model.save(str(tmp_path))
    assert dysem_st.load(tmp_path, **change)[1].means.equal(model[1].means)


# Errors


def test_one_text_is_not_a_calibration_set(base):
    model = make(base)
    for one in ("a man is playing", {"en": "a man"}):
        with pytest.raises(TypeError, match="many texts"):
            calibrate(model, one)


@pytest.mark.parametrize("nothing", [[], (), iter([])])
def test_no_texts_are_refused(base, nothing):
    with pytest.raises(ValueError, match="no calibration texts"):
        calibrate(make(base), nothing)


def test_a_view_without_texts_is_refused_and_named(base):
    model = make_gappy(base)
    before = model.encode(GAPPY)
    with pytest.raises(ValueError, match="no calibration texts for the views: fra_Latn text") as refusal:
        calibrate(model, [{"en": "a man"}, {"en": "a woman"}])
    assert "eng_Latn text" not in str(refusal.value)
    assert np.array_equal(model.encode(GAPPY), before)  # a failed calibration changes nothing


def test_an_input_that_is_no_text_is_named_by_its_position(base):
    model = make(base)
    for wrong in (None, 3, float("nan"), b"a man"):
        # The texts before it are not in order of length, in which batches are read.
        with pytest.raises(TypeError, match="input 3 "):
            calibrate(model, ["a woman eats an apple", "a man is playing", "the guitar is", wrong])
    with pytest.raises(TypeError, match="input 37 "):
        calibrate(model, [*TEXTS[:37], None], batch_size=1)


def test_other_models_are_refused():
    from sentence_transformers.sentence_transformer.modules import StaticEmbedding
    from tokenizers import Tokenizer, models

    tokenizer = Tokenizer(models.WordLevel({"a": 0, "[UNK]": 1}, unk_token="[UNK]"))
    other = SentenceTransformer(modules=[StaticEmbedding(tokenizer, embedding_dim=4)], device="cpu")
    with pytest.raises(ValueError, match="DySem model.*StaticEmbedding"):
        calibrate(other, TEXTS)


def test_means_that_are_no_matrix_of_finite_numbers_are_refused():
    for wrong in (torch.ones(3), torch.ones(1, 2, 3), torch.tensor([[1.0, torch.nan]]), torch.tensor([[torch.inf]])):
        with pytest.raises(ValueError, match=r"\[m, d\] finite"):
            Centering(wrong, {}, 1)


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere"):
        Centering.read(tmp_path / "nowhere.safetensors")


def test_the_fingerprint_is_kept_as_json_values(base, tmp_path):
    model = calibrate(make(base, layers=(1, 3)), TEXTS)
    model[1].write(tmp_path / "means.safetensors")
    assert Centering.read(tmp_path / "means.safetensors").fingerprint == fingerprint(model[0])


# What encode would refuse, calibrate refuses too


def test_the_models_default_prompt_is_in_the_means_as_it_is_in_encode(base):
    arguments = {"languages": ["en"], "prompt": "source-text"}
    plain = dysem_st.build(base(), **arguments)
    prompted = dysem_st.build(base(), **arguments, prompts={"q": "Query: "}, default_prompt_name="q")
    texts = ["a man eats", "a woman plays the guitar"]
    expected = torch.stack([out["view_vectors"] for out in plain.encode(texts, prompt="Query: ", output_value=None)])
    means, _ = mean_vectors(prompted, texts)
    torch.testing.assert_close(means.float(), expected.mean(0), atol=1e-5, rtol=1e-4)
    assert not torch.allclose(means, mean_vectors(plain, texts)[0])


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"langauge": "fr"}, TypeError),
        ({"language": ["fr", "de"]}, TypeError),
        ({"batch_size": 0}, ValueError),
        ({"prompt_name": "none such"}, ValueError),
    ],
)
def test_wrong_arguments_are_refused(base, arguments, error):
    model = dysem_st.build(base(), languages=["en"], prompt="source-text")
    with pytest.raises(error):
        dysem_st.calibrate(model, ["a", "b"], **arguments)


def test_another_architecture_does_not_keep_a_calibration(base, tmp_path):
    model = dysem_st.build(base("llama"), languages=["en"], prompt="source-text")
    dysem_st.calibrate(model, ["a", "b"]).save(str(tmp_path))
    with pytest.raises(ValueError, match="architecture was"):
        dysem_st.load(tmp_path, base=base("gpt2"))
    assert len(dysem_st.load(tmp_path, base=base("llama"))) == 3


@pytest.mark.skipif(sys.platform == "win32", reason="file modes mean nothing there")
def test_a_calibration_file_is_as_readable_as_any_other(tmp_path):
    (tmp_path / "other").write_text("x", encoding="utf-8")
    Centering(torch.zeros(1, 2), {}, 1).write(tmp_path / "calibration.safetensors")
    assert (tmp_path / "calibration.safetensors").stat().st_mode == (tmp_path / "other").stat().st_mode
