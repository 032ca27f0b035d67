"""Reports from COCO files: categories or captions are the sentences, boxes and segmentations their regions."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BeforeValidator, Field, TypeAdapter, ValidationError

from radfact.errors import ErrorCode, InputError, check_unique_id, describe
from radfact.io.jsonl import any_number, read_json
from radfact.records import Box, Id, Mask, Row, Sentence, Text, validate_model

MAX_MASK_PIXELS = 100_000_000
"""Maximum pixels of a mask: more than any radiograph has, so that a damaged size cannot exhaust the memory."""

# Detectors round coordinates: a box may extend this many pixels beyond its image, and is clipped.
_OVERHANG = 1.0


def _whole(value: Any) -> Any:
    """Return a whole number as an integer, since pandas writes it as a float beside missing ones."""
    if isinstance(value, float) and not value.is_integer():
        raise ValueError("expected a whole number")
    return int(value) if isinstance(value, float) and abs(value) < 2**53 else value


_Key = Annotated[Id, BeforeValidator(_whole)]
_Pixels = Annotated[int, BeforeValidator(_whole), Field(gt=0, strict=True)]
_Number = Annotated[float, Field(allow_inf_nan=False, strict=True)]
_Bbox = Annotated[list[_Number], Field(min_length=4, max_length=4)]
_KEY = TypeAdapter(_Key)


class CocoImage(Row):
    id: _Key
    width: _Pixels
    height: _Pixels
    sample_id: _Key | None = None
    file_name: Any = None


class _Category(Row):
    id: _Key
    name: Text


class _Annotation(Row):
    image_id: _Key
    category_id: _Key | None = None
    caption: Text | None = None
    bbox: _Bbox | None = None
    segmentation: Any = None


class _Dataset(Row):
    images: list[Any]
    annotations: list[Any] = Field(default_factory=list)
    categories: list[_Category] = Field(default_factory=list)


@dataclass(frozen=True)
class Coco:
    """Reports, images and faults by the `sample_id` of an image, or else its `id`; one with a fault has no report."""

    reports: dict[str, list[Sentence]]
    images: dict[str, CocoImage]
    faults: dict[str, InputError]


def read_coco(path: Path | str, dataset: Path | str | None = None) -> Coco:
    """Read one report per image; a list of results takes the images and categories of `dataset`.

    The text of an annotation is its caption, or else the name of its category; annotations of an image with the same
    text are one sentence. Its region is the segmentation (run-length encoding or polygons), or else the bbox in pixels.
    """
    value, prefix = read_json(path, any_number), ""
    if isinstance(value, dict):
        dataset, prefix = path, "annotations"
    elif dataset is None:
        message = "expected a COCO dataset {images, annotations, categories}; a list of results needs one of references"
        raise InputError(message, file=path, field="(top)")
    elif not isinstance(value, list):
        raise InputError(f"expected a list, found {describe(value)}", file=path)
    content = validate_model(_Dataset, value if prefix else read_json(dataset, any_number), file=dataset)
    images, keys, faults = dict[str, CocoImage](), dict[str, str](), dict[str, InputError]()

    def add_fault(error: InputError, file: Path | str, place: str, key: str | None) -> None:
        field = f"{place}.{error.field}" if error.field else place
        faults.setdefault(key or field, InputError(error.message, code=error.code, file=file, field=field))

    seen_ids, seen_keys, names = dict[str, str](), dict[str, str](), dict[str, str]()
    for index, item in enumerate(content.images):
        # Even an invalid image or annotation may have an id.
        place, image_id, key = f"images[{index}]", _key(item, "id"), _key(item, "sample_id") or _key(item, "id")
        if image_id is not None and key is not None:
            check_unique_id(seen_ids, _plain(image_id), place, file=dataset, field="id")
            check_unique_id(seen_keys, key, place, file=dataset, field="id" if key == image_id else "sample_id")
            keys[_plain(image_id)] = key
        try:
            images[str(key)] = validate_model(CocoImage, item)
        except InputError as error:
            add_fault(error, dataset, place, key)
    for index, category in enumerate(content.categories):
        if names.setdefault(_plain(category.id), category.name) != category.name:
            message = f"duplicate id '{category.id}' with another name"
            raise InputError(message, code=ErrorCode.DUPLICATE, file=dataset, field=f"categories[{index}].id")
    drawn: dict[str, dict[str, dict[str, list[Box | Mask]]]] = {key: {} for key in images}
    for index, item in enumerate(content.annotations if prefix else value):
        try:
            annotation = validate_model(_Annotation, item)
            key = _find("image", annotation.image_id, keys)
            if key in images:
                text = annotation.caption or _find("category", annotation.category_id, names)
                sentence = drawn[key].setdefault(text, {})
                for name, region in _region(annotation, images[key]).items():
                    sentence.setdefault(name, []).append(region)
        except InputError as error:
            add_fault(error, path, f"{prefix}[{index}]", keys.get(_plain(_key(item, "image_id") or "")))
    reports = {
        key: [Sentence.model_validate({"text": text, **regions}) for text, regions in sentences.items()]
        for key, sentences in drawn.items()
        if key not in faults
    }
    return Coco(reports, images, faults)


def _key(item: Any, name: str) -> str | None:
    with suppress(AttributeError, ValidationError):  # no object, or no key
        return _KEY.validate_python(item.get(name))
    return None


def _plain(key: str) -> str:
    """Return the number of an id such as "01" or "1.0", as the same id may be a number elsewhere in the file."""
    return re.sub(r"^0*(\d+)(\.0*)?$", r"\1", key)


def _find(kind: str, key: str | None, known: Mapping[str, str]) -> str:
    if key is None:
        raise InputError("expected a caption or a category_id", code=ErrorCode.MISSING_FIELD)
    if (value := known.get(_plain(key))) is None:
        raise InputError(f"no {kind} has the id '{key}'", code=ErrorCode.MISMATCH, field=f"{kind}_id")
    return value


def _region(annotation: _Annotation, image: CocoImage) -> dict[str, Box | Mask]:
    """Return the region by its field of a sentence."""
    shape, size = annotation.segmentation, (image.height, image.width)
    if mask := _filled(shape, size) if isinstance(shape, list) else shape:
        mask = validate_model(Mask, mask, field="segmentation")
        pixels = decode_mask(mask, field="segmentation")
        if mask.size != size:
            message = f"expected the size of the image {[*size]} (height, width), found {[*mask.size]}"
            raise InputError(message, field="segmentation.size")
        if not pixels.any():
            raise InputError("expected a region with an area", field="segmentation")
        return {"masks": mask}
    if annotation.bbox is not None:
        return {"boxes": _box(annotation.bbox, image)}
    # A caption may describe no place; a detection whose place is empty has lost it.
    if annotation.caption is None and annotation.model_fields_set & {"bbox", "segmentation"}:
        raise InputError("expected [x, y, width, height] in pixels or a segmentation, found neither", field="bbox")
    return {}


def _box(bbox: Sequence[float], image: CocoImage) -> Box:
    x, y, width, height = bbox
    outside = min(x, y) < -_OVERHANG or x + width > image.width + _OVERHANG or y + height > image.height + _OVERHANG
    if min(width, height) < 0 or outside:
        message = f"expected [x, y, width, height] in pixels within {image.width} x {image.height}, found {list(bbox)}"
        raise InputError(message, field="bbox")
    shares = (x / image.width, y / image.height, (x + width) / image.width, (y + height) / image.height)
    x_min, y_min, x_max, y_max = (min(max(share, 0.0), 1.0) for share in shares)
    if x_min == x_max or y_min == y_max:
        raise InputError(f"expected a box with an area, found {list(bbox)}", field="bbox")
    return Box(x_min=x_min, y_min=y_min, x_max=x_max, y_max=y_max)


def _filled(polygons: Sequence[Any], size: tuple[int, int]) -> dict[str, Any] | None:
    """Return the mask of polygons as an object of the file; None without polygons."""
    from pycocotools import mask as coco

    for index, polygon in enumerate(polygons):
        numbers = polygon if isinstance(polygon, list) else [None]
        finite = all(isinstance(number, int | float) and math.isfinite(number) for number in numbers)
        if not finite or len(numbers) in (2, 4) or len(numbers) % 2:
            raise InputError("expected [x1, y1, x2, y2, x3, y3, ...] in pixels", field=f"segmentation[{index}]")
    if drawn := [polygon for polygon in polygons if polygon]:
        return {"size": size, "counts": coco.merge(coco.frPyObjects(drawn, *size))["counts"].decode()}
    return None


def decode_mask(mask: Mask, *, field: str = "", **place: Any) -> NDArray[np.bool_]:
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
        raise InputError(problem, **place, field=f"{field}.{name}" if field else name)
    # Runs go down the columns, alternately off and on.
    return np.repeat(np.arange(len(runs)) % 2 == 1, runs).reshape(width, height).T


def _unpack_runs(counts: str) -> list[int]:
    """Return the runs of a compressed COCO string; pycocotools leaves pixels undefined if those of a damaged one end.

    Characters have five bits each; from the fourth run on, runs are relative to the run two before.
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
