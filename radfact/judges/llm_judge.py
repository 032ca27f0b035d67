"""The judge of the paper: a chat model with ten worked reports that gives evidence first and status second."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from radfact.errors import ErrorCode, Failure, InputError
from radfact.io.jsonl import read_text
from radfact.judges.llm_splitter import PromptedModel, load_llm_splitter
from radfact.judges.offline_splitter import OfflineSplitter
from radfact.judges.options import JudgeOptions
from radfact.judges.prompt import (
    DEFAULT_FEW_SHOTS,
    SYSTEM_MESSAGE,
    AnswerFormat,
    Batch,
    Example,
    few_shot_messages,
    load_few_shots,
    query_message,
    report_message,
    report_schema,
    verdict_schema,
)
from radfact.judges.protocol import EntailmentQuery, Splitter, Verdict
from radfact.judges.response import parse_report_response, parse_response
from radfact.llm import ChatClient, ChatRequest, PromptPrefix
from radfact.llm.plan import RequestPlan, plan_requests
from radfact.llm.protocol import IncompleteResponseError

PARAMETERS: Mapping[str, Any] = {"temperature": 0, "top_p": 1, "max_tokens": 1024}
"""Source: MAIRA-2, appendix C.2, and the published configuration."""
NO_SHOTS = "none"
"""Value of `few_shots` for a model that was trained without worked examples."""
REPORT_MAX_TOKENS = 3072
REPORT_MAX_HYPOTHESES = 24
"""Hypotheses in one call with `batch="report"`; their response fits into REPORT_MAX_TOKENS."""

_Verdicts = Mapping[int, tuple[Verdict, int]]
"""Verdicts with their numbers of dropped quotations, by index of the hypothesis."""
_NO_PREMISES = Verdict("not_entailment", (), "the other report is empty")


@dataclass(frozen=True, slots=True)
class JudgePrompt:
    """Constant part of the prompt, with the sources of its examples and system message for results."""

    examples: Sequence[Example]
    system: str = SYSTEM_MESSAGE
    answer_format: AnswerFormat = "yaml"
    batch: Batch = "sentence"
    examples_from: str = "default examples (not the published ones)"
    system_from: str = "MAIRA-2, listing 3"


@dataclass(slots=True)
class _Call:
    """Hypotheses of one call, and the valid verdicts about a report so far, while the model repairs the others."""

    premises: tuple[str, ...]
    hypotheses: Sequence[str]
    verdicts: dict[int, tuple[Verdict, int]] = field(default_factory=dict)

    def parse_report(self, text: str) -> _Verdicts:
        """Add the valid verdicts of a response; ValueError if a verdict is still missing or wrong."""
        verdicts, problems = parse_report_response(text, self.premises, self.hypotheses)
        self.verdicts |= verdicts
        if len(self.verdicts) < len(self.hypotheses):
            kind = IncompleteResponseError if self.verdicts else ValueError
            raise kind("; ".join(problems))
        return self.verdicts

    def parse_sentence(self, text: str) -> _Verdicts:
        """Return the verdict of a response about a single hypothesis; it is not kept, since a cut response is none."""
        return {0: parse_response(text, self.premises)}


class LLMJudge(PromptedModel):
    """A chat model as judge, with the prompts of the paper (MAIRA-2, appendix C.2) or with a whole report per call."""

    def __init__(
        self,
        name: str,
        client: ChatClient,
        prompt: JudgePrompt,
        make_splitter: Callable[[], Splitter] = OfflineSplitter,
    ) -> None:
        prefix = PromptPrefix(few_shot_messages(prompt.examples, prompt.system, prompt.answer_format, prompt.batch))
        description = {
            "format": prompt.answer_format,
            "batch": prompt.batch,
            "prompt_sha256": prefix.sha256,
            "system_from": prompt.system_from,
            "few_shots": len(prompt.examples),
            "few_shots_from": prompt.examples_from,
        }
        super().__init__(name, client, prefix, description)
        self.prompt, self.make_splitter = prompt, make_splitter
        self._counts: Counter[str] = Counter()

    def judge(self, queries: Sequence[EntailmentQuery]) -> list[Verdict | Failure]:
        """Return one verdict or failure per query; a hypothesis that a report's call leaves open gets its own call."""
        calls = self._calls(queries)
        verdicts = self._complete(calls)
        incomplete = [call for call in calls if 1 < len(call.hypotheses) > len(call.verdicts)]
        self._counts["asked_again"] += len(incomplete)
        verdicts |= self._complete(
            [
                _Call(call.premises, [hypothesis])
                for call in incomplete
                for index, hypothesis in enumerate(call.hypotheses)
                if index not in call.verdicts
            ]
        )
        return [verdicts.get(query, _NO_PREMISES) for query in queries]

    def plan(self, queries: Sequence[EntailmentQuery]) -> RequestPlan:
        """Count the requests of `judge`, without the further ones for hypotheses of a report without a verdict."""
        return plan_requests(self.client, [self._request(call) for call in self._calls(queries)])[0]

    def _calls(self, queries: Sequence[EntailmentQuery]) -> list[_Call]:
        """Group the distinct queries that have premises."""
        by_premises: dict[tuple[str, ...], list[str]] = {}
        for query in dict.fromkeys(queries):
            if query.premises:
                by_premises.setdefault(query.premises, []).append(query.hypothesis)
        size = 1 if self.prompt.batch == "sentence" else REPORT_MAX_HYPOTHESES
        return [
            _Call(premises, hypotheses[start : start + size])
            for premises, hypotheses in by_premises.items()
            for start in range(0, len(hypotheses), size)
        ]

    def _complete(self, calls: Sequence[_Call]) -> dict[EntailmentQuery, Verdict | Failure]:
        verdicts: dict[EntailmentQuery, Verdict | Failure] = {}
        outcomes = self.client.complete_all([self._request(call) for call in calls])
        for call, outcome in zip(calls, outcomes, strict=True):
            valid = call.verdicts if isinstance(outcome, Failure) else outcome
            failure = outcome if isinstance(outcome, Failure) else Failure("not answered")
            for index, hypothesis in enumerate(call.hypotheses):
                verdict, dropped = valid.get(index, (failure, 0))
                verdicts[EntailmentQuery(call.premises, hypothesis)] = verdict
                self._counts["evidence_dropped"] += dropped
        return verdicts

    def _request(self, call: _Call) -> ChatRequest[_Verdicts]:
        """Build the request of a call, whose errors show no word of the reports."""
        if self.prompt.batch == "sentence":
            query = call.premises, call.hypotheses[0]
            message, schema, parse = query_message(*query), verdict_schema(*query), call.parse_sentence
        else:
            report = call.premises, call.hypotheses
            message, schema, parse = report_message(*report), report_schema(*report), call.parse_report
        sent_schema = schema if self.prompt.answer_format == "schema" else None
        reports = (*call.premises, *call.hypotheses)
        return ChatRequest((("user", message),), parse, self._prefix, sent_schema, reports=reports)

    def usage(self) -> dict[str, int]:
        """Return the usage, without reports that were asked again, and `evidence_dropped` and `asked_again`."""
        counts = super().usage()
        counts["failures"] -= self._counts["asked_again"]
        return counts | {name: self._counts[name] for name in ("evidence_dropped", "asked_again")}


def load_llm_judge(options: JudgeOptions, cache: Path | None = None) -> LLMJudge:
    """Load the judge of the paper with the model PROVIDER:MODEL or vllm:PATH of options."""
    prompt = judge_prompt(options.few_shots, options.system, answer_format=options.answer_format, batch=options.batch)
    report_parameters = {"max_tokens": REPORT_MAX_TOKENS} if options.batch == "report" else {}
    client = options.load_client({**PARAMETERS, **report_parameters}, cache)
    # The splitter has a client of its own, with another limit of tokens and a separate usage.
    own_splitter = options.model_copy(update={"few_shots": None})
    return LLMJudge(options.required_judge, client, prompt, partial(load_llm_splitter, own_splitter, cache))


def judge_prompt(
    few_shots: Path | None = None,
    system: Path | None = None,
    *,
    answer_format: AnswerFormat = "yaml",
    batch: Batch = "sentence",
) -> JudgePrompt:
    """Load the constant part of the prompt, with worked examples in the published layout, `none`, or our own."""
    files: dict[str, str] = {}
    if few_shots is not None:
        files["examples_from"] = Path(few_shots).name
    if system is not None:
        # Unchanged, with its final line end, as in the published implementation.
        files |= {"system": read_text(system), "system_from": system.name}
        if not files["system"].strip():
            raise InputError("expected a system message, found an empty file", code=ErrorCode.EMPTY_INPUT, file=system)
    examples = () if str(few_shots) == NO_SHOTS else load_few_shots(few_shots or DEFAULT_FEW_SHOTS)
    return JudgePrompt(examples, answer_format=answer_format, batch=batch, **files)
