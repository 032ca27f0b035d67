"""Films of every format and place become PNGs by one path."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from zipfile import ZIP_DEFLATED, ZIP_STORED, ZipFile

import numpy as np
import pytest
from dicom_files import RAMP, write_dicom
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from data.archive import Film
from data.dicom.convert import film_to_png
from radfact.errors import InputError

pytest.importorskip("pydicom")

PIXELS = (RAMP * 700).astype("u2")


def film_at(path: Path, member: str | None = None) -> Film:
    return Film(key="film", path=path, view="frontal", member=member)


def levels_of(film: Film, folder: Path, size: int = 40, **options: Any) -> np.ndarray:
    film_to_png(film, folder / "out" / "film.png", size, **options)
    with Image.open(folder / "out" / "film.png") as image:
        assert image.mode == "L"
        return np.asarray(image).astype(int)


def write_png(path: Path, pixels: np.ndarray = PIXELS, **options: Any) -> Path:
    Image.fromarray(pixels).save(path, **options)
    return path


def packed(path: Path, source: Path, member: str, compression: int = ZIP_DEFLATED) -> Film:
    with ZipFile(path, "w", compression) as archive:
        archive.write(source, member)
    return film_at(path, member)


def test_png_of_sixteen_bits_is_as_its_dicom(tmp_path: Path) -> None:
    dicom = levels_of(film_at(write_dicom(tmp_path / "a.dcm", PIXELS)), tmp_path)
    np.testing.assert_array_equal(levels_of(film_at(write_png(tmp_path / "a.png")), tmp_path), dicom)


def test_png_of_eight_bits_and_jpeg_are_as_their_dicom(tmp_path: Path) -> None:
    pixels = (RAMP * 2).astype("u1")
    dicom = levels_of(film_at(write_dicom(tmp_path / "a.dcm", pixels)), tmp_path)
    np.testing.assert_array_equal(levels_of(film_at(write_png(tmp_path / "a.png", pixels)), tmp_path), dicom)
    jpeg = write_png(tmp_path / "a.jpg", pixels, quality=100)
    np.testing.assert_allclose(levels_of(film_at(jpeg), tmp_path), dicom, atol=4)


@pytest.mark.parametrize("compression", [ZIP_STORED, ZIP_DEFLATED])
@pytest.mark.parametrize("kind", ["dcm", "png"])
def test_member_of_a_zip_file_is_as_the_file_alone(tmp_path: Path, kind: str, compression: int) -> None:
    source = tmp_path / f"a.{kind}"
    write_dicom(source, PIXELS) if kind == "dcm" else write_png(source)
    film = packed(tmp_path / "films.zip", source, f"0/film.{kind}", compression)
    np.testing.assert_array_equal(levels_of(film, tmp_path), levels_of(film_at(source), tmp_path))
    assert {path.name for path in tmp_path.iterdir()} == {source.name, "films.zip", "out"}


def test_content_decides_over_the_name(tmp_path: Path) -> None:
    dicom = levels_of(film_at(write_dicom(tmp_path / "a.png", PIXELS)), tmp_path)
    write_png(tmp_path / "b.png").rename(tmp_path / "b.bin")
    np.testing.assert_array_equal(levels_of(film_at(tmp_path / "b.bin"), tmp_path), dicom)


def test_zip_file_that_was_replaced_is_read_again(tmp_path: Path) -> None:
    import os

    write_png(tmp_path / "a.png")
    write_png(tmp_path / "b.png", PIXELS.max() - PIXELS)
    before = levels_of(packed(tmp_path / "films.zip", tmp_path / "a.png", "film.png"), tmp_path)
    film = packed(tmp_path / "films.zip", tmp_path / "b.png", "film.png")
    os.utime(tmp_path / "films.zip", ns=(0, 0))
    np.testing.assert_array_equal(levels_of(film, tmp_path), 255 - before)


def test_text_in_a_png_stays_behind(tmp_path: Path) -> None:
    text = PngInfo()
    text.add_text("PatientName", "Doe^Jane")
    levels_of(film_at(write_png(tmp_path / "a.png", pnginfo=text)), tmp_path)
    with Image.open(tmp_path / "out" / "film.png") as image:
        assert image.info == {}


def test_windows_are_applied_when_asked_for(tmp_path: Path) -> None:
    film = film_at(write_dicom(tmp_path / "a.dcm", PIXELS, WindowCenter=20000, WindowWidth=4))
    assert (levels_of(film, tmp_path) == 0).sum() < 10
    assert (levels_of(film, tmp_path, apply_windows=True) == 0).sum() > 100


def test_info_tells_depth_and_sizes(tmp_path: Path) -> None:
    info = film_to_png(film_at(write_png(tmp_path / "a.png")), tmp_path / "out.png", 48)
    assert (info.width, info.height, info.source_width, info.source_height) == (64, 48, 32, 24)
    assert (info.photometric, info.bits_stored) == ("MONOCHROME2", 16)


@pytest.mark.parametrize(
    ("film", "said"),
    [
        (film_at(Path("none.png")), "no such file"),
        (film_at(Path("none.dcm")), "no such file"),
        (film_at(Path("none.zip"), "film.png"), "no such file"),
        (film_at(Path("films.zip"), "other.png"), "no such member"),
        (film_at(Path("text.txt"), "film.png"), "zip"),
        (film_at(Path("text.txt")), "no image"),
        (film_at(Path("text")), "not a DICOM file"),
        (film_at(Path("text.dcm")), "not a DICOM file"),
        (film_at(Path("cut.png")), "cannot be read as an image"),
        (film_at(Path("constant.png")), "all its pixels are equal"),
        (film_at(Path("damaged.zip"), "film.png"), "cannot be taken out"),
        (film_at(Path("folder.png")), "cannot be read"),
    ],
)
def test_film_that_cannot_be_read_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, film: Film, said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    content = write_png(tmp_path / "film.png").read_bytes()
    packed(tmp_path / "films.zip", tmp_path / "film.png", "film.png")
    stored = packed(tmp_path / "damaged.zip", tmp_path / "film.png", "film.png", ZIP_STORED)
    damaged = bytearray(stored.path.read_bytes())
    damaged[len(content) // 2] ^= 255
    stored.path.write_bytes(damaged)
    (tmp_path / "cut.png").write_bytes(content[: len(content) // 2])
    write_png(tmp_path / "constant.png", np.full((30, 30), 7, "u1"))
    for name in ("text.txt", "text", "text.dcm"):
        (tmp_path / name).write_text("no film at all" * 50)
    (tmp_path / "folder.png").mkdir()
    with pytest.raises(InputError, match=said) as caught:
        film_to_png(film, tmp_path / "out" / "film.png")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists()


def _grey_in_colours(noise: int = 0) -> np.ndarray:
    grey = np.add.outer(np.arange(100), np.arange(100))[..., None]
    drawn = np.random.default_rng(0).integers(-noise, noise + 1, (100, 100, 3))
    return np.clip(grey + 20 + drawn, 0, 255).astype(np.uint8)


@pytest.mark.parametrize("name", ["a.png", "a.jpg"])
def test_grey_stored_as_colour_is_a_film(tmp_path: Path, name: str) -> None:
    marked = _grey_in_colours(noise=5)
    marked[:10, :10] = 255, 0, 0
    assert levels_of(film_at(write_png(tmp_path / name, marked)), tmp_path).shape == (40, 40)


@pytest.mark.parametrize("name", ["a.png", "a.jpg"])
def test_a_colour_photo_is_refused(tmp_path: Path, name: str) -> None:
    photo = _grey_in_colours()
    photo[:50, :, 2] //= 2
    with pytest.raises(InputError, match="is a colour image"):
        levels_of(film_at(write_png(tmp_path / name, photo)), tmp_path)


def test_a_picture_of_inverted_values_is_turned(tmp_path: Path) -> None:
    Image.fromarray(np.random.default_rng(0).integers(0, 60000, (40, 50), np.uint16)).save(tmp_path / "film.png")
    levels = []
    for is_inverted in (False, True):
        target = tmp_path / f"{is_inverted}.png"
        film_to_png(Film("film", tmp_path / "film.png", "frontal", is_inverted=is_inverted), target, 32)
        with Image.open(target) as image:
            levels.append(np.asarray(image, int))
    assert np.abs(levels[0] + levels[1] - 255).max() <= 1
