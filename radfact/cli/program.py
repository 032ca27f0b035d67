"""What the commands `radfact` and `maira` share: examples in the help, the version, errors as one line and a code."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from textwrap import wrap
from typing import Annotated, Any

import typer
from typer.main import get_command_name

from radfact.errors import ExitCode, InputError, RunError, escape_for_terminal

_WIDTH = 76
"""Columns of an example: a help page has 80, with its margins."""
_NO_BREAK = "\N{NO-BREAK SPACE}"
_INTERRUPTED = 130  # what Typer makes of Ctrl-C


def run_command(app: Callable[[], Any], name: str) -> None:
    """Run a Typer app: what went wrong is one line on standard error and the exit code, never a traceback."""
    try:
        app()
    except SystemExit as stop:
        if stop.code != _INTERRUPTED:
            raise
        _stop(name, "interrupted; what was done is kept, and the same command goes on from there", ExitCode.FAILURE)
    except InputError as error:
        _stop(name, f"{error} [{error.code}]", ExitCode.INVALID_INPUT)
    except RunError as error:
        _stop(name, f"{error} [{error.code}]", ExitCode.FAILURE)
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] in ("radfact", "encoders", "data", "maira"):
            raise
        wanted = 'pip install "maira-radfact[model]" brings what the model needs'
        _stop(name, f"the package '{error.name}' is not installed; {wanted}", ExitCode.FAILURE)
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        _stop(name, f"{where}{error.strerror or error}", ExitCode.FAILURE)


def _show_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(version("maira-radfact"))
        raise typer.Exit


Version = Annotated[
    bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
]


def add_examples(app: typer.Typer, examples: Mapping[str, Sequence[str]], above: str = "") -> None:
    """End the help of commands and groups with examples, where the help has none of its own.

    Args:
        app: whose commands they are.
        examples: command lines by the words of a command ("meta pairs").
        above: words of the groups above `app`.
    """
    for info in app.registered_commands:
        name = info.name or get_command_name(info.callback.__name__ if info.callback else "")
        text = info.help or inspect.getdoc(info.callback) or ""
        if lines := examples.get(f"{above}{name}"):
            info.help = _with_examples(text, lines)
    for group in app.registered_groups:
        inner = group.typer_instance
        if inner is None:
            continue
        if lines := examples.get(f"{above}{group.name}"):
            inner.info.help = _with_examples(str(inner.info.help), lines)
        add_examples(inner, examples, f"{above}{group.name} ")


def _with_examples(text: str, examples: Sequence[str]) -> str:
    # Rich keeps line ends as they are, so that a paragraph of a docstring becomes one line here.
    paragraphs = [re.sub(r"\n(?=\S)", " ", paragraph) for paragraph in text.strip().split("\n\n")]
    return "\n".join(("\n\n".join(paragraphs), "", "[bold]Examples[/bold]", *map(_as_pasted, examples)))


def _as_pasted(line: str) -> str:
    """A command line, broken between options as a shell takes it where it is longer than a help page is wide."""
    kept = re.sub(r"(--[a-z-]+) (?!-)", f"\\1{_NO_BREAK}", line)
    parts = wrap(kept, _WIDTH, initial_indent="  ", subsequent_indent="      ", break_on_hyphens=False)
    return " \\\n".join(parts).replace(_NO_BREAK, " ")


def _stop(name: str, message: str, code: ExitCode) -> None:
    print(f"{name}: {escape_for_terminal(' '.join(message.split()))}", file=sys.stderr)
    sys.exit(code)
