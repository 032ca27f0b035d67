"""The packages that the project asks for, beside those that are installed."""

from __future__ import annotations

import importlib
import platform
import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from radfact.doctor.report import Item

if TYPE_CHECKING:
    from packaging.requirements import Requirement

PROJECT = "maira-radfact"
BASIC = "basic"
_PYTHON = (3, 11)
_IMPORTED = ("numpy", "PIL.Image", "pydantic", "pycocotools.mask", "rich", "typer", "yaml")
"""Basic modules that are quick to import: a compiled part that does not fit shows only then."""
_HIDDEN = ("dev", "docs")
"""Extras for those who work on the project."""


def python_item() -> Sequence[Item]:
    """The interpreter."""
    text = f"{platform.python_version()} at {sys.executable}"
    is_enough = sys.version_info >= _PYTHON
    mend = None if is_enough else f"install Python {_PYTHON[0]}.{_PYTHON[1]} or later"
    return [Item("Python", "ok" if is_enough else "wrong", text, mend, is_basic=True)]


def package_items() -> Sequence[Item]:
    """The basic packages, and those of each extra: how many are there, which is not, which is outside its range."""
    from radfact.llm.langchain import PARTNERS

    try:
        wanted = requirements()
    except ModuleNotFoundError as error:
        said = f"the package {error.name} is not installed"
        return [Item(BASIC, "missing", said, install_line(BASIC), is_basic=True)]
    if not wanted:
        return [Item(PROJECT, "wrong", "is not installed as a package", "pip install .", is_basic=True)]
    items = {extra: _extra_item(extra, asked) for extra, asked in wanted.items() if extra not in _HIDDEN}
    # Nobody needs every provider of models; those that are not there are named among the judges.
    return [one for extra, one in items.items() if one.state != "missing" or extra.replace("-", "_") not in PARTNERS]


def import_items() -> Sequence[Item]:
    """The basic modules that cannot be imported though they are there; none where all can."""
    faults = []
    for module in _IMPORTED:
        try:
            importlib.import_module(module)
        except Exception as error:  # a broken build fails with whatever it likes
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            mend = f"pip install --force-reinstall {_distribution(module)}"
            faults.append(Item(module, "wrong", f"cannot be imported ({reason:.160})", mend, is_basic=True))
    return faults


def requirements() -> Mapping[str, Sequence[Requirement]]:
    """What the project asks for by extra, the basic ones under `basic`; nothing where it is not installed.

    Raises:
        ModuleNotFoundError: the package that reads requirements is not there.
    """
    from packaging.requirements import Requirement

    asked, extras = _declared()
    found: dict[str, list[Requirement]] = {BASIC: [], **{extra: [] for extra in extras}} if asked else {}
    for line in asked:
        requirement = Requirement(line)
        if requirement.name == PROJECT:
            continue
        marker = requirement.marker
        for extra, listed in found.items():
            named = "" if extra == BASIC else extra
            is_basic = marker is None or marker.evaluate({"extra": ""})
            if (is_basic and not named) or (marker is not None and not is_basic and marker.evaluate({"extra": named})):
                listed.append(requirement)
    return {extra: listed for extra, listed in found.items() if listed}


def lacking(extras: Iterable[str]) -> Iterator[tuple[str, str]]:
    """What stands in the way of these extras: what is not there or does not fit, and the line that mends it."""
    wanted = requirements()
    for extra in extras:
        for state, fault in _faults(wanted.get(extra, ())):
            yield f"{fault}{' is not installed' if state == 'missing' else ''}", install_line(extra)


def install_line(extra: str) -> str:
    """The command that installs or updates what an extra asks for."""
    return f"pip install --upgrade {PROJECT}" if extra == BASIC else f'pip install "{PROJECT}[{extra}]"'


def installed(name: str) -> str | None:
    """The version of a distribution; None where there is none, or none that says its version."""
    try:
        # A folder that a failed installation has left behind has no version.
        return metadata.version(name) or None
    except (metadata.PackageNotFoundError, KeyError):
        return None


def project_version() -> str:
    """The version of this project."""
    return installed(PROJECT) or "(not installed)"


def _declared() -> tuple[Sequence[str], Sequence[str]]:
    """Requirements and names of extras: of pyproject.toml beside the package, or else of the installed package."""
    source = Path(__file__).resolve().parents[2] / "pyproject.toml"
    if source.is_file():
        project = tomllib.loads(source.read_text("utf-8"))["project"]
        extras = project["optional-dependencies"]
        lines = [f'{line} ; extra == "{extra}"' for extra, asked in extras.items() for line in asked]
        return [*project["dependencies"], *lines], list(extras)
    try:
        about = metadata.metadata(PROJECT)
        return metadata.requires(PROJECT) or (), about.get_all("Provides-Extra") or ()
    except metadata.PackageNotFoundError:
        return (), ()


def _extra_item(extra: str, asked: Sequence[Requirement]) -> Item:
    faults = list(_faults(asked))
    is_basic = extra == BASIC
    name = BASIC if is_basic else f"[{extra}]"
    details = {"packages": {one.name: {"wanted": str(one.specifier), "found": installed(one.name)} for one in asked}}
    if not faults:
        versions = ", ".join(f"{one.name} {installed(one.name)}" for one in asked)
        return Item(name, "ok", versions, is_basic=is_basic, details=details)
    wrong = [fault for state, fault in faults if state == "wrong"]
    missing = [fault for state, fault in faults if state == "missing"]
    text = "; ".join([*wrong, *([f"not installed: {', '.join(missing)}"] if missing else [])])
    return Item(name, "wrong" if wrong else "missing", text, install_line(extra), is_basic, details)


def _faults(asked: Iterable[Requirement]) -> Iterator[tuple[str, str]]:
    """Requirements that are not met: `missing` with the name, or `wrong` with what is there instead."""
    for one in asked:
        version = installed(one.name)
        if version is None:
            yield "missing", one.name
        elif not one.specifier.contains(version, prereleases=True):
            yield "wrong", f"{one.name} {version} is outside {one.specifier}"


def _distribution(module: str) -> str:
    names = {"PIL": "pillow", "yaml": "pyyaml"}
    top = module.partition(".")[0]
    return names.get(top, top)
