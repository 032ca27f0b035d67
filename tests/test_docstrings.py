"""Docstrings of the public API, beyond what ruff's pydocstyle rules check."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("radfact", "maira", "data", "encoders")
Function = ast.FunctionDef | ast.AsyncFunctionDef


def _public_functions(body: list[ast.stmt], prefix: str = "") -> Iterator[tuple[str, Function]]:
    """Yield the public functions and methods of a module or class, with their qualified names."""
    for node in body:
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            yield from _public_functions(node.body, f"{node.name}.")
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not node.name.startswith("_"):
            yield prefix + node.name, node


def _parameters(function: Function) -> list[str]:
    arguments = function.args
    names = [argument.arg for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
    return [name for name in names if name not in ("self", "cls") and not name.startswith("_")]


def _is_override(function: Function) -> bool:
    return any(isinstance(node, ast.Name) and node.id in ("override", "overload") for node in function.decorator_list)


def _is_command(function: Function) -> bool:
    """Return whether the parameters are command-line options, which have their help in the declaration."""
    decorated = any("with_options" in ast.unparse(decorator) for decorator in function.decorator_list)
    return decorated or "typer." in ast.unparse(function.args)


def _documents_arguments(function: Function) -> bool:
    """Return whether a docstring describes the arguments or names the function or class that does ("See `Metric`")."""
    docstring = ast.get_docstring(function) or ""
    return "Args:" in docstring or "See `" in docstring


@pytest.mark.parametrize("package", PACKAGES)
def test_public_functions_with_several_parameters_document_them(package: str) -> None:
    missing = []
    for source in sorted((ROOT / package).rglob("*.py")):
        for name, function in _public_functions(ast.parse(source.read_text(encoding="utf-8")).body):
            several = len(_parameters(function)) >= 2 and not _is_override(function) and not _is_command(function)
            if several and not _documents_arguments(function):
                missing.append(f"{source.relative_to(ROOT)}:{function.lineno}: {name}")
    assert missing == []


@pytest.mark.parametrize("package", PACKAGES)
def test_docstrings_name_papers_and_no_numbers_of_papers(package: str) -> None:
    internal = re.compile(r"\bpaper 00\d|\(00\d[,)]")
    wrong = [
        f"{source.relative_to(ROOT)}:{number}"
        for source in sorted((ROOT / package).rglob("*.py"))
        for number, line in enumerate(source.read_text(encoding="utf-8").splitlines(), 1)
        if internal.search(line)
    ]
    assert wrong == []
