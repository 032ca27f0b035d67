"""Docstrings of the public API and of the plug-in protocols. Elsewhere one line is enough, or none."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PUBLIC = re.findall(r"automodule:: (\S+)", (ROOT / "docs" / "api.md").read_text(encoding="utf-8"))
PROTOCOLS = {"maira.generate.engine": "Engine", "maira.data.archive": "Archive"}
"""Plug-in protocols outside the public packages, which export `Metric`, `Judge`, `Splitter` and `ChatBackend`."""


def _source(module: str) -> Path:
    path = ROOT.joinpath(*module.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def _tree(module: str) -> ast.Module:
    return ast.parse(_source(module).read_text(encoding="utf-8"))


def _public_names(module: str) -> list[str]:
    """`__all__` of a module, or else the names of its public classes and functions."""
    body = _tree(module).body
    for node in body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return list(ast.literal_eval(node.value))
    names = [node.name for node in body if isinstance(node, ast.ClassDef | ast.FunctionDef)]
    return [name for name in names if not name.startswith("_")]


def _definition(module: str, name: str) -> tuple[str, ast.AST] | None:
    """The class or function of a name, and the module that defines it; None for a constant."""
    for node in ast.walk(_tree(module)):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and node.name == name:
            return module, node
        if isinstance(node, ast.ImportFrom) and node.module and name in [alias.name for alias in node.names]:
            return _definition(node.module, name)
    return None


def _functions(node: ast.AST) -> Iterator[ast.AST]:
    """Yield a class or function, and the public methods of a class."""
    yield node
    if isinstance(node, ast.ClassDef):
        yield from (
            method
            for method in node.body
            if isinstance(method, ast.FunctionDef | ast.AsyncFunctionDef)
            if not method.name.startswith("_")
            if not {"override", "overload"} & {ast.unparse(decorator) for decorator in method.decorator_list}
        )


def _lacks_docstring(node: ast.AST) -> bool:
    """Without a docstring, or with several parameters that neither it nor the class it refers to ("See `X`") has."""
    assert isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
    docstring = ast.get_docstring(node) or ""
    if isinstance(node, ast.ClassDef):
        return not docstring
    arguments = (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
    parameters = [argument.arg for argument in arguments if argument.arg not in ("self", "cls")]
    has_sections = "Args:" in docstring or "See `" in docstring
    return not docstring or (len(parameters) >= 2 and not has_sections)


def _lacking(module: str, name: str) -> list[str]:
    if (found := _definition(module, name)) is None:
        return []
    source, node = found
    functions = [function for function in _functions(node) if _lacks_docstring(function)]
    return [f"{_source(source).relative_to(ROOT)}:{getattr(function, 'lineno', 0)}: {name}" for function in functions]


@pytest.mark.parametrize("module", PUBLIC)
def test_public_names_are_documented(module: str) -> None:
    assert [line for name in _public_names(module) for line in _lacking(module, name)] == []


@pytest.mark.parametrize("module", PROTOCOLS)
def test_plug_in_protocols_are_documented(module: str) -> None:
    assert _definition(module, PROTOCOLS[module]) is not None
    assert _lacking(module, PROTOCOLS[module]) == []


@pytest.mark.parametrize("folder", ["radfact", "maira", "tests"])
def test_papers_have_names_and_no_numbers(folder: str) -> None:
    internal = re.compile(r"\bpaper 00\d|\(00\d[,)]", re.IGNORECASE)
    texts = {path: path.read_text(encoding="utf-8") for path in sorted((ROOT / folder).rglob("*.py"))}
    assert [str(path) for path, text in texts.items() if internal.search(text)] == []
