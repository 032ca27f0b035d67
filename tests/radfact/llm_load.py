"""Requests of the size of the paper's judge's, and what it costs to have them answered."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from delay_server import ANSWER

from radfact.llm import ChatClient, ChatRequest, PromptPrefix

PARAMETERS: dict[str, Any] = {"temperature": 0, "top_p": 1, "max_tokens": 1024}
_SHOTS = 67


def _request(number: int) -> str:
    sides = ("right", "left", "upper", "lower", "middle")
    premises = [f"There is a finding number {number} of kind {i} in the {sides[i]} zone." for i in range(5)]
    listed = "\n- ".join(premises)
    return f"reference:\n- {listed}\nhypothesis: Finding number {number} is seen.\n"


def judge_prefix() -> PromptPrefix:
    """A system message and 67 worked requests: 135 messages, about 28 kB as JSON."""
    turns = [turn for i in range(_SHOTS) for turn in (("user", _request(i)), ("assistant", ANSWER))]
    return PromptPrefix([("system", "Say whether the hypothesis follows from the reference."), *turns])


def judge_asks(count: int) -> list[ChatRequest[str]]:
    """Different requests after one prefix."""
    prefix = judge_prefix()
    return [ChatRequest((("user", _request(1000 + i)),), str, prefix) for i in range(count)]


@dataclass(frozen=True, slots=True)
class Cost:
    """Seconds of wall clock and of this process's CPU for a number of calls."""

    calls: int
    wall: float
    cpu: float

    @property
    def cpu_ms(self) -> float:
        """CPU time of one call, in milliseconds."""
        return 1000 * self.cpu / self.calls


def measure(client: ChatClient, asks: Sequence[ChatRequest[Any]]) -> Cost:
    """Ask all, after one request more that opens connections and imports what is imported late."""
    warm = ChatRequest((("user", "warm"),), str, asks[0].prefix)
    client.complete_all([warm])
    cost = measured(lambda: client.complete_all(asks), len(asks))
    assert client.usage_counter.calls == len(asks) + 1
    return cost


def measured(work: Callable[[], object], calls: int) -> Cost:
    """The cost of `work`, which makes so many calls, without that of collecting other people's garbage."""
    gc.disable()
    try:
        wall, cpu = time.perf_counter(), time.process_time()
        work()
        return Cost(calls, time.perf_counter() - wall, time.process_time() - cpu)
    finally:
        gc.enable()
