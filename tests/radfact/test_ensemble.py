"""Ensembles of judges: averages, regressions, and scores of samples that were not fitted on."""

import math
from pathlib import Path

import numpy as np
import pytest
from error_checks import raises_code
from meta_run import refuse_meta, run_meta, write_scores, write_table

from radfact.errors import ErrorCode
from radfact.io.jsonl import read_json, read_jsonl, write_json, write_jsonl
from radfact.meta.ensembles import Ensemble, cross_validate, fit_ensemble, read_features
from radfact.results.reader import read_sample_scores
from radfact.statistics.clusters import Clusters

GENERATOR = np.random.default_rng(7)
FEATURES = {f"judge{number}/vert": GENERATOR.random(60).tolist() for number in range(3)}
TARGET = [0.5 + 2 * one - other for one, other in zip(FEATURES["judge0/vert"], FEATURES["judge1/vert"], strict=True)]


def test_an_average_weighs_all_alike_and_needs_no_target() -> None:
    ensemble = fit_ensemble({"a": [], "b": []}, method="average")
    scores = ensemble.apply({"a": [1.0, 0.0], "b": [0.5, math.nan], "c": [9.0, 9.0]})
    assert scores == pytest.approx([0.75, math.nan], nan_ok=True)


def test_a_regression_finds_the_weights() -> None:
    ensemble = fit_ensemble(FEATURES, TARGET, target_name="expert score")
    assert ensemble.coefficients == pytest.approx({"judge0/vert": 2, "judge1/vert": -1, "judge2/vert": 0}, abs=1e-9)
    assert ensemble.intercept == pytest.approx(0.5)
    assert (ensemble.n, ensemble.target) == (60, "expert score")
    assert ensemble.apply(FEATURES) == pytest.approx(TARGET)
    # A feature may be the sum of others, and samples without all values are not fitted on.
    both = FEATURES | {"sum": [a + b for a, b in zip(*list(FEATURES.values())[:2], strict=True)]}
    assert fit_ensemble(both, TARGET).apply(both) == pytest.approx(TARGET)
    ensemble = fit_ensemble({name: [math.nan, *values] for name, values in FEATURES.items()}, [100.0, *TARGET])
    assert (ensemble.n, ensemble.intercept) == (60, pytest.approx(0.5))


def test_out_of_fold_scores_are_of_ensembles_that_did_not_see_the_sample() -> None:
    noise = {"noise": FEATURES["judge2/vert"]}
    target = np.random.default_rng(3).random(60).tolist()
    scores = cross_validate(noise, target, folds=60)
    # Without the sample, the mean of the others moves away from it: leaving one out cannot flatter.
    assert np.corrcoef(scores, target)[0, 1] < 0
    assert cross_validate(FEATURES, TARGET) == pytest.approx(TARGET)
    assert cross_validate(FEATURES, TARGET) == cross_validate(FEATURES, TARGET, seed=42)
    assert math.isnan(cross_validate(FEATURES, [math.nan, *TARGET[1:]])[0])


@pytest.mark.parametrize("by_study", [True, False])
def test_a_sample_is_not_scored_by_an_ensemble_that_saw_its_study(by_study: bool) -> None:
    clusters = Clusters("study_id", [str(place // 6) for place in range(60)]) if by_study else None
    features = {"noise": FEATURES["judge2/vert"]}
    changed = [*TARGET[:1], TARGET[1] + 100, *TARGET[2:]]
    before, after = (cross_validate(features, target, folds=10, clusters=clusters)[0] for target in (TARGET, changed))
    assert (before == after) is by_study


def test_an_ensemble_is_saved_and_loaded(tmp_path: Path) -> None:
    path, ensemble = tmp_path / "ensemble.json", fit_ensemble(FEATURES, TARGET)
    ensemble.save(path)
    assert Ensemble.load(path) == ensemble
    write_json(path, {"method": "linear_regression", "coefficients": {}})
    with raises_code(ErrorCode.INVALID_VALUE, file=path, field="coefficients"):
        Ensemble.load(path)


def test_features_come_from_results_folders(tmp_path: Path) -> None:
    for judge, rows in {
        "gpt": [{"sample_id": "a", "vert": 0.5, "failure": None}, {"sample_id": "b", "vert": None}],
        "opus": [{"sample_id": "b", "vert": 1}, {"sample_id": "a", "vert": 0.25}, {"sample_id": "c", "vert": 0}],
    }.items():
        # A score that no sample has is no feature.
        scores = {"vert": {"point": 0.5}, "grounding_f1": {"point": None}}
        write_json(tmp_path / judge / "scores.json", {"version": 3, "scores": scores})
        write_jsonl(tmp_path / judge / "samples.jsonl", rows)
    sample_ids, scores = read_features({judge: tmp_path / judge for judge in ("gpt", "opus")})
    assert sample_ids == ["a", "b"]
    assert scores.values["opus/vert"] == [0.25, 1.0]
    assert scores.values["gpt/vert"] == pytest.approx([0.5, math.nan], nan_ok=True)
    assert scores.directions == {"gpt/vert": "higher", "opus/vert": "higher"}
    assert list(read_features({"gpt": tmp_path / "gpt"})[1].values) == ["gpt/vert"]
    with raises_code(ErrorCode.UNKNOWN_NAME, field="green"):
        read_features({"gpt": tmp_path / "gpt"}, ["green"])


@pytest.mark.parametrize(
    ("features", "target", "folds", "code"),
    [
        ({"a": [1.0, math.nan], "b": [math.nan, 1.0]}, [1.0, 2.0], 10, ErrorCode.EMPTY_INPUT),
        ({}, [1.0], 10, ErrorCode.EMPTY_INPUT),
        (FEATURES, TARGET, 61, ErrorCode.INVALID_OPTION),
    ],
)
def test_an_ensemble_needs_features_and_samples(
    features: dict[str, list[float]], target: list[float], folds: int, code: ErrorCode
) -> None:
    with raises_code(code):
        cross_validate(features, target, folds=folds)
    with raises_code(ErrorCode.EMPTY_INPUT, field="features"):
        fit_ensemble({name: values[:1] for name, values in features.items()}, target[:1])


def write_ratings(tmp_path: Path, ratings: list[int]) -> tuple[object, ...]:
    rows = [[str(index), "r", "c", rating] for index, rating in enumerate(ratings)]
    table = write_table(tmp_path / "t.csv", ["id", "reference", "candidate", "expert"], rows)
    return (table, "--better", "lower", "--bootstrap", 0)


def test_an_ensemble_is_not_fitted_on_equal_ratings(tmp_path: Path) -> None:
    judge = f"--judges=one={write_scores(tmp_path / 'one', [i % 5 for i in range(20)])}"
    fit = ("ensemble", "fit", *write_ratings(tmp_path, [3] * 20), "--out", tmp_path / "e.json")
    assert "'expert'" in refuse_meta(*fit, judge)[1]
    assert "--judges" in refuse_meta(*fit, judge, judge)[1]
    assert not (tmp_path / "e.json").exists()


@pytest.mark.slow
def test_an_ensemble_is_fitted_applied_and_compared_with_experts(tmp_path: Path) -> None:
    ratings = [2 * (i % 5) + (i * 7) % 3 for i in range(40)]
    table = write_ratings(tmp_path, ratings)
    one = write_scores(tmp_path / "one", [i % 5 for i in range(40)])
    two = write_scores(tmp_path / "two", [(i * 7) % 3 for i in range(40)])
    judges = (f"--judges=one={one}", f"--judges=two={two}")
    fitted, out = tmp_path / "e.json", tmp_path / "s"
    assert "1.000" in run_meta("ensemble", "fit", *table, *judges, "--out", fitted)
    assert read_json(fitted)["coefficients"] == {"one/m": pytest.approx(2.0), "two/m": pytest.approx(1.0)}
    run_meta("ensemble", "apply", fitted, *judges, "--bootstrap", 3, "--seed", 7, "--out", out)
    applied = read_sample_scores(out)
    assert applied.directions == {"ensemble": "lower"}
    assert [row["ensemble"] for row in applied.rows.values()] == pytest.approx(ratings)
    assert read_json(out / "run.json")["options"] == {"bootstrap": 3, "seed": 7}
    assert (out / "report.html").is_file()
    # Other commands read the output.
    run_meta("agreement", *table, "--scores", out, "--out", tmp_path / "a")
    assert read_json(tmp_path / "a/agreement.json")["agreement"][0]["coefficients"]["kendall"]["value"] == 1.0
    run_meta("ensemble", "fit", *table, *judges, f"--judges=third={out}", "--overwrite", "--out", fitted)
    code, line = refuse_meta("ensemble", "apply", fitted, judges[0], "--out", tmp_path / "n")
    assert (code, "two/m" in line) == (ErrorCode.MISMATCH, True)


def test_samples_that_a_judge_has_not_scored_are_excluded(tmp_path: Path) -> None:
    one = write_scores(tmp_path / "one", [1, None, 3, 0])
    other = write_scores(tmp_path / "other", [1, 2, 2, 1], direction="higher")
    table, fitted, out = write_ratings(tmp_path, [0, 1, 2, 3]), tmp_path / "e.json", tmp_path / "out"
    fit = ("ensemble", "fit", *table, f"--judges=one={one}", "--method", "average", "--folds", 2, "--out", fitted)
    run_meta(*fit)
    assert "1 excluded" in run_meta("ensemble", "apply", fitted, f"--judges=one={one}", "--out", out, exit_code=3)
    assert [row["failure"] is None for _, row in read_jsonl(out / "samples.jsonl")] == [True, False, True, True]
    # An average of scores with different directions has no meaning.
    code, line = refuse_meta(*fit, f"--judges=other={other}", "--overwrite")
    assert (code, "one/m lower, other/m higher" in line) == (ErrorCode.MISMATCH, True)
