"""Judges, splitters and chat clients by name: what their loaders refuse (`refused_options.yaml`), and what they set."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from error_checks import raises, raises_code
from langchain_core.language_models.fake_chat_models import FakeListChatModel
from llm_client import ROUTES, SECRET
from pydantic import model_validator

from radfact.errors import ErrorCode
from radfact.judges import load_judge, load_splitter
from radfact.judges.check import load_labeled_queries
from radfact.judges.llm_splitter import load_split_examples
from radfact.judges.prompt import load_few_shots
from radfact.llm import load_chat_client, parse_model_args
from radfact.llm.langchain import PARTNERS, load_chat_model
from radfact.llm.loading import CONCURRENCY_OWN_SERVER, CONCURRENCY_PROVIDER
from radfact.metrics.llm.vert_shots import load_shots

REFUSED: dict[str, dict[str, Any]] = yaml.safe_load(Path(__file__).with_name("refused_options.yaml").read_text("utf-8"))
LOADERS: dict[str, Callable[..., object]] = {
    "judge": load_judge,
    "splitter": load_splitter,
    "chat client": load_chat_client,
    "model arguments": parse_model_args,
}
READERS: dict[str, Callable[[Path], object]] = {
    "few shots": load_few_shots,
    "labeled queries": load_labeled_queries,
    "split examples": load_split_examples,
    "shots of VERT": load_shots,
}


@pytest.mark.parametrize(
    ("loader", "name", "options", "error"),
    [(loader, *case) for loader, cases in REFUSED["options"].items() for case in cases],
)
def test_wrong_names_and_options_are_refused(loader: str, name: Any, options: dict[str, Any], error: str) -> None:
    with raises(error) as caught:
        LOADERS[loader](name, **options)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("reader", "content", "error"), [(reader, *case) for reader, cases in REFUSED["files"].items() for case in cases]
)
def test_wrong_example_files_are_refused(tmp_path: Path, reader: str, content: Any, error: str) -> None:
    path = tmp_path / "shots.json"
    path.write_text(json.dumps(content))
    with raises(f"shots.json: {error}"):
        READERS[reader](path)


@pytest.mark.parametrize("route", ROUTES)
def test_a_key_with_a_line_break_is_refused(route: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", f"{SECRET}\nX-Header: 1")
    with raises_code(ErrorCode.INVALID_OPTION, field="OPENAI_API_KEY"):
        load_chat_client("openai:m", base_url="http://127.0.0.1:9/v1" if route == "aiohttp" else None)


def test_a_local_server_has_a_higher_concurrency(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-any-key-at-all")
    assert load_chat_client("openai:m", base_url="http://localhost:1/v1").concurrency == CONCURRENCY_OWN_SERVER == 64
    assert load_chat_client("openai:m").concurrency == CONCURRENCY_PROVIDER == 16


def test_a_missing_package_or_key_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with raises_code(ErrorCode.MISSING_REQUIREMENT, match=r"pip install \"maira-radfact\[cohere\]\""):
        load_chat_client("cohere:command")
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with raises_code(ErrorCode.MISSING_REQUIREMENT, match="OPENAI_API_KEY"):
        load_chat_client("openai:m")


def test_model_arguments_are_converted_to_numbers() -> None:
    arguments = {"temperature": "0.5", "seed": "3", "user": "abc", "stop": "[a, b]", "stop_token_ids": "[2]"}
    values = {"temperature": 0.5, "seed": 3, "user": "abc", "stop": ["a", "b"], "stop_token_ids": [2]}
    assert parse_model_args(arguments) == parse_model_args(values) == values


class _Named(FakeListChatModel):
    """A provider's model without `top_p`; "reasons" ignores a temperature."""

    model: str
    temperature: float | None = None

    @model_validator(mode="before")
    @classmethod
    def _without_temperature(cls, values: dict[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in values.items() if (name, values["model"]) != ("temperature", "reasons")}


@pytest.mark.parametrize(("model", "ignored"), [("model", "top_p"), ("reasons", "temperature")])
def test_arguments_that_would_be_ignored_are_refused(monkeypatch: pytest.MonkeyPatch, model: str, ignored: str) -> None:
    monkeypatch.setitem(PARTNERS, "fake", (__name__, "_Named"))
    assert load_chat_model("fake:model", {"responses": ["yes"], "temperature": 0})
    with raises_code(ErrorCode.INVALID_OPTION, match=f"{ignored}=null", field=f"judge_args.{ignored}"):
        load_chat_model(f"fake:{model}", {"responses": ["yes"], ignored: 0})
