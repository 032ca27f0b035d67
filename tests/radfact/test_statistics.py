"""Bootstrap and randomization, by sample and by cluster such as the patient, and agreement of raters."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from call_counts import count_calls
from error_checks import raises_code
from hypothesis import given
from hypothesis import strategies as st

from radfact.api import RadFact, evaluate
from radfact.errors import ErrorCode
from radfact.io.jsonl import read_json, read_jsonl, write_jsonl
from radfact.io.pairs import read_candidates_and_references, read_pairs
from radfact.records import Pair, Pairs
from radfact.results.compare import compare
from radfact.results.export import export
from radfact.results.writer import write_results
from radfact.statistics import rater_agreement as raters
from radfact.statistics.bootstrap import Summary, bootstrap, harmonic_mean, summarize, summarize_counts, wilson_interval
from radfact.statistics.clusters import Clusters
from radfact.statistics.correlation import compare_kendall, correlate
from radfact.statistics.significance import (
    adjust_holm,
    mean_counts,
    mean_from_counts,
    paired_difference,
    randomization_test,
)

CASES = yaml.safe_load(Path(__file__).with_name("statistics.yaml").read_text("utf-8"))
shares = st.floats(0, 1) | st.just(math.nan)


def resample_one_by_one(
    precision: Sequence[float], recall: Sequence[float], seed: int, replicates: int
) -> list[list[float]]:
    """Rows low, q25, median, q75, high of precision, recall and F1, computed replicate by replicate."""
    generator = np.random.default_rng(seed)
    drawn = []
    for _ in range(replicates):
        sample = generator.choice(len(precision), len(precision), replace=True)
        means = [np.nanmean(np.array(values)[sample]) for values in (precision, recall)]
        drawn.append([*means, harmonic_mean(*means)])
    rows: list[list[float]] = np.nanquantile(drawn, [0.025, 0.25, 0.5, 0.75, 0.975], axis=0).T.tolist()
    return rows


def spread(summary: Summary) -> list[float | None]:
    return [summary.low, summary.q25, summary.median, summary.q75, summary.high]


@pytest.mark.filterwarnings("ignore:Mean of empty slice")
@given(
    samples=st.lists(st.tuples(shares, shares), min_size=1, max_size=12).filter(
        lambda rows: all(not all(math.isnan(value) for value in column) for column in zip(*rows, strict=True))
    ),
    seed=st.integers(0, 2**32 - 1),
)
def test_intervals_are_those_of_replicates_drawn_one_by_one(samples: list[tuple[float, float]], seed: int) -> None:
    precision, recall = (list(column) for column in zip(*samples, strict=True))
    summaries = summarize({"p": precision, "r": recall}, f1={"f": ("p", "r")}, replicates=20, seed=seed)
    expected = resample_one_by_one(precision, recall, seed, 20)
    for name, row in zip(("p", "r", "f"), expected, strict=True):
        if np.isnan(row).all():
            assert spread(summaries[name]) == [None] * 5
        else:
            assert spread(summaries[name]) == pytest.approx(row, abs=1e-12)


@pytest.mark.parametrize(("precision", "recall", "expected"), CASES["points"])
def test_points_are_means_over_the_samples_with_a_value(
    precision: list[float], recall: list[float], expected: dict[str, list[float | None]]
) -> None:
    summaries = summarize({"p": precision, "r": recall}, f1={"f": ("p", "r")}, replicates=5)
    assert {name: [summary.point, summary.n] for name, summary in summaries.items()} == expected


@given(precision=st.floats(0, 1), recall=st.floats(0, 1))
def test_a_harmonic_mean_lies_between_its_parts(precision: float, recall: float) -> None:
    low, high = sorted((precision, recall))
    assert low - 1e-12 <= harmonic_mean(precision, recall) <= high + 1e-12
    assert harmonic_mean(0.0, 0.0) == 0.0


def test_the_bootstrap_makes_no_call_per_sample() -> None:
    def calls(samples: int) -> int:
        values = {name: np.linspace(0, 1, samples).tolist() for name in "abcdef"}
        f1 = {"x": ("a", "b"), "y": ("c", "d"), "z": ("e", "f")}
        return count_calls(lambda: summarize(values, f1=f1))

    calls(150)  # the first call imports modules
    assert calls(15_000) <= calls(150)


@pytest.mark.parametrize(("part", "whole", "low", "high"), CASES["wilson"])
def test_the_wilson_interval_is_that_of_scipy(part: int, whole: int, low: float, high: float) -> None:
    assert wilson_interval(part, whole) == pytest.approx((low, high), abs=1e-4)
    assert wilson_interval(0, 0) is None


@pytest.mark.parametrize(("level", "expected"), [("nominal", 0.743), ("ordinal", 0.815), ("interval", 0.849)])
def test_alpha_of_the_published_example(level: raters.Level, expected: float) -> None:
    items = [[rating for rating in ratings if rating] for ratings in zip(*CASES["observers"], strict=True)]
    counts = raters.coincidence_counts(items, [1, 2, 3, 4, 5])
    assert round(raters.alpha_from_counts([1, 2, 3, 4, 5], level)(counts.sum(axis=0)), 3) == expected


def test_kappa_equals_that_of_statsmodels() -> None:
    inter_rater = pytest.importorskip("statsmodels.stats.inter_rater")
    first, second = np.random.default_rng(0).integers(0, 4, (2, 50))
    pairs = list(zip(first.tolist(), np.where(first > 1, first, second).tolist(), strict=True))
    counts = raters.confusion_counts(pairs, [0, 1, 2, 3]).sum(axis=0)
    expected = inter_rater.cohens_kappa(counts.reshape(4, 4), wt="linear").kappa
    assert raters.kappa_from_counts([0, 1, 2, 3])(counts) == pytest.approx(expected)
    binary = raters.confusion_counts([(a > 1, b > 0) for a, b in pairs], [0, 1]).sum(axis=0)
    expected = inter_rater.cohens_kappa(binary.reshape(2, 2)).kappa
    assert raters.kappa_from_counts([0, 1])(binary) == pytest.approx(expected)


def test_a_single_category_has_no_value() -> None:
    assert math.isnan(raters.kappa_from_counts([0, 1])(raters.confusion_counts([(1, 1)], [0, 1]).sum(axis=0)))
    counts = raters.coincidence_counts([[1, 1], [0]], [0, 1]).sum(axis=0)
    assert math.isnan(raters.alpha_from_counts([0, 1], "nominal")(counts))


def test_an_interval_contains_the_value_and_follows_the_clusters() -> None:
    generator = np.random.default_rng(1)
    first = generator.integers(0, 2, 200)
    pairs = list(zip(first.tolist(), np.where(generator.random(200) < 0.8, first, 1 - first).tolist(), strict=True))
    counts = raters.confusion_counts(pairs, [0, 1])
    functions = {"kappa": raters.kappa_from_counts([0, 1])}
    summary = summarize_counts(counts, functions)["kappa"]
    assert (summary.low or 1) < (summary.point or 0) < (summary.high or 0)
    one = summarize_counts(counts, functions, clusters=Clusters("sample_id", ["same"] * 200))["kappa"]
    assert (one.point, one.low) == (summary.point, None)


COUNTS = st.lists(st.integers(0, 5), min_size=1, max_size=8)


@pytest.mark.parametrize(("expert", "predicted", "f1"), CASES["f1"])
def test_error_type_f1_by_hand(expert: list[float], predicted: list[float], f1: float | None) -> None:
    assert raters.error_type_f1(expert, predicted) == (None if f1 is None else pytest.approx(f1))


@given(COUNTS, st.data())
def test_f1_is_1_for_the_same_counts_only(expert: list[float], data: st.DataObject) -> None:
    predicted = data.draw(st.lists(st.integers(0, 5), min_size=len(expert), max_size=len(expert)))
    f1 = raters.error_type_f1(expert, predicted)
    assert f1 is not None
    assert 0 <= f1 <= 1
    assert (f1 == 1) == (expert == predicted and any(expert))
    assert f1 == raters.error_type_f1(predicted, expert)


def test_counts_are_compared_where_both_are_known() -> None:
    assert raters.mean_detected([3, 1, 3, 1], [2, 1, 1, math.nan]) == {1: raters.Mean(1, 1), 3: raters.Mean(1.5, 2)}
    # The mean expert is rounded half up.
    assert raters.count_accuracy([1.5, 1 / 3, 1], [2, 1, math.nan]) == raters.Mean(0.5, 2)
    assert raters.count_accuracy([1], [math.nan]) == raters.Mean(None, 0)


VALUES = [0.1, 0.9, math.nan, 0.4, 0.7, 0.2, 0.8]
OTHERS = [0.3, 0.5, 0.6, math.nan, 0.9, 0.1, 0.2]
CHOICES: list[raters.Preference | None] = ["first", "second", "equal", None, "first", "second", "second"]
EXPERTS: list[raters.Preference | None] = ["first", "first", "second", "first", "first", "second", "first"]
MEAN = {"x": mean_from_counts}

STATISTICS: Mapping[str, Callable[..., Any]] = {
    "mean": lambda x, y, *_, **by: summarize({"x": x, "y": y}, f1={"f": ("x", "y")}, **by),
    "counts": lambda x, *_, **by: summarize_counts(mean_counts(x), MEAN, **by),
    "difference": lambda x, y, *_, **by: paired_difference(mean_counts(x), mean_counts(y), MEAN, **by),
    "p": lambda x, y, *_, **by: randomization_test(mean_counts(x), mean_counts(y), MEAN, **by),
    "correlation": lambda x, y, *_, **by: correlate(x, y, **by),
    "difference of tau": lambda x, y, _, __, z, **by: compare_kendall(x, y, z, **by).difference,
    "p of tau": lambda x, y, _, __, z, **by: compare_kendall(x, y, z, **by).p,
    "preferences": lambda _, __, theirs, ours, ___, **by: raters.preference_accuracy(theirs, ours, **by),
}
COLUMNS: tuple[list[Any], ...] = (VALUES, OTHERS, EXPERTS, CHOICES, [0.2, 0.7, 0.1, 0.5, 0.3, 0.9, 0.6])


def statistic(name: str, clusters: Clusters | None, repeats: int = 1, order: Sequence[int] = range(7)) -> Any:
    """Return a statistic of the samples above in some order, each repeated some times."""
    columns = ([column[index] for index in order] * repeats for column in COLUMNS)
    return STATISTICS[name](*columns, clusters=clusters)


def bounds(result: Any) -> list[tuple[float | None, float | None]]:
    """Return the intervals of a statistic; a p-value is both of its bounds."""
    estimates = result.values() if isinstance(result, dict) else [result]
    return [(getattr(estimate, "low", estimate), getattr(estimate, "high", estimate)) for estimate in estimates]


@pytest.mark.parametrize(
    "labels", [[None] * 7, ["q", None, "p", "q", None, "r", "p"], ["b", None, "c", None, "a", "d", None]]
)
@pytest.mark.parametrize("name", STATISTICS)
@pytest.mark.parametrize("order", [[6, 5, 4, 3, 2, 1, 0], [3, 0, 6, 1, 5, 2, 4]])
def test_the_order_of_the_samples_changes_nothing(name: str, labels: list[str | None], order: list[int]) -> None:
    """Bit by bit: the draws are those of the samples sorted by id, in which 9 precedes 10, and of single clusters."""
    clusters = Clusters("patient_id" if any(labels) else None, labels, [f"s{number}" for number in range(5, 12)])
    expected = statistic(name, None if clusters.count == 7 else Clusters(clusters.by, labels))
    assert statistic(name, clusters) == statistic(name, clusters.select(order), order=order) == expected


@pytest.mark.parametrize("name", STATISTICS)
def test_equal_samples_of_a_cluster_count_as_one(name: str) -> None:
    """Drawn or swapped by themselves, they would make the interval too narrow and p too small."""
    by_cluster, by_sample, one_each = (
        bounds(statistic(name, *sample))
        for sample in ((Clusters("patient_id", [*"abcdefg"] * 4), 4), (None, 4), (None, 1))
    )
    for interval, too_narrow, expected in zip(by_cluster, by_sample, one_each, strict=True):
        assert interval == pytest.approx(expected, abs=1e-12)
        assert interval != pytest.approx(too_narrow, abs=0.01)


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


@pytest.mark.parametrize("name", STATISTICS)
def test_one_cluster_has_no_interval_and_no_p(name: str) -> None:
    clusters = Clusters("patient_id", ["a"] * 7)
    assert set(bounds(statistic(name, clusters))) == {(None, None)}
    assert "1 cluster; no intervals and no p-values" in clusters.resampling().describe()


def test_a_score_with_values_in_one_cluster_has_no_interval() -> None:
    values = {"x": [0.2, 0.4, math.nan, math.nan], "y": [0.2, 0.4, 0.1, 0.3]}
    scores = summarize(values, clusters=Clusters("patient_id", ["a", "a", "b", "b"]))
    assert (scores["x"].point, scores["x"].low) == (pytest.approx(0.3), None)
    assert scores["y"].low is not None


@pytest.mark.parametrize(("raw", "adjusted"), CASES["holm"])
def test_holm(raw: list[float | None], adjusted: list[float | None]) -> None:
    assert adjust_holm(raw) == pytest.approx(adjusted)


# Clusters in files

TEXTS = ["No effusion.", "Clear lungs.", "The heart is large.", "A small left effusion."]
EVALUATED = ["radfact", "rouge_l", "bleu_1"]
CLUSTERS = Clusters("patient_id", ["p", "p", "q", None])


def _manifest(folder: Path, **columns: list[Any]) -> tuple[Path, Path]:
    values = {"sample_id": list("0123"), "findings": TEXTS, **columns}
    rows = [dict(zip(values, row, strict=True)) for row in zip(*values.values(), strict=True)]
    write_jsonl(folder / "manifest.jsonl", rows)
    write_jsonl(folder / "drafts.jsonl", [{"sample_id": name, "report": "Clear."} for name in "012"])
    return folder / "drafts.jsonl", folder / "manifest.jsonl"


@pytest.mark.parametrize(("columns", "cluster", "by", "labels"), CASES["clusters"])
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
        evaluate(pairs, EVALUATED, judge="offline", out=root / name)
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


@pytest.mark.parametrize("by", [None, "patient_id"])
def test_the_order_of_the_input_changes_no_number(by: str | None, tmp_path: Path) -> None:
    """Scores, differences and exports are the same to the last digit, also of lists, which have no ids."""
    texts = [f"{TEXTS[place % 4]} {TEXTS[place % 3]}" for place in range(12)]
    pairs = [
        Pair(f"s{place}", texts[place], texts[place * 5 % 12], by and f"p{place % 5}") for place in range(len(texts))
    ]
    orders = {"a": pairs, "b": pairs[::-1], "c": [pairs[place * 7 % 12] for place in range(12)]}
    results, exported, compared = [], [], []
    evaluate([replace(pair, candidate=TEXTS[0]) for pair in pairs], EVALUATED, judge="offline", out=tmp_path / "first")
    for name, rows in orders.items():
        folder = tmp_path / name
        result = evaluate(Pairs(tuple(rows), 12, cluster_by=by), EVALUATED, judge="offline", out=folder)
        reports = [[str(getattr(pair, side)) for pair in rows] for side in ("candidate", "reference")]
        lists = RadFact("offline", bootstrap=100).score(*reports)
        write_results(lists, folder / "lists")
        results.append((result.summaries, lists.summaries))
        exported.append((read_json(export(folder)), read_json(export(folder / "lists"))))
        compared.append(compare([tmp_path / "first", folder]).scores)
    assert results[0][0]["rouge_l"].low != results[0][0]["rouge_l"].high
    for values in (results, exported, compared):
        assert values[1:] == values[:1] * 2


def test_p_is_adjusted_over_the_main_scores_of_all_systems(folders: list[Path], tmp_path: Path) -> None:
    pairs = [Pair(str(place), "Clear.", text) for place, text in enumerate(TEXTS)]
    evaluate(pairs, ["rouge_l", "bleu_1"], out=tmp_path)
    comparison = compare([*folders, tmp_path], cluster="none")
    contrasts = [contrast for row in comparison.scores.values() for contrast in row]
    raw = [contrast.p for contrast in contrasts]
    assert comparison.tests == 4 == len([p for p in raw if p is not None])
    assert [contrast.p_holm for contrast in contrasts] == adjust_holm(raw)
    assert any("--rounds" in note for note in compare([*folders, tmp_path], rounds=50).notes)


def test_golden_interval_of_ten_samples() -> None:
    # Origin, with numpy 2.4: g = default_rng(42); v = arange(10) / 10;
    # quantile([v[g.choice(10, 10)].mean() for _ in range(500)], [.025, .25, .5, .75, .975])
    summary = summarize({"p": [share / 10 for share in range(10)]})["p"]
    assert [summary.point, *spread(summary)] == pytest.approx([0.45, 0.28, 0.39, 0.44, 0.51, 0.63])
