"""The progress display, with the clock of the tests."""

import io
import threading
import weakref
from typing import Any

import pytest
from rich.console import Console

from radfact import progress as live
from radfact.progress import Meter, Price, ProgressDisplay, ServerActivity


@pytest.fixture(autouse=True)
def no_other_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide the clients that other tests of this process have left."""
    monkeypatch.setattr(ServerActivity, "_all", weakref.WeakSet())


def metered(*readings: tuple[float, dict[str, int]], price: Price | None = None) -> Meter:
    meter = Meter("judging", price)
    for now, usage in readings:
        meter.read(usage, now)
    return meter


def test_rate_and_time_left_follow_from_completed_queries() -> None:
    meter = metered((0, {"planned": 100, "done": 0}), (10, {"planned": 100, "done": 20}))
    assert (meter.rate, meter.seconds_left) == (2, 40)
    assert meter.line() == "judging: 20 of 100 done, 2 per second, 0:00:40 left"


def test_cached_responses_do_not_shorten_the_time_left() -> None:
    quick = [(0.0, {"planned": 9000, "done": 0}), (1.0, {"planned": 9000, "done": 5000})]
    slow = [(float(now), {"planned": 9000, "done": 5000 + now}) for now in range(2, 60)]
    assert metered(*quick, *slow).rate == pytest.approx(1)
    # Queries before the first count are not part of the rate.
    assert metered((0, {}), (10, {"planned": 9000, "done": 5000}), (20, {"planned": 9000, "done": 5010})).rate == 1


def test_tokens_cost_failures_and_retries_are_shown() -> None:
    usage = {"planned": 9, "done": 5, "tokens_in": 2_000_000, "tokens_out": 1500, "failures": 1, "retries": 3}
    meter = metered((0, usage), price=Price(0.5, 100))
    assert meter.status == "1 failed, 3 retries, tokens 2M in, 1.5k out, cost 1.15"


@pytest.mark.parametrize(("number", "text"), [(0, "0"), (999, "999"), (1000, "1k"), (123456, "123k"), (2e9, "2G")])
def test_counts_are_abbreviated(number: int, text: str) -> None:
    assert live.format_count(number) == text


def test_the_terminal_is_restored() -> None:
    written = io.StringIO()
    with ProgressDisplay(Console(file=written, force_terminal=True, width=100), {"judging": lambda: {"planned": 3}}):
        pass
    # Every line that was drawn is erased, and the cursor is there again.
    assert written.getvalue().count("\x1b[?25l") == written.getvalue().count("\x1b[?25h") > 0
    assert "judging" not in written.getvalue().rsplit("\x1b[2K", 1)[1]


def test_a_silent_server_is_shown_within_seconds() -> None:
    now = 0.0
    activity = ServerActivity("judge:8000", clock=lambda: now)
    now = 60.0  # nothing was sent
    assert activity.status() == ""
    with activity.calling():
        now = 64.0
        assert activity.status() == ""
        now = 72.0
        assert activity.status() == "waiting for judge:8000: no answer for 12 s"
    activity.wait("HTTP 429", 300.0)
    assert activity.status() == "judge:8000: rate limited, next try in 300 s"
    now = 102.0
    assert activity.status() == "judge:8000: rate limited, next try in 270 s"
    activity.respond()
    assert activity.status() == ""


class SignalingConsole(Console):
    """Sets an event once both texts were printed, the first one twice."""

    def __init__(self, first: str, second: str) -> None:
        self.written, self.printed, self.texts = io.StringIO(), threading.Event(), (first, second)
        super().__init__(file=self.written)

    def print(self, *objects: Any, **options: Any) -> None:
        super().print(*objects, **options)
        first, second = map(self.written.getvalue().count, self.texts)
        if first >= 2 and second:
            self.printed.set()


def test_without_a_terminal_lines_are_written_at_intervals_and_a_silent_server_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(live, "LINE_INTERVAL", 0.001)
    monkeypatch.setattr(live, "POLL_INTERVAL", 0.001)
    monkeypatch.setattr(live, "SILENT_SECONDS", 0.0)
    console, activity = SignalingConsole("judging: 1 of 3 done", "waiting"), ServerActivity("judge:8000")
    with activity.calling(), ProgressDisplay(console, {"judging": lambda: {"planned": 3, "done": 1}}):
        assert console.printed.wait(10)
    first, second, *_ = console.written.getvalue().splitlines()
    assert first.startswith("judging: 1 of 3 done")
    assert second == "waiting for judge:8000: no answer for 0 s"
