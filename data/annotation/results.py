"""Read annotations exported by Label Studio (JSON).

The format is documented at https://labelstud.io/guide/task_format and for each tag: a list of tasks with data and
annotations by several annotators (as exported by Label Studio 1.23.2). Coordinates are percentages of the image.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from maira.data.annotation.protocol import Annotation, PhraseAnnotation, PhraseLabel, Progression, Quality
from maira.data.annotation.tasks import CURRENT, OTHER_VIEW, PRIOR, numbered_phrases
from maira.data.study import Study
from radfact.errors import ErrorCode, InputError, describe_choice
from radfact.io.jsonl import read_json
from radfact.records import Box, Mask, Row, validate_model

_Number = Annotated[float, Field(allow_inf_nan=False)]
_SHAPES = ("rectanglelabels", "polygonlabels", "vectorlabels", "labels")
_UNLABELED = (*_SHAPES[:3], "rectangle", "polygon", "vector")
_SAMPLE_CONTROLS = {"quality": Quality, "comment": None}
_PHRASE_CONTROLS = {
    "label": PhraseLabel,
    "progression": Progression,
    "category": str,
    "only_in_other_view": bool,
    "comment": None,
}
"""Fields of an annotation by the names of controls, with the type of the choice; None for text."""

Point = tuple[float, float]
"""x and y in percent of the image's width and height."""

LINE_WIDTH = 0.01
"""Width of a line's mask as a share of the image's shorter side: about a central line on an adult's radiograph."""

_OVERHANG = 0.5
"""Percentage that a shape may extend beyond the image by imprecise drawing; it is clipped."""


class Unusable(ValueError):
    """A shape that cannot become a box or mask; `str()` is the reason."""


class _Vertex(Row):
    x: _Number
    y: _Number
    isBezier: bool = False  # noqa: N815 (the file's own name)


class _Value(Row):
    x: _Number | None = None
    y: _Number | None = None
    width: _Number | None = None
    height: _Number | None = None
    rotation: _Number = 0
    points: list[Annotated[list[_Number], Field(min_length=2, max_length=2)]] | None = None
    vertices: list[_Vertex] | None = None
    closed: bool = False
    choices: tuple[str, ...] = ()
    text: tuple[str, ...] | str = ()
    rectanglelabels: tuple[str, ...] = ()
    polygonlabels: tuple[str, ...] = ()
    vectorlabels: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()


class _Result(Row):
    from_name: str | None = None
    to_name: str | None = None
    type: str = ""
    value: _Value = _Value()
    original_width: Annotated[int, Field(gt=0)] | None = None
    original_height: Annotated[int, Field(gt=0)] | None = None
    image_rotation: _Number = 0


class _Annotation(Row):
    completed_by: Any = None
    was_cancelled: bool = False
    result: tuple[_Result, ...] = ()
    updated_at: str = ""


class _Phrase(Row):
    value: str


class _Data(Row):
    sample_id: str
    phrases: list[_Phrase]


class _Task(Row):
    data: _Data
    annotations: list[_Annotation]


@dataclass(frozen=True)
class AnnotatedSample:
    """A sample with one annotation per annotator; `unusable` is the reason if an annotation cannot be read."""

    sample_id: str
    annotations: tuple[Annotation, ...] = ()
    unusable: str | None = None


@dataclass(frozen=True)
class _Place:
    """A place in the export, for errors."""

    file: Path | str
    field: str

    def error(self, below: str, message: str, code: ErrorCode = ErrorCode.INVALID_VALUE) -> InputError:
        return InputError(message, code=code, file=self.file, field=f"{self.field}{below}")


def read_label_studio(path: Path | str, studies: Sequence[Study]) -> list[AnnotatedSample]:
    """Read an export of Label Studio ("JSON") for tasks made of studies.

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
    samples: dict[str, AnnotatedSample] = {}
    for index, value in enumerate(tasks):
        place = _Place(path, f"[{index}]")
        if isinstance(value, dict) and "data" not in value:
            message = "expected a task with its data; export as JSON, not as JSON-MIN"
            raise place.error("", message, ErrorCode.INVALID_FORMAT)
        task = validate_model(_Task, value, file=path, field=place.field)
        name = task.data.sample_id
        if name not in by_id:
            raise place.error(".data.sample_id", f"sample '{name}' is not in the manifest", ErrorCode.MISMATCH)
        if name in samples:
            raise place.error(".data.sample_id", f"duplicate sample '{name}'", ErrorCode.DUPLICATE)
        if [phrase.value for phrase in task.data.phrases] != numbered_phrases(by_id[name]):
            message = f"phrases differ from sample '{name}' in the manifest; use the manifest that was exported"
            raise place.error(".data.phrases", message, ErrorCode.MISMATCH)
        samples[name] = _sample(task, place)
    return list(samples.values())


def _sample(task: _Task, place: _Place) -> AnnotatedSample:
    latest: dict[str, tuple[int, _Annotation]] = {}
    for number, annotation in enumerate(task.annotations):
        # An annotator is exported as an id or as an object.
        person = annotation.completed_by
        person = person.get("email") or person.get("id") if isinstance(person, Mapping) else person
        name = "unknown" if person is None else str(person)
        if not annotation.was_cancelled and (name not in latest or latest[name][1].updated_at <= annotation.updated_at):
            latest[name] = (number, annotation)
    annotations = []
    for name, (number, annotation) in latest.items():
        below = _Place(place.file, f"{place.field}.annotations[{number}]")
        try:
            annotations.append(_annotation(name, annotation.result, [p.value for p in task.data.phrases], below))
        except Unusable as error:
            return AnnotatedSample(task.data.sample_id, unusable=f"annotation by {name}: {error}")
    return AnnotatedSample(task.data.sample_id, tuple(annotations))


def _annotation(annotator: str, results: Sequence[_Result], phrases: Sequence[str], place: _Place) -> Annotation:
    sample: dict[str, Any] = {}
    drafts: dict[str, dict[str, Any]] = {phrase: {} for phrase in phrases}
    for number, result in enumerate(results):
        here = _Place(place.file, f"{place.field}.result[{number}]")
        if labels := [text for name in _SHAPES for text in getattr(result.value, name)]:
            if len(labels) > 1 or labels[0] not in drafts:
                found = f"{len(labels)} labels" if len(labels) > 1 else "another text"
                raise here.error(".value", f"expected one phrase of the task, found {found}")
            name, region = _region(result, labels[0], here)
            if region is not None:
                # A dict without values: duplicate regions count once.
                drafts[labels[0]].setdefault(name, {})[region] = None
        elif result.type in ("choices", "textarea"):
            name, value, index = _control(result, len(phrases), here)
            (sample if index is None else drafts[phrases[index]])[name] = value
        elif result.type in _UNLABELED:
            raise Unusable(f"a region without a phrase ({here.field})")
        elif result.type != "relation":
            message = f"expected a result of the exported labeling interface, found {describe_choice(result.type)}"
            raise here.error(".type", message)
    for draft in drafts.values():
        draft.update({name: tuple(value) for name, value in draft.items() if isinstance(value, dict)})
    annotated = tuple(PhraseAnnotation(**draft) for draft in drafts.values())
    return Annotation(annotator, annotated, **sample)


def _control(result: _Result, phrases: int, place: _Place) -> tuple[str, Any, int | None]:
    """Return the field, the value and the phrase of a choice or comment; no phrase for the sample."""
    name, _, number = (result.from_name or "").partition("_")
    name = "only_in_other_view" if name == "view" else name
    controls: Mapping[str, Any] = _PHRASE_CONTROLS if number else _SAMPLE_CONTROLS
    if name not in controls or (number and not (number.isdigit() and int(number) < phrases)):
        message = f"the exported labeling interface has no control {describe_choice(result.from_name)}"
        raise place.error(".from_name", message)
    kind, choices, text = controls[name], result.value.choices, result.value.text
    value: Any
    if kind is None:
        value = (text if isinstance(text, str) else " ".join(text)).strip() or None
    elif kind is bool:
        value = OTHER_VIEW in choices
    elif len(choices) != 1:
        raise place.error(".value.choices", f"expected one choice, found {len(choices)}")
    elif kind is not str and choices[0] not in list(kind):
        message = f"expected one of {', '.join(kind)}, found {describe_choice(choices[0])}"
        raise place.error(".value.choices", message)
    else:
        value = kind(choices[0])
    return name, value, int(number) if number else None


def _region(result: _Result, phrase: str, place: _Place) -> tuple[str, Box | Mask | None]:
    """Return the field and the region of a shape; None for a shape without area."""
    value, size = result.value, (result.original_height, result.original_width)
    if result.to_name not in (CURRENT, PRIOR):
        raise place.error(".to_name", f"expected {CURRENT} or {PRIOR}, found {describe_choice(result.to_name)}")
    if result.image_rotation or value.rotation:
        raise Unusable(f"a rotated shape for '{phrase}'; boxes must be axis-aligned")
    if value.points is None and value.vertices is None:
        if value.x is None or value.y is None or value.width is None or value.height is None:
            raise place.error(".value", "expected x, y, width and height, or points, or vertices")
        box = _box(value.x, value.y, value.width, value.height)
        return "boxes" if result.to_name == CURRENT else "prior_boxes", box
    if size[0] is None or size[1] is None:
        raise place.error("", "expected original_width and original_height with a polygon or line")
    vertices = value.vertices or []
    if any(vertex.isBezier for vertex in vertices):
        raise Unusable("a curved line; draw it through points")
    points = [(x, y) for x, y in value.points or ((vertex.x, vertex.y) for vertex in vertices)]
    mask = _mask(points, (size[0], size[1]), is_closed=value.points is not None or value.closed)
    if result.to_name == PRIOR:
        raise Unusable(f"a polygon or line for '{phrase}' on the prior image; expected boxes")
    return "masks", mask


def _box(x: float, y: float, width: float, height: float) -> Box | None:
    """Return a box as fractions of the image; None without area (a click without a drag)."""
    x_min, y_min, x_max, y_max = (_share(value) for value in (x, y, x + width, y + height))
    return Box(x_min=x_min, y_min=y_min, x_max=x_max, y_max=y_max) if x_min < x_max and y_min < y_max else None


def _mask(points: Sequence[Point], size: tuple[int, int], *, is_closed: bool) -> Mask:
    """Return the mask of a polygon, or of a line `LINE_WIDTH` wide, on an image of (height, width) pixels."""
    if len(points) < (3 if is_closed else 2):
        raise Unusable(f"a {'polygon' if is_closed else 'line'} of {len(points)} points")
    import numpy as np
    from PIL import Image, ImageDraw
    from pycocotools import mask as coco

    height, width = size
    pixels = [(_share(x) * width, _share(y) * height) for x, y in points]
    if is_closed:
        encoded = coco.merge(coco.frPyObjects([[value for point in pixels for value in point]], height, width))
    else:
        canvas = Image.new("L", (width, height))
        ImageDraw.Draw(canvas).line(pixels, fill=1, width=max(1, round(LINE_WIDTH * min(size))), joint="curve")
        encoded = coco.encode(np.asfortranarray(np.asarray(canvas, dtype=np.uint8)))
    return Mask(size=size, counts=encoded["counts"].decode())


def _share(value: float) -> float:
    if not -_OVERHANG <= value <= 100 + _OVERHANG:
        raise Unusable(f"a shape beyond the image ({value:g} percent)")
    return min(max(value / 100, 0.0), 1.0)
