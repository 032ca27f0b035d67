from pathlib import Path

import numpy as np
import pytest
from box_strategies import boxes
from error_checks import raises
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from PIL import Image

from maira.data.images import CropMap, image_size, load_gray, prepare
from radfact.errors import InputError
from radfact.records import Box

RAMP = np.arange(12, dtype=np.uint8).reshape(3, 4) * 20

sides = st.integers(1, 5000)


def save(image: Image.Image, path: Path, **options: object) -> Path:
    image.save(path, **options)
    return path


@pytest.mark.parametrize("mode", ["L", "RGB", "P", "LA", "RGBA"])
def test_gray_levels_are_kept_in_every_png_mode(tmp_path: Path, mode: str) -> None:
    path = save(Image.fromarray(RAMP).convert(mode), tmp_path / "a.png")
    with Image.open(path) as stored:
        assert stored.mode == mode
    np.testing.assert_array_equal(load_gray(path), RAMP)


def test_sixteen_bit_is_not_clipped(tmp_path: Path) -> None:
    values = np.array([[0, 255, 256], [4095, 40000, 65535]], np.uint16)
    gray = load_gray(save(Image.fromarray(values), tmp_path / "a.png"))
    np.testing.assert_array_equal(gray, values)
    assert gray.dtype == np.float32


@pytest.mark.parametrize(
    ("mode", "color", "level"),
    # ITU-R BT.601: 0.587 of green. Transparent pixels are black.
    [("RGB", (0, 255, 0), 0.587 * 255), ("RGBA", (255, 255, 255, 0), 0)],
)
def test_color_becomes_luma(tmp_path: Path, mode: str, color: tuple[int, ...], level: float) -> None:
    gray = load_gray(save(Image.new(mode, (2, 2), color), tmp_path / "a.png"))
    assert gray[0, 0] == pytest.approx(level, abs=1)


@pytest.mark.parametrize("suffix", ["png", "jpg", "webp"])
@pytest.mark.parametrize("tag", [None, 1, 3, 6, 8])
def test_the_size_equals_that_of_the_decoded_image(tmp_path: Path, suffix: str, tag: int | None) -> None:
    exif = Image.Exif()
    if tag is not None:
        exif[0x0112] = tag
    path = save(Image.new("L", (40, 20)), tmp_path / f"a.{suffix}", exif=exif)
    height, width = load_gray(path).shape
    assert image_size(path) == (width, height)
    assert ((width, height) == (20, 40)) == (tag in (6, 8))


def test_other_files_are_refused(tmp_path: Path) -> None:
    frames = [Image.new("L", (8, 8), level) for level in (0, 100, 200)]
    save(frames[0], tmp_path / "frames.tiff", save_all=True, append_images=frames[1:])
    save(Image.fromarray(np.array([[0, np.nan]], np.float32)), tmp_path / "nan.tiff")
    (tmp_path / "text.png").write_text("no image", encoding="utf-8")
    for read, name, code in (
        (load_gray, "frames.tiff", "invalid-format"),
        (load_gray, "nan.tiff", "invalid-value"),
        (image_size, "text.png", "invalid-format"),
        (image_size, "none.png", "file-not-found"),
        (image_size, "", "file-unreadable"),
    ):
        with raises(f"{name or tmp_path.name}: {code}"):
            read(tmp_path / name)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=150)
@given(st.data(), st.sampled_from(["png", "jpg"]))
def test_damaged_file_is_read_or_refused_in_one_line(tmp_path: Path, data: st.DataObject, suffix: str) -> None:
    path = save(Image.fromarray(np.tile(RAMP, (8, 8))), tmp_path / f"a.{suffix}")
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(content[: data.draw(st.integers(0, len(content)))])
    refusal = ""
    try:
        load_gray(path)
    except InputError as error:
        refusal = str(error)
    assert "\n" not in refusal


@pytest.mark.parametrize(
    ("row", "crop"),
    # The contrast is that of the whole image; odd margins leave the smaller part before the crop.
    [([0, 40, 60, 100], [0.4, 0.6]), ([0, 1, 2, 3, 4], [0.25, 0.5])],
)
def test_the_crop_is_central(row: list[float], crop: list[float]) -> None:
    np.testing.assert_allclose(prepare(np.array([row] * 2, np.float32), 2), [crop] * 2)


@given(st.integers(1, 40), st.integers(1, 40), st.integers(1, 30), st.integers(0, 2**32 - 1))
def test_prepared_image_is_a_square_in_range(height: int, width: int, size: int, seed: int) -> None:
    image = np.random.default_rng(seed).integers(0, 65536, (height, width)).astype(np.float32)
    prepared = prepare(image, size)
    assert prepared.shape == (size, size)
    assert prepared.dtype == np.float32
    assert prepared.min() >= 0
    assert prepared.max() <= 1


@given(st.floats(0.25, 1000), st.floats(-1000, 1000))
def test_brightness_and_contrast_are_normalized(gain: float, offset: float) -> None:
    image = np.random.default_rng(0).random((30, 20))
    np.testing.assert_allclose(prepare(image * gain + offset, 16), prepare(image, 16), atol=2e-3)


def test_constant_image_becomes_zeros() -> None:
    assert not prepare(np.full((30, 20), 7, np.uint16), 16).any()


@pytest.mark.parametrize("shape", [(0, 3), (4,), (4, 4, 3), (10, 641)])
def test_arrays_of_wrong_shape_or_type_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(InputError):
        prepare(np.zeros(shape, np.float32), 8)


def test_the_crop_map_locates_a_marked_square() -> None:
    image = np.zeros((300, 400), np.float32)
    image[60:120, 200:260] = 1
    box, cut = CropMap(width=400, height=300).to_crop(Box(x_min=0.5, y_min=0.2, x_max=0.65, y_max=0.4))
    assert box is not None
    assert not cut
    rows, columns = np.nonzero(prepare(image, 100) > 0.5)
    located = (columns.min() / 100, rows.min() / 100, (columns.max() + 1) / 100, (rows.max() + 1) / 100)
    assert located == pytest.approx(box.as_tuple(), abs=0.01)


@given(boxes(), sides, sides)
def test_crop_and_original_box_round_trip(box: Box, width: int, height: int) -> None:
    crop = CropMap(width, height)
    back, cut = crop.to_crop(crop.to_original(box))
    # A box without area may fall to either side of the edge by rounding.
    assume(back is not None or (box.x_max - box.x_min > 1e-6 and box.y_max - box.y_min > 1e-6))
    assert back is not None
    assert back.as_tuple() == pytest.approx(box.as_tuple(), abs=1e-6)
    assert not cut


@given(boxes(), sides, sides)
def test_clipped_box_is_the_part_in_the_crop(box: Box, width: int, height: int) -> None:
    crop = CropMap(width, height)
    inside, cut = crop.to_crop(box)
    if inside is None:
        assert cut
        return
    back = crop.to_original(inside).as_tuple()
    for original, mapped in zip(box.as_tuple()[:2], back[:2], strict=True):
        assert mapped >= original - 1e-6
    for original, mapped in zip(box.as_tuple()[2:], back[2:], strict=True):
        assert mapped <= original + 1e-6
    assert cut or back == pytest.approx(box.as_tuple(), abs=1e-6)


@pytest.mark.parametrize(
    ("x_min", "x_max", "expected"),
    [
        (0.0, 0.25, (None, True)),  # ends where the crop begins
        (0.0, 0.5, ((0.0, 0.5), True)),
        (0.25, 0.75, ((0.0, 1.0), False)),
        (0.6, 1.0, ((0.7, 1.0), True)),
        (0.8, 0.9, (None, True)),
        (0.5, 0.5, ((0.5, 0.5), False)),
    ],
)
def test_crop_of_an_image_twice_as_wide_as_high(
    x_min: float, x_max: float, expected: tuple[tuple[float, float] | None, bool]
) -> None:
    inside, cut = CropMap(width=200, height=100).to_crop(Box(x_min=x_min, y_min=0, x_max=x_max, y_max=1))
    part, was_clipped = expected
    assert (None if inside is None else (inside.x_min, inside.x_max)) == (part and pytest.approx(part))
    assert cut == was_clipped
