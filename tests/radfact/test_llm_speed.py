"""Bars on what the client costs, loose enough for a busy machine; tests/benchmarks/bench_llm_client.py measures."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from delay_server import delay_server
from langchain_openai import ChatOpenAI
from llm_load import PARAMETERS, judge_asks, measure

from radfact.llm import AnswerCache, ChatClient, connect
from radfact.llm.langchain import LangChainBackend


@pytest.fixture(scope="module")
def instant() -> Iterator[str]:
    with delay_server(0) as base_url:
        yield base_url


def test_a_call_costs_little_cpu_and_a_fraction_of_langchain_s(
    instant: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    with connect("openai:m", base_url=instant, parameters=PARAMETERS, cache=tmp_path / "a") as direct:
        ours = measure(direct, judge_asks(200)).cpu_ms
    backend = LangChainBackend(ChatOpenAI(model="m", base_url=instant, max_retries=0, **PARAMETERS))
    with ChatClient(backend, {"model": "m"}, cache=AnswerCache(tmp_path / "b")) as chain:
        theirs = measure(chain, judge_asks(30)).cpu_ms
    assert ours < 5
    assert theirs > 3 * ours


def test_the_pool_keeps_up_with_a_judge_of_300_ms(tmp_path: Path) -> None:
    rounds = 5
    with (
        delay_server(0.3) as base_url,
        connect("openai:m", base_url=base_url, parameters=PARAMETERS, cache=tmp_path) as client,
    ):
        cost = measure(client, judge_asks(rounds * client.concurrency))
    # The bar is 1.15 on an idle machine.
    assert cost.wall < 1.5 * rounds * 0.3
