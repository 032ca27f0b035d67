"""DICOM files for tests: written on the spot, or those that pydicom and pydicom-data bring along."""

import warnings
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from maira.data.dicom.reader import dicom_to_png
from maira.data.sources.dicom import example_radiograph
from radfact.errors import InputError

RAMP = np.add.outer(np.arange(24), 2 * np.arange(32))  # brighter to the right and down

# Implicit and explicit little endian, deflated, big endian.
_NATIVE = ("1.2.840.10008.1.2", "1.2.840.10008.1.2.1", "1.2.840.10008.1.2.1.99", "1.2.840.10008.1.2.2")


def write_dicom(path: Path, pixels: np.ndarray | None, *, stored: int | None = None, **fields: Any) -> Path:
    """A digital radiograph of these stored values; fields name elements of the data set, and `TransferSyntaxUID`."""
    import pydicom
    from pydicom.dataset import FileDataset, FileMetaDataset
    from pydicom.uid import (
        UID,
        DigitalXRayImageStorageForPresentation,
        ExplicitVRBigEndian,
        ExplicitVRLittleEndian,
        ImplicitVRLittleEndian,
        generate_uid,
    )

    meta = FileMetaDataset()
    meta.TransferSyntaxUID = UID(fields.pop("TransferSyntaxUID", ExplicitVRLittleEndian))
    meta.MediaStorageSOPClassUID = DigitalXRayImageStorageForPresentation
    meta.MediaStorageSOPInstanceUID = generate_uid()
    dataset = FileDataset(str(path), {}, file_meta=meta, preamble=b"\0" * 128)
    dataset.SOPClassUID, dataset.SOPInstanceUID = meta.MediaStorageSOPClassUID, meta.MediaStorageSOPInstanceUID
    dataset.Modality, dataset.PatientName = "DX", "Doe^Jane"
    if pixels is not None:
        dataset.SamplesPerPixel, dataset.PhotometricInterpretation = 1, "MONOCHROME2"
        dataset.Rows, dataset.Columns = pixels.shape[:2]
        dataset.BitsAllocated = 8 * pixels.itemsize
        dataset.BitsStored = stored or dataset.BitsAllocated
        dataset.HighBit = dataset.BitsStored - 1
        dataset.PixelRepresentation = int(pixels.dtype.kind == "i")
        order = ">" if meta.TransferSyntaxUID == ExplicitVRBigEndian else "<"
        dataset.PixelData = pixels.astype(pixels.dtype.newbyteorder(order)).tobytes()
        dataset["PixelData"].VR = "OW" if meta.TransferSyntaxUID in _NATIVE and pixels.itemsize > 1 else "OB"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some of these files are wrong on purpose
        for name, value in fields.items():
            setattr(dataset, name, value)
        pydicom.dcmwrite(
            path,
            dataset,
            little_endian=meta.TransferSyntaxUID != ExplicitVRBigEndian,
            implicit_vr=meta.TransferSyntaxUID == ImplicitVRLittleEndian,
        )
    return path


def write_deflated_bomb(path: Path) -> Path:
    """Write a file of 1 MB that inflates to 1 GB."""
    import pydicom

    write_dicom(path, RAMP.astype(np.uint16), TransferSyntaxUID="1.2.840.10008.1.2.1.99")
    with path.open("rb") as file:
        pydicom.filereader.read_preamble(file, force=False)
        pydicom.filereader.read_dataset(file, False, True, stop_when=lambda tag, _vr, _length: tag.group != 2)
        begin = file.tell()
    packer = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    block = b"".join((packer.compress(bytes(1 << 20)), packer.flush(zlib.Z_FULL_FLUSH)))
    path.write_bytes(path.read_bytes()[:begin] + 1000 * block)
    return path


def convert(source: Path, size: int = 48, *, apply_windows: bool = False) -> np.ndarray:
    """Convert a DICOM file to a PNG file next to it and return the gray levels of the PNG."""
    target = source.with_suffix(".png")
    dicom_to_png(source, target, size, apply_windows=apply_windows)
    with Image.open(target) as image:
        assert image.mode == "L"
        return np.asarray(image).astype(int)


def real_radiograph(name: str) -> Path:
    """A file of pydicom-data."""
    try:
        return example_radiograph().with_name(name)
    except InputError as error:
        pytest.skip(str(error))


def small_file(name: str) -> Path:
    """A file of pydicom's own tests, which are installed with it."""
    import pydicom

    path = Path(pydicom.__file__).parent / "data" / "test_files" / name
    if not path.is_file():
        pytest.skip(f"this pydicom comes without {name}")
    return path
