"""Scores of drafts of phantom studies against the generator's labels; a finding is a (kind, side)."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from maira.data.manifest import check_has_samples
from maira.data.phantoms import read_label
from maira.data.study import Study
from maira.grounding.boxes import box_overlap
from radfact.errors import ErrorCode, InputError
from radfact.records import Box, Report
from radfact.statistics.bootstrap import Summary, to_summary

Finding = tuple[Any, str | None]


def evaluate_labels(
    drafts: Mapping[str, Report], studies: Sequence[Study], *, replicates: int = 500, seed: int = 42
) -> dict[str, Summary]:
    """Return precision, recall and F1 of findings (kind and side), and the mean IoU of matched findings' boxes."""
    check_has_samples(len(studies))
    table = np.array([_count(study, drafts) for study in studies], float)
    rng = np.random.default_rng(seed)
    replicate_sums = np.stack([table[rng.choice(len(table), len(table))].sum(0) for _ in range(replicates)])
    sums = table.sum(0)
    points, distributions = _ratios(sums[None]), _ratios(replicate_sums)
    _, predicted, reference, _, n_compared = map(int, sums)
    counts = {"precision": predicted, "recall": reference, "f1": reference, "mean_iou": n_compared}
    return {name: to_summary(float(points[name][0]), distributions[name], n) for name, n in counts.items()}


def _count(study: Study, drafts: Mapping[str, Report]) -> tuple[float, ...]:
    """Return the numbers of matched, predicted and reference findings, and the sum and the number of their IoUs."""
    if study.labels is None:
        message = f"sample '{study.sample_id}' has no labels; only phantoms have them"
        raise InputError(message, code=ErrorCode.MISSING_FIELD, field="labels")
    report = drafts.get(study.sample_id)
    if report is None:
        raise InputError(f"sample '{study.sample_id}' has no draft", code=ErrorCode.MISMATCH, field="sample_id")
    if isinstance(report, str):
        raise InputError(f"sample '{study.sample_id}': expected a grounded report, found a narrative", field="report")
    predicted, reference = Counter[Finding](), Counter[Finding]()
    # Findings of one kind and side (two nodules) share their boxes.
    predicted_boxes: dict[Finding, list[Box]] = {}
    reference_boxes: dict[Finding, list[Box]] = {}
    for sentence in report:
        if (finding := read_label(sentence.text)) is not None:
            predicted[finding] += 1
            predicted_boxes.setdefault(finding, []).extend(sentence.boxes or ())
    for label in study.labels:
        reference[label.kind, label.side] += 1
        reference_boxes.setdefault((label.kind, label.side), []).extend(label.boxes or ())
    matched = predicted & reference
    overlaps: list[float] = []
    for finding, count in matched.items():
        # A finding without a location on the radiograph has no pixel to overlap with; boxes without area have no IoU.
        iou = box_overlap(predicted_boxes[finding], located).iou if (located := reference_boxes[finding]) else 0.0
        overlaps += [] if math.isnan(iou) else [iou] * count
    return matched.total(), predicted.total(), reference.total(), sum(overlaps), len(overlaps)


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
    """Return the grounded report of the study with the most frequent findings: a baseline that ignores the image."""

    def findings(study: Study) -> tuple[Finding, ...]:
        return tuple(sorted(((label.kind, label.side) for label in study.labels or ()), key=str))

    labeled = [study for study in studies if study.labels is not None and study.grounded_findings]
    if not labeled:
        raise InputError("no study has labels and a grounded report", code=ErrorCode.MISSING_FIELD, field="labels")
    most_frequent = Counter(map(findings, labeled)).most_common(1)[0][0]
    study = next(study for study in labeled if findings(study) == most_frequent)
    return {"report": [s.model_dump(include={"text", "boxes"}) for s in study.grounded_findings or ()]}
