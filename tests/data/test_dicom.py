"""DICOM files: how they are found, brightness, windows, and which are refused."""

import os
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from dicom_files import RAMP, convert, real_radiograph, write_deflated_bomb, write_dicom
from error_checks import raises, raises_code
from PIL import Image

from maira.data.dicom.reader import dicom_to_png
from maira.data.sources.dicom import example_radiograph, find_radiographs
from radfact.errors import ErrorCode, InputError

pydicom = pytest.importorskip("pydicom")
pytest.importorskip("SimpleITK")

CASES = yaml.safe_load(Path(__file__).with_name("images.yaml").read_text(encoding="utf-8"))


@pytest.mark.parametrize(("spacing", "shape"), CASES["spacings"])
def test_the_shorter_side_gets_the_size(tmp_path: Path, spacing: dict[str, list[float]], shape: list[int]) -> None:
    assert [*convert(write_dicom(tmp_path / "a.dcm", RAMP.astype("u2"), **spacing)).shape] == shape


@pytest.mark.parametrize(
    ("apply_windows", "fields", "error"),
    [
        *([False, *case] for case in CASES["refused images"]),
        *([True, *case] for case in CASES["refused windows"]),
        (False, {"NumberOfFrames": 2, "PixelData": RAMP.astype("u2").tobytes() * 2}, "NumberOfFrames: invalid-value"),
        (False, {"PixelData": RAMP.astype("u2").tobytes()[:-10]}, "PixelData: invalid-format"),
        (False, {"PixelData": bytes(1536)}, "invalid-value"),
    ],
)
def test_refused_images(
    tmp_path: Path, apply_windows: bool, fields: dict[str, Any], error: str, capfd: pytest.CaptureFixture[str]
) -> None:
    if "TransferSyntaxUID" in fields:
        fields = fields | {"PixelData": pydicom.encaps.encapsulate([b"\0" * 100])}
    path = write_dicom(tmp_path / "a.dcm", RAMP.astype("u2"), **fields)
    with raises(f"a.dcm: {error}"):
        convert(path, apply_windows=apply_windows)
    assert [p.name for p in tmp_path.iterdir()] == ["a.dcm"]
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("apply_windows", "element", "text", "error"),
    [*([False, *case] for case in CASES["odd numbers"]), *([True, *case] for case in CASES["odd windows"])],
)
def test_odd_numbers_are_read_or_named(
    tmp_path: Path, apply_windows: bool, element: str, text: str, error: str | None
) -> None:
    window = {"WindowCenter": "40", "WindowWidth": "60"} if apply_windows else {}
    path = write_dicom(tmp_path / "a.dcm", RAMP.astype("u2"), **window)
    dataset, tag, value = pydicom.dcmread(path), pydicom.tag.Tag(element), text.encode() + b" " * (len(text) % 2)
    form = pydicom.datadict.dictionary_VR(tag), len(value), value, 0, False, True
    dataset[tag] = pydicom.dataelem.RawDataElement(tag, *form)
    dataset.save_as(path)
    if error:
        with raises(f"a.dcm: {element}: {error}"):
            convert(path, apply_windows=apply_windows)
        return
    plain = convert(write_dicom(tmp_path / "b.dcm", RAMP.astype("u2"), **window), apply_windows=apply_windows)
    np.testing.assert_array_equal(convert(path, apply_windows=apply_windows), plain)


@pytest.mark.parametrize(("fields", "doubts"), CASES["doubts"])
def test_contradictions_are_doubts(tmp_path: Path, fields: dict[str, Any], doubts: list[str]) -> None:
    path = write_dicom(tmp_path / "a.dcm", (RAMP * 40).astype("u2"), **{"stored": 12, **fields})
    assert [*dicom_to_png(path, tmp_path / "a.png").doubts] == doubts


@pytest.mark.parametrize(("element", "damage"), CASES["damaged headers"])
def test_damaged_header_is_refused_in_one_line(tmp_path: Path, element: str, damage: str) -> None:
    path = write_dicom(tmp_path / "a.dcm", RAMP.astype("u2"), PixelSpacing=[0.25, 0.5])
    content = path.read_bytes()
    path.write_bytes(content.replace(element.encode(), damage.encode()))
    assert path.read_bytes() != content
    with pytest.raises(InputError) as caught:
        convert(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["RG1_UNCR.dcm", "RG1_J2KI.dcm"])
@pytest.mark.parametrize("share", [0.02, 0.9])
def test_a_partially_downloaded_radiograph_is_refused(tmp_path: Path, name: str, share: float) -> None:
    content = real_radiograph(name).read_bytes()
    (tmp_path / "a.dcm").write_bytes(content[: int(len(content) * share)])
    with raises_code(ErrorCode.INVALID_FORMAT):
        convert(tmp_path / "a.dcm")


def test_missing_example_radiograph_names_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with raises("missing-requirement"):
        example_radiograph()


def test_a_deflated_file_is_not_inflated_without_bounds(tmp_path: Path) -> None:
    path = write_deflated_bomb(tmp_path / "bomb.dcm")
    tracemalloc.start()
    with raises("bomb.dcm: invalid-format"):
        dicom_to_png(path, tmp_path / "out.png")
    assert tracemalloc.get_traced_memory()[1] < 20 << 20
    tracemalloc.stop()


def test_lungs_of_the_real_radiograph_are_dark_and_its_spine_bright(tmp_path: Path) -> None:
    dicom_to_png(real_radiograph("RG1_UNCR.dcm"), tmp_path / "radiograph.png")
    levels = np.asarray(Image.open(tmp_path / "radiograph.png")).astype(int)
    assert (levels.shape, levels.min(), levels.max()) == ((550, 518), 0, 255)
    # Places read off the picture: both upper lungs, and the mediastinum between them.
    assert max(levels[70:110, 120:170].mean(), levels[70:110, 340:390].mean()) < 170
    assert levels[150:250, 240:270].mean() > 200


def _radiographs(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        write_dicom(folder / name, np.arange(64, dtype=np.uint16).reshape(8, 8))


def test_radiographs_are_detected_by_content_and_the_rest_is_counted(tmp_path: Path) -> None:
    _radiographs(tmp_path, "a/IM1", "b/radiograph.dcm", "DICOMDIR", "c.DCM")
    (tmp_path / "d.ima").write_bytes((tmp_path / "c.DCM").read_bytes()[132:])
    write_dicom(tmp_path / "report", None, SOPClassUID="1.2.840.10008.5.1.4.1.1.88.11")
    for name in ("README", "a.txt", "b.txt", "broken.dcm", "._c.DCM"):
        (tmp_path / name).write_bytes(b"\x08\0no radiograph")
    (tmp_path / "lost.dcm").symlink_to("nowhere.dcm")
    (tmp_path / "link").symlink_to(tmp_path / "a")
    (tmp_path / "none").mkdir()
    with raises("none: empty-input"):
        find_radiographs([tmp_path / "none"])
    # A file that is also in a folder is read once.
    found = find_radiographs([tmp_path / "a/IM1", tmp_path])
    assert found == {Path(name).stem: tmp_path / name for name in ("a/IM1", "b/radiograph.dcm", "c.DCM", "d.ima")}
    assert [[failure.stage, Path(str(failure.source)).name, failure.reason] for failure in found.skipped] == [
        [stage, name, f"{reason} in {tmp_path}"] for stage, name, reason in CASES["skipped files"]
    ]


def test_equal_names_are_distinguished_by_folder(tmp_path: Path) -> None:
    names = ["x/a/IM1.dcm", "x/b/IM1.dcm", "x/a-c/d.dcm", "x/a/c-d.dcm", "x/d.dcm"]
    _radiographs(tmp_path, *names)
    paths = find_radiographs([tmp_path / name for name in names])
    assert list(paths.values()) == [tmp_path / name for name in names]
    assert list(paths) == ["a-IM1", "b-IM1", "a-c-d", "c-d", "d"]


@pytest.mark.skipif(sys.platform != "linux", reason="other systems refuse such names")
def test_a_name_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    path = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xe9.dcm"))
    _radiographs(tmp_path, "a.dcm")
    (tmp_path / "a.dcm").rename(path)
    with raises(f"{path.name}: file-unreadable"):
        find_radiographs([tmp_path])


# Every value from 0 to 767 once; at its own size nothing is interpolated.
VALUES = np.arange(768).reshape(24, 32)


def windowed(path: Path, pixels: np.ndarray = VALUES, **fields: Any) -> np.ndarray:
    """Levels with the windows applied, in the order of VALUES."""
    return convert(write_dicom(path / "a.dcm", pixels.astype("u2"), **fields), 24, apply_windows=True).ravel()


def table(entries: list[int], first: int, bits: int) -> Any:
    item = pydicom.Dataset()
    item.LUTDescriptor = [len(entries), first, bits]
    item["LUTDescriptor"].VR = "US"
    item.add_new("LUTData", "US", entries)
    return [item]


def test_values_outside_the_window_are_black_or_white(tmp_path: Path) -> None:
    levels = windowed(tmp_path, WindowCenter=300, WindowWidth=101)
    # PS3.3, C.11.2.1.2.1: black up to centre - 0.5 - (width - 1) / 2, white beyond centre - 0.5 + (width - 1) / 2.
    assert (levels[:250] == 0).all()
    assert (levels[350:] == 255).all()
    np.testing.assert_allclose(levels[250:350], (np.arange(250, 350) - 249.5) * 2.55, atol=0.51)
    # A window precedes an inversion.
    inverted = windowed(tmp_path, PhotometricInterpretation="MONOCHROME1", WindowCenter=300, WindowWidth=101)
    np.testing.assert_array_equal(inverted, 255 - levels)
    step = windowed(tmp_path, WindowCenter=300, WindowWidth=1)
    np.testing.assert_array_equal(step, np.where(np.arange(768) >= 300, 255, 0))


def test_a_sigmoid_window_is_steepest_at_its_center(tmp_path: Path) -> None:
    levels = windowed(tmp_path, WindowCenter=384, WindowWidth=200, VOILUTFunction="SIGMOID")
    curve = 1 / (1 + np.exp(-4 * (np.arange(768) - 384) / 200))
    np.testing.assert_allclose(levels, (curve - curve.min()) / np.ptp(curve) * 255, atol=0.51)


@pytest.mark.parametrize(("slope", "intercept", "centre"), [(2, -100, 500), (-1, 767, 467)])
def test_window_is_in_rescaled_units(tmp_path: Path, slope: int, intercept: int, centre: int) -> None:
    fields = {"RescaleSlope": slope, "RescaleIntercept": intercept, "VOILUTFunction": "LINEAR_EXACT"}
    levels = windowed(tmp_path, WindowCenter=centre, WindowWidth=abs(slope) * 100, **fields)
    expected = np.clip((np.arange(768) - 250) * 2.55, 0, 255)
    np.testing.assert_allclose(levels, expected if slope > 0 else 255 - expected, atol=0.51)


@pytest.mark.parametrize("bits", [8, 16])
def test_a_lookup_table_precedes_the_window(tmp_path: Path, bits: int) -> None:
    entries = [min(255, number // 2) for number in range(600)]
    levels = windowed(tmp_path, VOILUTSequence=table(entries, 100, bits), WindowCenter=1, WindowWidth=1)
    expected = np.array(entries)[np.clip(np.arange(768) - 100, 0, 599)]
    np.testing.assert_array_equal(levels, expected)
    short = table(entries[:3], 100, bits)
    short[0].LUTDescriptor = [256, 0, bits]
    with raises("a.dcm: VOILUTSequence: invalid-value"):
        windowed(tmp_path, VOILUTSequence=short)


def test_a_modality_table_precedes_everything(tmp_path: Path) -> None:
    entries = [(number // 3) ** 2 for number in range(768)]
    window = {"WindowCenter": 20000, "WindowWidth": 20000, "VOILUTFunction": "LINEAR_EXACT"}
    levels = windowed(tmp_path, ModalityLUTSequence=table(entries, 0, 16), **window)
    np.testing.assert_allclose(levels, np.clip((np.array(entries) - 10000) / 20000 * 255, 0, 255), atol=0.51)


@pytest.mark.parametrize(
    "fields", [{"VOILUTSequence": [pydicom.Dataset()]}, {"WindowCenter": 300}, {"RescaleSlope": -2}]
)
def test_a_radiograph_without_a_window_is_unchanged(tmp_path: Path, fields: dict[str, Any]) -> None:
    path = write_dicom(tmp_path / "b.dcm", VALUES.astype("u2"), **fields)
    np.testing.assert_array_equal(windowed(tmp_path, **fields), convert(path, 24).ravel())
    # And a window that is not asked for changes nothing.
    path = write_dicom(tmp_path / "c.dcm", VALUES.astype("u2"), **fields | {"WindowCenter": 20, "WindowWidth": 4})
    np.testing.assert_array_equal(windowed(tmp_path, **fields), convert(path, 24).ravel())


def test_padding_is_detected_by_stored_value(tmp_path: Path) -> None:
    levels = windowed(tmp_path, PixelPaddingValue=767, WindowCenter=400, WindowWidth=800, VOILUTFunction="LINEAR_EXACT")
    assert (levels[-1], levels[-2]) == (0, 255)
