"""Annotated samples to grounded studies: rules applied, annotators combined, the rest listed with its reason."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from data.annotation.combine import Combine, combine
from data.annotation.label_studio import phrases_of
from data.annotation.protocol import Grounded, Rejected, apply_rules
from data.annotation.results import AnnotatedSample
from data.manifest import Failure
from data.study import Label, Study

STAGE = "annotation"


@dataclass
class GroundedStudies:
    """What came of annotated samples.

    Attributes:
        studies: with `grounded_findings`, in the manifest's order.
        failures: samples that are left out, and why.
        dropped: phrases that are no sentence of the grounded reports, by reason.
        ignored: regions drawn where the protocol wants none.
    """

    studies: list[Study] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    dropped: dict[str, int] = field(default_factory=dict)
    ignored: int = 0


def ground_studies(studies: Sequence[Study], samples: Sequence[AnnotatedSample], how: Combine) -> GroundedStudies:
    """Make grounded studies of annotations by the protocol (paper 004, appendix G).

    Samples that are not in the export were not given to annotators, and are no failures. A study's phrases have become
    its grounded report and go; its labels are the findings' categories where annotators gave them.

    Args:
        studies: those of the manifest that was exported.
        samples: their annotations.
        how: several annotators of one sample are combined.
    """
    by_id = {sample.sample_id: sample for sample in samples}
    result = GroundedStudies()
    for study in studies:
        if (sample := by_id.get(study.sample_id)) is None:
            continue
        try:
            grounded = _grounded(study, sample, how)
        except Rejected as error:
            result.failures.append(Failure(sample_id=study.sample_id, stage=STAGE, reason=str(error)))
            continue
        result.ignored += grounded.ignored
        for _, reason in grounded.dropped:
            result.dropped[reason] = result.dropped.get(reason, 0) + 1
        update = {"grounded_findings": list(grounded.sentences), "phrases": None, "labels": _labels(study, grounded)}
        result.studies.append(study.model_copy(update=update))
    return result


def _grounded(study: Study, sample: AnnotatedSample, how: Combine) -> Grounded:
    if sample.unusable is not None:
        raise Rejected(sample.unusable)
    if not sample.annotations:
        raise Rejected("not annotated")
    texts = [phrase.text for phrase in phrases_of(study) or ()]
    return apply_rules(texts, combine(sample.annotations, how), has_prior=study.prior_frontal is not None)


def _labels(study: Study, grounded: Grounded) -> list[Label] | None:
    pairs = zip(grounded.sentences, grounded.categories, strict=True)
    categorised = [Label(kind=kind, boxes=sentence.boxes) for sentence, kind in pairs if kind is not None]
    return categorised or study.labels
