"""The documentation, README and CONTRIBUTING: links are valid, commands and examples run, and listed files exist."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from command_tree import COMMANDS, command_lines, examples, read
from PIL import Image
from typer.testing import CliRunner

from docs.metric_tables import FILES, update
from maira.cli.main import app as maira
from maira.data.manifest import read_manifest
from maira.data.pairing import Rules, make_samples
from maira.data.phantoms import write_phantoms
from maira.data.preparation import Conversion, prepare
from maira.evaluate.ablations import read_configs
from maira.generate import drafts
from maira.generate.engine import GenerationOptions
from radfact import Pair, evaluate
from radfact.cli.main import create_app
from radfact.errors import ErrorCode, ExitCode
from radfact.io.pairs import read_drafts, read_pairs

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
TEXTS = {
    path.relative_to(DOCS).as_posix(): path.read_text("utf-8")
    for path in sorted((*DOCS.glob("*.md"), *DOCS.glob("tutorials/*.md")))
} | {name: (ROOT / name).read_text("utf-8") for name in ("README.md", "CONTRIBUTING.md")}
SECTIONS: dict[str, str] = dict(re.findall(r"^## (.*?)\n(.*?)(?=^## |\Z)", TEXTS["CONTRIBUTING.md"], re.M | re.S))
GUIDES = (
    *(f"tutorials/{name}.md" for name in ("score", "draft", "train", "judge")),
    *("recipes.md", "what-radfact-measures.md"),
    *("index.md", "score.md", "prepare.md", "generate.md", "review.md", "train.md", "clusters.md"),
)
"""Pages whose blocks marked sh or python run unchanged, in order."""
PUBLISHED = ("configs/endpoints", "configs/report_to_phrases.yaml")
"""Files of the published package."""
FENCE = re.compile(r"^```(\S*)\n(.*?)^```$", re.M | re.S)
SAVED = re.compile(r"Save this as `([\w.-]+)`:\n\n```\w+\n(.*?)^```$", re.M | re.S)
"""A file that the reader of a page writes."""


def _blocks(page: str, language: str) -> list[str]:
    return [text for name, text in FENCE.findall(TEXTS[page]) if name == language]


@pytest.mark.parametrize("page", TEXTS)
def test_commands_and_options_named_on_a_page_exist(page: str) -> None:
    lines = [line for _, block in FENCE.findall(TEXTS[page]) for line in command_lines(block)]
    assert all(map(read, lines))
    parameters = [parameter for command in COMMANDS.values() for parameter in command.params]
    known = {option for parameter in parameters for option in (*parameter.opts, *parameter.secondary_opts)}
    named = re.findall(r"(?<![\w-])--[a-z][\w-]+", FENCE.sub("", TEXTS[page]))
    # Options with an underscore are others'.
    assert {option for option in named if "_" not in option} - known <= {"--help"}


@pytest.mark.parametrize("page", TEXTS)
def test_sh_blocks_contain_only_our_commands_and_are_on_pages_that_are_run(page: str) -> None:
    blocks = _blocks(page, "sh")
    assert bool(blocks) == (page in (*GUIDES, "README.md"))
    for block in blocks:
        whole = block.replace("\\\n", "").strip().splitlines()
        assert len(command_lines(block)) == len([line for line in whole if not line.startswith("#")])


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current directory of a user: a folder with checkpoints and configs, and nothing made yet."""
    monkeypatch.chdir(tmp_path)
    for name in ("checkpoints", "configs"):
        (tmp_path / name).symlink_to(ROOT / name)
    return tmp_path


def _run(lines: Iterable[str]) -> dict[str, str]:
    """Run commands, each once and with few studies, and return what each printed."""
    printed = {}
    for line in dict.fromkeys(lines):
        name, *arguments = shlex.split(line.replace("--count 24", "--count 12"))
        result = CliRunner().invoke(maira if name == "maira" else create_app(), arguments)
        assert result.exit_code == 0, f"{line}\n{result.output}\n{result.exception!r}"
        printed[line] = result.output
    return printed


def _run_page(page: str, done: dict[str, str]) -> None:
    """Run the blocks of a page that are not done, in order, and compare what they print with the blocks of outputs."""
    for name, text in SAVED.findall(TEXTS[page]):
        Path(name).write_text(text, "utf-8")
    lines: list[str] = []
    for language, block in FENCE.findall(TEXTS[page]):
        if language == "python":
            exec(compile(block, page, "exec"), {})
        elif language == "sh":
            lines = command_lines(block)
            done |= _run(line for line in lines if line not in done)
        elif language == "output":
            printed = "".join(done[line] for line in lines)
            assert [line for line in block.splitlines() if line not in printed] == [], printed


@pytest.mark.slow
def test_commands_of_the_readme_run_after_make_demo(clone: Path) -> None:
    makefile = (ROOT / "Makefile").read_text("utf-8")
    variables = dict(re.findall(r"^(\w+) := (.*)$", makefile, re.M))
    demo = makefile.partition("\ndemo: install\n")[2].partition("\n\n")[0].replace("$(BIN)/", "")
    made = command_lines(re.sub(r"\$\((\w+)\)", lambda match: variables[match[1]], demo))
    _run(line for line in made if "radiograph" not in line)
    _run_page("README.md", {})
    for name in ("scores/report.html", "six/drafts.jsonl", "training/checkpoint", "detection"):
        assert (clone / "demo" / name).exists()


@pytest.mark.slow
def test_commands_of_the_guides_run(clone: Path) -> None:
    done: dict[str, str] = {}
    for page in GUIDES:
        _run_page(page, done)
    for made in ("results/drafts/report.html", "grounded.scores.json", "runs/try/checkpoint", "try/run/checkpoint"):
        assert (clone / made).exists()


@pytest.mark.slow
def test_examples_of_the_help_run_in_order(clone: Path) -> None:
    lines = examples(COMMANDS["maira"])
    assert {*lines} >= {*examples(COMMANDS["maira train"])}
    # The review is a server, which runs until it is terminated.
    _run(line for line in lines if read(line) != "maira review start")
    assert (clone / "runs/try/checkpoint").is_dir()


@pytest.mark.usefixtures("clone")
def test_the_run_configs_of_the_example_of_ablate_find_their_data() -> None:
    _run(["maira prepare phantom --count 12 --seed 3 --out phantoms"])
    (line,) = examples(COMMANDS["maira ablate"])
    words = shlex.split(line.partition(" --")[0])[2:]
    overrides = [word for word in words if "=" in word]
    for config in read_configs([Path(word) for word in words if word not in overrides], overrides):
        config.train.check_sources()


def test_make_demo_stops_without_the_real_radiograph(tmp_path: Path) -> None:
    if shutil.which("make") is None:
        pytest.skip("there is no make")
    (tmp_path / "bin").mkdir()
    (tmp_path / "installed").touch()
    for name, script in (("python", "exit 3"), ("maira", f'echo "$@" >> {tmp_path / "asked"}')):
        (tmp_path / "bin" / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    made = subprocess.run(["make", "demo", f"VENV={tmp_path}", f"OUT={tmp_path}"], cwd=ROOT, capture_output=True)
    assert made.returncode == 2
    assert not (tmp_path / "asked").exists()


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_metric_tables_match_metric_attributes(path: Path) -> None:
    """`python docs/metric_tables.py` writes them."""
    text = path.read_text("utf-8")
    assert "<!-- metrics: " in text
    assert update(text) == text


def test_readme_links_are_valid_and_absolute() -> None:
    """The index of packages shows the README, too, and resolves no relative link."""
    targets = dict(re.findall(r"^\[(\S+)\]: (\S+)$", TEXTS["README.md"], re.M))
    assert {*re.findall(r"\]\[(.*?)\]", TEXTS["README.md"])} <= targets.keys()
    links = [*targets.values(), *re.findall(r"\]\((.*?)\)", TEXTS["README.md"])]
    assert [link for link in links if not link.startswith("https://")] == []
    for link in targets.values():
        path, _, part = re.sub(".*/maira-radfact/maira-radfact/(blob/)?main/", "", link).partition("#")
        assert (ROOT / path).is_file()
        headings = re.findall(r"^#+ (.*)$", (ROOT / path).read_text("utf-8"), re.M) if part else []
        assert part in {"", *(re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings)}


@pytest.mark.parametrize("page", TEXTS)
def test_files_and_addresses_named_on_a_page_exist(page: str) -> None:
    named = re.findall(r"`((?:configs|checkpoints|radfact|maira|data|docs|tests|encoders)/[\w./*-]+)`", TEXTS[page])
    paths = {path for path in named if "NAME" not in path} - {*PUBLISHED}
    assert [path for path in paths if not list(ROOT.glob(path))] == []
    links = re.findall(r"\]\(([a-z]+:[^)]*)\)", FENCE.sub("", TEXTS[page]))
    assert [link for link in links if not re.fullmatch(r"https://[\w.-]+\.[a-z]{2,}(?:/[^\s]*)?", link)] == []


def test_records_of_the_files_page_are_readable(tmp_path: Path) -> None:
    manifest, drafts, pairs, rexrank = _blocks("files.md", "json")
    texts = {"manifest.jsonl": json.dumps(json.loads(manifest)), "drafts.jsonl": drafts}
    for name, text in {**texts, "pairs.json": pairs, "rexrank.json": rexrank}.items():
        (tmp_path / name).write_text(text)
    (study,) = read_manifest(tmp_path / "manifest.jsonl")
    assert read_drafts(tmp_path / "drafts.jsonl").keys() == {study.sample_id}
    assert len(read_pairs(tmp_path / "pairs.json")) == 1
    assert read_pairs(tmp_path / "rexrank.json")[0].candidate == "Left pleural effusion."


@pytest.mark.parametrize(
    ("page", "printed"), [("score.md", "1.0 1.0\n"), ("README.md", "0.5 0.5\n"), ("metrics.md", "2.0\n")]
)
def test_the_example_in_python_runs_without_a_file(
    page: str, printed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (example,) = _blocks(page, "python")
    exec(compile(example, page, "exec"), {})
    assert capsys.readouterr().out.startswith(printed)
    assert list(tmp_path.iterdir()) == []


def test_options_of_the_configuration_file_exist() -> None:
    (example,) = _blocks("score.md", "yaml")
    known = {option.removeprefix("--") for one in COMMANDS["radfact score"].params for option in one.opts}
    assert set(yaml.safe_load(example)) <= known


def test_the_page_of_exit_codes_lists_every_code() -> None:
    rows = re.findall(r"^\| (.*?) \|", TEXTS["exit-codes.md"], re.M)
    codes = {code for row in rows for code in re.findall(r"`([\w-]+)`", row)}
    assert codes == {code.value for code in ErrorCode}
    assert [int(row) for row in rows if row.isdigit()] == [code.value for code in ExitCode]


def _run_example(title: str) -> dict[str, Any]:
    """Execute the example of a guide and return its names."""
    (example,) = re.findall(r"^```python\n(.*?)^```$", SECTIONS[title], re.M | re.S)
    names: dict[str, Any] = {"__name__": "example"}
    exec(compile(example, "CONTRIBUTING.md", "exec"), names)
    return names


def test_a_new_metric_scores_pairs() -> None:
    metric = _run_example("Add a metric")["LengthRatio"]()
    pairs = [Pair("1", "Clear lungs.", "The lungs are clear."), Pair("2", "Clear lungs.", "")]
    result = evaluate(pairs, [metric], bootstrap=0)
    assert result.scores["length_ratio"] == 0.5
    assert result.summaries["length_ratio"].n == 1
    assert result.failures[1] == {"length_ratio": "empty reference"}


def test_a_new_backend_answers_through_the_client() -> None:
    assert _run_example("Add a judge provider")["responses"] == ["NO EFFUSION"]


def test_a_new_reader_prepares_an_archive(tmp_path: Path) -> None:
    archive, out = tmp_path / "archive", tmp_path / "out"
    archive.mkdir()
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (64, 64), np.uint8)).save(archive / "a.png")
    table = "study,patient,image,findings\ns1,p1,a.png,The lungs are clear.\ns2,p1,gone.png,Small effusion.\n"
    (archive / "reports.csv").write_text(table)
    read = _run_example("Add an archive reader")["read_clinic"](archive)
    make, conversion = partial(make_samples, read, Rules()), Conversion(size=32)
    result = prepare("clinic", str(archive), make, out, conversion, unread=read.failures)
    (study,) = read_manifest(out / "manifest.jsonl")
    assert (study.study_id, study.findings) == ("s1", "The lungs are clear.")
    assert [failure.source for failure in result.failures] == ["s2"]


def test_a_new_engine_drafts_reports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    example = _run_example("Add a generation engine")
    monkeypatch.setattr(drafts, "start_engine", example["ConstantEngine"])
    list(write_phantoms(tmp_path / "phantoms", count=2, seed=0, size=64))
    studies = read_manifest(tmp_path / "phantoms" / "manifest.jsonl")
    out = tmp_path / "drafts.jsonl"
    options = GenerationOptions(task="findings")
    count, failures = drafts.generate_drafts(studies, ROOT / "checkpoints/phantom", out, options)
    assert (count, failures) == (2, [])
    assert set(read_drafts(out).values()) == {"The lungs are clear."}


@pytest.mark.slow
def test_a_failed_test_is_repeated_by_the_command_that_pytest_prints(tmp_path: Path) -> None:
    (tmp_path / "test_sum.py").write_text(
        "import pytest\n"
        "@pytest.mark.parametrize('number', [2, 3], ids=['right', \"it's wrong\"])\n"
        "def test_sum(number):\n    assert 1 + 1 == number\n"
    )
    command = [sys.executable, "-m", "pytest", "-q", "-p", "conftest", "test_sum.py"]
    environment = os.environ | {"PYTHONPATH": str(ROOT / "tests")}
    printed = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True).stdout
    assert "1 failed, 1 passed" in printed
    (repeat,) = re.findall(r"^env PYTHONPATH=.*", printed, re.M)
    repeated = subprocess.run(repeat, shell=True, cwd=tmp_path, capture_output=True, text=True).stdout
    assert "1 failed in" in repeated
    assert "it's wrong" in repeated
