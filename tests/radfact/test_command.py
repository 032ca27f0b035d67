"""Errors of a command as one line and an exit code."""

import pytest
from rich.console import Console
from typer import Exit

from maira.cli.show import exit_with_failures, print_line
from radfact.cli.program import run_command
from radfact.cli.tables import say
from radfact.errors import ErrorCode, InputError, RunError


@pytest.mark.parametrize(
    ("error", "exit_code", "place", "code"),
    [
        (InputError("no such file", code=ErrorCode.FILE_NOT_FOUND, file="a.json"), 2, "a.json: ", "file-not-found"),
        (
            InputError("expected a string", file="a.json", line=3, field="boxes"),
            2,
            "a.json:3: boxes: ",
            "invalid-value",
        ),
        (RunError("the server\nis down"), 1, "the server is down", "run-failed"),
        (ModuleNotFoundError("No module", name="timm"), 1, "the package 'timm'", "missing-requirement"),
        (FileNotFoundError(2, "No such file", "b.json"), 1, "b.json: ", "file-unreadable"),
        (SystemExit(130), 1, "interrupted", "interrupted"),
    ],
)
def test_an_error_is_one_line_with_its_location_and_code(
    error: BaseException, exit_code: int, place: str, code: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def app() -> None:
        raise error

    with pytest.raises(SystemExit) as stop:
        run_command(app, "maira")
    assert stop.value.code == exit_code
    shown = capsys.readouterr().err
    assert shown.startswith(f"maira: {place}")
    assert shown.endswith(f" [{code}]\n")
    assert shown.count("\n") == 1


def test_a_missing_module_of_radfact_is_not_hidden() -> None:
    def app() -> None:
        raise ModuleNotFoundError("No module", name="radfact.gone")

    with pytest.raises(ModuleNotFoundError):
        run_command(app, "radfact")


@pytest.mark.parametrize("steering", ["\x1b[2J\x1b]0;taken\x07", "\x9b2J", "\u202egnp.exe\u202c", "\u2066a\u2069"])
def test_an_id_cannot_steer_the_terminal(steering: str, capsys: pytest.CaptureFixture[str]) -> None:
    def app() -> None:
        raise InputError(f"no such study: {steering}é 数")

    with pytest.raises(SystemExit):
        run_command(app, "maira")
    spelt = steering.encode("unicode_escape").decode()
    assert capsys.readouterr().err == f"maira: no such study: {spelt}é 数 [invalid-value]\n"


def test_skipped_samples_cannot_steer_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(Exit):
        exit_with_failures(Console(), [("\x1b[2J", "no radiograph")])
    print_line(Console(), "\x1b[2J: \u202e")
    say(Console(), "\x1b[2J: \u202e", wrap=False)
    assert not {"\x1b", "\u202e"} & set(capsys.readouterr().out)
