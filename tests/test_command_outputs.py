"""All commands with an output: an input is never an output, and files of another origin survive."""

from inspect import signature, unwrap
from pathlib import Path
from typing import Any, get_args

import pytest
from command_tree import COMMANDS, maira, radfact
from typer.testing import CliRunner

from radfact.errors import ErrorCode, InputError
from radfact.io.outputs import Output

APPS = {"radfact": radfact, "maira": maira}
OPTIONAL = {"radfact score", "radfact evaluate", "radfact judge-check", "maira judge-data"}
"""Commands whose input, a file, is not required."""
FOLDERS = {"checkpoint", "encoder", "folder", "folders", "images", "language_model", "root"}
"""Parameters that take a folder."""
VALUES = {"judges": "a=FOLDER", "task": "entailment"}
"""Values of required options that take no path."""


def _inputs(words: str) -> list[str]:
    """Return the required arguments of a command but `--out`; IN is a file and FOLDER a folder with a file."""
    given = ["IN"] if words in OPTIONAL else []
    for parameter in COMMANDS[words].params:
        if parameter.required and parameter.name != "out":
            value = VALUES.get(parameter.name, "FOLDER" if parameter.name in FOLDERS else "IN")
            given += [value] if parameter.param_type_name == "argument" else [parameter.opts[0], value]
    return given


def _output(command: Any) -> Output | None:
    annotation = signature(unwrap(command.callback), eval_str=True).parameters["out"].annotation
    return next((item for item in get_args(annotation) if isinstance(item, Output)), None)


OUTPUTS = {
    words: _output(command)
    for words, command in COMMANDS.items()
    if any(parameter.name == "out" for parameter in command.params)
}
INPUTS = {words: _inputs(words) for words in OUTPUTS}
FILES = {words for words, output in OUTPUTS.items() if output and output.kind == "file"}
"""Commands whose output is a file."""
RESUMED = {words for words, output in OUTPUTS.items() if output and (output.resumes or output.kind == "new folder")}
"""Commands that recognize their own output and have no --overwrite."""
MODELS = {"maira generate", "maira ground", "maira boxes", "maira evaluate inputs"}
"""Commands that read a checkpoint before they look at the content of their output."""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RADFACT_JUDGE", raising=False)
    (tmp_path / "input").mkdir()
    for name in ("in.csv", "input/config.json"):
        (tmp_path / name).write_text('{"of": "others"}\n')
    return tmp_path


def contents(folder: Path) -> dict[str, str]:
    """Return the text of each file in a folder."""
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}


def run(words: str, *arguments: str) -> ErrorCode:
    """Run a command with its inputs, and return the code of the error that ends it."""
    name, *rest = words.split()
    given = [text.replace("IN", "in.csv").replace("FOLDER", "input") for text in INPUTS[words]]
    result = CliRunner().invoke(APPS[name], [*rest, *given, *arguments])
    assert isinstance(result.exception, InputError), result.output
    return result.exception.code


def test_every_output_is_locked() -> None:
    assert len(OUTPUTS) > 40
    assert [words for words, output in OUTPUTS.items() if output is None] == []


@pytest.mark.parametrize("words", [words for words, inputs in INPUTS.items() if inputs])
def test_an_input_is_no_output(words: str, place: Path) -> None:
    """Links to an input are a matter of `lock_output`, whose tests have them."""
    has_file = any(text == "IN" for text in INPUTS[words])
    out = "in.csv" if has_file else "input" if words not in FILES else "input/config.json"
    before = contents(place)
    for overwrite in ([], ["--overwrite"]) if words not in RESUMED else ([],):
        if overwrite and not has_file and words in FILES:
            continue  # a file in a folder that is an input, but not one that the command wrote
        assert run(words, "--out", out, *overwrite) is ErrorCode.OUTPUT_CONFLICT
    assert contents(place) == before


@pytest.mark.parametrize("words", INPUTS)
def test_files_of_another_origin_survive(words: str, place: Path) -> None:
    out = place / "out"
    if words in FILES:
        out.write_text("mine")
    else:
        out.mkdir()
        for name in ("scores.json", "manifest.jsonl", "tasks.json", "notes.txt"):
            (out / name).write_text("mine")
    before = contents(place)
    code = run(words, "--out", "out")
    # The others read their inputs first, which are none here.
    assert code is ErrorCode.OUTPUT_CONFLICT or words.startswith("maira prepare") or words in MODELS | {"maira pack"}
    assert run(words, "--out", "in.csv/below") is ErrorCode.OUTPUT_CONFLICT
    assert contents(place) == before
