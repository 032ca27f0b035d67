"""Several annotators of one sample: their annotations as one, and how far they agree."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Literal, TypeVar

from data.annotation.protocol import Annotation, PhraseAnnotation, Quality, Rejected, takes_regions
from radfact.records import Box, Mask, Sentence
from radfact.scoring.regions import covered_share

Combine = Literal["refuse", "first", "union"]
"""A sample with several annotations is kept out, or has the first one, or what all of them drew."""

SAME_BOX = 0.5
"""IoU from which two annotators' boxes are taken for the same one."""

_T = TypeVar("_T", bound=Hashable)


def combine(annotations: Sequence[Annotation], how: Combine) -> Annotation:
    """One annotation of several.

    The union is rejected where any annotator rejects the sample. A phrase has the label, progression and category that
    most give it (of equally many, the earlier annotator's), and all regions of those who label it as a finding; boxes
    of two annotators with an IoU of at least `SAME_BOX` become the box around both.

    Args:
        annotations: at least one, of the same phrases.
        how: what to make of several.

    Raises:
        Rejected: there are several and `how` is "refuse".
    """
    if len(annotations) == 1 or how == "first":
        return annotations[0]
    names = [annotation.annotator for annotation in annotations]
    if how == "refuse":
        raise Rejected(f"{len(names)} annotators ({', '.join(names)}): choose how to combine them")
    phrases = tuple(_united(said) for said in zip(*(one.phrases for one in annotations), strict=True))
    # A sample without a quality label is unfinished, one with an issue is rejected: both by the rules, later.
    worst = next((one for one in annotations if one.quality is not Quality.NO_ISSUE), annotations[0])
    return Annotation(" + ".join(names), phrases, worst.quality, worst.comment)


def _united(said: Sequence[PhraseAnnotation]) -> PhraseAnnotation:
    label = _most([one.label for one in said if one.label is not None])
    alike = [one for one in said if one.label == label]
    findings = [one for one in said if one.label is not None and one.label.is_finding]
    return PhraseAnnotation(
        label,
        _most([one.progression for one in alike if one.progression is not None]),
        _most([one.category for one in alike if one.category is not None]),
        bool(_most([one.only_in_other_view for one in alike])),
        _merged([one.boxes for one in findings]),
        tuple(dict.fromkeys(mask for one in findings for mask in one.masks)),
        _merged([one.prior_boxes for one in findings]),
        "; ".join(dict.fromkeys(one.comment for one in said if one.comment)) or None,
    )


def _most(values: Sequence[_T]) -> _T | None:
    """The most frequent value, of equally frequent ones the first."""
    return Counter(values).most_common(1)[0][0] if values else None


def _merged(drawn: Sequence[Sequence[Box]]) -> tuple[Box, ...]:
    """All annotators' boxes; the same one drawn twice is one."""
    merged: list[Box] = []
    for boxes in drawn:
        earlier = len(merged)
        for box in boxes:
            overlaps = [(iou((box,), (), (other,), ()), index) for index, other in enumerate(merged[:earlier])]
            best, index = max(overlaps, default=(0.0, 0))
            if best >= SAME_BOX:
                merged[index] = _around(merged[index], box)
            else:
                merged.append(box)
    return tuple(merged)


def _around(a: Box, b: Box) -> Box:
    return Box(
        x_min=min(a.x_min, b.x_min),
        y_min=min(a.y_min, b.y_min),
        x_max=max(a.x_max, b.x_max),
        y_max=max(a.y_max, b.y_max),
    )


def iou(boxes: Sequence[Box], masks: Sequence[Mask], other_boxes: Sequence[Box], other_masks: Sequence[Mask]) -> float:
    """Area of the intersection of two regions over that of their union; 0 where one of them is empty.

    Args:
        boxes, masks: the first region: all of them together.
        other_boxes, other_masks: the second one, on the same image.
    """
    if not (boxes or masks) or not (other_boxes or other_masks):
        return 0.0
    one = Sentence(text="one", boxes=tuple(boxes), masks=tuple(masks))
    other = Sentence(text="other", boxes=tuple(other_boxes), masks=tuple(other_masks))
    # With I the intersection, these are I / |one| and I / |other|, so the union is I (1 / own + 1 / others - 1).
    own, others = covered_share(one, [other], compat="exact"), covered_share(other, [one], compat="exact")
    return 1 / (1 / own + 1 / others - 1) if own > 0 and others > 0 else 0.0


def cohens_kappa(pairs: Sequence[tuple[Hashable, Hashable]]) -> float | None:
    """Agreement of two annotators beyond chance (Cohen, 1960); None without pairs, or where both always say the same.

    Args:
        pairs: what each said of the same things.
    """
    if not pairs:
        return None
    observed = sum(a == b for a, b in pairs) / len(pairs)
    first, second = Counter(a for a, _ in pairs), Counter(b for _, b in pairs)
    expected = sum(count * second[value] for value, count in first.items()) / len(pairs) ** 2
    return (observed - expected) / (1 - expected) if expected < 1 else None


@dataclass(frozen=True, slots=True)
class Agreement:
    """How far two annotators agree on the samples that both annotated.

    Attributes:
        annotators: the two.
        samples: how many both annotated.
        quality_agreement: share of these with the same sample-level label.
        phrases: how many phrases both labelled, of samples that both let pass.
        label_agreement, label_kappa: of the phrase labels A to F: share of equal ones, and Cohen's kappa.
        located: phrases for which both drew something on the current image.
        located_by_one: for which only one of them did.
        mean_iou: of the regions on the current image, over `located`.
        prior_located, prior_mean_iou: the same of the prior image.
    """

    annotators: tuple[str, str]
    samples: int
    quality_agreement: float | None
    phrases: int
    label_agreement: float | None
    label_kappa: float | None
    located: int
    located_by_one: int
    mean_iou: float | None
    prior_located: int
    prior_mean_iou: float | None


def agreement(samples: Sequence[Sequence[Annotation]]) -> list[Agreement]:
    """The agreement of every two annotators who have samples in common.

    Args:
        samples: the annotations of each sample.
    """
    together: dict[tuple[str, str], list[tuple[Annotation, Annotation]]] = {}
    for sample in samples:
        ordered = sorted(sample, key=lambda one: one.annotator)
        for a, b in combinations(ordered, 2):
            together.setdefault((a.annotator, b.annotator), []).append((a, b))
    return [_agreement(who, pairs) for who, pairs in sorted(together.items())]


def _agreement(who: tuple[str, str], pairs: Sequence[tuple[Annotation, Annotation]]) -> Agreement:
    passed = [pair for pair in pairs if all(one.quality is Quality.NO_ISSUE for one in pair)]
    phrases = [both for a, b in passed for both in zip(a.phrases, b.phrases, strict=True)]
    labels = [(a.label, b.label) for a, b in phrases if a.label is not None and b.label is not None]
    current = list(_regions(phrases, lambda one: (one.boxes, one.masks)))
    prior = list(_regions(phrases, lambda one: (one.prior_boxes, ())))
    overlaps = [iou(*a, *b) for a, b in current if any(a) and any(b)]
    prior_overlaps = [iou(*a, *b) for a, b in prior if any(a) and any(b)]
    return Agreement(
        annotators=who,
        samples=len(pairs),
        quality_agreement=_mean([float(a.quality == b.quality) for a, b in pairs]),
        phrases=len(labels),
        label_agreement=_mean([float(a == b) for a, b in labels]),
        label_kappa=cohens_kappa(labels),
        located=len(overlaps),
        located_by_one=sum(any(a) != any(b) for a, b in current),
        mean_iou=_mean(overlaps),
        prior_located=len(prior_overlaps),
        prior_mean_iou=_mean(prior_overlaps),
    )


_Region = tuple[Sequence[Box], Sequence[Mask]]


def _regions(
    phrases: Sequence[tuple[PhraseAnnotation, PhraseAnnotation]], regions_of: Callable[[PhraseAnnotation], _Region]
) -> Iterator[tuple[_Region, _Region]]:
    """What both drew for each phrase; regions that the protocol does not want count for nothing."""
    for a, b in phrases:
        yield regions_of(a) if takes_regions(a) else ((), ()), regions_of(b) if takes_regions(b) else ((), ())


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
