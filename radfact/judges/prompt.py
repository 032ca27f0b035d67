"""Prompt of the LLM judge: system message, worked examples, query messages and response schemas."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args

from pydantic import AfterValidator, BaseModel, Field, StrictBool, TypeAdapter, ValidationError

from radfact.errors import ErrorCode, InputError
from radfact.io.jsonl import read_json
from radfact.judges.protocol import EntailmentQuery, Status
from radfact.llm import Message
from radfact.llm.response_text import dump_yaml
from radfact.records import as_input_error

ModelT = TypeVar("ModelT", bound=BaseModel)
AnswerFormat = Literal["yaml", "schema"]
"""yaml: as in the paper; schema: JSON that the server constrains to a JSON schema."""
Batch = Literal["sentence", "report"]
"""sentence: one hypothesis per call, as in the paper; report: all hypotheses with the same premises in one call."""
Label = Literal["entailment", "neutral", "contradiction", "not_entailment"]

SYSTEM_MESSAGE = Path(__file__).with_name("system.txt").read_text("utf-8").rstrip()
"""Source: MAIRA-2, listing 3, verbatim."""
REPORT_NOTE = (
    "You are given several hypotheses at once, each with its number. Assess every one of them on its own, against the "
    "reference alone, and answer all of them in their order."
)
"""Appended to the system message if a call holds all hypotheses of a report."""
DEFAULT_FEW_SHOTS = Path(__file__).with_name("few_shots.json")

MAX_CHOICES = 250
"""Maximum number of premises that a schema enumerates; OpenAI's servers and the grammars of others have such limits."""
_MAX_TEXT_LENGTH = 1000


def _not_blank(text: str) -> str:
    if not text.strip():
        raise ValueError("expected a sentence")
    return text


Sentence = Annotated[str, AfterValidator(_not_blank)]
"""A text of a prompt, which stays as it is in the file."""


class _Judgment(BaseModel):
    phrase: Sentence
    evidence: list[str]
    status: Label
    topic: str | None = None


class _Reports(BaseModel):
    phrases_a: list[str] = Field(alias="phrases_A")
    phrases_b: list[str] = Field(alias="phrases_B")


class _Judgments(BaseModel):
    phrases_a: list[_Judgment] = Field(alias="phrases_A_evidenced")
    phrases_b: list[_Judgment] = Field(alias="phrases_B_evidenced")


class _FewShots(BaseModel):
    input: _Reports
    output: _Judgments
    development: StrictBool | None = None


@dataclass(frozen=True, slots=True)
class Example:
    """A worked query in the published layout: a report, a hypothesis, and the sentences that decide its label."""

    reference: tuple[str, ...]
    phrase: str
    evidence: tuple[str, ...]
    label: Label
    topic: str | None = None  # what the query tests
    development: bool | None = None  # whether it was used to develop a judge; None if unknown

    @property
    def status(self) -> Status:
        """Status of the label: neutral and contradicted hypotheses are not entailed."""
        return "entailment" if self.label == "entailment" else "not_entailment"

    @property
    def query(self) -> EntailmentQuery:
        return EntailmentQuery(self.reference, self.phrase)


def read_examples(path: Path | str, kind: type[ModelT]) -> list[ModelT]:
    """Read a JSON file with a list of worked examples in a published layout."""
    rows = read_json(path)
    if not isinstance(rows, list) or not rows:
        raise InputError("expected a list of at least one example", code=ErrorCode.INVALID_FORMAT, file=path)
    try:
        return TypeAdapter(list[kind]).validate_python(rows)  # type: ignore[valid-type]
    except ValidationError as error:
        raise as_input_error(error, kind=kind, file=path) from None


def load_few_shots(path: Path | str = DEFAULT_FEW_SHOTS, *, needs_evidence: bool = True) -> list[Example]:
    """Read examples in the published bidirectional layout: the sentences of A given B, then of B given A."""
    examples: list[Example] = []
    for index, report in enumerate(read_examples(path, _FewShots)):
        for side, reference, judgments in (
            ("A", report.input.phrases_b, report.output.phrases_a),
            ("B", report.input.phrases_a, report.output.phrases_b),
        ):
            for number, item in enumerate(judgments):
                if needs_evidence and item.status == "entailment" and not item.evidence:
                    field = f"[{index}].output.phrases_{side}_evidenced[{number}].evidence"
                    raise InputError("expected evidence for an entailment, found none", file=path, field=field)
                more = item.topic, report.development
                examples.append(Example(tuple(reference), item.phrase, tuple(item.evidence), item.status, *more))
    if not examples:
        raise InputError("expected at least one sentence with its status", code=ErrorCode.EMPTY_INPUT, file=path)
    return examples


def few_shot_messages(
    examples: Sequence[Example], system: str, answer_format: AnswerFormat, batch: Batch
) -> tuple[Message, ...]:
    """Return the constant part of every prompt: the system message, then the worked queries with their responses."""
    # YAML examples would contradict a schema, the constraint to JSON.
    dump = dump_yaml if answer_format == "yaml" else partial(json.dumps, ensure_ascii=False)
    if batch == "sentence":
        turns = [(query_message(example.reference, example.phrase), worked_response(example)) for example in examples]
    else:
        system, turns = f"{system.rstrip()}\n\n{REPORT_NOTE}", []
        for reference, group in groupby(examples, key=lambda example: example.reference):
            report = list(group)
            answers = [{"number": number, **worked_response(item)} for number, item in enumerate(report, start=1)]
            turns.append((report_message(reference, [item.phrase for item in report]), {"answers": answers}))
    messages: list[Message] = [("system", system)]
    for query, response in turns:
        messages += [("user", query), ("assistant", dump(response))]
    return tuple(messages)


def worked_response(example: Example) -> dict[str, Any]:
    return {"phrase": example.phrase, "evidence": list(example.evidence), "status": example.status}


def query_message(reference: Sequence[str], hypothesis: str) -> str:
    """Return the user message of one query (MAIRA-2, listing 5)."""
    return _reference_yaml(tuple(reference)) + dump_yaml({"hypothesis": hypothesis})


def report_message(reference: Sequence[str], hypotheses: Sequence[str]) -> str:
    """Return the user message of all hypotheses of a report, numbered from 1."""
    return _reference_yaml(tuple(reference)) + dump_yaml({"hypotheses": dict(enumerate(hypotheses, start=1))})


@lru_cache(maxsize=64)
def _reference_yaml(reference: tuple[str, ...]) -> str:
    """Serialize a report, cached: queries about one report follow one another."""
    return dump_yaml({"reference": list(reference)})


def verdict_schema(premises: Sequence[str], hypothesis: str) -> dict[str, Any]:
    """Return the JSON schema of the response to one query, all bounded: some models generate up to the limit."""
    return _object(_verdict_fields(premises, {"type": "string", "enum": [hypothesis]}))


def report_schema(premises: Sequence[str], hypotheses: Sequence[str]) -> dict[str, Any]:
    """Return the JSON schema of the response to all hypotheses of a report."""
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
