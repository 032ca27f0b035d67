"""`radfact metrics`: all metrics, what they need and what they cost."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from radfact.cli import options as shared
from radfact.cli.options import FIGURES, INPUT, JudgeOptions, key_values
from radfact.cli.tables import MARKS, new_console, say, say_line
from radfact.errors import InputError

if TYPE_CHECKING:
    from rich.console import Console

    from radfact.metrics.registry import MetricEntry

MAX_SCORES = 8
"""Scores of a metric that are listed."""

WeightsOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="[NAME=]FOLDER",
        help="Weights of metrics: a folder with folders named wordnet, bertscore, chexbert and radgraph, or "
        "NAME=FOLDER for one of them; may be repeated.",
        rich_help_panel=INPUT,
    ),
]


MetricArgs = Annotated[
    list[str] | None,
    typer.Option(
        metavar="METRIC.KEY=VALUE",
        help="One more argument of a metric, as 'radfact metrics' lists them: fineradscore.zero_shot=true; may be "
        "repeated.",
        rich_help_panel=FIGURES,
    ),
]


def read_metric_args(given: list[str] | None) -> dict[str, dict[str, Any]]:
    """`--metric-arg` by metric and key; values as YAML reads them.

    Raises:
        InputError: one is not METRIC.KEY=VALUE.
    """
    from radfact.llm import parse_model_args

    found: dict[str, dict[str, Any]] = {}
    for name, value in key_values(given, "--metric-arg").items():
        metric, dot, key = name.rpartition(".")
        if not (dot and metric and key):
            raise InputError(f"--metric-arg: expected METRIC.KEY=VALUE, found '{name}={value}'")
        found.setdefault(metric, {}).update(parse_model_args({key: value}, field="metric_args"))
    return found


def read_weights(given: list[str] | None) -> dict[str, Path] | list[Path]:
    """`--weights`: named folders, or roots of such.

    Raises:
        InputError: a folder is not there, or both kinds are given.
    """

    named, roots = {}, []
    for one in given or ():
        name, equals, folder = one.partition("=")
        path = Path(folder if equals else one)
        if not path.is_dir():
            raise InputError("--weights: no such folder", file=path)
        if equals:
            named[name] = path
        else:
            roots.append(path)
    if named and roots:
        raise InputError("--weights: expected folders by NAME=FOLDER, or folders that hold them, not both")
    return named or roots


def metrics(
    weights: WeightsOption = None,
    config: shared.Config = None,  # noqa: ARG001
    judge: shared.JudgeName = None,
    judge_arg: shared.JudgeArgs = None,
    base_url: shared.BaseUrl = None,
) -> None:
    """List all metrics: their figures and direction, where they are defined, what a report costs, what they need."""
    from radfact.metrics.registry import entries
    from radfact.metrics.resources import MetricResources

    console = new_console()
    who = JudgeOptions(judge, judge_arg, base_url)
    resources = MetricResources(
        judge=who.named, judge_args=who.arguments, base_url=base_url, weights=read_weights(weights)
    )
    for entry in entries().values():
        fault = resources.find_fault(entry)
        say_line(console, f"{entry.name}: {fault or 'ready'}", style="yellow" if fault else "green")
        # The reason why a metric cannot be loaded is printed already.
        with suppress(InputError):
            _show(console, entry)
    resources.close()
    say(console, "↑ higher is better, ↓ lower is better; others are neither. A custom metric is module:object.")


def _show(console: Console, entry: MetricEntry) -> None:
    metric = entry.declared
    if metric is None:
        say(console, "  declares its scores when it is created")
        return
    scores = entry.scores
    shown = ", ".join(f"{name}{MARKS[direction]}" for name, direction in list(scores.items())[:MAX_SCORES])
    more = f" and {len(scores) - MAX_SCORES} more" if len(scores) > MAX_SCORES else ""
    if metric.measures:
        say(console, f"  measures {metric.measures}")
    say(console, f"  scores {shown}{more}")
    say(console, f"  source {entry.source}; cost of a report: {metric.cost}")
    if arguments := entry.arguments:
        named = ", ".join(f"{entry.name}.{name} ({default})" for name, default in arguments.items())
        say(console, f"  arguments --metric-arg {named}")
