"""Which images and DICOM files the check refuses, and that real radiographs pass."""

from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from dicom_files import real_radiograph, write_dicom
from error_checks import raises_code
from PIL import Image

from maira.data.dicom.reader import read_dicom
from maira.data.image_check import MAX_PIXELS, MIN_SIDE, TAGS, check_pixels, check_tags
from maira.data.images import image_size, load_gray
from maira.data.phantoms import write_phantoms
from radfact.errors import ErrorCode

NOISE = np.random.default_rng(0).integers(0, 4096, (64, 48)).astype(np.uint16)
NIH = Path(__file__).parents[3] / "shared" / "data" / "nih"
DARK = np.arange(2000, dtype=np.uint16)[:, None] // 100 + np.zeros(2000, np.uint16)
DARK[10:40, 10:40] = 65535


@pytest.mark.parametrize(
    ("pixels", "found"),
    [
        (np.zeros((64, 64), np.uint8), "1 distinct gray value "),
        (np.full((64, 64), 255.0), "1 distinct gray value "),
        (NOISE[:1, :1], "1 x 1"),
        (NOISE[: MIN_SIDE - 1], f"{MIN_SIDE - 1} pixels"),
        (NOISE // 1024, "4 distinct gray values"),
        (DARK, "standard deviation"),
    ],
)
def test_an_image_without_content_is_refused(pixels: Any, found: str) -> None:
    with raises_code(ErrorCode.INVALID_VALUE, match=found, file="a.png"):
        check_pixels(pixels, "a.png")


def test_padding_does_not_count() -> None:
    image = np.zeros((64, 64), np.uint16)
    image[:, :48] = NOISE + 1
    check_pixels(image, padding=image == 0)
    with raises_code(ErrorCode.INVALID_VALUE, match="1 distinct gray value "):
        check_pixels(np.where(image == 0, 0, 7), padding=image == 0)


def test_radiographs_and_phantoms_pass(tmp_path: Path) -> None:
    for study in write_phantoms(tmp_path, 10, seed=1, size=64, split="test"):
        check_pixels(load_gray(tmp_path / study.frontal))
    for image in sorted(NIH.glob("*.png")):
        check_pixels(load_gray(image))
    with real_radiograph("RG1_UNCR.dcm").open("rb") as content:
        assert read_dicom(content, Path("a.dcm"), image_check="refuse", view="frontal").pixels.size
    with write_dicom(tmp_path / "hand.dcm", NOISE, BodyPartExamined="HAND").open("rb") as content:
        assert read_dicom(content, Path("hand.dcm")).pixels.size
        content.seek(0)
        with raises_code(ErrorCode.INVALID_VALUE, match="HAND", file=Path("hand.dcm")):
            read_dicom(content, Path("hand.dcm"), image_check="refuse", view="frontal")


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
@pytest.mark.parametrize("read", [load_gray, image_size])
def test_an_image_with_too_many_pixels_is_refused_before_it_is_decoded(tmp_path: Path, read: Any) -> None:
    path = tmp_path / "large.png"
    Image.new("1", (MAX_PIXELS // 8000 + 1, 8000)).save(path)
    path.write_bytes(path.read_bytes()[:2000])  # cannot be decoded
    with raises_code(ErrorCode.INVALID_VALUE, match=f"{MAX_PIXELS:,}", file=path):
        read(path)


View = Literal["frontal", "lateral"]


@pytest.mark.parametrize(
    ("tags", "view", "field"),
    [
        (("CT", "CHEST", ""), "frontal", "Modality"),
        (("MG", "BREAST", "MLO"), "frontal", "Modality"),
        (("DX", "HAND", ""), "frontal", "BodyPartExamined"),
        (("CR", "L_KNEE", "AP"), "frontal", "BodyPartExamined"),
        (("DX", "CHEST", "LL"), "frontal", "ViewPosition"),
        (("DX", "CHEST", "XTABLE LATERAL"), "frontal", "ViewPosition"),
        (("DX", "CHEST", "pa"), "lateral", "ViewPosition"),
        (("DX", "CHEST", "LAO"), "frontal", "ViewPosition"),
        (("DX", "CHEST", "LLO"), "frontal", "ViewPosition"),
        (("", "", ""), "frontal", None),
        (("CR", "CHEST", "PA"), "frontal", None),
        (("DX", "PORT CHEST", "AP LLD"), "frontal", None),
        (("DX", "CHEST ABDOMEN", "LATERAL"), "lateral", None),
        (("OT", "Pecho", "UNKNOWN"), "lateral", None),
    ],
)
def test_tags_that_contradict_a_chest_radiograph_are_refused(
    tags: tuple[str, ...], view: View, field: str | None
) -> None:
    header = dict(zip(TAGS, tags, strict=True))
    if field is None:
        check_tags(header, view)
    else:
        with raises_code(ErrorCode.INVALID_VALUE, field=field):
            check_tags(header, view)
