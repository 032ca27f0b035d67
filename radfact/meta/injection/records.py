"""Reports with injected errors: what was changed, and the category of each error."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from pydantic import Field

from radfact.error_categories import ERROR_CATEGORIES, CategoryLetter
from radfact.errors import ErrorCode, InputError, check_unique_id
from radfact.io.jsonl import read_jsonl, write_jsonl
from radfact.meta.datasets.ratings import RatedReport, RatingSet, count_directions, count_quantities
from radfact.reader.facts import Fact, parse_sentence
from radfact.reader.ontology_file import default_ontology
from radfact.reader.segmentation import segment_sentences
from radfact.records import Pair, Record, Text, validate_model

_RATER = "injected"


class InjectedError(Record):
    """One error: the original sentence (None if added) and the modified one (None if removed)."""

    category: CategoryLetter
    operation: str
    original: str | None = None
    modified: str | None = None


class InjectedReport(Record):
    """A reference, a candidate made from the report `source_id`, and the errors in the candidate.

    `category` is that of all errors; None for several. `changes` have no texts where only their categories are known
    (GREEN, appendix A.4). `by` is `rules`, or the name of the model.
    """

    sample_id: Text
    source_id: Text
    reference: str
    candidate: str
    category: CategoryLetter | None = None
    changes: tuple[InjectedError, ...] = Field(default=())
    by: str = "rules"
    site: str | None = None

    @property
    def pair(self) -> Pair:
        """Candidate and reference."""
        return Pair(self.sample_id, self.candidate, self.reference)

    @property
    def counts(self) -> dict[str, float]:
        """Number of errors by letter."""
        counts = dict.fromkeys(ERROR_CATEGORIES, 0.0)
        for change in self.changes:
            counts[change.category] += 1
        return counts


def write_injected(path: Path | str, reports: Iterable[InjectedReport]) -> int:
    """Write JSON Lines and return the number of reports."""
    return write_jsonl(path, (report.model_dump() for report in reports))


def read_injected(path: Path | str) -> list[InjectedReport]:
    """Read the file of `write_injected`."""
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
        quantities = count_quantities({("significant", letter, _RATER): n for letter, n in report.counts.items()})
        groups = {"category": report.category, "site": report.site}
        samples.append(RatedReport(report.pair, quantities, {kind: name for kind, name in groups.items() if name}))
    return RatingSet(samples, count_directions(), "errors", "category")


_FINAL_MARKS = ".!?"


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
            if start < 0:
                continue
            end = position = start + len(sentence)
            while end < len(text) and text[end] in _FINAL_MARKS:
                end += 1
            sentences.append(sentence)
            spans.append((start, end))
        return cls(text, tuple(sentences), tuple(spans))

    def replaced(self, changes: Mapping[int, str | None], added: Mapping[int, Sequence[str]]) -> str:
        """Return the report with changed and added sentences."""
        parts, position = [], 0
        for index, (start, end) in enumerate(self.spans):
            parts.append(self.text[position:start].strip())
            parts.append((changes[index] or "") if index in changes else self.text[start:end])
            parts.extend(added.get(index, ()))
            position = end
        parts.append(self.text[position:].strip())
        return " ".join(part for part in parts if part)


@lru_cache(maxsize=50_000)
def parse_facts(sentence: str) -> tuple[Fact, ...]:
    """Return the facts that the offline judge's ontology reads in a sentence."""
    return parse_sentence(sentence, default_ontology()).facts


_CHANGED = (
    r"stable|unchanged|new|persistent|residual|increased|increasing|decreased|decreasing|worsened|worsening|improved|"
    r"improving|progressive"
)
_ADVERB = r"(?:(?:grossly|relatively|essentially|overall|slightly|mildly|markedly|significantly|fairly) )?"
_PRIOR = (
    r"(?:the |a |an )?(?:prior|previous|earlier|last)?\s*(?:exam\w*|stud\w+|radiograph\w*|film\w*|imag\w+|prior|XXXX)?"
)
_NO_NOUN = r"(?:in|from|since|compared|and|or|with|to|at|on)"
_SINCE = rf"(?:(?:in comparison|(?:when |as )?compared) (?:to|with)|since|from) {_PRIOR}"
_WITHOUT_COMPARISON: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern, re.IGNORECASE), by)
    for pattern, by in (
        (rf"^{_SINCE}\s*,\s*", ""),
        (rf",? {_SINCE}$", ""),
        (
            r"^(?:once )?again (?:seen|noted|identified|demonstrated|visualized|observed) (is|are) (?:the )?",
            r"There \1 ",
        ),
        (rf"\b(is|are) {_ADVERB}(?:{_CHANGED})(?: {_SINCE})?$", r"\1 present"),
        (rf"\b(?:appears|remains) {_ADVERB}(?:{_CHANGED})(?: {_SINCE})?$", "is present"),
        (rf"\b(?:appear|remain) {_ADVERB}(?:{_CHANGED})(?: {_SINCE})?$", "are present"),
        (rf",? (?:which|that) (?:is|are) present$|,?(?: and| but)? {_ADVERB}(?:{_CHANGED})(?: {_SINCE})?$", ""),
        (rf"^{_ADVERB}(?:{_CHANGED}) (?:appearance|position|positioning|configuration) of (?:the )?", ""),
        (r"\b(?:interval|again)\s+(?=\w)", ""),
        (rf"^(normal|clear) and (?:{_CHANGED}) ", r"\1 "),
        (rf"\b{_ADVERB}(?:{_CHANGED})(?:[ -]appearing)?\s+(?=[a-z]{{3,}})(?!{_NO_NOUN}\b)", ""),
    )
)
_BROKEN = re.compile(
    r"\b(?:and|or|but|with|without|of|in|at|on|the|an?|is|are|was|were|has|have|been|be|which|that|appears?|remains?|from"
    r"|since|to|than|as|more|less|(?:gross|relative|essential|slight|mild|marked|significant|fair)ly|position|appearance|likewise)$"
    r"|^(?:seen|noted|identified|is|are|and|appearance|position)\b|\b(?:with|and|or) (?:appearance|position)\b"
    r"|\b(?:and|but|with) (?:is|are) present$|\b(?:has|have) (?:\w+ly )?in\b|(?-i:, The\b)"
    r"|\b(?:prior|previous) (?:exam|stud|radiograph|film)|\bcompared\b|\bdating back\b"
    r"|, (?:appearance|position)\b",
    re.IGNORECASE,
)
"""Endings, beginnings and junctions of ungrammatical phrases, and comparisons that remain."""
_STATE = re.compile(
    r"\b(?:increased|decreased|improved|progressive)\s+(?!from|since|compared|in\b)[a-z]"
    rf"|\b(?:is|are|appears?) {_ADVERB}(?:increased|decreased)$",
    re.IGNORECASE,
)
_COMPARED = re.compile(r"\b(?:interval|since|compar\w+|prior|previous\w*|now|again)\b", re.IGNORECASE)
_MENTION = re.compile(
    rf"{_COMPARED.pattern}|\b(?:{_CHANGED}|remains?|persists?|develop\w+|similar|worse)\b", re.IGNORECASE
)


def mentions_comparison(sentence: str) -> bool:
    """Return whether a sentence contains a word for a change, a stable state or an earlier examination."""
    return _MENTION.search(sentence) is not None


def remove_comparison(sentence: str) -> str | None:
    """Return a sentence without its comparison; None if it has none, or if the rest would be ungrammatical.

    "Increased interstitial markings" is a state, not a comparison, unless the sentence mentions an earlier examination.
    """
    if _STATE.search(sentence) and not _COMPARED.search(sentence):
        return None
    text = sentence
    for pattern, replacement in _WITHOUT_COMPARISON:
        text = pattern.sub(replacement, text).strip(" ,")
    return None if not text or text == sentence or _BROKEN.search(text) else text
