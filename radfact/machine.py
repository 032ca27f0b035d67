"""Facts about this machine: usable cores, installed versions, and unmet requirements of the extras of this project."""

from __future__ import annotations

import os
from collections.abc import Iterable
from importlib import metadata
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from packaging.requirements import Requirement

PROJECT = "maira-radfact"


def usable_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def project_version() -> str:
    return installed_version(PROJECT) or "(not installed)"


def installed_version(distribution: str) -> str | None:
    """Return the version of a distribution; None if it is not installed or has no version."""
    try:
        return metadata.version(distribution) or None
    # A failed installation leaves a folder without a version, for which importlib_metadata raises another error.
    except (metadata.PackageNotFoundError, KeyError, FileNotFoundError):
        return None


def requirements() -> dict[str, list[Requirement]]:
    """Return the packages that this project requires by extra, those of every command under ""."""
    from packaging.requirements import Requirement

    extras = metadata.metadata(PROJECT).get_all("Provides-Extra") or []
    by_extra: dict[str, list[Requirement]] = {"": [], **{name: [] for name in extras if name not in ("dev", "docs")}}
    for requirement in map(Requirement, metadata.requires(PROJECT) or ()):
        marker = requirement.marker
        extra = next((name for name in by_extra if marker is None or marker.evaluate({"extra": name})), None)
        if extra is not None:
            by_extra[extra].append(requirement)
    return by_extra


def unmet(required: Iterable[Requirement]) -> list[str]:
    """Return what is missing or outside the supported versions."""
    problems = []
    for requirement in required:
        version = installed_version(requirement.name)
        if version is None:
            problems.append(f"{requirement.name} is not installed")
        elif not requirement.specifier.contains(version, prereleases=True):
            problems.append(f"{requirement.name} {version} is outside {requirement.specifier}")
    return problems


def install_line(extra: str) -> str:
    return f'pip install "{PROJECT}[{extra}]"' if extra else f"pip install --upgrade {PROJECT}"
