"""Shared by the commands `radfact` and `maira`: examples in the help, the version, errors as one line and a code."""

from __future__ import annotations

import codecs
import gc
import inspect
import re
import signal
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from importlib import resources
from io import TextIOWrapper
from textwrap import wrap
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command_name

from radfact.errors import ErrorCode, ExitCode, InputError, RunError, escape_for_terminal
from radfact.io.jsonl import WRITE_ERRORS

_WIDTH = 76
"""Columns of an example: a help page has 80, with its margins."""
_NO_BREAK = "\N{NO-BREAK SPACE}"
_INTERRUPTED = 130
"""Exit code of Typer after Ctrl-C."""
_PLAIN = {"\u2191": "^", "\u2193": "v", "\u2026": "...", "\u2013": "-", "\u2014": "-", "\u2212": "-", "\u00d7": "x"}


def run_command(app: Callable[[], Any], name: str) -> None:
    """Run a Typer app, and print an error as one line with its code in brackets, without a traceback."""
    # Their encoding need not be UTF-8.
    codecs.register_error("plain", lambda error: (_PLAIN.get(error.object[error.start], "?"), error.start + 1))  # type: ignore[attr-defined]
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="plain")
    # Imports of torch and transformers make a million objects that stay; searching them for cycles takes a tenth more.
    gc.set_threshold(10_000)
    if threading.current_thread() is threading.main_thread():
        # As Ctrl-C: the default of SIGTERM would neither clean up nor print a line.
        signal.signal(signal.SIGTERM, signal.default_int_handler)
    exit_code = ExitCode.FAILURE
    try:
        app()
        return
    except (SystemExit, KeyboardInterrupt) as stop:
        if isinstance(stop, SystemExit) and stop.code != _INTERRUPTED:
            raise
        message, code = "interrupted; completed work is kept, and the same command resumes", ErrorCode.INTERRUPTED
    except (InputError, RunError) as error:
        message, code = str(error), error.code
        exit_code = ExitCode.INVALID_INPUT if isinstance(error, InputError) else ExitCode.FAILURE
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] in ("radfact", "maira"):
            raise
        message = f"the package '{error.name}' is not installed; run pip install \"maira-radfact[model]\""
        code = ErrorCode.MISSING_REQUIREMENT
    except OSError as error:
        message = f"{error.filename}: " if error.filename else ""
        message += error.strerror or str(error)
        code = ErrorCode.WRITE_FAILED if error.errno in WRITE_ERRORS else ErrorCode.FILE_UNREADABLE
    print(f"{name}: {escape_for_terminal(' '.join(f'{message} [{code}]'.split()))}", file=sys.stderr)
    sys.exit(exit_code)


def _show_version(is_requested: bool) -> None:
    if is_requested:
        from radfact.machine import project_version

        typer.echo(project_version())
        raise typer.Exit


_Version = Annotated[
    bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
]


def create_program(help: str) -> typer.Typer:
    """Create the app of a program, with the option `--version`."""
    app = typer.Typer(
        help=help, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, rich_markup_mode="rich"
    )

    @app.callback()
    def _common(version: _Version = False) -> None:
        del version

    return app


class _PlainHelp:
    """Help without a metavar for flags, and with arguments in upper case without braces."""

    def get_params(self, ctx: Any) -> list[Any]:
        parameters: list[Any] = super().get_params(ctx)  # type: ignore[misc]
        for parameter in parameters:
            if parameter.metavar is None and parameter.param_type_name == "argument":
                parameter.metavar = parameter.name.upper()
            elif parameter.metavar is None and parameter.is_flag:
                parameter.metavar = ""
        return parameters

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        pieces: list[str] = super().collect_usage_pieces(ctx)  # type: ignore[misc]
        return [piece.replace("{", "").replace("}", "") for piece in pieces]


class PlainCommand(_PlainHelp, TyperCommand):
    """A command with plain help."""


class PlainGroup(_PlainHelp, TyperGroup):
    """A group of commands with plain help."""


def read_examples(package: str) -> dict[str, list[str]]:
    """Read `examples.txt` of a package, with lines of the form COMMAND: EXAMPLE; the program itself has no COMMAND."""
    examples: dict[str, list[str]] = {}
    for line in (resources.files(package) / "examples.txt").read_text("utf-8").splitlines():
        command, _, example = line.partition(": ")
        examples.setdefault(command, []).append(example)
    return examples


def add_examples(app: typer.Typer, examples: Mapping[str, Sequence[str]], group: str = "") -> None:
    """Append examples, by the words of a command ("meta pairs"), to the help of an app; its group is above them."""
    if not isinstance(app.info.cls, type):
        app.info.cls = PlainGroup
    if lines := examples.get(group):
        app.info.help = _with_examples(str(app.info.help), lines)
    for info in app.registered_commands:
        info.cls = PlainCommand
        name = info.name or get_command_name(info.callback.__name__ if info.callback else "")
        if lines := examples.get(f"{group} {name}".strip()):
            info.help = _with_examples(info.help or inspect.getdoc(info.callback) or "", lines)
    for inner in app.registered_groups:
        if inner.typer_instance is not None:
            add_examples(inner.typer_instance, examples, f"{group} {inner.name}".strip())


def _with_examples(text: str, examples: Sequence[str]) -> str:
    # Rich keeps line breaks, so a paragraph becomes one line.
    paragraphs = [re.sub(r"\n(?=\S)", " ", paragraph) for paragraph in text.strip().split("\n\n")]
    return "\n".join(("\n\n".join(paragraphs), "", "[bold]Examples[/bold]", *map(_wrap_command, examples)))


def _wrap_command(line: str) -> str:
    """Break a command line between options, as a shell reads it, if it is longer than a line of the help."""
    unbroken = re.sub(r"(--[a-z-]+) (?!-)", f"\\1{_NO_BREAK}", line)
    parts = wrap(unbroken, _WIDTH, initial_indent="  ", subsequent_indent="      ", break_on_hyphens=False)
    return " \\\n".join(parts).replace(_NO_BREAK, " ")
