"""Commands: options from one model, errors on one line, what an import loads, and `radfact doctor`."""

import json
import subprocess
import sys
from collections.abc import Mapping
from io import BytesIO, TextIOWrapper
from pathlib import Path
from typing import Annotated, Any, Literal, Self
from unittest.mock import Mock

import pytest
import typer
import yaml
from error_checks import raises
from pydantic import Field, PositiveInt, model_validator
from rich.console import Console
from typer import Exit
from typer.testing import CliRunner, Result

import radfact
from maira.cli.show import exit_with_failures, print_line
from radfact import machine
from radfact.cli.command import with_options
from radfact.cli.doctor import COMMAND_EXTRAS, KEYS, check_all, run_checks
from radfact.cli.main import create_app
from radfact.cli.program import run_command
from radfact.cli.tables import say
from radfact.errors import ErrorCode, InputError, RunError
from radfact.llm.langchain import PARTNERS
from radfact.metrics.registry import MetricEntry
from radfact.options import Option, Options, only, parse_key_values


@pytest.mark.parametrize(
    ("error", "exit_code", "place", "code"),
    [
        (InputError("no such file", code=ErrorCode.FILE_NOT_FOUND, file="a.json"), 2, "a.json: ", "file-not-found"),
        (InputError("no text", file="a.json", line=3, field="boxes"), 2, "a.json:3: boxes: ", "invalid-value"),
        (RunError("the server\nis down"), 1, "the server is down", "run-failed"),
        (ModuleNotFoundError("No module", name="timm"), 1, "the package 'timm'", "missing-requirement"),
        (FileNotFoundError(2, "No such file", "b.json"), 1, "b.json: ", "file-unreadable"),
        (SystemExit(130), 1, "interrupted", "interrupted"),
    ],
)
def test_an_error_is_one_line_with_its_location_and_code(
    error: BaseException, exit_code: int, place: str, code: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        run_command(Mock(side_effect=error), "maira")
    assert stop.value.code == exit_code
    shown = capsys.readouterr().err
    assert shown.startswith(f"maira: {place}")
    assert shown.endswith(f" [{code}]\n")
    assert shown.count("\n") == 1


def test_a_missing_module_of_radfact_is_not_hidden() -> None:
    with pytest.raises(ModuleNotFoundError):
        run_command(Mock(side_effect=ModuleNotFoundError("No module", name="radfact.gone")), "radfact")


@pytest.mark.parametrize("steering", ["\x1b[2J\x1b]0;taken\x07", "\x9b2J", "\u202egnp.exe\u202c", "\u2066a\u2069"])
def test_an_id_cannot_steer_the_terminal(steering: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        run_command(Mock(side_effect=InputError(f"no such study: {steering}é 数")), "maira")
    spelt = steering.encode("unicode_escape").decode()
    assert capsys.readouterr().err == f"maira: no such study: {spelt}é 数 [invalid-value]\n"


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252"])
def test_an_output_that_is_not_utf_8_has_other_characters(encoding: str, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = TextIOWrapper(BytesIO(), encoding=encoding)
    monkeypatch.setattr("sys.stdout", stream)
    run_command(lambda: print("score \u2191, \u2193 \u5fc3"), "radfact")
    stream.flush()
    assert stream.buffer.getvalue() == b"score ^, v ?\n"  # type: ignore[attr-defined]


def test_skipped_samples_cannot_steer_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(Exit):
        exit_with_failures(Console(), [("\x1b[2J", "no radiograph")])
    print_line(Console(), "\x1b[2J: \u202e")
    say(Console(), "\x1b[2J: \u202e", wrap=False)
    assert not {"\x1b", "\u202e"} & set(capsys.readouterr().out)


FILE = yaml.safe_load(Path(__file__).with_name("refused_options.yaml").read_text("utf-8"))
REFUSED = [(kind, *case) for kind, cases in FILE["option model"].items() for case in cases]
REFUSED.append(("file", "[" * 500, "options.yaml: invalid-format"))  # deeper than Python's stack


class ModelOptions(Options):
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
VALUES: dict[str, Any] = FILE["values of the option model"]


def _run(*arguments: str) -> dict[str, Any]:
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
def test_wrong_options_are_refused_wherever_they_are(kind: str, content: Any, expected: str, tmp_path: Path) -> None:
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


HEAVY = {
    *("torch", "transformers", "langchain_core", "langchain_openai", "openai", "aiohttp"),
    *("matplotlib", "PIL", "pycocotools"),
}


def loaded_by(statement: str) -> set[str]:
    """Top-level modules in a fresh interpreter after a statement."""
    code = f"import json, sys\n{statement}\nprint(json.dumps(sorted({{name.split('.')[0] for name in sys.modules}})))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(json.loads(done.stdout))


@pytest.mark.parametrize(("statement", "others"), FILE["imports"])
def test_an_import_loads_nothing_that_it_does_not_need(statement: str, others: list[str]) -> None:
    assert loaded_by(statement) & (HEAVY | {*others}) == set()


def test_every_public_name_exists_and_another_is_an_attribute_error() -> None:
    assert all(getattr(radfact, name) is not None for name in radfact.__all__)
    with pytest.raises(AttributeError, match="no attribute 'RadFract'"):
        _ = radfact.RadFract


def test_the_list_of_commands_agrees_with_their_help() -> None:
    """Only the command that runs is imported; the list has the first lines of the others."""
    from typer.main import get_command

    listed, imported = (
        {
            name: command.get_short_help_str(1000).split(". ")[0].rstrip(".")
            for name, command in get_command(app).commands.items()  # type: ignore[attr-defined]
        }
        for app in (create_app([]), create_app())
    )
    assert imported == listed


def _doctor(*arguments: str) -> Result:
    return CliRunner().invoke(create_app(["doctor"]), ["doctor", *arguments])


def _results(*arguments: str, exit_code: int = 0) -> dict[str, Any]:
    """Return the results of `radfact doctor --json` by section and name, and check its exit code."""
    result = _doctor("--json", *arguments)
    assert result.exit_code == exit_code
    report = json.loads(result.output)
    sections = report["sections"] | {"Commands": report["commands"]}
    return {title: {result["name"]: result for result in results} for title, results in sections.items()}


def test_a_working_installation_is_exit_code_0_and_every_command_is_listed() -> None:
    results = _results()
    assert set(results) == {"Packages", "GPUs", "Judges", "Metrics", "Commands"}
    commands = {"radfact score", "radfact doctor", "radfact meta ensemble apply"}
    assert {results["Commands"][name]["status"] for name in commands} == {"ok"}


@pytest.mark.parametrize(("package", "exit_code", "command", "fix"), FILE["packages out of range"])
def test_a_package_outside_its_range_concerns_the_commands_that_import_it(
    package: str, exit_code: int, command: str, fix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / f"{package.replace('-', '_')}-0.3.1.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 0.3.1\n")
    monkeypatch.syspath_prepend(tmp_path)
    commands = _results(exit_code=exit_code)["Commands"]
    assert (commands[command]["status"], commands[command]["fix"]) == ("missing", fix)
    assert commands[command]["message"].startswith(f"{package} 0.3.1 is outside ")
    assert commands["radfact score"]["status"] == ("missing" if exit_code else "ok")
    printed = _doctor().output
    assert f"{package} 0.3.1 is outside " in printed
    assert f" -> {fix}" in printed


@pytest.mark.parametrize("reader", ["importlib.metadata", "importlib_metadata"])
def test_an_empty_distribution_is_not_installed(reader: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip(reader)
    (tmp_path / "rich-99.dist-info").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    assert machine.installed_version("rich") is None
    assert machine.installed_version("no-such-distribution") is None


def test_a_check_that_raises_is_a_result_in_one_line_and_the_others_run() -> None:
    sections = run_checks(GPUs=Mock(side_effect=OSError("no\nsuch driver")), Judges=list)
    assert [result.message for result in sections["GPUs"]] == ["check failed (OSError: no such driver)"]
    assert sections["Judges"] == []


def test_keys_are_named_and_never_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AZURE_OPENAI_API_KEY", raising=False)
    monkeypatch.setenv("OPENAI_API_KEY", "sk-very-secret")
    results = _results()
    assert results["Judges"]["openai"]["status"] == "ok"
    for output in (json.dumps(results), _doctor().output):
        assert "AZURE_OPENAI_API_KEY" in output
        assert "secret" not in output


def test_a_key_without_its_package_is_missing_something(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("radfact.cli.doctor.importlib.util.find_spec", lambda _: None)
    monkeypatch.setenv("MISTRAL_API_KEY", "x")
    mistral = _results()["Judges"]["mistralai"]
    assert (mistral["status"], mistral["fix"]) == ("missing", 'pip install "maira-radfact[mistralai]"')


def test_providers_and_extras_of_the_tables_exist() -> None:
    assert KEYS.keys() <= PARTNERS.keys()
    assert {*COMMAND_EXTRAS.values()} <= machine.requirements().keys()


def test_weights_are_looked_for_as_the_metrics_do(tmp_path: Path) -> None:
    (tmp_path / "chexbert").mkdir()
    (tmp_path / "chexbert/vocab.txt").touch()
    results = _results("--weights", str(tmp_path))["Metrics"]
    assert results["rouge_l"]["status"] == "ok"
    assert results["green"]["status"] == "note"
    assert results["chexbert"]["status"] == "missing"
    assert f"{tmp_path / 'chexbert'} has no chexbert.pth" in results["chexbert"]["message"]


def test_a_metric_that_cannot_be_loaded_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("radfact.cli.doctor.entries", lambda: {"lost": MetricEntry("lost", "nowhere:Metric")})
    lost = _results()["Metrics"]["lost"]
    assert (lost["status"], "nowhere:Metric" in lost["message"]) == ("wrong", True)


@pytest.mark.parametrize(("script", "status"), FILE["drivers"])
def test_gpus_are_those_of_a_driver(script: str, status: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    (gpu,) = check_all()["GPUs"]
    assert (gpu.status, gpu.message in script) == (status, True)
