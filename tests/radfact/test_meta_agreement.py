"""Correlations with experts: figures against scipy on explicit resamples, and the command on a plain table."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from chat_server import ChatServer, Reply, last
from hypothesis import given, settings
from hypothesis import strategies as st
from meta_run import run_meta, write_table
from scipy import stats

from radfact.error_categories import ERROR_CATEGORIES
from radfact.errors import InputError
from radfact.html import plots
from radfact.html.meta_page import Table
from radfact.io.jsonl import read_json, write_json, write_jsonl
from radfact.meta.agreement.analysis import (
    MEAN,
    Agreement,
    Figures,
    agreement,
    count_errors,
    counted,
    counted_as,
    inter_rater,
)
from radfact.meta.datasets.preference_table import accuracies, read_preferences
from radfact.meta.datasets.ratings import Rated, Ratings, count_directions, count_quantities
from radfact.records import Pair
from radfact.statistics.bootstrap import Direction
from radfact.statistics.correlation import SEED, Estimate, correlate

NUMBERS = st.integers(0, 4).map(float)


@settings(deadline=None, max_examples=25)
@given(st.lists(st.tuples(NUMBERS, NUMBERS), min_size=3, max_size=25))
def test_intervals_are_those_of_scipy_on_the_drawn_samples(pairs: list[tuple[float, float]]) -> None:
    x, y = (np.array(column) for column in zip(*pairs, strict=True))
    found = correlate(x.tolist(), y.tolist(), replicates=20)
    if np.ptp(x) == 0 or np.ptp(y) == 0:
        assert all(one == Estimate(None, n=len(x)) for one in found.values())
        return
    generator = np.random.default_rng(SEED)
    draws = [generator.choice(len(x), len(x), replace=True) for _ in range(20)]
    for name, function in (("kendall", stats.kendalltau), ("spearman", stats.spearmanr), ("pearson", stats.pearsonr)):
        assert found[name].value == pytest.approx(function(x, y).statistic, abs=1e-9)
        drawn = [d for d in draws if np.ptp(x[d]) and np.ptp(y[d])]
        values = [function(x[d], y[d]).statistic for d in drawn]
        if values:
            low, high = np.quantile(values, (0.025, 0.975))
            assert (found[name].low, found[name].high) == (pytest.approx(low, abs=1e-9), pytest.approx(high, abs=1e-9))


def test_a_sample_without_a_value_takes_no_part() -> None:
    with_gap = correlate([1, 2, math.nan, 3, 4], [1, 3, 9, 2, math.nan], replicates=0)
    assert with_gap == correlate([1, 2, 3], [1, 3, 2], replicates=0)
    assert with_gap["kendall"].n == 3
    assert with_gap["kendall"].value == pytest.approx(1 / 3)
    assert with_gap["kendall"].low is None


def test_what_differs_by_the_rounding_of_a_sum_is_a_tie() -> None:
    expert = [0.0, 1, 2, 3, 4]
    noisy = correlate(expert, [0.4444444444444444, 0.44444444444444453, 0.1, 0.2, 0.3], replicates=50)
    tied = correlate(expert, [0.4444444444444444, 0.4444444444444444, 0.1, 0.2, 0.3], replicates=50)
    assert (noisy["kendall"], noisy["spearman"]) == (tied["kendall"], tied["spearman"])
    assert noisy["kendall"].value != correlate(expert, [0.44, 0.45, 0.1, 0.2, 0.3], replicates=0)["kendall"].value


def test_large_sets_are_worked_in_blocks_alike() -> None:
    generator = np.random.default_rng(1)
    x = generator.integers(0, 6, 1200).astype(float)
    y = x + generator.normal(0, 3, 1200)
    found = correlate(x.tolist(), y.tolist(), replicates=3)["kendall"]
    drawn = np.random.default_rng(SEED)
    values = [stats.kendalltau(x[d], y[d]).statistic for d in (drawn.choice(1200, 1200) for _ in range(3))]
    assert found.low == pytest.approx(np.quantile(values, 0.025))


def rated(values: list[list[float]], groups: list[str] | None = None) -> Ratings:
    """Samples whose only quantity is `errors`, by raters A, B, ...; fewer are better."""
    samples = [
        Rated(
            Pair(str(place), "c", "r"),
            {"errors": {name: value for name, value in zip("ABC", row, strict=False) if not math.isnan(value)}},
            {"site": groups[place]} if groups else {},
        )
        for place, row in enumerate(values)
    ]
    return Ratings(samples, {"errors": "lower"}, "errors", "site" if groups else None)


def test_a_positive_coefficient_means_that_both_call_the_same_reports_bad() -> None:
    ratings = rated([[0], [1], [2], [5]])
    figures = Figures(
        {"good": [9, 7, 4, 1], "ec": [0, 1, 2, 4], "share": [1, 2, 3, 4]},
        {"good": "higher", "ec": "lower", "share": "neutral"},
    )
    found = agreement(ratings, figures, replicates=0)
    assert {one.figure: one.coefficients["kendall"].value for one in found} == {"good": 1.0, "ec": 1.0}


def test_groups_are_correlated_by_themselves() -> None:
    ratings = rated([[0], [1], [2], [0], [1], [2]], groups=["x", "x", "x", "y", "y", "y"])
    found = agreement(ratings, Figures({"f": [0, 1, 2, 2, 1, 0]}, {"f": "lower"}), replicates=0)
    values = {one.group: one.coefficients["spearman"].value for one in found}
    assert values == {"all": pytest.approx(0), "x": pytest.approx(1), "y": pytest.approx(-1)}


def test_a_group_called_all_does_not_take_the_place_of_all() -> None:
    ratings = rated([[0], [1], [2], [0], [1], [2]], groups=["all", "all", "all", "y", "y", "y"])
    found = agreement(ratings, Figures({"f": [0, 1, 2, 2, 1, 0]}, {"f": "lower"}), replicates=0)
    values = {one.group: one.coefficients["spearman"].value for one in found}
    assert values == {"all": pytest.approx(0), "all (site)": pytest.approx(1), "y": pytest.approx(-1)}


def test_raters_are_compared_over_what_both_have_rated() -> None:
    (found,) = inter_rater(rated([[0, 1], [1, 1], [2, 3], [4, math.nan], [5, 5]]), replicates=0)
    assert (found.first, found.second, found.kendall.n) == ("A", "B", 4)
    assert found.mean_absolute_difference == pytest.approx(0.5)
    assert found.kendall.value == pytest.approx(stats.kendalltau([0, 1, 2, 5], [1, 1, 3, 5]).statistic)


@pytest.mark.parametrize(
    ("figure", "quantity"),
    [
        ("green_ec", "errors"),
        ("green_significant", "significant"),
        ("vert_insignificant", "insignificant"),
        ("green_significant_c", "significant_c"),
        ("chexprompt_errors", "errors"),
        ("green", None),
        ("green_matched", None),
    ],
)
def test_figures_that_count_are_known_by_their_names(figure: str, quantity: str | None) -> None:
    assert counted_as(figure, count_directions()) == quantity


def test_with_three_raters_each_is_beside_the_mean_of_all() -> None:
    found = inter_rater(rated([[0, 1, 2], [1, 1, 1], [3, 2, 4]]), replicates=0)
    pairs = [(one.first, one.second) for one in found]
    assert pairs == [("mean of all", name) for name in "ABC"] + [("A", "B"), ("A", "C"), ("B", "C")]
    assert found[0].mean_absolute_difference == pytest.approx((1 + 0 + 0) / 3)


def test_counts_are_set_beside_the_mean_expert() -> None:
    counts = [
        {"significant": {"a": {"A": 2.0, "B": 1.0}, "b": {"A": 1.0}}},
        {"significant": {"a": {"A": 0.0, "B": 0.0}}},
    ]
    samples = [Rated(Pair(str(i), "c", "r"), count_quantities(one)) for i, one in enumerate(counts)]
    ratings = Ratings(samples, count_directions(), "errors")
    # One rater counts 3, the other 1.
    assert ratings.means("significant") == [2.0, 0.0]
    values: dict[str, list[float]] = {"m_significant": [3.0, 1.0]}
    values |= {f"m_significant_{letter}": [1.0 if letter in "ac" else 0.0, 0.0] for letter in ERROR_CATEGORIES}
    figures = Figures(values, dict.fromkeys(values, "lower"))
    first, *each = count_errors(ratings, figures)[:3]
    assert (first.quantity, first.rater, first.mean, first.deviation, first.n) == ("significant", MEAN, 1.0, 0.0, 2)
    # One counts 3 and 0, the other 1 and 0.
    assert [(one.rater, one.mean) for one in each] == [("A", 0.5), ("B", 1.5)]
    (found,) = counted(ratings, figures)
    assert {true: mean.value for true, mean in found.detected.items()} == {0: 1.0, 2: 3.0}
    # (a): 1.5 rounds to 2 of which one is found; (b): 0.5 rounds to 1, missed; (c): one too many.
    assert found.by_category["a"].f1 == pytest.approx(2 / 3)
    assert (found.by_category["b"].false_negatives, found.by_category["c"].false_positives) == (1, 1)
    # The second report has the right number of every kind, the first of (d) to (f).
    assert [found.accuracy[letter].value for letter in ERROR_CATEGORIES] == [0.5, 0.5, 0.5, 1.0, 1.0, 1.0]


def test_preferences_follow_the_figure_that_prefers_as_experts_do(tmp_path: Path) -> None:
    path = write_table(
        tmp_path / "p.csv",
        ["id", "reference", "candidate_1", "candidate_2", "confidence", "expert_a", "expert_b"],
        [
            ["1", "r", "good", "bad", 9, "first", "first"],
            ["2", "r", "bad", "good", 5, "second", "2"],
            ["3", "r", "x", "y", 5, "first", "second"],
            ["4", "r", "x", "y", 1, "equal", "equal"],
            ["5", "r", "worse", "fine", 2, "second", ""],
        ],
    )
    preferences = read_preferences(path)
    assert preferences.expert == ["first", "second", None, None, "second"]
    # The second differs only where the experts prefer none.
    figures = {"ec": [0, 3, 0, 0, 1, 2, 1, 0, 0, 1], "b": [1, 1, 0, 1, 1, 1, 1, 2, 0, 1]}
    found = accuracies(preferences, Figures(figures, dict.fromkeys(figures, "lower")), replicates=10, seed=1)
    assert {level: one.value for level, one in found["ec"].items()} == {2.0: pytest.approx(2 / 3), 5.0: 1.0, 9.0: 1.0}
    assert {(one.value, one.low, one.ties) for one in found["b"].values()} == {(None, None, 1.0)}


@pytest.mark.parametrize(
    ("row", "said"),
    [
        (["1", "r", "y", "x", 5, "first"], "line 3: id: '1' stands twice, first at line 2"),
        (["2", "r", "y", "x", "nan", "first"], "line 3: confidence: expected a number, found 'nan'"),
    ],
)
def test_preferences_need_ids_of_their_own_and_a_confidence(tmp_path: Path, row: list[object], said: str) -> None:
    header = ["id", "reference", "candidate_1", "candidate_2", "confidence", "expert"]
    path = write_table(tmp_path / "p.csv", header, [["1", "r", "x", "y", 5, "first"], row])
    with pytest.raises(InputError, match=said):
        read_preferences(path)


def ratings_table(path: Path) -> Path:
    texts = ["No effusion.", "Small effusion.", "Large left effusion.", "The heart is large.", "Clear lungs."]
    rows = [
        [i, texts[i % 5], texts[(i + (i % 4 > 1)) % 5], "AB"[i % 2], (i % 4 > 1) * 2, (i % 4 > 1) + i % 2]
        for i in range(20)
    ]
    return write_table(path, ["id", "reference", "candidate", "site", "errors:x", "errors:y"], rows)


def test_the_command_writes_tables_plots_and_a_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table, out = ratings_table(tmp_path / "r.csv"), tmp_path / "out"
    arguments = ("agreement", table, "--better", "lower", "--metrics", "bleu_1", "--bootstrap", 20, "--out", out)
    assert run_meta(monkeypatch, *arguments) == 0
    record = read_json(out / "agreement.json")
    assert record["agreement"][0]["coefficients"]["kendall"]["value"] > 0.5
    assert {one["group"] for one in record["agreement"]} == {"all", "A", "B"}
    assert (record["seed"], record["bootstrap"], len(record["inter_rater"])) == (42, 20, 1)
    for name in ("forest.png", "scatter.png", "ratings.png"):
        assert (out / name).read_bytes().startswith(b"\x89PNG")
    for name in ("forest.svg", "scatter.svg", "ratings.svg"):
        assert "<svg" in (out / name).read_text()
    page = (out / "agreement.html").read_text()
    assert ('<th scope="row">BLEU-1</th>' in page, "bleu_1" in page) == (True, False)
    assert page.count("data:image/png;base64,") == 3
    assert "http" not in page.replace("http-equiv", "")


def test_figures_are_read_from_results_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table, scores, out = ratings_table(tmp_path / "r.csv"), tmp_path / "scores", tmp_path / "out"
    write_json(scores / "scores.json", {"figures": {"m": {"point": 1, "direction": "lower"}}})
    # The errors themselves, but for one sample that was not scored.
    write_jsonl(scores / "samples.jsonl", [{"sample_id": str(i), "m": (i % 4 > 1) * 1.0} for i in range(19)])
    arguments = ("agreement", table, "--better", "lower", "--scores", scores, "--bootstrap", 0, "--out", out)
    assert run_meta(monkeypatch, *arguments) == 0
    first = read_json(out / "agreement.json")["agreement"][0]
    assert (first["figure"], first["coefficients"]["kendall"]["n"]) == ("m", 19)
    assert first["coefficients"]["kendall"]["value"] > 0.8


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--better", "lower"), "--metrics"),
        (("--metrics", "bleu_1"), "--better"),
        (("--better", "lower", "--metrics", "bleu_1", "--group", "modality"), "no such kind 'modality'"),
        (("--better", "lower", "--metrics", "bleu_1", "--target", "severity"), "no such quantity 'severity'"),
        (("--layout", "rexval", "--metrics", "bleu_1"), "50_samples_gt_and_candidates.csv"),
    ],
)
def test_wrong_options_are_one_line(
    arguments: tuple[str, ...],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    table = ratings_table(tmp_path / "r.csv")
    assert run_meta(monkeypatch, "agreement", table, *arguments, "--out", tmp_path / "out") == 2
    error = capsys.readouterr().err
    assert said in error
    assert "Traceback" not in error
    assert not (tmp_path / "out").exists()


def test_without_matplotlib_the_tables_are_written_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "matplotlib", None)
    out = tmp_path / "out"
    table = ratings_table(tmp_path / "r.csv")
    assert run_meta(monkeypatch, "agreement", table, "--better", "lower", "--metrics", "bleu_1", "--out", out) == 0
    assert "matplotlib" in capsys.readouterr().out
    assert (out / "agreement.csv").is_file()
    assert not (out / "forest.png").exists()


def test_only_what_is_known_is_drawn(tmp_path: Path) -> None:
    matplotlib = pytest.importorskip("matplotlib")
    known, bare, none = Estimate(0.0, -0.5, 0.5, 9), Estimate(-0.4, n=9), Estimate(None, n=2)
    found = [
        Agreement("both", "all", {"kendall": known}),
        Agreement("both", "site", {"kendall": none}),
        Agreement("bare", "all", {"kendall": bare}),
        Agreement("nothing", "all", {"kendall": none}),
    ]
    with pytest.MonkeyPatch.context() as patched:
        drawn = []
        patched.setattr(plots, "save", lambda figure, path: drawn.append(figure) or path)
        plots.forest(found, tmp_path / "forest")
    (axes,) = drawn[0].axes
    assert [label.get_text() for label in axes.get_yticklabels()] == ["Bare", "Both"]
    # One mark a figure, one interval, and the line at zero.
    assert sorted(len(line.get_xdata()) for line in axes.get_lines()) == [2, 2, 2]
    marks = [line for line in axes.get_lines() if line.get_marker() == "D"]
    assert sorted(marks[0].get_xdata()) == [-0.4, 0.0]
    matplotlib.pyplot.close("all")


def test_values_are_drawn_on_their_own_scales_which_say_what_is_better(tmp_path: Path) -> None:
    matplotlib = pytest.importorskip("matplotlib")
    figures = {"rouge_l": [0.1, 0.4], "green_ec": [3.0, 1.0]}
    better: dict[str, Direction] = {"rouge_l": "higher", "green_ec": "lower"}
    with pytest.MonkeyPatch.context() as patched:
        drawn: list[Any] = []
        patched.setattr(plots, "save", lambda figure, path: drawn.append(figure) or path)
        plots.scatter([5, 2], figures, {"all": [0, 1]}, tmp_path / "s", directions=better, label="experts")
    panels = drawn[0].axes
    assert [one.get_ylabel() for one in panels] == ["higher is better", "lower is better"]
    assert [one.get_title() for one in panels] == ["ROUGE-L", "GREEN ec"]
    assert [one.collections[0].get_offsets().tolist() for one in panels] == [[[5, 0.1], [2, 0.4]], [[5, 3], [2, 1]]]
    matplotlib.pyplot.close("all")


@pytest.mark.parametrize(
    ("places", "ticks"), [([-1, 0], ["\u22121", "0"]), ([2], ["2"]), ([1, 2, 3, 4], ["1", "2", "3", "4"])]
)
def test_bars_of_whole_numbers_say_which(places: list[int], ticks: list[str], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    heights = {float(place): 1 / len(places) for place in places}
    plots.bars({"one": heights, "other": heights}, tmp_path / "b", x="x of the bars", y="share", width=1.0)
    # Matplotlib writes every text into a comment beside its outlines.
    texts = re.findall("<!-- (.*?) -->", (tmp_path / "b.svg").read_text())
    assert texts[: texts.index("x of the bars")] == ticks


def test_a_page_writes_names_of_figures_out_and_no_others() -> None:
    assert '<th scope="row">ROUGE-L</th><td>–</td>' in Table(["figure", "n"], [["rouge_l", None]]).as_html()
    assert '<th scope="row">rouge_l</th>' in Table(["report", "why"], [["rouge_l", "gone"]]).as_html()


def test_counts_of_errors_are_drawn_beside_the_experts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table, scores, out = ratings_table(tmp_path / "r.csv"), tmp_path / "scores", tmp_path / "out"
    write_json(scores / "scores.json", {"figures": {"m_ec": {"point": 1, "direction": "lower"}}})
    write_jsonl(scores / "samples.jsonl", [{"sample_id": str(i), "m_ec": float(i % 4)} for i in range(20)])
    arguments = ("agreement", table, "--better", "lower", "--scores", scores, "--bootstrap", 0, "--out", out)
    assert run_meta(monkeypatch, *arguments) == 0
    assert (
        (out / "detected.csv").read_text().startswith("figure,experts' quantity,experts' number,mean detected,n\nm_ec,")
    )
    assert (out / "detected.png").read_bytes().startswith(b"\x89PNG")
    raters = {one["rater"] for one in read_json(out / "agreement.json")["count_errors"]}
    assert raters == {MEAN, "x", "y"}


def test_a_figure_without_a_coefficient_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    table, scores, out = ratings_table(tmp_path / "r.csv"), tmp_path / "scores", tmp_path / "out"
    write_json(scores / "scores.json", {"figures": {"same": {"point": 1, "direction": "lower"}}})
    write_jsonl(scores / "samples.jsonl", [{"sample_id": str(i), "same": 1.0} for i in range(20)])
    arguments = ("agreement", table, "--better", "lower", "--scores", scores, "--bootstrap", 0, "--out", out)
    assert run_meta(monkeypatch, *arguments) == 0
    assert "Without a coefficient, and in no plot: same" in capsys.readouterr().out
    assert not (out / "forest.png").exists()
    assert "Same (fewer than three values, or all the same)" in (out / "agreement.html").read_text()


def test_a_set_may_be_cut_by_a_file_of_ids(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    table, ids, out = ratings_table(tmp_path / "r.csv"), tmp_path / "ids.txt", tmp_path / "out"
    ids.write_text("1\n2\n3\n4\n5\n")
    command = ("agreement", table, "--better", "lower", "--metrics", "bleu_1", "--bootstrap", 0, "--out", out)
    assert run_meta(monkeypatch, *command, "--ids", ids) == 0
    assert read_json(out / "agreement.json")["agreement"][0]["coefficients"]["kendall"]["n"] == 5
    ids.write_text("1\n99\n")
    assert run_meta(monkeypatch, *command, "--ids", ids) == 2
    assert "--ids: no report has the id '99'" in capsys.readouterr().err


def test_a_named_metric_that_gives_nothing_is_said_and_the_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    table = ratings_table(tmp_path / "r.csv")
    command = ("agreement", table, "--better", "lower", "--bootstrap", 0, "--out", tmp_path / "out", "--metrics")
    assert run_meta(monkeypatch, *command, "bleu_1,green") == 3
    assert "without green: needs a language model" in capsys.readouterr().out
    assert (tmp_path / "out" / "agreement.html").is_file()


def test_preferences_by_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_table(
        tmp_path / "p.csv",
        ["id", "reference", "candidate_1", "candidate_2", "confidence", "expert_a"],
        [["1", "No effusion.", "No effusion.", "Mass.", 7, "first"], ["2", "A", "B", "A", 3, "equal"]],
    )
    out = tmp_path / "out"
    command = ("agreement", path, "--layout", "preferences", "--metrics", "bleu_1", "--bootstrap", 0, "--out", out)
    assert run_meta(monkeypatch, *command) == 0
    accuracy = read_json(out / "agreement.json")["preferences"]["bleu_1"]["7"]
    assert accuracy == {"value": 1.0, "low": None, "high": None, "n": 1, "ties": 0.0}
    assert (out / "preferences.png").read_bytes().startswith(b"\x89PNG")
    assert "1 of 2 rows are out" in (out / "agreement.html").read_text()


def test_ties_are_shown_and_a_figure_of_ties_alone_has_no_value(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    header = ["id", "reference", "candidate_1", "candidate_2", "confidence", "expert_a"]
    texts = [("No mass.", "Mass."), ("Mass.", "Edema."), ("Mass.", "No mass.")]
    path = write_table(
        tmp_path / "p.csv",
        header,
        [[str(row), "No effusion.", *pair, 5 + row // 2, "second"] for row, pair in enumerate(texts)],
    )
    out = tmp_path / "out"
    command = ("agreement", path, "--layout", "preferences", "--metrics", "bleu_1,logical_recall", "--out", out)
    assert run_meta(monkeypatch, *command, "--judge", "offline", "--bootstrap", 20) == 0
    said = " ".join(capsys.readouterr().out.split())
    found = read_json(out / "agreement.json")["preferences"]
    # The experts prefer the second of each pair: BLEU-1 the first one, neither, the second one. Nobody denies effusion.
    assert [found["bleu_1"]["5"][name] for name in ("value", "ties", "n")] == pytest.approx([1 / 3, 1 / 3, 3])
    assert [found["logical_recall"]["5"][name] for name in ("value", "ties", "low", "n")] == [None, 1.0, None, 3]
    page = (out / "agreement.html").read_text()
    assert "count as not met" in page
    assert "Without a value, and in no plot: logical_recall (there is no pair" in said
    assert "Without a value, and in no plot: Logical recall (there is no pair" in page


def test_a_judge_may_be_asked_which_candidate_is_better(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    serve: Callable[..., ChatServer],
    capsys: pytest.CaptureFixture[str],
) -> None:
    header = ["id", "reference", "candidate_1", "candidate_2", "confidence", "expert_a"]
    rows = [["1", "A", "A", "B", 7, "first"], ["2", "A", "B", "A", 3, "second"], ["3", "A", "A", "A", 9, "equal"]]
    path = write_table(tmp_path / "p.csv", header, rows)
    server = serve(lambda *_: (200, {}, "Assistant 1 is better than Assistant 2"))
    out = tmp_path / "out"
    command = ("agreement", path, "--layout", "preferences", "--ask", "--bootstrap", 0, "--out", out)
    assert run_meta(monkeypatch, *command, "--judge", "openai:m", "--base-url", server.base_url) == 0
    found = read_json(out / "agreement.json")["preferences"]["openai:m, asked"]
    assert {level: (one["value"], one["n"]) for level, one in found.items()} == {"3": (0.5, 2), "7": (1.0, 1)}
    assert len(server.requests) == 2  # not where the experts prefer none
    server = serve(lambda *_: (200, {}, "Assistant 1 is equal to Assistant 2"))
    assert run_meta(monkeypatch, *command, "--judge", "openai:undecided", "--base-url", server.base_url) == 0
    found = read_json(out / "agreement.json")["preferences"]["openai:undecided, asked"]
    assert [(one["value"], one["ties"]) for one in found.values()] == [(None, 1.0)] * 2
    table = ratings_table(tmp_path / "r.csv")
    assert run_meta(monkeypatch, "agreement", table, "--ask", "--better", "lower", "--out", out) == 2
    assert "--ask: only of preferences" in capsys.readouterr().err


def test_a_judge_that_does_not_say_which_is_better_is_left_out_and_said(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    serve: Callable[..., ChatServer],
    capsys: pytest.CaptureFixture[str],
) -> None:
    header = ["id", "reference", "candidate_1", "candidate_2", "confidence", "expert_a"]
    path = write_table(
        tmp_path / "p.csv", header, [["1", "A", "A", "B", 7, "first"], ["2", "A", "C", "A", 3, "second"]]
    )

    def reply(body: dict[str, Any], _: int) -> Reply:
        return 200, {}, "Assistant 2 is better than Assistant 1" if "C" in last(body).split() else "Both are fine."

    command = ("agreement", path, "--layout", "preferences", "--ask", "--bootstrap", 0, "--out", tmp_path / "out")
    server = serve(reply)
    assert run_meta(monkeypatch, *command, "--judge", "openai:m", "--base-url", server.base_url) == 3
    assert "1 rows are out of what was asked directly" in capsys.readouterr().out
