"""Times of readings: events of the page, and the active time computed from them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import groupby, pairwise
from typing import Annotated, Literal, NamedTuple

from pydantic import Field, StringConstraints

from radfact.records import Record, Row

IDLE_AFTER = 60.0
"""Seconds without activity after which a reader is idle, unless another threshold is chosen."""

MIN_IDLE_AFTER = 10.0
"""Shortest threshold in seconds: the page records continuing activity every 5 seconds."""

EventKind = Literal["open", "active", "hide", "show", "blur", "focus", "finish", "close"]
Id = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_-]{8,64}$")]
Milliseconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]

_MOST_EVENTS = 500
# A change cannot be made before the study is opened; estimates of server time may differ by this many seconds.
_TOLERANCE = 60.0
# Seconds by which an event may reach the server later than a change that was sent after it.
_NETWORK_DELAY = 20.0
# Nothing that counts can follow these events of a page without another event.
_ENDS = ("close", "finish", "hide", "blur")

NOT_RECORDED = "no times were recorded"
PARTLY_RECORDED = "changed before times were recorded"
UNFINISHED = "not finished"


class PageEvent(Record):
    """An event of the page."""

    sequence: Annotated[int, Field(ge=0, lt=2**63)]
    number: Annotated[int, Field(ge=1)]
    kind: EventKind
    clock: Milliseconds


class EventBatch(Row):
    """Events of one session of a reader on some drafts, and the time of sending them on its clock in milliseconds."""

    reader: str
    drafts: str
    session: Id
    sent: Milliseconds
    events: Annotated[tuple[PageEvent, ...], Field(max_length=_MOST_EVENTS)]


class StoredEvent(NamedTuple):
    """A `PageEvent` in the database; `study` is its number, and `received` the server's time in seconds since 1970."""

    session: str
    sequence: int
    study: int
    kind: str
    clock: float
    sent: float
    received: float


ChangeTimes = tuple[datetime, datetime | None]
"""Times of the server at which a reader changed a study first, and finished it; None if it is not finished."""


@dataclass(frozen=True, slots=True)
class StudyTime:
    """Active time (visible, with the focus, not idle) and total time of a study; `reason` says why one is unknown."""

    opened: datetime | None = None
    finished: datetime | None = None
    active_seconds: float = math.nan
    total_seconds: float = math.nan
    reason: str = ""


def study_times(
    events: Iterable[StoredEvent], changes: Mapping[int, ChangeTimes], *, idle_after: float = IDLE_AFTER
) -> dict[int, StudyTime]:
    """Compute the times of one reader by study."""
    sessions = [_place(list(group)) for _, group in groupby(sorted(events), key=lambda event: event.session)]
    opened: dict[int, float] = {}
    finished: dict[int, list[float]] = {}
    for event, at in (pair for session in sessions for pair in session):
        if event.kind == "open":
            opened[event.study] = min(at, opened.get(event.study, math.inf))
        if event.kind == "finish":
            finished.setdefault(event.study, []).append(at)
    ends = {
        study: _end(finished.get(study, ()), end.timestamp()) for study, (_, end) in changes.items() if end is not None
    }
    pieces = [piece for session in sessions for piece in _active_pieces(session, idle_after)]
    active: dict[int, float] = {}
    for at, until, study in _exclusive(pieces):
        active[study] = active.get(study, 0.0) + max(0.0, min(until, ends.get(study, math.inf)) - at)
    faults = _faults(sessions, ends)
    times = {}
    for study in sorted({*opened, *changes}):
        start, end, seconds = opened.get(study), ends.get(study), active.get(study, 0.0)
        began, done = (None if at is None else datetime.fromtimestamp(at, UTC) for at in (start, end))
        if start is None:
            times[study] = StudyTime(None, done, reason=NOT_RECORDED)
        elif study in changes and changes[study][0].timestamp() < start - _TOLERANCE:
            times[study] = StudyTime(None, done, reason=PARTLY_RECORDED)
        elif end is None:
            times[study] = StudyTime(began, None, seconds, reason=faults.get(study, UNFINISHED))
        else:
            times[study] = StudyTime(began, done, seconds, max(0.0, end - start), faults.get(study, ""))
    return times


def _end(finished: Iterable[float], changed: float) -> float:
    """Return when the reader finished a study: the change may have reached the server much later."""
    return min(changed, max((at for at in finished if at <= changed + _NETWORK_DELAY), default=changed))


def _place(session: list[StoredEvent]) -> list[tuple[StoredEvent, float]]:
    """Return the events of a session with their time on the server, the same or too late by a network delay."""
    session.sort(key=lambda event: event.sequence)
    placed: list[tuple[StoredEvent, float]] = []
    for event in reversed(session):
        at = event.received - max(0.0, event.sent - event.clock) / 1000
        if placed:
            # The clock stops while the machine sleeps, so the time on the server is at least as long.
            later, later_at = placed[-1]
            at = min(at, later_at - max(0.0, later.clock - event.clock) / 1000)
        placed.append((event, at))
    return placed[::-1]


class _Piece(NamedTuple):
    """Active time of one session: start and end on the server, time of the activity before it, study."""

    start: float
    end: float
    activity: float
    study: int


def _active_pieces(session: Sequence[tuple[StoredEvent, float]], idle_after: float) -> Iterator[_Piece]:
    study: int | None = None
    is_visible = has_focus = True
    activity, activity_at = 0.0, 0.0
    for (event, at), (following, _) in pairwise(session):
        match event.kind:
            case "hide" | "show":
                is_visible = event.kind == "show"
            case "blur" | "focus":
                has_focus = event.kind == "focus"
        study = None if event.kind == "close" else event.study
        if event.kind not in ("hide", "blur"):
            activity, activity_at = event.clock, at
        seconds = (min(following.clock, activity + idle_after * 1000) - event.clock) / 1000
        if study is not None and is_visible and has_focus and seconds > 0:
            yield _Piece(at, at + seconds, activity_at, study)


def _exclusive(pieces: Sequence[_Piece]) -> Iterator[tuple[float, float, int]]:
    """Yield intervals with their study that do not overlap; of pieces that overlap, the latest activity counts."""
    waiting, current = sorted(pieces, reverse=True), list[_Piece]()
    for start, end in pairwise(sorted({bound for piece in pieces for bound in (piece.start, piece.end)})):
        current = [piece for piece in current if piece.end > start]
        while waiting and waiting[-1].start <= start:
            current.append(waiting.pop())
        if current:
            yield start, end, min(current, key=lambda piece: (-piece.activity, piece)).study


def _faults(sessions: Iterable[Sequence[tuple[StoredEvent, float]]], ends: Mapping[int, float]) -> dict[int, str]:
    """Return why the active time of a study may be too short."""
    faults: dict[int, str] = {}
    for session in sessions:
        if session[0][0].sequence:
            faults[session[0][0].study] = "events of the page are missing"
        for (event, at), (following, _) in pairwise(session):
            if following.sequence != event.sequence + 1:
                for study in (event.study, following.study):
                    if at <= ends.get(study, math.inf):
                        faults[study] = "events of the page are missing"
        last, at = session[-1]
        if last.kind not in _ENDS and at < ends.get(last.study, math.inf):
            faults.setdefault(last.study, "the end of a page was not recorded")
    return faults
