"""The paper's judge: a chat model shown ten worked reports, asked for evidence first and status second."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from radfact.errors import Failure, InputError
from radfact.io.jsonl import read_text
from radfact.judges import load_splitter
from radfact.judges.prompt import (
    DEFAULT_FEW_SHOTS,
    SYSTEM_MESSAGE,
    AnswerFormat,
    Batch,
    Example,
    answer_schema,
    few_shot_messages,
    load_few_shots,
    query,
    report_query,
    report_schema,
)
from radfact.judges.protocol import EntailmentQuery, Verdict
from radfact.judges.response import parse_answer, parse_report_answer
from radfact.llm import ChatClient, ChatRequest, PromptPrefix, load_chat_client, parse_model_args

if TYPE_CHECKING:
    from radfact.judges import Splitter

PARAMETERS: Mapping[str, Any] = {"temperature": 0, "top_p": 1, "max_tokens": 1024}
"""Paper 004, appendix C.2, and the published configuration."""
NO_SHOTS = "none"
"""In the place of a file with worked examples: none are shown, to a model that was trained without them."""
REPORT_MAX_TOKENS = 3072
REPORT_MOST = 24
"""Hypotheses in one call with `batch="report"`; an answer of so many fits into REPORT_MAX_TOKENS."""

_NOTHING_TO_QUOTE = Verdict("not_entailment", (), "the other report is empty")


@dataclass(frozen=True, slots=True)
class JudgePrompt:
    """What is shown before every question, and where it comes from.

    Args:
        examples: worked questions.
        system: the system message.
        answer_format: yaml, or JSON held to a schema.
        batch: one hypothesis a call, or all of a report.
        examples_from: what the results say of the examples' origin.
        system_from: what they say of the system message's.
    """

    examples: Sequence[Example]
    system: str = SYSTEM_MESSAGE
    answer_format: AnswerFormat = "yaml"
    batch: Batch = "sentence"
    examples_from: str = "default examples (not the published ones)"
    system_from: str = "paper 004, listing 3"


@dataclass(slots=True)
class _ReportCall:
    """Hypotheses of one report that are asked together, and what has been answered so far."""

    premises: tuple[str, ...]
    hypotheses: Sequence[str]
    found: dict[int, tuple[Verdict, int]] = field(default_factory=dict)

    def parse(self, text: str) -> int:
        """Keep what can be used of an answer; how many hypotheses are answered.

        Raises:
            ValueError: what is still missing or wrong.
        """
        answer = parse_report_answer(text, self.premises, self.hypotheses)
        self.found |= answer.verdicts
        if len(self.found) < len(self.hypotheses):
            raise ValueError("; ".join(answer.faults))
        return len(self.found)


class LLMJudge:
    """A chat model as judge, asked exactly as in the paper (paper 004, appendix C.2), or a whole report at a time."""

    def __init__(
        self,
        name: str,
        client: ChatClient,
        prompt: JudgePrompt,
        make_splitter: Callable[[], Splitter] = partial(load_splitter, "offline"),
    ) -> None:
        """Take what to ask and how.

        Args:
            name: of the judge as it stands in results.
            client: to ask through.
            prompt: what is shown before every question.
            make_splitter: makes who splits beside this judge; by default the offline rules do.
        """
        self.name, self.client, self.prompt, self.make_splitter = name, client, prompt, make_splitter
        self._prefix = PromptPrefix(
            few_shot_messages(prompt.examples, prompt.system, prompt.answer_format, prompt.batch)
        )
        self._counts: Counter[str] = Counter()

    @property
    def batch(self) -> Batch:
        """How many hypotheses a call holds."""
        return self.prompt.batch

    def judge(self, questions: Sequence[EntailmentQuery]) -> list[Verdict | Failure]:
        """One answer a question, in order; equal questions are asked once, those with the same premises together.

        Raises:
            RunError: the server refuses the key or the model, or cannot be reached.
        """
        by_premises: dict[tuple[str, ...], dict[str, None]] = {}
        for question in questions:
            by_premises.setdefault(question.premises, {})[question.hypothesis] = None
        nothing = by_premises.pop((), {})
        ask = self._ask_sentences if self.batch == "sentence" else self._ask_reports
        verdicts = dict.fromkeys((EntailmentQuery((), one) for one in nothing), _NOTHING_TO_QUOTE) | ask(by_premises)
        return [verdicts[question] for question in questions]

    def _ask_sentences(
        self, by_premises: Mapping[tuple[str, ...], Iterable[str]]
    ) -> dict[EntailmentQuery, Verdict | Failure]:
        questions = [EntailmentQuery(premises, one) for premises, group in by_premises.items() for one in group]
        answers = self.client.complete_all([self._sentence(question) for question in questions])
        return dict(zip(questions, answers, strict=True))

    def _sentence(self, question: EntailmentQuery) -> ChatRequest[Verdict]:
        def parse(text: str) -> Verdict:
            verdict, dropped = parse_answer(text, question.premises)
            self._counts["evidence_dropped"] += dropped
            return verdict

        content = query(question.premises, question.hypothesis)
        schema = answer_schema(question.premises, question.hypothesis) if self._constrained else None
        return ChatRequest((("user", content),), parse, prefix=self._prefix, schema=schema)

    def _ask_reports(
        self, by_premises: Mapping[tuple[str, ...], Iterable[str]]
    ) -> dict[EntailmentQuery, Verdict | Failure]:
        """Ask report by report; what stays open after the repairs of its report is asked once more, on its own."""
        together = [
            _ReportCall(premises, hypotheses[start : start + REPORT_MOST])
            for premises, hypotheses in ((premises, list(group)) for premises, group in by_premises.items())
            for start in range(0, len(hypotheses), REPORT_MOST)
        ]
        verdicts = self._settle(together)
        incomplete = [call for call in together if 1 < len(call.hypotheses) > len(call.found)]
        self._counts["asked_again"] += len(incomplete)
        alone = [
            _ReportCall(call.premises, [hypothesis])
            for call in incomplete
            for index, hypothesis in enumerate(call.hypotheses)
            if index not in call.found
        ]
        return verdicts | self._settle(alone)

    def _settle(self, calls: Sequence[_ReportCall]) -> dict[EntailmentQuery, Verdict | Failure]:
        verdicts: dict[EntailmentQuery, Verdict | Failure] = {}
        outcomes = self.client.complete_all([self._report(call) for call in calls])
        for call, outcome in zip(calls, outcomes, strict=True):
            open_end = outcome if isinstance(outcome, Failure) else Failure("not answered")
            for index, hypothesis in enumerate(call.hypotheses):
                verdict, dropped = call.found.get(index, (open_end, 0))
                verdicts[EntailmentQuery(call.premises, hypothesis)] = verdict
                self._counts["evidence_dropped"] += dropped
        return verdicts

    def _report(self, call: _ReportCall) -> ChatRequest[int]:
        content = report_query(call.premises, call.hypotheses)
        schema = report_schema(call.premises, call.hypotheses) if self._constrained else None
        return ChatRequest((("user", content),), call.parse, prefix=self._prefix, schema=schema)

    @property
    def _constrained(self) -> bool:
        return self.prompt.answer_format == "schema"

    def one_by_one(self) -> LLMJudge:
        """The same judge with one hypothesis a call, to measure what asking for a report at a time changes."""
        return LLMJudge(self.name, self.client, replace(self.prompt, batch="sentence"), self.make_splitter)

    def describe(self) -> dict[str, Any]:
        """Name, model parameters, the hash of the constant prompt, and whose words and examples it shows."""
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
        """The client's usage_counter, `evidence_dropped` quotations, and `asked_again` reports.

        A report that was asked again, hypothesis by hypothesis, is no failure; what stayed open even so is.
        """
        counts = self.client.usage_counter.as_dict()
        counts["failures"] -= self._counts["asked_again"]
        return counts | {name: self._counts[name] for name in ("evidence_dropped", "asked_again")}

    def close(self) -> None:
        """Give back connections and the answers' file."""
        self.client.close()


def load_llm_judge(
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
) -> LLMJudge:
    """Make the paper's judge; the arguments are those of `radfact.judges.load_judge`.

    Raises:
        InputError: an unknown provider, a missing package or key, or an option that does not fit.
    """
    for option, value, choices in (
        ("answer_format", answer_format, get_args(AnswerFormat)),
        ("batch", batch, get_args(Batch)),
    ):
        if value not in choices:
            raise InputError(f"expected {' or '.join(choices)}, found '{value}'", field=option)
    longest = {"max_tokens": REPORT_MAX_TOKENS} if batch == "report" else {}
    parameters = {**PARAMETERS, **longest, **parse_model_args(judge_args)}
    prompt = judge_prompt(few_shots, answer_format=answer_format, batch=batch)
    if system is not None:
        prompt = replace(prompt, system=_system_message(system), system_from=Path(system).name)
    client = load_chat_client(name, base_url=base_url, parameters=parameters, concurrency=concurrency, cache=cache)
    # A client of its own, because splitting has its own limit of tokens and its own usage.
    splitter = partial(
        load_splitter, name, base_url=base_url, splitter_args=judge_args, concurrency=concurrency, cache=cache
    )
    return LLMJudge(name, client, prompt, splitter)


def judge_prompt(
    few_shots: Path | None = None, *, answer_format: AnswerFormat = "yaml", batch: Batch = "sentence"
) -> JudgePrompt:
    """What a judge is shown before every question.

    Args:
        few_shots: file of worked examples in the published layout, or `none`; None takes our own.
        answer_format, batch: as for `load_llm_judge`.

    Raises:
        InputError: the file cannot be read.
    """
    if few_shots is None:
        return JudgePrompt(load_few_shots(DEFAULT_FEW_SHOTS), answer_format=answer_format, batch=batch)
    shown = () if str(few_shots) == NO_SHOTS else load_few_shots(few_shots)
    return JudgePrompt(shown, answer_format=answer_format, batch=batch, examples_from=Path(few_shots).name)


def _system_message(path: Path) -> str:
    """The file as it is, its last line end included, as the published implementation reads its own."""
    text = read_text(path)
    if not text.strip():
        raise InputError("expected a system message, found nothing", file=path)
    return text
