"""Option models: flags, YAML files, keyword arguments and records from one declaration."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import pytest
import typer
import yaml
from error_checks import raises
from pydantic import Field, PositiveInt, model_validator
from typer.testing import CliRunner

from radfact.cli.command import with_options
from radfact.errors import ErrorCode, InputError
from radfact.options import Option, Options, only, parse_key_values

CASES = yaml.safe_load(Path(__file__).with_name("refused_options.yaml").read_text("utf-8"))["option model"]
REFUSED = [(kind, *case) for kind, cases in CASES.items() for case in cases]
REFUSED.append(("file", "[" * 500, "options.yaml: invalid-format"))  # deeper than Python's stack


class ModelOptions(Options):
    """A model."""

    panel = "Model"

    model: Annotated[str | None, Option("Name of the model.", metavar="NAME")] = None
    model_args: Annotated[Mapping[str, Any], Option("Argument.", flag="--model-arg")] = Field(default_factory=dict)
    parallel: Annotated[PositiveInt | None, Option("Parallel calls.")] = None
    share: Annotated[float, Field(ge=0, le=1), Option("Share.")] = 0.5
    mode: Annotated[Literal["paper", "exact"], Option("Mode.")] = "paper"
    notes: Annotated[tuple[str, ...], Option("Note.", flag="--note")] = ()
    kinds: Annotated[tuple[Literal["a", "b"], ...], Option("Kind.", flag="--kind")] = ()
    narrative: Annotated[bool | None, Option("Form of the reports.", flag="--narrative/--grounded")] = None
    free: Annotated[bool, Option("No grammar.", flag="--free")] = False
    folder: Annotated[Path | None, Option("Folder.")] = None

    @model_validator(mode="after")
    def _fit(self) -> Self:
        if self.mode == "exact" and self.free:
            raise InputError("only with --mode paper", code=ErrorCode.CONFLICTING_OPTIONS, field="free")
        return self


ARGUMENTS = [
    *("--model", "m", "--model-arg", "a=1", "--model-arg", "b=x", "--parallel", "2", "--share", "0.25"),
    *("--mode", "exact", "--note", "one", "--note", "two", "--kind", "b", "--grounded", "--folder", "f"),
]
VALUES: dict[str, Any] = {
    "model": "m",
    "model_args": {"a": "1", "b": "x"},
    "parallel": 2,
    "share": 0.25,
    "mode": "exact",
    "notes": ["one", "two"],
    "kinds": ["b"],
    "narrative": False,
    "free": False,
    "folder": "f",
}


def _run(*arguments: str) -> dict[str, Any]:
    """Run a program of two commands and return the record of its options."""
    app = typer.Typer()

    @app.command()
    @with_options
    def start(options: ModelOptions, table: Annotated[Path | None, typer.Option(help="Table.")] = None) -> None:
        if options.model == "unknown":
            raise InputError("no such argument", field="model_args.a")
        if options.model == "elsewhere":
            raise InputError("no such column", field="model", file="x.csv")
        typer.echo(json.dumps({**options.record(), "table": table and str(table)}))

    @app.command()
    @with_options
    def stop(
        options: Annotated[ModelOptions, only("mode", "share", mode="exact")], other: Annotated[int, typer.Option()] = 1
    ) -> None:
        typer.echo(json.dumps({**options.record(), "other": other}))

    result = CliRunner().invoke(app, [*arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return dict(json.loads(result.stdout))


def test_flags_become_a_checked_model() -> None:
    assert _run("start", *ARGUMENTS) == {**VALUES, "table": None}
    assert _run("start", "--free", "--narrative") == {**ModelOptions(free=True, narrative=True).record(), "table": None}


def test_a_record_is_accepted_as_keyword_arguments_and_as_a_command_line() -> None:
    options = ModelOptions(**VALUES)
    assert ModelOptions(**options.record()) == options
    assert sorted(options.as_arguments()) == sorted(ARGUMENTS)
    assert ModelOptions().as_arguments() == []


@pytest.mark.parametrize("key", ["model_args", "model-arg", "model_arg"])
def test_a_file_holds_options_by_flag_or_argument(key: str, tmp_path: Path) -> None:
    config = tmp_path / "options.yaml"
    config.write_text(f"{key}: {{a: 1, b: x}}\nnote: [one]\ngrounded: true\nshare: 0.1\nother: 3\ntable: t\n")
    expected = ModelOptions(model_args={"a": "1", "b": "x"}, notes=("one",), narrative=False, share=0.3)
    assert _run("start", "--config", str(config), "--share", "0.3") == {**expected.record(), "table": "t"}


def test_a_command_takes_some_fields_with_its_own_defaults() -> None:
    assert _run("stop") == {**ModelOptions(mode="exact").record(), "other": 1}


@pytest.mark.parametrize(("kind", "content", "expected"), REFUSED)
def test_a_wrong_option_of_a_file_a_call_or_a_command_line_is_refused(
    kind: str, content: Any, expected: str, tmp_path: Path
) -> None:
    with raises(expected):
        if kind == "call":
            ModelOptions(**content)
        elif kind == "file":
            (tmp_path / "options.yaml").write_text(content)
            _run("start", "--config", str(tmp_path / "options.yaml"))
        else:
            _run("start", *content.split())


def test_help_comes_from_the_model() -> None:
    assert "parallel: Parallel calls." in (ModelOptions.__doc__ or "")
    with pytest.raises(InputError):
        parse_key_values(["=1"], "--model-arg")
