"""Entailment: is a sentence true given another report, and which of its sentences say so."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from radfact.entailment.judge import Judge, Question, Status, Verdict
from radfact.errors import Failure, InputError

__all__ = ["Failure", "Judge", "Question", "Status", "Verdict", "load_judge"]


def load_judge(
    name: str,
    *,
    base_url: str | None = None,
    model_args: Mapping[str, str] | None = None,
    cache: Path | None = None,
) -> Judge:
    """Make a judge from its name; only the judge asked for is imported.

    Args:
        name: "offline", or "PROVIDER:MODEL" for a chat model through LangChain ("openai:MODEL" with `base_url` for any
            server that speaks the OpenAI protocol).
        base_url: address of such a server.
        model_args: further arguments of the chat model, and `few_shots` (a file in the published layout) and
            `concurrency` (calls in flight) of the judge.
        cache: folder for the answers of a chat model, so that none is paid for twice.

    Raises:
        InputError: an unknown name or provider, an option that does not fit, or a partner package that is missing.
    """
    if name == "offline":
        if base_url is not None:
            raise InputError(
                "the offline judge asks no server; leave it out, or name a model as PROVIDER:MODEL", field="base_url"
            )
        if unknown := sorted(set(model_args or {}) - {"ontology"}):
            raise InputError("the offline judge takes only 'ontology'", field=f"model_args.{unknown[0]}")
        from radfact.entailment.offline import OfflineJudge

        return OfflineJudge((model_args or {}).get("ontology"))
    provider, colon, model = name.partition(":")
    if not (colon and provider and model):
        raise InputError(f"unknown judge '{name}'; use offline, or PROVIDER:MODEL as in openai:gpt-4o", field="judge")
    from radfact.entailment.llm import load_llm_judge

    return load_llm_judge(name, base_url=base_url, model_args=model_args, cache=cache)
