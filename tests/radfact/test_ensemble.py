"""Ensembles of judges: averages, regressions, and scores of samples that were not fitted on."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from radfact.errors import InputError
from radfact.io.jsonl import write_json, write_jsonl
from radfact.meta.ensembles.model import Ensemble, cross_validate, fit_ensemble, read_features

GENERATOR = np.random.default_rng(7)
FEATURES = {f"judge{number}/vert": GENERATOR.random(60).tolist() for number in range(3)}
TARGET = [0.5 + 2 * one - other for one, other in zip(FEATURES["judge0/vert"], FEATURES["judge1/vert"], strict=True)]


def test_an_average_weighs_all_alike_and_needs_no_target() -> None:
    ensemble = fit_ensemble({"a": [], "b": []}, method="average")
    assert ensemble.apply({"a": [1.0, 0.0], "b": [0.5, math.nan], "c": [9.0, 9.0]})[0] == 0.75
    assert math.isnan(ensemble.apply({"a": [0.0], "b": [math.nan]})[0])


def test_a_regression_finds_the_weights() -> None:
    ensemble = fit_ensemble(FEATURES, TARGET, target_name="expert score")
    assert ensemble.coefficients == pytest.approx({"judge0/vert": 2, "judge1/vert": -1, "judge2/vert": 0}, abs=1e-9)
    assert ensemble.intercept == pytest.approx(0.5)
    assert (ensemble.n, ensemble.target) == (60, "expert score")
    assert ensemble.apply(FEATURES) == pytest.approx(TARGET)


def test_figures_that_are_sums_of_others_do_no_harm() -> None:
    both = FEATURES | {"sum": [a + b for a, b in zip(*list(FEATURES.values())[:2], strict=True)]}
    assert fit_ensemble(both, TARGET).apply(both) == pytest.approx(TARGET)


def test_samples_without_all_values_are_not_fitted_on() -> None:
    features = {name: [math.nan, *values] for name, values in FEATURES.items()}
    ensemble = fit_ensemble(features, [100.0, *TARGET])
    assert ensemble.n == 60
    assert ensemble.intercept == pytest.approx(0.5)


def test_out_of_fold_scores_are_of_ensembles_that_did_not_see_the_sample() -> None:
    noise = {"noise": FEATURES["judge2/vert"]}
    target = np.random.default_rng(3).random(60).tolist()
    scores = cross_validate(noise, target, folds=60)
    # Without the sample, the mean of the others moves away from it: leaving one out cannot flatter.
    assert np.corrcoef(scores, target)[0, 1] < 0
    assert cross_validate(FEATURES, TARGET) == pytest.approx(TARGET)
    assert cross_validate(FEATURES, TARGET) == cross_validate(FEATURES, TARGET, seed=42)
    assert math.isnan(cross_validate(FEATURES, [math.nan, *TARGET[1:]])[0])


def test_an_ensemble_is_kept_in_a_file(tmp_path: Path) -> None:
    path = tmp_path / "ensemble.json"
    ensemble = fit_ensemble(FEATURES, TARGET)
    ensemble.save(path)
    assert Ensemble.load(path) == ensemble
    write_json(path, {"method": "linear_regression", "coefficients": {}})
    with pytest.raises(InputError, match="coefficients"):
        Ensemble.load(path)


def test_features_come_from_results_folders(tmp_path: Path) -> None:
    for judge, rows in {
        "gpt": [{"sample_id": "a", "vert": 0.5, "failure": None}, {"sample_id": "b", "vert": None}],
        "opus": [{"sample_id": "b", "vert": 1}, {"sample_id": "a", "vert": 0.25}, {"sample_id": "c", "vert": 0}],
    }.items():
        # A figure that no sample has is no feature.
        figures = {"vert": {"point": 0.5}, "grounding_f1": {"point": None}}
        write_json(tmp_path / judge / "scores.json", {"figures": figures})
        write_jsonl(tmp_path / judge / "samples.jsonl", rows)
    found = read_features({judge: tmp_path / judge for judge in ("gpt", "opus")})
    assert found.sample_ids == ["a", "b"]
    assert found.features["opus/vert"] == [0.25, 1.0]
    assert found.features["gpt/vert"][0] == 0.5
    assert math.isnan(found.features["gpt/vert"][1])
    assert found.directions == {"gpt/vert": "higher", "opus/vert": "higher"}
    assert list(read_features({"gpt": tmp_path / "gpt"}).features) == ["gpt/vert"]
    with pytest.raises(InputError, match="no such figure; there are vert"):
        read_features({"gpt": tmp_path / "gpt"}, ["green"])


@pytest.mark.parametrize(
    ("features", "target", "said"),
    [
        ({}, [1.0], "features"),
        ({"a": [1.0, 2.0]}, None, "target"),
        ({"a": [1.0, 2.0]}, [1.0], "expected 2 scores"),
        ({"a": [1.0], "b": [2.0]}, [1.0], "want more"),
        ({"a": [1.0], "b": [2.0, 3.0]}, [1.0], "as many values"),
    ],
)
def test_what_cannot_be_fitted_is_said(features: dict[str, list[float]], target: list[float] | None, said: str) -> None:
    with pytest.raises(InputError, match=said):
        fit_ensemble(features, target)


def test_a_missing_feature_is_named() -> None:
    with pytest.raises(InputError, match="judge2/vert"):
        fit_ensemble(FEATURES, TARGET).apply({"judge0/vert": [1.0], "judge1/vert": [1.0]})
    with pytest.raises(InputError, match="0 samples have a target and all of a, b"):
        cross_validate({"a": [1.0, math.nan], "b": [math.nan, 1.0]}, [1.0, 2.0])
    with pytest.raises(InputError, match="at least one feature"):
        cross_validate({}, [1.0])
    with pytest.raises(InputError, match="from 2 to 60"):
        cross_validate(FEATURES, TARGET, folds=61)
