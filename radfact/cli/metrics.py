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

    from radfact.metrics.registry import Entry

MOST_FIGURES = 8
"""Of a metric that are listed."""

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
    from radfact.metrics.resources import Resources

    console = new_console()
    who = JudgeOptions(judge, judge_arg, base_url)
    resources = Resources(judge=who.named, judge_args=who.arguments, base_url=base_url, weights=read_weights(weights))
    for entry in entries().values():
        fault = resources.fault(entry)
        say_line(console, f"{entry.name}: {fault or 'ready'}", style="yellow" if fault else "green")
        # What cannot be loaded has said so.
        with suppress(InputError):
            _show(console, entry)
    resources.close()
    say(console, "↑ higher is better, ↓ lower is better; others are neither. A metric of one's own is module:object.")


def _show(console: Console, entry: Entry) -> None:
    figures, arguments = entry.figures, entry.arguments
    shown = ", ".join(f"{figure}{MARKS[direction]}" for figure, direction in list(figures.items())[:MOST_FIGURES])
    more = f" and {len(figures) - MOST_FIGURES} more" if len(figures) > MOST_FIGURES else ""
    say(console, f"  gives {shown}{more}" if figures else "  says what it gives when it is made")
    say(console, f"  from {entry.source}; a report costs {entry.cost}")
    if arguments:
        named = ", ".join(f"{entry.name}.{name} ({default})" for name, default in arguments.items())
        say(console, f"  takes --metric-arg {named}")
