import numpy as np
import pytest
from dicom_files import real_radiograph
from hypothesis import given, settings
from hypothesis import strategies as st

from maira.data.dicom.resample import bspline_resize


def by_simpleitk(pixels: np.ndarray, height: int, width: int) -> np.ndarray:
    """The same by SimpleITK's own B-splines, edges in place."""
    sitk = pytest.importorskip("SimpleITK")
    image = sitk.GetImageFromArray(pixels.astype(np.float64))
    spacing = pixels.shape[1] / width, pixels.shape[0] / height
    origin = tuple((value - 1) / 2 for value in spacing)
    identity = sitk.Transform()
    resized = sitk.Resample(image, (width, height), identity, sitk.sitkBSpline, origin, spacing, image.GetDirection())
    return np.asarray(sitk.GetArrayFromImage(resized))


sides = st.integers(4, 90)


@settings(max_examples=60, deadline=None)
@given(source=st.tuples(sides, sides), target=st.tuples(st.integers(1, 150), st.integers(1, 150)), seed=st.integers(0))
def test_resampling_matches_simpleitk(source: tuple[int, int], target: tuple[int, int], seed: int) -> None:
    pixels = np.random.default_rng(seed).integers(0, 65536, source)
    resized = bspline_resize(pixels, *target)
    np.testing.assert_allclose(resized, by_simpleitk(pixels, *target), atol=65536 * 2e-8)


@pytest.mark.parametrize("name", ["RG1_UNCR.dcm", "RG3_UNCR.dcm"])
def test_resampling_a_real_radiograph_matches_simpleitk(name: str) -> None:
    pydicom = pytest.importorskip("pydicom")
    pixels = pydicom.dcmread(real_radiograph(name)).pixel_array
    expected = by_simpleitk(pixels, 518, 500)
    np.testing.assert_allclose(bspline_resize(pixels, 518, 500), expected, atol=1e-7 * float(pixels.max()))


@given(shape=st.tuples(sides, sides), seed=st.integers(0))
def test_an_image_of_the_target_size_is_unchanged(shape: tuple[int, int], seed: int) -> None:
    pixels = np.random.default_rng(seed).normal(size=shape)
    np.testing.assert_allclose(bspline_resize(pixels, *shape), pixels, atol=1e-6)


@pytest.mark.parametrize("kind", ["u1", "i2", "u2", "u4", "f4"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_type_and_layout_do_not_matter(kind: str, order: str) -> None:
    values = np.random.default_rng(0).integers(0, 100, (40, 30))
    pixels = np.asarray(values.astype(kind), order=order)  # type: ignore[call-overload]
    np.testing.assert_array_equal(bspline_resize(pixels, 20, 25), bspline_resize(values.astype(float), 20, 25))
