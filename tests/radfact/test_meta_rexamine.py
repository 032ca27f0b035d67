"""ReXamine-Global: the two questions against scipy, the steps and their restart, and errors that metrics notice."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from chat_server import ChatServer, Reply, last
from green_responses import GreenResponse
from meta_run import run_meta, write_table
from scipy import stats

from radfact.errors import Failure, InputError, RunError
from radfact.io.jsonl import read_json, read_jsonl, write_json, write_jsonl
from radfact.meta.agreement.analysis import Figures
from radfact.meta.datasets.report_table import SiteReport, read_counts, read_reports
from radfact.meta.injection.detection import detect, detection_pairs, write_detected
from radfact.meta.injection.perturb import RulePerturber
from radfact.meta.injection.records import Change, Injected, read_injected
from radfact.meta.injection.style import RuleStyler
from radfact.meta.robustness.rexamine import rexamine
from radfact.meta.robustness.statistics import Ranking, StyleTest, rankings, style_tests, table_2, table_c, threshold
from radfact.records import Pair
from radfact.results.reader import read_sample_scores

SITES = ["x"] * 4 + ["y"] * 3


def test_t_is_standardised_minus_original_and_negative_where_style_is_rewarded() -> None:
    # The metric is better when higher, and higher against the standardised references.
    original = Figures({"m": [1, 2, 3, 4, 5, 5, 5]}, {"m": "higher"})
    standardised = Figures({"m": [2, 4, 4, 6, 5, 5, 5]}, {"m": "higher"})
    x, y = style_tests(original, standardised, SITES)
    expected = stats.ttest_rel([-2, -4, -4, -6], [-1, -2, -3, -4])
    assert (x.t, x.p) == (pytest.approx(expected.statistic), pytest.approx(expected.pvalue))
    assert x.t is not None
    assert x.t < 0
    assert (x.mean_difference, x.n) == (-1.5, 4)
    # Style changes nothing here, which is no t.
    assert (y.t, y.p, y.mean_difference, y.n) == (None, None, 0.0, 3)
    assert threshold([x, y]) == 0.025


def test_a_figure_that_is_better_when_lower_is_not_turned() -> None:
    original = Figures({"m": [1.0, 2, 4, math.nan, 0, 0, 0]}, {"m": "lower"})
    standardised = Figures({"m": [0.0, 2, 1, 7, 0, 0, 1]}, {"m": "lower"})
    first = style_tests(original, standardised, SITES)[0]
    assert first.t == pytest.approx(stats.ttest_rel([0, 2, 1], [1, 2, 4]).statistic)
    assert first.n == 3


def test_table_2_counts_sites_below_the_corrected_threshold() -> None:
    tests = [
        StyleTest("m", "x", -4.0, 0.001, -1, 9),
        StyleTest("m", "y", -2.0, 0.04, -1, 9),
        StyleTest("m", "z", None, None, 0, 9),
    ]
    assert table_2(tests).rows == [["m", -3.0, -4.0, -2.0, 1, 3]]


def test_ranking_is_by_site_and_style_and_positive_where_right() -> None:
    figures = {
        "Original": Figures({"m": [4, 3, 2, 1, 1, 2, 3]}, {"m": "higher"}),
        "Standardised": Figures({"m": [4, 3, 1, 2, 3, 2, 1]}, {"m": "higher"}),
    }
    found = rankings(figures, [0, 1, 2, 3, 0, 1, 2], SITES)  # type: ignore[arg-type]
    assert table_c(found).headings == ["Metric", "Ground truth", "x", "x n", "y", "y n"]
    first, second = table_c(found).rows
    assert first == ["m", "Original", pytest.approx(1.0), 4, pytest.approx(-1.0), 3]
    assert second == ["m", "Standardised", pytest.approx(0.8), 4, pytest.approx(1.0), 3]


def test_a_site_may_be_called_as_the_column_of_another_s_reports() -> None:
    found = [Ranking("m", "Original", site, rho, n) for site, rho, n in (("A", 0.5, 4), ("A n", 0.7, 9))]
    assert table_c(found).rows == [["m", "Original", 0.5, 4, 0.7, 9]]


def test_a_count_that_is_no_number_is_no_count(tmp_path: Path) -> None:
    (tmp_path / "counts.csv").write_text("id,errors\na,nan\nb,1\nb,\nc,2\nc,nan\n")
    assert read_counts(tmp_path / "counts.csv") == {"b": 1, "c": 2}


@pytest.mark.parametrize(("row", "field"), [("a,-1", "errors"), ("a,1_0", "errors"), (" ,1", "id")])
def test_counts_that_cannot_be_are_refused(row: str, field: str, tmp_path: Path) -> None:
    (tmp_path / "counts.csv").write_text(f"id,errors\nb,1\n{row}\n")
    with pytest.raises(InputError) as error:
        read_counts(tmp_path / "counts.csv")
    assert (error.value.line, error.value.field) == (3, field)


REPORTS = [
    SiteReport(f"{site}{i}", site, text)
    for site in ("x", "y")
    for i, text in enumerate(
        (
            "No pneumothorax. Small left effusion. Heart size normal.",
            "The lungs are clear. Stable cardiomegaly.",
            "There is mild right basal atelectasis. No effusion or pneumothorax.",
            "Moderate pulmonary edema, unchanged. Large heart.",
        )
    )
]


class Words:
    """The share of the candidate's words that the reference has."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    def __call__(self, pairs: Sequence[Pair], folder: Path) -> Figures:
        del folder
        self.asked.append(len(pairs))
        shares = []
        for pair in pairs:
            words, known = str(pair.candidate).split(), set(str(pair.reference).split())
            shares.append(sum(word in known for word in words) / len(words))
        return Figures({"words": shares}, {"words": "higher"})


class Counting:
    """A styler that counts how often it is asked, and fails on one report."""

    name = "counting"

    def __init__(self, temperature: float = 0) -> None:
        self.asked, self.temperature = 0, temperature

    def describe(self) -> dict[str, Any]:
        return {"temperature": self.temperature}

    def standardise(self, reports: Sequence[str]) -> list[str | Failure]:
        self.asked += 1
        styled = RuleStyler().standardise(reports)
        return [Failure("no answer") if "edema" in report else one for report, one in zip(reports, styled, strict=True)]


def test_what_experts_have_filled_in_is_never_written_over(tmp_path: Path) -> None:
    run = {"styler": RuleStyler(), "score": Words(), "seed": 1}
    rexamine(REPORTS, tmp_path, perturber=RulePerturber(seed=1), **run)
    path = tmp_path / "for_experts.csv"
    header, first, *rest = path.read_text().splitlines()
    path.write_text("\n".join([header, f"{first}3", *rest]) + "\n")
    filled = path.read_text()
    rexamine(REPORTS, tmp_path, perturber=RulePerturber(seed=1), **run)
    assert path.read_text() == filled
    score = Words()
    with pytest.raises(InputError, match="holds counts of other candidates"):
        rexamine(REPORTS[:4], tmp_path, perturber=RulePerturber(seed=1), **{**run, "score": score})
    assert path.read_text() == filled
    assert score.asked == []  # before anything is paid for


def test_failures_are_left_out_and_tried_again(tmp_path: Path) -> None:
    styler, score = Counting(), Words()
    found = rexamine(REPORTS, tmp_path, styler=styler, perturber=RulePerturber(seed=1), score=score, seed=1)
    assert set(found.left_out) == {"x3", "y3"}
    assert found.experts == "labels"
    assert score.asked == [6, 6]
    assert all(one.t is None or one.t < 0 for one in found.tests)
    page = (tmp_path / "rexamine.html").read_text()
    assert "No expert has counted errors here" in page
    assert "not standardised: no answer" in page
    again = rexamine(REPORTS, tmp_path, styler=styler, perturber=RulePerturber(seed=1), score=score, seed=1)
    assert again == found
    assert styler.asked == 2


def test_a_step_is_done_once_for_the_same_reports(tmp_path: Path) -> None:
    styler, score = Counting(), Words()
    good = [one for one in REPORTS if "edema" not in one.report]
    for _ in range(2):
        rexamine(good, tmp_path, styler=styler, perturber=RulePerturber(seed=1), score=score, seed=1)
    assert styler.asked == 1
    rexamine(good[1:], tmp_path, styler=styler, perturber=RulePerturber(seed=1), score=score, seed=1)
    assert styler.asked == 2


@pytest.mark.parametrize("option", ["--styler", "--errors-by"])
def test_a_step_is_done_again_by_a_model_with_other_parameters(
    option: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, serve: Callable[..., ChatServer]
) -> None:
    server = serve(model_answer)
    table, out = table_of_reports(tmp_path / "r.csv"), tmp_path / "out"
    command = (
        "rexamine",
        table,
        option,
        "openai:m",
        "--base-url",
        server.base_url,
        "--metrics",
        "bleu_1",
        "--out",
        out,
    )
    assert run_meta(monkeypatch, *command) == 0
    asked = len(server.requests)
    assert run_meta(monkeypatch, *command, "--judge-arg", "temperature=0.5") == 0
    again = server.requests[asked:]
    assert len(again) == asked
    assert {request["temperature"] for request in again} == {0.5}


def test_a_run_cut_short_goes_on_where_it_stopped(tmp_path: Path) -> None:
    styler = Counting()
    good = [one for one in REPORTS if "edema" not in one.report]

    def broken(pairs: Sequence[Pair], folder: Path) -> Figures:
        del pairs, folder
        raise RunError("the server went away")

    with pytest.raises(RunError):
        rexamine(good, tmp_path, styler=styler, perturber=RulePerturber(), score=broken)
    rexamine(good, tmp_path, styler=styler, perturber=RulePerturber(), score=Words())
    assert styler.asked == 1


def test_experts_counts_take_the_place_of_labels(tmp_path: Path) -> None:
    options = {"styler": RuleStyler(), "perturber": RulePerturber(), "score": Words()}
    rexamine(REPORTS, tmp_path, **options)  # type: ignore[arg-type]
    lines = (tmp_path / "for_experts.csv").read_text().splitlines()
    assert lines[0] == "id,site,reference,candidate,errors"
    assert len(lines) == 9
    table = write_table(tmp_path / "c.csv", ["id", "errors"], [[one.sample_id, i % 3] for i, one in enumerate(REPORTS)])
    found = rexamine(REPORTS, tmp_path, counts=read_counts(table), **options)  # type: ignore[arg-type]
    assert found.experts == "experts"
    page = (tmp_path / "rexamine.html").read_text()
    assert "No expert" not in page
    assert "by experts, which" not in page
    score = Words()
    with pytest.raises(InputError, match=r"for_experts\.csv"):
        rexamine(REPORTS, tmp_path, counts={"other": 1}, **{**options, "score": score})  # type: ignore[arg-type]
    assert score.asked == []


def test_candidates_without_a_count_and_counts_without_a_candidate_are_named(tmp_path: Path) -> None:
    first, second, *_ = [one.sample_id for one in REPORTS]
    rows = [[one.sample_id, i % 3] for i, one in enumerate(REPORTS)]
    rows = [[first, " "], ["typo", 2], *rows[2:]]
    table = write_table(tmp_path / "c.csv", ["id", "errors"], rows)
    found = rexamine(
        REPORTS,
        tmp_path,
        counts=read_counts(table),
        styler=RuleStyler(),
        perturber=RulePerturber(),
        score=Words(),
    )
    said = [
        f"Candidates without a count by experts, which are not ranked: 2 of {len(REPORTS)} ({second}, {first}).",
        "Counts of other ids than those of the candidates: 1 (typo).",
    ]
    assert list(found.notes[-2:]) == said
    assert all(one in (tmp_path / "rexamine.html").read_text() for one in said)
    record = read_json(tmp_path / "rexamine.json")
    assert (record["uncounted"], record["unknown_counts"]) == ([second, first], ["typo"])
    site = next(one.site for one in REPORTS if one.sample_id == first)
    (counted,) = {one.n for one in found.rankings if one.site == site}
    assert counted == sum(one.site == site for one in REPORTS) - 2
    header, row, *_ = (tmp_path / "table_c.csv").read_text().splitlines()
    assert dict(zip(header.split(","), row.split(","), strict=True))[f"{site} n"] == str(counted)


def test_a_site_of_one_report_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="site 'z'"):
        rexamine(
            [*REPORTS, SiteReport("z0", "z", "Clear.")],
            tmp_path,
            styler=RuleStyler(),
            perturber=RulePerturber(),
            score=Words(),
        )


def test_reports_are_drawn_by_seed_and_site(tmp_path: Path) -> None:
    drawn = []
    for folder in ("one", "two"):
        rexamine(
            REPORTS,
            tmp_path / folder,
            styler=RuleStyler(),
            perturber=RulePerturber(),
            score=Words(),
            per_site=2,
            seed=1,
        )
        drawn.append([row["sample_id"] for _, row in read_jsonl(tmp_path / folder / "standardised.jsonl")])
    assert drawn[0] == drawn[1]
    assert [key[0] for key in drawn[0]] == ["x", "x", "y", "y"]


def table_of_reports(path: Path) -> Path:
    return write_table(path, ["id", "site", "report"], [[one.sample_id, one.site, one.report] for one in REPORTS])


def test_the_command_does_all_seven_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table, out = table_of_reports(tmp_path / "r.csv"), tmp_path / "out"
    assert run_meta(monkeypatch, "rexamine", table, "--metrics", "rouge_l,bleu_2", "--out", out) == 0
    record = read_json(out / "rexamine.json")
    assert {one["figure"] for one in record["style_tests"]} == {"rouge_l", "bleu_2"}
    assert record["sites"] == {"x": 4, "y": 4}
    assert (out / "table_2.csv").read_text().startswith("Metric,Mean t-stat,Min t-stat,Max t-stat,")
    assert (out / "table_c.csv").read_text().startswith("Metric,Ground truth,x,x n,y,y n")
    assert (out / "figure_3.png").read_bytes().startswith(b"\x89PNG")
    assert "<svg" in (out / "figure_3.svg").read_text()
    assert (out / "original" / "report.html").is_file()


@pytest.mark.parametrize(
    ("names", "figures"),
    [("rouge_l,green", ["rouge_l", "green"]), ("green,rouge_l,green_ec", ["green", "green_ec", "rouge_l"])],
)
def test_a_metric_is_one_test_a_site_however_many_figures_it_has(
    names: str,
    figures: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    serve: Callable[..., ChatServer],
) -> None:
    answer = GreenResponse((("A mass",), *[()] * 5), ((),) * 6, ("Clear lungs",)).text()
    server = serve(lambda *_: (200, {}, answer))
    table, out = table_of_reports(tmp_path / "r.csv"), tmp_path / "out"
    model = ("--judge", "openai:m", "--base-url", server.base_url)
    assert run_meta(monkeypatch, "rexamine", table, "--metrics", names, *model, "--out", out) == 0
    record = read_json(out / "rexamine.json")
    assert list(dict.fromkeys(one["figure"] for one in record["style_tests"])) == figures
    assert record["threshold"] == pytest.approx(0.05 / (len(figures) * 2))
    assert {one["figure"] for one in record["rankings"]} == set(figures)
    assert "green_significant_a" in read_json(out / "original/scores.json")["figures"]


def test_reports_without_a_site_are_refused_where_sites_matter(tmp_path: Path) -> None:
    path = write_table(tmp_path / "r.csv", ["id", "report"], [["1", "Clear."]])
    with pytest.raises(InputError, match="site"):
        read_reports(path)
    assert read_reports(path, default_site="") == [SiteReport("1", "", "Clear.")]


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"sample_id": 5, "report": "Clear."}, "sample_id: expected a text, found 5"),
        ({"id": " ", "report": "Clear."}, "id: missing or empty"),
        ({"id": "1", "findings": ["Clear."]}, "findings: expected a text"),
        ({"id": "1", "report": None}, "report: missing or empty"),
    ],
)
def test_a_report_s_fields_are_texts(row: dict[str, object], said: str, tmp_path: Path) -> None:
    write_jsonl(tmp_path / "r.jsonl", [row])
    with pytest.raises(InputError, match=said):
        read_reports(tmp_path / "r.jsonl", default_site="")


@pytest.mark.parametrize("field", ["id", "sample_id"])
def test_a_report_that_stands_twice_is_named_by_the_field_that_it_has(field: str, tmp_path: Path) -> None:
    write_jsonl(tmp_path / "r.jsonl", [{field: "1", "report": "Clear."}] * 2)
    with pytest.raises(InputError, match=f"line 2: {field}: '1' stands twice, first at line 1"):
        read_reports(tmp_path / "r.jsonl", default_site="")


def injected(source: str, category: str, count: int, *, mixed: bool = False) -> Injected:
    change = Change.model_validate({"category": category, "operation": "test"})
    return Injected.model_validate(
        {
            "sample_id": f"{source}_{category}{count}",
            "source_id": source,
            "reference": f"No effusion. {source}.",
            "candidate": "x",
            "category": None if mixed else category,
            "changes": [change] * count,
        }
    )


def test_a_step_is_noticed_where_the_figure_gets_worse() -> None:
    rows = [injected("s", "a", 1), injected("s", "a", 2), injected("t", "a", 1)]
    pairs = detection_pairs(rows)
    assert [pair.sample_id for pair in pairs] == ["s_a1", "s_a2", "t_a1", "s_0", "t_0", "s_reworded", "t_reworded"]
    assert pairs[5].candidate != pairs[5].reference
    # s: 1.0 -> 0.8 -> 0.8 (the second error goes unnoticed); t: 0.9 -> 0.7. Rewording costs 0.1 of s and nothing of t.
    figures = Figures({"m": [0.8, 0.8, 0.7, 1.0, 0.9, 0.9, 0.9]}, {"m": "higher"})
    noticed, reworded = detect(rows, figures).noticed
    assert (noticed.category, noticed.steps, noticed.n) == ("a", pytest.approx(2 / 3), 3)
    assert {k: mean.value for k, mean in noticed.curve.items()} == {0: 0.95, 1: 0.75, 2: 0.8}
    assert noticed.above_rewording == 1.0
    assert (reworded.category, reworded.steps, reworded.n) == ("reworded", 0.5, 2)


def test_mixed_errors_are_set_apart_from_rewording_one_at_a_time() -> None:
    rows = [injected(key, "a", count, mixed=True) for key, count in (("s", 3), ("t", 1), ("u", 0))]
    # s: three errors, worse than rewording; t: one error, no worse than rewording; u: other words and no error.
    figures = Figures({"m": [0.1, 0.9, 0.5, 1.0, 1.0, 1.0, 0.8, 0.8, 0.8]}, {"m": "higher"})
    noticed, _ = detect(rows, figures).noticed
    assert (noticed.category, noticed.steps, noticed.n) == ("mixed", 1.0, 2)
    assert noticed.above_rewording == 0.0
    assert {k: mean.value for k, mean in noticed.curve.items()} == {0: 1.0, 1: 0.9, 3: 0.1}
    assert detect(rows[:1], Figures({"m": [0.1, 1.0, 0.8]}, {"m": "higher"})).noticed[0].above_rewording is None


def test_what_no_candidate_has_been_scored_for_has_no_value_in_the_files(tmp_path: Path) -> None:
    rows = [injected("s", "a", 1)]
    names = ("m_significant", *(f"m_significant_{letter}" for letter in "abcdef"))
    figures = Figures({name: [math.nan, 0.0, 0.0] for name in names}, dict.fromkeys(names, "lower"))
    write_detected(detect(rows, figures), rows, tmp_path, {})
    record = read_json(tmp_path / "detection.json")
    assert record["accuracy"]["m_significant"]["a"] == {"value": None, "n": 0}
    assert record["f1"]["m_significant"]["a"] is None
    assert (tmp_path / "categories.csv").read_text().splitlines()[1] == f"m_significant{',' * 12}"


def test_injection_and_detection_by_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table, made, out = table_of_reports(tmp_path / "r.csv"), tmp_path / "injected.jsonl", tmp_path / "out"
    assert run_meta(monkeypatch, "inject", table, "--types", "a,d,e", "--errors", "1,2", "--out", made) == 0
    rows = read_injected(made)
    assert {row.category for row in rows} == {"a", "d", "e"}
    assert {row.site for row in rows} == {"x", "y"}
    assert run_meta(monkeypatch, "detect", made, "--metrics", "bleu_2", "--out", out) == 0
    record = read_json(out / "detection.json")
    assert record["errors"]["a"] == sum(len(row.changes) for row in rows if row.category == "a")
    assert (out / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert (out / "steps.csv").read_text().startswith("figure,a,d,e,reworded\nbleu_2,1.0,")
    assert "set apart from rewording" in (out / "detection.html").read_text()


def test_reports_in_other_languages_are_counted_and_get_no_errors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    german = "Kein Pneumothorax. Das Herz ist normal groß. Kein Erguss."
    rows = [["g", german], ["e", "There is a small left effusion. No pneumothorax."]]
    table, made = write_table(tmp_path / "r.csv", ["id", "report"], rows), tmp_path / "i.jsonl"
    assert run_meta(monkeypatch, "inject", table, "--out", made) == 0
    assert "1 of 2 reports get no errors: half of their sentences or more" in " ".join(capsys.readouterr().out.split())
    assert {row.source_id for row in read_injected(made)} == {"e"}
    write_table(table, ["id", "report"], rows[:1])
    assert run_meta(monkeypatch, "inject", table, "--out", made) == 1
    assert "the rules read English reports of chest X-rays" in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize("arguments", [("--types", "g"), ("--errors", "0"), ("--errors", "one")])
def test_wrong_kinds_and_numbers_are_refused(
    arguments: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    table = table_of_reports(tmp_path / "r.csv")
    assert run_meta(monkeypatch, "inject", table, *arguments, "--out", tmp_path / "i.jsonl") == 2
    assert arguments[0] in capsys.readouterr().err
    assert not (tmp_path / "i.jsonl").exists()


def judge_folder(folder: Path, values: list[float | None], direction: str = "lower") -> Path:
    """A results folder with the figure m of samples 0, 1, ..."""
    write_jsonl(folder / "samples.jsonl", [{"sample_id": str(i), "m": value} for i, value in enumerate(values)])
    texts = [{"sample_id": str(i), "side": "candidate", "text": "c"} for i in range(len(values))]
    write_jsonl(folder / "sentences.jsonl", texts)
    write_json(folder / "scores.json", {"figures": {"m": {"direction": direction}}})
    return folder


def test_an_ensemble_is_not_fitted_on_ratings_that_are_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [[str(i), "r", "c", 3] for i in range(20)]
    table = write_table(tmp_path / "t.csv", ["id", "reference", "candidate", "expert"], rows)
    judge = f"--judges=one={judge_folder(tmp_path / 'one', [i % 5 for i in range(20)])}"
    fit = ("ensemble", "fit", table, "--better", "lower", "--bootstrap", 0, "--out", tmp_path / "e.json")
    assert run_meta(monkeypatch, *fit, judge) == 2
    assert "all 'expert' of the rated reports are 3; there is nothing to fit" in capsys.readouterr().err
    assert run_meta(monkeypatch, *fit, judge, judge) == 2
    assert "--judges: 'one' is given twice" in capsys.readouterr().err
    assert not (tmp_path / "e.json").exists()


def test_an_ensemble_is_fitted_applied_and_compared_with_experts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [[str(i), "r", "c", 2 * (i % 5) + (i * 7) % 3] for i in range(40)]
    table = write_table(tmp_path / "t.csv", ["id", "reference", "candidate", "expert"], rows)
    judge_folder(tmp_path / "one", [i % 5 for i in range(40)])
    judge_folder(tmp_path / "two", [(i * 7) % 3 for i in range(40)])
    judges = [f"--judges={judge}={tmp_path / judge}" for judge in ("one", "two")]
    fitted, scores = tmp_path / "e.json", tmp_path / "s"
    fit = ("ensemble", "fit", table, "--better", "lower", *judges, "--bootstrap", 0, "--out", fitted)
    assert run_meta(monkeypatch, *fit) == 0
    assert "1.000" in capsys.readouterr().out
    assert read_json(fitted)["coefficients"] == {"one/m": pytest.approx(2.0), "two/m": pytest.approx(1.0)}
    assert run_meta(monkeypatch, "ensemble", "apply", fitted, *judges, "--out", scores) == 0
    applied = read_sample_scores(scores)
    assert applied.directions == {"ensemble": "lower"}
    expected = [float(row[3]) for row in rows]
    assert [row["ensemble"] for row in applied.rows.values()] == pytest.approx(expected)
    assert (scores / "report.html").is_file()
    draws = ("--bootstrap", 3, "--seed", 7)
    assert run_meta(monkeypatch, "ensemble", "apply", fitted, *judges, *draws, "--out", tmp_path / "drawn") == 0
    assert read_json(tmp_path / "drawn/run.json")["options"] == {"bootstrap": 3, "seed": 7}
    # What one writes the other reads.
    again = ("agreement", table, "--better", "lower", "--scores", scores, "--bootstrap", 0, "--out", tmp_path / "a")
    assert run_meta(monkeypatch, *again) == 0
    assert read_json(tmp_path / "a/agreement.json")["agreement"][0]["coefficients"]["kendall"]["value"] == 1.0
    assert run_meta(monkeypatch, *fit[:-2], f"--judges=third={scores}", "--out", fitted) == 0
    assert run_meta(monkeypatch, "ensemble", "apply", fitted, judges[0], "--out", tmp_path / "n") == 2
    assert "two/m" in capsys.readouterr().err


def test_an_ensemble_leaves_out_what_a_judge_has_not_scored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    one = judge_folder(tmp_path / "one", [1, None, 3, 0])
    other = judge_folder(tmp_path / "other", [1, 2, 2, 1], "higher")
    table = write_table(
        tmp_path / "t.csv", ["id", "reference", "candidate", "expert"], [[i, "r", "c", i] for i in range(4)]
    )
    fitted, out = tmp_path / "e.json", tmp_path / "out"
    fit = ("ensemble", "fit", table, "--better", "lower", f"--judges=one={one}", "--method", "average", "--folds", 2)
    assert run_meta(monkeypatch, *fit, "--bootstrap", 0, "--out", fitted) == 0
    assert run_meta(monkeypatch, "ensemble", "apply", fitted, f"--judges=one={one}", "--out", out) == 3
    assert "1 left out, because a judge has not scored them" in capsys.readouterr().out
    assert [row["failure"] is None for _, row in read_jsonl(out / "samples.jsonl")] == [True, False, True, True]
    # A mean of what is better high and what is better low means nothing.
    assert run_meta(monkeypatch, *fit, f"--judges=other={other}", "--out", fitted) == 2
    assert "one/m lower, other/m higher" in capsys.readouterr().err


def model_answer(request: dict[str, Any], _: int) -> Reply:
    """A model that writes reports: standardised, perturbed, or with one false finding that it finds plausible."""
    text, system = last(request), request["messages"][0]["content"]
    if text.startswith("bad") or "bad report" in text:
        return 400, {}, "refused"
    if "Modifications:" in text:
        return 200, {}, '{"plausible": true, "reason": "ok"}'
    if system.startswith("ERROR TYPE"):
        change = {"sentence_index": 0, "original": "", "modified": "There is a mass.", "explanation": "added"}
        return 200, {}, json.dumps({"modified_report": f"{text[-20:]} There is a mass.", "changes_detail": [change]})
    if text.endswith("like a radiologist wrote it."):
        return 200, {}, f"{text.partition(chr(10))[0]} A mass."
    return 200, {}, f"Findings: {text}"


def test_a_model_may_standardise_and_put_errors_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, serve: Callable[..., ChatServer]
) -> None:
    server = serve(model_answer)
    table, out = table_of_reports(tmp_path / "r.csv"), tmp_path / "out"
    models = ("--styler", "openai:m", "--errors-by", "openai:m", "--base-url", server.base_url)
    command = ("rexamine", table, *models, "--metrics", "bleu_1", "--out", out)
    assert run_meta(monkeypatch, *command) == 0
    rows = read_injected(out / "candidates.jsonl")
    assert all(row.reference.startswith("Findings: ") and row.candidate.endswith(" A mass.") for row in rows)
    # Nobody has counted the errors of a model.
    assert read_json(out / "rexamine.json")["experts"] is None
    assert "fill in for_experts.csv" in (out / "rexamine.html").read_text()
    asked = len(server.requests)
    counts = write_table(tmp_path / "c.csv", ["id", "errors"], [[row.sample_id, i] for i, row in enumerate(rows)])
    assert run_meta(monkeypatch, *command, "--counts", counts) == 0
    assert read_json(out / "rexamine.json")["experts"] == "experts"
    assert len(server.requests) == asked


def test_what_a_model_fails_on_is_left_out_and_said(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    serve: Callable[..., ChatServer],
    capsys: pytest.CaptureFixture[str],
) -> None:
    server = serve(model_answer)
    table = write_table(tmp_path / "r.csv", ["id", "report"], [["1", "Clear lungs."], ["2", "A bad report."]])
    made = tmp_path / "i.jsonl"
    command = ("inject", table, "--by", "openai:m", "--base-url", server.base_url, "--types", "a", "--errors", 1)
    assert run_meta(monkeypatch, *command, "--out", made) == 3
    assert [row.sample_id for row in read_injected(made)] == ["1_a1"]
    assert "left out: 2_a1" in capsys.readouterr().out
    assert run_meta(monkeypatch, *command[:-4], "--types", "a,c", "--out", made) == 2
