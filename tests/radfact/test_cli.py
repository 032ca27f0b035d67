"""The command radfact: score, page, judge-check and export."""

import json
import operator
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from chat_server import ChatServer, Reply
from results_folder import write_image, write_manifest

import radfact.judges
import radfact.pages.page
from radfact.errors import InputError
from radfact.io.jsonl import read_json
from radfact.io.options import InputOptions
from radfact.judges import EntailmentQuery, Failure, Splitter, Verdict
from radfact.judges.options import JudgeOptions
from radfact.metrics.options import MetricOptions, RepeatOptions
from radfact.metrics.radfact.options import BootstrapOptions, ScoringOptions
from radfact.options import record_options

Run = Callable[..., tuple[int, str, str]]
LOAD_JUDGE, LOAD_SPLITTER = radfact.judges.load_judge, radfact.judges.load_splitter


class Verbatim:
    """A judge that entails verbatim sentences of the premises and fails on the sentence 'bad'."""

    def __init__(self, name: str) -> None:
        self.name, self.batches = name, 0

    def judge(self, queries: Sequence[EntailmentQuery]) -> list[Verdict | Failure]:
        self.batches += 1
        return [self._verdict(query) for query in queries]

    def _verdict(self, query: EntailmentQuery) -> Verdict | Failure:
        if query.hypothesis == "bad":
            return Failure("no YAML")
        if query.hypothesis in query.premises:
            return Verdict("entailment", (query.premises.index(query.hypothesis),))
        return Verdict("not_entailment")

    def describe(self) -> dict[str, Any]:
        return {"name": self.name}

    def usage(self) -> dict[str, int]:
        return {"calls": 3 * self.batches, "failures": self.batches}


def load_verbatim(name: str, **options: Any) -> Verbatim:
    if name not in ("verbatim", "humble"):
        options = {option: value for option, value in options.items() if value is not None}
        raise InputError(f"unknown judge '{name}' with {options}", field="judge")
    return Verbatim(name)


class Splitting(Verbatim):
    """A judge that splits too."""

    def __init__(self, name: str, splitter: str | None = None) -> None:
        super().__init__(name)
        self.splitter = splitter or name

    def make_splitter(self) -> Splitter:
        return load_spaces(self.splitter)


class Spaces:
    """Splits at every space."""

    def __init__(self, name: str, options: dict[str, Any]) -> None:
        self.name, self.options, self.batches = name, options, 0

    def split(self, narratives: Sequence[str]) -> list[list[str] | Failure]:
        self.batches += 1
        return [narrative.split() for narrative in narratives]

    def describe(self) -> dict[str, Any]:
        return {"name": self.name, "options": {name: str(value) for name, value in self.options.items()}}

    def usage(self) -> dict[str, int]:
        counts = {"calls": 2, "tokens_in": 1_000_000, "tokens_out": 500_000}
        return {name: count * self.batches for name, count in counts.items()}


def load_spaces(name: str, **options: Any) -> Spaces:
    return Spaces(name, {option: value for option, value in options.items() if value is not None})


@pytest.fixture
def run(run_radfact: Run, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run `radfact` with the judges and splitters of this module."""
    monkeypatch.setattr(radfact.judges, "load_judge", load_verbatim)
    monkeypatch.setattr(radfact.judges, "load_splitter", load_spaces)
    return run_radfact


@pytest.fixture
def pairs(tmp_path: Path) -> str:
    box = {"x_min": 0.0, "y_min": 0.0, "x_max": 0.5, "y_max": 0.5}
    nodule = {"text": "Nodule.", "boxes": [box]}
    example = {"example_id": 1, "prediction": [nodule, {"text": "Clear."}], "target": [nodule]}
    (tmp_path / "pairs.json").write_text(json.dumps([example]))
    return "pairs.json"


def write_pairs(path: Path, **candidates: str) -> None:
    """Write pairs of a candidate sentence by sample id and the reference "Clear."."""
    target = [{"text": "Clear."}]
    examples = [
        {"example_id": key, "prediction": [{"text": text}], "target": target} for key, text in candidates.items()
    ]
    path.write_text(json.dumps(examples))


def test_score_writes_a_results_folder_and_prints_a_table(run: Run, pairs: str, tmp_path: Path) -> None:
    code, out, err = run("score", pairs, "--judge", "verbatim", "--out", "done")
    assert (code, err) == (0, "")
    assert {path.name for path in (tmp_path / "done").iterdir()} >= {
        "scores.json", "samples.jsonl", "sentences.jsonl", "run.json", "report.html",
    }  # fmt: skip
    row = next(line for line in out.splitlines() if "logical_precision" in line)
    assert row.split()[4:9:2] == ["0.500", "0.500", "0.500"]
    assert "records read: 1, skipped: 0, pairs: 1" in out
    assert "report.html" in out


def test_run_json_records_judge_options_and_versions(run: Run, pairs: str, tmp_path: Path) -> None:
    run("score", pairs, "--judge", "verbatim", "--out", "done", "--compat", "exact", "--seed", "7", "--bootstrap", "3")
    record = read_json(tmp_path / "done" / "run.json")
    assert record["judge"] == {"name": "verbatim"}
    assert record["options"] == {
        **record_options(
            InputOptions(),
            MetricOptions(metrics=("radfact",)),
            RepeatOptions(),
            JudgeOptions(judge="verbatim"),
            ScoringOptions(compat="exact"),
            BootstrapOptions(bootstrap=3, seed=7),
        ),
        "variants": ["exact"],
    }
    assert record["metrics"]["radfact"]["variant"] == "exact"
    assert (record["calls"], record["failures"]) == (3, 1)
    counts = {"read": 1, "skipped": 0, "empty_candidates": 0, "without_reference": 0}
    assert record["input"] == {"files": ["pairs.json"], "models": [], **counts}
    assert {"python", "maira-radfact", "numpy"} <= set(record["versions"])


@pytest.mark.parametrize(
    ("missing", "code", "message"),
    [
        ("refuse", 2, "--missing skip"),
        ("skip", 3, "excluded: b: no candidate report"),
        ("empty", 0, "pairs: 2, of these 1 with an empty candidate"),
    ],
)
def test_references_without_a_candidate(run: Run, tmp_path: Path, missing: str, code: int, message: str) -> None:
    (tmp_path / "drafts.jsonl").write_text('{"sample_id": "a", "report": [{"text": "Clear."}]}\n')
    rows = [{"sample_id": name, "grounded_findings": [{"text": "Clear."}]} for name in "ab"]
    write_manifest(tmp_path / "manifest.jsonl", *rows)
    files = ["--candidates", "drafts.jsonl", "--references", "manifest.jsonl"]
    exit_code, out, err = run("score", *files, "--judge", "verbatim", "--missing", missing)
    assert exit_code == code
    assert message in out + err


def test_the_file_of_options_takes_precedence_over_the_environment_and_flags_over_the_file(
    run: Run, pairs: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RADFACT_JUDGE", "verbatim")
    assert run("score", pairs)[0] == 0
    (tmp_path / "run.yaml").write_text("judge: magic\nseed: 1\n")
    assert "unknown judge 'magic'" in run("score", pairs, "--config", "run.yaml")[2]
    assert run("score", pairs, "--config", "run.yaml", "--judge", "verbatim", "--narrative", "--seed", "2")[0] == 0
    assert read_json(tmp_path / "results" / "run.json")["options"]["seed"] == 2
    assert read_json(tmp_path / "results" / "scores.json")["scores"]["spatial_f1"]["point"] is None


def test_rich_renders_no_emoji_in_names(run: Run, pairs: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(radfact.judges, "load_judge", lambda name, **_: Verbatim(name))
    assert "judge openai:m: here, paper mode" in run("score", pairs, "--judge", "openai:m: here")[1]


def test_an_empty_judge_in_the_environment_is_no_judge(run: Run, pairs: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RADFACT_JUDGE", "")
    code, _, err = run("score", pairs)
    assert (code, err.endswith("[missing-option]\n")) == (2, True)


def test_options_reach_the_judge(run: Run, pairs: str) -> None:
    options = {"--base-url": "U", "--few-shots": "F", "--system": "S", "--format": "schema", "--batch": "report",
               "--concurrency": "8", "--judge-arg": "seed=1", "--out": "done"}  # fmt: skip
    _, _, err = run("score", pairs, "--judge", "magic", *(word for option in options.items() for word in option))
    for option in (
        "'base_url': 'U'", "'judge_args': {'seed': '1'}", "'few_shots': PosixPath('F')", "'system': PosixPath('S')",
        "'answer_format': 'schema'", "'batch': 'report'", "'concurrency': 8", "'cache': PosixPath('done/cache')",
    ):  # fmt: skip
        assert option in err
    _, _, err = run("score", pairs, "--judge", "magic", "--out", "done", "--cache", "responses")
    assert "'cache': PosixPath('responses')" in err


def test_excluded_samples_are_listed_and_give_exit_code_3(run: Run, tmp_path: Path) -> None:
    write_pairs(tmp_path / "pairs.json", x7="bad", x8="Clear.")
    code, out, _ = run("score", "pairs.json", "--judge", "verbatim")
    assert code == 3
    assert "excluded: x7: no YAML" in out
    assert run("score", "pairs.json", "--judge", "verbatim", "--on-failure", "not-entailed")[0] == 0
    assert run("score", "pairs.json", "--judge", "verbatim", "--on-failure", "stop")[0] == 1


@pytest.mark.parametrize("options", [[], ["--on-failure", "stop"]])
def test_a_failed_run_keeps_earlier_results(run: Run, pairs: str, options: list[str], tmp_path: Path) -> None:
    run("score", pairs, "--judge", "verbatim")
    before = {path.name: path.read_bytes() for path in (tmp_path / "results").iterdir() if path.is_file()}
    write_pairs(tmp_path / pairs, x7="bad")
    code, _, err = run("score", pairs, "--judge", "verbatim", *options)
    assert code == 1
    assert "no YAML" in err
    assert {path.name: path.read_bytes() for path in (tmp_path / "results").iterdir() if path.is_file()} == before


@pytest.mark.parametrize(
    ("arguments", "location", "error_code"),
    [
        (["nowhere.json", "--judge", "verbatim"], "nowhere.json: ", "file-not-found"),
        (["empty.json", "--judge", "verbatim"], "empty.json: ", "empty-input"),
        (["pairs.json", "--judge", "magic"], "--judge: ", "invalid-value"),
        (["--judge", "verbatim"], "", "conflicting-options"),
        (["pairs.json", "--candidates", "x.jsonl", "--judge", "verbatim"], "", "conflicting-options"),
        (["pairs.json", "--judge", "verbatim", "--manifest", "m.jsonl"], "m.jsonl: ", "file-not-found"),
        (["pairs.csv", "--judge", "verbatim", "--grounded"], "--grounded ", "conflicting-options"),
        (["pairs.json", "--judge", "verbatim", "--workers", "2"], "--workers: ", "conflicting-options"),
        (["pairs.json"], "--judge: ", "missing-option"),
    ],
)
@pytest.mark.usefixtures("pairs")
def test_wrong_input_is_one_line_and_exit_code_2(
    run: Run, arguments: list[str], location: str, error_code: str, tmp_path: Path
) -> None:
    (tmp_path / "empty.json").write_text("[]")
    narrative_pairs(tmp_path)
    code, out, err = run("score", *arguments)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith(f"radfact: {location}")
    assert err.endswith(f" [{error_code}]\n")
    assert not (tmp_path / "results").exists()


def narrative_pairs(tmp_path: Path) -> str:
    (tmp_path / "pairs.csv").write_text("example_id,prediction,target\n5,a b,b c\n")
    return "pairs.csv"


@pytest.fixture
def splitting(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make judges split, and add a module with two custom judges: one that splits and a function."""
    del run
    monkeypatch.setattr(
        radfact.judges, "load_judge", lambda name, **_: LOAD_JUDGE(name) if ":" in name else Splitting(name)
    )
    module = ModuleType("judges_that_split")
    vars(module).update(judge=Splitting("custom", "custom rules"), function=operator.contains)
    monkeypatch.setitem(sys.modules, module.__name__, module)


@pytest.mark.usefixtures("splitting")
@pytest.mark.parametrize(
    ("judge", "options", "message"),
    [
        ("judge", ["--splitter-arg", "ontology=x"], "--splitter-arg: the judge's own splitter"),
        ("judge", ["--splitter-few-shots", "none"], "--splitter-few-shots: the judge's own splitter"),
        ("function", ["--splitter-few-shots", "none"], "--splitter-few-shots: expected no such option"),
        ("function", ["--splitter", "python:judges_that_split:function"], "--splitter: expected offline"),
    ],
)
def test_options_that_the_splitter_does_not_take_are_refused(
    run: Run, tmp_path: Path, judge: str, options: list[str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(radfact.judges, "load_splitter", LOAD_SPLITTER)
    code, _, err = run("score", narrative_pairs(tmp_path), "--judge", f"python:judges_that_split:{judge}", *options)
    assert (code, err.count("\n")) == (2, 1)
    assert err.startswith(f"radfact: {message}")


def test_page_is_the_same_again_with_images_and_notes_of_the_run_while_the_manifest_exists(
    run: Run, pairs: str, tmp_path: Path
) -> None:
    write_image(tmp_path / "radiograph.png")
    write_manifest(tmp_path / "manifest.jsonl", {"sample_id": "1", "frontal": "radiograph.png"})
    run("score", pairs, "--judge", "verbatim", "--manifest", "manifest.jsonl", "--note", "Phantoms.", "--out", "done")
    page = tmp_path / "done" / "report.html"
    first = page.read_text()
    assert "data:image/jpeg" in first
    page.unlink()
    code, out, _ = run("page", "done")
    assert (code, "report.html" in out, page.read_text()) == (0, True, first)
    (tmp_path / "manifest.jsonl").unlink()
    assert run("page", "done", "--note", "Not patients.")[0] == 0
    assert "(manifest.jsonl) is no longer where it was" in page.read_text()
    assert "Not patients." in page.read_text()
    assert run("page", "nowhere")[0] == 2


REMOTE = ["--judge", "humble", "--base-url", "U", "--judge-arg", "seed=1", "--few-shots", "F"]
CUSTOM = "python:judges_that_split"


@pytest.mark.usefixtures("splitting")
@pytest.mark.parametrize(
    ("options", "splitter", "expected"),
    [
        (["--judge", "humble"], "humble", {}),
        (["--judge", "humble", "--splitter", "offline"], "offline", {}),
        (["--judge", f"{CUSTOM}:judge"], "custom rules", {}),
        (["--judge", f"{CUSTOM}:judge", "--splitter", "offline"], "offline", {}),
        (
            ["--judge", f"{CUSTOM}:function", "--splitter-arg", "ontology=mine.yaml"],
            "offline",
            {"splitter_args": "{'ontology': 'mine.yaml'}"},
        ),
        # The splitter of a judge has the options of the judge.
        (
            [*REMOTE, "--splitter-few-shots", "G"],
            "humble",
            {"base_url": "U", "splitter_args": "{'seed': '1'}", "few_shots": "G"},
        ),
        # A separate splitter does not.
        (
            [*REMOTE, "--splitter", "openai:m", "--splitter-arg", "top_p=1"],
            "openai:m",
            {"base_url": None, "splitter_args": "{'top_p': '1'}", "few_shots": None},
        ),
    ],
)
def test_choice_of_the_splitter_and_its_options(
    run: Run, tmp_path: Path, options: list[str], splitter: str, expected: dict[str, str | None]
) -> None:
    _, out, _ = run("score", narrative_pairs(tmp_path), *options)
    record = read_json(tmp_path / "results" / "run.json")["splitter"]
    assert record["name"] == splitter
    assert f"narratives split by {splitter}" in out
    assert {name: record["options"].get(name) for name in expected} == expected


def test_costs_are_printed_if_prices_are_known(run: Run, tmp_path: Path) -> None:
    _, out, _ = run("score", narrative_pairs(tmp_path), "--judge", "verbatim", "--price", "2,4")
    assert "splitter: 2 calls, tokens 1M in, 500k out, cost 4.00" in out


@pytest.mark.parametrize("price", ["2", "2,-1", "1,2,3", "nan,1"])
def test_a_price_is_two_numbers(run: Run, pairs: str, price: str) -> None:
    code, _, err = run("score", pairs, "--judge", "verbatim", "--price", price)
    assert code == 2
    assert err.startswith("radfact: --price: ")
    assert f"found '{price}'" in err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["pairs.json", "--judge", "verbatim"], ""),
        (["pairs.json", "--judge", "humble"], "of the judge verbatim"),
        (["pairs.json", "--judge", "verbatim", "--compat", "exact"], "compat paper"),
        (["pairs.json", "--judge", "verbatim", "--seed", "7"], "with seed 42"),
        (["pairs.json", "--judge", "verbatim", "--narrative"], "without a splitter"),
        (["other.json", "--judge", "verbatim"], "of other files (pairs.json)"),
    ],
)
def test_replaced_scores_of_another_run_are_reported(
    run: Run, pairs: str, tmp_path: Path, options: list[str], message: str
) -> None:
    run("score", pairs, "--judge", "verbatim")
    (tmp_path / "other.json").write_text((tmp_path / pairs).read_text())
    _, out, _ = run("score", *options)
    assert ("results holds scores" in out) == bool(message)
    assert message in out


def labeled(tmp_path: Path) -> str:
    """Write two judgments that a verbatim judge gets right and one that it misses."""
    example = {
        "input": {"phrases_A": ["Clear.", "Effusion."], "phrases_B": ["Clear."]},
        "output": {
            "phrases_A_evidenced": [
                {"phrase": "Clear.", "status": "entailment", "evidence": ["Clear."], "topic": "normal"},
                {"phrase": "Effusion.", "status": "neutral", "evidence": [], "topic": "fluid"},
            ],
            "phrases_B_evidenced": [
                {"phrase": "Lungs clear.", "status": "entailment", "evidence": ["Clear."], "topic": "normal"},
            ],
        },
    }
    (tmp_path / "labeled.json").write_text(json.dumps([example]))
    return "labeled.json"


def test_a_judge_is_checked_against_labeled_judgments(run: Run, tmp_path: Path) -> None:
    code, out, _ = run("judge-check", labeled(tmp_path), "--judge", "verbatim", "--out", "check.json")
    assert code == 0
    check = read_json(tmp_path / "check.json")
    assert (check["n"], check["accuracy"], check["precision"], check["recall"]) == (3, pytest.approx(2 / 3), 1.0, 0.5)
    assert check["judge_settings"] == {"name": "verbatim"}
    row = next(line for line in out.splitlines() if "normal" in line)
    assert row.split()[3:12:2] == ["2", "1", "1", "0", "0.500"]


def test_judge_check_has_default_examples(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(radfact.judges, "load_judge", LOAD_JUDGE)
    code, out, _ = run("judge-check", "--judge", "offline")
    assert code == 0
    assert "laterality" in out


def test_scores_are_exported_in_the_published_layout(run: Run, pairs: str, tmp_path: Path) -> None:
    run("score", pairs, "--judge", "verbatim", "--out", "done")
    assert run("export", "done", "--out", "flat.json")[0] == 0
    assert "logical_precision/p2.5th" in read_json(tmp_path / "flat.json")


def test_coco_files_are_scored(run: Run, tmp_path: Path) -> None:
    coco = {
        "images": [{"id": 1, "file_name": "a.png", "width": 10, "height": 10}],
        "categories": [{"id": 3, "name": "nodule"}],
        "annotations": [{"id": 1, "image_id": 1, "category_id": 3, "bbox": [0, 0, 5, 5]}],
    }
    (tmp_path / "coco.json").write_text(json.dumps(coco))
    assert run("score", "--candidates", "coco.json", "--references", "coco.json", "--judge", "verbatim")[0] == 0
    assert read_json(tmp_path / "results" / "scores.json")["scores"]["spatial_f1"]["point"] == 1.0


@pytest.mark.slow
def test_an_interrupted_run_resumes_from_the_cache(tmp_path: Path, serve: Callable[..., ChatServer]) -> None:
    """The server interrupts the process once the first response must be on disk."""
    running: list[subprocess.Popen[str]] = []
    response = "phrase: x\nevidence: []\nstatus: not_entailment\n"

    def reply(_: dict[str, Any], number: int) -> Reply:
        if number == 2 and running:
            process = running.pop()
            process.send_signal(signal.SIGINT)
            # It must not complete before it receives the signal.
            process.wait(30)
        return 200, {}, response

    server = serve(reply)
    sentences = [{"text": text} for text in ("Clear.", "Effusion.", "Nodule.")]
    example = {"example_id": 1, "prediction": sentences, "target": [{"text": "Mass."}]}
    (tmp_path / "pairs.json").write_text(json.dumps([example]))
    # A shell that runs the tests in the background has its processes ignore Ctrl-C.
    listening = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
    command = [sys.executable, "-c", listening + "from radfact.cli.main import main; main()", "score", "pairs.json"]
    command += ["--out", "done", "--judge", "openai:m", "--base-url", server.base_url, "--concurrency", "1"]
    first = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    running.append(first)
    _, err = first.communicate(timeout=60)
    assert (first.returncode, err.count("\n")) == (1, 1)
    assert err.startswith("radfact: interrupted")
    assert not (tmp_path / "done" / "scores.json").exists()
    before = len(server.requests)
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    # Of the four requests, at most the one in flight is sent again.
    assert before < len(server.requests) <= 4 + 1
