"""Progress of a long run: done, rate, time left, tokens, cost, failures and retries."""

from __future__ import annotations

import math
import re
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, ClassVar

from radfact.errors import option_error

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

UsageCounts = Mapping[str, int]
"""Counts as in `radfact.judges.Judge.usage`."""
COSTS = ("calls", "tokens_in", "tokens_out", "repairs", "failures", "cached")
"""Names of the counts of a usage."""

WINDOW = 20.0
"""Window of the rate in seconds: cached responses at the start must not promise an early end."""
TERMINAL_INTERVAL, LINE_INTERVAL = 0.25, 30.0
"""Seconds between updates on a terminal, and between lines elsewhere."""
MAX_FAILURES = 3
"""Failures of each model that are shown during a run; results list all."""
POLL_INTERVAL = 1.0
"""Seconds between checks whether a server has become silent, where lines are written."""
SILENT_SECONDS = 5.0
"""Seconds without any response, after which the display says what a run waits for."""


class ServerActivity:
    """Whether a server answers; the display shows the servers that have been silent for some seconds."""

    _all: ClassVar[weakref.WeakSet[ServerActivity]] = weakref.WeakSet()

    def __init__(self, name: str, clock: Callable[[], float] = time.monotonic) -> None:
        self.name, self._clock = name, clock
        self._calls = 0
        self._silent_since = self._next_attempt = clock()
        self._problem = ""
        self._failures: list[str] = []
        self._all.add(self)

    @contextmanager
    def calling(self) -> Iterator[None]:
        """Count a call in flight."""
        if not self._calls and not self._problem:
            self._silent_since = self._clock()
        self._calls += 1
        try:
            yield
        finally:
            self._calls -= 1

    def respond(self) -> None:
        self._silent_since, self._problem = self._clock(), ""

    def wait(self, problem: str, seconds: float) -> None:
        """Record that a failed call is repeated."""
        self._problem = "rate limited" if problem == "HTTP 429" else problem
        self._next_attempt = self._clock() + seconds

    def fail(self, reason: str) -> None:
        """Record that a request has no valid response; the first of them are shown."""
        if len(self._failures) < MAX_FAILURES:
            self._failures.append(reason)

    def status(self) -> str:
        """Return what a run waits for; empty if there was a response in the last seconds, or nothing is sent."""
        now = self._clock()
        if now - self._silent_since < SILENT_SECONDS:
            return ""
        if self._problem and self._next_attempt > now:
            return f"{self.name}: {self._problem}, next try in {self._next_attempt - now:.0f} s"
        return f"waiting for {self.name}: no answer for {now - self._silent_since:.0f} s" if self._calls else ""

    @classmethod
    def statuses(cls) -> list[str]:
        """Return what the run waits for, one line for each server."""
        return sorted({status for activity in [*cls._all] if (status := activity.status())})

    @classmethod
    def failures(cls) -> list[str]:
        """Return the first failures of every model, one line each."""
        return [f"{activity.name}: {reason}" for activity in [*cls._all] for reason in activity._failures]


@dataclass(frozen=True, slots=True)
class Price:
    """Price of a million tokens in and out."""

    tokens_in: float
    tokens_out: float
    currency: str = ""

    def cost(self, usage: UsageCounts) -> float:
        tokens_in, tokens_out = usage.get("tokens_in", 0), usage.get("tokens_out", 0)
        return (tokens_in * self.tokens_in + tokens_out * self.tokens_out) / 1e6


def parse_price(text: str | None) -> Price | None:
    """Parse the option `--price IN,OUT[,CURRENCY]`."""
    if text is None:
        return None
    tokens_in, tokens_out, currency = (*(part.strip() for part in text.split(",")), "", "")[:3]
    try:
        prices = float(tokens_in), float(tokens_out)
    except ValueError:
        prices = -1.0, -1.0
    is_currency = text.count(",") < 3 and re.fullmatch("[A-Z]{3}|", currency) is not None
    if not (is_currency and all(0 <= price < math.inf for price in prices)):
        expected = "IN,OUT or IN,OUT,CURRENCY, the price of a million tokens each and a code such as EUR"
        raise option_error(f"expected {expected}, found '{text}'", "--price")
    return Price(*prices, currency)


class Meter:
    """Turns the usage counts of one role over time into a rate and a status text."""

    def __init__(self, name: str, price: Price | None = None, window: float = WINDOW) -> None:
        self.name, self.price, self.window = name, price, window
        self.planned = self.done = 0
        self.rate: float | None = None
        self.status = ""
        self._readings: deque[tuple[float, int]] = deque()

    def read(self, usage: UsageCounts, now: float) -> None:
        if not usage:
            return
        self.planned = usage.get("planned", 0)
        self.done = usage.get("done", usage.get("calls", 0))
        self._readings.append((now, self.done))
        while len(self._readings) > 2 and self._readings[1][0] <= now - self.window:
            self._readings.popleft()
        since, done = self._readings[0]
        self.rate = (self.done - done) / (now - since) if now > since else None
        self.status = describe_usage(usage, self.price)

    @property
    def seconds_left(self) -> float | None:
        """Seconds until the end at the present rate; None if unknown."""
        return (self.planned - self.done) / self.rate if self.planned and self.rate else None

    @property
    def pace(self) -> str:
        """Items done, rate and time left."""
        planned = f" of {self.planned:,}" if self.planned else ""
        rate = f", {self.rate:.3g} per second" if self.rate else ""
        left = "" if not self.seconds_left else f", {timedelta(seconds=round(self.seconds_left))} left"
        return f"{self.done:,}{planned} done{rate}{left}"

    def line(self) -> str:
        return ", ".join(filter(None, (f"{self.name}: {self.pace}", self.status)))


def describe_usage(usage: UsageCounts, price: Price | None) -> str:
    """Return a usage as text: responses that are cached, repaired, failed or repeated, tokens and cost."""
    labels = {"cached": "cached", "repairs": "repaired", "failures": "failed", "retries": "retries"}
    parts = [f"{usage[key]} {label}" for key, label in labels.items() if usage.get(key)]
    if usage.get("tokens_in"):
        parts.append(f"tokens {format_count(usage['tokens_in'])} in, {format_count(usage.get('tokens_out', 0))} out")
    if price is not None:
        parts.append(f"cost {price.cost(usage):,.2f} {price.currency}".strip())
    return ", ".join(parts)


def format_count(number: float) -> str:
    """Format a count with three digits: 950, 12.3k, 4.56M."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.3g}{letter}"
    return f"{number:.3g}"


@contextmanager
def display_progress(
    console: Console,
    usage_by_role: Mapping[str, Callable[[], UsageCounts]],
    price: Price | None = None,
    window: float = WINDOW,
) -> Iterator[None]:
    """Display progress from another thread, so that Ctrl-C reaches the block itself.

    On a terminal it draws bars that disappear at the end; elsewhere, and with NO_COLOR or TERM=dumb, it writes a line
    every half minute. The first failures of each model stay.
    """
    meters = {Meter(name, price, window): usage for name, usage in usage_by_role.items()}
    stopped, shown = threading.Event(), set(ServerActivity.failures())
    is_drawn = console.is_interactive and not console.no_color

    def watch() -> None:
        from rich.live import Live

        interval = TERMINAL_INTERVAL if is_drawn else min(LINE_INTERVAL, POLL_INTERVAL)
        next_lines, was_silent = time.monotonic() + LINE_INTERVAL, False
        with Live(console=console, transient=True, auto_refresh=False) if is_drawn else nullcontext() as live:
            while True:
                statuses = ServerActivity.statuses()
                lines = [line for line in ServerActivity.failures() if line not in shown]
                shown.update(lines)
                if live is not None:
                    live.update(_render(_read(meters), statuses), refresh=True)
                elif time.monotonic() >= next_lines or (statuses and not was_silent):
                    lines += [*(meter.line() for meter in _read(meters)), *statuses]
                    next_lines = time.monotonic() + LINE_INTERVAL
                for line in lines:
                    console.print(line, highlight=False, markup=False, soft_wrap=True)
                was_silent = bool(statuses)
                if stopped.wait(interval):
                    return

    thread = threading.Thread(target=watch, name="radfact-live", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join(2)


def _read(usage_by_meter: Mapping[Meter, Callable[[], UsageCounts]]) -> list[Meter]:
    """Update all meters and return those in progress."""
    now = time.monotonic()
    for meter, usage in usage_by_meter.items():
        meter.read(usage(), now)
    started = [meter for meter in usage_by_meter if meter.done or meter.planned]
    return [meter for meter in started if meter is started[-1] or meter.done < meter.planned]


def _render(meters: Sequence[Meter], notes: Sequence[str] = ()) -> RenderableType:
    """Return a bar with the pace of each meter, and its status below, where a narrow terminal does not cut it off."""
    from rich.console import Group
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    lines: list[RenderableType] = []
    for meter in meters:
        row = Table.grid(padding=(0, 1))
        bar = ProgressBar(meter.planned or None, meter.done, width=20)
        row.add_row(Text(meter.name), bar, Text(meter.pace))
        lines += [row, Text(meter.status)] if meter.status else [row]
    return Group(*lines, *map(Text, notes))
