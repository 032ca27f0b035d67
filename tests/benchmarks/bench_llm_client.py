"""What the client of language models costs: calls per second and CPU time a call, against a server that only waits.

Run as `python tests/benchmarks/bench_llm_client.py`. Every question has the size of the paper's judge's, 136 messages
and about 28 kB, and every answer is committed to disk before it counts. The server is another process, so that its CPU
time is not the client's.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "radfact"))

from delay_server import delay_server
from llm_load import PARAMETERS, Cost, judge_asks, judge_prefix, measure

from radfact.llm import ChatClient, ResponseCache, load_chat_client
from radfact.llm.langchain import LangChainBackend

CONCURRENCIES = (1, 16, 64, 256)
LANGCHAIN_CALLS = 200


def main() -> None:
    """Print one line a concurrency, then what both routes cost in the same run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=0.3, help="that the server takes for an answer")
    parser.add_argument("--calls", type=int, default=1000, help="at each concurrency from 16 on")
    given = parser.parse_args()
    prefix = judge_prefix()
    print(f"{len(prefix.messages) + 1} messages, prefix of {len(prefix.json):,} bytes, {given.seconds:g} s an answer")
    print(f"{'route':10} {'in flight':>9} {'calls':>6} {'calls/s':>8} {'of bound':>8} {'CPU ms/call':>11}")
    with delay_server(given.seconds) as base_url:
        for concurrency in CONCURRENCIES:
            calls = given.calls if concurrency > 1 else max(given.calls // 50, 10)
            cost = _aiohttp(base_url, calls, concurrency)
            _row("aiohttp", concurrency, cost, given.seconds)
    with delay_server(0.0) as base_url:
        plain = _aiohttp(base_url, given.calls, 64)
        _row("aiohttp", 64, plain, 0.0)
        chain = _langchain(base_url, LANGCHAIN_CALLS, 64)
        _row("LangChain", 64, chain, 0.0)
    print(f"LangChain takes {chain.cpu_ms / plain.cpu_ms:.1f} times the CPU time of aiohttp")


def _aiohttp(base_url: str, calls: int, concurrency: int) -> Cost:
    with (
        tempfile.TemporaryDirectory() as folder,
        load_chat_client(
            "openai:m", base_url=base_url, parameters=PARAMETERS, concurrency=concurrency, cache=Path(folder)
        ) as client,
    ):
        return measure(client, judge_asks(calls))


def _langchain(base_url: str, calls: int, concurrency: int) -> Cost:
    from langchain_openai import ChatOpenAI

    os.environ.setdefault("OPENAI_API_KEY", "none")
    backend = LangChainBackend(ChatOpenAI(model="m", base_url=base_url, max_retries=0, **PARAMETERS))
    with (
        tempfile.TemporaryDirectory() as folder,
        ChatClient(backend, {"model": "m"}, concurrency=concurrency, cache=ResponseCache(folder)) as client,
    ):
        return measure(client, judge_asks(calls))


def _row(route: str, concurrency: int, cost: Cost, seconds: float) -> None:
    bound = f"{cost.wall / (cost.calls * seconds / concurrency):8.2f}" if seconds else f"{'-':>8}"
    print(
        f"{route:10} {concurrency:9} {cost.calls:6} {cost.calls / cost.wall:8.1f} {bound} {cost.cpu_ms:11.2f}",
        flush=True,
    )


if __name__ == "__main__":
    main()
