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

import radfact.html.page
import radfact.judges
from radfact.cli.main import main
from radfact.errors import InputError
from radfact.io.jsonl import read_json
from radfact.io.options import InputOptions
from radfact.judges import EntailmentQuery, Failure, Splitter, Verdict
from radfact.judges.options import JudgeOptions
from radfact.metrics.options import MetricOptions
from radfact.options import record_options
from radfact.scoring.options import BootstrapOptions, ScoringOptions

Run = Callable[..., tuple[int, str, str]]
LOAD_JUDGE, LOAD_SPLITTER = radfact.judges.load_judge, radfact.judges.load_splitter


class Verbatim:
    """Entails what stands in the premises word for word, and fails on what is 'bad'."""

    def __init__(self, name: str) -> None:
        self.name, self.portions = name, 0

    def judge(self, questions: Sequence[EntailmentQuery]) -> list[Verdict | Failure]:
        self.portions += 1
        return [self._answer(question) for question in questions]

    def _answer(self, question: EntailmentQuery) -> Verdict | Failure:
        if question.hypothesis == "bad":
            return Failure("no YAML")
        if question.hypothesis in question.premises:
            return Verdict("entailment", (question.premises.index(question.hypothesis),))
        return Verdict("not_entailment")

    def describe(self) -> dict[str, Any]:
        return {"name": self.name} | ({"note": "Not comparable."} if self.name == "humble" else {})

    def usage(self) -> dict[str, int]:
        return {"calls": 3 * self.portions, "failures": self.portions}


def load_verbatim(name: str, **options: Any) -> Verbatim:
    if name == "slow":
        raise KeyboardInterrupt
    if name not in ("verbatim", "humble"):
        given = {option: value for option, value in options.items() if value is not None}
        raise InputError(f"unknown judge '{name}' with {given}", field="judge")
    return Verbatim(name)


class Splitting(Verbatim):
    """One that splits too."""

    def __init__(self, name: str, splitter: str | None = None) -> None:
        super().__init__(name)
        self.splitter = splitter or name

    def make_splitter(self) -> Splitter:
        return load_spaces(self.splitter)


class Spaces:
    """Splits at every space."""

    def __init__(self, name: str, options: dict[str, Any]) -> None:
        self.name, self.options, self.portions = name, options, 0

    def split(self, narratives: Sequence[str]) -> list[list[str] | Failure]:
        self.portions += 1
        return [narrative.split() for narrative in narratives]

    def describe(self) -> dict[str, Any]:
        return {"name": self.name, "options": {name: str(value) for name, value in self.options.items()}}

    def usage(self) -> dict[str, int]:
        counts = {"calls": 2, "tokens_in": 1_000_000, "tokens_out": 500_000}
        return {name: count * self.portions for name, count in counts.items()}


def load_spaces(name: str, **options: Any) -> Spaces:
    return Spaces(name, {option: value for option, value in options.items() if value is not None})


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Run:
    """Runs `radfact` with arguments in an empty folder and gives exit code, standard output and standard error."""
    monkeypatch.setattr(radfact.judges, "load_judge", load_verbatim)
    monkeypatch.setattr(radfact.judges, "load_splitter", load_spaces)
    monkeypatch.delenv("RADFACT_JUDGE", raising=False)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.chdir(tmp_path)

    def command(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["radfact", *arguments])
        code = 0
        try:
            main()
        except SystemExit as stop:
            code = int(stop.code or 0)
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return command


@pytest.fixture
def pairs(tmp_path: Path) -> str:
    box = {"x_min": 0.0, "y_min": 0.0, "x_max": 0.5, "y_max": 0.5}
    nodule = {"text": "Nodule.", "boxes": [box]}
    example = {"example_id": 1, "prediction": [nodule, {"text": "Clear."}], "target": [nodule]}
    (tmp_path / "pairs.json").write_text(json.dumps([example]))
    return "pairs.json"


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
    assert record["options"] == record_options(
        InputOptions(),
        MetricOptions(metrics=("radfact",)),
        JudgeOptions(judge="verbatim"),
        ScoringOptions(compat="exact"),
        BootstrapOptions(bootstrap=3, seed=7),
    )
    assert (record["calls"], record["failures"]) == (3, 1)
    counts = {"read": 1, "skipped": 0, "empty_candidates": 0, "without_reference": 0}
    assert record["input"] == {"files": ["pairs.json"], **counts}
    assert {"python", "maira-radfact", "numpy"} <= set(record["versions"])


def test_candidates_are_scored_against_a_manifest(run: Run, tmp_path: Path) -> None:
    (tmp_path / "drafts.jsonl").write_text('{"sample_id": "a", "report": [{"text": "Clear."}]}\n')
    (tmp_path / "manifest.jsonl").write_text('{"sample_id": "a", "grounded_findings": [{"text": "Clear."}]}\n')
    code, _, _ = run("score", "--candidates", "drafts.jsonl", "--references", "manifest.jsonl", "--judge", "verbatim")
    assert code == 0
    assert read_json(tmp_path / "results" / "scores.json")["scores"]["logical_f1"]["point"] == 1.0


@pytest.mark.parametrize(
    ("missing", "code", "said"),
    [
        ("refuse", 2, "--missing skip"),
        ("skip", 3, "excluded: b: no candidate report"),
        ("empty", 0, "pairs: 2, of these 1 with an empty candidate"),
    ],
)
def test_references_without_a_candidate(run: Run, tmp_path: Path, missing: str, code: int, said: str) -> None:
    (tmp_path / "drafts.jsonl").write_text('{"sample_id": "a", "report": [{"text": "Clear."}]}\n')
    rows = [{"sample_id": name, "grounded_findings": [{"text": "Clear."}]} for name in "ab"]
    write_manifest(tmp_path / "manifest.jsonl", *rows)
    files = ["--candidates", "drafts.jsonl", "--references", "manifest.jsonl"]
    found, out, err = run("score", *files, "--judge", "verbatim", "--missing", missing)
    assert found == code
    assert said in out + err


def test_the_environment_selects_the_judge(run: Run, pairs: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RADFACT_JUDGE", "verbatim")
    assert run("score", pairs)[0] == 0


def test_rich_renders_no_emoji_in_names(run: Run, pairs: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(radfact.judges, "load_judge", lambda name, **_: Verbatim(name))
    assert "judge openai:m: here, paper mode" in run("score", pairs, "--judge", "openai:m: here")[1]


@pytest.mark.parametrize("environment", [{}, {"RADFACT_JUDGE": ""}])
def test_a_judge_is_required(
    run: Run, pairs: str, tmp_path: Path, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    code, _, err = run("score", pairs, "--out", "done")
    assert code == 2
    assert err.startswith("radfact: --judge: ")
    assert err.endswith("[missing-option]\n")
    assert not (tmp_path / "done").exists()


def test_the_note_of_a_judge_is_printed(run: Run, pairs: str) -> None:
    assert "Not comparable." in run("score", pairs, "--judge", "humble")[1]


def test_the_offline_judge_has_a_note_on_comparability(run: Run, pairs: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(radfact.judges, "load_judge", LOAD_JUDGE)
    code, out, _ = run("score", pairs, "--judge", "offline")
    assert code == 0
    assert "not comparable with RadFact-Llama3" in out


def test_options_reach_the_judge(run: Run, pairs: str) -> None:
    options = {"--base-url": "U", "--few-shots": "F", "--system": "S", "--format": "schema", "--batch": "report",
               "--concurrency": "8", "--judge-arg": "seed=1", "--out": "done"}  # fmt: skip
    _, _, err = run("score", pairs, "--judge", "magic", *(word for option in options.items() for word in option))
    for given in (
        "'base_url': 'U'", "'judge_args': {'seed': '1'}", "'few_shots': PosixPath('F')", "'system': PosixPath('S')",
        "'answer_format': 'schema'", "'batch': 'report'", "'concurrency': 8", "'cache': PosixPath('done/cache')",
    ):  # fmt: skip
        assert given in err


def test_excluded_samples_are_listed_and_give_exit_code_3(run: Run, tmp_path: Path) -> None:
    examples = [
        {"example_id": "x7", "prediction": [{"text": "bad"}], "target": [{"text": "Clear."}]},
        {"example_id": "x8", "prediction": [{"text": "Clear."}], "target": [{"text": "Clear."}]},
    ]
    (tmp_path / "pairs.json").write_text(json.dumps(examples))
    code, out, _ = run("score", "pairs.json", "--judge", "verbatim")
    assert code == 3
    assert "excluded: x7: no YAML" in out
    assert run("score", "pairs.json", "--judge", "verbatim", "--on-failure", "not-entailed")[0] == 0
    assert run("score", "pairs.json", "--judge", "verbatim", "--on-failure", "stop")[0] == 1


def test_a_run_without_scores_keeps_earlier_results(run: Run, pairs: str, tmp_path: Path) -> None:
    assert run("score", pairs, "--judge", "verbatim")[0] == 0
    before = (tmp_path / "results" / "scores.json").read_bytes()
    example = {"example_id": "x7", "prediction": [{"text": "bad"}], "target": [{"text": "Clear."}]}
    (tmp_path / "bad.json").write_text(json.dumps([example]))
    code, _, err = run("score", "bad.json", "--judge", "verbatim")
    assert code == 1
    assert "no sample could be scored (no YAML" in err
    assert (tmp_path / "results" / "scores.json").read_bytes() == before


def test_narrative_ignores_boxes(run: Run, pairs: str, tmp_path: Path) -> None:
    assert run("score", pairs, "--judge", "verbatim", "--narrative")[0] == 0
    assert read_json(tmp_path / "results" / "scores.json")["scores"]["spatial_f1"]["point"] is None


def test_grounded_refuses_a_narrative(run: Run, tmp_path: Path) -> None:
    (tmp_path / "pairs.csv").write_text("example_id,prediction,target\n5,a,b\n")
    code, _, err = run("score", "pairs.csv", "--judge", "verbatim", "--grounded")
    assert code == 2
    assert "sample '5' has a narrative" in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere.json", "--judge", "verbatim"], "nowhere.json: no such file"),
        (["empty.json", "--judge", "verbatim"], "empty.json: no pairs to score"),
        (["pairs.json", "--judge", "magic"], "--judge: unknown judge 'magic'"),
        (["--judge", "verbatim"], "expected either a file of pairs, or both --candidates and --references"),
        (["pairs.json", "--candidates", "x.jsonl", "--judge", "verbatim"], "expected either a file of pairs"),
        (
            ["pairs.json", "--judge", "verbatim", "--judge-arg", "seed"],
            "--judge-arg: expected KEY=VALUE",
        ),
        (
            ["pairs.json", "--judge", "verbatim", "--judge-arg", "seed=1", "--judge-arg", "seed=2"],
            "--judge-arg: duplicate key",
        ),
        (["pairs.json", "--judge", "verbatim", "--manifest", "m.jsonl"], "m.jsonl: no such file"),
        (
            ["pairs.json", "--judge", "verbatim", "--out", "pairs.json"],
            "expected a folder for the results, found a file",
        ),
    ],
)
@pytest.mark.usefixtures("pairs")
def test_wrong_input_is_one_line_and_exit_code_2(run: Run, arguments: list[str], message: str, tmp_path: Path) -> None:
    (tmp_path / "empty.json").write_text("[]")
    code, out, err = run("score", *arguments)
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert err.startswith("radfact: ")
    assert message in err
    assert not (tmp_path / "results").exists()


@pytest.mark.parametrize(
    "arguments", [["--nonsense"], ["score", "--compat", "papre"], ["score", "--threshold", "2"], ["scoer"]]
)
def test_a_wrong_option_is_exit_code_2(run: Run, arguments: list[str]) -> None:
    code, _, err = run(*arguments)
    assert code == 2
    assert "Traceback" not in err


def test_an_interrupted_run_is_exit_code_1(run: Run, pairs: str) -> None:
    code, _, err = run("score", pairs, "--judge", "slow")
    assert code == 1
    assert "Traceback" not in err


def test_help_lists_files_and_exit_codes(run: Run) -> None:
    code, out, _ = run("--help")
    assert code == 0
    assert all(word in out for word in ("drafts.jsonl", "manifest.jsonl", "Exit codes", "--judge offline"))


def test_page_writes_the_page_again_with_a_note(run: Run, pairs: str, tmp_path: Path) -> None:
    run("score", pairs, "--judge", "verbatim", "--out", "done")
    (tmp_path / "done" / "report.html").unlink()
    code, out, _ = run("page", "done", "--note", "Phantoms, not patients.")
    assert code == 0
    assert "report.html" in out
    assert "Phantoms, not patients." in (tmp_path / "done" / "report.html").read_text()


def test_page_without_a_results_folder_is_exit_code_2(run: Run) -> None:
    assert run("page", "nowhere")[0] == 2


def test_page_keeps_images_and_notes_of_the_run(run: Run, pairs: str, tmp_path: Path) -> None:
    write_image(tmp_path / "radiograph.png")
    write_manifest(tmp_path / "manifest.jsonl", {"sample_id": "1", "frontal": "radiograph.png"})
    command = ["--judge", "verbatim", "--manifest", "manifest.jsonl", "--note", "Phantoms.", "--out", "done"]
    run("score", pairs, *command)
    first = (tmp_path / "done" / "report.html").read_text()
    assert "data:image/jpeg" in first
    assert "Phantoms." in first
    run("page", "done")
    assert (tmp_path / "done" / "report.html").read_text() == first


def test_the_page_reports_a_missing_manifest(run: Run, pairs: str, tmp_path: Path) -> None:
    write_manifest(tmp_path / "manifest.jsonl", {"sample_id": "1"})
    run("score", pairs, "--judge", "verbatim", "--manifest", "manifest.jsonl", "--out", "done")
    (tmp_path / "manifest.jsonl").unlink()
    assert run("page", "done")[0] == 0
    assert "(manifest.jsonl) is no longer where it was" in (tmp_path / "done" / "report.html").read_text()


def configured(tmp_path: Path, text: str) -> list[str]:
    (tmp_path / "run.yaml").write_text(text)
    return ["--config", "run.yaml"]


def test_a_config_file_sets_options_by_name(run: Run, pairs: str, tmp_path: Path) -> None:
    text = f"pairs: {pairs}\njudge: verbatim\non-failure: not-entailed\nbootstrap: 3\nnote: [A., B.]\ngrounded: true\n"
    assert run("score", *configured(tmp_path, text))[0] == 0
    record = read_json(tmp_path / "results" / "run.json")
    assert (record["judge"]["name"], record["page"]["notes"]) == ("verbatim", ["A.", "B."])
    options = record["options"]
    assert (options["on_failure"], options["bootstrap"], options["narrative"]) == ("not-entailed", 3, False)


def test_key_value_options_are_a_mapping_in_a_config_file(run: Run, pairs: str, tmp_path: Path) -> None:
    text = "judge: magic\njudge-arg:\n  reasoning_effort: low\n  seed: 7\n"
    _, _, err = run("score", pairs, *configured(tmp_path, text))
    assert "'judge_args': {'reasoning_effort': 'low', 'seed': '7'}" in err


def test_the_command_line_overrides_the_config_file(run: Run, pairs: str, tmp_path: Path) -> None:
    run("score", pairs, *configured(tmp_path, "judge: magic\nseed: 1\n"), "--judge", "verbatim", "--seed", "2")
    record = read_json(tmp_path / "results" / "run.json")
    assert (record["judge"]["name"], record["options"]["seed"]) == ("verbatim", 2)


def test_the_config_file_overrides_the_environment(
    run: Run, pairs: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RADFACT_JUDGE", "magic")
    assert run("score", pairs, *configured(tmp_path, "judge: verbatim\n"))[0] == 0


def test_a_config_file_may_have_options_of_other_commands(run: Run, tmp_path: Path) -> None:
    assert run("judge-check", *configured(tmp_path, "judge: verbatim\ncompat: exact\n"))[0] == 0


@pytest.mark.parametrize(
    ("text", "place", "error_code"),
    [
        ("compta: exact", "run.yaml: compta: ", "unknown-name"),
        ("config: run.yaml", "run.yaml: config: ", "unknown-name"),
        ("threshold: lots", "run.yaml: threshold: ", "invalid-value"),
        ("threshold: 2", "run.yaml: threshold: ", "invalid-value"),
        ("compat: papre", "run.yaml: compat: ", "invalid-value"),
        ("few-shots: {a: b}", "run.yaml: few-shots: ", "invalid-value"),
        ("seed:", "run.yaml: seed: ", "invalid-value"),
        ("narrative: true\ngrounded: true", "run.yaml: grounded: ", "duplicate"),
        ("- judge", "run.yaml: ", "invalid-format"),
        ("seed: [1", "run.yaml:1: ", "invalid-format"),
    ],
)
def test_wrong_options_in_a_config_file_are_refused(
    run: Run, pairs: str, tmp_path: Path, text: str, place: str, error_code: str
) -> None:
    code, out, err = run("score", pairs, *configured(tmp_path, text))
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert err.startswith(f"radfact: {place}")
    assert err.endswith(f"[{error_code}]\n")


def narrative_pairs(tmp_path: Path) -> str:
    (tmp_path / "pairs.csv").write_text("example_id,prediction,target\n5,a b,b c\n")
    return "pairs.csv"


@pytest.fixture
def splitting(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Judges by name that split, and two of one's own in a module: one that splits and a function."""
    del run
    monkeypatch.setattr(
        radfact.judges, "load_judge", lambda name, **_: LOAD_JUDGE(name) if ":" in name else Splitting(name)
    )
    monkeypatch.setitem(sys.modules, "judges_that_split", ModuleType("judges_that_split"))
    monkeypatch.setattr(sys.modules["judges_that_split"], "judge", Splitting("own", "own rules"), raising=False)
    monkeypatch.setattr(sys.modules["judges_that_split"], "function", operator.contains, raising=False)


@pytest.mark.usefixtures("splitting")
@pytest.mark.parametrize(
    ("options", "splitter"),
    [
        (["--judge", "humble"], "humble"),
        (["--judge", "humble", "--splitter", "humble"], "humble"),
        (["--judge", "humble", "--splitter", "offline"], "offline"),
        (["--judge", "python:judges_that_split:judge"], "own rules"),
        (["--judge", "python:judges_that_split:judge", "--splitter", "offline"], "offline"),
        (["--judge", "python:judges_that_split:function"], "offline"),
    ],
)
def test_choice_of_the_splitter(run: Run, tmp_path: Path, options: list[str], splitter: str) -> None:
    _, out, _ = run("score", narrative_pairs(tmp_path), *options)
    assert read_json(tmp_path / "results" / "run.json")["splitter"]["name"] == splitter
    assert f"narratives split by {splitter}" in out


@pytest.mark.usefixtures("splitting")
def test_the_offline_splitter_of_a_function_judge_takes_splitter_arguments(run: Run, tmp_path: Path) -> None:
    options = ["--judge", "python:judges_that_split:function", "--splitter-arg", "ontology=mine.yaml"]
    run("score", narrative_pairs(tmp_path), *options)
    splitter = read_json(tmp_path / "results" / "run.json")["splitter"]
    assert (splitter["name"], splitter["options"]["splitter_args"]) == ("offline", "{'ontology': 'mine.yaml'}")


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


@pytest.mark.usefixtures("splitting")
def test_the_splitter_of_a_judge_has_its_options(run: Run, tmp_path: Path) -> None:
    options = ["--base-url", "U", "--judge-arg", "seed=1", "--few-shots", "F", "--splitter-few-shots", "G"]
    run("score", narrative_pairs(tmp_path), "--judge", "humble", *options)
    given = read_json(tmp_path / "results" / "run.json")["splitter"]["options"]
    assert (given["base_url"], given["splitter_args"], given["few_shots"]) == ("U", "{'seed': '1'}", "G")


def test_a_separate_splitter_does_not_inherit_options_of_the_judge(run: Run, tmp_path: Path) -> None:
    options = ["--base-url", "U", "--judge-arg", "seed=1", "--splitter", "openai:m", "--splitter-arg", "top_p=1"]
    run("score", narrative_pairs(tmp_path), "--judge", "humble", *options)
    given = read_json(tmp_path / "results" / "run.json")["splitter"]["options"]
    assert given["splitter_args"] == "{'top_p': '1'}"
    assert "base_url" not in given


def test_costs_are_printed_if_prices_are_known(run: Run, tmp_path: Path) -> None:
    _, out, _ = run("score", narrative_pairs(tmp_path), "--judge", "verbatim", "--price", "2,4")
    assert "splitter: 2 calls, tokens 1M in, 500k out, cost 4.00" in out


@pytest.mark.parametrize("price", ["2", "2,x", "2,-1", "1,2,3", "nan,1"])
def test_a_price_is_two_numbers(run: Run, pairs: str, price: str) -> None:
    code, _, err = run("score", pairs, "--judge", "verbatim", "--price", price)
    assert code == 2
    assert f"--price: expected IN,OUT, the price of a million tokens each, found '{price}'" in err


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--judge", "verbatim"], ""),
        (["--judge", "humble"], "of the judge verbatim"),
        (["--judge", "verbatim", "--compat", "exact"], "with compat paper"),
        (["--judge", "verbatim", "--seed", "7"], "with seed 42"),
        (["--judge", "verbatim", "--narrative"], "without a splitter"),
    ],
)
def test_replaced_scores_of_other_options_are_reported(run: Run, pairs: str, options: list[str], said: str) -> None:
    run("score", pairs, "--judge", "verbatim")
    _, out, _ = run("score", pairs, *options)
    assert ("results holds scores" in out) == bool(said)
    assert said in out


def test_replaced_scores_of_other_files_are_reported(run: Run, pairs: str, tmp_path: Path) -> None:
    run("score", pairs, "--judge", "verbatim")
    (tmp_path / "other.json").write_text((tmp_path / pairs).read_text())
    assert "results holds scores of other files (pairs.json)" in run("score", "other.json", "--judge", "verbatim")[1]


def test_a_failed_run_keeps_earlier_results(run: Run, pairs: str, tmp_path: Path) -> None:
    run("score", pairs, "--judge", "verbatim")
    before = {path.name: path.read_bytes() for path in (tmp_path / "results").iterdir() if path.is_file()}
    example = {"example_id": "x7", "prediction": [{"text": "bad"}], "target": [{"text": "Clear."}]}
    (tmp_path / pairs).write_text(json.dumps([example]))
    assert run("score", pairs, "--judge", "verbatim", "--on-failure", "stop")[0] == 1
    assert {path.name: path.read_bytes() for path in (tmp_path / "results").iterdir() if path.is_file()} == before


def test_workers_require_ray(run: Run, pairs: str) -> None:
    code, _, err = run("score", pairs, "--judge", "verbatim", "--workers", "2")
    assert (code, err.startswith("radfact: --workers: ")) == (2, True)
    assert err.endswith("[conflicting-options]\n")


def labelled(tmp_path: Path) -> str:
    """Two judgements that a verbatim judge gets right and one that it misses."""
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
    (tmp_path / "labelled.json").write_text(json.dumps([example]))
    return "labelled.json"


def test_a_judge_is_checked_against_labeled_judgments(run: Run, tmp_path: Path) -> None:
    code, out, _ = run("judge-check", labelled(tmp_path), "--judge", "verbatim", "--out", "check.json")
    assert code == 0
    found = read_json(tmp_path / "check.json")
    assert (found["n"], found["accuracy"], found["precision"], found["recall"]) == (3, pytest.approx(2 / 3), 1.0, 0.5)
    assert found["described"] == {"name": "verbatim"}
    row = next(line for line in out.splitlines() if "normal" in line)
    assert row.split()[3:12:2] == ["2", "1", "1", "0", "0.500"]


def test_an_unwritable_output_is_refused_before_the_check(run: Run, tmp_path: Path) -> None:
    code, out, err = run("judge-check", labelled(tmp_path), "--judge", "verbatim", "--out", "labelled.json/check.json")
    assert (code, out) == (2, "")
    assert "labelled.json: expected a folder" in err


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


def test_an_interrupted_run_resumes_from_the_cache(tmp_path: Path, serve: Callable[..., ChatServer]) -> None:
    """A process of its own is told to stop by the server, once the first answer must be on disk."""
    running: list[subprocess.Popen[str]] = []
    answer = "phrase: x\nevidence: []\nstatus: not_entailment\n"

    def reply(_: dict[str, Any], number: int) -> Reply:
        if number == 2 and running:
            process = running.pop()
            process.send_signal(signal.SIGINT)
            # It must not be done before it hears that.
            process.wait(30)
        return 200, {}, answer

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
    asked = len(server.requests)
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    # Four questions in all; at most the one in flight is asked again.
    assert len(server.requests) <= 4 + 1
    assert len(server.requests) > asked


def test_cache_selects_the_folder_of_responses(run: Run, pairs: str) -> None:
    _, _, err = run("score", pairs, "--judge", "magic", "--out", "done", "--cache", "answers")
    assert "'cache': PosixPath('answers')" in err
