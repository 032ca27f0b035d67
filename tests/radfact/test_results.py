"""Results folders: their rows, and the export with the published keys."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from error_checks import raises

from radfact.api import RadFact
from radfact.errors import InputError
from radfact.io.jsonl import read_json, read_jsonl, write_json, write_jsonl
from radfact.judges import CallableJudge, Verdict
from radfact.metrics.radfact.scores import POLICY_SCORES, SCORES
from radfact.records import Box, Mask, Pair, Pairs, Sentence, digest
from radfact.results.evaluation import EvaluationResult
from radfact.results.export import export
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
def folder(tmp_path: Path) -> Path:
    candidates = [[Sentence(text="nodule", boxes=(LEFT,)), Sentence(text="clear")], [Sentence(text="bad")]]
    references = [[Sentence(text="no effusion", boxes=(LEFT,))], [Sentence(text="bone")]]
    result = RadFact(judge=JUDGE).score(candidates, references)
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


def test_rows_have_masks_and_prior_boxes_and_scores_the_splitter(tmp_path: Path) -> None:
    sentence = Sentence(text="scar", masks=(Mask(size=(2, 2), counts=[1, 3]),), prior_boxes=(LEFT,))
    write_results(RadFact(judge=JUDGE, splitter=str.split).score([[sentence], "a"], [[sentence], "a"]), tmp_path)
    written, *_ = rows(tmp_path / "sentences.jsonl")
    assert written["masks"] == [{"size": [2, 2], "counts": [1, 3]}]
    assert written["prior_boxes"] == [LEFT.model_dump()]
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


PUBLISHED_NAMES = ROWS["exported keys"]
STATISTICS = ["mean", "stderr", "p2.5th", "p25th", "median", "p75th", "p97.5th"]


def texts(line: str) -> list[Sentence]:
    return [Sentence(text=word.lower(), boxes=(LEFT,) if word.isupper() else None) for word in line.split()]


CANDIDATES = ["A b c", "a bad", "C D", "b", "A A e"]
REFERENCES = ["A c", "a", "C d x", "c", "A"]


def scored(replicates: int = 40) -> EvaluationResult:
    metric = RadFact(JUDGE, bootstrap=replicates, seed=7)
    return metric.score([texts(report) for report in CANDIDATES], [texts(report) for report in REFERENCES])


def exported(result: EvaluationResult, folder: Path, path: Path | None = None, **run: Any) -> dict[str, Any]:
    write_results(result, folder, run)
    return dict(read_json(export(folder, path)))


@pytest.fixture(scope="module")
def result() -> EvaluationResult:
    return scored()


@pytest.fixture(scope="module")
def written(result: EvaluationResult, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return exported(result, tmp_path_factory.mktemp("export"))


def test_keys_and_their_order_are_the_published_ones(written: dict[str, Any]) -> None:
    assert list(written) == STATISTICS + [f"{name}/{kind}" for name in PUBLISHED_NAMES for kind in STATISTICS]
    # Keys without a prefix are the logical F1.
    assert [written[kind] for kind in STATISTICS] == [written[f"logical_f1/{kind}"] for kind in STATISTICS]


def test_without_replicates_a_score_has_one_key(tmp_path: Path) -> None:
    result = scored(0)
    plain = exported(result, tmp_path, input={"files": ["somewhere/pairs.json"]})
    assert (tmp_path / "radfact_scores_pairs.json").is_file()
    assert list(plain) == PUBLISHED_NAMES
    assert plain["logical_f1"] == pytest.approx(result.scores["logical_f1"])
    sentences = sum(len(text.split()) for text in CANDIDATES + REFERENCES)
    assert (plain["num_llm_failures"], plain["num_llm_success"]) == (1, sentences - 1)
    assert (plain["num_samples"], plain["num_invalid_processed_samples"]) == (4, 1)


def test_quantiles_equal_those_of_the_result(written: dict[str, Any], result: EvaluationResult) -> None:
    for name in SCORES:
        score = result.summaries[name]
        quantiles = [score.low, score.q25, score.median, score.q75, score.high]
        assert [written[f"{name}/{kind}"] for kind in STATISTICS[2:]] == pytest.approx(quantiles, abs=1e-12)


def test_mean_and_standard_error_are_those_of_replicates(written: dict[str, Any], result: EvaluationResult) -> None:
    generator = np.random.default_rng(7)
    draws = [np.array(result.clusters.order)[generator.choice(5, 5, replace=True)] for _ in range(40)]
    for name, column in {
        "logical_precision": [sample.scores["logical_precision"] for sample in result.samples],
        "num_candidate_phrases": [3, math.nan, 2, 1, 3],
    }.items():
        means = [np.nanmean(np.array(column)[draw]) for draw in draws]
        statistics = [written[f"{name}/mean"], written[f"{name}/stderr"]]
        assert statistics == pytest.approx([np.nanmean(means), np.nanstd(means)], abs=1e-9)
    invalid = [np.isin(draw, [1]).sum() for draw in draws]
    statistics = [written[f"num_invalid_processed_samples/{kind}"] for kind in ("mean", "stderr")]
    assert statistics == pytest.approx([np.mean(invalid), np.std(invalid)], abs=1e-9)


def test_samples_without_two_reports_are_not_exported(tmp_path: Path) -> None:
    pairs = tuple(Pair(name, texts("a " + name), texts("a")) for name in "abc")
    metric = RadFact(JUDGE, bootstrap=20)
    alone = exported(metric.score(Pairs(pairs, read=3)), tmp_path / "0", tmp_path / "elsewhere" / "scores.json")
    assert exported(metric.score(Pairs(pairs, read=4, without_candidate={"d": "none"})), tmp_path / "1") == alone


def test_missing_values_are_null_and_those_of_narratives_zero_as_published(tmp_path: Path) -> None:
    without_boxes = RadFact(JUDGE, bootstrap=10).score([texts("a")], [texts("a")])
    plain = exported(without_boxes, tmp_path / "sentences")
    assert [plain[f"spatial_f1/{kind}"] for kind in STATISTICS] == [None] * 7
    narratives = RadFact(JUDGE, bootstrap=0, splitter=str.split).score(["a b"], ["a"])
    plain = exported(narratives, tmp_path / "narratives")
    assert [plain[name] for name in PUBLISHED_NAMES if name.startswith(("spatial", "grounding"))] == [0.0] * 6


@pytest.mark.parametrize("change", ["seed", "sample", "score"])
def test_files_of_different_runs_are_refused(change: str, result: EvaluationResult, tmp_path: Path) -> None:
    write_results(result, tmp_path)
    run, scores = (read_json(tmp_path / name) for name in ("run.json", "scores.json"))
    if change == "seed":
        write_json(tmp_path / "run.json", run | {"options": run["options"] | {"seed": 8}})
    elif change == "sample":
        write_jsonl(tmp_path / "samples.jsonl", [row for _, row in read_jsonl(tmp_path / "samples.jsonl")][1:])
    else:
        del scores["scores"]["logical_f1"]
        write_json(tmp_path / "scores.json", scores)
    with pytest.raises(InputError, match=r"scores\.json: scores\.\w+\.(point|median): samples\.jsonl and "):
        export(tmp_path)
    assert not list(tmp_path.glob("radfact_scores*"))


@pytest.mark.parametrize(("reader", "files", "error"), ROWS["invalid files"])
def test_an_invalid_file_is_one_line_with_its_location(
    reader: str, files: dict[str, Any], error: str, result: EvaluationResult, tmp_path: Path
) -> None:
    write_results(result, tmp_path)
    for name, content in files.items():
        (write_jsonl if name.endswith(".jsonl") else write_json)(tmp_path / name, content)
    with raises(error):
        {"scores": read_sample_scores, "export": export}[reader](tmp_path)
