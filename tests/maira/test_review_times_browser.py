"""Times of readings, recorded by the page in a browser."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from review_desk import Running, at_study, launched, press, saved, served, visiting
from review_files import write_review_set

from maira.review.store import Store
from maira.review.times import StoredEvent, StudyTime, study_times

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = [pytest.mark.browser, pytest.mark.slow]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with launched() as browser:
        yield browser


def recorded(running: Running, kind: str, count: int = 1) -> list[StoredEvent]:
    """Wait until the database has events of a kind, and return all."""
    limit = time.monotonic() + 20
    while True:
        with closing(Store(running.folder / "review.sqlite")) as store:
            events = store.events("Ada")
        if sum(event.kind == kind for event in events) >= count:
            return events
        assert time.monotonic() < limit, [event.kind for event in events]
        time.sleep(0.05)


def times(running: Running) -> dict[int, StudyTime]:
    with closing(Store(running.folder / "review.sqlite")) as store:
        return study_times(store.events("Ada"), store.change_times("Ada"))


def test_a_reading_is_timed_from_opening_to_finishing(browser: Browser, tmp_path: Path) -> None:
    with served(write_review_set(tmp_path, 2)) as running:
        with visiting(browser, running) as page:
            press(page, "]", "]", "]", "f")
            saved(page)
            page.goto(f"{running.url}#2")
            at_study(page, 2)
        events = recorded(running, "close", 1)
        kinds = [(event.kind, event.study) for event in events if event.kind not in ("active", "blur", "focus")]
        assert kinds[:2] == [("open", 1), ("finish", 1)]
        assert ("open", 2) in kinds
        assert kinds[-1] == ("close", 2)
        assert [event.sequence for event in events if event.session == events[0].session] == list(
            range(sum(event.session == events[0].session for event in events))
        )
        [first, second] = times(running).values()
        assert first.reason == ""
        assert 0 < first.active_seconds <= first.total_seconds
        assert second.finished is None
        assert second.opened is not None


def test_events_without_a_connection_are_sent_later(browser: Browser, tmp_path: Path) -> None:
    with served(write_review_set(tmp_path, 2)) as running, visiting(browser, running) as page:
        [session] = {event.session for event in recorded(running, "open")}
        page.route("**/api/times", lambda route: route.abort())
        press(page, "]", "]", "]", "f")
        saved(page)
        unsent = "Object.keys(localStorage).filter((key) => key.includes(':time:'))"
        assert page.evaluate(f"{unsent}.length") > 0
        assert "finish" not in [event.kind for event in recorded(running, "open")]
        page.unroute("**/api/times")
        page.evaluate("window.dispatchEvent(new Event('online'))")
        recorded(running, "finish")
        limit = time.monotonic() + 20
        while page.evaluate(f"{unsent}.length"):
            assert time.monotonic() < limit
            page.wait_for_timeout(50)
        # An event of an earlier page, which has ended.
        page.evaluate(
            """async () => {
              const { drafts } = await (await fetch("/api/set")).json();
              const event = { session: "earlier-page", sequence: 0, number: 2, kind: "open", clock: 30_000,
                origin: Date.now() - 90_000 };
              localStorage.setItem(`maira-review:"Ada":time:${drafts}:earlier-page:0`, JSON.stringify(event));
            }"""
        )
        page.reload()
        at_study(page, 1)
        events = recorded(running, "open", 3)
        [earlier] = [event for event in events if event.session not in (session, events[-1].session)]
        assert 59 < (earlier.sent - earlier.clock) / 1000 < 80
