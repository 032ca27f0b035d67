"""Readings: what each reader did with each study, in how much time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from maira.review.changes import State
from maira.review.database import Draft
from maira.review.store import Store
from maira.review.times import IDLE_AFTER, StudyTime, study_times

USES = ("counted", "unfinished", "training", "excluded")


@dataclass(frozen=True, slots=True)
class Reading:
    """One reader's review of one study, which is a sample in an arm."""

    reader: str
    is_excluded: bool
    draft: Draft
    state: State
    time: StudyTime

    @property
    def use(self) -> str:
        """Whether the reading is part of statistics, and why not; one of `USES`."""
        if self.draft.is_training:
            return "training"
        if self.is_excluded:
            return "excluded"
        return "counted" if self.state.done else "unfinished"

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
