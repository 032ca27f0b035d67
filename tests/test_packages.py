"""The wheel and the source distribution: complete, and enough to score two lists of strings in an empty environment."""

import os
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest
import yaml
from long_values import DATA

ROOT = Path(__file__).parents[1]
PACKAGES = ("radfact", "maira")
SOURCES = ("LICENSE", "MANIFEST.in", "README.md", "pyproject.toml")
pytestmark = pytest.mark.slow


def _run(command: Sequence[str | Path], folder: Path, **variables: str) -> str:
    # Neither the folder of the tests nor PYTHONPATH may lend a module to the installed package.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | variables
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def _version() -> str:
    return str(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"])


@pytest.fixture(scope="module")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The wheel, built from the source distribution, and the source distribution."""
    folder = tmp_path_factory.mktemp("distributions")
    # A copy: building writes into the source, which other tests read at the same time.
    for name in _run(["git", "ls-files", *PACKAGES, "data", "encoders", *SOURCES, "tests"], ROOT).split():
        target = folder / "source" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, target, follow_symlinks=False)
    _run([sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, folder / "source"], folder)
    (wheel,), (source,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    return wheel, source


def test_the_wheel_has_all_files_of_the_packages(distributions: tuple[Path, Path]) -> None:
    wheel, source = distributions
    name = f"maira_radfact-{_version()}"
    tracked = {name for name in _run(["git", "ls-files", *PACKAGES], ROOT).split() if not (ROOT / name).is_symlink()}
    tracked |= {f"maira/{name}" for name in _run(["git", "ls-files", "data", "encoders"], ROOT).split()}
    with zipfile.ZipFile(wheel) as archive:
        files = {name for name in archive.namelist() if ".dist-info/" not in name}
        # Its links are tested to be absolute.
        assert archive.read(f"{name}.dist-info/METADATA").endswith((ROOT / "README.md").read_bytes())
    assert files == tracked
    with tarfile.open(source) as archive:
        names = {member.name.partition("/")[2] for member in archive.getmembers() if member.isfile()}
    made = {name for name in names if name.startswith("maira_radfact.egg-info/")} | {"PKG-INFO", "setup.cfg"}
    assert names - made == {*tracked, *SOURCES}
    assert wheel.name == f"{name}-py3-none-any.whl"


def test_the_wheel_drafts_with_the_files_of_the_release(distributions: tuple[Path, Path], tmp_path: Path) -> None:
    """The release has what the wheel lacks: the small checkpoint, run configs and launch files."""
    steps = yaml.safe_load((ROOT / ".github/workflows/release.yml").read_text())["jobs"]["wheel"]["steps"]
    (pack,) = (step["run"] for step in steps if "git archive" in step.get("run", ""))
    archive = tmp_path / "examples.tar.gz"
    _run(shlex.split(pack.replace("dist/examples.tar.gz", str(archive))), ROOT)
    user, packages = tmp_path / "user", tmp_path / "wheel"
    shutil.unpack_archive(archive, user, filter="data")
    shutil.unpack_archive(distributions[0], packages, "zip")
    # The other packages are those of this environment.
    python = [sys.executable, "-c", "import maira; print(maira.__file__)"]
    assert _run(python, user, PYTHONPATH=str(packages)).startswith(str(packages))
    for arguments in (
        "prepare phantom --count 1 --out phantoms",
        "generate --checkpoint checkpoints/phantom --manifest phantoms/manifest.jsonl --out drafts.jsonl",
    ):
        _run([sys.executable, "-m", "maira", *arguments.split()], user, PYTHONPATH=str(packages))
    assert len((user / "drafts.jsonl").read_text().splitlines()) == 1
    assert (user / "configs/phantom.yaml").is_file()


def test_the_version_has_one_source() -> None:
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"] == _version()
    assert f"\n## {_version()}" in (ROOT / "CHANGELOG.md").read_text()


def test_the_readme_and_the_citation_file_cite_the_same_papers() -> None:
    cited = {
        identifier["value"]
        for reference in yaml.safe_load((ROOT / "CITATION.cff").read_text())["references"]
        for identifier in reference["identifiers"]
    }
    assert cited == set(re.findall(r"arXiv:[\d.]+", (ROOT / "README.md").read_text()))


def test_an_empty_environment_scores_two_lists_of_strings(distributions: tuple[Path, Path], tmp_path: Path) -> None:
    environment = tmp_path / "environment"
    commands = environment / "bin"
    # Several times faster than pip, whose folder of wheels it does not read by itself.
    uv = Path(sys.executable).with_name("uv")
    config = [sys.executable, "-m", "pip", "config", "get", "global.find-links"]
    wheels = subprocess.run(config, capture_output=True, text=True, check=False).stdout.split()
    links = [part for folder in wheels for part in ("--find-links", folder)]
    _run([uv, "venv", "--quiet", "--python", sys.executable, environment], tmp_path)
    _run([uv, "pip", "install", "--quiet", "--python", commands / "python", *links, distributions[0]], tmp_path)
    assert _run([commands / "python", "-c", DATA["score of the wheel"]], tmp_path).split() == [_version(), "0.5", "0.5"]
    assert "score" in _run([commands / "radfact", "--help"], tmp_path)
    # Without the extra, maira names what each command lacks.
    assert 'pip install "maira-radfact[model]"' in _run([commands / "maira", "doctor"], tmp_path)
