from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dicom_files import convert, write_dicom
from error_checks import raises

pydicom = pytest.importorskip("pydicom")

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


def test_a_sigmoid_window_is_steepest_at_its_center(tmp_path: Path) -> None:
    levels = windowed(tmp_path, WindowCenter=384, WindowWidth=200, VOILUTFunction="SIGMOID")
    curve = 1 / (1 + np.exp(-4 * (np.arange(768) - 384) / 200))
    np.testing.assert_allclose(levels, (curve - curve.min()) / np.ptp(curve) * 255, atol=0.51)


def test_a_window_of_width_one_is_a_step(tmp_path: Path) -> None:
    levels = windowed(tmp_path, WindowCenter=300, WindowWidth=1)
    np.testing.assert_array_equal(levels, np.where(np.arange(768) >= 300, 255, 0))


@pytest.mark.parametrize(("slope", "intercept", "centre"), [(2, -100, 500), (-1, 767, 467)])
def test_window_is_in_rescaled_units(tmp_path: Path, slope: int, intercept: int, centre: int) -> None:
    rescale = {"RescaleSlope": slope, "RescaleIntercept": intercept}
    levels = windowed(
        tmp_path, WindowCenter=centre, WindowWidth=abs(slope) * 100, VOILUTFunction="LINEAR_EXACT", **rescale
    )
    expected = np.clip((np.arange(768) - 250) * 2.55, 0, 255)
    np.testing.assert_allclose(levels, expected if slope > 0 else 255 - expected, atol=0.51)


@pytest.mark.parametrize("bits", [8, 16])
def test_a_lookup_table_precedes_the_window(tmp_path: Path, bits: int) -> None:
    entries = [min(255, number // 2) for number in range(600)]
    levels = windowed(tmp_path, VOILUTSequence=table(entries, 100, bits), WindowCenter=1, WindowWidth=1)
    expected = np.array(entries)[np.clip(np.arange(768) - 100, 0, 599)]
    np.testing.assert_array_equal(levels, expected)


def test_a_modality_table_precedes_everything(tmp_path: Path) -> None:
    entries = [(number // 3) ** 2 for number in range(768)]
    exact = {"VOILUTFunction": "LINEAR_EXACT"}
    levels = windowed(
        tmp_path, ModalityLUTSequence=table(entries, 0, 16), WindowCenter=20000, WindowWidth=20000, **exact
    )
    np.testing.assert_allclose(levels, np.clip((np.array(entries) - 10000) / 20000 * 255, 0, 255), atol=0.51)


@pytest.mark.parametrize("fields", [{}, {"WindowCenter": 300}, {"RescaleSlope": -2, "RescaleIntercept": 5}])
def test_a_radiograph_without_a_window_is_unchanged(tmp_path: Path, fields: dict[str, Any]) -> None:
    path = write_dicom(tmp_path / "b.dcm", VALUES.astype("u2"), **fields)
    np.testing.assert_array_equal(windowed(tmp_path, **fields), convert(path, 24).ravel())
    # And a window that is not asked for changes nothing.
    path = write_dicom(tmp_path / "c.dcm", VALUES.astype("u2"), **fields | {"WindowCenter": 20, "WindowWidth": 4})
    np.testing.assert_array_equal(windowed(tmp_path, **fields), convert(path, 24).ravel())


def test_padding_is_detected_by_stored_value(tmp_path: Path) -> None:
    levels = windowed(tmp_path, PixelPaddingValue=767, WindowCenter=400, WindowWidth=800, VOILUTFunction="LINEAR_EXACT")
    assert (levels[-1], levels[-2]) == (0, 255)


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"WindowCenter": 300, "WindowWidth": 0}, "WindowWidth"),
        ({"WindowCenter": 300, "WindowWidth": -5, "VOILUTFunction": "LINEAR_EXACT"}, "WindowWidth"),
        ({"WindowCenter": 300, "WindowWidth": 9, "VOILUTFunction": "CUBIC"}, "VOILUTFunction"),
        ({"RescaleSlope": "1e999"}, "RescaleSlope"),
    ],
)
def test_an_invalid_window_is_an_error(tmp_path: Path, fields: dict[str, Any], field: str) -> None:
    with raises(f"a.dcm: {field}: invalid-value"):
        windowed(tmp_path, **fields)


def test_a_truncated_lookup_table_is_an_error(tmp_path: Path) -> None:
    short = table([1, 2, 3], 0, 8)
    short[0].LUTDescriptor = [256, 0, 8]
    with raises("a.dcm: VOILUTSequence: invalid-value"):
        windowed(tmp_path, VOILUTSequence=short)


def test_inverted_radiographs_are_windowed_before_inversion(tmp_path: Path) -> None:
    window = {"WindowCenter": 300, "WindowWidth": 101}
    levels = windowed(tmp_path, PhotometricInterpretation="MONOCHROME1", **window)
    np.testing.assert_array_equal(levels, 255 - windowed(tmp_path, **window))
