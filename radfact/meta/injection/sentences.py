"""A report as sentences that can be replaced one by one, with all other text unchanged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from radfact.reader.facts import Fact, parse_sentence
from radfact.reader.ontology_file import default_ontology
from radfact.reader.segmentation import segment_sentences

_FINAL_MARKS = ".!?"


@dataclass(frozen=True, slots=True)
class ReportSentences:
    """The sentences of a report.

    Attributes:
        text: the report with single spaces.
        sentences: sentences without their final marks.
        spans: start and end of each sentence with its final marks in `text`.
    """

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
