"""DICOM files as a user names them: files, folders, equal names."""

import os
import sys
from pathlib import Path

import numpy as np
import pytest
from dicom_files import write_dicom
from error_checks import raises

from maira.data.sources.dicom import find_radiographs


def _radiographs(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        write_dicom(folder / name, np.arange(64, dtype=np.uint16).reshape(8, 8))


def test_radiographs_are_detected_by_content(tmp_path: Path) -> None:
    _radiographs(tmp_path, "a/IM1", "b/radiograph.dcm", "DICOMDIR")
    (tmp_path / "README").write_text("no radiograph")
    (tmp_path / "broken.dcm").write_text("no radiograph")
    # A file that is also in a folder is read once.
    assert find_radiographs([tmp_path / "a/IM1", tmp_path]) == {
        "IM1": tmp_path / "a/IM1",
        "radiograph": tmp_path / "b/radiograph.dcm",
    }


def test_equal_names_are_distinguished_by_folder(tmp_path: Path) -> None:
    names = ["x/a/IM1.dcm", "x/b/IM1.dcm", "x/a-c/d.dcm", "x/a/c-d.dcm", "x/d.dcm"]
    _radiographs(tmp_path, *names)
    paths = find_radiographs([tmp_path / name for name in names])
    assert list(paths.values()) == [tmp_path / name for name in names]
    assert list(paths) == ["a-IM1", "b-IM1", "a-c-d", "c-d", "d"]


def test_a_folder_without_a_radiograph_is_refused(tmp_path: Path) -> None:
    with raises(f"{tmp_path.name}: empty-input"):
        find_radiographs([tmp_path])


@pytest.mark.skipif(sys.platform != "linux", reason="other systems refuse such names")
def test_a_name_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    path = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xe9.dcm"))
    _radiographs(tmp_path, "a.dcm")
    (tmp_path / "a.dcm").rename(path)
    with raises(f"{path.name}: file-unreadable"):
        find_radiographs([tmp_path])
