"""The packages stand on three floors, and an import only ever points down."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
BELOW = {"maira": {"data", "radfact", "encoders"}, "data": {"radfact"}, "radfact": set[str](), "encoders": set[str]()}


def _imported(source: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(source.read_text(encoding="utf-8"))):
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


def test_radfact_knows_no_torch() -> None:
    users = [source for source in (ROOT / "radfact").rglob("*.py") if _imported(source) & {"torch", "transformers"}]
    assert users == []
