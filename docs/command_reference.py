"""A Sphinx extension that generates the reference of all commands.

The line `{{ commands of maira }}` of a page is replaced by the reference of that program.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from typer.main import get_command

if TYPE_CHECKING:
    from sphinx.application import Sphinx

_PLACEHOLDER = re.compile(r"^\{\{ commands of (radfact|maira) \}\}$", re.M)
_HEADING = re.compile(r"^\[bold\](.*)\[/bold\]$")


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the extension."""
    app.connect("source-read", _fill)
    return {"parallel_read_safe": True}


def reference(program: str) -> str:
    """Return Markdown with one section per command of a program."""
    from maira.cli.main import app as maira
    from radfact.cli.main import create_app

    root = get_command({"maira": maira, "radfact": create_app()}[program])
    return "\n".join(_command(root, (program,)))


def _fill(_app: Sphinx, _name: str, source: list[str]) -> None:
    source[0] = _PLACEHOLDER.sub(lambda match: reference(match[1]), source[0])


def _command(command: Any, words: Sequence[str]) -> Iterator[str]:
    children = getattr(command, "commands", {})
    if len(words) > 1:
        yield f"## {' '.join(words)}\n"
    yield from _help(command.help or "")
    context = command.context_class(command, info_name=" ".join(words))
    records = [parameter.get_help_record(context) for parameter in command.params if parameter.name != "help"]
    if any(records):
        yield "| argument or option | meaning |\n|---|---|"
        yield from (f"| {_code(names)} | {_plain(about)} |" for names, about in filter(None, records))
        yield ""
    for name, child in children.items():
        yield from _command(child, (*words, name))


def _help(text: str) -> Iterator[str]:
    """Yield the text of a help page: paragraphs unchanged, headings with their indented lines as blocks."""
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
    """Return text of a help page as Markdown: escaped, with the bold markup of Rich converted."""
    text = re.sub(r"([\\`*_|<>])", r"\\\1", text)
    return re.sub(r"\[(/?)bold\]", "**", text)
