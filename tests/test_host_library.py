"""The joint similarity inside sentence-transformers' utilities and evaluators, and inside mteb."""

from __future__ import annotations

import itertools
import json

import mteb
import numpy as np
import pytest
import torch
from datasets import Dataset, DatasetDict
from mteb.abstasks import AbsTaskSTS
from mteb.abstasks.task_metadata import TaskMetadata
from scipy.stats import spearmanr
from sentence_transformers import SentenceTransformer, util
from sentence_transformers.sentence_transformer.evaluation import InformationRetrievalEvaluator

import dysem_st

VIEWS = [("source", "eng_Latn"), ("source", "fra_Latn")]
SUBJECTS = ["A man", "A woman", "The dog", "Two children", "A bird", "Nobody"]
DOINGS = ["plays the guitar", "eats an apple", "runs across a field", "sits at a table", "sings"]
SENTENCES = [f"{subject} {doing}." for subject, doing in itertools.product(SUBJECTS, DOINGS)]


@pytest.fixture(scope="module")
def folder(base, tmp_path_factory):
    path = tmp_path_factory.mktemp("saved") / "model"
    dysem_st.build(base("llama"), views=VIEWS, k=6, device="cpu").save(str(path))
    return str(path)


@pytest.fixture(scope="module")
def model(folder):
    return SentenceTransformer(folder, trust_remote_code=True, device="cpu")


def naive_scores(model, first, second):
    """The joint cosine, pair by pair in float64, from the vector and the set of each text."""
    sides = [
        [(out["vector"].double().numpy(), out["mask"].numpy()) for out in model.encode(texts, output_value=None)]
        for texts in (first, second)
    ]
    scores = np.zeros((len(first), len(second)))
    for i, (v, s) in enumerate(sides[0]):
        for j, (w, t) in enumerate(sides[1]):
            union = s | t
            norms = np.linalg.norm(v[union]) * np.linalg.norm(w[union])
            scores[i, j] = v[union] @ w[union] / norms if norms else 0.0
    return scores


def test_the_joint_cosine_differs_from_plain_cosine_here(model):
    rows = model.encode(SENTENCES)
    assert np.abs(util.cos_sim(rows, rows).numpy() - naive_scores(model, SENTENCES, SENTENCES)).max() > 0.05


@pytest.mark.parametrize("chunk", [3, 1000])
def test_semantic_search_with_the_models_similarity_equals_a_naive_search(model, chunk):
    queries = SENTENCES[::7]
    expected = naive_scores(model, queries, SENTENCES)
    found = util.semantic_search(
        model.encode(queries, convert_to_tensor=True),
        model.encode(SENTENCES, convert_to_tensor=True),
        top_k=5,
        query_chunk_size=chunk,
        corpus_chunk_size=chunk + 4,
        score_function=model.similarity,
    )
    for row, hits in zip(expected, found, strict=True):
        assert len(hits) == 5
        np.testing.assert_allclose([hit["score"] for hit in hits], np.sort(row)[::-1][:5], atol=1e-5)
        np.testing.assert_allclose([row[hit["corpus_id"]] for hit in hits], [hit["score"] for hit in hits], atol=1e-5)


@pytest.mark.parametrize("chunk", [7, 1000])
def test_paraphrase_mining_with_the_models_similarity_equals_all_pairs_sorted(model, chunk):
    expected = naive_scores(model, SENTENCES, SENTENCES)
    found = util.paraphrase_mining(
        model, SENTENCES, query_chunk_size=chunk, corpus_chunk_size=chunk + 2, score_function=model.similarity
    )
    pairs = list(itertools.combinations(range(len(SENTENCES)), 2))
    assert sorted((i, j) for _, i, j in found) == pairs
    np.testing.assert_allclose([score for score, _, _ in found], [expected[i, j] for _, i, j in found], atol=1e-5)
    np.testing.assert_allclose(
        [score for score, _, _ in found], sorted((expected[p] for p in pairs), reverse=True), atol=1e-5
    )


def retrieval_task():
    queries = {f"q{i}": f"{subject} is here." for i, subject in enumerate(SUBJECTS)}
    corpus = {f"d{j}": sentence for j, sentence in enumerate(SENTENCES)}
    relevant = {f"q{i}": {f"d{j}" for j in range(5 * i, 5 * i + 5)} for i in range(len(SUBJECTS))}
    return queries, corpus, relevant


def naive_retrieval(scores, relevant, cutoff=10):
    reciprocal, precision = [], []
    for i in range(len(scores)):
        ranked = np.argsort(-scores[i], kind="stable")[:cutoff]
        hits = [f"d{j}" in relevant[f"q{i}"] for j in ranked]
        reciprocal.append(1 / (hits.index(True) + 1) if True in hits else 0.0)
        precision.append(np.mean(hits))
    return np.mean(reciprocal), np.mean(precision)


@pytest.mark.parametrize("functions", ["the model's own", "given"])
def test_the_retrieval_evaluator_scores_by_the_joint_similarity(model, tmp_path, functions):
    queries, corpus, relevant = retrieval_task()
    given = {"joint": model.similarity} if functions == "given" else None
    name = "joint" if functions == "given" else "joint_cosine"
    evaluator = InformationRetrievalEvaluator(
        queries, corpus, relevant, score_functions=given, corpus_chunk_size=11, mrr_at_k=[10],
        precision_recall_at_k=[10], write_csv=True,
    )  # fmt: skip
    results = evaluator(model, output_path=str(tmp_path))
    reciprocal, precision = naive_retrieval(
        naive_scores(model, list(queries.values()), list(corpus.values())), relevant
    )
    assert results[f"{name}_mrr@10"] == pytest.approx(reciprocal)
    assert results[f"{name}_precision@10"] == pytest.approx(precision)
    assert evaluator.primary_metric == f"{name}_ndcg@10"
    assert list(tmp_path.glob("*.csv"))


# mteb


class LocalSTS(AbsTaskSTS):
    """Thirty-odd pairs of sentences with made-up, seeded gold scores."""

    metadata = TaskMetadata(
        name="LocalSTS",
        description="Pairs of short sentences made in memory.",
        reference=None,
        dataset={"path": "local/sts", "revision": "1"},
        type="STS",
        category="t2t",
        modalities=["text"],
        eval_splits=["test"],
        eval_langs=["eng-Latn"],
        main_score="spearman",
        date=("2020-01-01", "2020-12-31"),
        domains=["Written"],
        task_subtypes=[],
        license="mit",
        annotations_creators="derived",
        dialect=[],
        sample_creation="created",
        bibtex_citation="",
    )

    def load_data(self, **kwargs):
        if not self.data_loaded:
            first, second, gold = pairs()
            rows = {"sentence1": first, "sentence2": second, "score": gold}
            self.dataset = DatasetDict({"test": Dataset.from_dict(rows)})
            self.data_loaded = True


def pairs():
    generator = np.random.default_rng(0)
    order = generator.permutation(len(SENTENCES))
    second = [SENTENCES[i] for i in order]
    overlap = [len(set(one.split()) & set(two.split())) for one, two in zip(SENTENCES, second, strict=True)]
    return SENTENCES, second, [float(count + generator.uniform(0, 0.5)) for count in overlap]


def correlation(scores):
    return spearmanr(pairs()[2], scores).statistic


@pytest.fixture(scope="module")
def mteb_scores(model):
    result = mteb.evaluate(model, [LocalSTS()], cache=None, co2_tracker=False, show_progress_bar=False)
    (task,) = result.task_results
    (scores,) = task.scores["test"]
    return scores


def test_mteb_without_a_wrapper_reports_the_joint_cosine_as_spearman(model, mteb_scores):
    first, second, _ = pairs()
    joint = dysem_st.pairwise_joint_cosine(model.encode(first), model.encode(second))
    assert mteb_scores["spearman"] == pytest.approx(correlation(joint), abs=1e-6)
    naive = np.diagonal(naive_scores(model, first, second))
    assert mteb_scores["spearman"] == pytest.approx(correlation(naive), abs=1e-3)
    assert mteb_scores["main_score"] == mteb_scores["spearman"]


def test_mtebs_cosine_spearman_is_that_of_the_dense_vectors(model, mteb_scores):
    first, second, _ = pairs()
    vectors = [dysem_st.unpack(model.encode(texts))[0] for texts in (first, second)]
    dense = correlation(torch.cosine_similarity(*vectors))
    assert mteb_scores["cosine_spearman"] == pytest.approx(dense, abs=1e-3)
    assert abs(mteb_scores["spearman"] - mteb_scores["cosine_spearman"]) > 1e-3


def test_mteb_keeps_and_rereads_its_results(model, tmp_path, mteb_scores):
    cache = mteb.ResultCache(cache_path=tmp_path)
    options = {"cache": cache, "co2_tracker": False, "show_progress_bar": False}
    mteb.evaluate(model, [LocalSTS()], **options)
    files = [json.loads(path.read_text()) for path in tmp_path.rglob("LocalSTS.json")]
    assert [file["scores"]["test"][0]["spearman"] for file in files] == [
        pytest.approx(mteb_scores["spearman"], abs=1e-6)
    ]
    again = mteb.evaluate(model, [LocalSTS()], overwrite_strategy="only-cache", **options)
    assert again.task_results[0].get_score() == pytest.approx(mteb_scores["spearman"], abs=1e-6)


def test_mteb_takes_encodes_own_options(model, mteb_scores):
    result = mteb.evaluate(
        model, [LocalSTS()], cache=None, co2_tracker=False, show_progress_bar=False,
        encode_kwargs={"batch_size": 3, "normalize_embeddings": True},
    )  # fmt: skip
    assert result.task_results[0].scores["test"][0]["spearman"] == pytest.approx(mteb_scores["spearman"], abs=1e-3)
