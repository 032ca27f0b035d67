"""Readers of published ratings: tables of the documented layouts in `rating_sets.yaml`, and malformed cells.

Each malformed cell has one of the documented outcomes: an error with file, line and field, or a missing rating that is
counted.
"""

from __future__ import annotations

import csv
import html
import io
import math
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import yaml
from error_checks import raises, raises_code
from meta_run import run_meta, write_scores, write_table

from radfact.error_categories import ERROR_CATEGORIES
from radfact.errors import ErrorCode, InputError
from radfact.meta.agreement.analysis import compare_raters
from radfact.meta.agreement.corrections import line_changes
from radfact.meta.datasets.layouts import REXVAL_RATINGS, REXVAL_REPORTS, Layout, parse_annotation, read_ratings
from radfact.meta.datasets.preferences import PreferenceSet, read_preferences
from radfact.meta.datasets.ratings import RatedReport, RatingSet
from radfact.meta.datasets.reports import read_ids

Row = dict[str, str]

CASES: dict[str, Any] = yaml.safe_load(Path(__file__).with_name("rating_sets.yaml").read_text("utf-8"))
LAYOUTS: dict[str, Any] = CASES["layouts"]
COLUMNS = [(layout, column) for layout, schema in LAYOUTS.items() for column in schema["columns"]]
REXVAL = list(LAYOUTS["rexval"]["columns"])
FILE = REXVAL_RATINGS
"""Name of the file of every layout; that of ReXVal's reports is read with it."""


def read_cells(folder: Path, layout: Layout, columns: list[str], rows: list[list[Any]]) -> RatingSet:
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
    ratings = read_cells(tmp_path, table["layout"], table["columns"].split("|"), rows)
    assert {name: getattr(ratings, name) for name in table.get("set", ())} == table.get("set", {})
    samples = {sample.pair.sample_id: sample for sample in ratings.samples}
    assert list(samples) == list(table["samples"])
    for key, expected in table["samples"].items():
        means = expected.get("means", {})
        assert {name: samples[key].mean(name) for name in means} == pytest.approx(means, nan_ok=True)
        ratings_by_rater = expected.get("ratings", {})
        assert {name: samples[key].ratings[name] for name in ratings_by_rater} == ratings_by_rater
        others = {name: value for name, value in expected.items() if name not in ("means", "ratings")}
        assert {name: attribute(samples[key], name) for name in others} == others


@pytest.mark.parametrize(("layout", "columns", "row", "line", "field", "code"), CASES["refused"])
def test_invalid_tables_are_refused(
    layout: Layout, columns: str, row: str, line: int, field: str | None, code: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError) as error:
        read_cells(tmp_path, layout, columns.split("|"), [row.split("|")])
    found = error.value
    assert (found.file, found.line, found.field, found.code) == (tmp_path / REXVAL_RATINGS, line, field, code)


def test_samples_of_a_set_are_resampled_by_its_studies_or_alone(tmp_path: Path) -> None:
    read_cells(tmp_path, "rexval", REXVAL, [[0, "bleu", 1, 0, True, 1]])
    assert read_ratings(tmp_path, "rexval", cluster="none").clusters is None
    with raises_code(ErrorCode.UNKNOWN_NAME, field="cluster"):
        read_ratings(tmp_path, "rexval", cluster="patient_id")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with raises(f"{REXVAL_REPORTS}: file-not-found"):
        read_ratings(tmp_path, "rexval")
    write_table(tmp_path / REXVAL_REPORTS, ["study_id", "gt_report"], [["a", "b"]])
    with raises(f"{REXVAL_RATINGS}: file-not-found"):
        read_ratings(tmp_path, "rexval")


def test_raters_of_one_candidate_with_different_references_are_compared(tmp_path: Path) -> None:
    lines = [("7", "Left effusion."), ("8", "Mass."), ("9", "Clear.")]
    by_rater = {"r1": ["Urgent error", "Not actionable", ""], "r2": ["Emergent error", "Urgent error", ""]}
    rows = [
        [key, line, "Better." if severity else "[no edit]", severity, rater, "X-REM"]
        for rater, rated in by_rater.items()
        for (key, line), severity in zip(lines, rated, strict=True)
    ]
    columns = ["id", "impression_original", "impression_edited", "score", "annotator", "source"]
    ratings = read_cells(tmp_path, "refisco-v0", columns, [*rows, [*rows[0][:5], "other"]])
    assert len(ratings.samples) == 7
    results = {(row.quantity, row.first, row.second): row for row in compare_raters(ratings, replicates=0)}
    agreement = results["severity_max", "r1", "r2"]
    assert agreement.kendall.n == 3
    assert agreement.mean_absolute_difference == pytest.approx((1 + 2 + 0) / 3)


def test_ids_select_reports(tmp_path: Path) -> None:
    rows = [[study, method, 1, 0, True, 1] for study in (0, 1) for method in ("radgraph", "bleu")]
    ratings = read_cells(tmp_path, "rexval", REXVAL, rows)
    (tmp_path / "ids.txt").write_text("1\n\n0_bleu\n")
    selected = ratings.select(read_ids(tmp_path / "ids.txt"))
    assert [sample.pair.sample_id for sample in selected.samples] == ["0_bleu", "1_bleu", "1_radgraph"]
    with raises_code(ErrorCode.UNKNOWN_NAME, match="'2'"):
        ratings.select(frozenset({"1", "2"}))
    (tmp_path / "ids.txt").write_text("\n")
    with raises_code(ErrorCode.EMPTY_INPUT):
        read_ids(tmp_path / "ids.txt")


def test_experts_select_quantities_and_spaces_around_an_id_are_stripped(tmp_path: Path) -> None:
    columns = ["id", "reference", "candidate", "errors:a", "fluency:a"]
    path = write_table(tmp_path / "t.csv", columns, [["1", "r", "c", "1", "2"], ["2 ", "r", "c", "1", "2"]])
    assert list(read_ratings(path, better="lower", experts=["fluency:a"]).better) == ["fluency"]
    path.write_text(path.read_text().replace("\n1,", "\n 2,"))
    with raises("t.csv:3: id: duplicate"):
        read_ratings(path, better="higher")


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


def annotation(*counts: Sequence[Any]) -> str:
    """An annotation of RadEval: two headings, each with seven numbered counts."""
    lines = []
    for heading, numbers in zip(("**Significant:**", "Insignificant:"), counts, strict=True):
        named = enumerate(zip(CASES["categories of RadEval"], numbers, strict=True), 1)
        lines += [heading, *(f"{place}. {name}: {count}" for place, (name, count) in named)]
    return "\n".join(lines)


def valid_rows(layout: str) -> list[Row]:
    """Rows of which the first one is complete, so that its cells can be malformed."""
    rows = []
    for line in LAYOUTS[layout]["rows"]:
        row = dict(zip(LAYOUTS[layout]["columns"], line.split("|"), strict=True))
        rows.append({name: annotation(*cell.split()) if "annotation" in name else cell for name, cell in row.items()})
    return rows


def csv_text(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([columns, *rows])
    return text.getvalue()


def write(folder: Path, layout: str, rows: Sequence[Row] | None = None, edit: Callable[[str], str] = str) -> Path:
    """Write the rows (by default the valid ones), with changes to the text of the file."""
    reports = csv_text(["", "study_id", "gt_report", "bleu"], [["0", "s", "Clear.", "Mass."]])
    (folder / REXVAL_REPORTS).write_text(reports)
    cells = [list(row.values()) for row in (valid_rows(layout) if rows is None else rows)]
    (folder / FILE).write_text(edit(csv_text(list(LAYOUTS[layout]["columns"]), cells)), newline="")
    return folder / FILE


def read(layout: str, path: Path) -> RatingSet | PreferenceSet:
    if layout == "preferences":
        return read_preferences(path)
    return read_ratings(path, layout, better="lower" if layout == "plain" else None)  # type: ignore[arg-type]


def contents(ratings: RatingSet | PreferenceSet) -> dict[str, list[Any]]:
    """Candidate, reference and ratings (or preference) by sample id."""
    if isinstance(ratings, PreferenceSet):
        values: list[Any] = [*ratings.expert, *ratings.expert]
    else:
        values = [dict(sample.ratings[ratings.target]) for sample in ratings.samples]
    pairs = zip(ratings.pairs, values, strict=True)
    return {pair.sample_id: [str(pair.candidate), str(pair.reference), value] for pair, value in pairs}


def count_missing(ratings: RatingSet | PreferenceSet) -> int:
    if isinstance(ratings, PreferenceSet):
        return ratings.expert.count(None)
    return sum(math.isnan(value) for *_, values in contents(ratings).values() for value in values.values())


def with_cell(layout: str, column: str, cell: str) -> list[Row]:
    first, *others = valid_rows(layout)
    return [first | {column: cell}, *others]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    "edit",
    [str, lambda text: f"\ufeff{text}", lambda text: text.replace("\n", "\r\n"), lambda text: f"{text}\n\n"],
    ids=["as written", "BOM", "CRLF", "blank lines"],
)
def test_a_valid_file_is_read_exactly(layout: str, edit: Callable[[str], str], tmp_path: Path) -> None:
    ratings = read(layout, write(tmp_path, layout, edit=edit))
    assert contents(ratings) == LAYOUTS[layout]["expected"]
    assert count_missing(ratings) == 0
    assert isinstance(ratings, PreferenceSet) or not ratings.notes


COLUMNS = [(layout, column) for layout, schema in LAYOUTS.items() for column in schema["columns"]]


@pytest.mark.parametrize("cell", CASES["malformed"])
@pytest.mark.parametrize(("layout", "column"), COLUMNS)
def test_a_malformed_cell_is_an_error_or_a_missing_rating(layout: str, column: str, cell: str, tmp_path: Path) -> None:
    expected = LAYOUTS[layout]["expected"]
    path = write(tmp_path, layout, with_cell(layout, column, cell))
    outcomes = CASES["outcomes"][LAYOUTS[layout]["columns"][column]].items()
    outcome = next((outcome for outcome, cells in outcomes if cell in cells), "error")
    if outcome == "error":
        with pytest.raises(InputError) as error:
            read(layout, path)
        assert (error.value.file, error.value.line, error.value.field) == (path, 2, column)
        return
    ratings = read(layout, path)
    assert count_missing(ratings) == (outcome == "missing")
    if isinstance(ratings, PreferenceSet):
        return
    others = [value for key, value in contents(ratings).items() if key in list(expected)[1:]]
    if column not in ("annotator", "ground_truth", "prediction2", "prediction3", "annotation2", "annotation3"):
        assert others == list(expected.values())[1:]
    if outcome == "skipped":
        assert len(ratings.samples) == len(expected) - 1
    if outcome in ("missing", "skipped"):
        assert any(f":2: {column}" in note or "1 of" in note for note in ratings.notes)


@pytest.mark.parametrize(("layout", "column"), COLUMNS)
def test_a_missing_column_is_an_error_unless_it_is_optional(layout: str, column: str, tmp_path: Path) -> None:
    path = write(tmp_path, layout, edit=lambda text: text.replace(column, "another", 1))
    # `errors:b` is one of several columns of experts.
    if column in LAYOUTS[layout]["optional"] or column.startswith("errors:"):
        read(layout, path)
        return
    with raises_code(ErrorCode.MISSING_FIELD, file=path, line=1, field=None if column == "expert" else column):
        read(layout, path)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_rows_of_another_length_are_errors(layout: str, tmp_path: Path) -> None:
    first, *others = valid_rows(layout)
    for row in (dict(list(first.items())[:-1]), first | {"more": "x"}):
        path = write(tmp_path, layout, [row, *others])
        with raises_code(ErrorCode.INVALID_FORMAT, file=path, line=2):
            read(layout, path)


@pytest.mark.parametrize("layout", ["plain", "preferences", "rexval"])
def test_duplicate_rows_are_errors(layout: str, tmp_path: Path) -> None:
    first, *others = valid_rows(layout)
    path = write(tmp_path, layout, [first, first, *others])
    with raises_code(ErrorCode.DUPLICATE, file=path, line=3):
        read(layout, path)


@pytest.mark.parametrize("count", ["", "many", "-", "n/a", "nan", "-1", "1.5", "inf", "1_0", "2 or 3", "1/2", None])
@pytest.mark.parametrize("place", range(7))
@pytest.mark.parametrize("kind", ["significant", "insignificant"])
def test_a_missing_count_of_radeval_is_never_0(count: str | None, place: int, kind: str, tmp_path: Path) -> None:
    counts: dict[str, list[Any]] = {"significant": [1] * 7, "insignificant": [0] * 7}
    counts[kind][place] = "#" if count is None else count
    text = annotation(counts["significant"], counts["insignificant"])
    if count is None:
        text = "\n".join(line for line in text.splitlines() if not line.endswith("#"))
    ratings = read_ratings(write(tmp_path, "radeval", with_cell("radeval", "annotation1", text)), "radeval")
    values = {quantity: by_rater["r1"] for quantity, by_rater in ratings.samples[0].ratings.items()}
    expected = {f"{of}_{letter}": float(of == "significant") for of, letter in product(counts, ERROR_CATEGORIES)}
    expected |= {"errors": math.nan, "significant": 7.0, "insignificant": 0.0, kind: math.nan}
    letter = "abcdefg"[place]
    if letter in ERROR_CATEGORIES:
        expected[f"{kind}_{letter}"] = math.nan
    assert values == pytest.approx(expected, nan_ok=True)
    assert f"1 of 3 ratings of '{kind}' are missing and excluded." in ratings.notes
    assert "1 of 3 ratings of 'errors' are missing and excluded." in ratings.notes
    assert any(f":2: annotation1: expected the number of errors: {kind} ({letter})" in note for note in ratings.notes)


def test_an_absent_count_of_rexval_is_missing_if_the_file_lists_zeros(tmp_path: Path) -> None:
    rows = valid_rows("rexval")
    ratings = read_ratings(write(tmp_path, "rexval", rows[1:]), "rexval")
    assert contents(ratings)["0_bleu"][2] == pytest.approx({"0": math.nan, "1": 30}, nan_ok=True)
    assert ratings.samples[0].mean("errors") == 30
    assert [note[:1] for note in ratings.notes] == ["1"] * 3
    listed = [row for row in rows if row["num_errors"] != "0"]
    ratings = read_ratings(write(tmp_path, "rexval", listed), "rexval")
    assert contents(ratings)["0_bleu"][2] == {"1": 30}
    assert ratings.notes == [f"2 counts are not in {REXVAL_RATINGS}, which lists no count of 0: they are read as 0."]


@pytest.mark.parametrize("command", ["agreement", "ensemble fit"])
def test_commands_report_missing_ratings(command: str, tmp_path: Path) -> None:
    cells = ["0|Clear.|Mass.|nan|1|A", "1|Clear.|Mass.|2||A"]
    cells += [f"{place}|A.|B.|{place % 7}|{place % 5}|A" for place in range(2, 20)]
    rows = [dict(zip(LAYOUTS["plain"]["columns"], row.split("|"), strict=True)) for row in cells]
    folder = write_scores(tmp_path / "judge", [place / 20 for place in range(20)])
    options = (f"--scores={folder}" if command == "agreement" else f"--judges=a={folder}", "--better", "lower")
    table, out = write(tmp_path, "plain", rows), tmp_path / "out"
    note = "2 of 40 ratings of 'errors' are missing and excluded."
    assert note in run_meta(*command.split(), table, *options, "--bootstrap", 0, "--out", out)
    assert command != "agreement" or note in html.unescape((out / "agreement.html").read_text())
