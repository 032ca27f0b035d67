"""`radfact doctor`: what is installed and found, and which commands can run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from radfact.cli.metrics import WeightsOption, read_weights
from radfact.cli.tables import new_console
from radfact.errors import ExitCode

if TYPE_CHECKING:
    from rich.console import Console

    from radfact.doctor import Examination

Json = Annotated[bool, typer.Option("--json", help="The same as one JSON object, for programs.")]
_STYLES = {"ok": "green", "missing": "yellow", "wrong": "red", "note": None, None: "bold"}


def doctor(context: typer.Context, weights: WeightsOption = None, json: Json = False) -> None:
    """Say what is installed and found on this machine, and for every command whether it can run.

    Packages beside the versions that are asked for, GPUs, memory and disk, judges with the names of their keys (never
    the keys), metrics with their weights. What is missing has the one line that mends it below. Exit code 1 says that
    something which every command needs is broken.
    """
    from radfact.doctor.examine import examine

    show(examine(command_words(context.find_root().command), read_weights(weights)), json)


def show(found: Examination, as_json: bool) -> None:
    """Print an examination, and leave with exit code 1 if the installation is not sound."""
    from radfact.io.jsonl import dumps

    console = new_console()
    if as_json:
        print(dumps(found.to_json()))
    else:
        for state, text in found.lines():
            _print(console, text, _STYLES[state])
    if not found.is_sound:
        raise typer.Exit(ExitCode.FAILURE)


def command_words(command: object, above: tuple[str, ...] = ()) -> list[str]:
    """The words of every command in a group, those of groups in it too: "score", "meta agreement"."""
    below = getattr(command, "commands", None)
    if below is None:
        return [" ".join(above)]
    return [words for name, one in below.items() for words in command_words(one, (*above, name))]


def _print(console: Console, text: str, style: str | None) -> None:
    """One line however long, so that what mends can be copied; colour on the state alone."""
    from rich.text import Text

    line = Text(text, style=style if style == "bold" else "")
    if style not in (None, "bold"):
        line.stylize(str(style), 2, 10)
    console.print(line, soft_wrap=True)
