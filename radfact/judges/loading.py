"""Load judges and splitters by name; imports only what the name needs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from radfact.errors import ErrorCode, InputError
from radfact.judges.callables import load_custom_judge
from radfact.judges.protocol import ExplainingSplitter, Judge, Splitter, SplittingJudge

if TYPE_CHECKING:
    from radfact.judges.prompt import AnswerFormat, Batch

JUDGE_NAMES = "offline, PROVIDER:MODEL as in openai:gpt-4o, vllm:PATH or python:MODULE:OBJECT"


def load_judge(
    name: str,
    *,
    base_url: str | None = None,
    judge_args: Mapping[str, Any] | None = None,
    few_shots: Path | None = None,
    system: Path | None = None,
    answer_format: AnswerFormat = "yaml",
    batch: Batch = "sentence",
    concurrency: int | None = None,
    cache: Path | None = None,
) -> Judge:
    """Load a judge by name.

    Args:
        name: "offline"; "PROVIDER:MODEL" for a chat model through LangChain ("openai:MODEL" with `base_url` for any
            server with the OpenAI protocol); "vllm:PATH" for a model in this process; "python:MODULE:OBJECT" for a
            custom judge (a `Judge`, a factory of one, or a function as in `CallableJudge`); "mock" for a `MockJudge`.
        base_url: address of the server.
        judge_args: further arguments by name: of the model (reasoning effort and the like), of the offline judge
            (`ontology`, a file), or of the factory. Texts are parsed as YAML (numbers, booleans, lists).
        few_shots: worked examples in the published layout, for a model; `none` shows none. Default: our own.
        system: file that replaces the system message of a model (MAIRA-2, listing 3).
        answer_format: of a model: "yaml" as in the paper, or "schema" for JSON that the server constrains to a schema.
        batch: one hypothesis per call to a model ("sentence", as in the paper), or all of a "report".
        concurrency: calls in flight to a model.
        cache: folder of the response cache of a model; other judges have none.

    Raises:
        InputError: an unknown name or provider, an option that does not fit the judge, or a missing package.
    """
    kind, _, path = name.partition(":")
    model_options = {
        "base_url": base_url,
        "few_shots": few_shots,
        "system": system,
        "answer_format": answer_format if answer_format != "yaml" else None,
        "batch": batch if batch != "sentence" else None,
        "concurrency": concurrency,
    }
    if name == "offline":
        from radfact.judges.offline.judge import OfflineJudge

        _check_no_model_options(name, model_options)
        return OfflineJudge(_ontology_argument(judge_args, "judge_args"))
    if name == "mock":
        from radfact.judges.mock import MockJudge

        _check_no_model_options(name, model_options)
        return MockJudge()
    if kind == "python":
        from radfact.llm import parse_model_args

        _check_no_model_options(name, model_options)
        return load_custom_judge(path, parse_model_args(judge_args))
    if not (kind and path):
        raise InputError(f"expected {JUDGE_NAMES}, found '{name}'", code=ErrorCode.UNKNOWN_NAME, field="judge")
    from radfact.judges.llm_judge import load_llm_judge

    return load_llm_judge(
        name,
        base_url=base_url,
        judge_args=judge_args,
        few_shots=few_shots,
        system=system,
        answer_format=answer_format,
        batch=batch,
        concurrency=concurrency,
        cache=cache,
    )


def load_splitter(
    name: str,
    *,
    base_url: str | None = None,
    splitter_args: Mapping[str, Any] | None = None,
    few_shots: Path | None = None,
    concurrency: int | None = None,
    cache: Path | None = None,
) -> ExplainingSplitter:
    """Load a splitter by name.

    Args:
        name: "offline"; "PROVIDER:MODEL" for a chat model through LangChain ("openai:MODEL" with `base_url` for any
            server with the OpenAI protocol); "vllm:PATH" for a model in this process.
        base_url: address of the server.
        splitter_args: further arguments by name, of the model or of the offline splitter (`ontology`, a file).
        few_shots: worked examples in the published layout, for a model. Default: our own.
        concurrency: calls in flight to a model.
        cache: folder of the response cache of a model.

    Raises:
        InputError: an unknown name or provider, an option that does not fit the splitter, or a missing package.
    """
    if name == "offline":
        from radfact.judges.offline.splitter import OfflineSplitter

        _check_no_model_options(name, {"base_url": base_url, "few_shots": few_shots, "concurrency": concurrency})
        return OfflineSplitter(_ontology_argument(splitter_args, "splitter_args"))
    provider, _, model = name.partition(":")
    if not (provider and model) or provider == "python":
        raise InputError(
            f"expected offline, PROVIDER:MODEL as in openai:gpt-4o, or vllm:PATH, found '{name}'",
            code=ErrorCode.UNKNOWN_NAME,
            field="splitter",
        )
    from radfact.judges.llm_splitter import load_llm_splitter

    return load_llm_splitter(
        name,
        base_url=base_url,
        splitter_args=splitter_args,
        few_shots=few_shots,
        concurrency=concurrency,
        cache=cache,
    )


def default_splitter(judge: Judge) -> Splitter:
    """Return the splitter of the judge's own model or rules, or the offline splitter if the judge has none.

    Raises:
        InputError: something that the judge's splitter needs is missing.
    """
    return judge.make_splitter() if isinstance(judge, SplittingJudge) else load_splitter("offline")


def _check_no_model_options(name: str, options: Mapping[str, Any]) -> None:
    for option, value in options.items():
        if value is not None:
            raise InputError(
                f"expected no such option, since '{name}' is no language model; omit it or name a model",
                code=ErrorCode.CONFLICTING_OPTIONS,
                field=option,
            )


def _ontology_argument(arguments: Mapping[str, Any] | None, option: str) -> Path | str | None:
    """Return the argument `ontology`, the only one of the offline judge and splitter."""
    arguments = arguments or {}
    if unknown := sorted(set(arguments) - {"ontology"}):
        raise InputError(
            f"expected only 'ontology', found '{unknown[0]}'",
            code=ErrorCode.INVALID_OPTION,
            field=f"{option}.{unknown[0]}",
        )
    return arguments.get("ontology")
