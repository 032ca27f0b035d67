"""Cost of the client of language models: calls per second and CPU time per call, with a server that only waits.

Run as `python tests/benchmarks/bench_llm_client.py`. Every request is as long as one of the paper's judge, 136 messages
and about 28 kB, and every response is cached on disk. The server is a separate process, so its CPU time is not counted.
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "radfact"))

from delay_server import ANSWER, delay_server

from radfact.llm import ChatClient, ChatRequest, PromptPrefix, ResponseCache, load_chat_client
from radfact.llm.langchain import LangChainBackend

CONCURRENCIES = (1, 16, 64, 256)
LANGCHAIN_CALLS = 200

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


class Cost(NamedTuple):
    """Wall-clock seconds and CPU seconds of this process for a number of calls."""

    calls: int
    wall: float
    cpu: float

    @property
    def cpu_ms(self) -> float:
        """CPU time of one call, in milliseconds."""
        return 1000 * self.cpu / self.calls


def measure(client: ChatClient, requests: Sequence[ChatRequest[Any]]) -> Cost:
    """Send all requests after a warm-up request, without garbage collection, and return their cost."""
    client.complete_all([ChatRequest((("user", "warm-up"),), str, requests[0].prefix)])
    gc.disable()
    try:
        wall, cpu = time.perf_counter(), time.process_time()
        client.complete_all(requests)
        return Cost(len(requests), time.perf_counter() - wall, time.process_time() - cpu)
    finally:
        gc.enable()


def main() -> None:
    """Print one line per concurrency, then compare with LangChain."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=0.3, help="delay of a response")
    parser.add_argument("--calls", type=int, default=1000, help="calls at each concurrency above 1")
    arguments = parser.parse_args()
    prefix = judge_prefix()
    print(f"{len(prefix.messages) + 1} messages, prefix of {len(prefix.json):,} bytes, delay {arguments.seconds:g} s")
    print(f"{'client':10} {'in flight':>9} {'calls':>6} {'calls/s':>8} {'of bound':>8} {'CPU ms/call':>11}")
    with delay_server(arguments.seconds) as base_url:
        for concurrency in CONCURRENCIES:
            calls = arguments.calls if concurrency > 1 else max(arguments.calls // 50, 10)
            cost = _measure_aiohttp(base_url, calls, concurrency)
            _print_row("aiohttp", concurrency, cost, arguments.seconds)
    with delay_server(0.0) as base_url:
        aiohttp = _measure_aiohttp(base_url, arguments.calls, 64)
        _print_row("aiohttp", 64, aiohttp, 0.0)
        langchain = _measure_langchain(base_url, LANGCHAIN_CALLS, 64)
        _print_row("LangChain", 64, langchain, 0.0)
    print(f"LangChain takes {langchain.cpu_ms / aiohttp.cpu_ms:.1f} times the CPU time of aiohttp")


def _measure_aiohttp(base_url: str, calls: int, concurrency: int) -> Cost:
    with (
        tempfile.TemporaryDirectory() as folder,
        load_chat_client(
            "openai:m", base_url=base_url, parameters=PARAMETERS, concurrency=concurrency, cache=Path(folder)
        ) as client,
    ):
        return measure(client, judge_requests(calls))


def _measure_langchain(base_url: str, calls: int, concurrency: int) -> Cost:
    from langchain_openai import ChatOpenAI

    os.environ.setdefault("OPENAI_API_KEY", "none")
    backend = LangChainBackend(ChatOpenAI(model="m", base_url=base_url, max_retries=0, **PARAMETERS))
    with (
        tempfile.TemporaryDirectory() as folder,
        ChatClient(backend, {"model": "m"}, concurrency=concurrency, cache=ResponseCache(folder)) as client,
    ):
        return measure(client, judge_requests(calls))


def _print_row(client: str, concurrency: int, cost: Cost, seconds: float) -> None:
    bound = f"{cost.wall / (cost.calls * seconds / concurrency):8.2f}" if seconds else f"{'-':>8}"
    print(
        f"{client:10} {concurrency:9} {cost.calls:6} {cost.calls / cost.wall:8.1f} {bound} {cost.cpu_ms:11.2f}",
        flush=True,
    )


if __name__ == "__main__":
    main()
