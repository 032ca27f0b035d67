"""All commands with an output: an input is never an output, and files of another origin survive."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from command_tree import COMMANDS, ROOTS, maira, radfact
from typer.testing import CliRunner

from radfact.errors import ErrorCode, InputError

APPS = {"radfact": radfact, "maira": maira}
INPUTS: dict[str, list[str]] = {
    "radfact score": ["IN", "--judge", "offline"],
    "radfact evaluate": ["IN", "--metrics", "rouge_l"],
    "radfact compare": ["FOLDER", "FOLDER"],
    "radfact judge-check": ["IN", "--judge", "offline"],
    "radfact split": ["IN", "--judge", "offline"],
    "radfact export": ["FOLDER"],
    "radfact meta agreement": ["IN", "--metrics", "rouge_l"],
    "radfact meta examples": [],
    "radfact meta pairs": ["IN"],
    "radfact meta corrections": ["IN", "--judge", "openai:m"],
    "radfact meta inject": ["IN"],
    "radfact meta detect": ["IN", "--metrics", "rouge_l"],
    "radfact meta rexamine": ["IN", "--styler", "openai:m", "--metrics", "rouge_l"],
    "radfact meta ensemble fit": ["IN", "--judges", "a=FOLDER", "--better", "lower"],
    "radfact meta ensemble apply": ["IN", "--judges", "a=FOLDER"],
    "maira stats": ["IN"],
    "maira show": ["IN"],
    "maira pack": ["IN"],
    "maira sentences": ["IN", "--judge", "offline"],
    "maira ablate": ["IN", "--test", "IN", "--judge", "offline"],
    "maira generate": ["--checkpoint", "FOLDER", "--manifest", "IN"],
    "maira ground": ["--checkpoint", "FOLDER", "--manifest", "IN"],
    "maira boxes": ["--checkpoint", "FOLDER", "--manifest", "IN"],
    "maira assemble": ["--encoder", "FOLDER", "--language-model", "FOLDER"],
    "maira judge-data": ["IN", "--task", "entailment", "--teacher", "offline"],
    "maira prepare dicom": ["IN"],
    "maira prepare phantom": [],
    "maira prepare mimic-cxr": ["--root", "FOLDER"],
    "maira prepare mimic-cxr-jpg": ["--root", "FOLDER"],
    "maira prepare ms-cxr": ["--root", "FOLDER", "--images", "FOLDER"],
    "maira prepare padchest": ["--root", "FOLDER", "--reports", "IN"],
    "maira prepare padchest-gr": ["--root", "FOLDER"],
    "maira prepare iu-xray": ["--root", "FOLDER"],
    "maira prepare chexpert-plus": ["--root", "FOLDER"],
    "maira prepare rexgradient": ["--root", "FOLDER"],
    "maira prepare interpret-cxr": ["--root", "FOLDER"],
    "maira prepare coco": ["--root", "IN"],
    "maira prepare table": ["--root", "IN"],
    "maira preferences": ["IN", "IN", "--manifest", "IN"],
    "maira annotate export": ["IN"],
    "maira annotate import": ["IN", "--manifest", "IN"],
    "maira evaluate labels": ["IN", "--manifest", "IN"],
    "maira evaluate baseline": ["--manifest", "IN"],
    "maira evaluate inputs": ["--checkpoint", "FOLDER", "--manifest", "IN", "--drop", "prior", "--judge", "offline"],
    "maira review export": ["IN"],
    "maira review summary": ["IN"],
}
"""Arguments of each command with an output but `--out`; IN is a file and FOLDER a folder with a file."""
FILES = {words for words in INPUTS if words.split(maxsplit=1)[1] in (
    *("judge-check", "split", "export", "meta pairs", "meta inject", "meta ensemble fit", "stats", "show", "sentences"),
    *("generate", "ground", "boxes", "preferences", "annotate import", "evaluate labels", "evaluate baseline"),
)}  # fmt: skip
"""Commands whose output is a file."""
RESUMED = {words for words in INPUTS if words.startswith("maira prepare")} | {
    *("maira generate", "maira ground", "maira boxes", "maira pack", "maira assemble")
}
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


def run(words: str, *arguments: str) -> Any:
    """Run a command with its inputs, and return the error that ends it."""
    name, *rest = words.split()
    given = [text.replace("IN", "in.csv").replace("FOLDER", "input") for text in INPUTS[words]]
    result = CliRunner().invoke(APPS[name], [*rest, *given, *arguments])
    assert result.exit_code, result.output
    return result.exception


def test_the_table_has_every_command_with_an_output() -> None:
    with_output = {
        words for words, command in COMMANDS.items() if any(parameter.name == "out" for parameter in command.params)
    }
    assert with_output == INPUTS.keys()
    assert set(ROOTS) == set(APPS)


@pytest.mark.parametrize("kind", ["same", "dots", "symlink", "hard link"])
@pytest.mark.parametrize("words", [words for words, inputs in INPUTS.items() if inputs])
def test_an_input_is_no_output(words: str, kind: str, place: Path) -> None:
    has_file = any(text == "IN" for text in INPUTS[words])
    source = "in.csv" if has_file else "input" if words not in FILES else "input/config.json"
    if kind == "symlink":
        (place / "out").symlink_to(place / source)
    elif kind == "hard link" and (place / source).is_file():
        (place / "out").hardlink_to(place / source)
    out = {"same": source, "dots": f"input/../{source}"}.get(kind, "out")
    if not Path(out).exists():
        pytest.skip("folders have no hard links")
    before = contents(place)
    for overwrite in ([], ["--overwrite"]) if words not in RESUMED else ([],):
        if overwrite and not has_file and words in FILES:
            continue  # a file in a folder that is an input, but not one that the command wrote
        error = run(words, "--out", out, *overwrite)
        assert isinstance(error, InputError), error
        assert error.code is ErrorCode.OUTPUT_CONFLICT, error
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
    error = run(words, "--out", "out")
    assert isinstance(error, InputError), error
    if not words.startswith("maira prepare") and words not in MODELS | {"maira pack"}:
        # Those read their inputs first, which are none here.
        assert error.code is ErrorCode.OUTPUT_CONFLICT, error
    assert contents(place) == before


@pytest.mark.parametrize("words", INPUTS)
def test_an_output_of_the_wrong_kind_is_one_error(words: str, place: Path) -> None:
    (place / "folder").mkdir()
    (place / "file").write_text("mine")
    for out in ("folder" if words in FILES else "file", "file/below", "/"):
        error = run(words, "--out", out)
        assert isinstance(error, InputError), error
        is_root = out == "/" and words in RESUMED - FILES
        assert is_root or error.code is ErrorCode.OUTPUT_CONFLICT, error
    assert contents(place).keys() == {"in.csv", "input/config.json", "file"}
