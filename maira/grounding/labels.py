"""Drafts of phantom studies against the generator's own labels: no judge, no reference text.

A finding is a (kind, side). F1 counts findings of all studies together; boxes are compared for the findings that a
draft has right.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data.phantoms import read_label
from data.study import Study
from maira.grounding.boxes import overlap
from radfact.errors import InputError
from radfact.records import Box, Report, Sentence

Finding = tuple[str, str | None]


@dataclass(frozen=True)
class LabelScore:
    """A figure of the set with its 95 % bootstrap interval over studies; None = no value."""

    point: float | None
    low: float | None
    high: float | None
    n: int


def evaluate_labels(
    drafts: Mapping[str, Report], studies: Sequence[Study], *, replicates: int = 500, seed: int = 42
) -> dict[str, LabelScore]:
    """Precision, recall and F1 over findings (kind and side), and the mean IoU of matched findings' boxes.

    Args:
        drafts: sample id -> grounded report.
        studies: phantoms, with their labels.
        replicates, seed: of the bootstrap over studies.

    Raises:
        InputError: a study has no labels or no draft.
    """
    counts, overlaps = [], []
    for study in studies:
        if study.labels is None:
            raise InputError(
                f"sample '{study.sample_id}' has no labels; only phantoms are evaluated so", field="labels"
            )
        if study.sample_id not in drafts:
            raise InputError(f"sample '{study.sample_id}' has no draft", field="sample_id")
        report = drafts[study.sample_id]
        if isinstance(report, str):
            raise InputError(f"sample '{study.sample_id}' has a narrative; grounded drafts are needed", field="report")
        said = _findings_said(report)
        true = Counter[Finding]((label.kind, label.side) for label in study.labels)
        matched = Counter({finding: len(boxes) for finding, boxes in said.items()}) & true
        counts.append((matched.total(), sum(map(len, said.values())), true.total()))
        overlaps.append(_overlaps(said, study, matched))
    return _figures(np.array(counts, float), overlaps, replicates, seed)


def _findings_said(sentences: Sequence[Sentence]) -> dict[Finding, list[tuple[Box, ...]]]:
    said: dict[Finding, list[tuple[Box, ...]]] = {}
    for sentence in sentences:
        if (finding := read_label(sentence.text)) is not None:
            said.setdefault(finding, []).append(sentence.boxes or ())
    return said


def _overlaps(said: Mapping[Finding, list[tuple[Box, ...]]], study: Study, matched: Counter[Finding]) -> list[float]:
    """IoU of each matched finding; findings of one kind and side (two nodules) share their boxes."""
    values = []
    for finding, times in matched.items():
        boxes = list(chain.from_iterable(said[finding]))
        true = [b for label in study.labels or () if (label.kind, label.side) == finding for b in label.boxes or ()]
        iou = overlap(boxes, true).iou
        # A finding of no place on the radiograph has nothing that a box could meet.
        values += [0.0 if np.isnan(iou) else iou] * times
    return values


def _figures(
    counts: NDArray[np.float64], overlaps: list[list[float]], replicates: int, seed: int
) -> dict[str, LabelScore]:
    sums = np.array([[sum(values), len(values)] for values in overlaps], float).reshape(-1, 2)
    table = np.hstack([counts, sums])
    rng = np.random.default_rng(seed)
    drawn = np.stack([table[rng.choice(len(table), len(table))].sum(0) for _ in range(replicates)])
    point, spread = _ratios(table.sum(0)[None]), _ratios(drawn)
    totals = {"precision": counts[:, 1].sum(), "recall": counts[:, 2].sum(), "mean_iou": sums[:, 1].sum()}
    figures = {}
    for name, values in spread.items():
        known = values[np.isfinite(values)]
        low, high = np.quantile(known, (0.025, 0.975)) if len(known) else (None, None)
        at = float(point[name][0])
        n = int(totals.get(name, totals["recall"]))
        figures[name] = LabelScore(
            None if np.isnan(at) else at, None if low is None else float(low), None if high is None else float(high), n
        )
    return figures


def _ratios(sums: NDArray[np.float64]) -> dict[str, NDArray[np.float64]]:
    matched, said, true, overlap, compared = sums.T
    with np.errstate(invalid="ignore", divide="ignore"):
        return {
            "precision": matched / said,
            "recall": matched / true,
            "f1": 2 * matched / (said + true),
            "mean_iou": overlap / compared,
        }


def most_frequent_report(studies: Sequence[Study]) -> dict[str, Any]:
    """The grounded report of the study whose findings occur most often: what a model says that ignores the image.

    Raises:
        InputError: no study has labels and a grounded report.
    """
    known = [s for s in studies if s.labels is not None and s.grounded_findings]
    if not known:
        raise InputError("no study has labels and a grounded report", field="labels")

    def findings(study: Study) -> tuple[Finding, ...]:
        return tuple(sorted(((x.kind, x.side) for x in study.labels or ()), key=str))

    often = Counter(map(findings, known)).most_common(1)[0][0]
    study = next(s for s in known if findings(s) == often)
    return {"report": [s.model_dump(include={"text", "boxes"}) for s in study.grounded_findings or ()]}
