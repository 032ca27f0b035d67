"""Forms: what readers are asked about a draft, its sentences or corrections, or two candidates."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from itertools import chain, product
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import yaml
from pydantic import AfterValidator, BaseModel, Field, StrictInt, model_validator

from radfact.error_categories import ERROR_CATEGORIES
from radfact.errors import ErrorCode, InputError, suggest_name
from radfact.io.jsonl import read_text
from radfact.io.yaml_files import read_yaml
from radfact.meta.datasets.ratings import COUNTS
from radfact.metrics.llm.responses.corrections import SEVERITIES
from radfact.records import Record, Text, validate_model
from radfact.statistics.rater_agreement import Level


def _matching(pattern: str, expected: str) -> AfterValidator:
    def check(text: str) -> str:
        if not re.fullmatch(pattern, text):
            raise ValueError(f"expected {expected}")
        return text

    return AfterValidator(check)


Value = StrictInt | str | None
"""An answer; None is a missing one."""
Slug = Annotated[str, _matching("[a-z][a-z0-9_]{0,39}", "a name of lowercase letters, digits and underscores")]
Key = Annotated[str, _matching(r"(Shift\+)?[a-z0-9]", "a lowercase letter or a digit, or Shift+ and one of these")]
Layout = Literal["ratings", "refisco-v1", "rexval", "rexamine", "preferences"]

RATED_COUNTS = [f"{kind}_{letter}" for kind, letter in product(COUNTS[1:], ERROR_CATEGORIES)]
"""Fields of the layout `rexval`."""
PREFERENCES = ("first", "second", "equal")
"""Values of the field `preference` of the layout `preferences`."""

_PAGE_KEYS = "cfghijklmnprsuvwxz"
_CORRECTION_KEYS = "abde"
_COLUMNS = (
    *("reader", "sample_id", "arm", "model", "training", "excluded", "finished", "study_comment", "sentence", "text"),
    *("kind", "draft_text", "corrected_text", "boxes_changed", "draft_boxes", "corrected_boxes"),
)
"""Columns of the exported answers beside those of the fields."""
LONGEST_TEXT = 10_000
LONGEST_NAME = 100


class Option(Record):
    value: StrictInt | Text
    name: Text
    definition: str = ""
    key: Key | None = None


class Question(Record):
    """A field of a form; `when` lists the values of another field for which it is asked."""

    name: Slug
    label: Text
    type: Literal["choice", "number", "text"]
    group: str = ""
    options: tuple[Option, ...] = ()
    allows_others: bool = False
    level: Level = "nominal"
    min: int = 0
    max: int = 99
    key: Key | None = None
    required: bool = False
    when: Mapping[Slug, tuple[Value, ...]] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _check(self) -> Question:
        values = [option.value for option in self.options]
        if (self.type == "choice") != (len(values) > 1):
            raise ValueError("options: expected at least two with the type 'choice', and none with others")
        if len(set(values)) < len(values):
            raise ValueError("options: expected different values, found duplicates")
        if self.min > self.max:
            raise ValueError(f"min: expected at most {self.max}, found {self.min}")
        return self

    def clean(self, value: Value) -> Value:
        """Return an answer as it is stored; an empty text is none."""
        values = [option.value for option in self.options]
        if value is None or value in values:
            return value
        expected = f"one of {', '.join(map(str, values))}"
        match self.type, value:
            case "number", int():
                expected = f"a whole number from {self.min} to {self.max}"
                if self.min <= value <= self.max:
                    return value
            case "text", str():
                expected = f"at most {LONGEST_TEXT:,} characters"
                if len(value) <= LONGEST_TEXT:
                    return value or None
            case "choice", str() if self.allows_others:
                expected = f"a name of 1 to {LONGEST_NAME} characters"
                if value and len(value) <= LONGEST_NAME:
                    return " ".join(value.split())
        found = f"{len(value)} characters" if isinstance(value, str) else value
        raise InputError(f"expected {expected}, found {found}", field=self.name)

    def places(self, values: Iterable[Value]) -> dict[Value, float]:
        """Return answers as numbers for statistics: options in their order, then other names; numbers as they are."""
        if self.type == "number":
            return {value: float(value) for value in values if isinstance(value, int)}
        known = [option.value for option in self.options]
        others = sorted({str(value) for value in values if value not in (*known, None)})
        return {value: float(place) for place, value in enumerate([*known, *others])}


class Step(Record):
    name: Text
    instruction: Text


class Form(Record):
    """A form (`docs/review.md`); without a `reference_step`, only studies without an image show a reference."""

    name: Slug
    title: Text
    source: str = ""
    unit: Literal["correction", "sentence", "comment", "study", "pair"]
    steps: Annotated[tuple[Step, ...], Field(min_length=1)]
    reference_step: Annotated[int, Field(ge=1)] | None = 1
    fields: Annotated[tuple[Question, ...], Field(min_length=1)]
    layout: Layout | None = None

    @model_validator(mode="after")
    def _check(self) -> Form:
        names, taken = {*self.by_name}, {*_PAGE_KEYS, *(_CORRECTION_KEYS if self.edits else ())}
        if (self.reference_step or 1) > len(self.steps):
            raise ValueError(f"reference_step: expected 1 to {len(self.steps)}, found {self.reference_step}")
        for place, field in enumerate(self.fields):
            if field.name not in names:
                raise ValueError(f"fields[{place}].name: expected different names, found '{field.name}' twice")
            names.remove(field.name)
            if field.name in _COLUMNS:
                raise ValueError(
                    f"fields[{place}].name: '{field.name}' is a column of the export, expected another name"
                )
            for name, values in field.when.items():
                if {*values}.difference(self._values(name)):
                    raise ValueError(f"fields[{place}].when: expected options of a field, found {name}: {[*values]}")
            keys = {f"options[{at}].key": option.key for at, option in enumerate(field.options) if option.key}
            for name, key in {**keys, **({"key": field.key} if field.key else {})}.items():
                if key in taken:
                    message = "expected a key that no other option has, nor the page"
                    raise ValueError(f"fields[{place}].{name}: {message}, found '{key}'")
                taken.add(key)
        severities = self._values("severity")
        if self.edits and (not severities or severities != [*range(len(severities))]):
            raise ValueError("fields: expected severity with the options 0, 1, ... of corrections, the least first")
        if self.edits and self.by_name["severity"].when:
            raise ValueError("fields: expected severity without 'when'")
        if problem := self._layout_problem():
            raise ValueError(f"layout: expected {problem} with '{self.layout}'")
        return self

    def _values(self, name: str) -> list[Value]:
        """Return the values of a field's options; none without the field."""
        return [option.value for field in self.fields if field.name == name for option in field.options]

    def _layout_problem(self) -> str | None:
        numbers = {field.name for field in self.fields if field.type == "number"}
        severities = [*self.severities.values()][:-1]
        match self.layout:
            case "ratings" if not self.edits or len(severities) != 3:
                return "the unit 'correction' and three severities"
            case "refisco-v1" if not self.edits or not SEVERITIES.keys() >= {*severities}:
                return f"the unit 'correction' and severities of {', '.join(SEVERITIES)}"
            case "rexval" if self.unit != "study" or not numbers >= {*RATED_COUNTS}:
                return f"the unit 'study' and numbers {RATED_COUNTS[0]} to {RATED_COUNTS[-1]}"
            case "rexamine" if self.unit != "study" or not numbers:
                return "the unit 'study' and numbers of errors"
            case "preferences" if self.unit != "pair" or (*self._values("preference"),) != PREFERENCES:
                return f"the unit 'pair' and a choice preference of {', '.join(PREFERENCES)}"
        # A missing answer would be a rating of another value.
        rated = numbers if self.unit == "study" else {"severity", "preference", "confidence"}
        for field in self.fields if self.layout else ():
            if field.name in rated and (field.when or not field.required):
                return f"'required: true' and no 'when' for {field.name}"
        return None

    @property
    def by_name(self) -> dict[str, Question]:
        return {field.name: field for field in self.fields}

    @property
    def edits(self) -> bool:
        """Whether readers correct the sentences of a draft."""
        return self.unit == "correction"

    @property
    def is_whole(self) -> bool:
        """Whether the answers are about a study as a whole."""
        return self.unit in ("study", "pair")

    def shows_reference(self, visited: Iterable[int], *, has_image: bool) -> bool:
        return not has_image if self.reference_step is None else max(visited) >= self.reference_step

    @property
    def severities(self) -> dict[int | None, str]:
        """Short names of the severities of corrections, the least first; None is a missing one."""
        if not self.edits:
            return {}
        options = self.by_name["severity"].options
        names = {option.value: option.name.lower().removesuffix(" implications") for option in options}
        return {**{key: name for key, name in names.items() if isinstance(key, int)}, None: "not rated"}

    @property
    def option_names(self) -> dict[str, str]:
        """Names of options with texts as values, such as types of errors."""
        options = chain.from_iterable(field.options for field in self.fields)
        return {option.value: option.name for option in options if isinstance(option.value, str)}

    def clean(self, values: Mapping[str, Value]) -> dict[str, Value]:
        if unknown := [name for name in values if name not in self.by_name]:
            hint = suggest_name(unknown[0], self.by_name, f"fields are {', '.join(self.by_name)}")
            raise InputError(f"unknown field; {hint}", code=ErrorCode.UNKNOWN_FIELD, field=unknown[0])
        return {name: self.by_name[name].clean(value) for name, value in values.items()}

    def asked(self, answers: Mapping[str, Value]) -> dict[str, Value]:
        """Return the answers to the fields that are asked after the others, None where one is missing."""
        asked = {
            field.name: answers.get(field.name)
            for field in self.fields
            if all(answers.get(name) in values for name, values in field.when.items())
        }
        # Without an answer that is no longer asked, others may not be either.
        return asked if asked.keys() >= answers.keys() else self.asked(asked)

    def missing(self, answers: Mapping[str, Value]) -> Iterator[Question]:
        """Yield the required fields without an answer."""
        asked = self.asked(answers)
        yield from (field for field in self.fields if field.required and asked.get(field.name, "") is None)

    @property
    def _answers(self) -> Any:
        fields = [(f.name, f.type, [o.value for o in f.options], f.allows_others, f.min, f.max) for f in self.fields]
        return self.unit, len(self.steps), self.reference_step, fields

    def check_same(self, other: Form, file: Path) -> None:
        """Check that a review is continued with its form; its texts and keys may differ."""
        if (self.name, self._answers) != (other.name, other._answers):
            found = f"{other.name!r}{' with other fields' * (self.name == other.name)}"
            hint = "omit the form to continue with it, or choose another --db"
            message = f"expected the form of this review, {self.name!r}, found {found}; {hint}"
            raise InputError(message, code=ErrorCode.MISMATCH, file=file, field="form")


_Model = TypeVar("_Model", bound=BaseModel)
_SHIPPED = Path(__file__).with_name("forms")
_FIELD = re.compile(r"([a-z_]+[]\[0-9a-z_.]*): ")


def validate_file(model: type[_Model], values: Any, path: Path) -> _Model:
    """Check the values of a YAML file; an error names the line of the field."""
    try:
        return validate_model(model, values, file=path)
    except InputError as error:
        # A model names the field itself if it checks several.
        found = _FIELD.match(error.message)
        field = ".".join(filter(None, (error.field, found and found[1])))
        message = error.message[found.end() :] if found else error.message
        line = _line(yaml.compose(read_text(path), yaml.SafeLoader), field)
        raise InputError(message, code=error.code, file=path, line=line, field=field or None) from None


def _line(node: yaml.Node | None, field: str) -> int | None:
    """Return the line of a field in a YAML document, or else of the closest value that contains it."""
    line = None
    for step in re.findall(r"[^].[]+", field):
        items = node.value if isinstance(node, yaml.MappingNode) else []
        parts = {str(key.value): (key, value) for key, value in items}
        if isinstance(node, yaml.SequenceNode):
            parts = {str(place): (value, value) for place, value in enumerate(node.value)}
        if step not in parts:
            break
        key, node = parts[step]
        line = key.start_mark.line + 1
    return line


def shipped_forms() -> list[str]:
    return sorted(path.stem for path in _SHIPPED.glob("*.yaml"))


def read_form(name: str, folder: Path | None = None) -> Form:
    """Read a shipped form by its name, or a file; a relative path is relative to the folder."""
    path = _SHIPPED / f"{name}.yaml" if name in shipped_forms() else (folder or Path()) / name
    if path.suffix.lower() not in (".yaml", ".yml"):
        hint = suggest_name(name, shipped_forms(), f"forms are {', '.join(shipped_forms())}, or a file (.yaml)")
        raise InputError(f"unknown form {name!r:.60}; {hint}", code=ErrorCode.UNKNOWN_NAME, field="form")
    return validate_file(Form, read_yaml(path), path)


@cache
def default_form() -> Form:
    """Return the form of a review without another one."""
    return read_form("maira2")
