"""Agreement with experts: correlations compared with scipy on explicit resamples, the commands and what they refuse."""

import csv
import math
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from meta_run import Serve, refuse_meta, run_meta, write_scores, write_table
from scipy import stats

from radfact.api import RadFact, evaluate
from radfact.error_categories import ERROR_CATEGORIES
from radfact.errors import ErrorCode
from radfact.io.jsonl import read_json, read_jsonl
from radfact.io.pairs import read_pairs
from radfact.judges.offline import OfflineJudge
from radfact.judges.prompt import read_examples
from radfact.meta.agreement import analysis
from radfact.meta.datasets.layouts import LAYOUTS, RADEVALX_FILES, REXVAL_RATINGS
from radfact.meta.datasets.ratings import RatedReport, RatingSet, count_directions, count_quantities
from radfact.meta.ensembles import fit_ensemble
from radfact.meta.scores import ScoreColumns, match_samples, pair_digests
from radfact.metrics.llm.vert import Shot
from radfact.pages import plots
from radfact.records import Pair
from radfact.results.compare import compare
from radfact.results.writer import write_results
from radfact.statistics.bootstrap import Direction
from radfact.statistics.clusters import Clusters
from radfact.statistics.correlation import SEED, Coefficient, Estimate, correlate

CASES = yaml.safe_load(Path(__file__).with_name("meta_refusals.yaml").read_text("utf-8"))
NUMBERS = st.integers(0, 4).map(float)


@settings(deadline=None, max_examples=25)
@given(st.lists(st.tuples(NUMBERS, NUMBERS), min_size=3, max_size=25), st.integers(0, 3))
def test_intervals_are_those_of_scipy_on_the_drawn_samples(pairs: list[tuple[float, float]], missing: int) -> None:
    """Samples without a value are excluded."""
    x, y = (np.array(column) for column in zip(*pairs, strict=True))
    gaps = [math.nan] * missing
    estimates = correlate([*gaps, 1.0, *x.tolist()], [*gaps, math.nan, *y.tolist()], replicates=20)
    if np.ptp(x) == 0 or np.ptp(y) == 0:
        assert all(estimate == Coefficient(None, n=len(x)) for estimate in estimates.values())
        return
    generator = np.random.default_rng(SEED)
    draws = [generator.choice(len(x), len(x), replace=True) for _ in range(20)]
    for name, function in (("kendall", stats.kendalltau), ("spearman", stats.spearmanr), ("pearson", stats.pearsonr)):
        estimate, test = estimates[name], function(x, y)
        assert [estimate.value, estimate.p, estimate.n] == pytest.approx(
            [test.statistic, test.pvalue, len(x)], abs=1e-9
        )
        drawn = [d for d in draws if np.ptp(x[d]) and np.ptp(y[d])]
        values = [function(x[d], y[d]).statistic for d in drawn]
        expected = [pytest.approx(bound, abs=1e-9) for bound in np.quantile(values, (0.025, 0.975))] if values else []
        assert [estimate.low, estimate.high] == (expected or [None, None])


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
    results = analysis.correlate_with_experts(rated([[0], [1], [2], [5]]), scores, replicates=0)
    assert {row.score: row.coefficients["kendall"].value for row in results} == {"good": 1.0, "ec": 1.0}


@pytest.mark.parametrize(("group", "label"), [("x", "x"), ("all", "all (site)")])
def test_groups_are_correlated_separately(group: str, label: str) -> None:
    ratings = rated([[0], [1], [2], [0], [1], [2]], groups=[group] * 3 + ["y"] * 3)
    scores = ScoreColumns({"f": [0, 1, 2, 2, 1, 0]}, {"f": "lower"})
    results = analysis.correlate_with_experts(ratings, scores, replicates=0)
    values = {row.group: row.coefficients["spearman"].value for row in results}
    assert values == {"all": pytest.approx(0), label: pytest.approx(1), "y": pytest.approx(-1)}


def test_raters_are_compared_over_the_candidates_of_both() -> None:
    (row,) = analysis.compare_raters(rated([[0, 1], [1, 1], [2, 3], [4, math.nan], [5, 5]]), replicates=0)
    assert (row.first, row.second, row.kendall.n) == ("A", "B", 4)
    assert row.mean_absolute_difference == pytest.approx(0.5)
    assert row.kendall.value == pytest.approx(stats.kendalltau([0, 1, 2, 5], [1, 1, 3, 5]).statistic)
    # Each of three raters is also compared with the mean of all.
    results = analysis.compare_raters(rated([[0, 1, 2], [1, 1, 1], [3, 2, 4]]), replicates=0)
    pairs = [f"{row.first}-{row.second}" for row in results]
    assert pairs == [*(f"{analysis.MEAN_RATER}-{name}" for name in "ABC"), "A-B", "A-C", "B-C"]
    assert results[0].mean_absolute_difference == pytest.approx((1 + 0 + 0) / 3)


def test_scores_that_count_errors_are_recognized_by_name() -> None:
    quantities = {"green_ec": "errors", "green_significant": "significant", "vert_insignificant": "insignificant"}
    quantities |= {"green_significant_c": "significant_c", "chexprompt_errors": "errors"}
    names = [*quantities, "green", "green_matched"]
    assert {name: analysis.counted_quantity(name, count_directions()) for name in names} == {
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
    first, *each = analysis.count_errors(ratings, scores)[:3]
    assert (first.quantity, first.rater, first.mean, first.deviation) == ("significant", analysis.MEAN_RATER, 1.0, 0.0)
    assert first.n == 2
    # One rater counts 3 and 0, the other 1 and 0.
    assert [(row.rater, row.mean) for row in each] == [("A", 0.5), ("B", 1.5)]
    (result,) = analysis.compare_counts(ratings, scores)
    assert {true: mean.value for true, mean in result.detected.items()} == {0: 1.0, 2: 3.0}
    # (a): 1.5 rounds to 2, of which one is detected; (b): 0.5 rounds to 1, missed; (c): one too many.
    assert [result.f1[letter] for letter in "abc"] == pytest.approx([2 / 3, 0, 0])
    # The second report has the right number of every category, the first of (d) to (f).
    assert [result.accuracy[letter].value for letter in ERROR_CATEGORIES] == [0.5, 0.5, 0.5, 1.0, 1.0, 1.0]


@pytest.mark.parametrize(("layout", "columns", "cells", "cluster", "examination"), CASES["reports alone"])
def test_pairs_need_the_columns_of_the_reports_alone_and_have_their_study_and_examination(
    layout: str, columns: str, cells: str, cluster: list[str | None], examination: str, tmp_path: Path
) -> None:
    path, out = write_table(tmp_path / "t.csv", columns.split(","), [cells.split(",")]), tmp_path / "pairs.csv"
    run_meta("pairs", path, "--layout", layout, "--out", out)
    pairs = read_pairs(out)
    assert (pairs[0].candidate, pairs[0].reference, [pairs.cluster_by, pairs[0].cluster]) == ("c", "r", cluster)
    assert pairs[0].context.examination == examination


@pytest.mark.usefixtures("without_plots")
@pytest.mark.parametrize("layout", [*LAYOUTS, "preferences"])
def test_every_layout_has_an_example_and_the_order_of_its_rows_changes_no_number(layout: str, tmp_path: Path) -> None:
    examples, records = tmp_path / "examples", []
    run_meta("examples", "--out", examples)
    path = examples / (layout if (examples / layout).is_dir() else f"{layout}.csv")
    more = ("--better", "lower") if layout == "plain" else ()
    for name in ("as it is", "reordered"):
        options = ("--metrics", "rouge_l,bleu_1", "--bootstrap", 20, "--rounds", 20, "--out", tmp_path / name)
        run_meta("agreement", path, "--layout", layout, *more, *options)
        records.append(read_json(tmp_path / name / "agreement.json"))
        rated = path / {"rexval": REXVAL_RATINGS, "radevalx": RADEVALX_FILES[0]}.get(layout, "")
        with rated.open(newline="") as handle:
            header, *rows = csv.reader(handle)
        # The lines of a report in ReFiSco keep their order.
        rows = sorted(rows, key=lambda row: row[0], reverse=True) if "refisco" in layout else rows[::-1]
        write_table(rated, header, rows)
    assert records[0]["preferences"] or records[0]["agreement"][0]["coefficients"]["kendall"]["value"] is not None
    # Reports without an id have the number of their row, and other texts of the same rank may be listed first.
    left_out = {"table", "disagreements", "notes"} if layout in ("rate-eval", "radeval") else {"table"}
    first, second = ({key: value for key, value in record.items() if key not in left_out} for record in records)
    assert first == second


@pytest.fixture
def command(tmp_path: Path) -> tuple[object, ...]:
    """Arguments of `radfact meta` for a plain table of 20 reports of two sites with two raters."""
    texts = ["No effusion.", "Small effusion.", "Large left effusion.", "The heart is large.", "Clear lungs."]
    rows = [
        [i, texts[i % 5], texts[(i + (i % 4 > 1)) % 5], "AB"[i % 2], (i % 4 > 1) * 2, (i % 4 > 1) + i % 2]
        for i in range(20)
    ]
    table = write_table(tmp_path / "r.csv", ["id", "reference", "candidate", "site", "errors:x", "errors:y"], rows)
    return ("agreement", table, "--better", "lower", "--bootstrap", 0, "--out", tmp_path / "out")


def test_the_command_writes_tables_plots_and_a_page(tmp_path: Path, command: tuple[object, ...]) -> None:
    # The errors themselves, but for one sample that was not scored; numbers of errors; the same value for all.
    columns: dict[str, list[float | None]] = {"m": [(i % 4 > 1) * 1.0 for i in range(19)], "same": [1.0] * 20}
    columns["m_ec"] = [float(i % 4) for i in range(20)]
    scores = [f"--scores={write_scores(tmp_path / name, values, name=name)}" for name, values in columns.items()]
    baseline = ("--baseline", "m", "--rounds", 99)
    console = run_meta(*command, "--metrics", "bleu_1", "--bootstrap", 20, *baseline, *scores)
    out = tmp_path / "out"
    record = read_json(out / "agreement.json")
    kendall = {row["score"]: row["coefficients"]["kendall"] for row in record["agreement"] if row["group"] == "all"}
    assert [kendall[name]["n"] for name in ("m", "m_ec", "same", "bleu_1")] == [19, 20, 20, 20]
    assert (kendall["m"]["value"] > 0.8, kendall["bleu_1"]["value"] > 0.5, kendall["same"]["value"]) == (1, 1, None)
    assert {row["group"] for row in record["agreement"]} == {"all", "A", "B"}
    assert (record["seed"], record["bootstrap"], len(record["inter_rater"])) == (42, 20, 1)
    assert {row["rater"] for row in record["count_errors"]} == {analysis.MEAN_RATER, "x", "y"}
    for name in ("forest", "scatter", "ratings", "detected"):
        assert (out / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        assert "<svg" in (out / f"{name}.svg").read_text()
    header, row, *_ = (out / "detected.csv").read_text().splitlines()
    assert (header, row[:5]) == ("score,experts' quantity,experts' number,mean detected,n", "m_ec,")
    page = (out / "agreement.html").read_text()
    assert ('<th scope="row">BLEU-1</th>' in page, "bleu_1" in page) == (True, False)
    assert page.count("data:image/png;base64,") == 4
    assert "http" not in page.replace("http-equiv", "")
    contrasts = [(row["score"], row["baseline"]) for row in record["metric_contrasts"]]
    assert contrasts == [("same", "m"), ("m_ec", "m"), ("bleu_1", "m")]
    assert ("Compared with m," in console, "Scores compared with M" in page) == (True, True)
    header = (out / "metric_contrasts.csv").read_text().splitlines()[0]
    assert header == "score,n,m,kendall,difference,low,high,p,Holm"
    assert (out / "agreement.csv").read_text().startswith("score,group,n,kendall,kendall low,kendall high,kendall p,")
    assert "Largest disagreements" in page
    assert (out / "disagreements.csv").read_text().splitlines()[1].endswith(".")
    assert "Without coefficient and in no plot: same" in console
    assert "in no plot: Same (fewer than three values" in page


@pytest.mark.usefixtures("without_plots")
def test_reports_are_compared_without_matplotlib_and_a_metric(tmp_path: Path, command: tuple[object, ...]) -> None:
    (tmp_path / "ids.txt").write_text("1\n2\n3\n4\n5\n")
    console = run_meta(*command, "--metrics", "bleu_1,green", "--ids", tmp_path / "ids.txt", exit_code=3)
    assert ("matplotlib" in console, "without green: " in console) == (True, True)
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert (names >= {"agreement.csv", "agreement.html"}, "forest.png" in names) == (True, False)
    assert read_json(tmp_path / "out/agreement.json")["agreement"][0]["coefficients"]["kendall"]["n"] == 5
    code, line = refuse_meta(*command, "--metrics", "bleu_1", "--baseline", "bleu")
    assert (code, "--baseline" in line) == (ErrorCode.UNKNOWN_NAME, True)


@pytest.mark.usefixtures("without_plots")
@pytest.mark.parametrize(("option", "by", "size"), [(None, "study_id", 3), ("case", "case", 4), ("none", None, 1)])
def test_reports_of_a_study_are_drawn_together(option: str | None, by: str | None, size: int, tmp_path: Path) -> None:
    """Twelve candidates of four studies and of three cases."""
    values = [float(index * 7 % 12) for index in range(12)]
    columns = ["id", "reference", "candidate", "expert", "study_id", "case"]
    rows = [[index, "a", "b", index // 2, f"s{index // 3}", f"c{index // 4}"] for index in range(12)]
    table = write_table(tmp_path / "r.csv", columns, rows)
    more = ("--scores", write_scores(tmp_path / "scores", [*values]), *(("--cluster", option) if option else ()))
    console = run_meta("agreement", table, "--better", "lower", *more, "--out", tmp_path / "out")
    record = read_json(tmp_path / "out" / "agreement.json")
    clusters = None if by is None else Clusters(by, [str(index // size) for index in range(12)])
    expected = correlate([float(index // 2) for index in range(12)], values, clusters=clusters)["kendall"]
    kendall = record["agreement"][0]["coefficients"]["kendall"]
    assert (kendall["low"], kendall["high"]) == (expected.low, expected.high)
    assert record["resampling"] == {"by": by, "clusters": 12 // size, "samples": 12, "unlabeled": 0}
    assert f"resampled by {'sample' if by is None else by.removesuffix('_id')}: " in console
    assert "resampled by" in (tmp_path / "out" / "agreement.html").read_text()


def test_plots_omit_missing_values_and_keep_scales(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    matplotlib = pytest.importorskip("matplotlib")
    monkeypatch.setattr(plots, "save", lambda figure, path: figures.append(figure) or path)
    figures: list[Any] = []
    known, without_interval, none = Estimate(0.0, -0.5, 0.5, 9), Estimate(-0.4, n=9), Estimate(None, n=2)
    rows = [("both", "all", known), ("both", "site", none), ("bare", "all", without_interval), ("none", "all", none)]
    plots.forest({"tau": rows, "$x^$": [("other", "_own", known)]}, tmp_path / "forest")
    figures[0].canvas.draw()
    plots.bars({"one": {-1.0: 0.5, 0.0: 0.5}}, tmp_path / "bars", x="x", y="share", width=1.0)
    directions: dict[str, Direction] = {"rouge_l": "higher", "green_ec": "lower"}
    scores = {"rouge_l": [0.1, 0.4], "green_ec": [3.0, 1.0]}
    plots.scatter([5, 2], scores, {"all": [0, 1]}, tmp_path / "s", directions=directions, label="experts")
    matplotlib.pyplot.close("all")
    (forest, other), (bars,), panels = (figure.axes[:2] for figure in figures)
    assert [text.get_text() for text in figures[0].legends[0].get_texts()] == ["all", " _own"]
    assert [label.get_text() for label in other.get_yticklabels()] == ["Other"]
    assert [label.get_text() for label in forest.get_yticklabels()] == ["Bare", "Both"]
    (marks,) = (line for line in forest.get_lines() if line.get_marker() == "D")
    assert sorted(marks.get_xdata()) == [-0.4, 0.0]
    # The marks of each group, one interval, and the line at zero.
    assert len(forest.get_lines()) == 4
    assert all(tick == round(tick) for tick in bars.get_xticks())
    assert [panel.get_ylabel() for panel in panels] == ["higher is better", "lower is better"]
    assert [panel.get_title() for panel in panels] == ["ROUGE-L", "GREEN ec"]
    points = [panel.collections[0].get_offsets().tolist() for panel in panels]
    assert points == [[[5, 0.1], [2, 0.4]], [[5, 3], [2, 1]]]


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("inputs")
    run_meta("examples", "--out", folder / "examples")
    rows = [[f"{site}{number}", site, "No effusion. Mild cardiomegaly."] for site in "xy" for number in (1, 2)]
    write_table(folder / "examples" / "reports.csv", ["id", "site", "report"], rows)
    write_table(folder / "examples" / "twice.csv", ["id", "candidate", "reference"], [["1", "a", "b"]] * 2)
    return folder / "examples"


@pytest.mark.parametrize(("arguments", "code", "option"), CASES["refused"])
def test_wrong_options_are_refused_before_the_model_is_queried(
    arguments: str, code: str, option: str, inputs: Path, tmp_path: Path, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(inputs)
    server, out = serve(lambda *_: (200, {}, "")), tmp_path / "out"
    command = arguments.replace("MODEL", "--judge openai:m SERVER").replace("SERVER", f"--base-url {server.base_url}")
    found, line = refuse_meta(*shlex.split(command), "--out", out)
    assert (found, option in line) == (code, True)
    assert not server.requests
    assert not out.exists()


@pytest.mark.parametrize(("options", "number", "overall", "errors"), CASES["shots"])
def test_examples_of_vert_have_the_ratings_of_experts_and_no_study_of_the_test_pairs(
    options: str, number: int, overall: dict[str, float], errors: dict[str, Any], inputs: Path, tmp_path: Path
) -> None:
    with (inputs / "plain.csv").open(newline="") as handle:
        header, first, *_ = csv.reader(handle)
    write_table(inputs / "s1.csv", header, [["other", "s1", *first[2:]]])
    files = [tmp_path / name for name in ("a.json", "b.json")]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(inputs)
        for file in files:
            run_meta("shots", *shlex.split(options), "--out", file)
    shots = {str(shot.id): shot for shot in read_examples(files[0], Shot)}
    assert (len(shots), files[0].read_bytes()) == (number, files[1].read_bytes())
    assert {key: shots[key].overall for key in overall} == pytest.approx(overall)
    *_, last = map(shots.__getitem__, overall)
    found = {kind: {x: n for x, n in getattr(last, kind).items() if n} for kind in ("significant", "insignificant")}
    assert {kind: counts for kind, counts in found.items() if counts} == errors
    assert "--exclude" not in options or first[2] not in [shot.reference for shot in shots.values()]


def test_an_example_of_several_rows_has_the_mean_of_their_readers(inputs: Path, tmp_path: Path) -> None:
    rows = [["a", "R.", "C.", 1], ["b", "r", "c", 3], ["other", "R.", "D.", 4]]
    table = write_table(tmp_path / "t.csv", ["id", "reference", "candidate", "expert"], rows)
    run_meta("shots", table, "--better=lower", "--scale", 0, 4, "--n", 2, "--out", tmp_path / "plain.json")
    assert {shot.id: shot.score for shot in read_examples(tmp_path / "plain.json", Shot)} == {"a": 0.5, "other": 0}
    table, text = tmp_path / "radeval.csv", (inputs / "radeval.csv").read_text()
    table.write_text(text + text.partition("\n")[2].replace("r1,", "r2,").replace(": 0", ": 2"))
    run_meta("shots", table, "--layout=radeval", "--n", 18, "--out", tmp_path / "s.json")
    shots = {shot.id: set(shot.significant.values()) for shot in read_examples(tmp_path / "s.json", Shot)}
    assert shots["0_1"] == {1}


@pytest.mark.parametrize("by", [{"study_id": "s"}, {"patient_id": "p"}, {"study_id": "s", "patient_id": "x"}, {}])
def test_examples_have_no_study_and_no_patient_of_the_test_pairs(by: dict[str, str], tmp_path: Path) -> None:
    columns, rows = ["id", "reference", "candidate"], [["a", "R.", "C.", "s", "p", 1], ["b", "S.", "C.", "t", "o", 1]]
    table = write_table(tmp_path / "t.csv", [*columns, "study_id", "patient_id", "expert"], rows)
    tests = write_table(tmp_path / "pairs.csv", [*columns, *by], [["q", "Q.", "C.", *by.values()]][: len(by)])
    options = ("--better=lower", "--scale", 0, 4, "--n=1", "--exclude", tests, "--out", tmp_path / "shots.json")
    out = run_meta("shots", table, *options)
    assert ("from 1 of 2 reports: b" in out, "pairs.csv has no pairs" in out) == (bool(by), not by)


def test_an_example_of_each_category_has_the_fewest_other_errors(tmp_path: Path) -> None:
    columns = [f"{kind}_{letter}" for kind in ("significant", "insignificant") for letter in "abcdef"]
    errors = {"clean": "", "a": "a", "b": "abb", "both": "cd", "c": "c", "insignificant": "aC"}
    rows = [[key, f"R {key}", f"C {key}", "x", *map(of.count, "abcdefABCDEF")] for key, of in errors.items()]
    table = write_table(tmp_path / "t.csv", ["id", "reference", "candidate", "rater", *columns], rows)
    options = ("--layout", "plain", "--better", "lower", "--by-category", "--out", tmp_path / "shots.json")
    assert "No other report has an error (e). No other report has an error (f)." in run_meta("shots", table, *options)
    shots = {shot.category: shot.id for shot in read_examples(tmp_path / "shots.json", Shot)}
    assert shots == {"a": "a", "b": "b", "c": "c", "d": "both"}


PAIRS = [Pair(str(i), f"Clear lungs {i}.", "Clear lungs. No effusion.") for i in range(6)]


def scores(folder: Path, pairs: list[Pair]) -> Path:
    evaluate(pairs, ["lateral_mentions", "radfact"], judge="offline", bootstrap=0, out=folder)
    return folder


@pytest.fixture
def table(tmp_path: Path) -> tuple[object, ...]:
    rows = [[pair.sample_id, pair.reference, pair.candidate, i % 3] for i, pair in enumerate(PAIRS)]
    path = write_table(tmp_path / "r.csv", ["id", "reference", "candidate", "expert"], rows)
    return (path, "--better", "lower", "--bootstrap", 0)


# Two pairs with other texts, one with another id, and one missing.
CHANGED = [Pair("0", "Edema.", PAIRS[0].reference), Pair("1", PAIRS[1].candidate, "Edema.")]
OTHERS = [*CHANGED, *PAIRS[2:5], Pair("x", "Clear lungs.", "Clear lungs.")]


@pytest.mark.usefixtures("without_plots")
def test_agreement_records_samples_that_do_not_match(tmp_path: Path, table: tuple[object, ...]) -> None:
    folder, out = scores(tmp_path / "s", OTHERS), tmp_path / "out"
    console = run_meta("agreement", *table, "--scores", folder, "--out", out)
    kinds = ("missing samples of the set: 1 (5).", "samples that are not in the set: 1 (x).", "splitter): 2 (0, 1).")
    assert all(note in console for note in kinds)
    expected = {"folder": "s", "missing": ["5"], "unknown": ["x"], "other_texts": ["0", "1"]}
    assert read_json(out / "agreement.json")["results_folders"] == [expected]
    assert "with other texts" in (out / "agreement.html").read_text()


def test_an_ensemble_prints_samples_of_a_judge_that_do_not_match(tmp_path: Path, table: tuple[object, ...]) -> None:
    judges = (f"--judges=one={scores(tmp_path / 'one', PAIRS)}", f"--judges=two={scores(tmp_path / 'two', OTHERS)}")
    fitted, more = tmp_path / "e.json", ("--features", "logical_recall", "--folds", 2, "--method", "average")
    console = run_meta("ensemble", "fit", *table, *judges, *more, "--out", fitted)
    assert ("one:" in console, "two: samples with other texts than in the set" in console) == (False, True)
    console = run_meta("ensemble", "apply", fitted, *judges, "--out", tmp_path / "n")
    assert "two: samples that are not in the set: 1 (x)." in console
    assert "two: samples with other texts" in console


# The offline splitter makes two sentences of each of these.
DIVIDED = [
    Pair(f"{i}", f"No effusion or pneumothorax {i}.", "Lungs are clear. No edema or effusion.") for i in range(6)
]


@pytest.mark.parametrize("order", [("split", "whole"), ("whole", "split"), ("split",)])
def test_split_reports_match_and_an_ensemble_has_those_before_the_split(tmp_path: Path, order: tuple[str, ...]) -> None:
    write_results(RadFact(OfflineJudge(), bootstrap=0).score(DIVIDED), tmp_path / "split")
    texts = [row["text"] for _, row in read_jsonl(tmp_path / "split/sentences.jsonl") if row["sample_id"] == "0"]
    assert len(texts) == 5
    assert match_samples(tmp_path / "split", pair_digests(DIVIDED)).notes() == []
    assert match_samples(tmp_path / "split", pair_digests(PAIRS)).other_texts == [pair.sample_id for pair in PAIRS]
    evaluate(DIVIDED, ["rouge_l"], bootstrap=0, out=tmp_path / "whole")
    names = {"split": "logical_precision", "whole": "rouge_l"}
    fit_ensemble({f"{judge}/{names[judge]}": [0.0] for judge in order}, method="average").save(tmp_path / "e.json")
    judges = [f"--judges={judge}={tmp_path / judge}" for judge in order]
    run_meta("ensemble", "apply", tmp_path / "e.json", *judges, "--out", tmp_path / "out")
    assert match_samples(tmp_path / "out", pair_digests(DIVIDED)).notes() == []
    if "whole" in order:
        texts = [row["text"] for _, row in read_jsonl(tmp_path / "out/sentences.jsonl")]
        assert texts == [text for pair in DIVIDED for text in (pair.candidate, pair.reference)]


def test_the_record_of_an_ensemble_identifies_it(tmp_path: Path) -> None:
    one, two = scores(tmp_path / "one", PAIRS), scores(tmp_path / "two", PAIRS)
    judges = (f"--judges=a={one}", f"--judges=b={two}")
    judged = {"first": "ab", "same": "ab", "other": "a"}
    for name, letters in judged.items():
        columns = {f"{letter}/logical_recall": [0.0, 1.0, 2.0] for letter in letters}
        fit_ensemble(columns, [0.0, 1.0, 2.0]).save(tmp_path / f"{name}.json")
        run_meta("ensemble", "apply", tmp_path / f"{name}.json", *judges, "--out", tmp_path / name)
    run = read_json(tmp_path / "first/run.json")
    metric = read_json(tmp_path / "first/scores.json")["metrics"]["ensemble"]
    assert {"versions", "input", "judge", "options", "calls", "seconds"} <= set(run)
    files = {"files": [str(tmp_path / "first.json")], "judges": {"a": str(one), "b": str(two)}}
    assert run["input"] == {**files, "read": 6, "skipped": 0}
    fitted = read_json(tmp_path / "first.json")
    assert {name: metric["settings"][name] for name in fitted} == fitted
    assert metric["settings"]["judges"]["a"]["radfact"]["judge"]["name"] == "offline"
    assert metric["source"] == "VERT, section 5.1.5"
    assert "Judge: <strong>ensemble of a, b</strong>" in (tmp_path / "first/report.html").read_text()
    notes = compare([tmp_path / name for name in ("first", "same", "other")], replicates=0, rounds=1).notes
    assert [note for note in notes if "other settings" in note] == [
        "ensemble: another judge or model, or other settings, in other than in first."
    ]
