"""Prompt of the LLM judge: system message, worked examples, query messages and response schemas."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import groupby
from pathlib import Path
from typing import Any, Literal, get_args

from radfact.errors import ErrorCode, InputError, describe_choice
from radfact.io.jsonl import read_json
from radfact.judges.protocol import Status
from radfact.llm import Message
from radfact.llm.response_text import dump_yaml

AnswerFormat = Literal["yaml", "schema"]
"""yaml: as in the paper; schema: JSON that the server constrains to a JSON schema."""
Batch = Literal["sentence", "report"]
"""sentence: one hypothesis per call, as in the paper; report: all hypotheses with the same premises in one call."""
Label = Literal["entailment", "neutral", "contradiction", "not_entailment"]

# Source: MAIRA-2, listing 3, verbatim.
SYSTEM_MESSAGE = (
    "You are an AI radiology assistant. Your task is to assess whether a statement about a chest X-ray "
    '(the "hypothesis") is true or not, given a reference report about the chest X-ray. '
    "This task is known as entailment verification. "
    'If the statement is true ("entailed") according to the reference, provide the evidence to support it.'
)
REPORT_NOTE = (
    "You are given several hypotheses at once, each with its number. Assess every one of them on its own, against the "
    "reference alone, and answer all of them in their order."
)
"""Appended to the system message if a call holds all hypotheses of a report."""
DEFAULT_FEW_SHOTS = Path(__file__).with_name("few_shots.json")

MAX_CHOICES = 250
"""Maximum number of premises that a schema enumerates; OpenAI's servers and the grammars of others have such limits."""
_MAX_TEXT_LENGTH = 1000
_DIRECTIONS = (("A", "B"), ("B", "A"))


@dataclass(frozen=True, slots=True)
class Example:
    """A worked query in the published layout.

    Attributes:
        reference: sentences of the report.
        phrase: the hypothesis.
        evidence: sentences of the report that decide it.
        label: its label.
        topic: what the query tests.
        development: whether it was used to develop a judge; None if unknown.
    """

    reference: tuple[str, ...]
    phrase: str
    evidence: tuple[str, ...]
    label: Label
    topic: str | None = None
    development: bool | None = None

    @property
    def status(self) -> Status:
        """Status of the label: neutral and contradicted hypotheses are not entailed."""
        return "entailment" if self.label == "entailment" else "not_entailment"


def load_few_shots(path: Path | str = DEFAULT_FEW_SHOTS, *, needs_evidence: bool = True) -> list[Example]:
    """Read examples in the published bidirectional layout: the sentences of A given B, then of B given A.

    Args:
        path: the file.
        needs_evidence: whether an entailment without evidence is an error.

    Raises:
        InputError: the file cannot be read or has a wrong field.
    """
    reports = read_json(path)
    if not isinstance(reports, list) or not reports:
        raise InputError("expected a list of at least one example", code=ErrorCode.INVALID_FORMAT, file=path)
    examples = [
        example
        for index, report in enumerate(reports)
        for example in _read_examples(report, path, index, needs_evidence=needs_evidence)
    ]
    if not examples:
        raise InputError("expected at least one sentence with its status", code=ErrorCode.EMPTY_INPUT, file=path)
    return examples


def _read_examples(report: Any, path: Path | str, index: int, *, needs_evidence: bool) -> Iterable[Example]:
    development = report.get("development") if isinstance(report, dict) else None
    if not isinstance(development, bool | None):
        raise InputError("expected true or false", file=path, field=f"[{index}].development")
    for hypotheses, premises in _DIRECTIONS:
        field = f"[{index}].input.phrases_{premises}"
        reference = _texts(_get(report, path, f"[{index}]", "input", f"phrases_{premises}"), path, field)
        field = f"[{index}].output.phrases_{hypotheses}_evidenced"
        items = _get(report, path, f"[{index}]", "output", f"phrases_{hypotheses}_evidenced")
        if not isinstance(items, list):
            raise _layout_error(path, field)
        for number, item in enumerate(items):
            example = _read_example(reference, item, path, f"{field}[{number}]")
            if needs_evidence and example.label == "entailment" and not example.evidence:
                raise InputError(
                    "expected evidence for an entailment, found none", file=path, field=f"{field}[{number}].evidence"
                )
            yield replace(example, development=development)


def _read_example(reference: tuple[str, ...], item: Any, path: Path | str, field: str) -> Example:
    phrase, label = _get(item, path, field, "phrase"), _get(item, path, field, "status")
    evidence = _texts(_get(item, path, field, "evidence"), path, f"{field}.evidence")
    topic = item.get("topic")
    if label not in get_args(Label):
        expected = ", ".join(get_args(Label))
        raise InputError(
            f"expected one of {expected}, found {describe_choice(label)}", file=path, field=f"{field}.status"
        )
    if not isinstance(phrase, str) or not phrase.strip():
        raise InputError("expected a sentence", file=path, field=f"{field}.phrase")
    if not isinstance(topic, str | None):
        raise InputError("expected a string", file=path, field=f"{field}.topic")
    return Example(reference, phrase, evidence, label, topic)


def _get(value: Any, path: Path | str, field: str, *keys: str) -> Any:
    for key in keys:
        field = f"{field}.{key}"
        if not isinstance(value, Mapping) or key not in value:
            raise _layout_error(path, field)
        value = value[key]
    return value


def _texts(value: Any, path: Path | str, field: str) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
        raise _layout_error(path, field)
    return tuple(value)


def _layout_error(path: Path | str, field: str) -> InputError:
    return InputError(
        "expected a value as in the published layout, found none or another type",
        code=ErrorCode.INVALID_FORMAT,
        file=path,
        field=field,
    )


def few_shot_messages(
    examples: Sequence[Example], system: str, answer_format: AnswerFormat, batch: Batch
) -> tuple[Message, ...]:
    """Return the constant part of every prompt: the system message, then the worked queries with their responses.

    With a schema the worked responses are JSON too: YAML examples would contradict the constraint to JSON.

    Args:
        examples: worked queries; with `batch="report"`, consecutive examples with the same reference share a message.
        system: system message.
        answer_format: format of the worked responses.
        batch: hypotheses per message.
    """
    dump = dump_yaml if answer_format == "yaml" else _dump_json
    if batch == "sentence":
        messages: list[Message] = [("system", system)]
        for example in examples:
            messages += [
                ("user", query_message(example.reference, example.phrase)),
                ("assistant", dump(worked_response(example))),
            ]
        return tuple(messages)
    messages = [("system", f"{system.rstrip()}\n\n{REPORT_NOTE}")]
    for reference, group in groupby(examples, key=lambda example: example.reference):
        report = list(group)
        answers = [{"number": number, **worked_response(example)} for number, example in enumerate(report, start=1)]
        messages += [
            ("user", report_message(reference, [example.phrase for example in report])),
            ("assistant", dump({"answers": answers})),
        ]
    return tuple(messages)


def worked_response(example: Example) -> dict[str, Any]:
    """Return the fields of the response to a worked query, in order."""
    return {"phrase": example.phrase, "evidence": list(example.evidence), "status": example.status}


def _dump_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def query_message(reference: Sequence[str], hypothesis: str) -> str:
    """Return the user message of one query (MAIRA-2, listing 5).

    Args:
        reference: the premises.
        hypothesis: a sentence.
    """
    return _reference_yaml(tuple(reference)) + dump_yaml({"hypothesis": hypothesis})


def report_message(reference: Sequence[str], hypotheses: Sequence[str]) -> str:
    """Return the user message of all hypotheses of a report, numbered from 1.

    Args:
        reference: the premises.
        hypotheses: the sentences of a report.
    """
    return _reference_yaml(tuple(reference)) + dump_yaml({"hypotheses": dict(enumerate(hypotheses, start=1))})


@lru_cache(maxsize=64)
def _reference_yaml(reference: tuple[str, ...]) -> str:
    """Serialize a report, cached: queries about one report follow one another."""
    return dump_yaml({"reference": list(reference)})


def verdict_schema(premises: Sequence[str], hypothesis: str) -> dict[str, Any]:
    """Return the JSON schema of the response to one query.

    Every text is one of a list, or bounded in length if the list would be too long, and every list is bounded:
    otherwise some models generate up to the limit of tokens.

    Args:
        premises: the sentences that the evidence is quoted from.
        hypothesis: a sentence.
    """
    return _object(_verdict_fields(premises, {"type": "string", "enum": [hypothesis]}))


def report_schema(premises: Sequence[str], hypotheses: Sequence[str]) -> dict[str, Any]:
    """Return the JSON schema of the response to all hypotheses of a report.

    Args:
        premises: the sentences that the evidence is quoted from.
        hypotheses: the sentences of a report.
    """
    count = len(hypotheses)
    phrase = {"type": "string", "enum": list(dict.fromkeys(hypotheses))}
    number = {"type": "integer", "enum": list(range(1, count + 1))}
    item = _object({"number": number, **_verdict_fields(premises, phrase)})
    return _object({"answers": {"type": "array", "items": item, "minItems": count, "maxItems": count}})


def _verdict_fields(premises: Sequence[str], phrase: Mapping[str, Any]) -> dict[str, Any]:
    choices = list(dict.fromkeys(premises))
    quoted: dict[str, Any] = {"type": "string", "enum": choices}
    if len(choices) > MAX_CHOICES:
        quoted = {"type": "string", "maxLength": _MAX_TEXT_LENGTH}
    return {
        "phrase": phrase,
        "evidence": {"type": "array", "items": quoted, "maxItems": min(len(choices), MAX_CHOICES)},
        "status": {"type": "string", "enum": list(get_args(Status))},
    }


def _object(properties: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": dict(properties),
        "required": list(properties),
        "additionalProperties": False,
    }
