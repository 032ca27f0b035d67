"""Judges and splitters by name; only what is named is imported."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from radfact.errors import InputError
from radfact.judges.callable_judge import load_python_judge
from radfact.judges.protocol import Judge, SplittingJudge
from radfact.judges.splitter import ExplainingSplitter, Splitter

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
    """Make a judge from its name; only the judge asked for is imported.

    Args:
        name: "offline"; "PROVIDER:MODEL" for a chat model through LangChain ("openai:MODEL" with `base_url` for any
            server that speaks the OpenAI protocol); "vllm:PATH" for a model in this process; "python:MODULE:OBJECT"
            for a judge of your own (a `Judge`, a factory of one, or a function as for `CallableJudge`).
        base_url: address of such a server.
        judge_args: further arguments by name: of the model (reasoning effort and the like), of the offline judge
            (`ontology`, a file), or of your own factory. In texts, numbers, booleans and lists are written as in YAML.
        few_shots: worked examples in the published layout, for a model instead of our own; `none` shows none.
        system: a file that replaces the system message of a model (paper 004, listing 3).
        answer_format: of a model: "yaml" as in the paper, or "schema" for JSON that the server holds to a schema.
        batch: one hypothesis a call to a model ("sentence", as in the paper), or all of a "report".
        concurrency: calls in flight to a model.
        cache: folder for the answers of a model, so that none is paid for twice; other judges keep none.

    Raises:
        InputError: an unknown name or provider, an option that does not fit the judge, or a package that is missing.
    """
    kind, _, rest = name.partition(":")
    for_models = {
        "base_url": base_url,
        "few_shots": few_shots,
        "system": system,
        "answer_format": answer_format if answer_format != "yaml" else None,
        "batch": batch if batch != "sentence" else None,
        "concurrency": concurrency,
    }
    if name == "offline":
        _refuse("the offline judge asks no server and no model", for_models)
        return _offline_judge(judge_args or {})
    if kind == "python":
        _refuse(f"{name} is a judge of your own, not a model", for_models)
        from radfact.llm import parse_model_args

        return load_python_judge(rest, parse_model_args(judge_args))
    if not (kind and rest):
        raise InputError(f"unknown judge '{name}'; use {JUDGE_NAMES}", field="judge")
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


def _refuse(reason: str, options: Mapping[str, Any]) -> None:
    for option, value in options.items():
        if value is not None:
            raise InputError(f"{reason}; leave this out, or name a model", field=option)


def _offline_judge(judge_args: Mapping[str, Any]) -> Judge:
    if unknown := sorted(set(judge_args) - {"ontology"}):
        raise InputError("the offline judge takes only 'ontology'", field=f"judge_args.{unknown[0]}")
    from radfact.judges.offline.judge import OfflineJudge

    return OfflineJudge(judge_args.get("ontology"))


def load_splitter(
    name: str,
    *,
    base_url: str | None = None,
    splitter_args: Mapping[str, Any] | None = None,
    few_shots: Path | None = None,
    concurrency: int | None = None,
    cache: Path | None = None,
) -> ExplainingSplitter:
    """Make a splitter from its name; what asks a model is imported only for one.

    Args:
        name: "offline"; "PROVIDER:MODEL" for a chat model through LangChain ("openai:MODEL" with `base_url` for any
            server that speaks the OpenAI protocol); "vllm:PATH" for a model in this process.
        base_url: address of such a server.
        splitter_args: further arguments by name, of the model, or of the offline splitter (`ontology`, a file).
        few_shots: worked examples in the published layout, for a model instead of our own.
        concurrency: calls in flight to a model.
        cache: folder for the answers of a model, so that none is paid for twice.

    Raises:
        InputError: an unknown name or provider, an option that does not fit the splitter, or a package that is missing.
    """
    if name == "offline":
        for option, value in (("base_url", base_url), ("few_shots", few_shots), ("concurrency", concurrency)):
            if value is not None:
                raise InputError(
                    "the offline splitter asks no server and no model; leave this out, or name a model", field=option
                )
        return _offline_splitter(splitter_args or {})
    provider, _, model = name.partition(":")
    if not (provider and model) or provider == "python":
        raise InputError(
            f"unknown splitter '{name}'; use offline, PROVIDER:MODEL as in openai:gpt-4o, or vllm:PATH",
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


def splitter_of(judge: Judge) -> Splitter:
    """Who splits beside a judge where nobody else is named: its model or rules, or the offline rules if it has none.

    Raises:
        InputError: what the judge's splitter needs is not there.
    """
    return judge.make_splitter() if isinstance(judge, SplittingJudge) else load_splitter("offline")


def _offline_splitter(splitter_args: Mapping[str, Any]) -> ExplainingSplitter:
    if unknown := sorted(set(splitter_args) - {"ontology"}):
        raise InputError("the offline splitter takes only 'ontology'", field=f"splitter_args.{unknown[0]}")
    from radfact.judges.offline.splitter import OfflineSplitter

    return OfflineSplitter(splitter_args.get("ontology"))
