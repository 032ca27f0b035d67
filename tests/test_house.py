"""The packages stand on three floors, and an import only ever points down."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

ROOT = Path(__file__).resolve().parents[1]
BELOW = {"maira": {"data", "radfact", "encoders"}, "data": {"radfact"}, "radfact": set[str](), "encoders": set[str]()}


def _imported(source: Path) -> set[str]:
    return _modules(ast.walk(ast.parse(source.read_text(encoding="utf-8"))))


def _imported_at_once(source: Path) -> set[str]:
    """What the import of a module imports itself, outside functions."""
    waiting: list[ast.AST] = [ast.parse(source.read_text(encoding="utf-8"))]
    nodes = []
    while waiting:
        node = waiting.pop()
        nodes.append(node)
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            waiting.extend(ast.iter_child_nodes(node))
    return _modules(nodes)


def _modules(nodes: Iterable[ast.AST]) -> set[str]:
    found: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module.split(".")[0])
    return found


@pytest.mark.parametrize("package", BELOW)
def test_imports_point_down(package: str) -> None:
    allowed = BELOW[package] | {package}
    wrong = {
        f"{source.relative_to(ROOT)} imports {name}"
        for source in (ROOT / package).rglob("*.py")
        for name in _imported(source) & BELOW.keys() - allowed
    }
    assert wrong == set()


def test_radfact_imports_no_torch_at_the_top_of_a_module() -> None:
    """Metrics that run a model import it in the function that needs it."""
    users = [
        source for source in (ROOT / "radfact").rglob("*.py") if _imported_at_once(source) & {"torch", "transformers"}
    ]
    assert users == []


def test_no_property_fails_because_the_machine_is_busy() -> None:
    assert settings().deadline is None


@pytest.mark.parametrize("program", ["radfact", "maira"])
def test_an_example_on_several_lines_can_be_copied_to_a_shell(program: str) -> None:
    pytest.importorskip("torch" if program == "maira" else "typer")
    from typer.main import get_command

    texts = [command.help or "" for command in _commands(get_command(import_module(f"{program}.cli").app))]
    examples = [text.partition("[bold]Examples[/bold]")[2].partition("\n\n")[0].splitlines() for text in texts]
    goes_on = [(one, after) for lines in examples for one, after in pairwise(lines) if after.startswith("      ")]
    assert goes_on
    assert [one for one, _ in goes_on if not one.endswith(" \\")] == []


def _commands(command: Any) -> Iterator[Any]:
    yield command
    for one in getattr(command, "commands", {}).values():
        yield from _commands(one)
