"""Bars on what the client costs, loose enough for a busy machine; tests/benchmarks/bench_llm_client.py measures."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from delay_server import delay_server
from langchain_openai import ChatOpenAI
from llm_load import PARAMETERS, judge_asks, measure

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
    ours, theirs = [], []
    for turn in range(3):
        with load_chat_client(
            "openai:m", base_url=instant, parameters=PARAMETERS, cache=tmp_path / f"a{turn}"
        ) as direct:
            ours.append(measure(direct, judge_asks(200)).cpu_ms)
        backend = LangChainBackend(ChatOpenAI(model="m", base_url=instant, max_retries=0, **PARAMETERS))
        with ChatClient(backend, {"model": "m"}, cache=ResponseCache(tmp_path / f"b{turn}")) as chain:
            theirs.append(measure(chain, judge_asks(20)).cpu_ms)
    # What else the process does meanwhile can only add to it.
    assert min(ours) < 5
    assert min(theirs) > 3 * min(ours)


@pytest.mark.slow
def test_the_pool_keeps_up_with_a_judge_of_300_ms(tmp_path: Path) -> None:
    rounds = 5
    walls = []
    with delay_server(0.3) as base_url:
        for turn in range(3):
            with load_chat_client(
                "openai:m", base_url=base_url, parameters=PARAMETERS, cache=tmp_path / str(turn)
            ) as client:
                walls.append(measure(client, judge_asks(rounds * client.concurrency)).wall)
    # The factor is 1.15 on an idle machine; other tests share the cores.
    assert min(walls) < 2 * rounds * 0.3
