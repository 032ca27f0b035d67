"""The examinations that the commands print."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from pathlib import Path

from radfact.doctor.accelerators import accelerator_items
from radfact.doctor.evaluation import NEEDS, command_items, embedding_items, judge_items, metric_items
from radfact.doctor.machine import cache_items, machine_items
from radfact.doctor.packages import import_items, package_items, project_version, python_item
from radfact.doctor.report import Examination, Item, Section, looked_at


def examine(commands: Sequence[str] = (), weights: Mapping[str, Path] | Sequence[Path] = ()) -> Examination:
    """Look at what the evaluation of reports needs.

    Args:
        commands: words of each command, such as "meta agreement".
        weights: of metrics, as `radfact metrics --weights` takes them.
    """
    states = looked_at("Commands", lambda: command_items("radfact", commands, NEEDS)).items
    return Examination(program_line(), (*base_sections(), *evaluation_sections(weights)), states)


def program_line() -> str:
    """What is examined, and where."""
    return f"maira-radfact {project_version()} on {platform.system()} {platform.machine()}"


def base_sections() -> tuple[Section, ...]:
    """What every command stands on: packages, cores, memory, disk, accelerators."""
    return (
        looked_at("Packages", python_item, package_items, import_items),
        looked_at("Machine", machine_items, cache_items, accelerator_items),
    )


def evaluation_sections(weights: Mapping[str, Path] | Sequence[Path] = ()) -> tuple[Section, ...]:
    """Judges and metrics."""

    def metrics() -> Sequence[Item]:
        return metric_items(weights)

    return looked_at("Judges", judge_items), looked_at("Metrics", metrics, embedding_items)
