"""The joint-dimension cosine and the packed row, against naive loops and stated values."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from sentence_transformers import util

import dysem_st
from dysem_st import (
    joint_cosine,
    joint_dimensions,
    pack,
    pairwise_joint_cosine,
    pairwise_joint_dimensions,
    unpack,
)

A, A_SET = [1.0, 2.0, -3.0, 5.0], [True, True, False, False]
B, B_SET = [2.0, -1.0, 4.0, 6.0], [True, False, True, False]
PAIRED = (pairwise_joint_cosine, pairwise_joint_dimensions)
ALL_PAIRS = (joint_cosine, joint_dimensions)


def naive_pair(x, x_set, y, y_set) -> float:
    """One pair in float64, dimension by dimension."""
    union = [j for j in range(len(x)) if x_set[j] or y_set[j]]
    dot = sum(float(x[j]) * float(y[j]) for j in union)
    norm_x = sum(float(x[j]) ** 2 for j in union) ** 0.5
    norm_y = sum(float(y[j]) ** 2 for j in union) ** 0.5
    return dot / norm_x / norm_y if norm_x and norm_y else 0.0


def naive_matrix(rows_a, rows_b) -> np.ndarray:
    half = rows_a.shape[1] // 2
    a, b = np.asarray(rows_a, dtype=np.float64), np.asarray(rows_b, dtype=np.float64)
    return np.array([[naive_pair(x[:half], x[half:] > 0, y[:half], y[half:] > 0) for y in b] for x in a])


def random_rows(n: int, d: int = 24, seed: int = 0, share: float = 0.3) -> torch.Tensor:
    """Packed rows with heavy-tailed vectors, as a language model's are, and semantic sets of every size."""
    generator = torch.Generator().manual_seed(seed)
    vector = torch.randn(n, d, generator=generator) ** 3
    shares = 2 * share * torch.rand(n, 1, generator=generator)
    return pack(vector, torch.rand(n, d, generator=generator) < shares)


def close(actual, expected, tolerance: float = 1e-6) -> bool:
    actual, expected = np.asarray(actual, dtype=np.float64), np.asarray(expected, dtype=np.float64)
    return actual.shape == expected.shape and np.allclose(actual, expected, rtol=0, atol=tolerance, equal_nan=True)


# Values


def test_the_fixture_is_scored_on_the_union_and_not_masked_or_plain():
    x, y = pack(A, A_SET), pack(B, B_SET)
    masked = np.dot([1, 2, 0, 0], [2, 0, 4, 0]) / np.linalg.norm([1, 2]) / np.linalg.norm([2, 4])
    plain = np.dot(A, B) / np.linalg.norm(A) / np.linalg.norm(B)
    assert round(masked, 3) == 0.200 and round(plain, 3) == 0.382  # what a wrong path would give
    expected = -12 / (14 * 21) ** 0.5
    assert round(expected, 3) == -0.700
    assert joint_cosine(x, y).item() == pytest.approx(expected, abs=1e-6)
    assert pairwise_joint_cosine(x, y).item() == pytest.approx(expected, abs=1e-6)
    assert pairwise_joint_cosine(x[None], y[None]).tolist() == pytest.approx([expected], abs=1e-6)


def test_a_models_similarity_is_the_joint_cosine(base):
    model = dysem_st.build(base(), languages=["en"], k=4)
    x, y = pack([A], [A_SET]), pack([B], [B_SET])
    assert model.similarity(x, y).item() == pytest.approx(-0.700, abs=5e-4)
    assert model.similarity_pairwise(x, y).item() == pytest.approx(-0.700, abs=5e-4)


@pytest.mark.parametrize("memory_budget", [1, 300_000, 10**6, 2**29])
def test_all_pairs_equal_a_naive_loop_whatever_the_memory_budget(memory_budget):
    a, b = random_rows(23, seed=1), random_rows(31, seed=2)
    assert close(joint_cosine(a, b, memory_budget=memory_budget), naive_matrix(a, b))


@pytest.mark.parametrize("memory_budget", [1, 5_000, 2**29])
def test_pairs_equal_a_naive_loop_whatever_the_memory_budget(memory_budget):
    a, b = random_rows(23, seed=1), random_rows(23, seed=2)
    assert close(pairwise_joint_cosine(a, b, memory_budget=memory_budget), naive_matrix(a, b).diagonal())


@pytest.mark.parametrize("share", [0.0, 0.02, 0.5, 1.0])
def test_sets_of_any_size_equal_a_naive_loop(share):
    a, b = random_rows(9, d=64, seed=3, share=share), random_rows(7, d=64, seed=4, share=share)
    assert close(joint_cosine(a, b), naive_matrix(a, b))


def test_scores_are_symmetric():
    a, b = random_rows(40, seed=5), random_rows(30, seed=6)
    assert close(joint_cosine(a, b), joint_cosine(b, a).T)
    assert close(pairwise_joint_cosine(a[:30], b), pairwise_joint_cosine(b, a[:30]))


@pytest.mark.parametrize(("n", "d"), [(2000, 16), (500, 640), (200, 4096)])
def test_a_text_scores_one_with_itself_and_never_above(n, d):
    generator = torch.Generator().manual_seed(d)
    for vector in (torch.randn(n, d, generator=generator), torch.randn(n, d, generator=generator) ** 5):
        rows = pack(vector, torch.rand(n, d, generator=generator) < 0.2)
        rows = rows[unpack(rows)[1].any(-1)]
        every = joint_cosine(rows, rows)
        for scores in (every.diagonal(), pairwise_joint_cosine(rows, rows)):
            assert scores.min() >= 1 - 1e-6
        assert every.abs().max() <= 1 and pairwise_joint_cosine(rows, rows).max() <= 1


@pytest.mark.parametrize("factor", [1e-25, 1e-20, 1e-3, 3.0, 1e3, 1e20, 1e30])
def test_scaling_a_row_changes_nothing(factor):
    a, b = random_rows(12, seed=7), random_rows(10, seed=8)
    assert close(joint_cosine(a * factor, b), joint_cosine(a, b))
    assert close(joint_cosine(b, a * factor), joint_cosine(b, a))
    assert close(pairwise_joint_cosine(a[:10] * factor, b), pairwise_joint_cosine(a[:10], b))
    assert joint_dimensions(a * factor, b).equal(joint_dimensions(a, b))


@pytest.mark.parametrize("exponent", [-60, -1, 1, 60])
def test_scaling_a_row_by_a_power_of_two_changes_no_bit(exponent):
    a, b = random_rows(12, seed=7), random_rows(12, seed=8)
    assert joint_cosine(a * 2.0**exponent, b).equal(joint_cosine(a, b))
    assert pairwise_joint_cosine(a, b * 2.0**exponent).equal(pairwise_joint_cosine(a, b))


def test_each_row_may_have_a_scale_of_its_own():
    a, b = random_rows(9, seed=9), random_rows(9, seed=10)
    scales = torch.logspace(-20, 20, 9)[:, None]
    assert close(joint_cosine(a * scales, b * scales.flip(0)), joint_cosine(a, b))


def test_rows_normalised_to_unit_length_score_the_same():
    a, b = random_rows(12, seed=11) * 50, random_rows(9, seed=12) * 0.01
    unit_a, unit_b = (torch.nn.functional.normalize(rows, dim=-1) for rows in (a, b))
    assert close(joint_cosine(unit_a, unit_b), joint_cosine(a, b))


# Zeros, NaN and infinity


def test_zero_vectors_and_empty_unions_score_zero_without_warnings():
    none, full = [False] * 4, [True] * 4
    rows = pack([[0.0] * 4, [0.0] * 4, A, B, A], [full, none, none, none, full])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with np.errstate(all="raise"):
            scores = joint_cosine(rows, rows)
            pairs = pairwise_joint_cosine(rows[[0, 1, 2]], rows[[4, 2, 3]])
    assert scores[:2].eq(0).all() and scores[:, :2].eq(0).all()
    assert scores[2:4, 2:4].eq(0).all()  # neither text has a semantic set
    assert close(scores, naive_matrix(rows, rows))
    assert scores[2, 4] == pytest.approx(1, abs=1e-6)  # the union with a full set is not empty
    assert pairs.tolist() == [0.0, 0.0, 0.0]


def test_vectors_that_are_zero_on_the_union_score_zero():
    x, y = pack([0.0, 0.0, 7.0], [True, False, False]), pack([1.0, 2.0, 3.0], [False, True, False])
    assert joint_cosine(x, y).item() == 0.0 and pairwise_joint_cosine(x, y).item() == 0.0


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("place", ["one number of the vector", "the whole vector"])
def test_a_bad_row_scores_nan_and_poisons_no_other(bad, place):
    a, b = random_rows(6, seed=13), random_rows(5, seed=14)
    half = a.shape[1] // 2
    spoilt = a.clone()
    spoilt[2, slice(3, 4) if place.startswith("one") else slice(0, half)] = bad
    others = [0, 1, 3, 4, 5]
    assert joint_cosine(spoilt, b)[2].isnan().all() and joint_cosine(b, spoilt)[:, 2].isnan().all()
    assert joint_cosine(spoilt, b)[others].equal(joint_cosine(a, b)[others])
    assert joint_cosine(b, spoilt)[:, others].equal(joint_cosine(b, a)[:, others])
    for scores in (pairwise_joint_cosine(spoilt[:5], b), pairwise_joint_cosine(b, spoilt[:5])):
        assert scores.isnan().tolist() == [False, False, True, False, False]
    empty = pack([0.0] * half, [False] * half)
    assert joint_cosine(spoilt, empty)[2].isnan().all()  # not 0, though the other vector is zero


def test_a_row_of_nothing_but_nan_scores_nan():
    rows = random_rows(4, seed=15)
    spoilt = rows.clone()
    spoilt[1] = torch.nan
    scores = joint_cosine(spoilt, rows)
    assert scores.isnan().any(-1).tolist() == [False, True, False, False] and scores[1].isnan().all()
    assert pairwise_joint_cosine(spoilt, rows).isnan().tolist() == [False, True, False, False]


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("whole", [False, True])
def test_a_row_with_a_bad_mask_is_never_given_a_score(bad, whole):
    rows = random_rows(4, d=8, seed=16, share=0.5)
    spoilt = rows.clone()
    spoilt[1, 8 if not whole else slice(8, None)] = bad
    try:
        scores = joint_cosine(spoilt, rows)
        pairs = pairwise_joint_cosine(spoilt, rows)
    except ValueError as error:
        assert "packed rows" in str(error)
    else:
        assert scores[1].isnan().all() and not scores[[0, 2, 3]].isnan().any()
        assert pairs.isnan().tolist() == [False, True, False, False]


def test_a_pair_of_extreme_scales_on_the_union_is_finite():
    x = pack([1e30, 1e-8, -2e-8], [False, True, True])
    y = pack([1.0, 1e-30, 3e-30], [True, True, False])
    assert joint_cosine(x, y).isfinite().all() and joint_cosine(y, y).item() == pytest.approx(1, abs=1e-6)


# What rows may be


@pytest.mark.parametrize(
    "convert",
    [
        pytest.param(lambda rows: rows.numpy(), id="numpy"),
        pytest.param(list, id="list of tensors"),
        pytest.param(lambda rows: list(rows.numpy()), id="list of arrays"),
        pytest.param(lambda rows: rows.tolist(), id="list of lists"),
        pytest.param(lambda rows: tuple(rows), id="tuple of tensors"),
        pytest.param(lambda rows: np.asfortranarray(rows.numpy()), id="Fortran order"),
        pytest.param(lambda rows: rows.repeat_interleave(2, dim=0)[::2], id="strided"),
    ],
)
def test_every_form_of_rows_scores_the_same(convert):
    a, b = random_rows(6, seed=17), random_rows(6, seed=18)
    for function in (*ALL_PAIRS, *PAIRED):
        expected = function(a, b)
        for given in (function(convert(a), convert(b)), function(convert(a), b), function(a, convert(b))):
            assert isinstance(given, torch.Tensor) and close(given, expected)


def test_one_row_is_a_batch_of_one_and_a_scalar_among_pairs():
    a, b = random_rows(1, seed=19)[0], random_rows(4, seed=20)
    assert joint_cosine(a, b).equal(joint_cosine(a[None], b)) and joint_cosine(a, b).shape == (1, 4)
    assert joint_cosine(b, a).shape == (4, 1) and joint_cosine(a, a).shape == (1, 1)
    for function in PAIRED:
        assert function(a, b[0]).shape == () and function(a[None], b[0]).shape == (1,)
        assert close(function(a.numpy(), b[0].tolist()), function(a, b[0]))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_rows_of_other_float_types_are_scored_as_they_stand(dtype):
    a, b = (torch.nn.functional.normalize(random_rows(8, seed=seed)).to(dtype) for seed in (21, 22))
    expected = naive_matrix(a.double(), b.double())
    scores = joint_cosine(a, b)
    assert scores.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    tolerance = 1e-14 if dtype == torch.float64 else 1e-6
    assert close(scores, expected, tolerance)
    assert close(pairwise_joint_cosine(a, b), expected.diagonal(), tolerance)
    assert close(joint_cosine(a, b.float()), expected) and close(joint_cosine(b.float(), a), expected.T)


def test_float16_arrays_are_scored_as_they_stand():
    rows = torch.nn.functional.normalize(random_rows(5, seed=23)).numpy().astype(np.float16)
    assert close(joint_cosine(rows, rows), naive_matrix(rows, rows))


def test_no_function_modifies_its_inputs():
    rows, mask = random_rows(5, seed=24), torch.rand(5, 24) < 0.5
    rows[3, 1] = torch.nan
    vector = torch.randn(5, 24)
    kept = [value.clone() for value in (rows, vector, mask)]
    as_array = rows.numpy().copy()
    for function in (*ALL_PAIRS, *PAIRED):
        function(rows, rows)
        function(as_array, as_array)
    pack(vector, mask)
    unpacked, _ = unpack(rows)
    assert np.array_equal(as_array, kept[0].numpy(), equal_nan=True) and close(unpacked, kept[0][:, :24])
    assert close(rows, kept[0], 0) and vector.equal(kept[1]) and mask.equal(kept[2])


@pytest.mark.parametrize("nothing", [[], np.array([]), torch.tensor([]), np.zeros((0, 48), np.float32)])
def test_no_rows_give_no_scores(nothing):
    rows = random_rows(3)
    for function in ALL_PAIRS:
        assert function(nothing, rows).shape == (0, 3)
        assert function(rows, nothing).shape == (3, 0)
        assert function(nothing, nothing).shape == (0, 0)
        assert function(rows[0], nothing).shape == (1, 0)
    for function in PAIRED:
        assert function(nothing, nothing).shape == (0,)
        with pytest.raises(ValueError, match="as many rows"):
            function(nothing, rows)


def test_encoding_nothing_gives_no_scores(base):
    model = dysem_st.build(base(), languages=["en"], k=4)
    rows = model.encode(["a man", "a woman"])
    for nothing in (model.encode([]), model.encode([], convert_to_tensor=True)):
        assert model.similarity(nothing, rows).shape == (0, 2)
        assert model.similarity_pairwise(nothing, nothing).shape == (0,)


# What rows may not be


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int64])
def test_integer_rows_are_refused(dtype):
    rows = np.ones((2, 8), dtype)
    for function in (*ALL_PAIRS, *PAIRED):
        for a, b in ((rows, rows), (torch.as_tensor(rows), random_rows(2, d=4)), (random_rows(2, d=4), rows.tolist())):
            with pytest.raises(TypeError, match="precision"):
                function(a, b)


@pytest.mark.parametrize("precision", ["int8", "uint8", "binary", "ubinary"])
def test_quantised_encodings_are_refused(base, precision):
    model = dysem_st.build(base(), languages=["en"], k=4)
    rows = model.encode(["a man", "a woman", "an apple"], precision=precision)
    with pytest.raises(TypeError, match="precision"):
        model.similarity(rows, rows)


@pytest.mark.parametrize("width", [7, 16, 31, 32, 48, 62, 63])
def test_truncated_encodings_are_refused(base, width):
    model = dysem_st.build(base(), languages=["en"], k=4)
    rows = model.encode(["a man", "a woman", "an apple"], truncate_dim=width)
    whole = model.encode(["a man", "a woman", "an apple"])
    assert rows.shape == (3, width) and whole.shape == (3, 64)
    for a, b in ((rows, rows), (rows, whole), (whole, rows)):
        with pytest.raises(ValueError, match="truncate_dim"):
            model.similarity(a, b)
        with pytest.raises(ValueError, match="truncate_dim"):
            model.similarity_pairwise(a, b)


def test_rows_that_are_not_packed_are_refused():
    rows = random_rows(6, seed=25, share=0.5)
    averaged = (rows[:3] + rows[3:]) / 2
    plain = torch.randn(3, 48, generator=torch.Generator().manual_seed(0))
    for wrong in (averaged, plain, -rows):
        with pytest.raises(ValueError, match="not packed rows"):
            unpack(wrong)
    for wrong in (rows[None], torch.tensor(1.0)):
        with pytest.raises(ValueError, match="shape"):
            unpack(wrong)


def test_rows_of_different_widths_or_numbers_are_refused():
    for function in (*ALL_PAIRS, *PAIRED):
        with pytest.raises(ValueError, match="different models"):
            function(random_rows(3, d=8), random_rows(3, d=9))
    for function in PAIRED:
        for n in (1, 4):
            with pytest.raises(ValueError, match="as many rows"):
                function(random_rows(3), random_rows(n))


# The packed row


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_packing_and_unpacking_returns_vector_and_mask(dtype):
    vector = torch.randn(7, 24, dtype=dtype, generator=torch.Generator().manual_seed(1))
    mask = vector > 0.5
    rows = pack(vector, mask)
    assert rows.shape == (7, 48) and rows.dtype == dtype
    for given in (rows, pack(vector.numpy(), mask.numpy())):
        assert unpack(given)[0].equal(vector) and unpack(given)[1].equal(mask)
    from_lists = unpack(pack(vector.tolist(), mask.tolist()))
    assert from_lists[0].equal(vector.float()) and from_lists[1].equal(mask)
    assert unpack(rows[3])[0].equal(vector[3]) and unpack(rows[3])[1].equal(mask[3])


@pytest.mark.parametrize("size", [0, 1, 16, 256])
def test_plain_cosine_of_packed_rows_is_the_vectors_cosine(size):
    generator = torch.Generator().manual_seed(2)
    vector = torch.randn(60, 256, generator=generator)
    vector *= torch.logspace(-2, 5, 60)[:, None] / vector.norm(dim=-1, keepdim=True)
    mask = torch.zeros(60, 256, dtype=torch.bool)
    for row in mask[:30]:
        row[torch.randperm(256, generator=generator)[:size]] = True
    mask[30:, :size] = True  # equal sets, whose mask parts agree the most
    rows = pack(vector, mask)
    expected = naive_matrix(pack(vector.double(), torch.ones_like(mask)), pack(vector.double(), torch.ones_like(mask)))
    assert close(util.cos_sim(rows, rows), expected, 1e-5)


@pytest.mark.parametrize("scale", [1e-2, 1.0, 1e3])
@pytest.mark.parametrize("size", [1, 64, 1024, 4096])
def test_the_mask_survives_normalisation_and_float16(scale, size):
    vector = torch.randn(3, 4096, generator=torch.Generator().manual_seed(3))
    vector *= scale / vector.norm(dim=-1, keepdim=True)
    mask = torch.zeros(3, 4096, dtype=torch.bool)
    mask[:, torch.randperm(4096, generator=torch.Generator().manual_seed(4))[:size]] = True
    rows = pack(vector, mask)
    unit = torch.nn.functional.normalize(rows, dim=-1)
    for carried in (unit, rows.bfloat16(), unit.half(), unit.half().float().double()):
        assert unpack(carried)[1].equal(mask)
    if scale >= 1:
        assert unpack(rows.half())[1].equal(mask)


def test_a_zero_vector_keeps_its_mask():
    assert unpack(pack([0.0, 0.0, 0.0], [True, False, True]))[1].tolist() == [True, False, True]


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_packing_refuses_vectors_that_are_not_finite_and_names_them(bad):
    vector = torch.ones(4, 3)
    vector[2, 1] = bad
    with pytest.raises(ValueError, match=r"\[2\].*NaN or infinity"):
        pack(vector, torch.ones(4, 3, dtype=torch.bool))
    with pytest.raises(ValueError, match="NaN or infinity"):
        pack([1.0, bad], [True, True])


@pytest.mark.parametrize("mask", [[1, 0, 1], [1.0, 0.0, 1.0], np.array([1, 0, 1], np.uint8)])
def test_packing_refuses_masks_that_are_not_boolean(mask):
    with pytest.raises(ValueError, match="booleans"):
        pack([1.0, 2.0, 3.0], mask)


@pytest.mark.parametrize(
    ("vector", "mask"), [((3,), (4,)), ((2, 3), (3,)), ((2, 3), (1, 3)), ((2, 3), (3, 2)), ((2, 2, 3), (2, 2, 3))]
)
def test_packing_refuses_shapes_that_do_not_fit(vector, mask):
    with pytest.raises(ValueError, match="one shape"):
        pack(torch.ones(vector), torch.ones(mask, dtype=torch.bool))


def test_packing_refuses_integer_vectors():
    with pytest.raises(TypeError, match="floating"):
        pack([1, 2], [True, False])


# Counts, search and size


def test_joint_dimensions_are_the_sizes_of_set_unions():
    a, b = random_rows(9, d=300, seed=26), random_rows(8, d=300, seed=27)
    sets_a, sets_b = ([set(mask.nonzero().flatten().tolist()) for mask in unpack(rows)[1]] for rows in (a, b))
    expected = [[len(x | y) for y in sets_b] for x in sets_a]
    assert joint_dimensions(a, b).tolist() == expected
    assert pairwise_joint_dimensions(a[:8], b).tolist() == [expected[i][i] for i in range(8)]
    assert joint_dimensions(a.half(), b.double()).tolist() == expected
    assert not joint_dimensions(a, b).is_floating_point()
    assert not pairwise_joint_dimensions(a[0], b[0]).is_floating_point()


@pytest.mark.parametrize("corpus_chunk_size", [1, 10, 56, 57, 1000])
@pytest.mark.parametrize("query_chunk_size", [4, 100])
def test_semantic_search_finds_what_a_naive_ranking_finds(corpus_chunk_size, query_chunk_size):
    queries, corpus = random_rows(9, d=200, seed=28), random_rows(57, d=200, seed=29)
    expected = naive_matrix(queries, corpus)
    hits = util.semantic_search(
        queries,
        corpus,
        top_k=5,
        score_function=joint_cosine,
        corpus_chunk_size=corpus_chunk_size,
        query_chunk_size=query_chunk_size,
    )
    for found, scores in zip(hits, expected, strict=True):
        best = np.argsort(-scores, kind="stable")[:5]
        assert [hit["corpus_id"] for hit in found] == best.tolist()
        assert close([hit["score"] for hit in found], scores[best])


@pytest.mark.parametrize(("corpus_chunk_size", "query_chunk_size"), [(7, 5), (1, 30), (30, 1), (1000, 1000)])
def test_paraphrase_mining_finds_what_a_naive_ranking_finds(corpus_chunk_size, query_chunk_size):
    rows = random_rows(30, d=200, seed=30)
    expected = naive_matrix(rows, rows)
    ranked = sorted(((expected[i, j], i, j) for i in range(30) for j in range(i + 1, 30)), reverse=True)[:20]
    mined = util.paraphrase_mining_embeddings(
        rows,
        score_function=joint_cosine,
        corpus_chunk_size=corpus_chunk_size,
        query_chunk_size=query_chunk_size,
        top_k=29,
        max_pairs=20,
    )
    assert [(i, j) for _, i, j in mined] == [(i, j) for _, i, j in ranked]
    assert close([score for score, _, _ in mined], [score for score, _, _ in ranked])


MEASURE = """
import pathlib, resource, sys, torch, dysem_st
n, d = 5000, 4096
torch.manual_seed(0)
def peak():
    status = pathlib.Path("/proc/self/status")
    if status.exists():  # Linux hands the parent's ru_maxrss down to the child; this is the child's own
        (line,) = [line for line in status.read_text().splitlines() if line.startswith("VmHWM")]
        return 1024 * int(line.split()[1])
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
def rows():
    made = torch.empty(n, 2 * d)
    made[:, :d].normal_()
    made[:, d:].bernoulli_(0.25).mul_(1e-3)
    return made
a, b = rows(), rows()
dysem_st.joint_cosine(a[:8], b[:8])
before = peak()
scores = dysem_st.joint_cosine(a, b)
print(peak() - before, tuple(scores.shape), bool(scores.isfinite().all()))
"""


@pytest.mark.skipif(sys.platform == "win32", reason="the resource module is not there")
def test_five_thousand_by_five_thousand_rows_stay_under_two_gibibytes():
    environment = {**os.environ, "PYTHONPATH": str(Path(dysem_st.__file__).parents[1])}
    done = subprocess.run(
        [sys.executable, "-c", MEASURE], capture_output=True, text=True, env=environment, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr
    grown, rest = done.stdout.split(maxsplit=1)
    assert rest.strip() == "(5000, 5000) True"
    assert 5000 * 5000 * 4 < int(grown) < 2 * 2**30


@pytest.mark.parametrize(
    "change", [lambda rows: rows[::-1], lambda rows: rows.astype(">f4"), lambda rows: rows.T.copy().T]
)
def test_arrays_that_torch_does_not_read_score_the_same(change):
    generator = torch.Generator().manual_seed(3)
    vector = torch.randn(5, 12, generator=generator)
    rows = pack(vector, vector > 0).numpy()
    expected = joint_cosine(np.ascontiguousarray(change(rows), dtype=np.float32), rows)
    torch.testing.assert_close(joint_cosine(change(rows), rows), expected)


def test_autocast_changes_no_score():
    vector = torch.randn(40, 600, generator=torch.Generator().manual_seed(4))
    rows = pack(vector, vector > 0)
    scores, counts = joint_cosine(rows, rows), joint_dimensions(rows, rows)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert joint_cosine(rows, rows).equal(scores)
        assert joint_dimensions(rows, rows).equal(counts)
