"""Radiographs of every format and place become PNGs by one path."""

from dataclasses import replace
from pathlib import Path
from typing import Any
from zipfile import ZIP_DEFLATED, ZIP_STORED, ZipFile

import numpy as np
import pytest
from dicom_files import RAMP, write_dicom
from error_checks import raises
from PIL import Image

from maira.data.archive import Radiograph
from maira.data.dicom.convert import radiograph_to_png
from maira.data.dicom.radiograph import ImageInfo

pytest.importorskip("pydicom")

PIXELS = (RAMP * 700).astype("u2")


def radiograph_at(path: Path, member: str | None = None) -> Radiograph:
    return Radiograph(key="radiograph", path=path, view="frontal", member=member)


def levels_of(radiograph: Radiograph, folder: Path, size: int = 40, **options: Any) -> np.ndarray:
    radiograph_to_png(radiograph, folder / "out" / "radiograph.png", size, **options)
    with Image.open(folder / "out" / "radiograph.png") as image:
        assert image.mode == "L"
        return np.asarray(image).astype(int)


def write_png(path: Path, pixels: np.ndarray = PIXELS, **options: Any) -> Path:
    Image.fromarray(pixels).save(path, **options)
    return path


def packed(path: Path, source: Path, member: str, compression: int = ZIP_DEFLATED) -> Radiograph:
    with ZipFile(path, "w", compression) as archive:
        archive.write(source, member)
    return radiograph_at(path, member)


@pytest.mark.parametrize("pixels", [PIXELS, (RAMP * 2).astype("u1")])
def test_png_and_jpeg_equal_their_dicom(tmp_path: Path, pixels: np.ndarray) -> None:
    dicom = levels_of(radiograph_at(write_dicom(tmp_path / "a.dcm", pixels)), tmp_path)
    png = radiograph_at(write_png(tmp_path / "a.png", pixels))
    np.testing.assert_array_equal(levels_of(png, tmp_path), dicom)
    inverted = levels_of(replace(png, is_inverted=True), tmp_path)
    np.testing.assert_allclose(inverted, 255 - dicom, atol=1)
    info = radiograph_to_png(png, tmp_path / "out.png", 48)
    assert info == ImageInfo(64, 48, 32, 24, "MONOCHROME2", 8 * pixels.itemsize)
    if pixels.itemsize == 1:
        jpeg = write_png(tmp_path / "a.jpg", pixels, quality=100)
        np.testing.assert_allclose(levels_of(radiograph_at(jpeg), tmp_path), dicom, atol=4)


@pytest.mark.parametrize("compression", [ZIP_STORED, ZIP_DEFLATED])
@pytest.mark.parametrize("kind", ["dcm", "png"])
def test_a_zip_member_equals_the_file(tmp_path: Path, kind: str, compression: int) -> None:
    source = tmp_path / f"a.{kind}"
    write_dicom(source, PIXELS) if kind == "dcm" else write_png(source)
    radiograph = packed(tmp_path / "radiographs.zip", source, f"0/radiograph.{kind}", compression)
    np.testing.assert_array_equal(levels_of(radiograph, tmp_path), levels_of(radiograph_at(source), tmp_path))
    assert {path.name for path in tmp_path.iterdir()} == {source.name, "radiographs.zip", "out"}


def test_a_replaced_zip_file_is_read_again(tmp_path: Path) -> None:
    import os

    write_png(tmp_path / "a.png")
    write_png(tmp_path / "b.png", PIXELS.max() - PIXELS)
    before = levels_of(packed(tmp_path / "radiographs.zip", tmp_path / "a.png", "radiograph.png"), tmp_path)
    radiograph = packed(tmp_path / "radiographs.zip", tmp_path / "b.png", "radiograph.png")
    os.utime(tmp_path / "radiographs.zip", ns=(0, 0))
    np.testing.assert_array_equal(levels_of(radiograph, tmp_path), 255 - before)


@pytest.mark.parametrize(
    ("radiograph", "error"),
    [
        (radiograph_at(Path("none.png")), "none.png: file-not-found"),
        (radiograph_at(Path("none.dcm")), "none.dcm: file-not-found"),
        (radiograph_at(Path("none.zip"), "radiograph.png"), "none.zip: file-not-found"),
        (radiograph_at(Path("radiographs.zip"), "other.png"), "other.png: file-not-found"),
        (radiograph_at(Path("text.txt"), "radiograph.png"), "radiograph.png: file-unreadable"),
        (radiograph_at(Path("text.txt")), "text.txt: invalid-format"),
        (radiograph_at(Path("text")), "text: invalid-format"),
        (radiograph_at(Path("text.dcm")), "text.dcm: invalid-format"),
        (radiograph_at(Path("empty.dcm")), "empty.dcm: invalid-format"),
        (radiograph_at(Path("cut.png")), "cut.png: file-unreadable"),
        (radiograph_at(Path("constant.png")), "constant.png: invalid-value"),
        (radiograph_at(Path("damaged.zip"), "radiograph.png"), "radiograph.png: file-unreadable"),
        (radiograph_at(Path("folder.png")), "folder.png: file-unreadable"),
        (replace(radiograph_at(Path("radiograph.png")), size=(64, 24)), "radiograph.png: mismatch"),
    ],
)
def test_an_unreadable_radiograph_is_a_one_line_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, radiograph: Radiograph, error: str
) -> None:
    monkeypatch.chdir(tmp_path)
    content = write_png(tmp_path / "radiograph.png").read_bytes()
    packed(tmp_path / "radiographs.zip", tmp_path / "radiograph.png", "radiograph.png")
    stored = packed(tmp_path / "damaged.zip", tmp_path / "radiograph.png", "radiograph.png", ZIP_STORED)
    damaged = bytearray(stored.path.read_bytes())
    damaged[len(content) // 2] ^= 255
    stored.path.write_bytes(damaged)
    (tmp_path / "cut.png").write_bytes(content[: len(content) // 2])
    write_png(tmp_path / "constant.png", np.full((30, 30), 7, "u1"))
    for name in ("text.txt", "text", "text.dcm"):
        (tmp_path / name).write_text("no radiograph at all" * 50)
    (tmp_path / "empty.dcm").touch()
    (tmp_path / "folder.png").mkdir()
    with raises(error):
        radiograph_to_png(radiograph, tmp_path / "out" / "radiograph.png")
    assert not (tmp_path / "out").exists()


def gray_as_color(noise: int = 0) -> np.ndarray:
    gray = np.add.outer(np.arange(100), np.arange(100))[..., None]
    noise_values = np.random.default_rng(0).integers(-noise, noise + 1, (100, 100, 3))
    return np.clip(gray + 20 + noise_values, 0, 255).astype(np.uint8)


@pytest.mark.parametrize("name", ["a.png", "a.jpg"])
def test_gray_stored_as_color_is_accepted_and_a_color_photo_refused(tmp_path: Path, name: str) -> None:
    marked = gray_as_color(noise=5)
    marked[:10, :10] = 255, 0, 0
    assert levels_of(radiograph_at(write_png(tmp_path / name, marked)), tmp_path).shape == (40, 40)
    photo = gray_as_color()
    photo[:50, :, 2] //= 2
    with raises(f"{name}: invalid-value"):
        levels_of(radiograph_at(write_png(tmp_path / name, photo)), tmp_path)
