"""The judge of the paper: a chat model with ten worked reports that gives evidence first and status second."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
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
from radfact.llm import ChatClient, ChatRequest, PromptPrefix, load_chat_client, parse_model_args
from radfact.llm.plan import RequestPlan, plan_requests
from radfact.llm.protocol import IncompleteResponseError

PARAMETERS: Mapping[str, Any] = {"temperature": 0, "top_p": 1, "max_tokens": 1024}
"""Source: MAIRA-2, appendix C.2, and the published configuration."""
NO_SHOTS = "none"
"""Value of `few_shots` for a model that was trained without worked examples."""
REPORT_MAX_TOKENS = 3072
REPORT_MAX_HYPOTHESES = 24
"""Hypotheses in one call with `batch="report"`; their response fits into REPORT_MAX_TOKENS."""

_Groups = Mapping[tuple[str, ...], Sequence[EntailmentQuery]]
"""Queries by premises."""
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
class _ReportCall:
    """Hypotheses of one call, and the verdicts so far with their numbers of dropped quotations."""

    premises: tuple[str, ...]
    hypotheses: Sequence[str]
    verdicts: dict[int, tuple[Verdict, int]] = field(default_factory=dict)

    def parse(self, text: str) -> int:
        """Add the valid verdicts of a response; ValueError if a verdict is still missing or wrong."""
        response = parse_report_response(text, self.premises, self.hypotheses)
        self.verdicts |= response.verdicts
        if len(self.verdicts) < len(self.hypotheses):
            kind = IncompleteResponseError if self.verdicts else ValueError
            raise kind("; ".join(response.problems))
        return len(self.verdicts)


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
        self.prompt, self.make_splitter, self.batch = prompt, make_splitter, prompt.batch
        self._counts: Counter[str] = Counter()

    def judge(self, queries: Sequence[EntailmentQuery]) -> list[Verdict | Failure]:
        """Return one verdict or failure per query, in order.

        Equal queries are sent once, and queries with the same premises one after another.
        """
        verdicts: dict[EntailmentQuery, Verdict | Failure] = {
            query: _NO_PREMISES for query in queries if not query.premises
        }
        by_premises = _by_premises(queries)
        if self.batch == "sentence":
            distinct = [query for group in by_premises.values() for query in group]
            responses = self.client.complete_all([self._sentence_request(query) for query in distinct])
            verdicts.update(zip(distinct, responses, strict=True))
        else:
            verdicts |= self._judge_reports(by_premises)
        return [verdicts[query] for query in queries]

    def plan(self, queries: Sequence[EntailmentQuery]) -> RequestPlan:
        """Count the requests of `judge`, without the further ones for hypotheses of a report without a verdict."""
        by_premises = _by_premises(queries)
        requests: list[ChatRequest[Any]]
        if self.batch == "sentence":
            requests = [self._sentence_request(query) for group in by_premises.values() for query in group]
        else:
            requests = [self._report_request(call) for call in _report_calls(by_premises)]
        return plan_requests(self.client, requests)[0]

    def _sentence_request(self, query: EntailmentQuery) -> ChatRequest[Verdict]:
        def parse(text: str) -> Verdict:
            verdict, dropped = parse_response(text, query.premises)
            self._counts["evidence_dropped"] += dropped
            return verdict

        schema = verdict_schema(query.premises, query.hypothesis) if self.prompt.answer_format == "schema" else None
        message = query_message(query.premises, query.hypothesis)
        reports = (*query.premises, query.hypothesis)
        return ChatRequest((("user", message),), parse, self._prefix, schema, reports=reports)

    def _judge_reports(self, by_premises: _Groups) -> dict[EntailmentQuery, Verdict | Failure]:
        """Judge report by report; a hypothesis without a verdict after the repairs gets a separate call."""
        calls = _report_calls(by_premises)
        verdicts = self._complete_calls(calls)
        incomplete = [call for call in calls if 1 < len(call.hypotheses) > len(call.verdicts)]
        self._counts["asked_again"] += len(incomplete)
        single_calls = [
            _ReportCall(call.premises, [hypothesis])
            for call in incomplete
            for index, hypothesis in enumerate(call.hypotheses)
            if index not in call.verdicts
        ]
        return verdicts | self._complete_calls(single_calls)

    def _complete_calls(self, calls: Sequence[_ReportCall]) -> dict[EntailmentQuery, Verdict | Failure]:
        verdicts: dict[EntailmentQuery, Verdict | Failure] = {}
        outcomes = self.client.complete_all([self._report_request(call) for call in calls])
        for call, outcome in zip(calls, outcomes, strict=True):
            failure = outcome if isinstance(outcome, Failure) else Failure("not answered")
            for index, hypothesis in enumerate(call.hypotheses):
                verdict, dropped = call.verdicts.get(index, (failure, 0))
                verdicts[EntailmentQuery(call.premises, hypothesis)] = verdict
                self._counts["evidence_dropped"] += dropped
        return verdicts

    def _report_request(self, call: _ReportCall) -> ChatRequest[int]:
        schema = report_schema(call.premises, call.hypotheses) if self.prompt.answer_format == "schema" else None
        message = report_message(call.premises, call.hypotheses)
        reports = (*call.premises, *call.hypotheses)
        return ChatRequest((("user", message),), call.parse, self._prefix, schema, reports=reports)

    def with_sentence_batches(self) -> LLMJudge:
        """Return the same judge with one hypothesis per call, to measure the effect of `batch="report"`."""
        return LLMJudge(self.name, self.client, replace(self.prompt, batch="sentence"), self.make_splitter)

    def usage(self) -> dict[str, int]:
        """Return the client's usage, and the numbers of `evidence_dropped` quotations and `asked_again` reports.

        A report that was sent again hypothesis by hypothesis is no failure; a hypothesis that still has no verdict is.
        """
        counts = super().usage()
        counts["failures"] -= self._counts["asked_again"]
        return counts | {name: self._counts[name] for name in ("evidence_dropped", "asked_again")}


def _by_premises(queries: Sequence[EntailmentQuery]) -> dict[tuple[str, ...], list[EntailmentQuery]]:
    """Group the distinct queries that have premises."""
    by_premises: dict[tuple[str, ...], list[EntailmentQuery]] = {}
    for query in dict.fromkeys(queries):
        if query.premises:
            by_premises.setdefault(query.premises, []).append(query)
    return by_premises


def _report_calls(by_premises: _Groups) -> list[_ReportCall]:
    return [
        _ReportCall(premises, [query.hypothesis for query in group[start : start + REPORT_MAX_HYPOTHESES]])
        for premises, group in by_premises.items()
        for start in range(0, len(group), REPORT_MAX_HYPOTHESES)
    ]


def load_llm_judge(name: str, options: JudgeOptions, cache: Path | None = None) -> LLMJudge:
    """Load the judge of the paper with the model PROVIDER:MODEL or vllm:PATH."""
    report_parameters = {"max_tokens": REPORT_MAX_TOKENS} if options.batch == "report" else {}
    parameters = {**PARAMETERS, **report_parameters, **parse_model_args(options.judge_args)}
    prompt = judge_prompt(options.few_shots, answer_format=options.answer_format, batch=options.batch)
    if options.system is not None:
        prompt = replace(prompt, system=_system_message(options.system), system_from=options.system.name)
    shared = {**options.model_dump(include={"base_url", "concurrency", "max_invalid"}), "cache": cache}
    client = load_chat_client(name, parameters=parameters, **shared)
    # The splitter has a client of its own, with another limit of tokens and a separate usage.
    make_splitter = partial(load_llm_splitter, name, splitter_args=options.judge_args, **shared)
    return LLMJudge(name, client, prompt, make_splitter)


def judge_prompt(
    few_shots: Path | None = None, *, answer_format: AnswerFormat = "yaml", batch: Batch = "sentence"
) -> JudgePrompt:
    """Load the constant part of the prompt, with worked examples in the published layout, `none`, or our own."""
    if few_shots is None:
        return JudgePrompt(load_few_shots(DEFAULT_FEW_SHOTS), answer_format=answer_format, batch=batch)
    examples = () if str(few_shots) == NO_SHOTS else load_few_shots(few_shots)
    return JudgePrompt(examples, answer_format=answer_format, batch=batch, examples_from=Path(few_shots).name)


def _system_message(path: Path) -> str:
    """Read the file unchanged, with its final line end, as the published implementation does."""
    text = read_text(path)
    if not text.strip():
        raise InputError("expected a system message, found an empty file", code=ErrorCode.EMPTY_INPUT, file=path)
    return text
