"""Requests as long as those of the paper's judge, and their cost for the client."""

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
    """Return a system message and 67 worked examples: 135 messages, about 28 kB as JSON."""
    turns = [turn for i in range(_SHOTS) for turn in (("user", _request(i)), ("assistant", ANSWER))]
    return PromptPrefix([("system", "Say whether the hypothesis follows from the reference."), *turns])


def judge_requests(count: int) -> list[ChatRequest[str]]:
    """Return different requests with the same prefix."""
    prefix = judge_prefix()
    return [ChatRequest((("user", _request(1000 + i)),), str, prefix) for i in range(count)]


@dataclass(frozen=True, slots=True)
class Cost:
    """Wall-clock seconds and CPU seconds of this process for a number of calls."""

    calls: int
    wall: float
    cpu: float

    @property
    def cpu_ms(self) -> float:
        """CPU time of one call, in milliseconds."""
        return 1000 * self.cpu / self.calls


def measure(client: ChatClient, requests: Sequence[ChatRequest[Any]]) -> Cost:
    """Send all requests after a warm-up request, and return their cost."""
    warm_up = ChatRequest((("user", "warm-up"),), str, requests[0].prefix)
    client.complete_all([warm_up])
    cost = measure_function(lambda: client.complete_all(requests), len(requests))
    assert client.usage_counter.calls == len(requests) + 1
    return cost


def measure_function(function: Callable[[], object], calls: int) -> Cost:
    """Return the cost of a function that makes a number of calls, without garbage collection."""
    gc.disable()
    try:
        wall, cpu = time.perf_counter(), time.process_time()
        function()
        return Cost(calls, time.perf_counter() - wall, time.process_time() - cpu)
    finally:
        gc.enable()
