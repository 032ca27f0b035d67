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

    @property
    def is_finding(self) -> bool:
        """Whether the phrase describes a finding."""
        return self in (PhraseLabel.FINDING, PhraseLabel.TEMPORAL)


class Progression(StrEnum):
    """Change of a temporal finding since the prior study."""

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
"""Optional categories of findings: CheXpert's classes without "No Finding"."""


@dataclass(frozen=True, slots=True)
class PhraseAnnotation:
    """One annotator's annotation of one phrase.

    Attributes:
        label: type of the phrase; None if missing.
        progression: change of a temporal finding.
        category: one of the project's categories.
        only_in_other_view: the finding is visible only in a view that is not shown.
        boxes: boxes on the current image, in shares.
        masks: lines and polygons on the current image.
        prior_boxes: boxes on the prior image, in shares.
        comment: free text.
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
        """Number of boxes and masks."""
        return len(self.boxes) + len(self.masks) + len(self.prior_boxes)


@dataclass(frozen=True, slots=True)
class Annotation:
    """One annotator's annotation of one sample: its quality, and its phrases in order."""

    annotator: str
    phrases: tuple[PhraseAnnotation, ...]
    quality: Quality | None = None
    comment: str | None = None


class Rejected(ValueError):
    """A sample that the protocol rejects; `str()` is the reason."""


@dataclass(frozen=True, slots=True)
class Grounded:
    """The grounded report of an annotated sample.

    Attributes:
        sentences: sentences in the order of their phrases.
        categories: category of each sentence, or None.
        dropped: (text, reason) of phrases that give no sentence.
        ignored: number of regions that the protocol does not allow.
    """

    sentences: tuple[Sentence, ...]
    categories: tuple[str | None, ...]
    dropped: tuple[tuple[str, str], ...]
    ignored: int


def apply_rules(texts: Sequence[str], annotation: Annotation, *, has_prior: bool) -> Grounded:
    """Make the sentences of a sample by the protocol.

    Non-findings become sentences without regions. Phrases that do not describe the image (E, F) and resolved findings
    without a prior image ("reject as phrase issue") are dropped. Findings visible only in another view and correctly
    placed devices have no regions. Temporal findings have boxes on the prior image too, if there is one. Other regions
    are ignored, because an annotation platform may require a box for every phrase.
    """
    if annotation.quality is None:
        raise Rejected("the sample has no quality label")
    if annotation.quality is not Quality.NO_ISSUE:
        raise Rejected(": ".join(filter(None, (annotation.quality.value, annotation.comment))))
    sentences: list[Sentence] = []
    categories: list[str | None] = []
    dropped: list[tuple[str, str]] = []
    ignored = 0
    defects: list[str] = []
    for number, (text, phrase) in enumerate(zip(texts, annotation.phrases, strict=True), start=1):
        if defect := _defect(phrase, has_prior):
            defects.append(f"phrase {number} {defect}")
        elif reason := _drop_reason(phrase, has_prior):
            dropped.append((text, reason))
            ignored += phrase.regions
        else:
            sentence = _sentence(text, phrase, has_prior)
            sentences.append(sentence)
            categories.append(phrase.category if _is_finding(phrase) else None)
            used = sum(map(len, filter(None, (sentence.boxes, sentence.masks, sentence.prior_boxes))))
            ignored += phrase.regions - used
    if defects:
        raise Rejected("; ".join(defects))
    if not sentences:
        raise Rejected("no phrase describes a finding or its absence")
    return Grounded(tuple(sentences), tuple(categories), tuple(dropped), ignored)


def takes_regions(phrase: PhraseAnnotation) -> bool:
    """Return whether a phrase has regions by the protocol."""
    return _is_finding(phrase) and not phrase.only_in_other_view and phrase.category != PLACED_DEVICE


def _is_finding(phrase: PhraseAnnotation) -> bool:
    return phrase.label is not None and phrase.label.is_finding


def _drop_reason(phrase: PhraseAnnotation, has_prior: bool) -> str | None:
    """Return why a phrase is not part of the grounded report, None if it is."""
    if phrase.label in (PhraseLabel.OTHER, PhraseLabel.ISSUE):
        return phrase.label.value
    if phrase.label is PhraseLabel.TEMPORAL and phrase.progression is Progression.RESOLVED and not has_prior:
        return f"{PhraseLabel.ISSUE.value}: a resolved finding without a prior image"
    return None


def _defect(phrase: PhraseAnnotation, has_prior: bool) -> str | None:
    """Return what is missing in an annotation, None if it is complete."""
    if phrase.label is None:
        return "has no label"
    if not takes_regions(phrase) or _drop_reason(phrase, has_prior):
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
