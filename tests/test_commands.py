"""Conventions of all commands: help, exit codes, colors, and outputs that are never inputs."""

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from importlib.metadata import version
from inspect import signature, unwrap
from itertools import pairwise
from pathlib import Path
from typing import Any, get_args

import pytest
from command_tree import COMMANDS, ROOTS, command_lines, examples, read
from long_values import DATA
from typer.testing import CliRunner, Result

from maira.cli.main import app as maira
from radfact.cli.main import create_app
from radfact.cli.program import read_examples
from radfact.errors import ErrorCode, InputError
from radfact.io.outputs import Output

APPS = {"radfact": create_app(), "maira": maira}
COLOR = re.compile(r"\x1b\[(?:[0-9;]*;)?[34][0-7]m|\x1b\[38;|\x1b\[48;")


def _run(words: str, *arguments: str) -> Result:
    name, *rest = words.split()
    return CliRunner().invoke(APPS[name], [*rest, *arguments])


@pytest.mark.parametrize("words", COMMANDS)
def test_the_help_has_valid_examples_that_can_be_pasted_into_a_shell(words: str) -> None:
    lines = examples(COMMANDS[words])
    # `maira review DRAFTS` is short for `maira review start DRAFTS`.
    assert any(f"{line} ".startswith(f"{words} ") or read(line) == words for line in lines)
    assert all(map(read, lines))
    block = (COMMANDS[words].help or "").partition("[bold]Examples[/bold]\n")[2].partition("\n\n")[0].splitlines()
    assert [line for line in block if line.lstrip().startswith(("radfact ", "maira ", "--")) and len(line) > 78] == []
    assert [a for a, b in pairwise(block) if b.startswith("      ") and a[-2:] != " \\"] == []


@pytest.mark.parametrize(
    ("program", "table"), [("radfact", read_examples("radfact.cli")), ("maira", read_examples("maira.cli"))]
)
def test_every_example_belongs_to_a_command(program: str, table: Mapping[str, tuple[str, ...]]) -> None:
    assert {f"{program} {words}".strip() for words in table} - COMMANDS.keys() == set()


def test_wrong_examples_are_detected() -> None:
    for line in ("radfact scor x.json", "radfact score --judg offline", "maira prepare phantom --out x --count many"):
        with pytest.raises(Exception, match=r"No such|Invalid|valid integer"):
            read(line)
    with pytest.raises(AssertionError, match="manifest is missing"):
        read("maira generate --checkpoint c --out o.jsonl")
    text = "radfact score a.json \\\n    --judge offline  # free\nX=1 accelerate launch --n 2 -m maira stats m\nls"
    assert command_lines(text) == ["radfact score a.json --judge offline", "maira stats m"]


@pytest.mark.parametrize("words", COMMANDS)
def test_an_unknown_option_or_command_is_exit_code_2_with_a_suggestion(words: str) -> None:
    options = [flag for parameter in COMMANDS[words].params for flag in parameter.opts if flag.startswith("--")]
    option = max((*options, "--help"), key=len)
    names = {f"{option[:-2]}{option[-1]}": option}
    if words in ROOTS:
        names |= {f"{name[:-2]}{name[-1]}x": f"'{name}'" for name in ROOTS[words].commands}
    for name, suggestion in names.items():
        result = _run(words, name, "value")
        assert (result.exit_code, suggestion in re.sub(r"[\s│]+", "", result.output)) == (2, True)


def test_commands_with_an_output_take_a_file_of_options() -> None:
    names = {words: {parameter.name for parameter in command.params} for words, command in COMMANDS.items()}
    assert [words for words, own in names.items() if "out" in own and "config" not in own] == []


@pytest.mark.parametrize("program", ROOTS)
def test_the_version_and_the_exit_codes_are_shown(program: str) -> None:
    result = _run(program, "--version")
    assert (result.exit_code, result.output) == (0, f"{version('maira-radfact')}\n")
    output = _run(program, "--help").output
    assert "0 done; 1 the run failed; 2 wrong input or options;" in output
    assert "3 done, with samples" in output


@pytest.mark.slow
def test_every_help_is_shown_and_loads_no_torch() -> None:
    places = [str(Path(__file__).parent), str(Path(__file__).parents[1])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(places)}
    command = [sys.executable, "-c", DATA["help of all commands"]]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    assert done.stdout == "[]\n"


def _on_a_terminal(command: list[str], environment: Mapping[str, str]) -> str:
    """Return the output of a command on a terminal."""
    spawn = [sys.executable, "-c", "import pty, sys; pty.spawn(sys.argv[1:])", *command]
    return subprocess.run(spawn, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, env=environment).stdout


@pytest.mark.slow
def test_only_terminals_get_color(tmp_path: Path) -> None:
    pairs, results = tmp_path / "pairs.csv", tmp_path / "results"
    pairs.write_text("example_id,prediction,target\na,Effusion.,Effusion.\n")
    score = [sys.executable, "-m", "radfact", "score", str(pairs), "--judge", "offline", "--out", str(results)]
    chosen = ("NO_COLOR", "FORCE_COLOR", "TERM", "PY_COLORS", "GITHUB_ACTIONS")
    inherited = {name: value for name, value in os.environ.items() if name not in chosen}
    terminal = {**inherited, "TERM": "xterm-256color"}
    assert COLOR.search(_on_a_terminal(score, terminal))
    plain = _on_a_terminal(score, {**terminal, "NO_COLOR": "1"})
    assert "logical_f1" in plain
    assert not COLOR.search(plain)
    piped = subprocess.run(score, capture_output=True, text=True, check=True, env=terminal)
    assert "\x1b" not in piped.stdout + piped.stderr


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


def error_of(words: str, *arguments: str) -> ErrorCode:
    """Run a command with its inputs, and return the code of the error that ends it."""
    inputs = [text.replace("IN", "in.csv").replace("FOLDER", "input") for text in INPUTS[words]]
    result = _run(words, *inputs, *arguments)
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
        assert error_of(words, "--out", out, *overwrite) is ErrorCode.OUTPUT_CONFLICT
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
    code = error_of(words, "--out", "out")
    # The others read their inputs first, which are none here.
    assert code is ErrorCode.OUTPUT_CONFLICT or words.startswith("maira prepare") or words in MODELS | {"maira pack"}
    assert error_of(words, "--out", "in.csv/below") is ErrorCode.OUTPUT_CONFLICT
    assert contents(place) == before
