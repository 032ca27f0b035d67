"""How vLLM has to run; tests/servers/test_vllm_generate.py runs it."""

import asyncio
from threading import Thread
from types import SimpleNamespace
from typing import Any

import pytest

from maira.generate import vllm_engine
from maira.generate.vllm_engine import VLLMEngine
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


class SleepingEngine:
    """Stands for vLLM's, which fails in one of its calls."""

    def __init__(self, failing: str) -> None:
        self.failing = failing

    async def call(self, name: str) -> None:
        if name == self.failing:
            raise ValueError("CUDA out of memory")

    def wake_up(self, tags: list[str]) -> Any:
        return self.call(*tags)

    def collective_rpc(self, method: str) -> Any:
        return self.call(method)

    def reset_prefix_cache(self) -> Any:
        return self.call("prefix_cache")


@pytest.mark.parametrize("failing", ["weights", "reload_weights", "kv_cache", "prefix_cache"])
def test_an_engine_that_cannot_load_weights_ends_with_an_explanation(failing: str) -> None:
    engine = VLLMEngine.__new__(VLLMEngine)
    engine._engine, engine._has_sleep_mode, engine._loop = SleepingEngine(failing), True, asyncio.new_event_loop()
    thread = Thread(target=engine._loop.run_forever)
    thread.start()
    try:
        with pytest.raises(RunError, match=r"cannot load the weights \(CUDA out of memory\)"):
            engine.load_weights()
    finally:
        engine._loop.call_soon_threadsafe(engine._loop.stop)
        thread.join()
        engine._loop.close()
