"""Agreement with experts: correlations compared with scipy on explicit resamples, and the command on plain tables."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from chat_server import ChatServer, Reply, last
from hypothesis import given, settings
from hypothesis import strategies as st
from meta_run import refuse_meta, run_meta, write_scores, write_table
from scipy import stats

from radfact.error_categories import ERROR_CATEGORIES
from radfact.errors import ErrorCode
from radfact.io.jsonl import read_json
from radfact.io.pairs import read_pairs
from radfact.meta.agreement.analysis import (
    MEAN_RATER,
    compare_counts,
    compare_raters,
    correlate_with_experts,
    count_errors,
    counted_quantity,
)
from radfact.meta.agreement.preferences import evaluate_scores
from radfact.meta.datasets.layouts import LAYOUTS
from radfact.meta.datasets.preferences import read_preferences
from radfact.meta.datasets.ratings import RatedReport, RatingSet, count_directions, count_quantities
from radfact.meta.scores import ScoreColumns
from radfact.pages import plots
from radfact.pages.meta_page import Section, Table, write_page
from radfact.records import Pair
from radfact.statistics.bootstrap import Direction
from radfact.statistics.clusters import Clusters
from radfact.statistics.correlation import SEED, Estimate, correlate

NUMBERS = st.integers(0, 4).map(float)


@settings(deadline=None, max_examples=25)
@given(st.lists(st.tuples(NUMBERS, NUMBERS), min_size=3, max_size=25))
def test_intervals_are_those_of_scipy_on_the_drawn_samples(pairs: list[tuple[float, float]]) -> None:
    x, y = (np.array(column) for column in zip(*pairs, strict=True))
    estimates = correlate(x.tolist(), y.tolist(), replicates=20)
    if np.ptp(x) == 0 or np.ptp(y) == 0:
        assert all(estimate == Estimate(None, n=len(x)) for estimate in estimates.values())
        return
    generator = np.random.default_rng(SEED)
    draws = [generator.choice(len(x), len(x), replace=True) for _ in range(20)]
    for name, function in (("kendall", stats.kendalltau), ("spearman", stats.spearmanr), ("pearson", stats.pearsonr)):
        assert estimates[name].value == pytest.approx(function(x, y).statistic, abs=1e-9)
        drawn = [d for d in draws if np.ptp(x[d]) and np.ptp(y[d])]
        values = [function(x[d], y[d]).statistic for d in drawn]
        if values:
            expected = [pytest.approx(bound, abs=1e-9) for bound in np.quantile(values, (0.025, 0.975))]
            assert [estimates[name].low, estimates[name].high] == expected


def test_a_sample_without_a_value_is_excluded() -> None:
    with_gap = correlate([1, 2, math.nan, 3, 4], [1, 3, 9, 2, math.nan], replicates=0)
    assert with_gap == correlate([1, 2, 3], [1, 3, 2], replicates=0)
    assert with_gap["kendall"].n == 3
    assert with_gap["kendall"].value == pytest.approx(1 / 3)
    assert with_gap["kendall"].low is None


def test_a_difference_by_rounding_is_a_tie() -> None:
    expert = [0.0, 1, 2, 3, 4]
    noisy = correlate(expert, [0.4444444444444444, 0.44444444444444453, 0.1, 0.2, 0.3], replicates=50)
    tied = correlate(expert, [0.4444444444444444, 0.4444444444444444, 0.1, 0.2, 0.3], replicates=50)
    assert (noisy["kendall"], noisy["spearman"]) == (tied["kendall"], tied["spearman"])
    assert noisy["kendall"].value != correlate(expert, [0.44, 0.45, 0.1, 0.2, 0.3], replicates=0)["kendall"].value


def test_large_sets_are_computed_in_blocks() -> None:
    generator = np.random.default_rng(1)
    x = generator.integers(0, 6, 1200).astype(float)
    y = x + generator.normal(0, 3, 1200)
    estimate = correlate(x.tolist(), y.tolist(), replicates=3)["kendall"]
    drawn = np.random.default_rng(SEED)
    values = [stats.kendalltau(x[d], y[d]).statistic for d in (drawn.choice(1200, 1200) for _ in range(3))]
    assert estimate.low == pytest.approx(np.quantile(values, 0.025))


def rated(values: list[list[float]], groups: list[str] | None = None) -> RatingSet:
    """Samples with the quantity `errors` by raters A, B, ...; fewer are better."""
    samples = [
        RatedReport(
            Pair(str(index), "c", "r"),
            {"errors": {name: value for name, value in zip("ABC", row, strict=False) if not math.isnan(value)}},
            {"site": groups[index]} if groups else {},
        )
        for index, row in enumerate(values)
    ]
    return RatingSet(samples, {"errors": "lower"}, "errors", "site" if groups else None)


def test_a_positive_coefficient_means_that_both_rate_the_same_reports_as_bad() -> None:
    scores = ScoreColumns(
        {"good": [9, 7, 4, 1], "ec": [0, 1, 2, 4], "share": [1, 2, 3, 4]},
        {"good": "higher", "ec": "lower", "share": "neutral"},
    )
    results = correlate_with_experts(rated([[0], [1], [2], [5]]), scores, replicates=0)
    assert {row.score: row.coefficients["kendall"].value for row in results} == {"good": 1.0, "ec": 1.0}


@pytest.mark.parametrize(("group", "label"), [("x", "x"), ("all", "all (site)")])
def test_groups_are_correlated_separately(group: str, label: str) -> None:
    ratings = rated([[0], [1], [2], [0], [1], [2]], groups=[group] * 3 + ["y"] * 3)
    results = correlate_with_experts(ratings, ScoreColumns({"f": [0, 1, 2, 2, 1, 0]}, {"f": "lower"}), replicates=0)
    values = {row.group: row.coefficients["spearman"].value for row in results}
    assert values == {"all": pytest.approx(0), label: pytest.approx(1), "y": pytest.approx(-1)}


def test_raters_are_compared_over_the_candidates_of_both() -> None:
    (row,) = compare_raters(rated([[0, 1], [1, 1], [2, 3], [4, math.nan], [5, 5]]), replicates=0)
    assert (row.first, row.second, row.kendall.n) == ("A", "B", 4)
    assert row.mean_absolute_difference == pytest.approx(0.5)
    assert row.kendall.value == pytest.approx(stats.kendalltau([0, 1, 2, 5], [1, 1, 3, 5]).statistic)
    # Each of three raters is also compared with the mean of all.
    results = compare_raters(rated([[0, 1, 2], [1, 1, 1], [3, 2, 4]]), replicates=0)
    pairs = [f"{row.first}-{row.second}" for row in results]
    assert pairs == [*(f"{MEAN_RATER}-{name}" for name in "ABC"), "A-B", "A-C", "B-C"]
    assert results[0].mean_absolute_difference == pytest.approx((1 + 0 + 0) / 3)


def test_scores_that_count_errors_are_recognized_by_name() -> None:
    quantities = {"green_ec": "errors", "green_significant": "significant", "vert_insignificant": "insignificant"}
    quantities |= {"green_significant_c": "significant_c", "chexprompt_errors": "errors"}
    names = [*quantities, "green", "green_matched"]
    assert {name: counted_quantity(name, count_directions()) for name in names} == {
        **dict.fromkeys(names),
        **quantities,
    }


def test_counts_are_compared_with_the_mean_expert() -> None:
    counts = [
        {("significant", "a", "A"): 2.0, ("significant", "a", "B"): 1.0, ("significant", "b", "A"): 1.0},
        {("significant", "a", "A"): 0.0, ("significant", "a", "B"): 0.0},
    ]
    samples = [RatedReport(Pair(str(i), "c", "r"), count_quantities(one)) for i, one in enumerate(counts)]
    ratings = RatingSet(samples, count_directions(), "errors")
    # One rater counts 3, the other 1.
    assert ratings.means("significant") == [2.0, 0.0]
    values: dict[str, list[float]] = {"m_significant": [3.0, 1.0]}
    values |= {f"m_significant_{letter}": [1.0 if letter in "ac" else 0.0, 0.0] for letter in ERROR_CATEGORIES}
    scores = ScoreColumns(values, dict.fromkeys(values, "lower"))
    first, *each = count_errors(ratings, scores)[:3]
    assert (first.quantity, first.rater, first.mean, first.deviation) == ("significant", MEAN_RATER, 1.0, 0.0)
    assert first.n == 2
    # One rater counts 3 and 0, the other 1 and 0.
    assert [(row.rater, row.mean) for row in each] == [("A", 0.5), ("B", 1.5)]
    (result,) = compare_counts(ratings, scores)
    assert {true: mean.value for true, mean in result.detected.items()} == {0: 1.0, 2: 3.0}
    # (a): 1.5 rounds to 2, of which one is detected; (b): 0.5 rounds to 1, missed; (c): one too many.
    assert [result.f1[letter] for letter in "abc"] == pytest.approx([2 / 3, 0, 0])
    # The second report has the right number of every category, the first of (d) to (f).
    assert [result.accuracy[letter].value for letter in ERROR_CATEGORIES] == [0.5, 0.5, 0.5, 1.0, 1.0, 1.0]


PREFERENCE_HEADER = ["id", "reference", "candidate_1", "candidate_2", "confidence", "expert_a"]


def test_preferences_by_scores(tmp_path: Path) -> None:
    cells = [("good", "bad", 9, "first", "first"), ("bad", "good", 5, "second", "2"), ("x", "y", 5, "first", "second")]
    cells += [("x", "y", 1, "equal", "equal"), ("worse", "fine", 2, "second", "")]
    rows = [[str(number), "r", *row] for number, row in enumerate(cells, 1)]
    preferences = read_preferences(write_table(tmp_path / "p.csv", [*PREFERENCE_HEADER, "expert_b"], rows))
    assert preferences.expert == ["first", "second", None, None, "second"]
    # The second score differs only where the experts prefer none.
    values = {"ec": [0, 3, 0, 0, 1, 2, 1, 0, 0, 1], "b": [1, 1, 0, 1, 1, 1, 1, 2, 0, 1]}
    table = evaluate_scores(preferences, ScoreColumns(values, dict.fromkeys(values, "lower")), replicates=10, seed=1)
    assert {level: one.value for level, one in table["ec"].items()} == {2.0: pytest.approx(2 / 3), 5.0: 1.0, 9.0: 1.0}
    assert {(one.value, one.low, one.ties) for one in table["b"].values()} == {(None, None, 1.0)}


def test_a_majority_of_the_experts_may_decide(tmp_path: Path) -> None:
    labels = [("first", "first", "first"), ("second", "first", "second"), ("first", "equal", "first")]
    # Half of the labels, two ties, no label, and three different labels decide nothing.
    labels += [("first", "second", ""), ("equal", "equal", "first"), ("", "", ""), ("first", "second", "equal")]
    header = ["id", "reference", "candidate_1", "candidate_2", "expert_a", "expert_b", "expert_c"]
    path = write_table(tmp_path / "p.csv", header, [[key, "r", "x", "y", *row] for key, row in enumerate(labels)])
    unanimous, majority = read_preferences(path), read_preferences(path, consensus="majority")
    assert unanimous.expert == ["first", *[None] * 6]
    assert majority.expert == ["first", "second", "first", *[None] * 4]
    assert unanimous.notes[0].startswith("6 of 7 rows are excluded (without a label: 1; the experts differ: 5)")
    assert unanimous.notes[1].startswith("A majority decides 2 of the excluded rows")
    # Without the column, no row is surer than another.
    assert majority.confidence == [0.0] * 7
    assert majority.notes[1].startswith("The file has no confidence")


@pytest.mark.parametrize(
    ("layout", "columns", "cells", "cluster"),
    [
        ("plain", "id,reference,candidate,study_id", "1,r,c,s", ["study_id", "s"]),
        ("preferences", "id,reference,candidate_1,candidate_2", "1,r,c,d", [None, None]),
        ("rate-eval", "gt_report,similar_report", "r,c", [None, None]),
    ],
)
def test_pairs_need_the_columns_of_the_reports_alone_and_have_their_study(
    layout: str, columns: str, cells: str, cluster: list[str | None], tmp_path: Path
) -> None:
    path, out = write_table(tmp_path / "t.csv", columns.split(","), [cells.split(",")]), tmp_path / "pairs.csv"
    assert run_meta("pairs", path, "--layout", layout, "--out", out) == 0
    pairs = read_pairs(out)
    assert (pairs[0].candidate, pairs[0].reference, [pairs.cluster_by, pairs[0].cluster]) == ("c", "r", cluster)


def test_every_layout_has_an_example(tmp_path: Path) -> None:
    examples = tmp_path / "examples"
    assert run_meta("examples", "--out", examples) == 0
    for layout in (*LAYOUTS, "preferences"):
        path = examples / ("rexval" if layout == "rexval" else f"{layout}.csv")
        more = ("--better", "lower") if layout == "plain" else ()
        out = tmp_path / layout
        command = ("agreement", path, "--layout", layout, *more, "--metrics", "rouge_l", "--bootstrap", 20)
        assert run_meta(*command, "--out", out) == 0
        record = read_json(out / "agreement.json")
        assert record["preferences"] or record["agreement"][0]["coefficients"]["kendall"]["value"] is not None


@pytest.fixture
def ratings(tmp_path: Path) -> Path:
    """A plain table of 20 reports of two sites with two raters."""
    texts = ["No effusion.", "Small effusion.", "Large left effusion.", "The heart is large.", "Clear lungs."]
    rows = [
        [i, texts[i % 5], texts[(i + (i % 4 > 1)) % 5], "AB"[i % 2], (i % 4 > 1) * 2, (i % 4 > 1) + i % 2]
        for i in range(20)
    ]
    return write_table(tmp_path / "r.csv", ["id", "reference", "candidate", "site", "errors:x", "errors:y"], rows)


def correlate_command(ratings: Path, out: Path, *more: object) -> tuple[object, ...]:
    return ("agreement", ratings, "--better", "lower", "--bootstrap", 0, "--out", out, *more)


def test_the_command_writes_tables_plots_and_a_page(
    tmp_path: Path, ratings: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # The errors themselves, but for one sample that was not scored; numbers of errors; the same value for all.
    columns: dict[str, list[float | None]] = {"m": [(i % 4 > 1) * 1.0 for i in range(19)], "same": [1.0] * 20}
    columns["m_ec"] = [float(i % 4) for i in range(20)]
    folders = [write_scores(tmp_path / name, values, name=name) for name, values in columns.items()]
    scores = [word for folder in folders for word in ("--scores", folder)]
    out = tmp_path / "out"
    assert run_meta(*correlate_command(ratings, out, "--metrics", "bleu_1", "--bootstrap", 20, *scores)) == 0
    record = read_json(out / "agreement.json")
    kendall = {row["score"]: row["coefficients"]["kendall"] for row in record["agreement"] if row["group"] == "all"}
    assert [kendall[name]["n"] for name in ("m", "m_ec", "same", "bleu_1")] == [19, 20, 20, 20]
    assert (kendall["m"]["value"] > 0.8, kendall["bleu_1"]["value"] > 0.5, kendall["same"]["value"]) == (1, 1, None)
    assert {row["group"] for row in record["agreement"]} == {"all", "A", "B"}
    assert (record["seed"], record["bootstrap"], len(record["inter_rater"])) == (42, 20, 1)
    assert {row["rater"] for row in record["count_errors"]} == {MEAN_RATER, "x", "y"}
    for name in ("forest", "scatter", "ratings", "detected"):
        assert (out / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        assert "<svg" in (out / f"{name}.svg").read_text()
    header, row, *_ = (out / "detected.csv").read_text().splitlines()
    assert (header, row[:5]) == ("score,experts' quantity,experts' number,mean detected,n", "m_ec,")
    page = (out / "agreement.html").read_text()
    assert ('<th scope="row">BLEU-1</th>' in page, "bleu_1" in page) == (True, False)
    assert page.count("data:image/png;base64,") == 4
    assert "http" not in page.replace("http-equiv", "")
    assert "Without coefficient and in no plot: same" in " ".join(capsys.readouterr().out.split())
    assert "in no plot: Same (fewer than three values" in page


def test_tables_are_written_without_matplotlib(
    tmp_path: Path, ratings: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "matplotlib", None)
    out = tmp_path / "out"
    assert run_meta(*correlate_command(ratings, out, "--metrics", "bleu_1")) == 0
    assert "matplotlib" in capsys.readouterr().out
    assert (out / "agreement.csv").is_file()
    assert not (out / "forest.png").exists()


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """Collects figures that would be saved."""
    matplotlib = pytest.importorskip("matplotlib")
    figures: list[Any] = []
    monkeypatch.setattr(plots, "save", lambda figure, path: figures.append(figure) or path)
    yield figures
    matplotlib.pyplot.close("all")


def test_a_forest_plot_omits_missing_values(tmp_path: Path, drawn: list[Any]) -> None:
    known, without_interval, none = Estimate(0.0, -0.5, 0.5, 9), Estimate(-0.4, n=9), Estimate(None, n=2)
    rows = [("both", "all", known), ("both", "site", none), ("bare", "all", without_interval), ("none", "all", none)]
    plots.forest(rows, tmp_path / "forest")
    (axes,) = drawn[0].axes
    assert [label.get_text() for label in axes.get_yticklabels()] == ["Bare", "Both"]
    # One mark per score, one interval, and the line at zero.
    assert sorted(len(line.get_xdata()) for line in axes.get_lines()) == [2, 2, 2]
    (marks,) = (line for line in axes.get_lines() if line.get_marker() == "D")
    assert sorted(marks.get_xdata()) == [-0.4, 0.0]


def test_bars_of_whole_numbers_have_whole_ticks(tmp_path: Path, drawn: list[Any]) -> None:
    plots.bars({"one": {-1.0: 0.5, 0.0: 0.5}}, tmp_path / "bars", x="x", y="share", width=1.0)
    assert all(tick == round(tick) for tick in drawn[0].axes[0].get_xticks())


def test_scatter_plots_have_the_original_scales_and_name_the_direction(tmp_path: Path, drawn: list[Any]) -> None:
    scores = {"rouge_l": [0.1, 0.4], "green_ec": [3.0, 1.0]}
    directions: dict[str, Direction] = {"rouge_l": "higher", "green_ec": "lower"}
    plots.scatter([5, 2], scores, {"all": [0, 1]}, tmp_path / "s", directions=directions, label="experts")
    panels = drawn[0].axes
    assert [panel.get_ylabel() for panel in panels] == ["higher is better", "lower is better"]
    assert [panel.get_title() for panel in panels] == ["ROUGE-L", "GREEN ec"]
    points = [panel.collections[0].get_offsets().tolist() for panel in panels]
    assert points == [[[5, 0.1], [2, 0.4]], [[5, 3], [2, 1]]]


def test_a_page_shows_display_names_of_scores_only(tmp_path: Path) -> None:
    tables = [Table(["score", "n"], [["rouge_l", None]]), Table(["report", "reason"], [["rouge_l", "gone"]])]
    write_page(tmp_path / "page.html", "Page", [], [Section("Tables", tables)])
    page = " ".join((tmp_path / "page.html").read_text().split())
    assert re.search('<th scope="row">ROUGE-L</th> ?<td>–</td>', page)
    assert '<th scope="row">rouge_l</th>' in page


def test_a_file_of_ids_selects_reports(tmp_path: Path, ratings: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ids, out = tmp_path / "ids.txt", tmp_path / "out"
    ids.write_text("1\n2\n3\n4\n5\n")
    command = correlate_command(ratings, out, "--metrics", "bleu_1", "--ids", ids)
    assert run_meta(*command) == 0
    assert read_json(out / "agreement.json")["agreement"][0]["coefficients"]["kendall"]["n"] == 5
    ids.write_text("1\n99\n")
    code, line = refuse_meta(capsys, *command)
    assert code is ErrorCode.UNKNOWN_NAME
    assert "--ids" in line
    assert "'99'" in line


def test_a_selected_metric_without_a_result_is_named_and_the_others_go_on(
    tmp_path: Path, ratings: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_meta(*correlate_command(ratings, tmp_path / "out", "--metrics", "bleu_1,green")) == 3
    assert "without green: " in capsys.readouterr().out
    assert (tmp_path / "out" / "agreement.html").is_file()


def preference_command(tmp_path: Path, rows: list[list[Any]], *more: object) -> tuple[object, ...]:
    path = write_table(tmp_path / "p.csv", PREFERENCE_HEADER, rows)
    return ("agreement", path, "--layout", "preferences", "--bootstrap", 0, "--out", tmp_path / "out", *more)


def test_ties_are_shown_and_a_score_with_ties_only_has_no_accuracy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = [("No mass.", "Mass."), ("Mass.", "Edema."), ("Mass.", "No mass.")]
    rows = [[str(row), "No effusion.", *pair, 5 + row // 2, "second"] for row, pair in enumerate(texts)]
    more = ("--metrics", "bleu_1,logical_recall", "--judge", "offline", "--bootstrap", 20)
    assert run_meta(*preference_command(tmp_path, rows, *more)) == 0
    console = " ".join(capsys.readouterr().out.split())
    table = read_json(tmp_path / "out/agreement.json")["preferences"]
    # The experts prefer the second of each pair: BLEU-1 the first one, neither, the second one. None denies effusion.
    assert [table["bleu_1"]["5"][name] for name in ("value", "ties", "n")] == pytest.approx([1 / 3, 1 / 3, 3])
    assert [table["logical_recall"]["5"][name] for name in ("value", "ties", "low", "n")] == [None, 1.0, None, 3]
    assert "Without accuracy and in no plot: logical_recall (" in console
    page = (tmp_path / "out/agreement.html").read_text()
    assert "Without accuracy and in no plot: Logical recall (" in page
    assert "0 of 3 rows are excluded" in page
    assert (tmp_path / "out/preferences.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("label", "accuracies", "exit_code"),
    [
        ("better than", {"3": (0.5, 0.0, 2), "7": (1.0, 0.0, 1)}, 0),
        ("equal to", {"3": (None, 1.0, 2), "7": (None, 1.0, 1)}, 0),
        # No label for the first row.
        (None, {"3": (0.0, 0.0, 1), "7": (None, None, 0)}, 3),
    ],
)
def test_a_judge_is_queried_for_preferences(
    label: str | None,
    accuracies: dict[str, tuple[float | None, float | None, int]],
    exit_code: int,
    tmp_path: Path,
    serve: Callable[..., ChatServer],
    capsys: pytest.CaptureFixture[str],
) -> None:
    def reply(body: dict[str, Any], _: int) -> Reply:
        has_label = label or "C" in last(body).split()
        return 200, {}, f"Assistant 1 is {label or 'better than'} Assistant 2" if has_label else "Both are fine."

    rows = [["1", "A", "A", "B", 7, "first"], ["2", "A", "C", "A", 3, "second"], ["3", "A", "A", "A", 9, "equal"]]
    server = serve(reply)
    command = preference_command(tmp_path, rows, "--ask", "--judge", "openai:m", "--base-url", server.base_url)
    assert run_meta(*command) == exit_code
    levels = read_json(tmp_path / "out/agreement.json")["preferences"]["openai:m (direct query)"]
    assert {level: (one["value"], one["ties"], one["n"]) for level, one in levels.items()} == accuracies
    assert ("1 direct queries failed" in capsys.readouterr().out) == (exit_code == 3)
    # No query without an expert preference.
    assert len(server.requests) == 2 or label is None


@pytest.mark.parametrize("cluster", [None, "case", "none"])
def test_candidates_of_a_study_are_resampled_together(
    tmp_path: Path, cluster: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    """Twelve candidates of four studies and of three cases."""
    values = [float(index * 7 % 12) for index in range(12)]
    columns = ["id", "reference", "candidate", "expert", "study_id", "case"]
    rows = [[index, "a", "b", index // 2, f"s{index // 3}", f"c{index // 4}"] for index in range(12)]
    table = write_table(tmp_path / "r.csv", columns, rows)
    folder = write_scores(tmp_path / "scores", [*values])
    more = () if cluster is None else ("--cluster", cluster)
    assert run_meta("agreement", table, "--better", "lower", "--scores", folder, "--out", tmp_path / "out", *more) == 0
    record = read_json(tmp_path / "out" / "agreement.json")
    by, size = {None: ("study_id", 3), "case": ("case", 4), "none": (None, 1)}[cluster]
    clusters = None if by is None else Clusters(by, [str(index // size) for index in range(12)])
    expected = correlate([float(index // 2) for index in range(12)], values, clusters=clusters)["kendall"]
    kendall = record["agreement"][0]["coefficients"]["kendall"]
    assert (kendall["low"], kendall["high"]) == (expected.low, expected.high)
    assert record["resampling"] == {"by": by, "clusters": 12 // size, "samples": 12, "unlabeled": 0}
    assert f"resampled by {'sample' if by is None else by.removesuffix('_id')}: " in " ".join(
        capsys.readouterr().out.split()
    )
    assert "resampled by" in (tmp_path / "out" / "agreement.html").read_text()
