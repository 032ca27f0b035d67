"""Readers of published ratings (`rating_sets.yaml`): a malformed cell is an error with its place, or is counted."""

import html
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
from radfact.meta.datasets.layouts import RADEVALX_FILES, REXVAL_RATINGS, REXVAL_REPORTS, parse_annotation, read_ratings
from radfact.meta.datasets.preferences import PreferenceSet, read_preferences
from radfact.meta.datasets.ratings import RatedReport, RatingSet
from radfact.meta.datasets.reports import read_ids

CASES: dict[str, Any] = yaml.safe_load(Path(__file__).with_name("rating_sets.yaml").read_text("utf-8"))
LAYOUTS: dict[str, Any] = CASES["layouts"]
COLUMNS = [(layout, column) for layout, schema in LAYOUTS.items() for column in schema["columns"]]


def write(folder: Path, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> Path:
    """Write a table of ratings, with the reports of ReXVal next to it."""
    reports = [[0, "s1", "Clear.", "Effusion.", "Mass."], [1, "s2", "Large heart.", "Heart normal.", "Large heart."]]
    write_table(folder / REXVAL_REPORTS, ["", "study_id", "gt_report", "radgraph", "bleu"], reports)
    return write_table(folder / REXVAL_RATINGS, list(columns), [list(row) for row in rows])


def read(layout: str, path: Path) -> Any:
    if layout == "preferences":
        return read_preferences(path)
    return read_ratings(path, layout, better="lower" if layout == "plain" else None)  # type: ignore[arg-type]


def annotation(*counts: Sequence[Any]) -> str:
    """An annotation of RadEval: two headings, each with seven numbered counts."""
    lines = []
    for heading, numbers in zip(("**Significant:**", "Insignificant:"), counts, strict=True):
        named = enumerate(zip(CASES["categories of RadEval"], numbers, strict=True), 1)
        lines += [heading, *(f"{place}. {name}: {count}" for place, (name, count) in named)]
    return "\n".join(lines)


def write_layout(folder: Path, layout: str, rows: slice = slice(None), **cells: str) -> Path:
    """Write rows of a layout, with other cells in the first one."""
    columns = LAYOUTS[layout]["columns"]
    table = [dict(zip(columns, line.split("|"), strict=True)) for line in LAYOUTS[layout]["rows"][rows]]
    for row in table:
        row |= {name: annotation(*cell.split()) for name, cell in row.items() if "annotation" in name}
    table[0] |= cells
    return write(folder, columns, [list(row.values()) for row in table])


def attribute(sample: RatedReport, name: str) -> Any:
    if sample.corrections and name in ("changes", "comments", "insertions"):
        corrections = sample.corrections
        comments, changes = [item.comment for item in corrections.items], line_changes(corrections)[:-1]
        return {"changes": changes, "comments": comments, "insertions": corrections.insertions}[name]
    return getattr(sample if name == "groups" else sample.pair, name)


@pytest.mark.parametrize("case", CASES["read"])
def test_layouts_are_read(case: str, tmp_path: Path) -> None:
    table = CASES["read"][case]
    rows = [row.split("|") for row in table["rows"]]
    ratings = read(table["layout"], write(tmp_path, table["columns"].split("|"), rows))
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


@pytest.mark.parametrize(("layout", "columns", "rows", "expected"), CASES["refused"])
def test_invalid_tables_are_refused(layout: str, columns: str, rows: list[str], expected: str, tmp_path: Path) -> None:
    path = write(tmp_path, columns.split("|"), [row.split("|") for row in rows])
    with raises(f"{REXVAL_RATINGS}:{expected}"):
        read(layout, path)


def test_samples_of_a_set_are_resampled_by_its_studies_or_alone(tmp_path: Path) -> None:
    write_layout(tmp_path, "rexval")
    assert read_ratings(tmp_path, "rexval", cluster="none").clusters.by is None
    with raises_code(ErrorCode.UNKNOWN_NAME, field="cluster"):
        read_ratings(tmp_path, "rexval", cluster="patient_id")


@pytest.mark.parametrize(("cell", "total"), [("3", 3), ("0", math.nan)])
def test_an_empty_count_of_radevalx_is_0_if_the_files_list_no_0(cell: str, total: float, tmp_path: Path) -> None:
    columns = ["report_id", "ground_truth", "M2Tr-Generation", *"12345678"]
    rows = [["a", "Clear.", "Mass.", "", cell, *[""] * 6], ["b", "Clear.", "Clear.", *[""] * 8]]
    for name in RADEVALX_FILES:
        path = write_table(tmp_path / name, columns, rows)
    ratings = read_ratings(tmp_path, "radevalx")
    expected = [total, math.nan if cell == "0" else 0]
    assert ratings.means("significant") == pytest.approx(expected, nan_ok=True)
    assert ratings.samples[0].mean("insignificant_b") == int(cell)
    write_table(path, columns, [*rows, rows[0]])
    with raises_code(ErrorCode.DUPLICATE, file=path, line=4, field="report_id"):
        read_ratings(tmp_path, "radevalx")


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
    ratings = read("refisco-v0", write(tmp_path, columns, [*rows, [*rows[0][:5], "other"]]))
    assert len(ratings.samples) == 7
    results = {(row.quantity, row.first, row.second): row for row in compare_raters(ratings, replicates=0)}
    agreement = results["severity_max", "r1", "r2"]
    assert agreement.kendall.n == 3
    assert agreement.mean_absolute_difference == pytest.approx((1 + 2 + 0) / 3)


def test_ids_select_reports(tmp_path: Path) -> None:
    rows = [[study, method, 1, 0, True, 1] for study in (0, 1) for method in ("radgraph", "bleu")]
    ratings = read("rexval", write(tmp_path, list(LAYOUTS["rexval"]["columns"]), rows))
    (tmp_path / "ids.txt").write_text("1\n\n0_bleu\n")
    selected = ratings.select(read_ids(tmp_path / "ids.txt"))
    assert [sample.pair.sample_id for sample in selected.samples] == ["0_bleu", "1_bleu", "1_radgraph"]
    with raises_code(ErrorCode.UNKNOWN_NAME, match="'2'"):
        ratings.select(frozenset({"1", "2"}))
    (tmp_path / "ids.txt").write_text("\n")
    with raises_code(ErrorCode.EMPTY_INPUT):
        read_ids(tmp_path / "ids.txt")


def test_experts_select_quantities(tmp_path: Path) -> None:
    path = write(tmp_path, ["id", "reference", "candidate", "errors:a", "fluency:a"], [["1", "r", "c", "1", "2"]])
    assert list(read_ratings(path, better="lower", experts=["fluency:a"]).better) == ["fluency"]


@pytest.mark.parametrize("text", CASES["invalid annotations"])
def test_invalid_annotations_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        parse_annotation(text)


def known_counts(text: str) -> dict[tuple[str, str], float]:
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


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    "edit",
    [str, lambda text: f"\ufeff{text}", lambda text: text.replace("\n", "\r\n"), lambda text: f"{text}\n\n"],
    ids=["as written", "BOM", "CRLF", "blank lines"],
)
def test_a_valid_file_is_read_exactly(layout: str, edit: Callable[[str], str], tmp_path: Path) -> None:
    path = write_layout(tmp_path, layout)
    path.write_text(edit(path.read_text()), newline="")
    ratings = read(layout, path)
    assert contents(ratings) == LAYOUTS[layout]["expected"]
    assert count_missing(ratings) == 0
    assert isinstance(ratings, PreferenceSet) or not ratings.notes


@pytest.mark.parametrize("cell", CASES["malformed"])
@pytest.mark.parametrize(("layout", "column"), COLUMNS)
def test_a_malformed_cell_is_an_error_or_a_missing_rating(layout: str, column: str, cell: str, tmp_path: Path) -> None:
    expected = LAYOUTS[layout]["expected"]
    path = write_layout(tmp_path, layout, **{column: cell})
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
    path = write_layout(tmp_path, layout)
    path.write_text(path.read_text().replace(column, "another", 1))
    # `errors:b` is one of several columns of experts.
    if column in LAYOUTS[layout]["optional"] or column.startswith("errors:"):
        read(layout, path)
        return
    with raises_code(ErrorCode.MISSING_FIELD, file=path, line=1, field=None if column == "expert" else column):
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
    ratings = read_ratings(write_layout(tmp_path, "radeval", annotation1=text), "radeval")
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
    path = write_layout(tmp_path, "rexval", slice(1, None))
    ratings = read_ratings(path, "rexval")
    assert contents(ratings)["0_bleu"][2] == pytest.approx({"0": math.nan, "1": 30}, nan_ok=True)
    assert ratings.samples[0].mean("errors") == 30
    assert [note[:1] for note in ratings.notes] == ["1"] * 3
    path.write_text("".join(line for line in path.read_text().splitlines(True) if not line.endswith(",0\n")))
    ratings = read_ratings(path, "rexval")
    assert contents(ratings)["0_bleu"][2] == {"1": 30}
    assert ratings.notes == [f"2 counts are not in {REXVAL_RATINGS}, which lists no count of 0: they are read as 0."]


@pytest.mark.usefixtures("without_plots")
@pytest.mark.parametrize("command", ["agreement", "ensemble fit"])
def test_commands_report_missing_ratings(command: str, tmp_path: Path) -> None:
    cells = ["0|Clear.|Mass.|nan|1|A", "1|Clear.|Mass.|2||A"]
    cells += [f"{place}|A.|B.|{place % 7}|{place % 5}|A" for place in range(2, 20)]
    folder = write_scores(tmp_path / "judge", [place / 20 for place in range(20)])
    options = (f"--scores={folder}" if command == "agreement" else f"--judges=a={folder}", "--better", "lower")
    table, out = write(tmp_path, LAYOUTS["plain"]["columns"], [row.split("|") for row in cells]), tmp_path / "out"
    note = "2 of 40 ratings of 'errors' are missing and excluded."
    assert note in run_meta(*command.split(), table, *options, "--bootstrap", 0, "--out", out)
    assert command != "agreement" or note in html.unescape((out / "agreement.html").read_text())
