"""Combine the annotations of several annotators, make grounded studies of them, and measure agreement."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from statistics import multimode
from typing import Any, Literal, TypeVar

from maira.data.annotation.protocol import Annotation, PhraseAnnotation, Quality, Rejected, apply_rules
from maira.data.annotation.results import AnnotatedSample
from maira.data.annotation.tasks import phrases_of
from maira.data.manifest import Failure
from maira.data.study import Label, Study
from radfact.metrics.radfact.regions import covered_share
from radfact.records import Box, Mask, Sentence

Combine = Literal["skip", "first", "union"]
"""Treatment of a sample with several annotations: reject it, use the first, or unite all."""

SAME_BOX = 0.5
"""IoU from which boxes of two annotators are the same box."""

_T = TypeVar("_T", bound=Hashable)


def combine(annotations: Sequence[Annotation], how: Combine) -> Annotation:
    """Combine the annotations of one sample."""
    if len(annotations) == 1 or how == "first":
        return annotations[0]
    names = [annotation.annotator for annotation in annotations]
    if how == "skip":
        raise Rejected(f"{len(names)} annotators ({', '.join(names)}): choose how to combine them")
    phrases = tuple(map(_unite, zip(*(annotation.phrases for annotation in annotations), strict=True)))
    # Missing quality labels and quality issues are rejected by `apply_rules`.
    worst = next((item for item in annotations if item.quality is not Quality.NO_ISSUE), annotations[0])
    return Annotation(" + ".join(names), phrases, worst.quality, worst.comment)


def _unite(phrases: Sequence[PhraseAnnotation]) -> PhraseAnnotation:
    label = _most_frequent(phrase.label for phrase in phrases)
    agreeing = [phrase for phrase in phrases if phrase.label == label]
    findings = [phrase for phrase in phrases if phrase.is_finding]
    return PhraseAnnotation(
        label,
        _most_frequent(phrase.progression for phrase in agreeing),
        _most_frequent(phrase.category for phrase in agreeing),
        bool(_most_frequent(phrase.only_in_other_view for phrase in agreeing)),
        _merge(phrase.boxes for phrase in findings),
        tuple(dict.fromkeys(mask for phrase in findings for mask in phrase.masks)),
        _merge(phrase.prior_boxes for phrase in findings),
        "; ".join(dict.fromkeys(phrase.comment for phrase in phrases if phrase.comment)) or None,
    )


def _most_frequent(values: Iterable[_T | None]) -> _T | None:
    """Return the most frequent known value, the first in a tie."""
    return next(iter(multimode(value for value in values if value is not None)), None)


def _merge(boxes_by_annotator: Iterable[Sequence[Box]]) -> tuple[Box, ...]:
    """Return the boxes of all annotators, with one box instead of matching ones."""
    merged: list[Box] = []
    for boxes in boxes_by_annotator:
        earlier = len(merged)
        for box in boxes:
            overlaps = [(iou((box,), (), (known,), ()), index) for index, known in enumerate(merged[:earlier])]
            best, index = max(overlaps, default=(0.0, 0))
            if best >= SAME_BOX:
                a, b = merged[index], box
                low = {"x_min": min(a.x_min, b.x_min), "y_min": min(a.y_min, b.y_min)}
                merged[index] = Box(**low, x_max=max(a.x_max, b.x_max), y_max=max(a.y_max, b.y_max))
            else:
                merged.append(box)
    return tuple(merged)


def iou(boxes: Sequence[Box], masks: Sequence[Mask], other_boxes: Sequence[Box], other_masks: Sequence[Mask]) -> float:
    """Return the IoU of two regions; 0 if one of them is empty."""
    first = Sentence(text="first", boxes=tuple(boxes), masks=tuple(masks))
    second = Sentence(text="second", boxes=tuple(other_boxes), masks=tuple(other_masks))
    # With the intersection I, the shares are I / |first| and I / |second|, so the union is I (1 / a + 1 / b - 1). The
    # share of an empty region is NaN.
    a, b = covered_share(first, [second], compat="exact"), covered_share(second, [first], compat="exact")
    return 1 / (1 / a + 1 / b - 1) if a > 0 and b > 0 else 0.0


def cohens_kappa(pairs: Sequence[tuple[Hashable, Hashable]]) -> float | None:
    """Return Cohen's kappa of two annotators (Cohen, 1960); None without pairs, or if both use a single value."""
    if not pairs:
        return None
    observed = sum(a == b for a, b in pairs) / len(pairs)
    first, second = Counter(a for a, _ in pairs), Counter(b for _, b in pairs)
    expected = sum(count * second[value] for value, count in first.items()) / len(pairs) ** 2
    return (observed - expected) / (1 - expected) if expected < 1 else None


def agreement(samples: Sequence[Sequence[Annotation]]) -> list[dict[str, Any]]:
    """Return the agreement of each pair of annotators on the samples that both annotated."""
    by_name = [{annotation.annotator: annotation for annotation in sample} for sample in samples]
    couples = combinations(sorted(set().union(*by_name)), 2)
    common = {(a, b): [(sample[a], sample[b]) for sample in by_name if {a, b} <= sample.keys()] for a, b in couples}
    return [_agreement(annotators, pairs) for annotators, pairs in common.items() if pairs]


def _agreement(annotators: tuple[str, str], pairs: Sequence[tuple[Annotation, Annotation]]) -> dict[str, Any]:
    passed = [pair for pair in pairs if all(annotation.quality is Quality.NO_ISSUE for annotation in pair)]
    phrases = [both for a, b in passed for both in zip(a.phrases, b.phrases, strict=True)]
    labels = [(a.label, b.label) for a, b in phrases if a.label is not None and b.label is not None]
    allowed = [[p if p.takes_regions else PhraseAnnotation() for p in pair] for pair in phrases]
    located = [[(p.boxes, p.masks) for p in pair] for pair in allowed]
    overlaps = [iou(*a, *b) for a, b in located if any(a) and any(b)]
    prior_overlaps = [iou(a.prior_boxes, (), b.prior_boxes, ()) for a, b in allowed if a.prior_boxes and b.prior_boxes]
    return {
        "annotators": annotators,
        "samples": len(pairs),
        "quality_agreement": _mean([float(a.quality == b.quality) for a, b in pairs]),
        "phrases": len(labels),
        "label_agreement": _mean([float(a == b) for a, b in labels]),
        "label_kappa": cohens_kappa(labels),
        "located": len(overlaps),
        "located_by_one": sum(any(a) != any(b) for a, b in located),
        "mean_iou": _mean(overlaps),
        "prior_located": len(prior_overlaps),
        "prior_mean_iou": _mean(prior_overlaps),
    }


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


@dataclass
class GroundedStudies:
    """Studies with `grounded_findings` made of annotations, in the manifest's order, and the skipped samples."""

    studies: list[Study] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    dropped: Counter[str] = field(default_factory=Counter)  # phrases without a sentence in the report, by reason
    ignored: int = 0  # regions that the protocol does not allow


def ground_studies(studies: Sequence[Study], samples: Sequence[AnnotatedSample], how: Combine) -> GroundedStudies:
    """Make grounded studies of annotations by the protocol (MAIRA-2, appendix G)."""
    by_id = {sample.sample_id: sample for sample in samples}
    result = GroundedStudies()
    for study in studies:
        if (sample := by_id.get(study.sample_id)) is None:
            continue
        try:
            if sample.unusable is not None or not sample.annotations:
                raise Rejected(sample.unusable or "not annotated")
            texts = [phrase.text for phrase in phrases_of(study) or ()]
            combined = combine(sample.annotations, how)
            sentences, dropped, ignored = apply_rules(texts, combined, has_prior=study.prior_frontal is not None)
        except Rejected as error:
            result.failures.append(Failure(sample_id=study.sample_id, stage="annotation", reason=str(error)))
            continue
        result.ignored += ignored
        result.dropped.update(dropped)
        labels = [Label(kind=kind, boxes=sentence.boxes) for sentence, kind in sentences if kind is not None]
        report = {"grounded_findings": [sentence for sentence, _ in sentences], "phrases": None}
        result.studies.append(study.model_copy(update=report | {"labels": labels or study.labels}))
    return result
