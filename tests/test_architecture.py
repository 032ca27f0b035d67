"""Layers and size of the repository: imports point to the same or a lower layer, and packages do not grow."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
LOWER = {"maira": {"data", "radfact", "encoders"}, "data": {"radfact"}, "radfact": set[str](), "encoders": set[str]()}
"""Packages that a package may import. `data` and `encoders` are imported as `maira.data` and `maira.encoders`."""
HEAVY = {"torch", "transformers", "matplotlib", "scipy", "pandas", "rich", "typer"}
UNUSED = {"matplotlib", "pandas", "peft", "langchain_core", "pydicom", "SimpleITK", "maira.train", "radfact.api"}


def _sources(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


def _module_name(source: Path) -> str:
    parts = source.relative_to(ROOT).with_suffix("").parts
    return ".".join(("maira", *parts) if parts[0] in ("data", "encoders") else parts).removesuffix(".__init__")


@cache
def _modules() -> dict[str, Path]:
    return {_module_name(source): source for package in LOWER for source in _sources(package)}


def _is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def _import_nodes(source: Path, *, at_import_time: bool = False) -> Iterator[ast.Import | ast.ImportFrom]:
    """Yield the import statements of a file, without those for type checkers.

    Args:
        source: a Python file.
        at_import_time: skip imports inside functions.
    """
    pending: list[ast.AST] = [ast.parse(source.read_text(encoding="utf-8"))]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node
        elif _is_type_checking(node):
            pending.extend(node.orelse)  # type: ignore[attr-defined]
        elif not (at_import_time and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)):
            pending.extend(ast.iter_child_nodes(node))


def _imported_names(nodes: Iterable[ast.Import | ast.ImportFrom]) -> set[str]:
    names: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif node.module:
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


@cache
def _imported_modules(source: Path) -> set[str]:
    """Our own modules that a file imports."""
    names = _imported_names(_import_nodes(source))
    return {name if name in _modules() else name.rpartition(".")[0] for name in names} & _modules().keys()


@pytest.mark.parametrize("package", LOWER)
def test_imports_point_to_the_same_or_a_lower_layer(package: str) -> None:
    forbidden = LOWER.keys() - LOWER[package] - {package}
    wrong = [
        f"{source.relative_to(ROOT)} imports {name}"
        for source in _sources(package)
        for name in _imported_modules(source)
        if _modules()[name].relative_to(ROOT).parts[0] in forbidden
    ]
    assert wrong == []


def _subpackages() -> list[str]:
    """Packages that hold at least one package."""
    packages = {name for name, source in _modules().items() if source.name == "__init__.py"}
    return sorted({name.rpartition(".")[0] for name in packages if "." in name})


@pytest.mark.parametrize("package", _subpackages())
def test_subpackages_form_no_cycle(package: str) -> None:
    """A subpackage counts as one node of the graph, a module of the package itself as another."""

    def node_of(module: str) -> str | None:
        return module.removeprefix(f"{package}.").split(".")[0] if module.startswith(f"{package}.") else None

    graph: dict[str, set[str]] = {}
    for module, source in _modules().items():
        if node := node_of(module):
            targets = {node_of(name) for name in _imported_modules(source)}
            graph.setdefault(node, set()).update({target for target in targets if target} - {node})
    subpackages = {node for node in graph if (ROOT / package.replace(".", "/") / node).is_dir()}
    cyclic = {node for node in subpackages if node in _reachable(graph, graph[node])}
    assert cyclic == set()


def _reachable(graph: dict[str, set[str]], starts: set[str]) -> set[str]:
    reached, pending = set[str](), list(starts)
    while pending:
        node = pending.pop()
        if node not in reached:
            reached.add(node)
            pending.extend(graph.get(node, ()))
    return reached


def test_radfact_imports_no_model_library_at_import_time() -> None:
    """Metrics that run a model import it in the function that needs it."""
    wrong = [
        f"{source.relative_to(ROOT)} imports {name}"
        for source in _sources("radfact")
        for name in _imported_names(_import_nodes(source, at_import_time=True))
        if name.split(".")[0] in {"torch", "transformers"}
    ]
    assert wrong == []


@pytest.mark.parametrize(
    ("modules", "unused"),
    [
        *((name, HEAVY) for name in ("radfact", "maira")),
        *((f"maira.model.{name}", HEAVY) for name in ("prompts", "parser", "grammar")),
        ("maira.cli.main, maira.generate.drafts, maira.generate.transformers_engine", UNUSED),
    ],
)
def test_modules_import_no_heavy_library_that_they_do_not_use(modules: str, unused: set[str]) -> None:
    command = f"import sys, {modules}; print(*{unused!r}.intersection(sys.modules))"
    result = subprocess.run([sys.executable, "-c", command], capture_output=True, text=True, check=True, cwd=ROOT)
    assert result.stdout.split() == []


# fmt: off
MOST_LINES = {
    "radfact": 31139, "radfact/*": 1936, "radfact/cli": 3039, "radfact/findings": 1663,
    "radfact/io": 1947, "radfact/judges": 2160, "radfact/llm": 2190, "radfact/meta": 3911, "radfact/metrics": 5247,
    "radfact/pages": 2283, "radfact/reader": 3757, "radfact/results": 2134, "radfact/statistics": 872,
    "radfact pages": 2658, "maira": 19472, "maira/*": 214, "maira/cli": 2089, "maira/evaluate": 541,
    "maira/generate": 2125, "maira/grounding": 438, "maira/judge": 1140, "maira/model": 1993, "maira/publish": 321,
    "maira/review": 4293, "maira/runtime": 328, "maira/train": 5990, "maira and data pages": 3888,
    "data": 6256, "data/*": 1908, "data/annotation": 622, "data/dicom": 772, "data/phantoms": 842, "data/sources": 2112,
    "encoders": 396, "tests": 35973, "tests/radfact": 13072, "tests/maira": 13663, "tests/data": 2878,
    "tests/benchmarks": 2427,
}
# fmt: on
"""Lines of `*.py` files by package, and of the pages. The sums of a package and of the tests may only fall."""
MOST_LONG_LINES = 10


@cache
def _texts(suffix: str) -> dict[Path, str]:
    files = [path for top in (*LOWER, "tests") for path in (ROOT / top).rglob(f"*{suffix}")]
    return {path.relative_to(ROOT): path.read_text(encoding="utf-8") for path in files}


def test_packages_do_not_grow() -> None:
    sizes = Counter[str]()
    for path, text in _texts(".py").items():
        inner = "/".join(path.parts[:2]) if len(path.parts) > 2 else f"{path.parts[0]}/*"
        sizes.update(dict.fromkeys((path.parts[0], inner), text.count("\n")))
    for suffix in (".js", ".css", ".html"):
        for path, text in _texts(suffix).items():
            sizes["radfact pages" if path.parts[0] == "radfact" else "maira and data pages"] += text.count("\n")
    assert {name: size for name, size in sizes.items() if size > MOST_LINES.get(name, size)} == {}


def test_lines_are_not_packed() -> None:
    lines = [line for text in _texts(".py").values() for line in text.splitlines()]
    assert sum(len(line) > 120 for line in lines) <= MOST_LONG_LINES
    packed = [
        f"{path}:{number}"
        for path, text in _texts(".py").items()
        for number, count in Counter(_statement_lines(text)).items()
        if count > 1
    ]
    assert packed == []


def _statement_lines(text: str) -> list[int]:
    statements = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.stmt)]
    ellipses = (node for node in statements if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))
    return [node.lineno for node in {*statements} - {*ellipses}]
