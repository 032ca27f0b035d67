"""How vLLM has to run; tests/servers/test_vllm_generate.py runs it."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from maira.generate import vllm_engine
from radfact.errors import RunError


class Engine:
    """Stands for vLLM's, which has one of two model runners."""

    def __init__(self, *, second: bool) -> None:
        self.vllm_config = SimpleNamespace(use_v2_model_runner=second)
        self.ended = False

    def shutdown(self) -> None:
        self.ended = True


def start(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(vllm_engine, "start_engine", lambda *_, **__: engine)
    monkeypatch.setattr(vllm_engine, "version", lambda _: "9.9")
    return asyncio.run(vllm_engine._start("folder", {}, "engine_args"))


def test_an_engine_without_grammar_support_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine(second=True)
    with pytest.raises(RunError, match=r"vLLM 9\.9 .* model runner"):
        start(engine, monkeypatch)
    assert engine.ended


def test_an_engine_with_grammar_support_is_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine(second=False)
    assert start(engine, monkeypatch) is engine
    assert not engine.ended
