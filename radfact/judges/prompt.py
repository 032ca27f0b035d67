"""What the LLM judge is shown: the system message, worked examples, questions, and the schema of its answers."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from pathlib import Path
from typing import Any, Literal, get_args

from radfact.errors import InputError, brief
from radfact.io.jsonl import read_json
from radfact.judges.protocol import Status
from radfact.llm import Message
from radfact.llm.response_text import dump_yaml

AnswerFormat = Literal["yaml", "schema"]
"""yaml: as in the paper; schema: JSON that the server holds to a JSON schema."""
Batch = Literal["sentence", "report"]
"""sentence: one hypothesis a call, as in the paper; report: all hypotheses with the same premises in one call."""
Label = Literal["entailment", "neutral", "contradiction", "not_entailment"]

# Paper 004, listing 3, word for word.
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
"""Follows the system message where a call holds all hypotheses of a report."""
DEFAULT_FEW_SHOTS = Path(__file__).with_name("few_shots.json")

MOST_CHOICES = 250
"""Premises beyond which a schema no longer lists them: OpenAI's servers and the grammars of others have such limits."""
_LONGEST_TEXT = 1000
_DIRECTIONS = (("A", "B"), ("B", "A"))


@dataclass(frozen=True, slots=True)
class Example:
    """One worked question: the report, the hypothesis, the sentences that decide it, the label, and its topic."""

    reference: tuple[str, ...]
    phrase: str
    evidence: tuple[str, ...]
    label: Label
    topic: str | None = None

    @property
    def status(self) -> Status:
        """The label as a verdict: what is neutral or contradicted is not entailed."""
        return "entailment" if self.label == "entailment" else "not_entailment"


def load_few_shots(path: Path | str = DEFAULT_FEW_SHOTS) -> list[Example]:
    """Read examples in the published bidirectional layout: one a sentence of A given B, then of B given A.

    Raises:
        InputError: the file cannot be read, or names the field that is wrong.
    """
    reports = read_json(path)
    if not isinstance(reports, list) or not reports:
        raise InputError("expected a list of at least one example", file=path)
    examples = [one for index, report in enumerate(reports) for one in _examples(report, path, index)]
    if not examples:
        raise InputError("expected at least one sentence with its status", file=path)
    return examples


def _examples(report: Any, path: Path | str, index: int) -> Iterable[Example]:
    for own, other in _DIRECTIONS:
        field = f"[{index}].input.phrases_{other}"
        reference = _texts(_inside(report, path, f"[{index}]", "input", f"phrases_{other}"), path, field)
        field = f"[{index}].output.phrases_{own}_evidenced"
        items = _inside(report, path, f"[{index}]", "output", f"phrases_{own}_evidenced")
        if not isinstance(items, list):
            raise _unlike_published(path, field)
        for number, item in enumerate(items):
            yield _example(reference, item, path, f"{field}[{number}]")


def _example(reference: tuple[str, ...], item: Any, path: Path | str, field: str) -> Example:
    phrase, label = _inside(item, path, field, "phrase"), _inside(item, path, field, "status")
    evidence = _texts(_inside(item, path, field, "evidence"), path, f"{field}.evidence")
    topic = item.get("topic")
    if label not in get_args(Label):
        expected = ", ".join(get_args(Label))
        raise InputError(f"expected one of {expected}, found {brief(label)}", file=path, field=f"{field}.status")
    if not isinstance(phrase, str) or not phrase.strip():
        raise InputError("expected a sentence", file=path, field=f"{field}.phrase")
    if not isinstance(topic, str | None):
        raise InputError("expected a text", file=path, field=f"{field}.topic")
    if label == "entailment" and not evidence:
        raise InputError("an entailment needs evidence", file=path, field=f"{field}.evidence")
    return Example(reference, phrase, evidence, label, topic)


def _inside(value: Any, path: Path | str, field: str, *keys: str) -> Any:
    for key in keys:
        field = f"{field}.{key}"
        if not isinstance(value, Mapping) or key not in value:
            raise _unlike_published(path, field)
        value = value[key]
    return value


def _texts(value: Any, path: Path | str, field: str) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
        raise _unlike_published(path, field)
    return tuple(value)


def _unlike_published(path: Path | str, field: str) -> InputError:
    return InputError("missing or of another kind than in the published layout", file=path, field=field)


def few_shot_messages(
    examples: Sequence[Example], system: str, answer_format: AnswerFormat, batch: Batch
) -> tuple[Message, ...]:
    """The constant part of every prompt: the system message, then a user and an assistant message a question.

    With the schema the worked answers are JSON too: a model that is shown YAML while its tokens are held to JSON is
    pushed off the answer that it was about to give.

    Args:
        examples: worked questions; with `batch="report"`, neighbours with the same reference share a question.
        system: the system message.
        answer_format: how the worked answers are written.
        batch: how many hypotheses a question has.
    """
    dump = dump_yaml if answer_format == "yaml" else _dump_json
    if batch == "sentence":
        messages: list[Message] = [("system", system)]
        for one in examples:
            messages += [("user", query(one.reference, one.phrase)), ("assistant", dump(worked(one)))]
        return tuple(messages)
    messages = [("system", f"{system.rstrip()}\n\n{REPORT_NOTE}")]
    for reference, group in groupby(examples, key=lambda one: one.reference):
        of_report = list(group)
        answers = [{"number": number, **worked(one)} for number, one in enumerate(of_report, start=1)]
        messages += [
            ("user", report_query(reference, [one.phrase for one in of_report])),
            ("assistant", dump({"answers": answers})),
        ]
    return tuple(messages)


def worked(example: Example) -> dict[str, Any]:
    """The answer to a worked question, as fields in their order."""
    return {"phrase": example.phrase, "evidence": list(example.evidence), "status": example.status}


def _dump_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def query(reference: Sequence[str], hypothesis: str) -> str:
    """A question as the user message of the protocol (paper 004, listing 5)."""
    return _reference_yaml(tuple(reference)) + dump_yaml({"hypothesis": hypothesis})


def report_query(reference: Sequence[str], hypotheses: Sequence[str]) -> str:
    """All hypotheses of a report, numbered from 1, as one user message."""
    return _reference_yaml(tuple(reference)) + dump_yaml({"hypotheses": dict(enumerate(hypotheses, start=1))})


@lru_cache(maxsize=64)
def _reference_yaml(reference: tuple[str, ...]) -> str:
    """Questions about one report are asked one after another, so its sentences are written once."""
    return dump_yaml({"reference": list(reference)})


def answer_schema(premises: Sequence[str], hypothesis: str) -> dict[str, Any]:
    """The JSON schema of the answer to one question.

    Every text is one of a list, or bounded where the list would be too long, and every list is bounded: a server that
    is left to choose writes on to its limit of tokens.
    """
    return _object(_answer_fields(premises, {"type": "string", "enum": [hypothesis]}))


def report_schema(premises: Sequence[str], hypotheses: Sequence[str]) -> dict[str, Any]:
    """The JSON schema of the answers to all hypotheses of a report."""
    count = len(hypotheses)
    phrase = {"type": "string", "enum": list(dict.fromkeys(hypotheses))}
    number = {"type": "integer", "enum": list(range(1, count + 1))}
    item = _object({"number": number, **_answer_fields(premises, phrase)})
    return _object({"answers": {"type": "array", "items": item, "minItems": count, "maxItems": count}})


def _answer_fields(premises: Sequence[str], phrase: Mapping[str, Any]) -> dict[str, Any]:
    choices = list(dict.fromkeys(premises))
    quoted: dict[str, Any] = {"type": "string", "enum": choices}
    if len(choices) > MOST_CHOICES:
        quoted = {"type": "string", "maxLength": _LONGEST_TEXT}
    return {
        "phrase": phrase,
        "evidence": {"type": "array", "items": quoted, "maxItems": min(len(choices), MOST_CHOICES)},
        "status": {"type": "string", "enum": list(get_args(Status))},
    }


def _object(properties: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": dict(properties),
        "required": list(properties),
        "additionalProperties": False,
    }
