"""Effects of `import maira`."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

import maira
from maira.runtime.startup import silence_libraries

ROOT = Path(__file__).parents[2]


def run(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Python in a folder, with this project on the import path behind the folder."""
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    }
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, check=False, cwd=folder, env=environment
    )


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


@pytest.mark.slow
@pytest.mark.parametrize("script", ["train.py", "maira.py", "-c"])
def test_auto_classes_know_the_model_for_any_script_name(script: str, tmp_path: Path) -> None:
    code = (
        f"import sys; sys.argv[0] = {script!r}\n"
        "import maira; assert not {'torch', 'transformers'} & sys.modules.keys()\n"
        "maira.register()\n"
        "from transformers import AutoConfig; print(type(AutoConfig.for_model('maira2')).__name__)\n"
    )
    process = run("-c", code, folder=tmp_path)
    assert process.stdout.split() == ["MairaConfig"], process.stderr


def test_public_names_exist_and_unknown_names_do_not() -> None:
    assert all(getattr(maira, name) is not None for name in maira.__all__)
    with pytest.raises(AttributeError, match="'Maira'"):
        _ = maira.Maira


def test_the_command_runs_in_a_folder_with_a_data_package(folder: Path) -> None:
    (folder / "radiographs").mkdir()
    process = run("-m", "maira", "prepare", "phantom", "--count", "2", "--size", "64", "--out", "set", folder=folder)
    assert process.returncode == 0, process.stderr
    assert (folder / "set/manifest.jsonl").is_file()


SPAWNED = """
import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from maira import MairaConfig
from maira.data.images import CropMap

if __name__ == "__main__":
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        print(pool.submit(CropMap, 40, 32).result(), MairaConfig.__module__)
"""


@pytest.mark.slow
def test_a_script_and_its_spawned_processes_find_the_packages(folder: Path) -> None:
    (folder / "script.py").write_text(SPAWNED)
    process = run("script.py", folder=folder)
    assert (process.returncode, "maira.model.config" in process.stdout) == (0, True), process.stderr


@pytest.mark.slow
def test_torchrun_finds_the_packages(folder: Path) -> None:
    options = ("-m", "torch.distributed.run", "--nproc-per-node", "1", "-m")
    command = ("prepare", "phantom", "--count", "1", "--size", "64", "--out", "set")
    process = run(*options, "maira", *command, folder=folder)
    assert (process.returncode, (folder / "set/manifest.jsonl").is_file()) == (0, True), process.stderr
