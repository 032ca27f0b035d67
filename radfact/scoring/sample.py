"""One sample: what the judge is asked about it, and the figures that follow from the answers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from radfact.errors import Failure
from radfact.judges.protocol import EntailmentQuery, Status, Verdict
from radfact.records import Box, Mask, Sentence, normalised_text
from radfact.scoring.regions import Compat, spatially_entailed
from radfact.statistics.bootstrap import harmonic_mean

OnFailure = Literal["drop", "not-entailed", "stop"]
Side = Literal["candidate", "reference"]
Spatial = Literal["entailed", "not_entailed", "no_boxes"]
Answers = Mapping[EntailmentQuery, Verdict | Failure]

PARTS: Mapping[Side, str] = {"candidate": "precision", "reference": "recall"}
KINDS = ("logical", "grounding", "spatial")
F1_PARTS = {f"{kind}_f1": (f"{kind}_precision", f"{kind}_recall") for kind in KINDS}
FIGURES = tuple(f"{kind}_{part}" for kind in KINDS for part in ("precision", "recall", "f1"))


@dataclass(frozen=True, slots=True)
class SentenceScore:
    """One sentence as a hypothesis: what the judge said of it given the other report, and where it is seen.

    `status` and `spatial` are None where the judge gave no valid answer; `evidence` indexes the other report;
    `prior_boxes` lie on the prior image and are not scored.
    """

    sample_id: str
    side: Side
    index: int
    text: str
    boxes: tuple[Box, ...] | None
    masks: tuple[Mask, ...] | None
    prior_boxes: tuple[Box, ...] | None
    status: Status | None
    evidence: tuple[int, ...]
    spatial: Spatial | None
    why: str | None


@dataclass(frozen=True, slots=True)
class SampleScore:
    """One sample: its figures (NaN = no value), its numbers of sentences, and why it was left out, if it was.

    `reports` is the digest of both reports as they came; None where there was no candidate.
    """

    sample_id: str
    figures: Mapping[str, float]
    counts: Mapping[str, int]
    failure: str | None = None
    reports: str | None = None

    @property
    def judged(self) -> bool:
        """Whether there were two reports to judge; as published, replicates are drawn from such samples alone."""
        return self.failure is None or self.counts["failed_sentences"] > 0


@dataclass(frozen=True, slots=True)
class Rules:
    """How answers become figures; the fields are the options of `radfact.scoring.radfact.RadFact`."""

    compat: Compat = "paper"
    threshold: float = 0.5
    on_failure: OnFailure = "drop"


@dataclass(frozen=True, slots=True)
class Sample:
    """The sentences of one pair of reports, and the digest of these `reports` as they came.

    One that has a `failure` is not judged and has no figures.
    """

    sample_id: str
    candidate: Sequence[Sentence] = ()
    reference: Sequence[Sentence] = ()
    failure: str | None = None
    reports: str | None = None

    def direction(self, side: Side) -> tuple[Sequence[Sentence], Sequence[Sentence]]:
        """(hypotheses, premises) of the side whose sentences are tested."""
        return (self.candidate, self.reference) if side == "candidate" else (self.reference, self.candidate)

    def questions(self, side: Side) -> list[EntailmentQuery]:
        """One question a hypothesis; a sentence that says the same as an earlier one asks the earlier one's question.

        Nothing follows from an empty report, so then there is nothing to ask.
        """
        hypotheses, premises = self.direction(side)
        if not premises or self.failure is not None:
            return []
        texts = tuple(premise.text for premise in premises)
        first: dict[str, str] = {}
        return [EntailmentQuery(texts, first.setdefault(normalised_text(one.text), one.text)) for one in hypotheses]

    def score(self, answers: Answers, rules: Rules) -> tuple[SampleScore, list[SentenceScore]]:
        """The figures of this sample (paper 004, appendix C), and those of its sentences that they were counted from.

        Args:
            answers: to all `questions` of both sides.
            rules: the geometry, and what becomes of a failed answer.
        """
        rows: list[SentenceScore] = []
        counts: dict[str, int] = {}
        figures: dict[str, float] = {}
        failures: list[Failure] = []
        for side, part in PARTS.items():
            replies = self._replies(side, answers)
            failures += [reply for reply in replies if isinstance(reply, Failure)]
            of_side = self._score_side(side, replies, rules)
            rows += of_side
            located = sum(row.spatial != "no_boxes" for row in of_side)
            counts |= {f"{side}_sentences": len(of_side), f"{side}_sentences_with_boxes": located}
            figures |= {f"{kind}_{part}": value for kind, value in _fractions(of_side).items()}
        failure = self.failure
        if failure is None and failures and rules.on_failure == "drop":
            failure = failures[0].reason
        figures |= {name: harmonic_mean(figures[p], figures[r]) for name, (p, r) in F1_PARTS.items()}
        figures = {name: figures[name] if failure is None else math.nan for name in FIGURES}
        counts["failed_sentences"] = len(failures) if self.failure is None else 0
        return SampleScore(self.sample_id, figures, counts, failure, self.reports), rows

    def _replies(self, side: Side, answers: Answers) -> list[Verdict | Failure]:
        hypotheses, premises = self.direction(side)
        if self.failure is not None:
            return [Failure(self.failure)] * len(hypotheses)
        if not premises:
            return [Verdict("not_entailment", why="the other report is empty")] * len(hypotheses)
        return [answers[question] for question in self.questions(side)]

    def _score_side(self, side: Side, replies: Sequence[Verdict | Failure], rules: Rules) -> list[SentenceScore]:
        hypotheses, premises = self.direction(side)
        occurrences = _occurrences(premises, rules.compat)
        rows = []
        for index, (one, reply) in enumerate(zip(hypotheses, replies, strict=True)):
            status: Status | None
            evidence: tuple[int, ...] = ()
            spatial: Spatial | None = "not_entailed" if one.has_region else "no_boxes"
            if isinstance(reply, Failure):
                why: str | None = reply.reason if self.failure is not None else f"no valid answer: {reply.reason}"
                status = "not_entailment" if rules.on_failure == "not-entailed" and self.failure is None else None
                if status is None and one.has_region:
                    spatial = None
            else:
                status, why = reply.status, reply.why
                evidence = tuple(dict.fromkeys(place for named in reply.evidence for place in occurrences[named]))
                if status == "entailment" and one.has_region:
                    shown = [premises[place] for place in evidence]
                    if spatially_entailed(one, shown, compat=rules.compat, threshold=rules.threshold):
                        spatial = "entailed"
            located = (one.boxes, one.masks, one.prior_boxes)
            rows.append(SentenceScore(self.sample_id, side, index, one.text, *located, status, evidence, spatial, why))
        return rows


def _occurrences(premises: Sequence[Sentence], compat: Compat) -> list[list[int]]:
    """For every premise the premises that evidence naming its text means.

    The published implementation looks evidence up by its normalised text, even where it is a premise letter by letter,
    and takes the first hit; `exact` takes all of them.
    """
    places: dict[str, list[int]] = {}
    keys = [normalised_text(premise.text) for premise in premises]
    for index, key in enumerate(keys):
        places.setdefault(key, []).append(index)
    return [places[key][:1] if compat == "paper" else places[key] for key in keys]


def _fractions(rows: Sequence[SentenceScore]) -> dict[str, float]:
    """Figures of one direction; a zero denominator gives NaN, never 0 and never 1."""
    entailed = [row for row in rows if row.status == "entailment"]
    located = sum(row.spatial != "no_boxes" for row in rows)
    both = sum(row.spatial == "entailed" for row in rows)
    return {
        "logical": _ratio(len(entailed), len(rows)),
        "grounding": _ratio(both, sum(row.spatial != "no_boxes" for row in entailed)),
        "spatial": _ratio(both, located),
    }


def _ratio(numerator: int, denominator: int) -> float:
    return numerator / denominator if denominator else math.nan
