"""Disagreements of the readers of a campaign on a study."""

from __future__ import annotations

from dataclasses import dataclass

from maira.review.changes import ReviewedSentence, State
from maira.review.store import Store


@dataclass(frozen=True, slots=True)
class AdjudicationItem:
    """A sentence of the draft, or one that a reader added, as its readers left it."""

    id: str
    readings: dict[str, ReviewedSentence]

    @property
    def draft_text(self) -> str | None:
        return next(iter(self.readings.values())).draft_text

    @property
    def is_disagreement(self) -> bool:
        """Whether the need for a correction or its severity differs, or a reader added the sentence."""
        return (
            self.draft_text is None or len({correction_severity(sentence) for sentence in self.readings.values()}) > 1
        )


def correction_severity(sentence: ReviewedSentence) -> int | None:
    return sentence.assessment.severity if sentence.is_correction else None


def collect_adjudication_items(store: Store) -> dict[int, list[AdjudicationItem]]:
    """Return the items of each study that at least two counted readers finished, by its number."""
    finished: dict[int, dict[str, State]] = {}
    for reader in store.counted_readers():
        for number, review in enumerate(store.reviews(reader), 1):
            if review.state.done:
                finished.setdefault(number, {})[reader] = review.state
    return {number: _items(store, states) for number, states in sorted(finished.items()) if len(states) > 1}


def _items(store: Store, states: dict[str, State]) -> list[AdjudicationItem]:
    drafted: dict[str, dict[str, ReviewedSentence]] = {}
    added: dict[str, dict[str, ReviewedSentence]] = {}
    for reader, state in states.items():
        for sentence in state.sentences:
            if not sentence.is_added:
                drafted.setdefault(sentence.id, {})[reader] = sentence
            elif sentence.is_correction:
                added[f"{store.reader_key(reader)}/{sentence.id}"] = {reader: sentence}
    return [AdjudicationItem(key, readings) for key, readings in {**drafted, **added}.items()]
