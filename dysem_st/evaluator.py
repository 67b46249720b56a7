"""An evaluator that scores with a model's own similarity."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from scipy.stats import pearsonr, spearmanr
from sentence_transformers.base.evaluation import BaseEvaluator

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer


class SimilarityEvaluator(BaseEvaluator):
    """Correlates a model's own pairwise similarity with human scores.

    sentence-transformers' `EmbeddingSimilarityEvaluator` knows four similarity functions by name and none other; on a
    DySem model it fails, or scores plain cosine where it is told to. This one asks the model.

    Args:
        sentences1: The first texts, as `encode` takes them.
        sentences2: As many second texts.
        scores: A human score for each pair.
        name: Put in front of the metrics' names.
        batch_size: Texts a batch.
        show_progress_bar: Whether to show progress.
        write_csv: Whether to add a line to ``similarity_evaluation_<name>_results.csv`` where an output path is given.
        encode_kwargs: Further arguments of `encode`, such as ``language``.

    Raises:
        ValueError: The three lists have different lengths.
    """

    def __init__(
        self,
        sentences1: Sequence[str | Mapping[str, str]],
        sentences2: Sequence[str | Mapping[str, str]],
        scores: Sequence[float],
        *,
        name: str = "",
        batch_size: int = 32,
        show_progress_bar: bool = False,
        write_csv: bool = True,
        encode_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        if not len(sentences1) == len(sentences2) == len(scores):
            raise ValueError(
                f"as many first texts, second texts and scores are needed, got {len(sentences1)}, {len(sentences2)} "
                f"and {len(scores)}"
            )
        self.sentences1, self.sentences2, self.scores = list(sentences1), list(sentences2), list(scores)
        self.name = name
        self.batch_size = batch_size
        self.show_progress_bar = show_progress_bar
        self.encode_kwargs = dict(encode_kwargs or {})
        self.primary_metric = f"{name}_spearman" if name else "spearman"
        self.write_csv = write_csv
        self.csv_file = f"similarity_evaluation{'_' + name if name else ''}_results.csv"

    def __call__(
        self, model: SentenceTransformer, output_path: str | None = None, epoch: int = -1, steps: int = -1
    ) -> dict[str, float]:
        """Return ``pearson`` and ``spearman``, named after the evaluator; NaN where a side is constant."""
        encoded = [
            model.encode(
                texts,
                batch_size=self.batch_size,
                show_progress_bar=self.show_progress_bar,
                convert_to_tensor=True,
                **self.encode_kwargs,
            )
            for texts in (self.sentences1, self.sentences2)
        ]
        predicted = torch.as_tensor(model.similarity_pairwise(*encoded)).cpu().tolist()
        metrics = {
            "pearson": float(pearsonr(self.scores, predicted)[0]),
            "spearman": float(spearmanr(self.scores, predicted)[0]),
        }
        if output_path is not None and self.write_csv:
            path = Path(output_path) / self.csv_file
            path.parent.mkdir(parents=True, exist_ok=True)
            new = not path.exists()
            with path.open("a", encoding="utf-8", newline="") as file:
                writer = csv.writer(file)
                if new:
                    writer.writerow(["epoch", "steps", *metrics])
                writer.writerow([epoch, steps, *metrics.values()])
        metrics = self.prefix_name_to_metrics(metrics, self.name)
        self.store_metrics_in_model_card_data(model, metrics, epoch, steps)
        return metrics
