import json
import subprocess
import sys

import pytest

import radfact

HEAVY = {
    *("torch", "transformers", "langchain_core", "langchain_openai", "openai", "aiohttp", "tenacity"),
    *("matplotlib", "PIL", "pycocotools"),
}


def loaded_by(statement: str) -> set[str]:
    """Top-level modules in a fresh interpreter after a statement."""
    code = f"import json, sys\n{statement}\nprint(json.dumps(sorted({{name.split('.')[0] for name in sys.modules}})))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(json.loads(done.stdout))


@pytest.mark.parametrize(
    "statement", ["import radfact", "import radfact.cli", "from radfact import RadFact, read_pairs"]
)
def test_an_import_loads_nothing_heavy(statement: str) -> None:
    assert loaded_by(statement) & HEAVY == set()


def test_importing_radfact_alone_loads_no_dependency() -> None:
    assert loaded_by("import radfact") & {"numpy", "pydantic", "typer", "rich", "yaml"} == set()


@pytest.mark.parametrize("name", radfact.__all__)
def test_every_public_name_exists(name: str) -> None:
    assert getattr(radfact, name) is not None


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'RadFract'"):
        _ = radfact.RadFract


def test_the_public_names_are_sorted_and_unique() -> None:
    assert radfact.__all__ == sorted(set(radfact.__all__))
