"""Effects of `import maira`."""

import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest
from long_values import DATA

import maira
from maira.data.images import CropMap
from maira.runtime.startup import silence_libraries

ROOT = Path(__file__).parents[2]


def run(folder: Path, command: str) -> str:
    """Run Python in a folder, with this project on the import path behind the folder; return its output."""
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
    words = [sys.executable, *command.split()]
    process = subprocess.run(words, capture_output=True, text=True, check=False, cwd=folder, env=environment)
    assert process.returncode == 0, process.stderr
    return process.stdout


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A user's folder with packages that have the names of this project's packages."""
    for name in ("data", "encoders"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(f"OWNER = 'user: {name}'\n")
    return tmp_path


def test_library_developer_messages_are_silenced(caplog: pytest.LogCaptureFixture) -> None:
    silence_libraries()
    logger = logging.getLogger("torch.utils.cpp_extension")
    logger.warning("No CUDA runtime is found, using X")
    logger.warning("something else")
    assert caplog.messages == ["something else"]


def test_public_names_exist_and_unknown_names_do_not() -> None:
    assert all(getattr(maira, name) is not None for name in maira.__all__)
    with pytest.raises(AttributeError, match="'Maira'"):
        _ = maira.Maira


def test_a_script_and_its_spawned_processes_find_the_packages(folder: Path) -> None:
    (folder / "script.py").write_text(DATA["spawned"])
    crop, encoders = run(folder, "script.py").splitlines()
    assert crop == str(CropMap(40, 32))
    assert Path(encoders).resolve() == ROOT / "encoders" / "__init__.py"


@pytest.mark.parametrize(
    "launcher", ["-m", pytest.param("-m torch.distributed.run --nproc-per-node 1 -m", marks=pytest.mark.slow)]
)
def test_the_command_runs_in_a_folder_with_a_data_package(folder: Path, launcher: str) -> None:
    (folder / "radiographs").mkdir()
    run(folder, f"{launcher} maira prepare phantom --count 1 --size 64 --out set")
    assert (folder / "set/manifest.jsonl").is_file()
