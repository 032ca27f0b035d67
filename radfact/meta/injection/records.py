"""Reports with injected errors: what was changed, and the category of each error."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from pydantic import Field

from radfact.error_categories import ERROR_CATEGORIES, CategoryLetter
from radfact.errors import ErrorCode, InputError, check_unique_id
from radfact.io.jsonl import read_jsonl, write_jsonl
from radfact.meta.datasets.ratings import RatedReport, RatingSet, count_directions, count_quantities
from radfact.meta.datasets.reports import SiteReport
from radfact.reader.facts import Fact, parse_sentence
from radfact.reader.ontology_file import default_ontology
from radfact.reader.segmentation import segment_sentences
from radfact.records import Pair, PatientContext, Record, Text, validate_model

RULES = "rules"
"""Who changes reports if no language model does: rules of this project, with the ontology of the offline judge."""


class InjectedError(Record):
    """One error: the original sentence (None if added) and the modified one (None if removed)."""

    category: CategoryLetter
    operation: str
    original: str | None = None
    modified: str | None = None


class InjectedReport(Record):
    """A reference, a candidate made from the report `source_id`, and the errors in the candidate.

    `category` is that of all errors; None for several. `changes` have no texts where only their categories are known
    (GREEN, appendix A.4). `by` is `rules`, or the name of the model; `rewording` is the kind of one without errors.
    """

    sample_id: Text
    source_id: Text
    reference: str
    candidate: str
    category: CategoryLetter | None = None
    changes: tuple[InjectedError, ...] = Field(default=())
    by: str = RULES
    rewording: str | None = None
    site: str | None = None
    modality: str | None = None
    anatomy: str | None = None

    @classmethod
    def of(cls, source: SiteReport, candidate: str, **fields: Any) -> InjectedReport:
        """Return a candidate made from a report, by default with its id."""
        made = {"sample_id": source.sample_id, "source_id": source.sample_id, "reference": source.report}
        return cls(**{**made, "candidate": candidate, **source.labels, **fields})

    @property
    def pair(self) -> Pair:
        context = PatientContext(modality=self.modality, anatomy=self.anatomy)
        return Pair(self.sample_id, self.candidate, self.reference, context=context)

    @property
    def counts(self) -> dict[str, float]:
        letters: list[str] = [change.category for change in self.changes]
        return {letter: float(letters.count(letter)) for letter in ERROR_CATEGORIES}


def write_injected(path: Path | str, reports: Iterable[InjectedReport]) -> int:
    return write_jsonl(path, (report.model_dump() for report in reports))


def read_injected(path: Path | str) -> list[InjectedReport]:
    reports, seen = [], dict[str, int]()
    for line, row in read_jsonl(path):
        report = validate_model(InjectedReport, row, file=path, line=line)
        check_unique_id(seen, report.sample_id, line, file=path)
        reports.append(report)
    if not reports:
        raise InputError("expected reports, found none", code=ErrorCode.EMPTY_INPUT, file=path)
    return reports


def to_rating_set(reports: Iterable[InjectedReport]) -> RatingSet:
    """Return the injected errors as if an expert had counted them as significant errors."""
    samples = []
    for report in reports:
        quantities = count_quantities({("significant", letter, "injected"): n for letter, n in report.counts.items()})
        groups = {"category": report.category, "site": report.site}
        samples.append(RatedReport(report.pair, quantities, {kind: name for kind, name in groups.items() if name}))
    return RatingSet(samples, count_directions(), "errors", "category")


@dataclass(frozen=True, slots=True)
class ReportSentences:
    """The text of a report with single spaces, its sentences without their final marks, and their spans with these."""

    text: str
    sentences: tuple[str, ...]
    spans: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, report: str) -> ReportSentences:
        """Segment a report; sentences that do not occur literally in its text are omitted."""
        text = " ".join(report.split())
        sentences, spans, position = [], [], 0
        for sentence in segment_sentences(report):
            start = text.find(sentence, position)
            if start >= 0:
                position = start + len(sentence)
                sentences.append(sentence)
                spans.append((start, len(text) - len(text[position:].lstrip(".!?"))))
        return cls(text, tuple(sentences), tuple(spans))

    def replaced(self, sentences: Mapping[int, Sequence[str]]) -> str:
        """Return the text with others in place of some sentences, by index."""
        parts, position = list[str](), 0
        for index, (start, end) in enumerate(self.spans):
            parts += [self.text[position:start].strip(), *sentences.get(index, [self.text[start:end]])]
            position = end
        return " ".join(filter(None, [*parts, self.text[position:].strip()]))


@lru_cache(maxsize=50_000)
def parse_facts(sentence: str) -> tuple[Fact, ...]:
    """Return the facts that the offline judge's ontology reads in a sentence."""
    return parse_sentence(sentence, default_ontology()).facts
