"""Reports from COCO files: categories or captions are the sentences, boxes and segmentations their regions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, BeforeValidator, Field, RootModel, StringConstraints

from radfact.errors import ErrorCode, InputError, check_unique_id
from radfact.io.jsonl import read_json
from radfact.records import Box, Mask, Sentence, Text, validate_model

MAX_MASK_PIXELS = 100_000_000
"""Maximum pixels of a mask: more than any radiograph has, so that a damaged size cannot exhaust the memory."""

# Detectors round coordinates: a box may extend this many pixels beyond its image, and is clipped.
_OVERHANG = 1.0


def _id_text(value: object) -> object:
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


Id = Annotated[str, BeforeValidator(_id_text), StringConstraints(strip_whitespace=True, min_length=1)]
"""A key as text; files have it as a number too."""

_Pixels = Annotated[int, Field(gt=0, strict=True)]
_Number = Annotated[float, Field(allow_inf_nan=False, strict=True)]


class _Image(BaseModel):
    id: Id
    width: _Pixels
    height: _Pixels
    sample_id: Id | None = None


class _Category(BaseModel):
    id: Id
    name: Text


class _Annotation(BaseModel):
    """An annotation of a dataset, or one row of a list of results."""

    image_id: Id
    category_id: Id | None = None
    caption: Text | None = None
    bbox: Annotated[list[_Number], Field(min_length=4, max_length=4)] | None = None
    segmentation: Any = None


class _Dataset(BaseModel):
    images: list[_Image]
    annotations: list[Any] = []
    categories: list[_Category] = []


class _Results(RootModel[list[Any]]):
    pass


def read_coco(
    path: Path | str, dataset: Path | str | None = None, *, faults: dict[str, str] | None = None
) -> dict[str, list[Sentence]]:
    """Read one report per image, by the `sample_id` of the image or else its `id`.

    The text of an annotation is its caption, or else the name of its category; annotations of an image with the same
    text are one sentence. Its region is the segmentation (run-length encoding or polygons), or else the bbox in pixels.
    An image without annotations has an empty report. Scores of detections are not looked at.
    """
    value = read_json(path)
    if isinstance(value, dict):
        dataset_file = validate_model(_Dataset, value, file=path)
        return _Reader(dataset_file, path, path).reports(dataset_file.annotations, "annotations", faults)
    if dataset is None:
        raise InputError(
            "expected a COCO dataset {images, annotations, categories}; a list of results goes with one on the other "
            "side, for the sizes of its images",
            file=path,
            field="(top)",
        )
    results = validate_model(_Results, value, file=path).root
    return _Reader(validate_model(_Dataset, read_json(dataset), file=dataset), dataset, path).reports(
        results, "", faults
    )


class _Reader:
    """Turns annotations in the file `path` into reports on the images of a dataset."""

    def __init__(self, dataset: _Dataset, dataset_path: Path | str, path: Path | str) -> None:
        self.path = path
        self.keys: dict[str, str] = {}
        self.images: dict[str, _Image] = {}
        ids: dict[str, str] = {}
        names: dict[str, str] = {}
        for index, image in enumerate(dataset.images):
            key, image_field = image.sample_id or image.id, f"images[{index}]"
            check_unique_id(ids, image.id, image_field, file=dataset_path, field="id")
            check_unique_id(names, key, image_field, file=dataset_path, field="sample_id" if image.sample_id else "id")
            self.images[image.id], self.keys[image.id] = image, key
        self.categories = {category.id: category.name for category in dataset.categories}

    def reports(
        self, annotations: Sequence[Any], field: str, faults: dict[str, str] | None
    ) -> dict[str, list[Sentence]]:
        """Reports of all images, in the dataset's order, but for those with `faults`."""
        drawn: dict[str, dict[str, list[Box | Mask]]] = {image: {} for image in self.images}
        for index, value in enumerate(annotations):
            annotation_field = f"{field}[{index}]"
            try:
                self._add(value, annotation_field, drawn)
            except InputError as error:
                if faults is None:
                    raise
                faults.setdefault(self._key(value) or annotation_field, str(error))
        return {
            self.keys[image]: [_sentence(text, regions) for text, regions in sentences.items()]
            for image, sentences in drawn.items()
            if not faults or self.keys[image] not in faults
        }

    def _add(self, value: Any, field: str, drawn: dict[str, dict[str, list[Box | Mask]]]) -> None:
        annotation = validate_model(_Annotation, value, file=self.path, field=field)
        image = self.images.get(annotation.image_id)
        if image is None:
            raise self._error(f"no image has the id '{annotation.image_id}'", f"{field}.image_id", ErrorCode.MISMATCH)
        regions = drawn[image.id].setdefault(self._text(annotation, field), [])
        regions += self._regions(annotation, image, field)

    def _key(self, value: Any) -> str | None:
        """Return the key of the report of an annotation, even if the rest of the annotation is invalid."""
        return self.keys.get(str(value.get("image_id")).strip()) if isinstance(value, dict) else None

    def _error(self, message: str, field: str, code: ErrorCode = ErrorCode.INVALID_VALUE) -> InputError:
        return InputError(message, code=code, file=self.path, field=field)

    def _text(self, annotation: _Annotation, field: str) -> str:
        if annotation.caption is not None:
            return annotation.caption
        if annotation.category_id is None:
            raise self._error("expected a caption or a category_id", field, ErrorCode.MISSING_FIELD)
        if annotation.category_id not in self.categories:
            raise self._error(
                f"no category has the id '{annotation.category_id}'", f"{field}.category_id", ErrorCode.MISMATCH
            )
        return self.categories[annotation.category_id]

    def _regions(self, annotation: _Annotation, image: _Image, field: str) -> list[Box | Mask]:
        if annotation.segmentation:
            return [self._mask(annotation.segmentation, image, f"{field}.segmentation")]
        if annotation.bbox is not None:
            return [self._box(annotation.bbox, image, f"{field}.bbox")]
        return []

    def _box(self, bbox: Sequence[float], image: _Image, field: str) -> Box:
        x, y, width, height = bbox
        outside = min(x, y) < -_OVERHANG or x + width > image.width + _OVERHANG or y + height > image.height + _OVERHANG
        if min(width, height) < 0 or outside:
            raise self._error(
                f"expected [x, y, width, height] in pixels within {image.width} x {image.height}, found {list(bbox)}",
                field,
            )
        shares = (x / image.width, y / image.height, (x + width) / image.width, (y + height) / image.height)
        x_min, y_min, x_max, y_max = (min(max(share, 0.0), 1.0) for share in shares)
        return Box(x_min=x_min, y_min=y_min, x_max=x_max, y_max=y_max)

    def _mask(self, segmentation: Any, image: _Image, field: str) -> Mask:
        if isinstance(segmentation, list):
            return self._filled(segmentation, image, field)
        mask = validate_model(Mask, segmentation, file=self.path, field=field)
        try:
            decode_mask(mask)
        except InputError as error:
            raise self._error(error.message, f"{field}.{error.field}") from None
        if mask.size != (image.height, image.width):
            expected = f"[{image.height}, {image.width}] (height, width)"
            raise self._error(f"expected the size of the image {expected}, found {list(mask.size)}", f"{field}.size")
        return mask

    def _filled(self, polygons: Sequence[Any], image: _Image, field: str) -> Mask:
        from pycocotools import mask as coco

        for index, polygon in enumerate(polygons):
            numbers = polygon if isinstance(polygon, list) else []
            finite = all(isinstance(number, int | float) and math.isfinite(number) for number in numbers)
            if not finite or len(numbers) < 6 or len(numbers) % 2:
                raise self._error("expected [x1, y1, x2, y2, x3, y3, ...] in pixels", f"{field}[{index}]")
        encoded = coco.merge(coco.frPyObjects(polygons, image.height, image.width))
        return Mask(size=(image.height, image.width), counts=encoded["counts"].decode())


def _sentence(text: str, regions: Sequence[Box | Mask]) -> Sentence:
    boxes = tuple(region for region in regions if isinstance(region, Box))
    masks = tuple(region for region in regions if isinstance(region, Mask))
    return Sentence(text=text, boxes=boxes or None, masks=masks or None)


def decode_mask(mask: Mask) -> NDArray[np.bool_]:
    """Return the pixels of a COCO run-length mask, bool, (height, width)."""
    height, width = mask.size
    if height * width > MAX_MASK_PIXELS:
        raise InputError(f"expected at most {MAX_MASK_PIXELS} pixels, found {height} x {width}", field="size")
    runs = mask.counts if isinstance(mask.counts, list) else _unpack_runs(mask.counts)
    if any(run < 0 for run in runs) or sum(runs) != height * width:
        raise InputError(
            f"the runs must be non-negative and sum to {height} x {width} = {height * width} pixels, found {sum(runs)}",
            field="counts",
        )
    # Runs go down the columns, alternately off and on.
    return np.repeat(np.arange(len(runs)) % 2 == 1, runs).reshape(width, height).T


def _unpack_runs(counts: str) -> list[int]:
    """Return the runs of a compressed COCO string.

    Characters have five bits each; from the fourth run on, runs are relative to the run two before.

    pycocotools is not used here, because it leaves pixels undefined where the runs of a damaged string end early.
    """
    runs: list[int] = []
    value = shift = 0
    for character in counts:
        code = ord(character) - 48
        if not 0 <= code < 64:
            raise InputError(f"no run-length encoding: character {character!r}", field="counts")
        value |= (code & 0x1F) << shift
        shift += 5
        if code & 0x20:
            continue
        if code & 0x10:
            value -= 1 << shift
        runs.append(value + runs[-2] if len(runs) > 2 else value)
        value = shift = 0
    if shift:
        raise InputError("no run-length encoding: it breaks off in the middle of a run", field="counts")
    return runs
