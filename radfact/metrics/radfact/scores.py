"""RadFact of one pair of reports: its entailment queries, and the scores that follow from the verdicts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from pydantic import ConfigDict, NonNegativeInt

from radfact.errors import Failure
from radfact.judges.protocol import EntailmentQuery, Verdict
from radfact.metrics.radfact.options import ScoringOptions
from radfact.metrics.radfact.regions import has_area, spatially_entailed
from radfact.reader.facts import read_polarity
from radfact.records import Box, Mask, Record, Sentence, normalize_text
from radfact.statistics.bootstrap import harmonic_mean

Side = Literal["candidate", "reference"]
Verdicts = Mapping[EntailmentQuery, Verdict | Failure]

PARTS: Mapping[Side, str] = {"candidate": "precision", "reference": "recall"}
OTHER: Mapping[Side, Side] = {"candidate": "reference", "reference": "candidate"}
_KINDS = {
    ("logical", ""): "entailed sentences among all",
    ("grounding", ""): "sentences entailed logically and spatially among the entailed ones with boxes",
    ("spatial", ""): "sentences entailed logically and spatially among those with boxes",
    ("logical", "_positive"): "entailed sentences among those with a finding",
    ("logical", "_negative"): "entailed sentences among denials and normal statements",
    ("logical", "_implied"): "entailed sentences and denials that the other report does not contradict, among all",
}
"""What scores measure, by their kind and their absence policy."""
F1_PARTS = {f"{kind}_f1{end}": (f"{kind}_precision{end}", f"{kind}_recall{end}") for kind, end in _KINDS}
MEASURES = {
    f"{kind}_{part}{end}": measures for (kind, end), measures in _KINDS.items() for part in (*PARTS.values(), "f1")
}
"""What each score measures."""
_NOT_COMPARED = ("no_boxes", "no_area")
SCORES, POLICY_SCORES = tuple(MEASURES)[:9], tuple(MEASURES)[9:]
"""The published scores, and logical scores by absence policy."""


class SentenceScore(Record):
    """One sentence as a hypothesis: a row of `sentences.jsonl` (`docs/files.md`)."""

    # A results folder may come from an earlier version.
    model_config = ConfigDict(extra="ignore", coerce_numbers_to_str=True)

    sample_id: str
    side: Side
    index: NonNegativeInt
    text: str
    boxes: tuple[Box, ...] | None = None
    masks: tuple[Mask, ...] | None = None
    prior_boxes: tuple[Box, ...] | None = None
    status: str | None = None
    evidence: tuple[NonNegativeInt, ...] = ()
    spatial: str | None = None
    why: str | None = None
    relation: str | None = None
    polarity: str | None = None


@dataclass(frozen=True, slots=True)
class PairScores:
    """The scores of one pair (NaN = no value), its counts of sentences, and why it is excluded, if it is."""

    scores: Mapping[str, float]
    counts: Mapping[str, int]
    sentences: Sequence[SentenceScore]
    failure: str | None = None


@dataclass(frozen=True, slots=True)
class SplitPair:
    """A pair of reports as lists of sentences; if one could not be split, `failure` says why, and nothing is judged."""

    sample_id: str
    reports: Mapping[Side, Sequence[Sentence]]
    failure: str | None = None

    def queries(self, side: Side) -> list[EntailmentQuery]:
        """Return a query for each sentence of a side, one for equal texts, and none if the other side is empty."""
        premises = tuple(premise.text for premise in self.reports[OTHER[side]])
        if not premises or self.failure is not None:
            return []
        first: dict[str, str] = {}
        hypotheses = [first.setdefault(normalize_text(item.text), item.text) for item in self.reports[side]]
        return [EntailmentQuery(premises, hypothesis) for hypothesis in hypotheses]

    def score(self, verdicts: Verdicts, options: ScoringOptions) -> PairScores:
        """Compute the scores of this pair and of its sentences from the responses to all `queries` of both sides."""
        sentences: list[SentenceScore] = []
        counts: dict[str, int] = {}
        scores: dict[str, float] = {}
        failures: list[Failure] = []
        for side, part in PARTS.items():
            responses = self._responses(side, verdicts)
            failures += [response for response in responses if isinstance(response, Failure)]
            rows = self._score_sentences(side, responses, options)
            sentences += rows
            located = [row for row in rows if row.spatial not in _NOT_COMPARED]
            in_place = sum(row.spatial == "entailed" for row in rows)
            scores[f"logical_{part}"] = _ratio(_count_entailed(rows), len(rows))
            scores[f"grounding_{part}"] = _ratio(in_place, _count_entailed(located))
            scores[f"spatial_{part}"] = _ratio(in_place, len(located))
            for polarity in ("positive", "negative"):
                group = [row for row in rows if row.polarity == polarity]
                scores[f"logical_{part}_{polarity}"] = _ratio(_count_entailed(group), len(group))
            scores[f"logical_{part}_implied"] = self._implied(side, rows, responses)
            counts |= {f"{side}_sentences": len(rows), f"{side}_sentences_with_boxes": len(located)}
        failure = self.failure
        if failure is None and failures and options.on_failure == "drop":
            failure = failures[0].reason
        scores |= {name: harmonic_mean(scores[p], scores[r]) for name, (p, r) in F1_PARTS.items()}
        scores = {name: scores[name] if failure is None else math.nan for name in MEASURES}
        counts["failed_sentences"] = len(failures) if self.failure is None else 0
        return PairScores(scores, counts, sentences, failure)

    def _implied(self, side: Side, rows: Sequence[SentenceScore], responses: Sequence[Verdict | Failure]) -> float:
        """Return the share of sentences that are entailed, or denials that a report which is not empty leaves open."""
        count = _count_entailed(rows)
        if self.reports[OTHER[side]]:
            for row, response in zip(rows, responses, strict=True):
                if row.polarity == "negative" and row.status != "entailment":
                    if row.relation is None and not isinstance(response, Failure):
                        return math.nan
                    count += row.relation == "neutral"
        return _ratio(count, len(rows))

    def _responses(self, side: Side, verdicts: Verdicts) -> list[Verdict | Failure]:
        count = len(self.reports[side])
        if self.failure is not None:
            return [Failure(self.failure)] * count
        if not self.reports[OTHER[side]]:
            return [Verdict("not_entailment", why="the other report is empty")] * count
        return [verdicts[query] for query in self.queries(side)]

    def _score_sentences(
        self, side: Side, responses: Sequence[Verdict | Failure], options: ScoringOptions
    ) -> list[SentenceScore]:
        premises = self.reports[OTHER[side]]
        # Evidence with the text of a premise refers to its first occurrence as published, or to all (`exact`).
        keys, places = [normalize_text(premise.text) for premise in premises], dict[str, list[int]]()
        for place, key in enumerate(keys):
            places.setdefault(key, []).append(place)
        occurrences = [places[key][:1] if options.compat == "paper" else places[key] for key in keys]
        rows = []
        for index, (sentence, response) in enumerate(zip(self.reports[side], responses, strict=True)):
            status: str | None
            why: str | None
            relation: str | None = None
            evidence: tuple[int, ...] = ()
            spatial = "not_entailed" if sentence.has_region else "no_boxes"
            if isinstance(response, Failure):
                why = response.reason if self.failure is not None else f"no valid answer: {response.reason}"
                status = "not_entailment" if options.on_failure == "not-entailed" and self.failure is None else None
            else:
                status, why = response.status, response.why
                relation = "entailment" if status == "entailment" else response.relation
                evidence = tuple(dict.fromkeys(place for named in response.evidence for place in occurrences[named]))
                if status == "entailment" and sentence.has_region:
                    regions = [premises[place] for place in evidence]
                    if spatially_entailed(sentence, regions, compat=options.compat, threshold=options.threshold):
                        spatial = "entailed"
                    elif any(item.has_region for item in regions) and not any(map(has_area, (sentence, *regions))):
                        spatial = "no_area"
            rows.append(
                SentenceScore(
                    sample_id=self.sample_id,
                    side=side,
                    index=index,
                    **dict(sentence),
                    status=status,
                    evidence=evidence,
                    spatial=None if status is None and sentence.has_region else spatial,
                    why=why,
                    relation=relation,
                    polarity=read_polarity(sentence.text),
                )
            )
        return rows


def _count_entailed(rows: Sequence[SentenceScore]) -> int:
    return sum(row.status == "entailment" for row in rows)


def _ratio(numerator: int, denominator: int) -> float:
    """Divide; a denominator of zero gives NaN, never 0 and never 1."""
    return numerator / denominator if denominator else math.nan
