"""The basic records: boxes, masks, sentences and reports."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError, model_validator
from pydantic.functional_validators import BeforeValidator

from radfact.errors import ErrorCode, InputError, brief, describe, describe_choice, field_name, suggest_name
from radfact.languages import normalize_characters

# Strict, because true is not a coordinate.
Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False, strict=True)]
Text = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]
Id = Annotated[Text, BeforeValidator(lambda value: str(value) if type(value) is int else value)]
"""A key as text; files have it as a number too."""


class Row(BaseModel):
    """Base of rows of files, whose other fields are ignored. Models are built when they are first used."""

    model_config = ConfigDict(defer_build=True)


class Record(BaseModel):
    """Base of all records: immutable, and a misspelt field is an error instead of being dropped."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)


class Box(Record):
    """A rectangle on the ORIGINAL image in fractions of its width and height: x to the right, y down, both in [0, 1].

    A box without area is legal and covers nothing.
    """

    x_min: Share
    y_min: Share
    x_max: Share
    y_max: Share

    @model_validator(mode="after")
    def _corners_in_order(self) -> Box:
        for low, high in (("x_min", "x_max"), ("y_min", "y_max")):
            if getattr(self, low) > getattr(self, high):
                raise ValueError(
                    f"corners are swapped: {low} {getattr(self, low):g} is greater than {high} {getattr(self, high):g}"
                )
        return self

    def as_tuple(self) -> tuple[float, float, float, float]:
        """Return (x_min, y_min, x_max, y_max)."""
        return self.x_min, self.y_min, self.x_max, self.y_max


class Mask(Record):
    """A pixel mask in COCO run-length encoding: `size` is (height, width) in pixels of its own grid."""

    size: tuple[Annotated[int, Field(gt=0, strict=True)], Annotated[int, Field(gt=0, strict=True)]]
    counts: str | list[int]


class Sentence(Record):
    """One finding of a report: its text and where it is seen. No boxes is None, never an empty list."""

    text: Text
    boxes: tuple[Box, ...] | None = None
    masks: tuple[Mask, ...] | None = None
    prior_boxes: tuple[Box, ...] | None = None

    @model_validator(mode="before")
    @classmethod
    def _empty_is_none(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        return {k: None if k != "text" and isinstance(v, list | tuple) and not v else v for k, v in value.items()}

    @property
    def has_region(self) -> bool:
        """Whether the sentence is located on the current frontal image."""
        return self.boxes is not None or self.masks is not None


Report = list[Sentence] | str
"""A list of sentences, or one narrative string that is still to be split."""


CHEST_XRAY = "chest X-ray"
_XRAY = re.compile(r"((digital|computed|plain) )?(cr|dx|dr|rg|xr|x ?ray|plain film|r(ö|oe|o)ntgen|radiograph(y?))s?")
_EXAMINATION_TERMS = {
    **{"cxr": CHEST_XRAY, "ct": "CT", "ct scan": "CT", "mr": "MRI", "mri": "MRI", "us": "ultrasound"},
    **{"ultrasound": "ultrasound", "mg": "mammography", "mammography": "mammography", "thorax": "chest"},
    **dict.fromkeys(("", "unknown", "other", "ot", "not specified", "unspecified"), ""),
}
"""Modalities (also of DICOM) and regions as prompts name them, by words in lower case; others are named as they are."""


def _term(text: str) -> str:
    words = " ".join(re.findall(r"[^\W_]+", text.lower()))
    return "X-ray" if _XRAY.fullmatch(words) else _EXAMINATION_TERMS.get(words, text)


@dataclass(frozen=True, slots=True)
class PatientContext:
    """What is known of a patient and of the examination apart from the reports; metrics that use it say so.

    Attributes:
        age: in years; None = unknown.
        indication: reason for the examination.
        comparison: earlier examinations that the image was compared with.
        modality: of the examination, such as CT.
        anatomy: region of the body, such as abdomen.
    """

    age: float | None = None
    indication: str | None = None
    comparison: str | None = None
    modality: str | None = None
    anatomy: str | None = None

    @property
    def examination(self) -> str:
        """The kind of examination in our own prompts; "chest X-ray", as without this property, if it is unknown."""
        anatomy = " ".join(map(_term, _term(self.anatomy or "").lower().split()))
        words = _term(self.modality or "").split()
        # Each may name the other as well: "Chest CT" of the chest.
        named = [n for n in range(len(words)) if _term(" ".join(words[:n]).lower()) == (anatomy or "chest")]
        anatomy, modality = anatomy or ("chest" if named else ""), _term(" ".join(words[max(named, default=0) :]))
        name = " ".join(f"{anatomy.removesuffix(modality)} {modality}".split())
        return CHEST_XRAY if name in ("", CHEST_XRAY) else f"{name} examination"

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> PatientContext:
        """Return the context in a row of a table or an object from JSON, with fields of the same names.

        An age is a number of years or a text such as "67", "067Y" (DICOM) or "6 months"; what is neither is unknown.
        """
        names = ("indication", "comparison", "modality", "anatomy")
        texts = {name: (isinstance(row.get(name), str) and row[name].strip()) or None for name in names}
        # "None" as a comparison tells that there is no earlier examination.
        is_none = {"comparison": str(texts["comparison"]).lower() == "none"}
        known = {name: text for name, text in texts.items() if is_none.get(name) or not is_missing(text)}
        return cls(_years(row.get("age")), **known)


_MISSING = re.compile(
    r"-?nan|none|null|nil|n/?a|n\.a\.|#n/?a|<na>|nat|<null>|\(null\)|\\n|-?1\.#(qnan|ind)", re.IGNORECASE
)


def is_missing(value: object) -> bool:
    """Return whether a value of a file is missing: null, NaN, or a text that programs write for it, such as `N/A`."""
    return not isinstance(value, list | tuple | Mapping) and _MISSING.fullmatch(str(value).strip()) is not None


def find_missing(rows: Iterable[tuple[str, Mapping[str, Any]]], names: Collection[str]) -> dict[str, list[str]]:
    """Return the places of the rows that have a missing value in fields of some names, by field."""
    places: dict[str, list[str]] = {}
    for where, row in rows:
        for name in row:
            # The sentences of a manifest replace its narrative.
            if name in names and is_missing(row[name]) and not (name == "findings" and row.get("grounded_findings")):
                places.setdefault(name, []).append(where)
    return places


_AGE = re.compile(r"\s*(\d+(?:\.\d+)?)[\s-]*([a-z]?)", re.IGNORECASE)
_UNITS_PER_YEAR = {"m": 12.0, "w": 52.0, "d": 365.0}


def _years(age: object) -> float | None:
    """Return an age in years; None if it is not readable."""
    if isinstance(age, str) and (match := _AGE.match(age)):
        return float(match[1]) / _UNITS_PER_YEAR.get(match[2].lower(), 1.0)
    return float(age) if isinstance(age, int | float) and not isinstance(age, bool) and age >= 0 else None


NO_CONTEXT = PatientContext()
NO_CLUSTERS = "none"
"""Value of the option `cluster` that resamples samples although they have clusters."""


@dataclass(frozen=True, slots=True)
class Pair:
    """A candidate report and the reference report that it is compared with.

    Attributes:
        sample_id: unique id.
        candidate: report.
        reference: report.
        cluster: label that is the same for samples that belong together, such as the studies of a patient; None = the
            sample is its own cluster.
        context: of the patient.
    """

    sample_id: str
    candidate: Report
    reference: Report
    cluster: str | None = None
    context: PatientContext = NO_CONTEXT


@dataclass(frozen=True, slots=True)
class TextPair(Pair):
    """A pair of two texts: narratives, or the sentences of grounded reports joined by spaces."""

    candidate: str
    reference: str

    @classmethod
    def of(cls, pair: Pair) -> TextPair:
        """Return a pair with its reports as texts."""
        return cls(pair.sample_id, narrative(pair.candidate), narrative(pair.reference), context=pair.context)


@dataclass(frozen=True, slots=True)
class Pairs(Sequence[Pair]):
    """The pairs of an evaluation in input order.

    Attributes:
        pairs: the pairs.
        read: number of records that were read.
        skipped: number of records that make no pair.
        without_candidate: references without a candidate that make no pair, and the reason.
        without_reference: candidates whose record has no report.
        files: that the pairs were read from.
        models: that wrote the candidates, as their records name them.
        cluster_by: what the samples of a cluster share, such as `patient_id`; None if there are no clusters.
        drawn_from: number of samples that these were drawn from; None if they are all.
        numbered: whether the ids are the positions of the pairs.
        digests: digests of the reports by id, where the pairs do not have their original texts; None = unknown.
        missing_values: lines, or paths in a document, where a field has no value, by file and field.
        has_references: whether there are references; without any, those of the pairs are empty.
    """

    pairs: tuple[Pair, ...]
    read: int
    skipped: int = 0
    without_candidate: Mapping[str, str] = field(default_factory=dict)
    without_reference: tuple[str, ...] = ()
    files: tuple[Path, ...] = ()
    models: tuple[str, ...] = ()
    cluster_by: str | None = None
    drawn_from: int | None = None
    numbered: bool = False
    digests: Mapping[str, str | None] = field(default_factory=dict)
    missing_values: Mapping[str, Sequence[str]] = field(default_factory=dict)
    has_references: bool = True

    def digest_of(self, pair: Pair) -> str | None:
        """Return the digest of the reports of a pair."""
        if pair.sample_id in self.digests:
            return self.digests[pair.sample_id]
        return digest(pair.candidate, pair.reference)

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, index: Any) -> Any:
        return self.pairs[index]

    def sample(self, count: int, seed: int = 42) -> Pairs:
        """Draw a random sample, in input order.

        A sample is drawn by its id alone: the same ids and seed give the same samples in every file, so that systems
        can be compared, and a larger count adds to those of a smaller one.

        Args:
            count: number of samples, references without a candidate included; all if there are no more.
            seed: of the draw.
        """
        ids = [*(pair.sample_id for pair in self.pairs), *self.without_candidate]
        if count >= len(ids):
            return self
        ids_in_order = sorted(ids, key=lambda key: hashlib.sha256(f"{seed} {key}".encode(errors="replace")).digest())
        drawn = set(ids_in_order[:count])
        return replace(
            self,
            pairs=tuple(pair for pair in self.pairs if pair.sample_id in drawn),
            without_candidate={key: why for key, why in self.without_candidate.items() if key in drawn},
            drawn_from=len(ids),
        )

    @property
    def empty_candidates(self) -> tuple[str, ...]:
        """Ids of the pairs whose candidate has no text."""
        return tuple(pair.sample_id for pair in self.pairs if not narrative(pair.candidate).strip())


def narratives(pairs: Iterable[Pair]) -> list[str]:
    """Return the distinct narratives that are not empty, which have to be split into sentences."""
    reports = (report for pair in pairs for report in (pair.candidate, pair.reference))
    return list(dict.fromkeys(report for report in reports if isinstance(report, str) and report.strip()))


def narrative(report: Report) -> str:
    """Return a report as one text: as it is, or its sentences joined by spaces."""
    return report if isinstance(report, str) else " ".join(sentence.text for sentence in report)


def digest(candidate: Report, reference: Report) -> str:
    """Return a hash of a pair of reports, which ignores case, spaces and punctuation, since splitters change these."""
    plain = "\n".join(re.sub(r"\W+", "", narrative(report).lower()) for report in (candidate, reference))
    return hashlib.sha256(plain.encode(errors="replace")).hexdigest()[:16]


# Messages by type of error, with its context, where Pydantic describes it in terms of Python.
_EXPECTED = {
    "list_type": "expected a list",
    "tuple_type": "expected a list",
    "dict_type": "expected an object",
    "model_type": "expected an object with named fields",
    "string_type": "expected a string",
    "path_type": "expected a path",
    "string_too_short": "expected a string of at least {min_length} characters",
    "string_too_long": "expected a string of at most {max_length} characters",
    "too_short": "expected at least {min_length} items",
    "too_long": "expected at most {max_length} items",
    "greater_than": "expected a number greater than {gt}",
    "greater_than_equal": "expected a number of at least {ge}",
    "less_than": "expected a number less than {lt}",
    "less_than_equal": "expected a number of at most {le}",
    "float_type": "expected a number",
    "float_parsing": "expected a number",
    "int_type": "expected a whole number",
    "int_parsing": "expected a whole number",
    "int_from_float": "expected a whole number",
    "bool_type": "expected true or false",
    "bool_parsing": "expected true or false",
    "missing": "expected a value, found none",
}
_NOT_EMPTY = {"string_too_short": "expected a string that is not empty", "too_short": "expected at least one item"}
_CHOICES = frozenset({"literal_error", "enum", "float_parsing", "int_parsing", "bool_parsing"})
"""Types of errors about values that are names or numbers, not texts."""

# Hyphens, dashes and the minus sign. Between digits they tell 1-2 mm from 12 mm.
_DASH = "[-\u2010-\u2015\u2212]"
_DASHES = re.compile(rf"(?<=\d)(?P<between>\s*{_DASH}+\s*)(?=\d)|{_DASH}")


@lru_cache(maxsize=1 << 16)
def normalize_text(text: str) -> str:
    """Return a text for comparison, without case, extra spaces, one final mark, and dashes except between digits."""
    text = _DASHES.sub(lambda dash: "-" if dash["between"] else "", normalize_characters(text).lower())
    return re.sub(r"\s*[.:!?]$", "", " ".join(text.split()))


def parse_sentences(value: Any, *, field: str = "report", **place: Any) -> list[Sentence]:
    """Validate a list of `{text, boxes, ...}` objects from JSON; `place` is file and line, as in `InputError`."""
    if not isinstance(value, list | tuple):
        raise InputError(f"expected a list, found {describe(value)}", **place, field=field)
    return [validate_model(Sentence, item, **place, field=f"{field}[{i}]") for i, item in enumerate(value)]


_ModelT = TypeVar("_ModelT", bound=BaseModel)


def validate_model(model: type[_ModelT], value: Any, **place: Any) -> _ModelT:
    """Validate a value from a file as an instance of `model`; `place` is file, line and field, as in `InputError`."""
    try:
        return model.model_validate(value)
    except ValidationError as error:
        raise as_input_error(error, kind=model, **place) from None


def as_input_error(
    error: ValidationError, *, kind: Any = None, field: str = "", quote: bool = False, **place: Any
) -> InputError:
    """Return the first error of a Pydantic validation as an error of one line with the path of the field."""
    faults = error.errors(include_url=False)
    # A missing field may be present under a misspelled name.
    unknown = [item for item in faults if item["type"] == "extra_forbidden"]
    siblings = (item for item in unknown if item["loc"][:-1] == faults[0]["loc"][:-1])
    first = next(siblings, faults[0]) if faults[0]["type"] == "missing" else faults[0]
    path = field
    for step in first["loc"]:
        if step == "[key]":  # pydantic's mark of a name that is wrong itself
            continue
        path += f"[{step}]" if isinstance(step, int) else f"{'.' if path else ''}{field_name(step)}"
    if first["type"] == "extra_forbidden":
        *above, name = first["loc"]
        hint = suggest_name(str(name), _fields(kind, above), "remove it or correct its name")
        return InputError(f"unknown field; {hint}", code=ErrorCode.UNKNOWN_FIELD, **place, field=path)
    message = _message(first["type"], first.get("ctx", {})) or first["msg"].removeprefix("Value error, ")
    message = message.replace("Input should be", "expected")
    value = first.get("input")
    show = brief if quote else describe_choice if first["type"] in _CHOICES else describe
    shown = "" if first["type"] == "missing" or isinstance(value, dict) else f", found {show(value)}"
    code = ErrorCode.MISSING_FIELD if first["type"] == "missing" else ErrorCode.INVALID_VALUE
    return InputError(f"{message[0].lower()}{message[1:]}{shown}", code=code, **place, field=path or None)


def _message(kind: str, context: Mapping[str, Any]) -> str | None:
    """Return the message of a type of error, or None for an unknown type."""
    if context.get("min_length") == 1 and kind in _NOT_EMPTY:
        return _NOT_EMPTY[kind]
    numbers = {name: f"{value:g}" if isinstance(value, float) else value for name, value in context.items()}
    return _EXPECTED[kind].format_map(numbers) if kind in _EXPECTED else None


def _fields(kind: Any, above: Sequence[int | str]) -> list[str]:
    """Return the names of the fields that an object may have at a path of fields, keys and indices in a value."""
    models = _models(kind)
    for step in above:
        held = [model.model_fields[step] for model in models if isinstance(step, str) and step in model.model_fields]
        # A step that is no field is a key or an index in one, and leads to the same type of object.
        models = [model for info in held for model in _models(info.annotation)] or models
    return [info.alias or name for model in models for name, info in model.model_fields.items()]


def _models(kind: Any) -> list[type[BaseModel]]:
    """Return the models in a type, such as Box in `list[Box] | None`."""
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return [kind]
    return [model for part in get_args(kind) for model in _models(part)]
