"""Which small changes of a module its tests detect: one line per change, and the share of detected ones.

    python tests/benchmarks/mutate.py radfact/judges/response.py --tests tests/radfact/test_llm_judge.py --sample 60

A change swaps an operator or comparison, negates a condition, or changes a constant. Each is made in a copy of the
repository. Compared before and after a change of the tests, the list shows what they no longer detect.
"""

import argparse
import ast
import copy
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_SWAPS: dict[type[ast.AST], type[ast.AST]] = {
    **{ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult},
    **{ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt},
    **{ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.And: ast.Or, ast.Or: ast.And},
}


def _mutations(node: ast.AST) -> Iterator[ast.AST]:
    """Yield changed copies of a node."""
    changed = copy.deepcopy(node)
    if isinstance(node, ast.BinOp | ast.BoolOp) and type(node.op) in _SWAPS:
        changed.op = _SWAPS[type(node.op)]()  # type: ignore[attr-defined]
        yield changed
    elif isinstance(node, ast.Compare) and type(node.ops[0]) in _SWAPS:
        changed.ops[0] = _SWAPS[type(node.ops[0])]()  # type: ignore[attr-defined]
        yield changed
    elif isinstance(node, ast.If | ast.IfExp | ast.While):
        changed.test = ast.UnaryOp(ast.Not(), node.test)  # type: ignore[attr-defined]
        yield changed
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool | int | float):
        changed.value = not node.value if isinstance(node.value, bool) else node.value + 1  # type: ignore[attr-defined]
        yield changed


def mutants(source: str) -> Iterator[tuple[str, str]]:
    """Yield a description and the changed source of each mutant."""
    tree = ast.parse(source)
    for parent in ast.walk(tree):
        for name, value in ast.iter_fields(parent):
            children = value if isinstance(value, list) else [value]
            for place, child in enumerate(children):
                for changed in _mutations(child) if isinstance(child, ast.AST) and hasattr(child, "lineno") else ():
                    before, after = (ast.unparse(node).splitlines()[0] for node in (child, changed))
                    for new, yields in ((changed, True), (child, False)):
                        setattr(parent, name, [*value[:place], new, *value[place + 1 :]] if children is value else new)
                        if yields:
                            yield f"{child.lineno}: {before} -> {after}", ast.unparse(ast.fix_missing_locations(tree))


def main() -> None:
    """Print the mutants that tests detect, and those that survive."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("module", type=Path, help="path of the module in the repository")
    parser.add_argument("--tests", nargs="+", required=True)
    parser.add_argument("--sample", type=int, default=60, help="number of changes, drawn at random")
    arguments = parser.parse_args()
    found = [*mutants((ROOT / arguments.module).read_text(encoding="utf-8"))]
    drawn = random.Random(0).sample(found, min(arguments.sample, len(found)))
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        shutil.copytree(ROOT, tree, ignore=shutil.ignore_patterns(".git", ".venv", "demo", "node_modules"))
        command = [sys.executable, "-m", "pytest", "-q", "-x", "-n", "0", "-p", "no:cacheprovider", *arguments.tests]
        detected = 0
        for description, source in drawn:
            (tree / arguments.module).write_text(source, encoding="utf-8")
            is_detected = subprocess.run(command, cwd=tree, capture_output=True, timeout=600).returncode != 0
            detected += is_detected
            print("detected" if is_detected else "SURVIVED", description, flush=True)
    print(f"{arguments.module}: {detected} of {len(drawn)} changes detected, drawn from {len(found)}")


if __name__ == "__main__":
    main()
