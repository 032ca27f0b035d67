"""Options of the judge and of the splitter."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, NonNegativeInt, PositiveInt, ValidationInfo, model_validator

from radfact.errors import ErrorCode, InputError
from radfact.options import Option, Options, rename_fields

if TYPE_CHECKING:
    from radfact.judges.protocol import Judge, Splitter
    from radfact.llm import ChatClient

VARIABLE = "RADFACT_JUDGE"
"""Environment variable that names the judge where no option does."""


def _check_arguments(value: Mapping[str, Any], info: ValidationInfo) -> Mapping[str, Any]:
    """Refuse keys of providers, which must not reach a record."""
    if value:
        from radfact.llm import parse_model_args

        parse_model_args(value, field=str(info.field_name))
    return value


class JudgeOptions(Options):
    """The judge, where it runs, and the splitter of narratives."""

    panel = "Judge"

    judge: Annotated[
        str | None,
        Option(
            "offline, PROVIDER:MODEL, vllm:PATH or python:MODULE:OBJECT; no default. The environment variable "
            "RADFACT_JUDGE also sets it.",
            metavar="NAME",
        ),
    ] = None
    judge_args: Annotated[
        Mapping[str, Any],
        AfterValidator(_check_arguments),
        Option(
            "Argument passed to the model, such as reasoning_effort=low; repeatable.",
            flag="--judge-arg",
            metavar="KEY=VALUE",
        ),
    ] = Field(default_factory=dict)
    base_url: Annotated[str | None, Option("Address of an OpenAI-compatible server.", metavar="URL")] = None
    few_shots: Annotated[
        Path | None,
        Option(
            "Few-shot examples in the published format. Default: the built-in ones. 'none': zero-shot.", metavar="FILE"
        ),
    ] = None
    system: Annotated[Path | None, Option("System message. Default: that of the paper.", metavar="FILE")] = None
    answer_format: Annotated[
        Literal["yaml", "schema"],
        Option(
            "Response format: YAML as in the paper, or JSON constrained to a schema by the server.",
            flag="--format",
        ),
    ] = "yaml"
    batch: Annotated[
        Literal["sentence", "report"],
        Option("Unit of one call: a sentence, as in the paper, or a report."),
    ] = "sentence"
    concurrency: Annotated[PositiveInt | None, Option("Number of parallel calls.", metavar="N")] = None
    max_invalid: Annotated[
        NonNegativeInt | None,
        Option(
            "Stop if the first N responses of a model are all invalid; 0 disables this check. Default: 10.", metavar="N"
        ),
    ] = None
    splitter: Annotated[
        str | None,
        Option("Splits narratives into sentences: offline or a model. Default: the judge.", metavar="NAME"),
    ] = None
    splitter_args: Annotated[
        Mapping[str, Any],
        AfterValidator(_check_arguments),
        Option(
            "Argument passed to the splitter, such as keep_interpretations=true for offline; repeatable.",
            flag="--splitter-arg",
            metavar="KEY=VALUE",
        ),
    ] = Field(default_factory=dict)
    splitter_few_shots: Annotated[
        Path | None, Option("Few-shot examples for splitting, in the published format.", metavar="FILE")
    ] = None
    engine: Annotated[
        Literal["local", "ray"],
        Option("local: in this process; ray: on a Ray cluster, with a judge in each worker process."),
    ] = "local"
    workers: Annotated[PositiveInt | None, Option("Number of Ray workers (--engine ray).", metavar="N")] = None

    @model_validator(mode="after")
    def _fit_engine(self) -> Self:
        if self.workers is not None and self.engine != "ray":
            raise InputError("only available with --engine ray", code=ErrorCode.CONFLICTING_OPTIONS, field="workers")
        return self

    def or_environment(self) -> Self:
        """Return the options with the judge that the environment names, if no option does."""
        return self if self.judge else self.model_copy(update={"judge": os.environ.get(VARIABLE) or None})

    @property
    def required_judge(self) -> str:
        """The name of the judge; InputError if none is named."""
        if self.judge is None:
            choice = f"choose 'offline' or PROVIDER:MODEL (for example openai:MODEL), or set {VARIABLE}"
            raise InputError(f"expected a judge, found none; {choice}", code=ErrorCode.MISSING_OPTION, field="judge")
        return self.judge

    def load_client(self, parameters: Mapping[str, Any], cache: Path | None = None, *, name: str = "") -> ChatClient:
        """Load the client of a model; arguments of the judge replace parameters. See `load_chat_client`."""
        from radfact.llm import load_chat_client, parse_model_args

        return load_chat_client(
            name or self.required_judge,
            base_url=self.base_url,
            parameters={**parameters, **parse_model_args(self.judge_args)},
            concurrency=self.concurrency,
            max_invalid=self.max_invalid,
            cache=cache,
        )

    def load(self, cache: Path | None = None) -> Judge:
        """Load the judge, with a folder for the response cache of a model."""
        if self.engine == "ray":
            from radfact.judges.ray import RayJudge

            return RayJudge(self, cache)
        from radfact.judges.loading import judge_of

        return judge_of(self, cache)

    def load_splitter(self, judge: Judge | None, cache: Path | None = None) -> Splitter:
        """Load the splitter: the named one, or that of the judge, or the offline splitter.

        Args:
            judge: the judge that `load` returned; not needed for another splitter than the judge's.
            cache: folder of the response cache of a model.
        """
        from radfact.judges import load_splitter

        if self.engine == "ray":
            from radfact.judges.ray import RaySplitter

            return RaySplitter(self, cache)
        make_own: Callable[[], Splitter] | None = getattr(judge, "make_splitter", None)
        own_options = [option for option in ("splitter_args", "splitter_few_shots") if getattr(self, option)]
        if make_own and self.splitter in (None, self.judge) and not own_options:
            return make_own()
        name = self.splitter or (self.required_judge if make_own else "offline")
        is_same, is_model = name == self.judge, name != "offline"
        if is_same and make_own and name.startswith("python:"):
            message = "the judge's own splitter takes no arguments; name another splitter"
            raise InputError(message, code=ErrorCode.CONFLICTING_OPTIONS, field=own_options[0])
        with rename_fields({"few_shots": "splitter_few_shots"}):
            # The address and the arguments of the judge are those of its model, not of another one.
            return load_splitter(
                name,
                base_url=self.base_url if is_same and is_model else None,
                splitter_args={**(self.judge_args if is_same else {}), **self.splitter_args},
                few_shots=self.splitter_few_shots,
                concurrency=self.concurrency if is_model else None,
                max_invalid=self.max_invalid,
                cache=cache,
            )
