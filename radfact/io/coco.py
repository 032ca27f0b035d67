"""Reports from COCO files: categories or captions are the sentences, boxes and segmentations their regions."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from radfact.errors import ErrorCode, InputError, check_unique_id, describe
from radfact.io.jsonl import read_json
from radfact.records import Box, Id, Mask, Row, Sentence, Text, validate_model

MAX_MASK_PIXELS = 100_000_000
"""Maximum pixels of a mask: more than any radiograph has, so that a damaged size cannot exhaust the memory."""

# Detectors round coordinates: a box may extend this many pixels beyond its image, and is clipped.
_OVERHANG = 1.0


T = TypeVar("T")
_Pixels = Annotated[int, Field(gt=0, strict=True)]
_Number = Annotated[float, Field(allow_inf_nan=False, strict=True)]


class _Image(Row):
    id: Id
    width: _Pixels
    height: _Pixels
    sample_id: Id | None = None


class _Category(Row):
    id: Id
    name: Text


class _Annotation(Row):
    """An annotation of a dataset, or one row of a list of results."""

    image_id: Id
    category_id: Id | None = None
    caption: Text | None = None
    bbox: Annotated[list[_Number], Field(min_length=4, max_length=4)] | None = None
    segmentation: Any = None


class _Dataset(Row):
    images: list[_Image]
    annotations: list[Any] = Field(default_factory=list)
    categories: list[_Category] = Field(default_factory=list)


def read_coco(
    path: Path | str, dataset: Path | str | None = None, *, faults: dict[str, str] | None = None
) -> dict[str, list[Sentence]]:
    """Read one report per image, by the `sample_id` of the image or else its `id`.

    The text of an annotation is its caption, or else the name of its category; annotations of an image with the same
    text are one sentence. Its region is the segmentation (run-length encoding or polygons), or else the bbox in pixels.
    An image without annotations has an empty report. Scores of detections are not looked at. A list of results takes
    the images and categories of `dataset`. `faults` receives the first fault of every image with one, which then has no
    report; without it, the first fault is raised.
    """
    value, prefix = read_json(path), ""
    if isinstance(value, dict):
        dataset, prefix = path, "annotations"
    elif dataset is None:
        message = "expected a COCO dataset {images, annotations, categories}; a list of results needs one of references"
        raise InputError(message, file=path, field="(top)")
    elif not isinstance(value, list):
        raise InputError(f"expected a list, found {describe(value)}", file=path)
    content = validate_model(_Dataset, value if prefix else read_json(dataset), file=dataset)
    images, keys = dict[str, _Image](), dict[str, str]()
    seen_ids, seen_keys = dict[str, str](), dict[str, str]()
    for index, image in enumerate(content.images):
        place, key = f"images[{index}]", image.sample_id or image.id
        check_unique_id(seen_ids, image.id, place, file=dataset, field="id")
        check_unique_id(seen_keys, key, place, file=dataset, field="sample_id" if image.sample_id else "id")
        images[image.id], keys[image.id] = image, key
    categories = {category.id: category.name for category in content.categories}
    drawn: dict[str, dict[str, list[Box | Mask]]] = {image: {} for image in images}
    for index, item in enumerate(content.annotations if prefix else value):
        try:
            annotation = validate_model(_Annotation, item)
            image = _find("image", annotation.image_id, images)
            drawn[image.id].setdefault(_text(annotation, categories), []).extend(_regions(annotation, image))
        except InputError as error:
            place = f"{prefix}[{index}]"
            where = f"{place}.{error.field}" if error.field else place
            fault = InputError(error.message, code=error.code, file=path, field=where)
            if faults is None:
                raise fault from None
            # Even an invalid annotation may name its image.
            named = keys.get(str(item.get("image_id")).strip()) if isinstance(item, dict) else None
            faults.setdefault(named or place, str(fault))
    return {
        keys[image]: [_sentence(text, regions) for text, regions in sentences.items()]
        for image, sentences in drawn.items()
        if not faults or keys[image] not in faults
    }


def _find(kind: str, key: str, known: Mapping[str, T]) -> T:
    if key not in known:
        raise InputError(f"no {kind} has the id '{key}'", code=ErrorCode.MISMATCH, field=f"{kind}_id")
    return known[key]


def _text(annotation: _Annotation, categories: Mapping[str, str]) -> str:
    if annotation.caption is not None:
        return annotation.caption
    if annotation.category_id is None:
        raise InputError("expected a caption or a category_id", code=ErrorCode.MISSING_FIELD)
    return _find("category", annotation.category_id, categories)


def _regions(annotation: _Annotation, image: _Image) -> list[Box | Mask]:
    if isinstance(annotation.segmentation, list) and annotation.segmentation:
        return [_filled(annotation.segmentation, image)]
    if annotation.segmentation:
        mask = validate_model(Mask, annotation.segmentation, field="segmentation")
        decode_mask(mask, field="segmentation")
        if mask.size != (image.height, image.width):
            expected = f"[{image.height}, {image.width}] (height, width)"
            message = f"expected the size of the image {expected}, found {list(mask.size)}"
            raise InputError(message, field="segmentation.size")
        return [mask]
    return [] if annotation.bbox is None else [_box(annotation.bbox, image)]


def _box(bbox: Sequence[float], image: _Image) -> Box:
    x, y, width, height = bbox
    outside = min(x, y) < -_OVERHANG or x + width > image.width + _OVERHANG or y + height > image.height + _OVERHANG
    if min(width, height) < 0 or outside:
        message = f"expected [x, y, width, height] in pixels within {image.width} x {image.height}, found {list(bbox)}"
        raise InputError(message, field="bbox")
    shares = (x / image.width, y / image.height, (x + width) / image.width, (y + height) / image.height)
    x_min, y_min, x_max, y_max = (min(max(share, 0.0), 1.0) for share in shares)
    return Box(x_min=x_min, y_min=y_min, x_max=x_max, y_max=y_max)


def _filled(polygons: Sequence[Any], image: _Image) -> Mask:
    from pycocotools import mask as coco

    for index, polygon in enumerate(polygons):
        numbers = polygon if isinstance(polygon, list) else []
        finite = all(isinstance(number, int | float) and math.isfinite(number) for number in numbers)
        if not finite or len(numbers) < 6 or len(numbers) % 2:
            raise InputError("expected [x1, y1, x2, y2, x3, y3, ...] in pixels", field=f"segmentation[{index}]")
    encoded = coco.merge(coco.frPyObjects(polygons, image.height, image.width))
    return Mask(size=(image.height, image.width), counts=encoded["counts"].decode())


def _sentence(text: str, regions: Sequence[Box | Mask]) -> Sentence:
    boxes = tuple(region for region in regions if isinstance(region, Box))
    masks = tuple(region for region in regions if isinstance(region, Mask))
    return Sentence(text=text, boxes=boxes or None, masks=masks or None)


def decode_mask(
    mask: Mask, *, field: str = "", file: Path | str | None = None, line: int | None = None
) -> NDArray[np.bool_]:
    """Return the pixels of a COCO run-length mask, bool, (height, width)."""
    (height, width), name, problem = mask.size, "counts", None
    if height * width > MAX_MASK_PIXELS:
        name, problem = "size", f"expected at most {MAX_MASK_PIXELS} pixels, found {height} x {width}"
    else:
        try:
            runs = mask.counts if isinstance(mask.counts, list) else _unpack_runs(mask.counts)
            if any(run < 0 for run in runs) or sum(runs) != height * width:
                found = f"{height} x {width} = {height * width} pixels, found {sum(runs)}"
                problem = f"the runs must be non-negative and sum to {found}"
        except ValueError as reason:
            problem = f"no run-length encoding: {reason}"
    if problem:
        raise InputError(problem, file=file, line=line, field=f"{field}.{name}" if field else name)
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
            raise ValueError(f"character {character!r}")
        value |= (code & 0x1F) << shift
        shift += 5
        if code & 0x20:
            continue
        if code & 0x10:
            value -= 1 << shift
        runs.append(value + runs[-2] if len(runs) > 2 else value)
        value = shift = 0
    if shift:
        raise ValueError("it breaks off in the middle of a run")
    return runs
