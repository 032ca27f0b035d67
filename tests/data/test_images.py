"""Images: reading, the crop, checks of their content, and resampling."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from box_strategies import boxes
from dicom_files import real_radiograph, write_dicom
from error_checks import raises, raises_code
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from PIL import Image

from maira.data.archive import View
from maira.data.dicom.reader import read_dicom
from maira.data.dicom.resample import bspline_resize
from maira.data.image_check import MAX_PIXELS, MIN_SIDE, TAGS, check_pixels, check_tags
from maira.data.images import CropMap, image_size, load_gray, prepare
from maira.data.phantoms import write_phantoms
from radfact.errors import ErrorCode, InputError
from radfact.records import Box

CASES = yaml.safe_load(Path(__file__).with_name("images.yaml").read_text(encoding="utf-8"))
RAMP = np.arange(12, dtype=np.uint8).reshape(3, 4) * 20

sides = st.integers(1, 5000)


def save(image: Image.Image, path: Path, **options: object) -> Path:
    image.save(path, **options)
    return path


@pytest.mark.parametrize("mode", ["L", "RGB", "P", "LA", "RGBA", "I;16"])
def test_gray_levels_are_kept_in_every_png_mode(tmp_path: Path, mode: str) -> None:
    values = np.array([[0, 255, 256], [4095, 40000, 65535]], np.uint16) if mode == "I;16" else RAMP
    path = save(Image.fromarray(values).convert(mode), tmp_path / "a.png")
    with Image.open(path) as stored:
        assert stored.mode == mode
    np.testing.assert_array_equal(load_gray(path), values)
    assert load_gray(path).dtype == np.float32


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


@pytest.mark.parametrize(("row", "crop"), CASES["central crops"])
def test_the_crop_is_central(row: list[float], crop: list[float]) -> None:
    np.testing.assert_allclose(prepare(np.array([row] * 2, np.float32), 2), [crop] * 2)
    assert not prepare(np.full((30, 20), row[1], np.uint16), 16).any()  # a constant image


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


@pytest.mark.parametrize(("x_min", "x_max", "part", "is_cut"), CASES["wide crops"])
def test_crop_of_a_wide_image(x_min: float, x_max: float, part: list[float] | None, is_cut: bool) -> None:
    inside, cut = CropMap(width=200, height=100).to_crop(Box(x_min=x_min, y_min=0, x_max=x_max, y_max=1))
    assert (None if inside is None else [inside.x_min, inside.x_max]) == (part and pytest.approx(part))
    assert cut == is_cut


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


@pytest.mark.parametrize(("tags", "view", "field"), CASES["tags"])
def test_tags_that_contradict_a_chest_radiograph_are_refused(tags: list[str], view: View, field: str | None) -> None:
    header = dict(zip(TAGS, tags, strict=True))
    if field is None:
        check_tags(header, view)
    else:
        with raises_code(ErrorCode.INVALID_VALUE, field=field):
            check_tags(header, view)


def by_simpleitk(pixels: np.ndarray, height: int, width: int) -> np.ndarray:
    """The same by SimpleITK's own B-splines, edges in place."""
    sitk = pytest.importorskip("SimpleITK")
    image = sitk.GetImageFromArray(pixels.astype(np.float64))
    spacing = pixels.shape[1] / width, pixels.shape[0] / height
    origin = tuple((value - 1) / 2 for value in spacing)
    identity = sitk.Transform()
    resized = sitk.Resample(image, (width, height), identity, sitk.sitkBSpline, origin, spacing, image.GetDirection())
    return np.asarray(sitk.GetArrayFromImage(resized))


short = st.integers(4, 90)


@settings(max_examples=60, deadline=None)
@given(source=st.tuples(short, short), target=st.tuples(st.integers(1, 150), st.integers(1, 150)), seed=st.integers(0))
def test_resampling_matches_simpleitk(source: tuple[int, int], target: tuple[int, int], seed: int) -> None:
    pixels = np.random.default_rng(seed).integers(0, 65536, source)
    resized = bspline_resize(pixels, *target)
    np.testing.assert_allclose(resized, by_simpleitk(pixels, *target), atol=65536 * 2e-8)


@given(shape=st.tuples(short, short), seed=st.integers(0))
def test_an_image_of_the_target_size_is_unchanged(shape: tuple[int, int], seed: int) -> None:
    pixels = np.random.default_rng(seed).normal(size=shape)
    np.testing.assert_allclose(bspline_resize(pixels, *shape), pixels, atol=1e-6)


@pytest.mark.parametrize("kind", ["u1", "i2", "u2", "u4", "f4"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_type_and_layout_do_not_matter(kind: str, order: str) -> None:
    values = np.random.default_rng(0).integers(0, 100, (40, 30))
    pixels = np.asarray(values.astype(kind), order=order)  # type: ignore[call-overload]
    np.testing.assert_array_equal(bspline_resize(pixels, 20, 25), bspline_resize(values.astype(float), 20, 25))
