import json
import subprocess
import sys

import pytest

import radfact

HEAVY = {
    *("torch", "transformers", "langchain_core", "langchain_openai", "openai", "aiohttp"),
    *("matplotlib", "PIL", "pycocotools"),
}


def loaded_by(statement: str) -> set[str]:
    """Top-level modules in a fresh interpreter after a statement."""
    code = f"import json, sys\n{statement}\nprint(json.dumps(sorted({{name.split('.')[0] for name in sys.modules}})))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(json.loads(done.stdout))


@pytest.mark.parametrize(
    ("statement", "others"),
    [
        ("import radfact", {"numpy", "pydantic", "typer", "rich", "yaml"}),
        ("import radfact.cli.main", {"numpy", "pydantic", "yaml"}),
        ("from radfact import RadFact, read_pairs", set()),
        ("from radfact import RadFact; RadFact('offline').score(['No nodule.'], ['No nodule.'])", set()),
    ],
)
def test_an_import_loads_nothing_that_it_does_not_need(statement: str, others: set[str]) -> None:
    assert loaded_by(statement) & (HEAVY | others) == set()


@pytest.mark.parametrize("name", radfact.__all__)
def test_every_public_name_exists(name: str) -> None:
    assert getattr(radfact, name) is not None


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'RadFract'"):
        _ = radfact.RadFract


def test_the_list_of_commands_agrees_with_their_help() -> None:
    """Only the command that runs is imported; the list has the first lines of the others."""
    from typer.main import get_command

    from radfact.cli.main import create_app

    listed, imported = (
        {
            name: command.get_short_help_str(1000).split(". ")[0].rstrip(".")
            for name, command in get_command(app).commands.items()  # type: ignore[attr-defined]
        }
        for app in (create_app([]), create_app())
    )
    assert imported == listed
