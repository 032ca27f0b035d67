"""Limits of the cost of the client, loose enough for a busy machine; see tests/benchmarks/bench_llm_client.py."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from delay_server import delay_server
from langchain_openai import ChatOpenAI
from llm_load import PARAMETERS, judge_requests, measure

from radfact.llm import ChatClient, ResponseCache, load_chat_client
from radfact.llm.langchain import LangChainBackend


@pytest.fixture(scope="module")
def instant() -> Iterator[str]:
    with delay_server(0) as base_url:
        yield base_url


@pytest.mark.slow
def test_a_call_costs_little_cpu_and_a_fraction_of_langchain_s(
    instant: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    direct_times, langchain_times = [], []
    for number in range(3):
        with load_chat_client(
            "openai:m", base_url=instant, parameters=PARAMETERS, cache=tmp_path / f"a{number}"
        ) as direct:
            direct_times.append(measure(direct, judge_requests(200)).cpu_ms)
        backend = LangChainBackend(ChatOpenAI(model="m", base_url=instant, max_retries=0, **PARAMETERS))
        with ChatClient(backend, {"model": "m"}, cache=ResponseCache(tmp_path / f"b{number}")) as chain:
            langchain_times.append(measure(chain, judge_requests(20)).cpu_ms)
    # Other work on the machine can only increase the time.
    assert min(direct_times) < 5
    assert min(langchain_times) > 3 * min(direct_times)


@pytest.mark.slow
def test_the_pool_keeps_up_with_a_judge_of_300_ms(tmp_path: Path) -> None:
    rounds = 5
    walls = []
    with delay_server(0.3) as base_url:
        for number in range(3):
            with load_chat_client(
                "openai:m", base_url=base_url, parameters=PARAMETERS, cache=tmp_path / str(number)
            ) as client:
                walls.append(measure(client, judge_requests(rounds * client.concurrency)).wall)
    # The factor is 1.15 on an idle machine; other tests share the cores.
    assert min(walls) < 2 * rounds * 0.3
