"""Read annotations exported by Label Studio (JSON).

The format is documented at https://labelstud.io/guide/task_format and for each tag: a list of tasks with data and
annotations by several annotators. Coordinates are percentages of the image.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, Field

from maira.data.annotation.protocol import Annotation, PhraseAnnotation, PhraseLabel, Progression, Quality
from maira.data.annotation.tasks import CURRENT, OTHER_VIEW, PRIOR, numbered_phrases
from maira.data.study import Study
from radfact.errors import ErrorCode, InputError, describe_choice
from radfact.io.jsonl import read_json
from radfact.records import Box, Mask, validate_model

_Number = Annotated[float, Field(allow_inf_nan=False)]
_LABELS = ("rectanglelabels", "polygonlabels", "vectorlabels", "labels")
_EnumT = TypeVar("_EnumT", bound=StrEnum)

Point = tuple[float, float]
"""x and y in percent of the image's width and height."""

LINE_WIDTH = 0.01
"""Width of a line's mask as a share of the image's shorter side: about a central line on an adult's radiograph."""

_OVERHANG = 0.5
"""Percentage that a shape may extend beyond the image by imprecise drawing; it is clipped."""


class Unusable(ValueError):
    """A shape that cannot become a box or mask; `str()` is the reason."""


class _Vertex(BaseModel):
    x: _Number
    y: _Number
    isBezier: bool = False  # noqa: N815 (the file's own name)


class _Value(BaseModel):
    x: _Number | None = None
    y: _Number | None = None
    width: _Number | None = None
    height: _Number | None = None
    rotation: _Number = 0
    points: list[Annotated[list[_Number], Field(min_length=2, max_length=2)]] | None = None
    vertices: list[_Vertex] | None = None
    closed: bool = False
    choices: list[str] = []
    text: list[str] | str = []
    rectanglelabels: list[str] = []
    polygonlabels: list[str] = []
    vectorlabels: list[str] = []
    labels: list[str] = []


class _Result(BaseModel):
    id: str | int | None = None
    from_name: str | None = None
    to_name: str | None = None
    type: str = ""
    value: _Value = _Value()
    original_width: Annotated[int, Field(gt=0)] | None = None
    original_height: Annotated[int, Field(gt=0)] | None = None
    image_rotation: _Number = 0


class _Annotation(BaseModel):
    completed_by: Any = None
    was_cancelled: bool = False
    result: list[_Result] = []
    updated_at: str = ""


class _Phrase(BaseModel):
    value: str


class _Data(BaseModel):
    sample_id: str
    phrases: list[_Phrase]


class _Task(BaseModel):
    data: _Data
    annotations: list[_Annotation]


@dataclass(frozen=True)
class AnnotatedSample:
    """A sample with one annotation per annotator; `unusable` is the reason if an annotation cannot be read."""

    sample_id: str
    annotations: tuple[Annotation, ...] = ()
    unusable: str | None = None


def read_label_studio(path: Path | str, studies: Sequence[Study]) -> list[AnnotatedSample]:
    """Read an export of Label Studio ("JSON").

    Skipped annotations are ignored. Of several annotations by one annotator, the last updated counts.
    """
    tasks = read_json(path)
    if isinstance(tasks, dict) and "images" in tasks:
        message = "found a COCO file; import it with 'maira prepare coco'"
        raise InputError(message, code=ErrorCode.INVALID_FORMAT, file=path)
    if not isinstance(tasks, list):
        message = "expected a list of tasks; export from Label Studio as JSON"
        raise InputError(message, code=ErrorCode.INVALID_FORMAT, file=path)
    by_id = {study.sample_id: study for study in studies}
    seen: set[str] = set()
    samples = []
    for index, value in enumerate(tasks):
        if isinstance(value, dict) and "data" not in value:
            message = "expected a task with its data; export as JSON, not as JSON-MIN"
            raise InputError(message, code=ErrorCode.INVALID_FORMAT, file=path, field=f"[{index}]")
        task = validate_model(_Task, value, file=path, field=f"[{index}]")
        study = by_id.get(task.data.sample_id)
        if study is None:
            message = f"sample '{task.data.sample_id}' is not in the manifest"
            raise InputError(message, code=ErrorCode.MISMATCH, file=path, field=f"[{index}].data.sample_id")
        if study.sample_id in seen:
            message = f"duplicate sample '{study.sample_id}'"
            raise InputError(message, code=ErrorCode.DUPLICATE, file=path, field=f"[{index}].data.sample_id")
        seen.add(study.sample_id)
        samples.append(_sample(task, study, path, f"[{index}]"))
    return samples


def _sample(task: _Task, study: Study, path: Path | str, field: str) -> AnnotatedSample:
    phrases = [phrase.value for phrase in task.data.phrases]
    if phrases != numbered_phrases(study):
        message = f"phrases differ from sample '{study.sample_id}' in the manifest; use the manifest that was exported"
        raise InputError(message, code=ErrorCode.MISMATCH, file=path, field=f"{field}.data.phrases")
    latest: dict[str, tuple[int, _Annotation]] = {}
    for number, annotation in enumerate(task.annotations):
        annotator = _annotator(annotation.completed_by)
        if annotation.was_cancelled:
            continue
        if annotator not in latest or latest[annotator][1].updated_at <= annotation.updated_at:
            latest[annotator] = (number, annotation)
    annotations = []
    for annotator, (number, annotation) in latest.items():
        reader = _Reader(phrases, path, f"{field}.annotations[{number}]")
        try:
            annotations.append(reader.read(annotator, annotation))
        except Unusable as error:
            return AnnotatedSample(study.sample_id, unusable=f"annotation by {annotator}: {error}")
    return AnnotatedSample(study.sample_id, tuple(annotations))


def _annotator(completed_by: Any) -> str:
    """Return the name of an annotator, exported as an id or as an object."""
    if isinstance(completed_by, Mapping):
        completed_by = completed_by.get("email") or completed_by.get("id")
    return "unknown" if completed_by is None else str(completed_by)


@dataclass
class _Draft:
    """Annotation of a phrase while its results are collected."""

    label: PhraseLabel | None = None
    progression: Progression | None = None
    category: str | None = None
    only_in_other_view: bool = False
    comment: str | None = None
    boxes: list[Box] = field(default_factory=list)
    masks: list[Mask] = field(default_factory=list)
    prior_boxes: list[Box] = field(default_factory=list)

    def finished(self) -> PhraseAnnotation:
        """Return the annotation without duplicate regions."""
        return PhraseAnnotation(
            self.label,
            self.progression,
            self.category,
            self.only_in_other_view,
            tuple(dict.fromkeys(self.boxes)),
            tuple(dict.fromkeys(self.masks)),
            tuple(dict.fromkeys(self.prior_boxes)),
            self.comment,
        )


class _Reader:
    """Converts the results of one annotation (as exported by Label Studio 1.23.2)."""

    def __init__(self, phrases: Sequence[str], path: Path | str, field: str) -> None:
        self.phrases = {phrase: _Draft() for phrase in phrases}
        self.path, self.field = path, field
        self.quality: Quality | None = None
        self.comment: str | None = None

    def read(self, annotator: str, annotation: _Annotation) -> Annotation:
        for number, result in enumerate(annotation.result):
            field = f"{self.field}.result[{number}]"
            if result.type == "relation":
                continue
            if any(getattr(result.value, name) for name in _LABELS):
                self._region(result, field)
            elif result.type in ("choices", "textarea"):
                self._choice_or_comment(result, field)
            elif result.type in ("rectanglelabels", "polygonlabels", "vectorlabels", "rectangle", "polygon", "vector"):
                raise Unusable(f"a region without a phrase ({field})")
            else:
                message = f"expected a result of the exported labeling interface, found {describe_choice(result.type)}"
                raise InputError(message, file=self.path, field=f"{field}.type")
        phrases = tuple(draft.finished() for draft in self.phrases.values())
        return Annotation(annotator, phrases, self.quality, self.comment)

    def _region(self, result: _Result, field: str) -> None:
        (label, *more) = [text for name in _LABELS for text in getattr(result.value, name)]
        draft = self.phrases.get(label)
        if draft is None or more:
            message = f"expected one phrase of the task, found {f'{1 + len(more)} labels' if more else 'another text'}"
            raise InputError(message, file=self.path, field=f"{field}.value")
        if result.to_name not in (CURRENT, PRIOR):
            message = f"expected {CURRENT} or {PRIOR}, found {describe_choice(result.to_name)}"
            raise InputError(message, file=self.path, field=f"{field}.to_name")
        if result.image_rotation or result.value.rotation:
            raise Unusable(f"a rotated shape for '{label}'; boxes must be axis-aligned")
        region = self._shape(result, field)
        if isinstance(region, Mask):
            if result.to_name == PRIOR:
                raise Unusable(f"a polygon or line for '{label}' on the prior image; expected boxes")
            draft.masks.append(region)
        elif region is not None:
            (draft.boxes if result.to_name == CURRENT else draft.prior_boxes).append(region)

    def _shape(self, result: _Result, field: str) -> Box | Mask | None:
        value = result.value
        if value.points is None and value.vertices is None:
            if value.x is None or value.y is None or value.width is None or value.height is None:
                message = "expected x, y, width and height, or points, or vertices"
                raise InputError(message, file=self.path, field=f"{field}.value")
            return box_of(value.x, value.y, value.width, value.height)
        if result.original_width is None or result.original_height is None:
            message = "expected original_width and original_height with a polygon or line"
            raise InputError(message, file=self.path, field=field)
        size = (result.original_height, result.original_width)
        if value.points is not None:
            return polygon_mask([(x, y) for x, y in value.points], size)
        vertices = value.vertices or []
        if any(vertex.isBezier for vertex in vertices):
            raise Unusable("a curved line; draw it through points")
        points = [(vertex.x, vertex.y) for vertex in vertices]
        return polygon_mask(points, size) if value.closed else line_mask(points, size)

    def _choice_or_comment(self, result: _Result, field: str) -> None:
        name, _, number = (result.from_name or "").partition("_")
        if number:
            drafts = list(self.phrases.values())
            if not number.isdigit() or int(number) >= len(drafts):
                raise self._unknown_control(result, field)
            self._phrase_result(drafts[int(number)], name, result, field)
        elif name == "quality":
            self.quality = self._enum_choice(Quality, result, field)
        elif name == "comment":
            self.comment = _text(result.value)
        else:
            raise self._unknown_control(result, field)

    def _phrase_result(self, draft: _Draft, name: str, result: _Result, field: str) -> None:
        if name == "label":
            draft.label = self._enum_choice(PhraseLabel, result, field)
        elif name == "progression":
            draft.progression = self._enum_choice(Progression, result, field)
        elif name == "category":
            draft.category = self._single_choice(result, field)
        elif name == "view":
            draft.only_in_other_view = OTHER_VIEW in result.value.choices
        elif name == "comment":
            draft.comment = _text(result.value)
        else:
            raise self._unknown_control(result, field)

    def _enum_choice(self, choices: type[_EnumT], result: _Result, field: str) -> _EnumT:
        chosen = self._single_choice(result, field)
        try:
            return choices(chosen)
        except ValueError:
            message = f"expected one of {', '.join(choices)}, found {describe_choice(chosen)}"
            raise InputError(message, file=self.path, field=f"{field}.value.choices") from None

    def _single_choice(self, result: _Result, field: str) -> str:
        if len(result.value.choices) != 1:
            message = f"expected one choice, found {len(result.value.choices)}"
            raise InputError(message, file=self.path, field=f"{field}.value.choices")
        return result.value.choices[0]

    def _unknown_control(self, result: _Result, field: str) -> InputError:
        message = f"the exported labeling interface has no control {describe_choice(result.from_name)}"
        return InputError(message, file=self.path, field=f"{field}.from_name")


def _text(value: _Value) -> str | None:
    return (value.text if isinstance(value.text, str) else " ".join(value.text)).strip() or None


def box_of(x: float, y: float, width: float, height: float) -> Box | None:
    """Return a box as fractions of the image; None without area (a click without a drag)."""
    corners = [_share(value) for value in (x, y, x + width, y + height)]
    if corners[0] >= corners[2] or corners[1] >= corners[3]:
        return None
    return Box(x_min=corners[0], y_min=corners[1], x_max=corners[2], y_max=corners[3])


def polygon_mask(points: Sequence[Point], size: tuple[int, int]) -> Mask:
    """Return the mask of a polygon."""
    if len(points) < 3:
        raise Unusable(f"a polygon of {len(points)} points")
    from pycocotools import mask as coco

    flat = [value for point in _pixels(points, size) for value in point]
    encoded = coco.merge(coco.frPyObjects([flat], *size))
    return Mask(size=size, counts=encoded["counts"].decode())


def line_mask(points: Sequence[Point], size: tuple[int, int]) -> Mask:
    """Return the mask of a line through points, `LINE_WIDTH` wide."""
    if len(points) < 2:
        raise Unusable(f"a line of {len(points)} points")
    import numpy as np
    from PIL import Image, ImageDraw
    from pycocotools import mask as coco

    canvas = Image.new("L", (size[1], size[0]))
    width = max(1, round(LINE_WIDTH * min(size)))
    ImageDraw.Draw(canvas).line(_pixels(points, size), fill=1, width=width, joint="curve")
    encoded = coco.encode(np.asfortranarray(np.asarray(canvas, dtype=np.uint8)))
    return Mask(size=size, counts=encoded["counts"].decode())


def _share(value: float) -> float:
    if not -_OVERHANG <= value <= 100 + _OVERHANG:
        raise Unusable(f"a shape beyond the image ({value:g} percent)")
    return min(max(value / 100, 0.0), 1.0)


def _pixels(points: Sequence[Point], size: tuple[int, int]) -> list[Point]:
    height, width = size
    return [(_share(x) * width, _share(y) * height) for x, y in points]
