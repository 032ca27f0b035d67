"""Errors of a command as one line and an exit code."""

from __future__ import annotations

import pytest
from rich.console import Console
from typer import Exit

from maira.cli.show import exit_with_failures, print_line
from radfact.cli.program import run_command
from radfact.cli.tables import say_line
from radfact.errors import InputError, RunError


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (InputError("no such file", file="a.json"), 2, "maira: a.json: no such file"),
        (RunError("the server\nis down"), 1, "maira: the server is down"),
        (ModuleNotFoundError("No module", name="timm"), 1, "maira: the package 'timm' is not installed"),
        (FileNotFoundError(2, "No such file", "b.json"), 1, "maira: b.json: No such file"),
        (SystemExit(130), 1, "maira: interrupted"),
    ],
)
def test_what_went_wrong_is_one_line(
    error: BaseException, code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def app() -> None:
        raise error

    with pytest.raises(SystemExit) as stop:
        run_command(app, "maira")
    assert stop.value.code == code
    shown = capsys.readouterr().err
    assert shown.startswith(said)
    assert shown.count("\n") == 1


def test_a_broken_installation_of_our_own_is_not_explained_away() -> None:
    def app() -> None:
        raise ModuleNotFoundError("No module", name="radfact.gone")

    with pytest.raises(ModuleNotFoundError):
        run_command(app, "radfact")


@pytest.mark.parametrize(
    ("steering", "spelt"),
    [
        ("\x1b[2J\x1b]0;taken\x07", r"\x1b[2J\x1b]0;taken\x07"),
        ("\x9b2J", r"\x9b2J"),
        ("\u202egnp.exe\u202c", r"\u202egnp.exe\u202c"),
        ("\u2066a\u2069", r"\u2066a\u2069"),
    ],
)
def test_an_id_cannot_steer_the_terminal(steering: str, spelt: str, capsys: pytest.CaptureFixture[str]) -> None:
    def app() -> None:
        raise InputError(f"no such study: {steering}é 数")

    with pytest.raises(SystemExit):
        run_command(app, "maira")
    assert capsys.readouterr().err == f"maira: no such study: {spelt}é 数\n"


def test_what_was_left_out_cannot_steer_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(Exit):
        exit_with_failures(Console(), [("\x1b[2J", "no radiograph")])
    print_line(Console(), "\x1b[2J: \u202e")
    say_line(Console(), "\x1b[2J: \u202e")
    assert not {"\x1b", "\u202e"} & set(capsys.readouterr().out)
