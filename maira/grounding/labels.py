"""Scores of drafts of phantom studies against the generator's labels, without judge and reference text.

A finding is a (kind, side). F1 counts the findings of all studies together; boxes are compared for matched findings.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from maira.data.manifest import check_has_samples
from maira.data.phantoms import read_label
from maira.data.study import Study
from maira.grounding.boxes import box_overlap
from radfact.errors import ErrorCode, InputError
from radfact.records import Box, Report, Sentence

Finding = tuple[str, str | None]


@dataclass(frozen=True)
class LabelScore:
    """A dataset-level score with its 95% bootstrap interval over studies; None where there is no value."""

    point: float | None
    low: float | None
    high: float | None
    n: int


def evaluate_labels(
    drafts: Mapping[str, Report], studies: Sequence[Study], *, replicates: int = 500, seed: int = 42
) -> dict[str, LabelScore]:
    """Return precision, recall and F1 of findings (kind and side), and the mean IoU of matched findings' boxes.

    Args:
        drafts: grounded reports by sample id.
        studies: phantoms with labels.
        replicates: number of bootstrap replicates over studies.
        seed: of the bootstrap.

    Raises:
        InputError: there are no studies, a study has no labels or no draft, or its draft is a narrative.
    """
    check_has_samples(len(studies))
    counts, overlaps = [], []
    for study in studies:
        if study.labels is None:
            raise InputError(
                f"sample '{study.sample_id}' has no labels; only phantoms have them",
                code=ErrorCode.MISSING_FIELD,
                field="labels",
            )
        if study.sample_id not in drafts:
            raise InputError(f"sample '{study.sample_id}' has no draft", code=ErrorCode.MISMATCH, field="sample_id")
        report = drafts[study.sample_id]
        if isinstance(report, str):
            raise InputError(
                f"sample '{study.sample_id}': expected a grounded report, found a narrative", field="report"
            )
        predicted = _predicted_findings(report)
        reference = Counter[Finding]((label.kind, label.side) for label in study.labels)
        matched = Counter({finding: len(boxes) for finding, boxes in predicted.items()}) & reference
        counts.append((matched.total(), sum(map(len, predicted.values())), reference.total()))
        overlaps.append(_overlaps(predicted, study, matched))
    return _scores(np.array(counts, float), overlaps, replicates, seed)


def _predicted_findings(sentences: Sequence[Sentence]) -> dict[Finding, list[tuple[Box, ...]]]:
    findings: dict[Finding, list[tuple[Box, ...]]] = {}
    for sentence in sentences:
        if (finding := read_label(sentence.text)) is not None:
            findings.setdefault(finding, []).append(sentence.boxes or ())
    return findings


def _overlaps(
    predicted: Mapping[Finding, list[tuple[Box, ...]]], study: Study, matched: Counter[Finding]
) -> list[float]:
    """Return the IoU of each matched finding; findings of one kind and side (two nodules) share their boxes."""
    values = []
    for finding, count in matched.items():
        boxes = list(chain.from_iterable(predicted[finding]))
        reference = [
            box for label in study.labels or () if (label.kind, label.side) == finding for box in label.boxes or ()
        ]
        iou = box_overlap(boxes, reference).iou
        # A finding without a location on the radiograph has no pixel to overlap with.
        values += [0.0 if np.isnan(iou) else iou] * count
    return values


def _scores(
    counts: NDArray[np.float64], overlaps: list[list[float]], replicates: int, seed: int
) -> dict[str, LabelScore]:
    """Score counts (studies, 3) of matched, predicted and reference findings, and the IoUs of each study."""
    sums = np.array([[sum(values), len(values)] for values in overlaps], float).reshape(-1, 2)
    table = np.hstack([counts, sums])
    rng = np.random.default_rng(seed)
    replicate_sums = np.stack([table[rng.choice(len(table), len(table))].sum(0) for _ in range(replicates)])
    points, distributions = _ratios(table.sum(0)[None]), _ratios(replicate_sums)
    totals = {"precision": counts[:, 1].sum(), "recall": counts[:, 2].sum(), "mean_iou": sums[:, 1].sum()}
    scores = {}
    for name, distribution in distributions.items():
        values = distribution[np.isfinite(distribution)]
        low, high = map(float, np.quantile(values, (0.025, 0.975))) if len(values) else (None, None)
        point = float(points[name][0])
        n = int(totals.get(name, totals["recall"]))
        scores[name] = LabelScore(None if np.isnan(point) else point, low, high, n)
    return scores


def _ratios(sums: NDArray[np.float64]) -> dict[str, NDArray[np.float64]]:
    matched, predicted, reference, iou_sum, n_compared = sums.T
    with np.errstate(invalid="ignore", divide="ignore"):
        return {
            "precision": matched / predicted,
            "recall": matched / reference,
            "f1": 2 * matched / (predicted + reference),
            "mean_iou": iou_sum / n_compared,
        }


def most_frequent_report(studies: Sequence[Study]) -> dict[str, Any]:
    """Return the grounded report of the study with the most frequent findings: a baseline that ignores the image.

    Raises:
        InputError: no study has labels and a grounded report.
    """
    labeled = [study for study in studies if study.labels is not None and study.grounded_findings]
    if not labeled:
        raise InputError("no study has labels and a grounded report", code=ErrorCode.MISSING_FIELD, field="labels")

    def findings(study: Study) -> tuple[Finding, ...]:
        return tuple(sorted(((label.kind, label.side) for label in study.labels or ()), key=str))

    most_frequent = Counter(map(findings, labeled)).most_common(1)[0][0]
    study = next(study for study in labeled if findings(study) == most_frequent)
    return {"report": [s.model_dump(include={"text", "boxes"}) for s in study.grounded_findings or ()]}
