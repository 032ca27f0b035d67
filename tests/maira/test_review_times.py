"""Times of readings: active time from the events of pages, and their table in the database."""

import sqlite3
from contextlib import closing
from datetime import UTC, datetime

import pytest
from error_checks import raises
from hypothesis import given
from hypothesis import strategies as st
from long_values import DATA
from review_files import change, change_times, finish

from maira.review.store import Store
from maira.review.times import (
    NOT_RECORDED,
    PARTLY_RECORDED,
    UNFINISHED,
    ChangeTimes,
    EventBatch,
    StoredEvent,
    study_times,
)

START = 1_700_000_000.0
Step = tuple[float, str] | tuple[float, str, int]


def page(*steps: Step, session: str = "page-one", begins: float = 0.0, delay: float = 0.1) -> list[StoredEvent]:
    """Events of a page that starts `begins` seconds after START, each sent after a second, with a delay in seconds."""
    return [
        StoredEvent(session, index, (*step, 1)[2], str(step[1]), step[0] * 1000, step[0] * 1000 + 1000,
                    START + begins + step[0] + 1 + delay)
        for index, step in enumerate(steps)
    ]  # fmt: skip


def at(seconds: float) -> datetime:
    return datetime.fromtimestamp(START + seconds, UTC)


def done(first: float, finished: float | None) -> ChangeTimes:
    return at(first), None if finished is None else at(finished)


@pytest.mark.parametrize(("steps", "finished", "idle_after", "active", "total"), DATA["active times"])
def test_idle_hidden_and_finished_times_are_excluded(
    steps: list[Step], finished: float, idle_after: float, active: float, total: float
) -> None:
    [time] = study_times(page(*steps), {1: done(5, finished)}, idle_after=idle_after).values()
    assert (round(time.active_seconds, 3), round(time.total_seconds, 3), time.reason) == (active, total, "")


def test_two_windows_at_once_count_once_for_the_study_with_the_latest_activity() -> None:
    first = page((0, "open", 1), (40, "active", 1), (100, "close", 1))
    second = page((0, "open", 2), (30, "active", 2), (50, "finish", 2), session="page-two", begins=20)
    times = study_times([*first, *second], {2: done(30, 70.2)})
    # Study 2 from its opening at 20; study 1 from its activity at 40, until that of study 2 at 50.
    assert [round(times[study].active_seconds, 3) for study in (1, 2)] == [20 + 10 + 30, 20 + 20]
    same = page((0, "open"), (10, "active"), (20, "finish")) + page((0, "open"), (20, "close"), session="page-two")
    assert round(study_times(same, {1: done(5, 20.2)})[1].active_seconds, 3) == 20


def test_events_sent_late_are_placed_when_they_happened() -> None:
    """The connection was lost for an hour; a later page sends the events."""
    steps: tuple[Step, ...] = ((0, "open"), (20, "active"), (30, "finish"))
    late = [event._replace(sent=3_600_000.0, received=START + 3600.1) for event in page(*steps)]
    [time] = study_times(late, {1: done(3600, 3600)}).values()
    assert (round(time.active_seconds, 3), time.opened) == (30, at(0.1))


_steps = st.tuples(st.floats(0, 300), st.sampled_from(["active", "hide", "show", "blur", "focus"]))


@given(st.lists(_steps, max_size=12), st.floats(0, 200), st.floats(10, 120))
def test_active_time_never_exceeds_the_time_that_passed(
    steps: list[tuple[float, str]], begins: float, idle_after: float
) -> None:
    middle = sorted(steps)
    events = [
        event
        for number, session in enumerate(("page-one", "page-two"), 1)
        for event in page((0, "open", number), *((seconds, kind, number) for seconds, kind in middle),
                          (300, "close", number), session=session, begins=begins * (number - 1))
    ]  # fmt: skip
    times = study_times(events, {}, idle_after=idle_after)
    assert sum(time.active_seconds for time in times.values()) <= 300 + begins + 1e-6


def test_unknown_times_have_a_reason() -> None:
    assert study_times([], {1: done(0, 10)})[1].reason == NOT_RECORDED
    later = page((0, "open"), (10, "finish"), begins=500)
    assert study_times(later, {1: done(0, 510)})[1].reason == PARTLY_RECORDED
    assert study_times(page((0, "open"), (10, "close")), {})[1].reason == UNFINISHED
    lost = page((0, "open"), (10, "active"), (20, "active"), (30, "finish"))
    assert "missing" in study_times([*lost[:2], lost[3]], {1: done(5, 30.2)})[1].reason
    crashed = page((0, "open"), (10, "active"))
    resumed = page((0, "open"), (30, "finish"), session="page-two", begins=100)
    assert "end of a page" in study_times([*crashed, *resumed], {1: done(5, 130.2)})[1].reason
    # A page that was hidden may end without a last event.
    hidden = page((0, "open"), (10, "hide"))
    assert study_times([*hidden, *resumed], {1: done(5, 130.2)})[1].reason == ""


def add(store: Store, reader: str, session: str, *events: tuple[int, str, float], number: int = 1) -> None:
    rows = [{"sequence": order, "number": number, "kind": kind, "clock": clock} for order, kind, clock in events]
    batch = {"reader": reader, "drafts": "", "session": session, "sent": 60_000, "events": rows}
    store.add_events(EventBatch.model_validate(batch))


def test_events_stay_and_are_stored_once(store: Store) -> None:
    add(store, "ada", "session-1", (0, "open", 0), (1, "active", 30_000))
    add(store, "Ada", "session-1", (1, "active", 30_000), (2, "finish", 40_000))
    assert [[event.sequence, event.kind] for event in store.events("Ada")] == DATA["stored events"]
    assert store.events("Ben") == []
    with raises("session: duplicate"):
        add(store, "Ben", "session-1", (3, "open", 50_000))
    with raises("number: unknown-name"):
        add(store, "Ada", "session-2", (0, "open", 0), number=3)
    with closing(sqlite3.connect(store.path)) as connection, pytest.raises(sqlite3.IntegrityError):
        connection.execute("DELETE FROM reading_events")


def test_change_times_follow_finishing_and_reopening(store: Store) -> None:
    finish(store)
    began, finished = change_times(store)[1]
    assert began <= (finished or at(0))
    change(store, "reopen")
    assert change_times(store)[1] == (began, None)
    change(store, "undo")
    assert (finished or began) <= (change_times(store)[1][1] or at(0))
