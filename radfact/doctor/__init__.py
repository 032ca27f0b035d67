"""Checks of the installation: what is installed on this machine, and which commands can run.

Importing this package requires nothing but Python's standard library, so that `python -m radfact.doctor` works even if
the installation is broken. No check raises.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from pathlib import Path

from radfact.doctor.evaluation import (
    COMMAND_REQUIREMENTS,
    check_commands,
    check_embeddings,
    check_judges,
    check_metrics,
)
from radfact.doctor.machine import check_accelerators, check_caches, check_machine
from radfact.doctor.packages import check_imports, check_packages, check_python, project_version
from radfact.doctor.results import CheckResult, DoctorReport, Section, run_checks

__all__ = ["CheckResult", "DoctorReport", "Section", "check_base", "check_evaluation", "diagnose", "run_checks"]


def diagnose(commands: Sequence[str] = (), weights: Mapping[str, Path] | Sequence[Path] = ()) -> DoctorReport:
    """Check what the evaluation of reports requires.

    Args:
        commands: words of each command, such as "meta agreement".
        weights: weights of metrics, as in `radfact metrics --weights`.
    """
    command_section = run_checks("Commands", lambda: check_commands("radfact", commands, COMMAND_REQUIREMENTS))
    return DoctorReport(program_line(), (*check_base(), *check_evaluation(weights)), command_section.results)


def program_line() -> str:
    """Return name and version of the program, and the platform."""
    return f"maira-radfact {project_version()} on {platform.system()} {platform.machine()}"


def check_base() -> tuple[Section, ...]:
    """Check what every command requires: packages, cores, memory, disk, accelerators."""
    return (
        run_checks("Packages", check_python, check_packages, check_imports),
        run_checks("Machine", check_machine, check_caches, check_accelerators),
    )


def check_evaluation(weights: Mapping[str, Path] | Sequence[Path] = ()) -> tuple[Section, ...]:
    """Check judges and metrics; for the argument see `diagnose`."""
    return (
        run_checks("Judges", check_judges),
        run_checks("Metrics", lambda: check_metrics(weights), check_embeddings),
    )
