"""Readers of published ratings, on tables of the documented layouts in `rating_sets.yaml`."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import yaml
from error_checks import raises_code
from meta_run import write_table

from radfact.errors import ErrorCode, InputError
from radfact.meta.agreement.analysis import compare_raters
from radfact.meta.agreement.corrections import line_changes
from radfact.meta.datasets.layouts import REXVAL_RATINGS, REXVAL_REPORTS, Layout, parse_annotation, read_ratings
from radfact.meta.datasets.ratings import RatedReport, RatingSet
from radfact.meta.datasets.reports import read_ids

CASES: dict[str, Any] = yaml.safe_load(Path(__file__).with_name("rating_sets.yaml").read_text("utf-8"))
REXVAL = list(CASES["layouts"]["rexval"]["columns"])


def read(folder: Path, layout: Layout, columns: list[str], rows: list[list[Any]]) -> RatingSet:
    reports = [["s1", "No effusion.", "Effusion.", "Clear."], ["s2", "Large heart.", "Heart normal.", "Large heart."]]
    write_table(folder / REXVAL_REPORTS, ["study_id", "gt_report", "radgraph", "bleu"], reports)
    path = write_table(folder / REXVAL_RATINGS, columns, rows)
    return read_ratings(path, layout, better="lower" if layout == "plain" else None)


def attribute(sample: RatedReport, name: str) -> Any:
    if sample.corrections and name in ("changes", "comments", "insertions"):
        corrections = sample.corrections
        comments = [item.comment for item in corrections.items]
        return {"changes": line_changes(corrections), "comments": comments, "insertions": corrections.insertions}[name]
    return getattr(sample if name == "groups" else sample.pair, name)


@pytest.mark.parametrize("case", CASES["read"])
def test_layouts_are_read(case: str, tmp_path: Path) -> None:
    table = CASES["read"][case]
    rows = [row.split("|") for row in table["rows"]]
    ratings = read(tmp_path, table["layout"], table["columns"].split("|"), rows)
    assert {name: getattr(ratings, name) for name in table.get("set", ())} == table.get("set", {})
    samples = {sample.pair.sample_id: sample for sample in ratings.samples}
    assert list(samples) == list(table["samples"])
    for key, expected in table["samples"].items():
        means = expected.get("means", {})
        assert {name: samples[key].mean(name) for name in means} == pytest.approx(means, nan_ok=True)
        others = {name: value for name, value in expected.items() if name != "means"}
        assert {name: attribute(samples[key], name) for name in others} == others


@pytest.mark.parametrize(("layout", "columns", "row", "line", "field", "code"), CASES["refused"])
def test_invalid_tables_are_refused(
    layout: Layout, columns: str, row: str, line: int, field: str | None, code: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError) as error:
        read(tmp_path, layout, columns.split("|"), [row.split("|")])
    found = error.value
    assert (found.file, found.line, found.field, found.code) == (tmp_path / REXVAL_RATINGS, line, field, code)


def test_rexval_counts_by_rater_and_significance(tmp_path: Path) -> None:
    rows = [[0, "radgraph", 1, 0, True, 1], [0, "radgraph", 2, 0, False, 2], [0, "radgraph", 6, 1, True, 3]]
    ratings = read(tmp_path, "rexval", REXVAL, [*rows, [1, "bleu", 1, 0, True, 4]])
    first, second = ratings.samples
    assert (first.pair.sample_id, first.pair.candidate, second.pair.reference) == (
        *("0_radgraph", "Effusion.", "Large heart."),
    )
    assert first.ratings["significant"] == {"0": 1.0, "1": 3.0}
    assert first.ratings["errors"] == {"0": 3.0, "1": 3.0}
    assert first.ratings["significant_f"] == {"0": 0.0, "1": 3.0}
    assert ratings.means("errors") == [3.0, 4.0]
    assert (ratings.target, ratings.group, first.groups) == ("errors", "candidate_type", {"candidate_type": "radgraph"})
    assert (ratings.cluster_by, [sample.pair.cluster for sample in ratings.samples]) == ("study_id", ["0", "1"])
    assert read_ratings(tmp_path, "rexval", cluster="none").clusters is None
    with raises_code(ErrorCode.UNKNOWN_NAME, field="cluster"):
        read_ratings(tmp_path, "rexval", cluster="patient_id")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError) as error:
        read_ratings(tmp_path, "rexval")
    assert error.value.file == tmp_path / REXVAL_REPORTS
    write_table(tmp_path / REXVAL_REPORTS, ["study_id", "gt_report"], [["a", "b"]])
    with pytest.raises(InputError) as error:
        read_ratings(tmp_path, "rexval")
    assert error.value.file == tmp_path / REXVAL_RATINGS


def test_raters_of_one_candidate_with_different_references_are_compared(tmp_path: Path) -> None:
    lines = [("7", "Left effusion."), ("8", "Mass."), ("9", "Clear.")]
    by_rater = {"r1": ["Urgent error", "Not actionable", ""], "r2": ["Emergent error", "Urgent error", ""]}
    rows = [
        [key, line, "Better." if severity else "[no edit]", severity, rater, "X-REM"]
        for rater, rated in by_rater.items()
        for (key, line), severity in zip(lines, rated, strict=True)
    ]
    columns = ["id", "impression_original", "impression_edited", "score", "annotator", "source"]
    ratings = read(tmp_path, "refisco-v0", columns, [*rows, [*rows[0][:5], "other"]])
    assert len(ratings.samples) == 7
    results = {(row.quantity, row.first, row.second): row for row in compare_raters(ratings, replicates=0)}
    agreement = results["severity_max", "r1", "r2"]
    assert agreement.kendall.n == 3
    assert agreement.mean_absolute_difference == pytest.approx((1 + 2 + 0) / 3)


def test_ids_select_reports(tmp_path: Path) -> None:
    rows = [[study, method, 1, 0, True, 1] for study in (0, 1) for method in ("radgraph", "bleu")]
    ratings = read(tmp_path, "rexval", REXVAL, rows)
    (tmp_path / "ids.txt").write_text("1\n\n0_bleu\n")
    selected = ratings.select(read_ids(tmp_path / "ids.txt"))
    assert [sample.pair.sample_id for sample in selected.samples] == ["0_bleu", "1_bleu", "1_radgraph"]
    with pytest.raises(InputError, match="'2'") as error:
        ratings.select(frozenset({"1", "2"}))
    assert error.value.code is ErrorCode.UNKNOWN_NAME
    (tmp_path / "ids.txt").write_text("\n")
    with raises_code(ErrorCode.EMPTY_INPUT):
        read_ids(tmp_path / "ids.txt")


def test_experts_select_quantities_and_spaces_around_an_id_are_stripped(tmp_path: Path) -> None:
    columns = ["id", "reference", "candidate", "errors:a", "fluency:a"]
    path = write_table(tmp_path / "t.csv", columns, [["1", "r", "c", "1", "2"], ["2 ", "r", "c", "1", "2"]])
    assert list(read_ratings(path, better="lower", experts=["fluency:a"]).better) == ["fluency"]
    path.write_text(path.read_text().replace("\n1,", "\n 2,"))
    with pytest.raises(InputError) as error:
        read_ratings(path, better="higher")
    assert (error.value.line, error.value.field, error.value.code) == (3, "id", ErrorCode.DUPLICATE)


@pytest.mark.parametrize("text", CASES["invalid annotations"])
def test_invalid_annotations_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        parse_annotation(text)


def known_counts(text: str) -> dict[tuple[str, str], float]:
    """The counts of an annotation that are not missing."""
    return {key: count for key, count in parse_annotation(text).items() if not math.isnan(count)}


@pytest.mark.parametrize("heading", CASES["insignificant headings"])
def test_headings_of_insignificant_errors(heading: str) -> None:
    text = f"Clinically significant errors:\nomission of finding: 1\n{heading}:\nomission of finding: 3"
    assert known_counts(text) == {("significant", "b"): 1, ("insignificant", "b"): 3}
    data = {"Errors of clinical significance": {"location": 2}, heading: {"location": 0}}
    assert known_counts(str(data)) == {("significant", "c"): 2, ("insignificant", "c"): 0}


@pytest.mark.parametrize("heading", CASES["ambiguous headings"])
def test_an_ambiguous_heading_above_counts_is_refused(heading: str) -> None:
    text = f"Significant:\nomission of finding: 1\n{heading}:\n"
    assert known_counts(text) == {("significant", "b"): 1}
    with pytest.raises(ValueError, match="ambiguous"):
        parse_annotation(f"{text}severity: 1")
