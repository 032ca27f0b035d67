"""The annotation protocol (MAIRA-2, appendix G): annotations of a sample, and the sentences its rules give."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from radfact.records import Box, Mask, Sentence


class Quality(StrEnum):
    """Sample-level quality label; any other than `NO_ISSUE` rejects the sample."""

    NO_ISSUE = "No issue"
    IMAGE = "Image quality issue"
    PRIOR = "Wrong prior image"
    REPORT = "Report quality issue"
    PHRASES = "Findings list issue"
    UNACCEPTABLE = "Unacceptable image or report"


class PhraseLabel(StrEnum):
    """Type of a phrase. Only findings have boxes."""

    FINDING = "A. Finding"
    TEMPORAL = "B. Finding - temporal"
    PLACED_NON_FINDING = "C. Non-finding with location"
    NON_FINDING = "D. Non-finding without location"
    OTHER = "E. Other, no location"
    ISSUE = "F. Issue with phrase"


class Progression(StrEnum):
    """Change of a temporal finding since the prior study."""

    CHANGED_OR_STABLE = "Improving / worsening / stable"
    NEW = "New"
    RESOLVED = "Resolved"


PLACED_DEVICE = "Correctly placed Support Devices"
"""Category of findings that have no regions."""


@dataclass(frozen=True, slots=True)
class PhraseAnnotation:
    """One annotator's annotation of one phrase; `boxes` and `masks` (lines, polygons) are on the current image."""

    label: PhraseLabel | None = None
    progression: Progression | None = None
    category: str | None = None
    only_in_other_view: bool = False
    boxes: tuple[Box, ...] = ()
    masks: tuple[Mask, ...] = ()
    prior_boxes: tuple[Box, ...] = ()
    comment: str | None = None

    @property
    def is_finding(self) -> bool:
        """Whether the phrase describes a finding."""
        return self.label in (PhraseLabel.FINDING, PhraseLabel.TEMPORAL)

    @property
    def takes_regions(self) -> bool:
        """Whether the phrase has regions by the protocol."""
        return self.is_finding and not self.only_in_other_view and self.category != PLACED_DEVICE


@dataclass(frozen=True, slots=True)
class Annotation:
    """One annotator's annotation of one sample: its quality, and its phrases in order."""

    annotator: str
    phrases: tuple[PhraseAnnotation, ...]
    quality: Quality | None = None
    comment: str | None = None


class Rejected(ValueError):
    """A sample that the protocol rejects, or whose annotation cannot be used; `str()` is the reason."""


def apply_rules(
    texts: Sequence[str], annotation: Annotation, *, has_prior: bool
) -> tuple[list[tuple[Sentence, str | None]], list[str], int]:
    """Make the sentences of a sample by the protocol; `has_prior` is whether annotators saw a prior image."""
    if annotation.quality is None:
        raise Rejected("the sample has no quality label")
    if annotation.quality is not Quality.NO_ISSUE:
        raise Rejected(": ".join(filter(None, (annotation.quality.value, annotation.comment))))
    sentences: list[tuple[Sentence, str | None]] = []
    dropped: list[str] = []
    defects: list[str] = []
    used = 0
    for number, (text, phrase) in enumerate(zip(texts, annotation.phrases, strict=True), start=1):
        on_prior = phrase.label is PhraseLabel.TEMPORAL and has_prior
        if phrase.label is None:
            defects.append(f"phrase {number} has no label")
        elif phrase.label in (PhraseLabel.OTHER, PhraseLabel.ISSUE):
            dropped.append(phrase.label.value)
        elif phrase.label is PhraseLabel.TEMPORAL and phrase.progression is Progression.RESOLVED and not has_prior:
            dropped.append(f"{PhraseLabel.ISSUE.value}: a resolved finding without a prior image")
        elif not phrase.takes_regions:
            sentences.append((Sentence(text=text), phrase.category if phrase.is_finding else None))
        elif not (phrase.boxes or phrase.masks):
            defects.append(f"phrase {number} is a finding without a box on the current image")
        elif on_prior and not phrase.prior_boxes:
            defects.append(f"phrase {number} is a temporal finding without a box on the prior image")
        else:
            prior_boxes = phrase.prior_boxes if on_prior else ()
            used += len(phrase.boxes) + len(phrase.masks) + len(prior_boxes)
            sentence = Sentence(text=text, boxes=phrase.boxes, masks=phrase.masks, prior_boxes=prior_boxes)
            sentences.append((sentence, phrase.category))
    if defects:
        raise Rejected("; ".join(defects))
    if not sentences:
        raise Rejected("no phrase describes a finding or its absence")
    drawn = sum(len(phrase.boxes) + len(phrase.masks) + len(phrase.prior_boxes) for phrase in annotation.phrases)
    return sentences, dropped, drawn - used
