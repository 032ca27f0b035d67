"""Errors of a command as one line and an exit code."""

from __future__ import annotations

import pytest

from radfact.command import run_command
from radfact.errors import InputError, RunFailed


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (InputError("no such file", file="a.json"), 2, "maira: a.json: no such file"),
        (RunFailed("the server\nis down"), 1, "maira: the server is down"),
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
