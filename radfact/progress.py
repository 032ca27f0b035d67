"""What a long run says while it runs: done, rate, time left, tokens, cost, failures, retries."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING

from radfact.errors import ErrorCode, InputError

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

Account = Mapping[str, int]

WINDOW = 20.0
"""Seconds over which the rate is taken: what came from disk at the start must not promise an early end."""

PATIENCE = 5.0
"""Seconds without an answer, but with retries, after which it is said that the server does not answer."""

EVERY_ON_TERMINAL, EVERY_ELSEWHERE = 0.25, 30.0
"""Seconds between two looks on a terminal, and between two lines where there is none."""


@dataclass(frozen=True, slots=True)
class Price:
    """Price of a million tokens in and out, in any currency."""

    tokens_in: float
    tokens_out: float

    def cost(self, usage: Account) -> float:
        """Compute what the tokens of a usage cost."""
        tokens_in, tokens_out = usage.get("tokens_in", 0), usage.get("tokens_out", 0)
        return (tokens_in * self.tokens_in + tokens_out * self.tokens_out) / 1e6


def parse_price(text: str | None) -> Price | None:
    """Parse the option `--price IN,OUT`.

    Raises:
        InputError: if the text is not two numbers from 0.
    """
    if text is None:
        return None
    try:
        price = Price(*map(float, text.split(",")))
    except (TypeError, ValueError):
        price = Price(-1, -1)
    if not all(math.isfinite(value) and value >= 0 for value in (price.tokens_in, price.tokens_out)):
        raise InputError(
            f"expected IN,OUT, the price of a million tokens each, found '{text}'",
            code=ErrorCode.INVALID_OPTION,
            field="--price",
        )
    return price


@dataclass
class Meter:
    """Readings of one usage over time, as words and numbers for a person; its rate is that of the last `window`
    seconds."""

    name: str
    price: Price | None = None
    window: float = WINDOW
    planned: int = 0
    done: int = 0
    rate: float | None = None
    words: str = ""
    _marks: deque[tuple[float, int]] = field(default_factory=deque)
    _moved: tuple[float, int, int] | None = None

    def read(self, usage: Account, now: float) -> None:
        """Take an usage at `now`, in seconds of any clock that runs evenly; one without counts has not begun."""
        if not usage:
            return
        self.planned = usage.get("planned", 0)
        self.done = usage.get("done", usage.get("calls", 0))
        self._marks.append((now, self.done))
        while len(self._marks) > 2 and self._marks[1][0] <= now - self.window:
            self._marks.popleft()
        since, done = self._marks[0]
        self.rate = (self.done - done) / (now - since) if now > since else None
        self.words = ", ".join(self._parts(usage, self._is_stuck(now, usage.get("retries", 0))))

    def _is_stuck(self, now: float, retries: int) -> bool:
        """Whether nothing but retries has come about for a while."""
        if self._moved is None or self._moved[1] != self.done:
            self._moved = (now, self.done, retries)
        since, _, retried = self._moved
        return retries > retried and now - since >= PATIENCE

    @property
    def seconds_left(self) -> float | None:
        """Seconds until all planned is done, at the present rate; None where that cannot be told."""
        return (self.planned - self.done) / self.rate if self.planned and self.rate else None

    def _parts(self, usage: Account, stuck: bool) -> list[str]:
        parts = ["server does not answer, retrying"] if stuck else []
        if usage.get("tokens_in", 0):
            parts.append(f"tokens {short(usage['tokens_in'])} in {short(usage.get('tokens_out', 0))} out")
        if self.price is not None:
            parts.append(f"cost {self.price.cost(usage):.2f}")
        if usage.get("failures", 0):
            parts.append(f"{usage['failures']} failed")
        if usage.get("retries", 0) and not stuck:
            parts.append(f"{usage['retries']} retries")
        return parts

    @property
    def pace(self) -> str:
        """Done, rate and time left."""
        of = f" of {self.planned:,}" if self.planned else ""
        rate = f", {self.rate:.3g} a second" if self.rate else ""
        left = "" if not self.seconds_left else f", {clock(self.seconds_left)} left"
        return f"{self.done:,}{of} done{rate}{left}"

    def line(self) -> str:
        """The reading as one line of text."""
        return ", ".join(filter(None, (f"{self.name}: {self.pace}", self.words)))


def short(number: int) -> str:
    """A count in three digits: 950, 12.3k, 4.56M."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.3g}{letter}"
    return str(number)


def clock(seconds: float) -> str:
    """Seconds as H:MM:SS."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"


class ProgressDisplay:
    """Looks at usage_by_role from a thread of its own while the block runs, so that Ctrl-C reaches the block itself.

    On a terminal it draws bars that go away at the end; elsewhere, and under NO_COLOR or TERM=dumb, it writes a line
    every half minute.

    Args:
        console: of standard error.
        usage_by_role: what to look at, by what it is about.
        price: of what is counted.
        window: seconds over which the rate is taken.
    """

    def __init__(
        self,
        console: Console,
        usage_by_role: Mapping[str, Callable[[], Account]],
        price: Price | None = None,
        window: float = WINDOW,
    ) -> None:
        self.console, self.usage_by_role, self.price, self.window = console, usage_by_role, price, window
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="radfact-live", daemon=True)

    def __enter__(self) -> ProgressDisplay:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._over.set()
        self._thread.join(2)

    def _watch(self) -> None:
        meters = {name: Meter(name, self.price, self.window) for name in self.usage_by_role}
        if self.console.is_interactive and not self.console.no_color:
            self._draw(meters)
            return
        while not self._over.wait(EVERY_ELSEWHERE):
            for meter in self._read(meters):
                self.console.print(meter.line(), highlight=False, markup=False, soft_wrap=True)

    def _read(self, meters: Mapping[str, Meter]) -> list[Meter]:
        """The meters of what is under way."""
        now = time.monotonic()
        for name, meter in meters.items():
            meter.read(self.usage_by_role[name](), now)
        started = [meter for meter in meters.values() if meter.done or meter.planned]
        return [meter for meter in started if meter is started[-1] or meter.done < meter.planned]

    def _draw(self, meters: Mapping[str, Meter]) -> None:
        from rich.live import Live

        with Live(console=self.console, transient=True, auto_refresh=False) as display:
            while True:
                display.update(_picture(self._read(meters)), refresh=True)
                if self._over.wait(EVERY_ON_TERMINAL):
                    return


def _picture(meters: Sequence[Meter]) -> RenderableType:
    """A bar with the pace for each meter, and under it the rest, which a narrow terminal would cut off."""
    from rich.console import Group
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    lines: list[RenderableType] = []
    for meter in meters:
        row = Table.grid(padding=(0, 1))
        bar = ProgressBar(meter.planned or None, meter.done, width=20)
        row.add_row(Text(meter.name), bar, Text(meter.pace))
        lines += [row, Text(meter.words)] if meter.words else [row]
    return Group(*lines)
