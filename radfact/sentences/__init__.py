"""Narrative findings to single-finding sentences."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from radfact.entailment.judge import Judge, SplittingJudge
from radfact.errors import InputError
from radfact.sentences.offline import OfflineSplitter, split_narrative
from radfact.sentences.splitter import ExplainingSplitter, SplitSentence, Splitter

__all__ = ["ExplainingSplitter", "SplitSentence", "Splitter", "load_splitter", "split_narrative", "splitter_of"]


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
        return _offline(splitter_args or {})
    provider, _, model = name.partition(":")
    if not (provider and model) or provider == "python":
        raise InputError(
            f"unknown splitter '{name}'; use offline, PROVIDER:MODEL as in openai:gpt-4o, or vllm:PATH",
            field="splitter",
        )
    from radfact.sentences.llm import load_llm_splitter

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


def _offline(splitter_args: Mapping[str, Any]) -> ExplainingSplitter:
    if unknown := sorted(set(splitter_args) - {"ontology"}):
        raise InputError("the offline splitter takes only 'ontology'", field=f"splitter_args.{unknown[0]}")
    return OfflineSplitter(splitter_args.get("ontology"))
