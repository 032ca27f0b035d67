"""Load judges and splitters by name; imports only what the name needs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from radfact.errors import ErrorCode, describe_choice, option_error
from radfact.judges.callables import MockJudge, load_custom_judge
from radfact.judges.options import JudgeOptions
from radfact.judges.protocol import ExplainingSplitter, Judge, Splitter
from radfact.options import rename_fields

_MODEL_OPTIONS = ("base_url", "few_shots", "system", "answer_format", "batch", "concurrency")


def load_judge(name: str, *, cache: Path | None = None, **options: Any) -> Judge:
    """Load a judge by name.

    Args:
        name: "offline"; "PROVIDER:MODEL" for a chat model through LangChain ("openai:MODEL" with `base_url` for any
            server with the OpenAI protocol); "vllm:PATH" for a model in this process; "python:MODULE:OBJECT" for a
            custom judge (a `Judge`, a factory of one, or a function as in `CallableJudge`); "mock" for a `MockJudge`.
        cache: folder of the response cache of a model; other judges have none.
        options: fields of `radfact.judges.options.JudgeOptions`, such as `base_url` or `judge_args` (arguments of the
            model, of the offline judge (`ontology`, a file) or of the factory; texts are parsed as YAML).

    Raises:
        InputError: an unknown name or provider, an option that does not fit the judge, or a missing package.
    """
    return judge_of(JudgeOptions(judge=name, **options), cache)


def judge_of(options: JudgeOptions, cache: Path | None) -> Judge:
    """Load the judge of options, in this process."""
    name, judge_args = options.required_judge, options.judge_args
    kind, _, path = name.partition(":")
    if name in ("offline", "mock") or kind == "python":
        _check_model_options(options)
    if name == "offline":
        from radfact.judges.offline import OfflineJudge

        return OfflineJudge(_ontology_argument(judge_args))
    if name == "mock":
        return MockJudge()
    if kind == "python":
        from radfact.llm import parse_model_args

        return load_custom_judge(path, parse_model_args(judge_args))
    if not (kind and path):
        known = "offline, PROVIDER:MODEL as in openai:gpt-4o, vllm:PATH or python:MODULE:OBJECT"
        raise option_error(f"expected {known}, found '{name}'", "judge", ErrorCode.UNKNOWN_NAME)
    from radfact.judges.llm_judge import load_llm_judge

    return load_llm_judge(options, cache)


def load_splitter(name: str, *, cache: Path | None = None, **options: Any) -> ExplainingSplitter:
    """Load a splitter by name.

    Args:
        name: "offline"; "PROVIDER:MODEL" for a chat model through LangChain ("openai:MODEL" with `base_url` for any
            server with the OpenAI protocol); "vllm:PATH" for a model in this process.
        cache: folder of the response cache of a model.
        options: `base_url`, `few_shots`, `concurrency` and `max_invalid` of `radfact.judges.options.JudgeOptions`, and
            `splitter_args`, arguments of the model or of the offline splitter (`ontology`, a file).

    Raises:
        InputError: an unknown name or provider, an option that does not fit the splitter, or a missing package.
    """
    options["judge_args"] = options.pop("splitter_args", None)
    with rename_fields({"judge": "splitter", "judge_args": "splitter_args"}):
        return splitter_of(JudgeOptions(judge=name, **options), cache)


def splitter_of(options: JudgeOptions, cache: Path | None) -> ExplainingSplitter:
    """Load the splitter that options name as their judge, in this process."""
    name = options.required_judge
    provider, _, model = name.partition(":")
    if name == "offline":
        from radfact.judges.offline_splitter import OfflineSplitter

        _check_model_options(options)
        arguments = dict(options.judge_args)
        keep = arguments.pop("keep_interpretations", False)
        if keep not in (True, False, "true", "false"):
            message = f"expected true or false, found {describe_choice(keep)}"
            raise option_error(message, "judge_args.keep_interpretations")
        return OfflineSplitter(_ontology_argument(arguments), keep_interpretations=keep in (True, "true"))
    if not (provider and model) or provider == "python":
        message = f"expected offline, PROVIDER:MODEL as in openai:gpt-4o, or vllm:PATH, found '{name}'"
        raise option_error(message, "judge", ErrorCode.UNKNOWN_NAME)
    from radfact.judges.llm_splitter import load_llm_splitter

    return load_llm_splitter(options, cache)


def default_splitter(judge: Judge) -> Splitter:
    """Return the splitter of the judge's own model or rules, or the offline splitter if the judge has none."""
    make_own: Callable[[], Splitter] | None = getattr(judge, "make_splitter", None)
    return make_own() if make_own else load_splitter("offline")


def _check_model_options(options: JudgeOptions) -> None:
    for option in _MODEL_OPTIONS:
        if getattr(options, option) != JudgeOptions.model_fields[option].default:
            message = f"expected no such option, since '{options.judge}' is no language model; omit it or name a model"
            raise option_error(message, option, ErrorCode.CONFLICTING_OPTIONS)


def _ontology_argument(arguments: Mapping[str, Any]) -> Path | str | None:
    """Return the argument `ontology`, the only one of the offline judge and splitter."""
    if unknown := sorted(set(arguments) - {"ontology"}):
        raise option_error(f"expected only 'ontology', found '{unknown[0]}'", f"judge_args.{unknown[0]}")
    return arguments.get("ontology")
