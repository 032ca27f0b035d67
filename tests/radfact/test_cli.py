"""The commands score, page, judge-check, export and split."""

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import yaml
from results_folder import page_data, write_image, write_manifest

import radfact.judges
from radfact.errors import ExitCode, Failure
from radfact.io.jsonl import read_json, read_jsonl
from radfact.io.outputs import RECORD
from radfact.judges.offline import OfflineJudge
from radfact.judges.offline_splitter import OfflineSplitter

Run = Callable[..., tuple[int, str, str]]
LOAD_SPLITTER = radfact.judges.load_splitter
JUDGE = ("--judge", "python:judges:verbatim")
CASES = yaml.safe_load(Path(__file__).with_name("score_options.yaml").read_text("utf-8"))


@pytest.fixture
def run(run_radfact: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run `radfact` with the judges of this module, one of which fails on the sentence 'bad'."""
    (tmp_path / "judges.py").write_text(CASES["module of judges"])
    monkeypatch.delitem(sys.modules, "judges", raising=False)
    return run_radfact


@pytest.fixture
def pairs(tmp_path: Path) -> str:
    box = {"x_min": 0.0, "y_min": 0.0, "x_max": 0.5, "y_max": 0.5}
    nodule = {"text": "Nodule.", "boxes": [box]}
    example = {"example_id": 1, "prediction": [nodule, {"text": "Clear."}], "target": [nodule]}
    (tmp_path / "pairs.json").write_text(json.dumps([example]))
    return "pairs.json"


def test_score_writes_a_results_folder_and_prints_a_table(run: Run, pairs: str, tmp_path: Path) -> None:
    flags = ["--out", "done", "--compat", "exact", "--seed", "7", "--bootstrap", "3"]
    code, out, err = run("score", pairs, *JUDGE, *flags)
    assert (code, err) == (0, "")
    main = [line.split()[0] for line in out.splitlines() if " ↑ " in line]
    assert main == ["logical_f1", "grounding_f1", "spatial_f1"]
    assert "Main scores; --verbose prints all" in out
    out = run("score", pairs, *JUDGE, *flags, "--verbose")[1]
    row = next(line for line in out.splitlines() if "logical_precision" in line)
    assert row.split()[2:] == ["0.500", "0.500", "0.500", "to", "0.500", "1"]
    assert "1 reference sentences; 3 judgments, 0 without a valid response" in out
    assert "records read: 1, skipped: 0, pairs: 1" in out
    assert "report.html" in out
    assert {path.name for path in (tmp_path / "done").iterdir()} >= {
        "scores.json", "samples.jsonl", "sentences.jsonl", "run.json", "report.html",
    }  # fmt: skip
    record = read_json(tmp_path / "done" / "run.json")
    assert record["judge"]["name"] == JUDGE[1]
    options = {"metrics": ["radfact"], "judge": JUDGE[1], "compat": "exact", "variants": ["exact"], "seed": 7}
    options |= {"bootstrap": 3, "missing": "refuse", "repeat": 1}
    assert {name: record["options"][name] for name in options} == options
    assert record["metrics"]["radfact"]["variant"] == "exact"
    assert (record["calls"], record["failures"]) == (3, 0)
    counts = {"read": 1, "skipped": 0, "empty_candidates": 0, "without_reference": 0}
    assert record["input"] == {"files": ["pairs.json"], "models": [], **counts}
    assert {"python", "maira-radfact", "numpy"} <= set(record["versions"])
    assert run("export", "done", "--out", "flat.json")[0] == 0
    assert "logical_precision/p2.5th" in read_json(tmp_path / "flat.json")


@pytest.mark.parametrize(("missing", "code", "message"), CASES["references without a candidate"])
def test_references_without_a_candidate(run: Run, tmp_path: Path, missing: str, code: int, message: str) -> None:
    # The page shows drafts without a reference, but none without a report.
    reports = {"a": [{"text": "Clear."}], "b": None, "c": "Effusion."}
    write_manifest(tmp_path / "drafts.jsonl", *({"sample_id": name, "report": reports[name]} for name in "abc"))
    rows = [{"sample_id": name, "grounded_findings": [{"text": "Clear."}] if name in "ab" else None} for name in "abc"]
    write_manifest(tmp_path / "manifest.jsonl", *rows)
    files = ["--candidates", "drafts.jsonl", "--references", "manifest.jsonl"]
    exit_code, out, err = run("score", *files, *JUDGE, "--missing", missing)
    assert (exit_code, message in out + err) == (code, True)


def test_own_names_of_columns_and_missing_values(run_radfact: Run, tmp_path: Path) -> None:
    Path("t.csv").write_text("study,draft,text\n1,Clear lungs.,Clear lungs.\n2,NaN,Clear lungs.\n3,Clear lungs.,N/A\n")
    columns = ["t.csv", "--columns", "id=study,candidate=draft", "--columns", "reference=text"]
    assert "(2) without a candidate (first: no candidate report: line 3)" in run_radfact("score", *columns, *JUDGE)[2]
    code, out, _ = run_radfact("score", *columns, "--judge", "offline", "--missing", "skip", "--out", "r")
    assert (code, (lines := "no value in t.csv: draft: line 3\nno value in t.csv: text: line 4\n") in out) == (3, True)
    rows = [(row["sample_id"], row["failure"]) for _, row in read_jsonl(tmp_path / "r" / "samples.jsonl")]
    assert rows == [("1", None), ("2", "no candidate report: line 3")]
    assert f"{lines}2 of 3 samples" in run_radfact("split", *columns, "--judge", "offline", "--out", "s.json")[1]
    assert [row["draft"] for row in read_json(tmp_path / "s.json")] == [[{"text": "Clear lungs."}], None]
    assert "are excluded (lines 3, 4)." in run_radfact("meta", "pairs", *columns, "--out", "p.csv")[1]
    assert (tmp_path / "p.csv").read_text() == "example_id,prediction,target\n1,Clear lungs.,Clear lungs.\n"


def test_the_file_of_options_takes_precedence_over_the_environment_and_flags_over_the_file(
    run: Run, pairs: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RADFACT_JUDGE", JUDGE[1])
    assert run("score", pairs)[0] == 0
    (tmp_path / "run.yaml").write_text("judge: magic\nseed: 1\n")
    assert "'magic'" in run("score", pairs, "--config", "run.yaml")[2]
    assert run("score", pairs, "--config", "run.yaml", *JUDGE, "--narrative", "--seed", "2")[0] == 0
    assert read_json(tmp_path / "results" / "run.json")["options"]["seed"] == 2
    assert read_json(tmp_path / "results" / "scores.json")["scores"]["spatial_f1"]["point"] is None
    monkeypatch.setenv("RADFACT_JUDGE", "")
    code, _, err = run("score", pairs)
    assert (code, err.endswith("[missing-option]\n")) == (2, True)


def test_excluded_samples_are_listed_and_give_exit_code_3(run: Run, tmp_path: Path) -> None:
    target = [{"text": "Clear."}]
    rows = [
        {"example_id": key, "prediction": [{"text": text}], "target": target}
        for key, text in (("x7:m:", "bad"), ("x8", "Clear."))
    ]
    (tmp_path / "pairs.json").write_text(json.dumps(rows))
    code, out, _ = run("score", "pairs.json", *JUDGE)
    assert code == 3
    assert "excluded: x7:m:: python:judges:verbatim: ValueError: no YAML" in out  # no emoji
    assert run("score", "pairs.json", *JUDGE, "--on-failure", "not-entailed")[0] == 0
    assert run("score", "pairs.json", *JUDGE, "--on-failure", "stop")[0] == 1


EVALUATE = "evaluate pairs.csv --judge openai:m --base-url http://127.0.0.1:9/v1 --metrics"
REFUSED = [(f"score {line}", location, "", code) for line, location, code in CASES["refused"]]
REFUSED += [(f"{EVALUATE} {line}", *expected) for line, *expected in CASES["refused metrics"]]


@pytest.mark.parametrize(("command", "location", "detail", "error_code"), REFUSED)
@pytest.mark.usefixtures("pairs")
def test_wrong_input_is_exit_code_2(
    run: Run, command: str, location: str, detail: str, error_code: str, tmp_path: Path
) -> None:
    (tmp_path / "empty.json").write_text("[]")
    narrative_pairs(tmp_path)
    code, out, err = run(*command.split())
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith(f"radfact: {location}")
    assert err.endswith(f" [{error_code}]\n")
    assert detail in err
    assert command.startswith("evaluate") or not (tmp_path / "results").exists()
    assert {path.name for path in tmp_path.glob("results/*")} <= {"cache", RECORD}


def narrative_pairs(tmp_path: Path) -> str:
    (tmp_path / "pairs.csv").write_text("example_id,prediction,target\n5,a b,b c\n")
    return "pairs.csv"


def test_page_is_the_same_again_with_images_and_notes_of_the_run(run: Run, pairs: str, tmp_path: Path) -> None:
    write_image(tmp_path / "radiograph.png")
    write_manifest(tmp_path / "manifest.jsonl", {"sample_id": "1", "frontal": "radiograph.png"})
    run("score", pairs, *JUDGE, "--manifest", "manifest.jsonl", "--note", "Phantoms.", "--out", "done")
    page = tmp_path / "done" / "report.html"
    first = page.read_text()
    assert "data:image/jpeg" in str(page_data(page))
    page.unlink()
    code, out, _ = run("page", "done")
    assert (code, "report.html" in out, page.read_text()) == (0, True, first)
    (tmp_path / "manifest.jsonl").unlink()
    assert run("page", "done", "--note", "Not patients.")[0] == 0
    assert "(manifest.jsonl) is no longer where it was" in page.read_text()
    assert "Not patients." in page.read_text()
    assert run("page", "nowhere")[0] == 2


REMOTE = ["--judge", "openai:m", "--base-url", "http://127.0.0.1:9/v1", "--judge-arg", "seed=1"]


@pytest.mark.parametrize(("options", "splitter", "expected"), CASES["splitters"])
def test_choice_of_the_splitter_and_its_options(
    run: Run, tmp_path: Path, options: str, splitter: str | None, expected: dict[str, Any]
) -> None:
    with patch.object(radfact.judges, "load_splitter", return_value=LOAD_SPLITTER("offline")) as load:
        code, _, err = run("score", narrative_pairs(tmp_path), *options.split(), "--dry-run", "--out", "done")
    assert code == 0, err
    assert [call.args for call in load.call_args_list] == ([] if splitter is None else [(splitter,)])
    for option, value in expected.items():
        given = load.call_args.kwargs.get(option)
        assert (str(given) if isinstance(given, Path) else given) == value


def test_options_reach_the_judge(run: Run, pairs: str) -> None:
    options = ["--few-shots", "F", "--system", "S", "--format", "schema", "--batch", "report", "--concurrency", "8"]
    options += ["--max-invalid", "3"]
    with patch("radfact.judges.loading.judge_of", return_value=OfflineJudge()) as load:
        run("score", pairs, *REMOTE, *options, "--out", "done")
        run("score", pairs, *REMOTE, "--out", "done", "--cache", "responses")
    (given, first_cache), (_, second_cache) = (call.args for call in load.call_args_list)
    expected = {
        **{"judge": "openai:m", "base_url": REMOTE[3], "judge_args": {"seed": "1"}, "few_shots": Path("F")},
        **{"system": Path("S"), "answer_format": "schema", "batch": "report", "concurrency": 8},
        "max_invalid": 3,
    }
    assert {name: getattr(given, name) for name in expected} == expected
    assert (first_cache, second_cache) == (Path("done/cache"), Path("responses"))


def test_replaced_scores_of_another_run_are_reported(run: Run, pairs: str, tmp_path: Path) -> None:
    run("score", pairs, *JUDGE, "--out", "first")
    shutil.copy(tmp_path / pairs, tmp_path / "other.json")
    for line, message in CASES["replaced"].items():
        shutil.copytree(tmp_path / "first", tmp_path / "results", dirs_exist_ok=True)
        _, out, _ = run("score", *line.split())
        assert ("results holds scores" in out) == bool(message)
        assert message in out


def test_judge_check_has_default_examples(run: Run, tmp_path: Path) -> None:
    code, out, _ = run("judge-check", "--judge", "offline", "--out", "check.json")
    assert (code, "laterality" in out) == (0, True)
    check = read_json(tmp_path / "check.json")
    assert (check["judge_settings"]["name"], check["n"] > 100) == ("offline", True)


PAIRS = """example_id,prediction,target,patient_id
a,"Small effusion on the left. Possible pneumonia.","The heart is enlarged. Repeat film is recommended.",p1
b,,"Clear lungs.",p2
"""


@pytest.fixture
def split(run_radfact: Run, tmp_path: Path) -> Run:
    def run(name: str, text: str, out: str, *more: str) -> tuple[int, str, str]:
        (tmp_path / name).write_text(text)
        return run_radfact("split", name, "--judge", "offline", "--out", out, *more)

    return run


def _texts(sentences: list[dict[str, str]]) -> list[str]:
    return [sentence["text"] for sentence in sentences]


def test_pairs_become_sentences_to_score_and_removed_parts(split: Run, run_radfact: Run, tmp_path: Path) -> None:
    code, out, _ = split("pairs.csv", PAIRS, "sentences.json", "--check", "check.csv")
    assert (code, "2 of 2 samples, 3 sentences, 2 parts removed" in out) == (0, True)
    checked = (tmp_path / "check.csv").read_text().splitlines()
    assert checked[1] == "a prediction,Small effusion on the left.,Small effusion on the left. Possible pneumonia."
    first, second = read_json(tmp_path / "sentences.json")
    assert _texts(first["prediction"] + first["target"]) == ["Small effusion on the left.", "The heart is enlarged."]
    assert (second["prediction"], second["patient_id"]) == ([], "p2")
    rows = [row for _, row in read_jsonl(tmp_path / "sentences.removed.jsonl")]
    assert [[row["sample_id"], row["field"], row["reason"]] for row in rows] == CASES["removed parts"]
    narrative = "Small effusion on the left. Possible pneumonia."
    assert "Possible pneumonia" in narrative[rows[0]["start"] : rows[0]["end"]]
    scores = []
    for name in ("sentences.json", "pairs.csv"):
        assert run_radfact("score", name, "--judge", "offline", "--out", f"of-{name}")[0] == 0
        scores.append(read_json(tmp_path / f"of-{name}" / "scores.json")["scores"])
    assert scores[0] == scores[1]


def test_drafts_and_references_keep_their_fields(split: Run, tmp_path: Path) -> None:
    sentences = [{"text": "Old rib fracture."}]
    rows: list[dict[str, Any]] = [
        {"sample_id": "draft", "report": "No effusion or pneumothorax.", "model": "m"},
        {"sample_id": "split before", "report": sentences},
        {"sample_id": "reference", "findings": "Clear lungs.", "frontal": "a.png"},
        {"sample_id": "grounded", "findings": "Narrative.", "grounded_findings": sentences},
    ]
    assert split("rows.jsonl", "".join(json.dumps(row) + "\n" for row in rows), "out.jsonl")[0] == 0
    draft, before, reference, grounded = (row for _, row in read_jsonl(tmp_path / "out.jsonl"))
    assert (_texts(draft["report"]), draft["model"]) == (["No effusion.", "No pneumothorax."], "m")
    assert (before, grounded) == (rows[1], rows[3])
    assert (_texts(reference["grounded_findings"]), reference["findings"]) == (["Clear lungs."], "Clear lungs.")


def test_a_failed_narrative_is_excluded_and_named(split: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    explain = OfflineSplitter.explain

    def fail_once(self: OfflineSplitter, narratives: list[str]) -> list[object]:
        return [Failure("no valid response") if "Clear" in text else explain(self, [text])[0] for text in narratives]

    monkeypatch.setattr(OfflineSplitter, "explain", fail_once)
    code, out, _ = split("pairs.csv", PAIRS, "sentences.json")
    assert (code, "b: no valid response" in out) == (ExitCode.INCOMPLETE, True)
    assert [row["example_id"] for row in read_json(tmp_path / "sentences.json")] == ["a"]


@pytest.mark.parametrize(("name", "code"), [("pairs.csv", "[invalid-option]"), ("pairs.txt", "[invalid-format]")])
def test_files_of_another_layout_are_refused(split: Run, tmp_path: Path, name: str, code: str) -> None:
    status, _, error = split(name, PAIRS, "out.jsonl")
    assert (status, error.strip().endswith(code)) == (ExitCode.INVALID_INPUT, True)
    assert not (tmp_path / "out.jsonl").exists()
