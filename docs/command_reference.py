"""A Sphinx extension: the reference of all commands, written from the commands themselves.

The page that a command is to be described on holds the line `{{ commands of maira }}` alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from typer.main import get_command

if TYPE_CHECKING:
    from sphinx.application import Sphinx

_PLACE = re.compile(r"^\{\{ commands of (radfact|maira) \}\}$", re.M)
_HEADING = re.compile(r"^\[bold\](.*)\[/bold\]$")


def setup(app: Sphinx) -> dict[str, bool]:
    """Have the reference put into pages as they are read."""
    app.connect("source-read", _fill)
    return {"parallel_read_safe": True}


def reference(program: str) -> str:
    """Markdown that describes a program and all its commands, a section each."""
    from maira.cli.main import app as maira
    from radfact.cli.main import app as radfact

    root = get_command({"maira": maira, "radfact": radfact}[program])
    return "\n".join(_command(root, (program,)))


def _fill(_app: Sphinx, _name: str, source: list[str]) -> None:
    source[0] = _PLACE.sub(lambda place: reference(place[1]), source[0])


def _command(command: Any, words: Sequence[str]) -> Iterator[str]:
    below = getattr(command, "commands", {})
    if len(words) > 1:
        yield f"## {' '.join(words)}\n"
    yield from _help(command.help or "")
    context = command.context_class(command, info_name=" ".join(words))
    records = [one.get_help_record(context) for one in command.params if one.name != "help"]
    if any(records):
        yield "| argument or option | meaning |\n|---|---|"
        yield from (f"| {_code(names)} | {_plain(about)} |" for names, about in filter(None, records))
        yield ""
    for name, one in below.items():
        yield from _command(one, (*words, name))


def _help(text: str) -> Iterator[str]:
    """The text of a help page: paragraphs as they are, a heading and what is below it as a block."""
    for paragraph in text.split("\n\n"):
        lines = paragraph.strip("\n").split("\n")
        heading = _HEADING.match(lines[0])
        if heading is None:
            yield _plain(" ".join(lines)) + "\n"
            continue
        block = [line for line in lines[1:] if line.startswith(" ")]
        yield f"**{heading[1]}**\n\n```text\n" + "\n".join(line[2:] for line in block) + "\n```\n"
        rest = " ".join(line for line in lines[1:] if not line.startswith(" "))
        yield _plain(rest) + "\n"


def _code(names: str) -> str:
    return "`" + names.replace("|", "\\|") + "`"


def _plain(text: str) -> str:
    """Text of a help page as Markdown: markup of Rich becomes ours, and nothing else is taken for any."""
    text = re.sub(r"([\\`*_|<>])", r"\\\1", text)
    return re.sub(r"\[(/?)bold\]", "**", text)
