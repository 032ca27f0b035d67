import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from error_checks import raises

from radfact.api import RadFact
from radfact.io.jsonl import read_json, read_jsonl, write_json, write_jsonl
from radfact.judges import CallableJudge, Verdict
from radfact.metrics.radfact.scores import POLICY_SCORES, SCORES
from radfact.records import Box, Mask, Sentence, digest
from radfact.results.evaluation import EvaluationResult
from radfact.results.reader import read_sample_scores
from radfact.results.schema import VERSION
from radfact.results.writer import write_results


def same_letter(premises: Sequence[str], hypothesis: str) -> Verdict:
    """A judge that entails what begins with the letter of the first premise, and fails on what is 'bad'."""
    if hypothesis == "bad":
        raise ValueError("no YAML")
    if hypothesis[0] == premises[0][0]:
        return Verdict("entailment", (0,), why="same letter")
    return Verdict("not_entailment")


JUDGE = CallableJudge(same_letter, "first premise")
FAILURE = "first premise: ValueError: no YAML"
ROWS = yaml.safe_load(Path(__file__).with_name("result_rows.yaml").read_text("utf-8"))
LEFT = Box(x_min=0.5, y_min=0.0, x_max=1.0, y_max=1.0)


@pytest.fixture
def result() -> EvaluationResult:
    candidates = [[Sentence(text="nodule", boxes=(LEFT,)), Sentence(text="clear")], [Sentence(text="bad")]]
    references = [[Sentence(text="no effusion", boxes=(LEFT,))], [Sentence(text="bone")]]
    return RadFact(judge=JUDGE).score(candidates, references)


@pytest.fixture
def folder(result: EvaluationResult, tmp_path: Path) -> Path:
    write_results(result, tmp_path, {"options": {"narrative": None}, "seconds": 1.5})
    return tmp_path


def rows(path: Path) -> list[dict[str, Any]]:
    return [row for _, row in read_jsonl(path)]


def test_scores_have_every_score_the_judge_and_the_counts(folder: Path) -> None:
    scores = read_json(folder / "scores.json")
    assert list(scores) == ["version", "scores", "judge", "splitter", "counts", "metrics", "unavailable", "resampling"]
    assert list(scores["scores"]) == [*SCORES, *POLICY_SCORES]
    assert list(scores["scores"]["logical_f1"]) == [
        "point", "low", "q25", "median", "q75", "high", "n", "direction", "repeat_sd", "unit",
    ]  # fmt: skip
    assert scores["judge"] == JUDGE.describe()
    assert (scores["counts"]["samples"], scores["counts"]["excluded"]) == (2, 1)


def test_a_sample_is_one_row_with_null_for_missing_values(folder: Path) -> None:
    scored, left_out = rows(folder / "samples.jsonl")
    policies = {name: scored.pop(name) for name in POLICY_SCORES}
    assert [policies[f"logical_{part}_implied"] for part in ("precision", "recall")] == [0.5, 1.0]
    assert scored == ROWS["sample"] | {"reports": digest("nodule clear", "no effusion")}
    assert [left_out[name] for name in SCORES] == [None] * 9
    assert left_out["failure"] == FAILURE


def test_a_sentence_is_one_row_with_its_boxes(folder: Path) -> None:
    nodule, clear, effusion, bad, _ = rows(folder / "sentences.jsonl")
    assert nodule == ROWS["sentence"]
    assert (clear["boxes"], clear["status"], clear["spatial"]) == (None, "not_entailment", "no_boxes")
    assert effusion["side"] == "reference"
    assert (bad["status"], bad["why"]) == (None, f"no valid answer: {FAILURE}")


def test_run_json_has_input_options_judge_and_usage(folder: Path) -> None:
    run = read_json(folder / "run.json")
    usage = {"calls": 5, "failures": 1}
    assert {name: run["usage"]["judge"][name] for name in usage} == usage
    assert (run["seconds"], run["calls"], run["judge"], run["splitter"]) == (1.5, 5, JUDGE.describe(), None)
    assert run["options"] == ROWS["options"]


def test_sentence_rows_have_masks_and_prior_boxes(tmp_path: Path) -> None:
    sentence = Sentence(text="scar", masks=(Mask(size=(2, 2), counts=[1, 3]),), prior_boxes=(LEFT,))
    write_results(RadFact(judge=JUDGE, bootstrap=0).score([[sentence]], [[sentence]]), tmp_path)
    written, _ = rows(tmp_path / "sentences.jsonl")
    assert written["masks"] == [{"size": [2, 2], "counts": [1, 3]}]
    assert written["prior_boxes"] == [LEFT.model_dump()]


def test_scores_name_the_splitter(tmp_path: Path) -> None:
    write_results(RadFact(judge=JUDGE, splitter=str.split).score(["nodule"], ["no effusion"]), tmp_path)
    assert read_json(tmp_path / "scores.json")["splitter"] == {"name": "str.split"}


def test_a_dataset_without_samples_has_null_scores(tmp_path: Path) -> None:
    write_results(RadFact(judge=JUDGE).score([], []), tmp_path, {})
    assert {score["point"] for score in read_json(tmp_path / "scores.json")["scores"].values()} == {None}


def test_sample_scores_are_read_from_a_folder(tmp_path: Path) -> None:
    rows = [{"sample_id": "b", "x": 0.5, "n": 3, "failure": None}, {"sample_id": "a", "x": None}]
    write_jsonl(tmp_path / "samples.jsonl", rows)
    described = {"x": {"direction": "lower"}, "of_the_set": {}}
    write_json(tmp_path / "scores.json", {"version": VERSION, "scores": described})
    scores = read_sample_scores(tmp_path)
    assert scores.directions == {"x": "lower", "of_the_set": "higher"}
    assert list(scores.rows) == ["b", "a"]
    assert scores.rows["b"] == {"x": 0.5}
    assert math.isnan(scores.rows["a"]["x"])


@pytest.mark.parametrize(
    ("rows", "wrong"),
    [
        ([{"sample_id": "a"}, {"sample_id": "a"}], "2: sample_id: duplicate"),
        ([{"sample_id": None}], "1: sample_id: invalid-value"),
        ([{"sample_id": "a", "x": "high"}], "1: x: invalid-value"),
        ([{"sample_id": "a", "x": True}], "1: x: invalid-value"),
    ],
)
def test_rows_that_do_not_match_the_schema_are_named(tmp_path: Path, rows: list[dict[str, Any]], wrong: str) -> None:
    write_jsonl(tmp_path / "samples.jsonl", rows)
    write_json(tmp_path / "scores.json", {"version": VERSION, "scores": {"x": {}}})
    with raises(f"samples.jsonl:{wrong}"):
        read_sample_scores(tmp_path)


@pytest.mark.parametrize("version", [VERSION - 1, VERSION + 1, "0.1.0", None])
def test_a_folder_of_another_version_is_refused(version: object, tmp_path: Path) -> None:
    named = {} if version is None else {"version": version}
    write_json(tmp_path / "scores.json", {"scores": {}, **named})
    with raises("scores.json: version: unsupported-version"):
        read_sample_scores(tmp_path)
