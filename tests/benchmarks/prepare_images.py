"""Time to convert radiographs to PNG on one core, compared with a script by hand, and whether memory stays constant.

    OMP_NUM_THREADS=1 python tests/benchmarks/prepare_images.py --conversions 300

The radiographs are two real ones of the package pydicom-data (RG1, 1955 x 1841 of 15 bits, and RG3, 1760 x 1760 of 10
bits), uncompressed, enlarged to the size of a common digital detector (3056 x 2544), and as JPEG 2000; `--radiographs
FOLDER` takes other DICOM files instead. The script uses pydicom's pixels, scipy's cubic spline and Pillow's PNG. Times
are processor times of the median round, so other work on the machine has little effect.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import psutil
import pydicom
from PIL import Image
from scipy.ndimage import zoom

from maira.data.dicom.reader import dicom_to_png, example_radiograph
from maira.data.dicom.resample import bspline_resize

DETECTOR = (3056, 2544)


def convert_by_hand(source: Path, target: Path, size: int = 518) -> None:
    radiograph = pydicom.dcmread(source)
    pixels = radiograph.pixel_array.astype(np.float64)
    if radiograph.PhotometricInterpretation == "MONOCHROME1":
        pixels = pixels.max() - pixels
    resized = zoom(pixels, size / min(pixels.shape), order=3)
    levels = np.rint((resized - resized.min()) / np.ptp(resized) * 255).astype(np.uint8)
    Image.fromarray(levels).save(target)


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


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--radiographs", type=Path, help="folder of DICOM files instead of those of pydicom-data")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--conversions", type=int, default=300, help="conversions of the memory measurement")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder, target = Path(name), Path(name) / "radiograph.png"
        given = options.radiographs
        groups = {"radiographs": sorted(given.rglob("*.dcm"))} if given else write_radiographs(folder)
        if not all(groups.values()):
            sys.exit(f"{given}: no file whose name ends in .dcm")
        for group, radiographs in groups.items():
            seconds = {}
            for method, convert in {"project": dicom_to_png, "by hand": convert_by_hand}.items():
                rounds = []
                for _ in range(options.rounds):
                    start = time.process_time()
                    for radiograph in radiographs:
                        convert(radiograph, target)
                    rounds.append((time.process_time() - start) / len(radiographs))
                seconds[method] = statistics.median(rounds)
                print(f"{group}, {method}: {1 / seconds[method]:.1f} images per second on one core")
            print(f"{group}: {seconds['by hand'] / seconds['project']:.2f} times as fast")
        every = [radiograph for radiographs in groups.values() for radiograph in radiographs]
        for number in range(options.conversions):
            dicom_to_png(every[number % len(every)], target)
            if (number + 1) % max(1, options.conversions // 6) == 0:
                print(f"{number + 1} conversions: {psutil.Process().memory_info().rss / 2**20:.0f} MiB")


if __name__ == "__main__":
    main()
