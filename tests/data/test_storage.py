"""Ways to store the same radiograph: files and zip archives, transfer syntaxes, depths, unused bits, padding."""

import contextlib
import io
import os
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from zipfile import ZIP_DEFLATED, ZIP_STORED, ZipFile

import numpy as np
import pytest
import yaml
from dicom_files import RAMP, convert, real_radiograph, small_file, write_dicom
from error_checks import raises
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from PIL import Image

from maira.data.archive import Radiograph
from maira.data.dicom.convert import radiograph_to_png
from maira.data.dicom.radiograph import ImageInfo
from maira.data.dicom.reader import dicom_to_png, read_dicom
from radfact.errors import InputError

pytest.importorskip("pydicom")

CASES = yaml.safe_load(Path(__file__).with_name("images.yaml").read_text(encoding="utf-8"))
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
    write_png(tmp_path / "a.png")
    write_png(tmp_path / "b.png", PIXELS.max() - PIXELS)
    before = levels_of(packed(tmp_path / "radiographs.zip", tmp_path / "a.png", "radiograph.png"), tmp_path)
    radiograph = packed(tmp_path / "radiographs.zip", tmp_path / "b.png", "radiograph.png")
    os.utime(tmp_path / "radiographs.zip", ns=(0, 0))
    np.testing.assert_array_equal(levels_of(radiograph, tmp_path), 255 - before)


@pytest.mark.parametrize(("path", "member", "size", "error"), CASES["unreadable"])
def test_an_unreadable_radiograph_is_a_one_line_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, member: str | None, size: list[int] | None, error: str
) -> None:
    monkeypatch.chdir(tmp_path)
    radiograph = replace(radiograph_at(Path(path), member), size=None if size is None else (size[0], size[1]))
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


pydicom = pytest.importorskip("pydicom")
pytest.importorskip("SimpleITK")

IMPLICIT, DEFLATED, BIG_ENDIAN = "1.2.840.10008.1.2", "1.2.840.10008.1.2.1.99", "1.2.840.10008.1.2.2"
EXPLICIT, RLE, JPEG = "1.2.840.10008.1.2.1", "1.2.840.10008.1.2.5", "1.2.840.10008.1.2.4.50"


def png_of(source: Path, folder: Path, size: int = 518) -> bytes:
    dicom_to_png(source, folder / "radiograph.png", size)
    return (folder / "radiograph.png").read_bytes()


def color_data(pixels: np.ndarray, fields: dict[str, str]) -> bytes:
    from pydicom.encaps import encapsulate

    if ".4." in fields.get("TransferSyntaxUID", ""):
        Image.fromarray(pixels).save(content := io.BytesIO(), "JPEG" if ".4.50" in str(fields) else "JPEG2000")
        return bytes(encapsulate([content.getvalue()]))
    is_ybr = fields.get("PhotometricInterpretation") == "YBR_FULL"
    stored = np.asarray(Image.fromarray(pixels).convert("YCbCr")) if is_ybr else pixels
    return (stored.transpose(2, 0, 1) if "PlanarConfiguration" in fields else stored).tobytes()


@pytest.mark.parametrize("fields", [".png", ".jpg", *CASES["color"]])
def test_gray_stored_as_color_is_accepted_and_a_color_photo_refused(tmp_path: Path, fields: Any) -> None:
    marked, photo = gray_as_color(noise=5), gray_as_color()
    marked[:10, :10], photo[:50, :, 2] = (255, 0, 0), photo[:50, :, 2] // 2
    defaults = {"PhotometricInterpretation": "RGB", "PlanarConfiguration": 0, "SamplesPerPixel": 3}
    gray, color = (tmp_path / f"{name}{fields if isinstance(fields, str) else '.dcm'}" for name in ("gray", "color"))
    for path, pixels in ((gray, marked), (color, photo)):
        if isinstance(fields, str):
            write_png(path, pixels)
        else:
            write_dicom(path, pixels[..., 0], **defaults | {"PixelData": color_data(pixels, fields)} | fields)
    plain = levels_of(radiograph_at(write_png(tmp_path / "plain.png", gray_as_color()[..., 0])), tmp_path)
    np.testing.assert_allclose(levels_of(radiograph_at(gray), tmp_path)[8:], plain[8:], atol=25)
    with pytest.raises(InputError, match=f"^{color}:.* found color in (49|50)% of its pixels$"):
        levels_of(radiograph_at(color), tmp_path)


@pytest.mark.parametrize("syntax", [EXPLICIT, IMPLICIT, BIG_ENDIAN])
@pytest.mark.parametrize(("name", "prefix"), [("a", 0), ("a.dcm", 132), ("a.dic", 0), ("a.IMA", 132), ("a.bin", 0)])
def test_files_without_preamble_or_meta_group_are_read(tmp_path: Path, syntax: str, name: str, prefix: int) -> None:
    plain = write_dicom(tmp_path / "plain.dcm", PIXELS, TransferSyntaxUID=syntax)
    content = plain.read_bytes()
    first = content.index(b"\0\x08\0\x16" if syntax == BIG_ENDIAN else b"\x08\0\x16\0")
    (tmp_path / name).write_bytes(content[:prefix] + content[first:])
    expected = levels_of(radiograph_at(plain), tmp_path)
    np.testing.assert_array_equal(levels_of(radiograph_at(tmp_path / name), tmp_path), expected)


CODESTREAMS = [f"MR_small_{form}.dcm" for form in ("RLE", "jp2klossless", "jpeg_ls_lossless")]
SMALL_FORMS = ("RLE", "bigendian", "implicit", "jp2klossless", "jpeg_ls_lossless", "padded")


@pytest.mark.parametrize(
    ("file", "form", "plain"),
    [
        *((small_file, f"MR_small_{form}.dcm", "MR_small.dcm") for form in SMALL_FORMS),
        *((real_radiograph, f"{name}_J2KR.dcm", f"{name}_UNCR.dcm") for name in ("RG3", "MR2", "693")),
    ],
)
def test_lossless_forms_are_equal(tmp_path: Path, file: Callable[[str], Path], form: str, plain: str) -> None:
    assert png_of(file(form), tmp_path) == png_of(file(plain), tmp_path)


@pytest.mark.parametrize(("name", "steps"), [("JPEGLSNearLossless_08.dcm", 255), ("JPEGLSNearLossless_16.dcm", 65535)])
def test_near_lossless_jpeg_ls_keeps_the_steps(name: str, steps: int) -> None:
    with small_file(name).open("rb") as content:
        pixels = read_dicom(content, small_file(name)).pixels
    # Bars of powers of four up to the whole range, as that file's author made it.
    assert (pixels.min(), pixels.max()) == (0, steps)
    assert len(np.unique(pixels)) in (7, 10)


def test_lossless_jpeg_of_a_real_radiograph_is_equal(tmp_path: Path) -> None:
    import SimpleITK

    plain = real_radiograph("RG1_UNCR.dcm")
    writer = SimpleITK.ImageFileWriter()
    writer.SetImageIO("GDCMImageIO")
    writer.SetFileName(str(tmp_path / "radiograph.dcm"))
    writer.UseCompressionOn()
    writer.SetCompressor("JPEG")
    writer.Execute(SimpleITK.GetImageFromArray(pydicom.dcmread(plain).pixel_array[None]))
    radiograph = pydicom.dcmread(tmp_path / "radiograph.dcm")
    radiograph.PhotometricInterpretation = "MONOCHROME1"
    radiograph.PixelSpacing = pydicom.dcmread(plain).PixelSpacing
    radiograph.save_as(tmp_path / "radiograph.dcm")
    assert radiograph.file_meta.TransferSyntaxUID.name.startswith("JPEG Lossless")
    assert png_of(tmp_path / "radiograph.dcm", tmp_path) == png_of(plain, tmp_path)


@settings(max_examples=40, deadline=None)
@given(
    stored=st.integers(8, 16) | st.just(32),
    signed=st.booleans(),
    slope=st.sampled_from([None, 2.0, -0.5]),
    photometric=st.sampled_from(["MONOCHROME1", "MONOCHROME2"]),
    syntax=st.sampled_from([IMPLICIT, DEFLATED, BIG_ENDIAN, RLE]),
    seed=st.integers(0, 99),
)
def test_depth_and_sign_do_not_depend_on_the_form(
    tmp_path_factory: pytest.TempPathFactory,
    stored: int,
    signed: bool,
    slope: float | None,
    photometric: str,
    syntax: str,
    seed: int,
) -> None:
    assume(stored < 32 or syntax != RLE)  # which has no such depth
    folder = tmp_path_factory.mktemp("radiographs")
    values = np.random.default_rng(seed).integers(0, 2**stored, (7, 9)) - (2 ** (stored - 1) if signed else 0)
    pixels = values.astype(f"{'i' if signed else 'u'}{-(-stored // 8)}")
    rescale = {} if slope is None else {"RescaleSlope": slope, "RescaleIntercept": -7}
    fields = {"stored": stored, "PhotometricInterpretation": photometric} | rescale
    plain = write_dicom(folder / "plain.dcm", pixels, **fields)
    if syntax == RLE:
        radiograph = pydicom.dcmread(plain)
        radiograph.compress(RLE)
        radiograph.save_as(folder / "form.dcm")
    else:
        write_dicom(folder / "form.dcm", pixels, **fields, TransferSyntaxUID=syntax)
    levels = convert(plain, 7)
    np.testing.assert_array_equal(convert(folder / "form.dcm", 7), levels)
    # At its own size nothing is interpolated: levels are the values themselves, scaled.
    scaled = (values - values.min()) * 255 / (values.max() - values.min())
    is_rising = (photometric == "MONOCHROME2") == ((slope or 1) > 0)
    np.testing.assert_allclose(levels, scaled if is_rising else 255 - scaled, atol=0.51)


def test_big_endian_words_are_swapped(tmp_path: Path) -> None:
    pixels = RAMP.astype("u1")
    path = write_dicom(tmp_path / "a.dcm", pixels, TransferSyntaxUID=BIG_ENDIAN)
    radiograph = pydicom.dcmread(path)
    radiograph.PixelData = pixels.reshape(-1).view("u2").byteswap().tobytes()
    radiograph["PixelData"].VR = "OW"
    radiograph.save_as(path)
    np.testing.assert_array_equal(convert(path), convert(write_dicom(tmp_path / "b.dcm", pixels)))


def test_baseline_jpeg_is_nearly_equal(tmp_path: Path) -> None:
    from pydicom.encaps import encapsulate

    pixels = (RAMP * 2).astype("u1")
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "JPEG", quality=95)
    fields = {"TransferSyntaxUID": JPEG, "PixelData": encapsulate([stream.getvalue()])}
    lossy = convert(write_dicom(tmp_path / "a.dcm", pixels, **fields), 24)
    np.testing.assert_allclose(lossy, convert(write_dicom(tmp_path / "b.dcm", pixels), 24), atol=5)


@pytest.mark.parametrize(
    ("shift", "has_noise", "fields"),
    [
        *((shift, True, {"HighBit": 11 + shift}) for shift in (0, 4, 2)),
        # Contradictory bits: the lowest are used.
        *((0, False, fields) for fields in ({"HighBit": 3}, {"HighBit": 40}, {"BitsStored": 20}, {"HighBit": None})),
    ],
)
def test_only_stored_bits_count(tmp_path: Path, shift: int, has_noise: bool, fields: dict[str, Any]) -> None:
    pixels = (RAMP * 40).astype("u2")
    others = np.uint16(0xFFFF ^ (0xFFF << shift)) if has_noise else np.uint16(0)
    noise = np.random.default_rng(0).integers(0, 2**16, pixels.shape).astype("u2") & others
    path = write_dicom(tmp_path / "a.dcm", pixels << shift | noise, stored=12, **fields)
    np.testing.assert_array_equal(convert(path), convert(write_dicom(tmp_path / "b.dcm", pixels, stored=12)))


RADIOGRAPH, PADDING = RAMP[:, :16] + 300, np.s_[:, 16:]


def padded_radiograph(value: int, dtype: str) -> np.ndarray:
    pixels = np.full(RAMP.shape, value).astype(dtype)
    pixels[:, :16] = RADIOGRAPH
    return pixels


@pytest.mark.parametrize("photometric", ["MONOCHROME1", "MONOCHROME2"])
@pytest.mark.parametrize(
    ("pixels", "fields"),
    [
        (padded_radiograph(65535, "u2"), {"PixelPaddingValue": 65535}),
        (padded_radiograph(0, "u2"), {"PixelPaddingValue": 0}),
        (padded_radiograph(-2000, "i2"), {"PixelPaddingValue": -2000}),
        (padded_radiograph(100, "u2"), {"PixelPaddingValue": 0, "PixelPaddingRangeLimit": 299}),
        (padded_radiograph(100, "u2"), {"PixelPaddingValue": 299, "PixelPaddingRangeLimit": 50}),
    ],
)
def test_padding_is_black_and_excluded_from_scaling(
    tmp_path: Path, photometric: str, pixels: np.ndarray, fields: dict[str, int]
) -> None:
    image = convert(write_dicom(tmp_path / "a.dcm", pixels, PhotometricInterpretation=photometric, **fields), 24)
    scaled = (RADIOGRAPH - RADIOGRAPH.min()) * 255 / (RADIOGRAPH.max() - RADIOGRAPH.min())
    np.testing.assert_allclose(image[:, :16], scaled if photometric == "MONOCHROME2" else 255 - scaled, atol=0.51)
    assert not image[PADDING].any()


def test_unsigned_padding_value_of_signed_pixels_counts(tmp_path: Path) -> None:
    signed = write_dicom(tmp_path / "a.dcm", padded_radiograph(-2000, "i2"), PixelPaddingValue=-2000)
    radiograph = pydicom.dcmread(signed)
    radiograph.add_new("PixelPaddingValue", "US", 63536)
    radiograph.save_as(tmp_path / "b.dcm")
    np.testing.assert_array_equal(convert(tmp_path / "b.dcm"), convert(signed))


@pytest.mark.parametrize("size", [18, 96])
def test_padding_edges_do_not_affect_contrast(tmp_path: Path, size: int) -> None:
    pixels = padded_radiograph(65535, "u2")
    path = write_dicom(tmp_path / "a.dcm", pixels, PixelPaddingValue=65535, PhotometricInterpretation="MONOCHROME1")
    alone = write_dicom(tmp_path / "b.dcm", RADIOGRAPH.astype("u2"), PhotometricInterpretation="MONOCHROME1")
    far = np.s_[:, : size // 3]
    np.testing.assert_allclose(convert(path, size)[far], convert(alone, size * 2 // 3)[far], atol=3)


def test_the_png_has_no_metadata(tmp_path: Path) -> None:
    png = png_of(write_dicom(tmp_path / "a.dcm", RAMP.astype("u2"), PatientID="4711"), tmp_path, 24)
    kinds, at = [], 8
    while at < len(png):
        length, kind = struct.unpack_from(">I4s", png, at)
        kinds.append(kind)
        at += 12 + length
    assert set(kinds) == {b"IHDR", b"IDAT", b"IEND"}


def test_a_codestream_size_that_differs_from_the_header_is_refused(tmp_path: Path) -> None:
    radiograph = pydicom.dcmread(small_file("MR_small_jp2klossless.dcm"))
    radiograph.Rows, radiograph.Columns = 32, 128
    radiograph.save_as(tmp_path / "a.dcm")
    with raises("a.dcm: PixelData: invalid-format"):
        convert(tmp_path / "a.dcm")


@pytest.mark.parametrize("name", [*CODESTREAMS, "JPEG-lossy.dcm"])
def test_a_truncated_codestream_is_an_error(tmp_path: Path, name: str, capfd: pytest.CaptureFixture[str]) -> None:
    from pydicom.encaps import encapsulate, get_frame

    radiograph = pydicom.dcmread(small_file(name))
    frame = get_frame(radiograph.PixelData, 0, number_of_frames=1)
    radiograph.PixelData = encapsulate([frame[:100]])
    radiograph.save_as(tmp_path / "a.dcm")
    with raises("a.dcm: PixelData: invalid-format") as caught:
        convert(tmp_path / "a.dcm")
    assert "\n" not in str(caught.value)
    assert capfd.readouterr() == ("", "")


@settings(max_examples=150, deadline=None)
@given(
    name=st.sampled_from(["MR_small.dcm", *CODESTREAMS]),
    changes=st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), max_size=12),
    share=st.floats(0.05, 1),
)
def test_damaged_files_are_read_or_are_input_errors(
    tmp_path_factory: pytest.TempPathFactory, name: str, changes: list[tuple[float, int]], share: float
) -> None:
    content = bytearray(small_file(name).read_bytes())
    for place, value in changes:
        content[int(place * len(content))] = value
    path = tmp_path_factory.mktemp("radiographs") / "a.dcm"
    path.write_bytes(content[: int(share * len(content))])
    with contextlib.suppress(InputError):
        convert(path)


def test_twelve_bit_extended_jpeg_is_nearly_lossless(tmp_path: Path) -> None:
    lossless, lossy = tmp_path / "lossless.dcm", tmp_path / "lossy.dcm"
    lossless.write_bytes(real_radiograph("JPEG-LL.dcm").read_bytes())
    lossy.write_bytes(small_file("JPEG-lossy.dcm").read_bytes())
    difference = np.abs(convert(lossless, 256) - convert(lossy, 256))
    assert difference.mean() < 4
