"""Checks of the packages that the project requires."""

from __future__ import annotations

import importlib
import platform
import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from radfact.doctor.results import CheckResult

if TYPE_CHECKING:
    from packaging.requirements import Requirement

PROJECT = "maira-radfact"
BASIC = "basic"
_MIN_PYTHON = (3, 11)
_IMPORTED_MODULES = ("numpy", "PIL.Image", "pydantic", "pycocotools.mask", "rich", "typer", "yaml")
"""Required modules that are quick to import; only an import shows that a compiled part is broken."""
_DISTRIBUTIONS = {"PIL": "pillow", "yaml": "pyyaml"}
"""Distributions by module, where the names differ."""
_DEVELOPER_EXTRAS = ("dev", "docs")


def check_python() -> Sequence[CheckResult]:
    """Check the Python version."""
    message = f"{platform.python_version()} at {sys.executable}"
    is_supported = sys.version_info >= _MIN_PYTHON
    fix = None if is_supported else f"install Python {_MIN_PYTHON[0]}.{_MIN_PYTHON[1]} or later"
    return [CheckResult("Python", "ok" if is_supported else "wrong", message, fix, required=True)]


def check_packages() -> Sequence[CheckResult]:
    """Check that the packages of each extra are installed in a supported version."""
    from radfact.llm.langchain import PARTNERS

    try:
        by_extra = requirements()
    except ModuleNotFoundError as error:
        message = f"the package {error.name} is not installed"
        return [CheckResult(BASIC, "missing", message, install_line(BASIC), required=True)]
    if not by_extra:
        return [CheckResult(PROJECT, "wrong", "is not installed as a package", "pip install .", required=True)]
    results = [_check_extra(extra, by_extra[extra]) for extra in by_extra if extra not in _DEVELOPER_EXTRAS]
    # Few users need every provider of models; `check_judges` lists the missing ones.
    providers = {f"[{provider.replace('_', '-')}]" for provider in PARTNERS}
    return [result for result in results if result.status != "missing" or result.name not in providers]


def check_imports() -> Sequence[CheckResult]:
    """Check that the required modules can be imported; return the failures."""
    failures = []
    for module in _IMPORTED_MODULES:
        try:
            importlib.import_module(module)
        except Exception as error:  # a broken build may raise anything
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            top_level = module.partition(".")[0]
            fix = f"pip install --force-reinstall {_DISTRIBUTIONS.get(top_level, top_level)}"
            failures.append(CheckResult(module, "wrong", f"cannot be imported ({reason:.160})", fix, required=True))
    return failures


def requirements() -> Mapping[str, Sequence[Requirement]]:
    """Return the requirements by extra, the required ones as `basic`; empty if the project is not installed.

    Raises:
        ModuleNotFoundError: the package packaging is not installed.
    """
    from packaging.requirements import Requirement

    lines, extras = _declared_requirements()
    by_extra: dict[str, list[Requirement]] = {BASIC: [], **{extra: [] for extra in extras}} if lines else {}
    for line in lines:
        requirement = Requirement(line)
        if requirement.name == PROJECT:
            continue
        marker = requirement.marker
        if marker is None or marker.evaluate({"extra": ""}):
            by_extra[BASIC].append(requirement)
            continue
        for extra in extras:
            if marker.evaluate({"extra": extra}):
                by_extra[extra].append(requirement)
    return {extra: listed for extra, listed in by_extra.items() if listed}


def unmet_requirements(extras: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield what is missing or unsupported for some extras, and the command that installs it."""
    by_extra = requirements()
    for extra in extras:
        for status, problem in _problems(by_extra.get(extra, ())):
            yield f"{problem}{' is not installed' if status == 'missing' else ''}", install_line(extra)


def install_line(extra: str) -> str:
    """Return the command that installs or updates the packages of an extra."""
    return f"pip install --upgrade {PROJECT}" if extra == BASIC else f'pip install "{PROJECT}[{extra}]"'


def installed(name: str) -> str | None:
    """Return the version of a distribution; None if it is not installed or has no version."""
    try:
        # A failed installation leaves a folder without a version. The package importlib_metadata, once imported, reads
        # the metadata also for importlib.metadata, and raises FileNotFoundError for such a folder.
        return metadata.version(name) or None
    except (metadata.PackageNotFoundError, KeyError, FileNotFoundError):
        return None


def project_version() -> str:
    """Return the version of this project."""
    return installed(PROJECT) or "(not installed)"


def _declared_requirements() -> tuple[Sequence[str], Sequence[str]]:
    """Return requirements and names of extras, from pyproject.toml in a checkout, else from the installed package."""
    source = Path(__file__).resolve().parents[2] / "pyproject.toml"
    if source.is_file():
        project = tomllib.loads(source.read_text("utf-8"))["project"]
        extras = project["optional-dependencies"]
        lines = [f'{line} ; extra == "{extra}"' for extra, listed in extras.items() for line in listed]
        return [*project["dependencies"], *lines], list(extras)
    try:
        extras = metadata.metadata(PROJECT).get_all("Provides-Extra")
        return metadata.requires(PROJECT) or (), extras or ()
    except metadata.PackageNotFoundError:
        return (), ()


def _check_extra(extra: str, required: Sequence[Requirement]) -> CheckResult:
    versions = {requirement.name: installed(requirement.name) for requirement in required}
    packages = {
        requirement.name: {"required": str(requirement.specifier), "installed": versions[requirement.name]}
        for requirement in required
    }
    problems = list(_problems(required))
    wrong = [problem for status, problem in problems if status == "wrong"]
    missing = [problem for status, problem in problems if status == "missing"]
    messages = [*wrong, *([f"not installed: {', '.join(missing)}"] if missing else [])]
    return CheckResult(
        BASIC if extra == BASIC else f"[{extra}]",
        "wrong" if wrong else "missing" if missing else "ok",
        "; ".join(messages) or ", ".join(f"{name} {version}" for name, version in versions.items()),
        install_line(extra) if problems else None,
        required=extra == BASIC,
        details={"packages": packages},
    )


def _problems(required: Iterable[Requirement]) -> Iterator[tuple[Literal["missing", "wrong"], str]]:
    """Yield unmet requirements: `missing` with the name, or `wrong` with the installed version."""
    for requirement in required:
        version = installed(requirement.name)
        if version is None:
            yield "missing", requirement.name
        elif not requirement.specifier.contains(version, prereleases=True):
            yield "wrong", f"{requirement.name} {version} is outside {requirement.specifier}"
