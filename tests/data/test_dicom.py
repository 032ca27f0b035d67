import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dicom_files import RAMP, convert, real_radiograph, write_deflated_bomb, write_dicom
from error_checks import raises
from PIL import Image

from maira.data.dicom.reader import dicom_to_png, example_radiograph
from radfact.errors import ErrorCode, InputError

pydicom = pytest.importorskip("pydicom")
pytest.importorskip("SimpleITK")


@pytest.mark.parametrize("photometric", ["MONOCHROME1", "MONOCHROME2"])
@pytest.mark.parametrize(
    ("dtype", "stored"), [("u1", 8), ("u2", 10), ("u2", 12), ("u2", 16), ("i2", 12), ("i2", 16), ("u4", 32)]
)
@pytest.mark.parametrize("slope", [None, 2.0, -0.5])
def test_brightness_matches_a_viewer(
    tmp_path: Path, photometric: str, dtype: str, stored: int, slope: float | None
) -> None:
    pixels = (RAMP - (40 if dtype[0] == "i" else 0)).astype(dtype)
    rescale = {} if slope is None else {"RescaleSlope": slope, "RescaleIntercept": -7}
    path = write_dicom(tmp_path / "a.dcm", pixels, stored=stored, PhotometricInterpretation=photometric, **rescale)
    image = convert(path)
    rising = (photometric == "MONOCHROME2") == ((slope or 1) > 0)
    expected = (0, 255) if rising else (255, 0)
    assert (image[0, 0], image[-1, -1]) == expected


@pytest.mark.parametrize(
    ("spacing", "shape"),
    [
        ({}, (48, 64)),
        ({"PixelSpacing": [0.2, 0.2]}, (48, 64)),
        ({"PixelSpacing": [0.4, 0.2]}, (72, 48)),
        ({"ImagerPixelSpacing": [0.1, 0.2]}, (48, 128)),
        ({"PixelAspectRatio": [2, 1]}, (72, 48)),
        ({"PixelSpacing": [0, 0]}, (48, 64)),
        ({"PixelSpacing": [0, 0], "ImagerPixelSpacing": [0.1, 0.2]}, (48, 128)),
        ({"PixelSpacing": [1e-9, 1e-9]}, (48, 64)),
    ],
)
def test_the_shorter_side_gets_the_size(
    tmp_path: Path, spacing: dict[str, list[float]], shape: tuple[int, int]
) -> None:
    assert convert(write_dicom(tmp_path / "a.dcm", RAMP.astype("u2"), **spacing)).shape == shape


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"NumberOfFrames": 2, "PixelData": RAMP.astype("u2").tobytes() * 2}, "NumberOfFrames: invalid-value"),
        ({"SamplesPerPixel": 3, "PhotometricInterpretation": "RGB"}, "PhotometricInterpretation: invalid-value"),
        ({"PhotometricInterpretation": "PALETTE COLOR"}, "PhotometricInterpretation: invalid-value"),
        ({"PhotometricInterpretation": None}, "PhotometricInterpretation: missing-field"),
        ({"Rows": 0}, "Rows: missing-field"),
        ({"PixelData": RAMP.astype("u2").tobytes()[:-10]}, "PixelData: invalid-format"),
        ({"PixelSpacing": [0.1, 0]}, "PixelSpacing: invalid-value"),
        ({"PixelSpacing": [0.1, -0.1]}, "PixelSpacing: invalid-value"),
        ({"PixelSpacing": [0.1, 5]}, "PixelSpacing: invalid-value"),
        ({"Rows": 1, "Columns": 768}, "invalid-value"),
        ({"TransferSyntaxUID": "1.2.840.10008.1.2.4.201"}, "TransferSyntaxUID: invalid-format"),
        ({"TransferSyntaxUID": "1.2.3.4.5"}, "TransferSyntaxUID: invalid-format"),
        ({"PixelData": bytes(1536)}, "invalid-value"),
    ],
)
def test_unusable_image_is_refused(
    tmp_path: Path, fields: dict[str, Any], error: str, capfd: pytest.CaptureFixture[str]
) -> None:
    from pydicom.uid import UID

    if "TransferSyntaxUID" in fields:
        from pydicom.encaps import encapsulate

        fields = {"TransferSyntaxUID": UID(fields["TransferSyntaxUID"]), "PixelData": encapsulate([b"\0" * 100])}
    path = write_dicom(tmp_path / "a.dcm", RAMP.astype("u2"), **fields)
    with raises(f"a.dcm: {error}"):
        convert(path)
    assert [p.name for p in tmp_path.iterdir()] == ["a.dcm"]
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("element", "damage"),
    [
        (b"0.25\\0.5", b"0.\n#\\0.5"),
        (b"MONOCHROME2", b"MONO\nHROME2"),
        (b"1.2.840.10008.1.2.1\0", b"1.2.840.1\n008.1.2.1\0"),
    ],
)
def test_damaged_header_is_refused_in_one_line(tmp_path: Path, element: bytes, damage: bytes) -> None:
    path = write_dicom(tmp_path / "a.dcm", RAMP.astype("u2"), PixelSpacing=[0.25, 0.5])
    content = path.read_bytes()
    path.write_bytes(content.replace(element, damage))
    assert path.read_bytes() != content
    with pytest.raises(InputError) as caught:
        convert(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["RG1_UNCR.dcm", "RG1_J2KI.dcm"])
@pytest.mark.parametrize("share", [0.02, 0.9])
def test_a_partially_downloaded_radiograph_is_refused(tmp_path: Path, name: str, share: float) -> None:
    content = real_radiograph(name).read_bytes()
    (tmp_path / "a.dcm").write_bytes(content[: int(len(content) * share)])
    with pytest.raises(InputError) as caught:
        convert(tmp_path / "a.dcm")
    assert caught.value.code is ErrorCode.INVALID_FORMAT


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
