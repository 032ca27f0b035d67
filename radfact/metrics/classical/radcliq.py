"""RadCliQ: linear regressions from four metrics to the number of errors that radiologists counted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from radfact.languages import Language
from radfact.metrics.classical import bertscore, chexbert, radgraph
from radfact.metrics.classical.bleu import bleu_2
from radfact.metrics.protocol import Counts, Metric, MetricResult, PooledScore, Requirements, Score
from radfact.metrics.registry import entries
from radfact.metrics.resources import MetricResources
from radfact.records import TextPair
from radfact.statistics.bootstrap import CountsFunction


@dataclass(frozen=True, slots=True)
class Regression:
    """Linear regression on the z-scores of RadGraph-F1, BERTScore, CheXbert similarity and BLEU-2, in this order."""

    mean: tuple[float, float, float, float]
    scale: tuple[float, float, float, float]
    coefficients: tuple[float, float, float, float]
    intercept: float

    def predict(self, features: NDArray[np.float64]) -> NDArray[np.float64]:
        """Predict a score for each row of `features`, (samples, 4) -> (samples,)."""
        standardized = (features - self.mean) / self.scale
        scores: NDArray[np.float64] = standardized @ np.array(self.coefficients) + self.intercept
        return scores


V0 = Regression(
    mean=(0.5398376019082272, 0.6312549595000001, 0.7716797866672277, 0.4607372064809605),
    scale=(0.3018344440559102, 0.22466950746141123, 0.24750333805236252, 0.30336670936092264),
    coefficients=(-0.4796252644863446, -0.6762170542369337, -0.46366575161751994, 0.2165861905287535),
    intercept=1.641666666666666,
)
V1 = Regression(
    mean=(0.5379231241355762, 0.6175725628125001, 0.7647942121140658, 0.44738335396242174),
    scale=(0.3028258411486429, 0.22430938459304575, 0.2539439110169773, 0.2989271671041838),
    coefficients=(-0.37708368261038905, -0.3703000997448032, -0.25261621789593225, 4.315e-12),
    intercept=2.467e-10,
)
PARTS = ("radgraph_f1", "bertscore", "chexbert_similarity")


class RadCliQ(Metric):
    """RadCliQ, versions 0 and 1, with the constants of the published regressions."""

    name = "radcliq"
    measures = "errors that radiologists would count, predicted from four metrics"
    scores: Mapping[str, Score] = {
        "radcliq_v0": Score("lower", "version 0", "unbounded"),
        "radcliq_v1": Score("lower", "version 1", "unbounded"),
    }
    requirements = Requirements(
        packages=("nltk", "radgraph", "bert_score", "torch", "transformers"),
        weights={**radgraph.WEIGHTS, **bertscore.WEIGHTS, **chexbert.WEIGHTS},
    )
    cost = "that of RadGraph, BERTScore and CheXbert, once"
    for_chest_xrays = True
    language = Language.ENGLISH
    source = "MAIRA-2, appendix D.1"

    def __init__(self, radgraph: Metric, bertscore: Metric, chexbert: Metric) -> None:
        import nltk.translate.bleu_score  # noqa: F401

        self._parts = (radgraph, bertscore, chexbert)

    @classmethod
    def create(cls, resources: MetricResources) -> Self:  # type: ignore[override]
        """Create RadCliQ from the shared metrics of a run, so that each is computed once."""
        return cls(*(resources.metric(entries()[name]) for name in ("radgraph", "bertscore", "chexbert")))

    def score(self, pairs: Sequence[TextPair]) -> MetricResult:
        """Score pairs, with the four parts as details; NaN if a part is NaN."""
        columns = [part.score(pairs).values[name] for name, part in zip(PARTS, self._parts, strict=True)]
        columns.append([bleu_2(pair.candidate, pair.reference) for pair in pairs])
        features = np.array(columns, dtype=np.float64).T.reshape(len(pairs), 4)
        names = (*PARTS, "bleu_2_split_on_spaces")
        return MetricResult(
            {"radcliq_v0": V0.predict(features).tolist(), "radcliq_v1": V1.predict(features).tolist()},
            details=[
                {name: None if np.isnan(value) else float(value) for name, value in zip(names, row, strict=True)}
                for row in features
            ],
        )


def inverse_mean(counts: Counts) -> float:
    """Compute the inverse of the mean from (number of samples, sum of values); NaN for a mean of 0."""
    number, total = counts
    return float(number / total) if total else float("nan")


class InverseRadCliQ(RadCliQ):
    """RadCliQ, version 1, of a dataset as the inverse of the mean: higher is better."""

    variant = "inverse"
    difference = "dataset-level score only: 1 / mean of RadCliQ-v1"
    source = "RadEval 2.2, ReXrank"
    scores: Mapping[str, Score] = {
        "radcliq_v1.inverse": Score("higher", "inverse of the mean of version 1", "unbounded")
    }
    pooled: Mapping[str, CountsFunction] = {"radcliq_v1.inverse": inverse_mean}
    dataset_scores = frozenset(scores)

    def score(self, pairs: Sequence[TextPair]) -> MetricResult:
        """Score pairs; their own values are in the details."""
        result = super().score(pairs)
        values = np.array(result.values["radcliq_v1"], dtype=np.float64)
        counts = np.stack([np.where(np.isnan(values), np.nan, 1.0), values], axis=1)
        details = [
            {**detail, "radcliq_v1": None if np.isnan(value) else float(value)}
            for detail, value in zip(result.details, values, strict=True)
        ]
        return MetricResult({}, pooled={"radcliq_v1.inverse": PooledScore(counts, inverse_mean)}, details=details)
