"""The commands `radfact` and `maira` as a tree, their examples, and a parser of command lines."""

import re
import shlex
from collections.abc import Iterator
from typing import Any

from typer.main import get_command

from maira.cli.main import app as maira
from radfact.cli.main import create_app

ROOTS: dict[str, Any] = {"radfact": get_command(create_app()), "maira": get_command(maira)}

_COMMAND = re.compile(r"\s*(?:\w+=\S+ )*(?:(?:accelerate launch|torchrun) .*-m |\.venv/bin/)?((?:radfact|maira) \S.*)")


def walk(command: Any, words: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield a command and all its subcommands, each with its words."""
    yield words, command
    for name, child in getattr(command, "commands", {}).items():
        yield from walk(child, (*words, name))


COMMANDS: dict[str, Any] = {" ".join(path): command for name in ROOTS for path, command in walk(ROOTS[name], (name,))}
"""Every command and group by its words, "radfact meta pairs"."""


def command_lines(text: str) -> list[str]:
    """Return the lines of a text that run radfact or maira, joined, without comments, variables and launchers."""
    joined = re.sub(r"\\\n\s*", "", text)
    matches = (_COMMAND.match(line) for line in joined.splitlines())
    return [re.split(r"\s+#", match[1])[0].strip() for match in matches if match]


def examples(command: Any) -> list[str]:
    """Return the examples in the help of a command."""
    _, heading, rest = (command.help or "").partition("[bold]Examples[/bold]\n")
    return command_lines(re.split(r"\n\n|\n\[bold\]", rest)[0]) if heading else []


def read(line: str) -> str:
    """Parse a command line without running it, and return the words of its command; an error if it is wrong."""
    name, *arguments = shlex.split(line)
    command, words, parent = ROOTS[name], [name], None
    while hasattr(command, "commands"):
        context = command.make_context(words[-1], list(arguments), parent=parent)
        _, command, arguments = command.resolve_command(context, [*context._protected_args, *context.args])
        words.append(str(command.name))
        parent = context
    context = command.context_class(command, info_name=words[-1], parent=parent)
    values, rest, _ = command.make_parser(context).parse_args(args=list(arguments))
    if rest:
        raise AssertionError(f"{line}: superfluous {rest}")
    for parameter in command.get_params(context):
        value = values.get(parameter.name)
        if value is None:
            if parameter.required:
                raise AssertionError(f"{line}: {parameter.name} is missing")
        elif not parameter.is_eager:
            parameter.process_value(context, value)
    return " ".join(words)
