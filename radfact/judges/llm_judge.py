"""The judge of the paper: a chat model with ten worked reports that gives evidence first and status second."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from radfact.errors import ErrorCode, Failure, InputError
from radfact.io.jsonl import read_text
from radfact.judges.llm_splitter import load_llm_splitter
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

_Hypotheses = Mapping[tuple[str, ...], Iterable[str]]
"""Hypotheses by premises."""
_NO_PREMISES = Verdict("not_entailment", (), "the other report is empty")


@dataclass(frozen=True, slots=True)
class JudgePrompt:
    """Constant part of the prompt and its sources.

    Attributes:
        examples: worked queries.
        system: system message.
        answer_format: YAML, or JSON constrained to a schema.
        batch: one hypothesis per call, or all of a report.
        examples_from: source of the examples, as recorded in results.
        system_from: source of the system message, as recorded in results.
    """

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
        """Add the valid verdicts of a response; return the number of all verdicts.

        Raises:
            ValueError: a verdict is still missing or wrong.
        """
        response = parse_report_response(text, self.premises, self.hypotheses)
        self.verdicts |= response.verdicts
        if len(self.verdicts) < len(self.hypotheses):
            kind = IncompleteResponseError if self.verdicts else ValueError
            raise kind("; ".join(response.problems))
        return len(self.verdicts)


class LLMJudge:
    """A chat model as judge, with the prompts of the paper (MAIRA-2, appendix C.2) or with a whole report per call."""

    def __init__(
        self,
        name: str,
        client: ChatClient,
        prompt: JudgePrompt,
        make_splitter: Callable[[], Splitter] = OfflineSplitter,
    ) -> None:
        """Prepare the constant part of the prompt.

        Args:
            name: name of the judge in results.
            client: client of the model.
            prompt: constant part of the prompt.
            make_splitter: makes the splitter of the same model; by default the offline splitter.
        """
        self.name, self.client, self.prompt, self.make_splitter = name, client, prompt, make_splitter
        self._prefix = PromptPrefix(
            few_shot_messages(prompt.examples, prompt.system, prompt.answer_format, prompt.batch)
        )
        self._counts: Counter[str] = Counter()

    @property
    def batch(self) -> Batch:
        """Hypotheses per call."""
        return self.prompt.batch

    def judge(self, queries: Sequence[EntailmentQuery]) -> list[Verdict | Failure]:
        """Return one verdict or failure per query, in order.

        Equal queries are sent once, and queries with the same premises one after another.

        Raises:
            RunError: the server refuses the key or the model, or cannot be reached.
        """
        by_premises = _by_premises(queries)
        without_premises = by_premises.pop((), {})
        verdicts: dict[EntailmentQuery, Verdict | Failure] = {
            EntailmentQuery((), hypothesis): _NO_PREMISES for hypothesis in without_premises
        }
        verdicts |= self._judge_sentences(by_premises) if self.batch == "sentence" else self._judge_reports(by_premises)
        return [verdicts[query] for query in queries]

    def plan(self, queries: Sequence[EntailmentQuery]) -> RequestPlan:
        """Count the requests of `judge`, without the further ones for hypotheses of a report without a verdict."""
        by_premises = _by_premises(queries)
        by_premises.pop((), None)
        requests: list[ChatRequest[Any]]
        if self.batch == "sentence":
            requests = [self._sentence_request(query) for query in _distinct_queries(by_premises)]
        else:
            requests = [self._report_request(call) for call in _report_calls(by_premises)]
        return plan_requests(self.client, requests)[0]

    def _judge_sentences(self, by_premises: _Hypotheses) -> dict[EntailmentQuery, Verdict | Failure]:
        queries = _distinct_queries(by_premises)
        verdicts = self.client.complete_all([self._sentence_request(query) for query in queries])
        return dict(zip(queries, verdicts, strict=True))

    def _sentence_request(self, query: EntailmentQuery) -> ChatRequest[Verdict]:
        def parse(text: str) -> Verdict:
            verdict, dropped = parse_response(text, query.premises)
            self._counts["evidence_dropped"] += dropped
            return verdict

        content = query_message(query.premises, query.hypothesis)
        schema = verdict_schema(query.premises, query.hypothesis) if self._has_schema else None
        return ChatRequest(
            (("user", content),), parse, self._prefix, schema, reports=(*query.premises, query.hypothesis)
        )

    def _judge_reports(self, by_premises: _Hypotheses) -> dict[EntailmentQuery, Verdict | Failure]:
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
        content = report_message(call.premises, call.hypotheses)
        schema = report_schema(call.premises, call.hypotheses) if self._has_schema else None
        return ChatRequest(
            (("user", content),), call.parse, self._prefix, schema, reports=(*call.premises, *call.hypotheses)
        )

    @property
    def _has_schema(self) -> bool:
        return self.prompt.answer_format == "schema"

    def with_sentence_batches(self) -> LLMJudge:
        """Return the same judge with one hypothesis per call, to measure the effect of `batch="report"`."""
        return LLMJudge(self.name, self.client, replace(self.prompt, batch="sentence"), self.make_splitter)

    def describe(self) -> dict[str, Any]:
        """Return the name, the model's parameters, and the hash and sources of the constant part of the prompt."""
        return {
            "name": self.name,
            **self.client.identity,
            "format": self.prompt.answer_format,
            "batch": self.prompt.batch,
            "prompt_sha256": self._prefix.sha256,
            "system_from": self.prompt.system_from,
            "few_shots": len(self.prompt.examples),
            "few_shots_from": self.prompt.examples_from,
        }

    def usage(self) -> dict[str, int]:
        """Return the client's usage, and the numbers of `evidence_dropped` quotations and `asked_again` reports.

        A report that was sent again hypothesis by hypothesis is no failure; a hypothesis that still has no verdict is.
        """
        counts = self.client.usage_counter.as_dict()
        counts["failures"] -= self._counts["asked_again"]
        return counts | {name: self._counts[name] for name in ("evidence_dropped", "asked_again")}

    def close(self) -> None:
        """Close the client."""
        self.client.close()


def _by_premises(queries: Sequence[EntailmentQuery]) -> dict[tuple[str, ...], dict[str, None]]:
    by_premises: dict[tuple[str, ...], dict[str, None]] = {}
    for query in queries:
        by_premises.setdefault(query.premises, {})[query.hypothesis] = None
    return by_premises


def _distinct_queries(by_premises: _Hypotheses) -> list[EntailmentQuery]:
    return [
        EntailmentQuery(premises, hypothesis)
        for premises, hypotheses in by_premises.items()
        for hypothesis in hypotheses
    ]


def _report_calls(by_premises: _Hypotheses) -> list[_ReportCall]:
    return [
        _ReportCall(premises, hypotheses[start : start + REPORT_MAX_HYPOTHESES])
        for premises, hypotheses in ((premises, list(group)) for premises, group in by_premises.items())
        for start in range(0, len(hypotheses), REPORT_MAX_HYPOTHESES)
    ]


def load_llm_judge(name: str, options: JudgeOptions, cache: Path | None = None) -> LLMJudge:
    """Load the judge of the paper.

    Args:
        name: "PROVIDER:MODEL" or "vllm:PATH".
        options: of the judge.
        cache: folder of the response cache.

    Raises:
        InputError: an unknown provider, a missing package or key, or an option that does not fit.
    """
    report_parameters = {"max_tokens": REPORT_MAX_TOKENS} if options.batch == "report" else {}
    parameters = {**PARAMETERS, **report_parameters, **parse_model_args(options.judge_args)}
    prompt = judge_prompt(options.few_shots, answer_format=options.answer_format, batch=options.batch)
    if options.system is not None:
        prompt = replace(prompt, system=_system_message(options.system), system_from=options.system.name)
    shared: dict[str, Any] = {
        **options.model_dump(include={"base_url", "concurrency", "max_invalid"}),
        "cache": cache,
    }
    client = load_chat_client(name, parameters=parameters, **shared)
    # The splitter has a client of its own, with another limit of tokens and a separate usage.
    make_splitter = partial(load_llm_splitter, name, splitter_args=options.judge_args, **shared)
    return LLMJudge(name, client, prompt, make_splitter)


def judge_prompt(
    few_shots: Path | None = None, *, answer_format: AnswerFormat = "yaml", batch: Batch = "sentence"
) -> JudgePrompt:
    """Load the constant part of the prompt.

    Args:
        few_shots: file of worked examples in the published layout, or `none`; None uses our own.
        answer_format: as in `load_judge`.
        batch: as in `load_judge`.

    Raises:
        InputError: the file cannot be read.
    """
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
