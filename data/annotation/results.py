"""Read annotations exported by Label Studio (JSON)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import AliasChoices, Field

from maira.data.annotation.protocol import Annotation, PhraseAnnotation, PhraseLabel, Progression, Quality, Rejected
from maira.data.annotation.tasks import CURRENT, OTHER_VIEW, PRIOR, numbered_phrases
from maira.data.study import Study
from radfact.errors import ErrorCode, InputError, describe_choice
from radfact.io.jsonl import read_json
from radfact.records import Box, Mask, Row, validate_model

_Number = Annotated[float, Field(allow_inf_nan=False)]
_LABELED = ("rectanglelabels", "polygonlabels", "vectorlabels")
_SAMPLE_CONTROLS = ("quality", "comment")
_PHRASE_CONTROLS = ("label", "progression", "category", "view", "comment")
_CHOICES = {"quality": Quality, "label": PhraseLabel, "progression": Progression}

Point = tuple[_Number, _Number]
"""x and y in percent of the image's width and height."""

LINE_WIDTH = 0.01
"""Width of a line's mask as a share of the image's shorter side: about a central line on an adult's radiograph."""

_OVERHANG = 0.5
"""Percentage that a shape may extend beyond the image by imprecise drawing; it is clipped."""


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
    points: list[Point] | None = None
    vertices: list[_Vertex] | None = None
    closed: bool = False
    choices: tuple[str, ...] = ()
    text: tuple[str, ...] | str = ()
    labels: Annotated[tuple[str, ...], Field(validation_alias=AliasChoices(*_LABELED, "labels"))] = ()


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


class _Data(Row):
    sample_id: Any
    phrases: Any


class _Task(Row):
    data: _Data
    annotations: list[_Annotation]


@dataclass(frozen=True)
class AnnotatedSample:
    """A sample with one annotation per annotator; `unusable` is the reason if an annotation cannot be read."""

    sample_id: str
    annotations: tuple[Annotation, ...] = ()
    unusable: str | None = None


def read_label_studio(path: Path | str, studies: Sequence[Study]) -> list[AnnotatedSample]:
    """Read an export of Label Studio ("JSON") for tasks made of studies."""
    tasks = read_json(path)
    if not isinstance(tasks, list):
        is_coco = isinstance(tasks, dict) and "images" in tasks
        coco = "found a COCO file; import it with 'maira prepare coco'"
        message = coco if is_coco else "expected a list of tasks; export from Label Studio as JSON"
        raise InputError(message, code=ErrorCode.INVALID_FORMAT, file=path)
    by_id = {study.sample_id: study for study in studies}
    samples: dict[str, AnnotatedSample] = {}
    for index, value in enumerate(tasks):
        field = f"[{index}]"
        if isinstance(value, dict) and "data" not in value:
            message = "expected a task with its data; export as JSON, not as JSON-MIN"
            raise InputError(message, code=ErrorCode.INVALID_FORMAT, file=path, field=field)
        task = validate_model(_Task, value, file=path, field=field)
        name = str(task.data.sample_id)
        if name not in by_id or name in samples:
            message = f"duplicate sample '{name}'" if name in samples else f"sample '{name}' is not in the manifest"
            code = ErrorCode.DUPLICATE if name in samples else ErrorCode.MISMATCH
            raise InputError(message, code=code, file=path, field=f"{field}.data.sample_id")
        phrases = numbered_phrases(by_id[name])
        if task.data.phrases != phrases:
            message = f"phrases differ from sample '{name}' in the manifest; use the manifest that was exported"
            raise InputError(message, code=ErrorCode.MISMATCH, file=path, field=f"{field}.data.phrases")
        samples[name] = _sample(name, task, [phrase["value"] for phrase in phrases], path, f"{field}.annotations")
    return list(samples.values())


def _sample(sample_id: str, task: _Task, phrases: Sequence[str], path: Path | str, field: str) -> AnnotatedSample:
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
        # Fields of the sample, and of its phrases by the number in the names of their controls.
        drafts: dict[str, dict[str, Any]] = {key: {} for key in ("", *map(str, range(len(phrases))))}
        for at, result in enumerate(annotation.result):
            here = f"{field}[{number}].result[{at}]"
            try:
                _add_result(result, phrases, drafts)
            except InputError as error:
                raise InputError(error.message, code=error.code, file=path, field=f"{here}{error.field}") from None
            except Rejected as error:
                return AnnotatedSample(sample_id, unusable=f"annotation by {name}: {error} ({here})")
        sample = drafts.pop("")
        annotations.append(Annotation(name, tuple(PhraseAnnotation(**draft) for draft in drafts.values()), **sample))
    return AnnotatedSample(sample_id, tuple(annotations))


def _add_result(result: _Result, phrases: Sequence[str], drafts: dict[str, dict[str, Any]]) -> None:
    """Add a shape, choice or comment to the fields of its phrase or of the sample; errors name fields of the result."""
    if labels := result.value.labels:
        if len(labels) > 1 or labels[0] not in phrases:
            found = f"{len(labels)} labels" if len(labels) > 1 else "another text"
            raise InputError(f"expected one phrase of the task, found {found}", field=".value")
        field, region = _region(result, labels[0])
        draft = drafts[str(phrases.index(labels[0]))]
        regions = draft.get(field, ())
        if region is not None and region not in regions:
            draft[field] = (*regions, region)
        return
    if result.type == "relation":
        return
    if f"{result.type.removesuffix('labels')}labels" in _LABELED:
        raise Rejected("a region without a phrase")
    if result.type not in ("choices", "textarea"):
        message = f"expected a result of the exported labeling interface, found {describe_choice(result.type)}"
        raise InputError(message, field=".type")
    name, _, number = (result.from_name or "").partition("_")
    if number not in drafts or name not in (_PHRASE_CONTROLS if number else _SAMPLE_CONTROLS):
        message = f"the exported labeling interface has no control {describe_choice(result.from_name)}"
        raise InputError(message, field=".from_name")
    draft, choices, known = drafts[number], result.value.choices, _CHOICES.get(name)
    if name == "comment":
        text = result.value.text
        draft[name] = (text if isinstance(text, str) else " ".join(text)).strip() or None
    elif name == "view":
        draft["only_in_other_view"] = OTHER_VIEW in choices
    elif len(choices) != 1:
        raise InputError(f"expected one choice, found {len(choices)}", field=".value.choices")
    elif known is not None and choices[0] not in list(known):
        message = f"expected one of {', '.join(known)}, found {describe_choice(choices[0])}"
        raise InputError(message, field=".value.choices")
    else:
        draft[name] = choices[0] if known is None else known(choices[0])


def _region(result: _Result, phrase: str) -> tuple[str, Box | Mask | None]:
    """Return the field and the region of a shape; None for a shape without area (a click without a drag)."""
    value, height, width = result.value, result.original_height, result.original_width
    if result.to_name not in (CURRENT, PRIOR):
        message = f"expected {CURRENT} or {PRIOR}, found {describe_choice(result.to_name)}"
        raise InputError(message, field=".to_name")
    if result.image_rotation or value.rotation:
        raise Rejected(f"a rotated shape for '{phrase}'; boxes must be axis-aligned")
    if value.points is None and value.vertices is None:
        if value.x is None or value.y is None or value.width is None or value.height is None:
            raise InputError("expected x, y, width and height, or points, or vertices", field=".value")
        x_min, y_min, x_max, y_max = map(_share, (value.x, value.y, value.x + value.width, value.y + value.height))
        box = Box(x_min=x_min, y_min=y_min, x_max=x_max, y_max=y_max) if x_min < x_max and y_min < y_max else None
        return "boxes" if result.to_name == CURRENT else "prior_boxes", box
    if height is None or width is None:
        raise InputError("expected original_width and original_height with a polygon or line", field="")
    vertices = value.vertices or []
    if any(vertex.isBezier for vertex in vertices):
        raise Rejected("a curved line; draw it through points")
    points = value.points or [(vertex.x, vertex.y) for vertex in vertices]
    mask = _mask(points, (height, width), is_closed=value.points is not None or value.closed)
    if result.to_name == PRIOR:
        raise Rejected(f"a polygon or line for '{phrase}' on the prior image; expected boxes")
    return "masks", mask


def _mask(points: Sequence[Point], size: tuple[int, int], *, is_closed: bool) -> Mask:
    """Return the mask of a polygon, or of a line `LINE_WIDTH` wide, on an image of (height, width) pixels."""
    if len(points) < (3 if is_closed else 2):
        raise Rejected(f"a {'polygon' if is_closed else 'line'} of {len(points)} points")
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
        raise Rejected(f"a shape beyond the image ({value:g} percent)")
    return min(max(value / 100, 0.0), 1.0)
