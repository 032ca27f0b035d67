"""Annotations as Label Studio exports them (JSON), read back into what the protocol is about.

The format is the documented one (https://labelstud.io/guide/task_format and the results of each tag): a list of tasks,
each with its data and annotations; coordinates are per cent of the image. Several annotations of a task are those of
several annotators.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, Field

from data.annotation.label_studio import CURRENT, OTHER_VIEW, PRIOR, shown_phrases
from data.annotation.protocol import Annotation, PhraseAnnotation, PhraseLabel, Progression, Quality
from data.annotation.shapes import Unusable, box_of, line_mask, polygon_mask
from data.study import Study
from radfact.errors import InputError
from radfact.io.jsonl import read_json
from radfact.records import Box, Mask, validated

_Number = Annotated[float, Field(allow_inf_nan=False)]
_LABELS = ("rectanglelabels", "polygonlabels", "vectorlabels", "labels")
_OneOf = TypeVar("_OneOf", bound=StrEnum)


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
    """A sample with its annotations, one an annotator in the file's order; `unusable` says why one cannot be read."""

    sample_id: str
    annotations: tuple[Annotation, ...] = ()
    unusable: str | None = None


def read_label_studio(path: Path | str, studies: Sequence[Study]) -> list[AnnotatedSample]:
    """Read an export of Label Studio ("JSON").

    Skipped annotations count for nothing; of several by one annotator the last updated does. Tasks without any give a
    sample without annotations.

    Args:
        path: the export.
        studies: those that the tasks were made of.

    Raises:
        InputError: with the field of what is no such export, or was not made of these studies.
    """
    tasks = read_json(path)
    if isinstance(tasks, dict) and "images" in tasks:
        raise InputError("is a COCO file; 'maira prepare coco' makes studies of it", file=path)
    if not isinstance(tasks, list):
        raise InputError("expected a list of tasks, as Label Studio exports it under the name JSON", file=path)
    by_id = {study.sample_id: study for study in studies}
    seen: set[str] = set()
    samples = []
    for index, value in enumerate(tasks):
        if isinstance(value, dict) and "data" not in value:
            message = "expected a task with its data; export as JSON, not as JSON-MIN"
            raise InputError(message, file=path, field=f"[{index}]")
        task = validated(_Task, value, file=path, field=f"[{index}]")
        study = by_id.get(task.data.sample_id)
        if study is None:
            message = f"no sample of the manifest is '{task.data.sample_id}'"
            raise InputError(message, file=path, field=f"[{index}].data.sample_id")
        if study.sample_id in seen:
            message = f"'{study.sample_id}' is the sample of two tasks"
            raise InputError(message, file=path, field=f"[{index}].data.sample_id")
        seen.add(study.sample_id)
        samples.append(_sample(task, study, path, f"[{index}]"))
    return samples


def _sample(task: _Task, study: Study, path: Path | str, field: str) -> AnnotatedSample:
    phrases = [phrase.value for phrase in task.data.phrases]
    if phrases != shown_phrases(study):
        message = (
            f"the phrases are not those of sample '{study.sample_id}' in the manifest; import with the exported one"
        )
        raise InputError(message, file=path, field=f"{field}.data.phrases")
    done: dict[str, tuple[int, _Annotation]] = {}
    for number, annotation in enumerate(task.annotations):
        who = _name(annotation.completed_by)
        if not annotation.was_cancelled and (who not in done or done[who][1].updated_at <= annotation.updated_at):
            done[who] = (number, annotation)
    annotations = []
    for who, (number, annotation) in done.items():
        reader = _Reader(phrases, path, f"{field}.annotations[{number}]")
        try:
            annotations.append(reader.read(who, annotation))
        except Unusable as error:
            return AnnotatedSample(study.sample_id, unusable=f"annotation by {who}: {error}")
    return AnnotatedSample(study.sample_id, tuple(annotations))


def _name(completed_by: Any) -> str:
    """An annotator: an id, or with some exports the whole person."""
    if isinstance(completed_by, Mapping):
        completed_by = completed_by.get("email") or completed_by.get("id")
    return "unknown" if completed_by is None else str(completed_by)


@dataclass
class _Draft:
    """A phrase's annotation while its results are gathered."""

    label: PhraseLabel | None = None
    progression: Progression | None = None
    category: str | None = None
    only_in_other_view: bool = False
    comment: str | None = None
    boxes: list[Box] = field(default_factory=list)
    masks: list[Mask] = field(default_factory=list)
    prior_boxes: list[Box] = field(default_factory=list)

    def finished(self) -> PhraseAnnotation:
        """The annotation, with what was drawn twice in the same place once."""
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
    """Turns the results of one annotation into what it says (as Label Studio 1.23.2 exports them)."""

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
                self._said(result, field)
            elif result.type in ("rectanglelabels", "polygonlabels", "vectorlabels", "rectangle", "polygon", "vector"):
                raise Unusable(f"a region without a phrase ({field})")
            else:
                message = f"'{result.type}' is no result of the exported labelling interface"
                raise InputError(message, file=self.path, field=f"{field}.type")
        phrases = tuple(draft.finished() for draft in self.phrases.values())
        return Annotation(annotator, phrases, self.quality, self.comment)

    def _region(self, result: _Result, field: str) -> None:
        (label, *more) = [text for name in _LABELS for text in getattr(result.value, name)]
        draft = self.phrases.get(label)
        if draft is None or more:
            message = f"expected one phrase of the task, found {[label, *more]}"
            raise InputError(message, file=self.path, field=f"{field}.value")
        if result.to_name not in (CURRENT, PRIOR):
            message = f"expected {CURRENT} or {PRIOR}, found {result.to_name!r}"
            raise InputError(message, file=self.path, field=f"{field}.to_name")
        if result.image_rotation or result.value.rotation:
            raise Unusable(f"a rotated shape for '{label}'; boxes have upright sides on the image as it is")
        region = self._shape(result, field)
        if isinstance(region, Mask):
            if result.to_name == PRIOR:
                raise Unusable(f"a polygon or line for '{label}' on the prior image; it takes boxes only")
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
            message = "a polygon or line needs the image's original_width and original_height"
            raise InputError(message, file=self.path, field=field)
        size = (result.original_height, result.original_width)
        if value.points is not None:
            return polygon_mask([(x, y) for x, y in value.points], size)
        vertices = value.vertices or []
        if any(vertex.isBezier for vertex in vertices):
            raise Unusable("a curved line; draw it through points")
        points = [(vertex.x, vertex.y) for vertex in vertices]
        return polygon_mask(points, size) if value.closed else line_mask(points, size)

    def _said(self, result: _Result, field: str) -> None:
        """A choice or a comment."""
        name, _, number = (result.from_name or "").partition("_")
        if number:
            drafts = list(self.phrases.values())
            if not number.isdigit() or int(number) >= len(drafts):
                raise self._unknown(result, field)
            self._of_phrase(drafts[int(number)], name, result, field)
        elif name == "quality":
            self.quality = self._one(Quality, result, field)
        elif name == "comment":
            self.comment = _text(result.value)
        else:
            raise self._unknown(result, field)

    def _of_phrase(self, draft: _Draft, name: str, result: _Result, field: str) -> None:
        if name == "label":
            draft.label = self._one(PhraseLabel, result, field)
        elif name == "progression":
            draft.progression = self._one(Progression, result, field)
        elif name == "category":
            draft.category = self._single(result, field)
        elif name == "view":
            draft.only_in_other_view = OTHER_VIEW in result.value.choices
        elif name == "comment":
            draft.comment = _text(result.value)
        else:
            raise self._unknown(result, field)

    def _one(self, choices: type[_OneOf], result: _Result, field: str) -> _OneOf:
        chosen = self._single(result, field)
        try:
            return choices(chosen)
        except ValueError:
            message = f"expected one of {', '.join(choices)}, found '{chosen}'"
            raise InputError(message, file=self.path, field=f"{field}.value.choices") from None

    def _single(self, result: _Result, field: str) -> str:
        if len(result.value.choices) != 1:
            message = f"expected one choice, found {result.value.choices}"
            raise InputError(message, file=self.path, field=f"{field}.value.choices")
        return result.value.choices[0]

    def _unknown(self, result: _Result, field: str) -> InputError:
        message = f"the exported labelling interface has no control '{result.from_name}'"
        return InputError(message, file=self.path, field=f"{field}.from_name")


def _text(value: _Value) -> str | None:
    return (value.text if isinstance(value.text, str) else " ".join(value.text)).strip() or None
