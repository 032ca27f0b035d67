"""Bootstrap and randomization by cluster, such as the patient of each study."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from error_checks import raises_code

from radfact.api import evaluate
from radfact.errors import ErrorCode
from radfact.io.jsonl import read_json, read_jsonl, write_jsonl
from radfact.io.pairs import read_candidates_and_references, read_pairs
from radfact.records import Pair, Pairs
from radfact.results.compare import compare
from radfact.results.export import export
from radfact.statistics.bootstrap import bootstrap, summarize, summarize_counts
from radfact.statistics.clusters import Clusters
from radfact.statistics.correlation import correlate
from radfact.statistics.rater_agreement import Preference, preference_accuracy
from radfact.statistics.significance import (
    adjust_holm,
    mean_counts,
    mean_from_counts,
    paired_difference,
    randomization_test,
)

VALUES = [0.1, 0.9, math.nan, 0.4, 0.7, 0.2, 0.8]
OTHERS = [0.3, 0.5, 0.6, math.nan, 0.9, 0.1, 0.2]
CHOICES: list[Preference | None] = ["first", "second", "equal", None, "first", "second", "second"]
EXPERTS: list[Preference | None] = ["first", "first", "second", "first", "first", "second", "first"]
MEAN = {"x": mean_from_counts}

STATISTICS: Mapping[str, Callable[[Clusters | None], Any]] = {
    "mean": lambda clusters: summarize({"x": VALUES, "y": OTHERS}, f1={"f": ("x", "y")}, clusters=clusters),
    "counts": lambda clusters: summarize_counts(mean_counts(VALUES), MEAN, clusters=clusters),
    "difference": lambda clusters: paired_difference(mean_counts(VALUES), mean_counts(OTHERS), MEAN, clusters=clusters),
    "p": lambda clusters: randomization_test(mean_counts(VALUES), mean_counts(OTHERS), MEAN, clusters=clusters),
    "correlation": lambda clusters: correlate(VALUES, OTHERS, clusters=clusters),
    "preferences": lambda clusters: preference_accuracy(EXPERTS, CHOICES, clusters=clusters),
}


@pytest.mark.parametrize("name", STATISTICS)
@pytest.mark.parametrize("labels", [list("abcdefg"), [None] * 7, ["b", None, "c", None, "a", "d", None]])
def test_clusters_of_one_sample_draw_as_samples_do(name: str, labels: list[str | None]) -> None:
    """Bit by bit: the published draws stay where no two samples share a cluster."""
    assert STATISTICS[name](Clusters("patient_id", labels)) == STATISTICS[name](None)


def test_the_draws_without_clusters_are_the_published_ones() -> None:
    generator, column = np.random.default_rng(7), np.array(OTHERS[4:])
    expected = [column[generator.choice(3, 3, replace=True)].mean() for _ in range(20)]
    assert bootstrap({"x": OTHERS[4:]}, replicates=20, seed=7)["x"].tolist() == pytest.approx(expected, abs=1e-15)
    weights = np.random.default_rng(42).choice(np.array([1.0, 0.0, 0.0]), (1000, 3)).mean(axis=1)
    low, high = np.quantile(weights, (0.025, 0.975)).tolist()
    accuracy = preference_accuracy(["first"] * 3, ["first", "second", "equal"])
    assert (accuracy.low, accuracy.high) == (low, high)


def test_whole_clusters_are_drawn() -> None:
    values, labels = [0.0, 1.0, 0.5, 0.25, math.nan], ["p", "q", "p", None, "q"]
    members = [[0, 2], [1, 4], [3]]
    generator = np.random.default_rng(3)
    expected = []
    for _ in range(50):
        drawn = [values[index] for place in generator.choice(3, 3) for index in members[place]]
        expected.append(float(np.nanmean(drawn)))
    clusters = Clusters("patient_id", labels)
    assert bootstrap({"x": values}, replicates=50, seed=3, clusters=clusters)["x"].tolist() == pytest.approx(expected)
    pooled = summarize_counts(mean_counts(values), MEAN, replicates=50, seed=3, clusters=clusters)["x"]
    assert (pooled.low, pooled.high) == pytest.approx(tuple(np.quantile(expected, (0.025, 0.975))))
    assert clusters.resampling().describe() == (
        "resampled by patient: 5 samples in 3 clusters; 1 sample without a patient_id is its own cluster"
    )


def test_whole_clusters_are_swapped() -> None:
    """Two clusters have four swaps, of which the observed and the opposite one differ most."""
    left, right = mean_counts([0.9, 0.8, 0.7, 0.6]), mean_counts([0.1, 0.2, 0.3, 0.1])
    p = randomization_test(left, right, MEAN, rounds=4000, clusters=Clusters("patient_id", list("aabb")))["x"]
    assert p == pytest.approx(0.5, abs=0.03)
    assert randomization_test(left, right, MEAN, rounds=4000)["x"] == pytest.approx(2 / 16, abs=0.02)


@pytest.mark.parametrize("name", STATISTICS)
def test_one_cluster_has_no_interval_and_no_p(name: str) -> None:
    clusters = Clusters("patient_id", ["a"] * 7)
    result = STATISTICS[name](clusters)
    if name == "p":
        assert result == {"x": None}
    else:
        estimates = list(result.values()) if isinstance(result, dict) else [result]
        assert {(estimate.low, estimate.high) for estimate in estimates} == {(None, None)}
        assert all(estimate.n for estimate in estimates)
    assert "1 cluster; no intervals and no p-values" in clusters.resampling().describe()


def test_a_score_with_values_in_one_cluster_has_no_interval() -> None:
    values = {"x": [0.2, 0.4, math.nan, math.nan], "y": [0.2, 0.4, 0.1, 0.3]}
    scores = summarize(values, clusters=Clusters("patient_id", ["a", "a", "b", "b"]))
    assert (scores["x"].point, scores["x"].low) == (pytest.approx(0.3), None)
    assert scores["y"].low is not None


def _mean_interval(generator: np.random.Generator, clusters: Clusters | None) -> tuple[float | None, float | None]:
    shared = np.repeat(generator.normal(scale=math.sqrt(0.8), size=100), 4)
    values = shared + generator.normal(scale=math.sqrt(0.2), size=400)
    score = summarize({"x": values.tolist()}, replicates=200, clusters=clusters)["x"]
    return score.low, score.high


def _pearson_interval(generator: np.random.Generator, clusters: Clusters | None) -> tuple[float | None, float | None]:
    """Both the cluster's and the sample's part of two variables correlate by 0.5, as the variables then do."""
    covariance = [[1.0, 0.5], [0.5, 1.0]]
    shared = np.repeat(generator.multivariate_normal([0, 0], covariance, 40), 5, axis=0)
    x, y = (math.sqrt(0.8) * shared + math.sqrt(0.2) * generator.multivariate_normal([0, 0], covariance, 200)).T
    pearson = correlate(x.tolist(), y.tolist(), replicates=200, clusters=clusters)["pearson"]
    return pearson.low, pearson.high


@pytest.mark.parametrize(
    ("interval", "truth", "clusters", "size", "runs", "lowest"),
    [(_mean_interval, 0.0, 100, 4, 200, 0.92), (_pearson_interval, 0.5, 40, 5, 40, 0.87)],
)
def test_intervals_by_cluster_cover_the_truth(
    interval: Callable[..., tuple[float, float]], truth: float, clusters: int, size: int, runs: int, lowest: float
) -> None:
    """Samples correlate by 0.8 within a cluster."""
    labels = Clusters("study_id", [str(index // size) for index in range(clusters * size)])
    coverage = []
    for by in (labels, None):
        bounds = [interval(np.random.default_rng([1, run]), by) for run in range(runs)]
        coverage.append(sum(low <= truth <= high for low, high in bounds) / runs)
    assert lowest < coverage[0] < 0.98, coverage
    assert coverage[1] < 0.8, coverage


@pytest.mark.parametrize(
    ("raw", "adjusted"),
    [
        # Worked by hand: 4 x 0.01; max(0.04, 3 x 0.02); max(0.06, 2 x 0.03); max(0.06, 0.04).
        ([0.01, 0.04, 0.03, 0.02], [0.04, 0.06, 0.06, 0.06]),
        # Two tests: a missing p-value does not belong to the family.
        ([0.03, None, 0.01], [0.03, None, 0.02]),
        ([0.6, 0.7], [1.0, 1.0]),
        ([None], [None]),
        ([], []),
    ],
)
def test_holm(raw: list[float | None], adjusted: list[float | None]) -> None:
    assert adjust_holm(raw) == pytest.approx(adjusted)


# Clusters in files

TEXTS = ["No effusion.", "Clear lungs.", "The heart is large.", "A small left effusion."]
CLUSTERS = Clusters("patient_id", ["p", "p", "q", None])


def _manifest(folder: Path, **columns: list[Any]) -> tuple[Path, Path]:
    values = {"sample_id": list("0123"), "findings": TEXTS, **columns}
    rows = [dict(zip(values, row, strict=True)) for row in zip(*values.values(), strict=True)]
    write_jsonl(folder / "manifest.jsonl", rows)
    write_jsonl(folder / "drafts.jsonl", [{"sample_id": name, "report": "Clear."} for name in "012"])
    return folder / "drafts.jsonl", folder / "manifest.jsonl"


@pytest.mark.parametrize(
    ("columns", "cluster", "by", "labels"),
    [
        ({"patient_id": ["a", "a", None, "b"], "study_id": [*"1234"]}, None, "patient_id", ["a", "a", None]),
        ({"patient_id": [None] * 4, "study_id": [*"1134"]}, None, "study_id", [*"113"]),
        ({"patient_id": [*"aaaa"], "study_id": [1, 1, 3, 4]}, "study_id", "study_id", [*"113"]),
        ({"patient_id": [*"aaaa"], "site": ["x", "y", "y", ""]}, "site", "site", [*"xyy"]),
        ({"patient_id": [*"aaaa"]}, "none", None, [None] * 3),
        ({}, None, None, [None] * 3),
    ],
)
def test_clusters_come_from_the_manifest(
    tmp_path: Path, columns: dict[str, list[Any]], cluster: str | None, by: str | None, labels: list[str | None]
) -> None:
    pairs = read_candidates_and_references(*_manifest(tmp_path, **columns), missing="skip", cluster=cluster)
    assert (pairs.cluster_by, [pair.cluster for pair in pairs]) == (by, labels)


@pytest.mark.parametrize("suffix", [".csv", ".json"])
def test_clusters_come_from_a_file_of_pairs(tmp_path: Path, suffix: str) -> None:
    path, report = tmp_path / f"pairs{suffix}", [{"text": "Clear."}]
    rows = [{"example_id": key, "prediction": report, "target": report, "patient_id": "p"} for key in ("1", "2")]
    if suffix == ".csv":
        path.write_text("example_id,prediction,target,patient_id,site\n1,a,b,p,x\n2,a,b,p,\n")
    else:
        path.write_text(json.dumps([rows[0] | {"site": "x"}, rows[1]]))
    assert [pair.cluster for pair in read_pairs(path)] == ["p", "p"]
    named = read_pairs(path, cluster="site")
    assert (named.cluster_by, [pair.cluster for pair in named]) == ("site", ["x", None])
    with raises_code(ErrorCode.MISSING_FIELD, field="cluster"):
        read_pairs(path, cluster="hospital")


def test_a_label_that_is_no_text_is_refused(tmp_path: Path) -> None:
    with raises_code(ErrorCode.INVALID_VALUE, line=2, field="patient_id"):
        read_candidates_and_references(*_manifest(tmp_path, patient_id=["a", ["b"], "c", "d"]), missing="skip")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    root = tmp_path_factory.mktemp("clustered")
    for name, candidates in (("a", TEXTS), ("b", ["No effusion."] * 4)):
        rows = zip("0123", candidates, TEXTS, CLUSTERS.labels, strict=True)
        pairs = Pairs(tuple(Pair(*row) for row in rows), read=4, cluster_by="patient_id")
        evaluate(pairs, ["radfact", "rouge_l", "bleu_1"], judge="offline", out=root / name)
    return [root / "a", root / "b"]


def test_results_hold_the_clusters_and_are_resampled_by_them_again(folders: list[Path]) -> None:
    scores = read_json(folders[1] / "scores.json")
    assert scores["resampling"] == {"by": "patient_id", "clusters": 3, "samples": 4, "unlabeled": 1}
    samples = [row for _, row in read_jsonl(folders[1] / "samples.jsonl")]
    assert [row["cluster"] for row in samples] == ["p", "p", "q", None]
    values = {"x": [row["rouge_l"] for row in samples]}
    by_patient, by_sample = (summarize(values, clusters=clusters)["x"].high for clusters in (CLUSTERS, None))
    assert scores["scores"]["rouge_l"]["high"] == by_patient != by_sample
    note = "Intervals: resampled by patient: 4 samples in 3 clusters; 1 sample without a patient_id"
    assert note in (folders[1] / "report.html").read_text()
    # The export computes the scores again and compares them.
    exported = read_json(export(folders[1]))
    assert exported["logical_precision/p2.5th"] == pytest.approx(scores["scores"]["logical_precision"]["low"])

    comparison = compare(folders)
    assert comparison.resampling.by == "patient_id"
    for name in ("rouge_l", "bleu_1", "logical_f1"):
        assert comparison.scores[name][1].summary.high == pytest.approx(scores["scores"][name]["high"])
    assert compare(folders, cluster="none").scores["rouge_l"][1].summary.high == pytest.approx(by_sample)
    with raises_code(ErrorCode.MISMATCH, field="cluster"):
        compare(folders, cluster="study_id")


def test_p_is_adjusted_over_all_scores_and_systems(folders: list[Path], tmp_path: Path) -> None:
    pairs = [Pair(str(place), "Clear.", text) for place, text in enumerate(TEXTS)]
    evaluate(pairs, ["rouge_l", "bleu_1"], out=tmp_path)
    comparison = compare([*folders, tmp_path], cluster="none")
    contrasts = [contrast for row in comparison.scores.values() for contrast in row]
    raw = [contrast.p for contrast in contrasts]
    assert comparison.tests == 4 == len([p for p in raw if p is not None])
    assert [contrast.p_holm for contrast in contrasts] == adjust_holm(raw)
    assert any("--rounds" in note for note in compare([*folders, tmp_path], rounds=50).notes)
