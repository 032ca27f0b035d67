"""Readings: what each reader did with each study, in how much time."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from maira.review.agreement import worst_severity
from maira.review.changes import State
from maira.review.database import Draft
from maira.review.store import Store
from maira.review.times import IDLE_AFTER, StudyTime, study_times


@dataclass(frozen=True, slots=True)
class Reading:
    """One reader's review of one study, which is a sample in an arm."""

    reader: str
    is_excluded: bool
    draft: Draft
    state: State
    time: StudyTime

    @property
    def is_counted(self) -> bool:
        """Whether the reading is part of statistics once it is finished."""
        return not (self.is_excluded or self.draft.is_training)

    @property
    def deletions(self) -> int:
        """Number of deleted sentences."""
        return sum(item.deleted for item in self.state.corrections)

    @property
    def additions(self) -> int:
        """Number of added sentences."""
        return sum(item.is_added for item in self.state.corrections)

    @property
    def edits(self) -> int:
        """Number of sentences with another text or other boxes."""
        return len(self.state.corrections) - self.deletions - self.additions

    @property
    def boxes_changed(self) -> int:
        """Number of sentences of the draft that are not deleted and have other boxes."""
        return sum(item.has_moved_boxes and not item.deleted for item in self.state.corrections)

    @property
    def severities(self) -> Counter[int | None]:
        """Number of corrections by severity."""
        return Counter(item.assessment.severity for item in self.state.corrections)

    @property
    def worst(self) -> int | None:
        """Highest severity: -1 without corrections, None if none is rated."""
        return worst_severity(self.state)

    @property
    def active_seconds(self) -> float:
        """Active time of a finished reading; NaN unless all of it is known."""
        return math.nan if self.time.reason else self.time.active_seconds


def collect_readings(store: Store, readers: Sequence[str], *, idle_after: float = IDLE_AFTER) -> list[Reading]:
    """Return the readings that were opened or changed, by reader in the order of studies."""
    counted = store.counted_readers()
    readings = []
    for reader in map(store.registered_name, readers):
        times = study_times(store.events(reader), store.change_times(reader), idle_after=idle_after)
        reviews = store.reviews(reader)
        for number, (draft, review) in enumerate(zip(store.drafts, reviews, strict=True), 1):
            if number in times or review.version:
                time = times.get(number, StudyTime())
                readings.append(Reading(reader, reader not in counted, draft, review.state, time))
    return readings
