"""What the README shows of radfact is true."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

README = (Path(__file__).resolve().parents[2] / "README.md").read_text("utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.S)


def test_the_python_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("pandas")
    example = next(block for block in blocks("python") if "RadFact(" in block)
    exec(compile(example, "README.md", "exec"), {})
    assert capsys.readouterr().out.startswith("1.0 1.0\n")


def test_every_option_of_radfact_is_one_that_the_command_has() -> None:
    from typer.main import get_command

    from radfact.cli import app

    known = {"--help"}
    for command in get_command(app).commands.values():  # type: ignore[attr-defined]
        for parameter in command.params:
            known |= {*parameter.opts, *parameter.secondary_opts}
    told = README[README.index("## Score your reports") : README.index("### From Python")]
    assert set(re.findall(r"--[a-z][a-z-]+", told)) <= known


def test_the_configuration_file_names_options_of_the_command() -> None:
    from typer.main import get_command

    from radfact.cli import app

    score = get_command(app).commands["score"]  # type: ignore[attr-defined]
    known = {option.removeprefix("--") for parameter in score.params for option in parameter.opts}
    assert set(yaml.safe_load(blocks("yaml")[0])) <= known
