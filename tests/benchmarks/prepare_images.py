"""Time to convert radiographs to PNG on one core, by step, and whether memory stays constant.

    OMP_NUM_THREADS=1 python tests/benchmarks/prepare_images.py --conversions 300

The radiographs are two real ones of the package pydicom-data (RG1, 1955 x 1841 of 15 bits, and RG3, 1760 x 1760 of 10
bits), uncompressed, enlarged to the size of a common digital detector (3056 x 2544), and as JPEG 2000; `--radiographs
FOLDER` takes other DICOM files instead. Each is converted by this project and by a hand-written script: pydicom's
pixels, scipy's cubic spline, Pillow's PNG. Times are processor times of the median round, so other work on the machine
has little effect. The gray levels of the project's PNGs are compared with SimpleITK's B-splines.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pydicom
import SimpleITK
from PIL import Image

from maira.data.dicom.radiograph import Frame, to_levels, write_png
from maira.data.dicom.reader import dicom_to_png, example_radiograph, open_binary, read_dicom
from maira.data.dicom.resample import bspline_resize

SIZE = 518
DETECTOR = (3056, 2544)
STEPS = ("decode", "resize", "encode")


class Clock:
    """Processor seconds by step."""

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(STEPS, 0.0)

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        start = time.process_time()
        yield
        self.seconds[name] += time.process_time() - start


def convert_by_project(source: Path, target: Path, clock: Clock) -> None:
    with clock.step("decode"), open_binary(source) as content:
        frame = read_dicom(content, source)
    with clock.step("resize"):
        levels = to_levels(frame, SIZE, source)
    with clock.step("encode"):
        write_png(levels, target)


def convert_by_hand(source: Path, target: Path, clock: Clock) -> None:
    from scipy.ndimage import zoom

    with clock.step("decode"):
        radiograph = pydicom.dcmread(source)
        pixels = radiograph.pixel_array.astype(np.float64)
        if radiograph.PhotometricInterpretation == "MONOCHROME1":
            pixels = pixels.max() - pixels
    with clock.step("resize"):
        resized = zoom(pixels, SIZE / min(pixels.shape), order=3)
        low, high = resized.min(), resized.max()
        levels = np.rint((resized - low) / (high - low) * 255).astype(np.uint8)
    with clock.step("encode"):
        Image.fromarray(levels).save(target)


def simpleitk_levels(source: Path) -> np.ndarray:
    """Return the gray levels by SimpleITK's B-splines on one thread. Source: MAIRA-2, appendix B.4."""
    with open_binary(source) as content:
        frame: Frame = read_dicom(content, source)
    pixels = frame.pixels.astype(np.float64) * (-1 if frame.is_inverted else 1)
    height, width = pixels.shape
    unit = min(height, width) / SIZE
    size = max(SIZE, round(width / unit)), max(SIZE, round(height / unit))
    spacing = width / size[0], height / size[1]
    image = SimpleITK.GetImageFromArray(pixels)
    origin = [(distance - 1) / 2 for distance in spacing]
    resampled = SimpleITK.Resample(image, size, SimpleITK.Transform(), SimpleITK.sitkBSpline, origin, spacing)
    resized = SimpleITK.GetArrayFromImage(resampled)
    return np.rint((resized - resized.min()) * (255 / np.ptp(resized)))


def write_radiographs(folder: Path) -> dict[str, list[Path]]:
    """Write enlarged radiographs, and return all radiographs by encoding."""
    examples = example_radiograph().parent
    plain = [examples / "RG1_UNCR.dcm", examples / "RG3_UNCR.dcm"]
    enlarged = []
    for path in plain:
        radiograph = pydicom.dcmread(path)
        pixels = np.clip(np.rint(bspline_resize(radiograph.pixel_array, *DETECTOR)), 0, 2**radiograph.BitsStored - 1)
        radiograph.Rows, radiograph.Columns = DETECTOR
        radiograph.PixelData = pixels.astype(np.uint16).tobytes()
        enlarged.append(folder / path.name)
        radiograph.save_as(enlarged[-1])
    lossless = [examples / "RG1_J2KR.dcm", examples / "RG3_J2KR.dcm"]
    return {"uncompressed": plain, "uncompressed, 3056 x 2544": enlarged, "JPEG 2000 lossless": lossless}


def compare(radiographs: Sequence[Path], folder: Path, rounds: int) -> None:
    """Print the time of both methods, their ratio, and the differences from SimpleITK."""
    methods: dict[str, Callable[[Path, Path, Clock], None]] = {
        "project": convert_by_project,
        "by hand": convert_by_hand,
    }
    clocks_by_method = {method: [Clock() for _ in range(rounds)] for method in methods}
    for number in range(rounds):
        for radiograph in radiographs:
            for method, convert in methods.items():
                convert(radiograph, folder / f"{method}.png", clocks_by_method[method][number])
    total = {}
    for method, clocks in clocks_by_method.items():
        total[method] = statistics.median(sum(clock.seconds.values()) for clock in clocks) / len(radiographs)
        steps = {step: statistics.median(clock.seconds[step] for clock in clocks) / len(radiographs) for step in STEPS}
        details = ", ".join(f"{step} {1000 * seconds:.1f} ms" for step, seconds in steps.items())
        print(f"  {method}: {1 / total[method]:.1f} images per second on one core ({details})")
    print(f"  {total['by hand'] / total['project']:.2f} times as fast")
    for radiograph in radiographs:
        dicom_to_png(radiograph, folder / "radiograph.png", SIZE)
        with Image.open(folder / "radiograph.png") as image:
            difference = np.abs(np.asarray(image).astype(float) - simpleitk_levels(radiograph))
        print(
            f"  {radiograph.name}: {(difference > 0).sum()} of {difference.size} pixels differ from SimpleITK's, by "
            f"{difference.max():.0f}"
        )


def resident_memory() -> float:
    """Return the resident memory of this process in MiB."""
    import psutil

    return float(psutil.Process().memory_info().rss) / 2**20


def measure_memory(radiographs: Sequence[Path], folder: Path, conversions: int) -> None:
    sizes = []
    start = time.perf_counter()
    for number in range(conversions):
        dicom_to_png(radiographs[number % len(radiographs)], folder / "radiograph.png", SIZE)
        if (number + 1) % max(1, conversions // 6) == 0:
            sizes.append(f"{resident_memory():.0f}")
    elapsed = time.perf_counter() - start
    print(f"{conversions} conversions: {conversions / elapsed:.1f} images per second (wall-clock time)")
    print(f"memory during the conversions, MiB: {', '.join(sizes)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--radiographs", type=Path, help="folder of DICOM files instead of those of pydicom-data")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--conversions", type=int, default=300, help="conversions of the memory measurement")
    options = parser.parse_args()
    SimpleITK.ProcessObject.SetGlobalDefaultNumberOfThreads(1)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        groups = (
            {"radiographs": sorted(options.radiographs.rglob("*.dcm"))}
            if options.radiographs
            else write_radiographs(folder)
        )
        if not all(groups.values()):
            sys.exit(f"{options.radiographs}: no file whose name ends in .dcm")
        for group, radiographs in groups.items():
            print(f"{group}, {len(radiographs)} radiographs")
            compare(radiographs, folder, options.rounds)
        measure_memory(
            [radiograph for radiographs in groups.values() for radiograph in radiographs], folder, options.conversions
        )


if __name__ == "__main__":
    main()
