"""Check the size, contrast and DICOM tags of an image, and reject images that cannot be chest radiographs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import numpy.typing as npt

from radfact.errors import InputError
from radfact.options import Option

ImageCheck = Literal["refuse", "off"]
ImageCheckOption = Annotated[
    ImageCheck,
    Option("Reject images that cannot be chest radiographs (rules: docs/prepare.md), or do not check."),
]

MIN_SIDE = 32
"""Minimum length of the shorter side in pixels."""
MIN_LEVELS = 16
"""Minimum number of distinct gray values. A mask has 2, real radiographs and phantoms have 206 to 25,084."""
MIN_CONTRAST = 0.02
"""Minimum standard deviation of the gray values as a fraction of their range.

Measured: 0.26 and 0.28 on two radiographs of ChestX-ray14, 0.18 on the computed radiograph of pydicom-data (16 bit),
0.22 to 0.29 on 200 phantoms.
"""
MAX_PIXELS = 89_478_485
"""Maximum number of pixels of an image, regardless of the settings: Pillow's `MAX_IMAGE_PIXELS`."""
_SAMPLE_SIDE = 512
"""Maximum number of evenly spaced rows and columns used to measure gray values and contrast."""
# JPEG compression and scanners change gray slightly, and a colored mark may cover a small part of a radiograph.
_MAX_TINT = 16
"""Largest difference of the channels of a gray pixel, of 255."""
_MAX_COLORED_SHARE = 0.02

TAGS = ("Modality", "BodyPartExamined", "ViewPosition")
"""DICOM elements that `check_tags` reads."""
_MODALITIES = frozenset({"CR", "DX", "DR", "RG", "XR", "DF", "RF", "HC", "SC", "OT"})
"""Projection radiography, digitized films and unspecified sources (PS3.3, C.7.3.1.1.1, and retired terms)."""
_CHEST = ("CHEST", "THORA", "TORAX", "TORACE", "PECHO", "LUNG", "PULM", "RIB", "STERN", "CLAVICLE", "HEART", "BODY")
_OTHER_PARTS = (
    *("HAND", "WRIST", "FINGER", "THUMB", "ELBOW", "FOREARM", "FOOT", "ANKLE", "TOE", "HEEL", "CALCANEUS", "KNEE"),
    *("PATELLA", "LEG", "TIBIA", "FIBULA", "FEMUR", "HIP", "PELVIS", "ABDOMEN", "BREAST", "HEAD", "SKULL", "JAW"),
    *("MANDIBLE", "TEETH", "TOOTH", "DENTAL", "SINUS", "NECK", "CSPINE", "LSPINE", "SACRUM", "COCCYX", "ARM"),
    "HUMERUS",
)
"""Prefixes of words for body parts other than the chest (PS3.16, annex L, and common spellings)."""
_OTHER_VIEWS = ("LAO", "RAO", "LPO", "RPO", "LLO", "RLO", "CC", "MLO", "ML", "LM", "XCC", "SWIMMERS")


def check_size(width: int, height: int, file: Path | str | None = None) -> None:
    """Raise an error if an image has too many pixels; call this before decoding it."""
    if width * height > MAX_PIXELS:
        message = f"expected a radiograph of at most {MAX_PIXELS:,} pixels, found {width} x {height}"
        raise InputError(message, file=file)


def check_pixels(
    pixels: npt.NDArray[Any], file: Path | str | None = None, *, padding: npt.NDArray[np.bool_] | None = None
) -> None:
    """Raise an error if an image is too small, or has too few gray values or too little contrast for a radiograph."""
    height, width = pixels.shape
    if min(width, height) < MIN_SIDE:
        raise _refusal(f"an image of {width} x {height} pixels (minimum: {MIN_SIDE})", file)
    steps = tuple(slice(None, None, -(-side // _SAMPLE_SIDE)) for side in pixels.shape)
    sample = pixels[steps] if padding is None else pixels[steps][~padding[steps]]
    levels = len(np.unique(sample))
    if levels < MIN_LEVELS:
        raise _refusal(f"an image with {levels} distinct gray value{'s' * (levels != 1)} (minimum: {MIN_LEVELS})", file)
    inside = pixels if padding is None else pixels[~padding]
    contrast = float(np.std(sample, dtype=np.float64)) / (float(inside.max()) - float(inside.min()))
    if contrast < MIN_CONTRAST:
        spread = f"a standard deviation of {contrast:.2%} of the range of gray values"
        raise _refusal(f"{spread} (minimum: {MIN_CONTRAST:.0%})", file)


def check_gray(pixels: npt.NDArray[Any], file: Path | str, field: str | None = None) -> None:
    """Raise an error if an image with red, green and blue (H, W, 3) is not gray but for noise and small marks."""
    tints = pixels.max(axis=2) - pixels.min(axis=2)
    share = float(np.mean(tints > _MAX_TINT * (int(np.iinfo(pixels.dtype).max) // 255)))
    if share > _MAX_COLORED_SHARE:
        raise InputError(f"expected a gray image, found color in {share:.0%} of its pixels", file=file, field=field)


def check_tags(header: Any, view: Literal["frontal", "lateral"] | None, file: Path | str | None = None) -> None:
    """Raise an error if DICOM tags contradict a chest radiograph of a view. Missing and unknown values pass."""
    modality, part, position = (str(header.get(tag) or "").strip().upper() for tag in TAGS)
    if modality and modality not in _MODALITIES:
        raise _refusal(f"modality {modality!r}", file, "Modality")
    words = part.replace("_", " ").replace("-", " ").split()
    names_other_part = any(word.startswith(_OTHER_PARTS) for word in words)
    if names_other_part and not any(chest in part for chest in _CHEST):
        raise _refusal(f"body part {part!r}", file, "BodyPartExamined")
    first = (position.split() or [""])[0]
    is_lateral = first in ("LL", "RL", "LAT", "LATERAL") or position.endswith("LATERAL")
    is_frontal = first in ("PA", "AP") and not is_lateral
    if first in _OTHER_VIEWS or (view == "frontal" and is_lateral) or (view == "lateral" and is_frontal):
        raise _refusal(f"view position {position!r} for {f'a {view}' if view else 'an'} image", file, "ViewPosition")


def _refusal(value: str, file: Path | str | None, field: str | None = None) -> InputError:
    skip = "--image-check off (maira train: faults.image_check=off) skips this check"
    return InputError(f"expected a chest radiograph, found {value}; {skip}", file=file, field=field)
