"""The annotation protocol (paper 004, appendix G): what annotators say of a sample, and what its rules make of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from radfact.records import Box, Mask, Sentence


class Quality(StrEnum):
    """Sample-level quality control; anything but `NO_ISSUE` rejects the sample."""

    NO_ISSUE = "No issue"
    IMAGE = "Image quality issue"
    PRIOR = "Wrong prior image"
    REPORT = "Report quality issue"
    PHRASES = "Findings list issue"
    UNACCEPTABLE = "Unacceptable image or report"


class PhraseLabel(StrEnum):
    """What a phrase is. Only findings take boxes."""

    FINDING = "A. Finding"
    TEMPORAL = "B. Finding - temporal"
    PLACED_NON_FINDING = "C. Non-finding with location"
    NON_FINDING = "D. Non-finding without location"
    OTHER = "E. Other, no location"
    ISSUE = "F. Issue with phrase"

    @property
    def is_finding(self) -> bool:
        """Whether the image is annotated for such a phrase."""
        return self in (PhraseLabel.FINDING, PhraseLabel.TEMPORAL)


class Progression(StrEnum):
    """How a temporal finding compares with the prior study."""

    CHANGED_OR_STABLE = "Improving / worsening / stable"
    NEW = "New"
    RESOLVED = "Resolved"


PLACED_DEVICE = "Correctly placed Support Devices"
MISPLACED_DEVICE = "Misplaced Support Devices"
CATEGORIES = (
    "Enlarged Cardiomediastinum",
    "Cardiomegaly",
    "Pleural Effusion",
    "Pleural Other",
    "Pneumothorax",
    "Lung Opacity",
    "Edema",
    "Consolidation",
    "Pneumonia",
    "Lesion",
    "Atelectasis",
    "Fracture",
    PLACED_DEVICE,
    MISPLACED_DEVICE,
)
"""The optional categories of findings: CheXpert's classes without "No Finding", which no finding can have."""


@dataclass(frozen=True, slots=True)
class PhraseAnnotation:
    """What one annotator says of one phrase.

    Attributes:
        label: None where it was not given.
        progression: of a temporal finding.
        category: one of the project's categories.
        only_in_other_view: the finding is visible only in a projection that is not shown.
        boxes: on the current image, shares of it.
        masks: lines and polygons on the current image.
        prior_boxes: on the prior image.
        comment: in the annotator's words.
    """

    label: PhraseLabel | None = None
    progression: Progression | None = None
    category: str | None = None
    only_in_other_view: bool = False
    boxes: tuple[Box, ...] = ()
    masks: tuple[Mask, ...] = ()
    prior_boxes: tuple[Box, ...] = ()
    comment: str | None = None

    @property
    def regions(self) -> int:
        """How many boxes and masks were drawn."""
        return len(self.boxes) + len(self.masks) + len(self.prior_boxes)


@dataclass(frozen=True, slots=True)
class Annotation:
    """What one annotator says of one sample: its quality, and of each phrase in order."""

    annotator: str
    phrases: tuple[PhraseAnnotation, ...]
    quality: Quality | None = None
    comment: str | None = None


class Rejected(ValueError):
    """A sample that the protocol keeps out; `str()` is the reason."""


@dataclass(frozen=True, slots=True)
class Grounded:
    """The sentences that the rules make of an annotated sample.

    Attributes:
        sentences: of the phrases that are kept, in order.
        categories: of these, None where there is none.
        dropped: (text, reason) of the phrases that are not.
        ignored: regions drawn where the protocol wants none.
    """

    sentences: tuple[Sentence, ...]
    categories: tuple[str | None, ...]
    dropped: tuple[tuple[str, str], ...]
    ignored: int


def apply_rules(texts: Sequence[str], annotation: Annotation, *, has_prior: bool) -> Grounded:
    """Make sentences of a sample's phrases by the protocol.

    Non-findings stay as sentences without regions; what is no statement about the image (E, F) goes, and so does a
    resolved finding without a prior image ("reject as phrase issue"). Findings visible only in another view and
    correctly placed devices have no regions; a temporal finding is annotated on the prior image too, where there is
    one, any other finding only on the current one. Regions drawn against these rules are ignored, because a platform
    may demand a box for every phrase.

    Args:
        texts: of the phrases.
        annotation: with as many phrases.
        has_prior: whether annotators were shown a prior image.

    Raises:
        Rejected: the quality control or an unfinished annotation keeps the sample out.
    """
    if annotation.quality is None:
        raise Rejected("the sample has no quality label")
    if annotation.quality is not Quality.NO_ISSUE:
        raise Rejected(": ".join(filter(None, (annotation.quality.value, annotation.comment))))
    sentences: list[Sentence] = []
    categories: list[str | None] = []
    dropped: list[tuple[str, str]] = []
    ignored = 0
    faults: list[str] = []
    for number, (text, phrase) in enumerate(zip(texts, annotation.phrases, strict=True), start=1):
        if fault := _fault(phrase, has_prior):
            faults.append(f"phrase {number} {fault}")
        elif reason := _drop(phrase, has_prior):
            dropped.append((text, reason))
            ignored += phrase.regions
        else:
            sentence = _sentence(text, phrase, has_prior)
            sentences.append(sentence)
            categories.append(phrase.category if _is_finding(phrase) else None)
            taken = sum(map(len, filter(None, (sentence.boxes, sentence.masks, sentence.prior_boxes))))
            ignored += phrase.regions - taken
    if faults:
        raise Rejected("; ".join(faults))
    if not sentences:
        raise Rejected("no phrase describes a finding or its absence")
    return Grounded(tuple(sentences), tuple(categories), tuple(dropped), ignored)


def takes_regions(phrase: PhraseAnnotation) -> bool:
    """Whether the protocol wants the image annotated for a phrase."""
    return _is_finding(phrase) and not phrase.only_in_other_view and phrase.category != PLACED_DEVICE


def _is_finding(phrase: PhraseAnnotation) -> bool:
    return phrase.label is not None and phrase.label.is_finding


def _drop(phrase: PhraseAnnotation, has_prior: bool) -> str | None:
    """Why a phrase is no sentence of the grounded report."""
    if phrase.label in (PhraseLabel.OTHER, PhraseLabel.ISSUE):
        return phrase.label.value
    if phrase.label is PhraseLabel.TEMPORAL and phrase.progression is Progression.RESOLVED and not has_prior:
        return f"{PhraseLabel.ISSUE.value}: a resolved finding without a prior image"
    return None


def _fault(phrase: PhraseAnnotation, has_prior: bool) -> str | None:
    """What an annotator has left undone."""
    if phrase.label is None:
        return "has no label"
    if not takes_regions(phrase) or _drop(phrase, has_prior):
        return None
    if not (phrase.boxes or phrase.masks):
        return "is a finding without a box on the current image"
    if phrase.label is PhraseLabel.TEMPORAL and has_prior and not phrase.prior_boxes:
        return "is a temporal finding without a box on the prior image"
    return None


def _sentence(text: str, phrase: PhraseAnnotation, has_prior: bool) -> Sentence:
    if not takes_regions(phrase):
        return Sentence(text=text)
    on_prior = phrase.label is PhraseLabel.TEMPORAL and has_prior
    return Sentence(
        text=text,
        boxes=phrase.boxes or None,
        masks=phrase.masks or None,
        prior_boxes=phrase.prior_boxes if on_prior else None,
    )
