"""The evaluator that asks the model for its own similarity."""

import math

import pytest
import torch
from scipy.stats import pearsonr, spearmanr
from sentence_transformers.sentence_transformer.evaluation import EmbeddingSimilarityEvaluator

import dysem_st
from dysem_st import SimilarityEvaluator

FIRST = ["a man eats", "a woman plays", "the guitar", "an apple"]
SECOND = ["a man eats an apple", "the apple", "the guitar", "a woman"]
GOLD = [4.0, 1.0, 5.0, 0.5]


@pytest.fixture(scope="module")
def model(base):
    return dysem_st.build(base("llama"), languages=["en", "de"], prompt="source-text", k=6)


def test_it_reports_the_correlation_of_the_joint_cosine(model, tmp_path):
    metrics = SimilarityEvaluator(FIRST, SECOND, GOLD, name="dev")(model, str(tmp_path))
    joint = dysem_st.pairwise_joint_cosine(model.encode(FIRST), model.encode(SECOND)).tolist()
    assert metrics["dev_spearman"] == pytest.approx(spearmanr(GOLD, joint)[0], abs=1e-6)
    assert metrics["dev_pearson"] == pytest.approx(pearsonr(GOLD, joint)[0], abs=1e-5)
    assert (tmp_path / "similarity_evaluation_dev_results.csv").read_text(encoding="utf-8").count("\n") == 2


def test_its_primary_metric_is_among_what_it_returns(model):
    evaluator = SimilarityEvaluator(FIRST, SECOND, GOLD, name="dev")
    assert evaluator.primary_metric in evaluator(model)


def test_a_constant_prediction_is_nan_with_a_warning(model):
    with pytest.warns(Warning, match="constant"):
        metrics = SimilarityEvaluator(["a"] * 4, ["a"] * 4, GOLD)(model)
    assert math.isnan(metrics["spearman"])


def test_lists_of_different_lengths_are_refused():
    with pytest.raises(ValueError, match="4, 4 and 3"):
        SimilarityEvaluator(FIRST, SECOND, GOLD[:3])


def test_the_stock_evaluator_scores_plain_cosine_where_told_and_nothing_else(model):
    vectors = [dysem_st.unpack(model.encode(texts))[0] for texts in (FIRST, SECOND)]
    plain = torch.cosine_similarity(*vectors).tolist()
    told = EmbeddingSimilarityEvaluator(FIRST, SECOND, GOLD, similarity_fn_names=["cosine"])(model)
    assert told["spearman_cosine"] == pytest.approx(spearmanr(GOLD, plain)[0], abs=1e-6)
    assert EmbeddingSimilarityEvaluator(FIRST, SECOND, GOLD)(model) == {}
