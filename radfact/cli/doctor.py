"""`radfact doctor`: check the installation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from radfact.cli.command import with_options
from radfact.cli.tables import new_console
from radfact.errors import ExitCode
from radfact.metrics.options import MetricOptions
from radfact.options import only

if TYPE_CHECKING:
    from radfact.doctor import DoctorReport

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
_STYLES = {"ok": "green", "missing": "yellow", "wrong": "red"}
_STATUS_COLUMNS = (2, 10)


@with_options
def doctor(context: typer.Context, metrics: Annotated[MetricOptions, only("weights")], json: Json = False) -> None:
    """Check the installation: packages, GPUs, memory, disk, judges, metrics, and which commands can run.

    API keys are listed by name; their values are never shown. Each problem has a fix below it. Exit code 1: a core
    requirement is missing or broken.
    """
    from radfact.doctor import diagnose

    show(diagnose(command_words(context.find_root().command), metrics.weights), json)


def show(report: DoctorReport, as_json: bool) -> None:
    """Print a report; the exit code is 1 if the installation is broken.

    Args:
        report: what was checked.
        as_json: whether to print JSON.

    Raises:
        typer.Exit: the installation is broken.
    """
    from rich.text import Text

    from radfact.io.jsonl import dumps

    if as_json:
        print(dumps(report.to_json()))
    else:
        console = new_console()
        for status, content in report.lines():
            line = Text(content, style="bold" if status is None else "")
            if status in _STYLES:
                line.stylize(_STYLES[status], *_STATUS_COLUMNS)
            # Soft wrap keeps a fix on one line, so that it can be copied.
            console.print(line, soft_wrap=True)
    if not report.passed:
        raise typer.Exit(ExitCode.FAILURE)


def command_words(command: object, parents: tuple[str, ...] = ()) -> list[str]:
    """Return the words of every command in a group and its subgroups: "score", "meta agreement".

    Args:
        command: a command or group of Click.
        parents: words before the command's.
    """
    subcommands = getattr(command, "commands", None)
    if subcommands is None:
        return [" ".join(parents)]
    return [words for name, child in subcommands.items() for words in command_words(child, (*parents, name))]
