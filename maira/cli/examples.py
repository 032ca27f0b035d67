"""Examples for the help of commands, from `examples.txt` with lines of the form COMMAND: EXAMPLE."""

from __future__ import annotations

from importlib import resources

EXAMPLES: dict[str, list[str]] = {}
for _line in (resources.files("maira.cli") / "examples.txt").read_text("utf-8").splitlines():
    _command, _, _example = _line.partition(": ")
    EXAMPLES.setdefault(_command, []).append(_example)
