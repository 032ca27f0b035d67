"""Files of the seven layouts, generated from their published columns, with malformed cells of every kind.

Each malformed cell has one of the documented outcomes: an error with file, line and field, or a missing rating that is
counted.
"""

from __future__ import annotations

import csv
import html
import io
import math
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any, Literal

import pytest
import yaml
from error_checks import raises_code
from meta_run import run_meta, write_scores

from radfact.error_categories import ERROR_CATEGORIES
from radfact.errors import ErrorCode, InputError
from radfact.meta.datasets.layouts import REXVAL_RATINGS, REXVAL_REPORTS, read_ratings
from radfact.meta.datasets.preferences import PreferenceSet, read_preferences
from radfact.meta.datasets.ratings import RatingSet

Outcome = Literal["error", "missing", "skipped", "value"]
Row = dict[str, str]

MALFORMED = ("", " ", "nan", "NaN", "n/a", "-", "-1", "1.5", "inf", "-inf", "many", "1_0", "1e400", "2 or 3")
EMPTY, NO_VALUE = ("", " "), ("", " ", "nan", "NaN")
# Outcomes by kind of cell; any other malformed cell of a kind is an error.
OUTCOMES: Mapping[str, Mapping[str, Outcome]] = {
    "text": dict.fromkeys(MALFORMED, "value"),
    "id": dict.fromkeys(MALFORMED, "value") | dict.fromkeys(EMPTY, "error"),
    "number": dict.fromkeys(NO_VALUE, "missing") | dict.fromkeys(("-1", "1.5"), "value"),
    "required number": dict.fromkeys(("-1", "1.5"), "value"),
    "count": dict.fromkeys(NO_VALUE, "missing"),
    "choice": {},
    "label": dict.fromkeys(EMPTY, "missing"),
    "candidate": dict.fromkeys(MALFORMED, "value") | dict.fromkeys(EMPTY, "skipped"),
    "annotation": dict.fromkeys(MALFORMED, "missing"),
}

CATEGORIES = (
    "False prediction of finding",
    "Omission of finding",
    "Incorrect location/position of finding",
    "Incorrect severity of finding",
    "Mention of comparison that is not present in the reference",
    "Omission of a change from a previous study",
    "Inarticulate report (grammar and readability issues)",
)


def annotation(*counts: Sequence[Any]) -> str:
    """An annotation of RadEval: two headings, each with seven numbered counts."""
    lines = []
    for heading, numbers in zip(("**Significant:**", "Insignificant:"), counts, strict=True):
        named = enumerate(zip(CATEGORIES, numbers, strict=True), 1)
        lines += [heading, *(f"{place}. {name}: {count}" for place, (name, count) in named)]
    return "\n".join(lines)


LAYOUTS: dict[str, Any] = yaml.safe_load(Path(__file__).with_name("rating_sets.yaml").read_text("utf-8"))["layouts"]
FILE = REXVAL_RATINGS
"""Name of the file of every layout; that of ReXVal's reports is read with it."""


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


@pytest.mark.parametrize("cell", MALFORMED)
@pytest.mark.parametrize(("layout", "column"), COLUMNS)
def test_a_malformed_cell_is_an_error_or_a_missing_rating(layout: str, column: str, cell: str, tmp_path: Path) -> None:
    expected = LAYOUTS[layout]["expected"]
    path = write(tmp_path, layout, with_cell(layout, column, cell))
    outcome = OUTCOMES[LAYOUTS[layout]["columns"][column]].get(cell, "error")
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


def rating_set(layout: str, path: Path) -> RatingSet:
    ratings = read(layout, path)
    assert isinstance(ratings, RatingSet)
    return ratings


@pytest.mark.parametrize("count", ["", "many", "-", "n/a", "nan", "-1", "1.5", "inf", "1_0", "2 or 3", "1/2", None])
@pytest.mark.parametrize("place", range(7))
@pytest.mark.parametrize("kind", ["significant", "insignificant"])
def test_a_missing_count_of_radeval_is_never_0(count: str | None, place: int, kind: str, tmp_path: Path) -> None:
    counts: dict[str, list[Any]] = {"significant": [1] * 7, "insignificant": [0] * 7}
    counts[kind][place] = "#" if count is None else count
    text = annotation(counts["significant"], counts["insignificant"])
    if count is None:
        text = "\n".join(line for line in text.splitlines() if not line.endswith("#"))
    ratings = rating_set("radeval", write(tmp_path, "radeval", with_cell("radeval", "annotation1", text)))
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
    ratings = rating_set("rexval", write(tmp_path, "rexval", rows[1:]))
    assert contents(ratings)["0_bleu"][2] == pytest.approx({"0": math.nan, "1": 30}, nan_ok=True)
    assert ratings.samples[0].mean("errors") == 30
    assert [note[:1] for note in ratings.notes] == ["1"] * 3
    listed = [row for row in rows if row["num_errors"] != "0"]
    ratings = rating_set("rexval", write(tmp_path, "rexval", listed))
    assert contents(ratings)["0_bleu"][2] == {"1": 30}
    assert ratings.notes == [f"2 counts are not in {REXVAL_RATINGS}, which lists no count of 0: they are read as 0."]


@pytest.mark.parametrize("command", ["agreement", "ensemble fit"])
def test_commands_report_missing_ratings(command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cells = ["0|Clear.|Mass.|nan|1|A", "1|Clear.|Mass.|2||A"]
    cells += [f"{place}|A.|B.|{place % 7}|{place % 5}|A" for place in range(2, 20)]
    rows = [dict(zip(LAYOUTS["plain"]["columns"], row.split("|"), strict=True)) for row in cells]
    folder = write_scores(tmp_path / "judge", [place / 20 for place in range(20)])
    option = ("--scores", folder) if command == "agreement" else ("--judges", f"a={folder}")
    table, out = write(tmp_path, "plain", rows), tmp_path / "out"
    assert run_meta(*command.split(), table, "--better", "lower", "--bootstrap", "0", *option, "--out", out) == 0
    note = "2 of 40 ratings of 'errors' are missing and excluded."
    assert note in " ".join(capsys.readouterr().out.split())
    assert command != "agreement" or note in html.unescape((out / "agreement.html").read_text())
