"""Consensus, selection and the vector, against a loop over texts and dimensions."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import dysem_st
from dysem_st import ConsensusPooling, unpack
from dysem_st.pooling import pool, select

SETTINGS = [("mean", "mean"), ("source", "mean"), ("mean", "vector"), ("source", "vector")]


def naive_select(scores, allowed, k) -> list[bool]:
    ranked = sorted((j for j in range(len(scores)) if allowed[j]), key=lambda j: -scores[j])
    return [j in ranked[:k] for j in range(len(scores))]


def naive_pool(views, present, source, k, vector, rank_by) -> tuple[list[float], list[bool]]:
    """One text in Python floats: ``views`` is m lists of d numbers."""
    there = [view for view, here in zip(views, present, strict=True) if here]
    dims = range(len(views[0]))
    consensus = [bool(there) and all(view[j] > 0 for view in there) for j in dims]
    mean = [sum(view[j] for view in there) / max(len(there), 1) for j in dims]
    chosen = views[source] if vector == "source" else mean
    return chosen, naive_select(mean if rank_by == "mean" else chosen, consensus, k)


def check_against_naive(vectors, masks, views, view_mask, source_view, k, vector, rank_by):
    for i in range(len(views)):
        expected, selected = naive_pool(
            views[i].tolist(), view_mask[i].tolist(), int(source_view[i]), k, vector, rank_by
        )
        assert np.allclose(vectors[i].tolist(), expected, rtol=1e-6, atol=1e-6)
        assert masks[i].tolist() == selected


def random_views(texts=16, m=3, d=40, seed=0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Views above zero more often than not, some of them absent, and a source view that is there."""
    generator = torch.Generator().manual_seed(seed)
    views = torch.randn(texts, m, d, generator=generator) + 0.7
    view_mask = torch.rand(texts, m, generator=generator) < 0.6
    view_mask[torch.arange(texts), torch.randint(m, (texts,), generator=generator)] = True
    source_view = torch.multinomial(view_mask.float(), 1, generator=generator)[:, 0]
    assert not view_mask.all()
    return views, view_mask, source_view


@pytest.mark.parametrize("k", [1, 7, 40, 5000])
@pytest.mark.parametrize(("vector", "rank_by"), SETTINGS)
def test_pooling_equals_a_loop_over_texts(k, vector, rank_by):
    views, view_mask, source_view = random_views()
    vectors, masks = pool(views, view_mask, source_view, k=k, vector=vector, rank_by=rank_by)
    assert masks.dtype == torch.bool and vectors.shape == masks.shape == (16, 40)
    check_against_naive(vectors, masks, views, view_mask, source_view, k, vector, rank_by)


@pytest.mark.parametrize("m", [1, 12])
def test_any_number_of_views_equals_a_loop_over_texts(m):
    views, view_mask, source_view = random_views(m=12, seed=1)
    views, view_mask = views[:, :m] + 1, view_mask[:, :m]  # with one view, some texts have none
    vectors, masks = pool(views, view_mask, source_view, k=9)
    check_against_naive(vectors, masks, views, view_mask, source_view, 9, "mean", "mean")
    assert masks.any()


@pytest.mark.parametrize("garbage", [float("nan"), float("inf"), -float("inf"), 1e30, -1e30])
@pytest.mark.parametrize(("vector", "rank_by"), SETTINGS)
def test_what_stands_in_an_absent_view_is_ignored(garbage, vector, rank_by):
    views, view_mask, source_view = random_views(seed=2)
    clean = pool(views, view_mask, source_view, k=6, vector=vector, rank_by=rank_by)
    spoilt = views.masked_fill(~view_mask[..., None], garbage)
    vectors, masks = pool(spoilt, view_mask, source_view, k=6, vector=vector, rank_by=rank_by)
    assert vectors.equal(clean[0]) and masks.equal(clean[1])


def test_a_text_pools_alone_as_it_does_in_a_batch():
    views, view_mask, source_view = random_views(seed=3)
    vectors, masks = pool(views, view_mask, source_view, k=6)
    for i in range(len(views)):
        vector, mask = pool(views[i : i + 1], view_mask[i : i + 1], source_view[i : i + 1], k=6)
        assert vector[0].equal(vectors[i]) and mask[0].equal(masks[i])


def test_the_order_of_views_does_not_matter():
    views, view_mask, source_view = random_views(seed=4)
    vectors, masks = pool(views, view_mask, source_view, k=6)
    flipped, flipped_masks = pool(views.flip(1), view_mask.flip(1), 2 - source_view, k=6)
    assert torch.allclose(flipped, vectors, atol=1e-6) and flipped_masks.equal(masks)


def test_consensus_asks_for_more_than_zero_in_every_view():
    views = torch.tensor([[[1.0, 0.0, -1e-9, 2.0, 1e-9], [1.0, 5.0, 5.0, -2.0, 1e-9]]])
    _, mask = pool(views, torch.tensor([[True, True]]), torch.tensor([0]), k=5)
    assert mask.tolist() == [[True, False, False, False, True]]
    _, mask = pool(views, torch.tensor([[False, True]]), torch.tensor([1]), k=5)
    assert mask.tolist() == [[True, True, True, False, True]]


def test_a_k_above_the_consensus_selects_the_whole_consensus():
    views = torch.tensor([[[3.0, -1.0, 2.0, 1.0]], [[-1.0, -1.0, -1.0, 1.0]]])
    there, source = torch.ones(2, 1, dtype=torch.bool), torch.zeros(2, dtype=torch.long)
    for k in (3, 4, 1024):
        assert pool(views, there, source, k=k)[1].tolist() == [[True, False, True, True], [False, False, False, True]]


@pytest.mark.parametrize(("vector", "rank_by"), SETTINGS)
def test_an_empty_consensus_selects_nothing_and_keeps_the_vector(vector, rank_by):
    views = torch.tensor([[[1.0, -2.0, 0.0], [-3.0, 4.0, 0.0]]])
    there = torch.tensor([[True, True]])
    pooled, mask = pool(views, there, torch.tensor([1]), k=2, vector=vector, rank_by=rank_by)
    assert not mask.any()
    assert pooled.tolist() == ([[-1.0, 1.0, 0.0]] if vector == "mean" else [[-3.0, 4.0, 0.0]])


def test_a_text_with_no_view_has_a_zero_vector_and_no_set():
    views = torch.full((1, 2, 3), torch.nan)
    pooled, mask = pool(views, torch.tensor([[False, False]]), torch.tensor([-1]), k=2)
    assert pooled.tolist() == [[0.0, 0.0, 0.0]] and not mask.any()


def test_ranking_by_the_mean_and_by_the_vector_differ_where_the_source_disagrees():
    views = torch.tensor([[[1.0, 5.0, 3.0, 9.0], [9.0, 2.0, 4.5, -1.0]]])
    there, source = torch.tensor([[True, True]]), torch.tensor([0])
    # Means 5, 3.5, 3.75; source values 1, 5, 3; the last dimension is in no consensus.
    by_mean = pool(views, there, source, k=1, vector="source", rank_by="mean")
    by_vector = pool(views, there, source, k=1, vector="source", rank_by="vector")
    assert by_mean[1].tolist() == [[True, False, False, False]]
    assert by_vector[1].tolist() == [[False, True, False, False]]
    assert by_mean[0].tolist() == by_vector[0].tolist() == [[1.0, 5.0, 3.0, 9.0]]
    assert pool(views, there, source, k=2, vector="source", rank_by="mean")[1].tolist() == [[True, False, True, False]]
    assert pool(views, there, source, k=2, vector="source", rank_by="vector")[1].tolist() == [
        [False, True, True, False]
    ]


def test_ranking_by_the_vector_is_ranking_by_the_mean_where_the_vector_is_the_mean():
    views, view_mask, source_view = random_views(seed=5)
    by_mean = pool(views, view_mask, source_view, k=6, vector="mean", rank_by="mean")
    by_vector = pool(views, view_mask, source_view, k=6, vector="mean", rank_by="vector")
    assert by_mean[0].equal(by_vector[0]) and by_mean[1].equal(by_vector[1])


def test_a_missing_source_view_is_an_error_for_the_source_vector_alone():
    views, view_mask, source_view = random_views(seed=6)
    source_view[[2, 5]] = -1
    with pytest.raises(ValueError, match="vector='source'.*2 of 16 texts"):
        pool(views, view_mask, source_view, k=6, vector="source")
    vectors, masks = pool(views, view_mask, source_view, k=6, vector="mean")
    check_against_naive(vectors, masks, views, view_mask, source_view, 6, "mean", "mean")


def test_pooling_does_not_modify_its_inputs():
    given = random_views(seed=7)
    kept = [value.clone() for value in given]
    for vector, rank_by in SETTINGS:
        pooled, _ = pool(*given, k=6, vector=vector, rank_by=rank_by)
        pooled.zero_()
    assert all(value.equal(copy) for value, copy in zip(given, kept, strict=True))


@pytest.mark.parametrize("k", [1, 5, 30, 99])
def test_selection_equals_a_sort_also_of_negative_scores(k):
    generator = torch.Generator().manual_seed(8)
    scores = torch.randn(12, 30, generator=generator) - 1
    allowed = torch.rand(12, 30, generator=generator) < torch.linspace(0, 1, 12)[:, None]
    chosen = select(scores, allowed, k)
    assert chosen.tolist() == [naive_select(scores[i].tolist(), allowed[i].tolist(), k) for i in range(12)]


def test_ties_never_select_more_than_k():
    chosen = select(torch.ones(2, 6), torch.tensor([[True] * 6, [True, False] * 3]), 4)
    assert chosen.sum(-1).tolist() == [4, 3] and not chosen[1, 1::2].any()


# The module


@pytest.mark.parametrize(("vector", "rank_by"), SETTINGS)
def test_the_module_adds_vector_mask_and_the_packed_row(vector, rank_by):
    views, view_mask, source_view = random_views(seed=9)
    module = ConsensusPooling(k=5, vector=vector, rank_by=rank_by)
    features = module({"view_vectors": views, "view_mask": view_mask, "source_view": source_view})
    check_against_naive(features["vector"], features["mask"], views, view_mask, source_view, 5, vector, rank_by)
    vectors, masks = unpack(features["sentence_embedding"])
    assert vectors.equal(features["vector"]) and masks.equal(features["mask"])


@pytest.mark.parametrize(("vector", "rank_by"), SETTINGS)
def test_a_model_pools_what_its_views_hold(base, vector, rank_by):
    model = dysem_st.build(base(), languages=["en", "fr", "ru"], k=4, vector=vector, rank_by=rank_by, missing="drop")
    texts = [
        {"en": "a man is playing", "fr": "un homme joue", "ru": "слово"},
        {"en": "a woman eats an apple"},
        {"en": "one word", "ru": "одним словом"},
        {"en": "the guitar", "fr": "la guitare"},
    ]
    found = model.encode(texts, output_value=None)
    stacked = {key: torch.stack([features[key] for features in found]) for key in found[0]}
    assert stacked["view_mask"].sum(-1).tolist() == [3, 1, 2, 2]
    check_against_naive(
        *(stacked[key] for key in ("vector", "mask", "view_vectors", "view_mask", "source_view")), 4, vector, rank_by
    )
    assert stacked["mask"].sum(-1).max() == 4  # k bites for some text
    rows = model.encode(texts, convert_to_tensor=True)
    assert unpack(rows)[0].equal(stacked["vector"]) and unpack(rows)[1].equal(stacked["mask"])


def test_the_source_vector_is_the_vector_of_the_source_text(base):
    views = [("fr", "en"), ("en", "en")]
    model = dysem_st.build(base(), views=views, k=4, vector="source")
    found = model.encode([{"en": "a man", "fr": "un homme"}] * 2, output_value=None, language=["en", "fr"])
    assert found[0]["vector"].equal(found[0]["view_vectors"][1])
    assert found[1]["vector"].equal(found[1]["view_vectors"][0])


def test_a_model_without_the_source_language_refuses_the_source_vector(base):
    text = {"en": "a man is playing", "fr": "un homme joue"}
    model = dysem_st.build(base(), languages=["fr"], k=4, vector="source")
    with pytest.raises(ValueError, match="vector='source'.*1 of 1 texts"):
        model.encode([text])
    assert dysem_st.build(base(), languages=["fr"], k=4, vector="mean").encode([text]).shape == (1, 64)


@pytest.mark.parametrize("k", [0, -1])
def test_a_k_below_one_is_refused(k):
    with pytest.raises(ValueError, match=f"k={k}"):
        ConsensusPooling(k=k)


@pytest.mark.parametrize("k", [True, 1.5, 4.0, "8", None])
def test_a_k_that_is_no_integer_is_refused(k):
    with pytest.raises(TypeError, match="k is a number"):
        ConsensusPooling(k=k)


def test_choices_that_do_not_exist_are_refused_with_those_that_do():
    with pytest.raises(ValueError, match="vector='median'.*mean, source"):
        ConsensusPooling(vector="median")
    with pytest.raises(ValueError, match="rank_by='source'.*mean, vector"):
        ConsensusPooling(rank_by="source")


def test_the_settings_survive_saving(tmp_path):
    ConsensusPooling(k=77, vector="source", rank_by="vector").save(str(tmp_path))
    loaded = ConsensusPooling.load(str(tmp_path))
    assert (loaded.k, loaded.vector, loaded.rank_by) == (77, "source", "vector")
    assert loaded.get_embedding_dimension() is None
