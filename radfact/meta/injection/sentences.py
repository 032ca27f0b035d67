"""A report as sentences that can be replaced one by one, the others staying letter for letter as they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from radfact.judges.offline.facts import Fact, parse_sentence
from radfact.judges.offline.ontology_file import default_ontology
from radfact.judges.offline.segmentation import segment_sentences

_MARKS = ".!?"


@dataclass(frozen=True, slots=True)
class Sentences:
    """The sentences of a report without their final marks, and where they stand in its text.

    `text` is the report with single spaces; what belongs to no sentence (a list's numbers) stays as it is.
    """

    text: str
    sentences: tuple[str, ...]
    spans: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, report: str) -> Sentences:
        """Take a report apart; a sentence that is not found again letter for letter cannot be replaced."""
        text = " ".join(report.split())
        sentences, spans, at = [], [], 0
        for sentence in segment_sentences(report):
            begin = text.find(sentence, at)
            if begin < 0:
                continue
            end = at = begin + len(sentence)
            while end < len(text) and text[end] in _MARKS:
                end += 1
            sentences.append(sentence)
            spans.append((begin, end))
        return cls(text, tuple(sentences), tuple(spans))

    def replaced(self, changes: Mapping[int, str | None], added: Mapping[int, Sequence[str]]) -> str:
        """The report with some sentences changed.

        Args:
            changes: place of a sentence -> its new text with its final mark; None takes it out.
            added: place of a sentence -> sentences that follow it.
        """
        parts, at = [], 0
        for place, (begin, end) in enumerate(self.spans):
            parts.append(self.text[at:begin].strip())
            parts.append((changes[place] or "") if place in changes else self.text[begin:end])
            parts.extend(added.get(place, ()))
            at = end
        parts.append(self.text[at:].strip())
        return " ".join(part for part in parts if part)


@lru_cache(maxsize=50_000)
def facts_of(sentence: str) -> tuple[Fact, ...]:
    """What the offline judge's ontology reads in a sentence."""
    return parse_sentence(sentence, default_ontology()).facts
