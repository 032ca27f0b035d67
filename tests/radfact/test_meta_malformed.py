"""Files of the seven layouts, generated from their published columns, with malformed cells of every kind.

Each malformed cell has one of the documented outcomes: an error with file, line and field, or a missing rating that is
counted. Columns are those that public code reads; all texts are our own.
"""

from __future__ import annotations

import csv
import html
import io
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, Literal

import pytest
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


def annotation(significant: Sequence[Any], insignificant: Sequence[Any]) -> str:
    """An annotation of RadEval: two headings, each with seven numbered counts."""
    blocks = (("**Significant:**", significant), ("Insignificant:", insignificant))
    lines = [
        [
            heading,
            *(
                f"{place}. {name}: {count}"
                for place, (name, count) in enumerate(zip(CATEGORIES, counts, strict=True), 1)
            ),
        ]
        for heading, counts in blocks
    ]
    return "\n".join(line for block in lines for line in block)


def rows_of(columns: Mapping[str, str], *rows: str) -> list[Row]:
    """Rows whose cells are separated by vertical bars."""
    return [dict(zip(columns, row.split("|"), strict=True)) for row in rows]


@dataclass(frozen=True)
class Layout:
    """A layout: kind of cell by column, valid rows, optional columns, and what is read from the rows.

    The first row is complete, so that its cells can be malformed. `expected` is candidate, reference and ratings of the
    main quantity by sample id; of preferences, the preference instead of the ratings.
    """

    columns: Mapping[str, str]
    rows: Sequence[Row]
    expected: Mapping[str, tuple[str, str, Any]]
    optional: Sequence[str] = ()
    file: str = "table.csv"


PLAIN = {
    "id": "id",
    "reference": "text",
    "candidate": "text",
    "errors:a": "number",
    "errors:b": "number",
    "site": "text",
}
PREFERENCES = {"id": "id", "reference": "text", "candidate_1": "text", "candidate_2": "text",
               "confidence": "required number", "expert": "label"}  # fmt: skip
REXVAL = {"study_number": "choice", "candidate_type": "choice", "error_category": "choice", "rater_index": "choice",
          "clinically_significant": "choice", "num_errors": "count"}  # fmt: skip
V0 = {"id": "id", "indication": "text", "impression_original": "text", "impression_edited": "id", "score": "choice",
      "annotator": "id", "source": "id"}  # fmt: skip
V1 = {"data_id": "id", "subject_id": "text", "study_id": "text", "report_type": "id", "report_text": "text",
      "original_line": "text", "corrected_line": "text", "error_clinical_severity": "choice", "comments": "text",
      "annotator_id": "id"}  # fmt: skip
RATE_EVAL = {"gt_report": "text", "similar_report": "text", "Score": "number", "Modality": "text", "Anatomy": "text"}
RADEVAL = {"annotator": "id", "type": "text", "ground_truth": "text", "images_path": "text"} | {
    f"{kind}{place}": cell
    for place in (1, 2, 3)
    for kind, cell in (("prediction", "candidate"), ("annotation", "annotation"))
}

LAYOUTS: Mapping[str, Layout] = {
    "plain": Layout(
        PLAIN,
        rows_of(PLAIN, "1|Clear.|Mass.|2|3|A", "2|Mass.|Mass.|0|0|B"),
        {"1": ("Mass.", "Clear.", {"a": 2, "b": 3}), "2": ("Mass.", "Mass.", {"a": 0, "b": 0})},
        ("site",),
    ),
    "preferences": Layout(
        PREFERENCES,
        rows_of(PREFERENCES, "1|Clear.|Mass.|Clear.|4|second", "2|Mass.|Mass.|Clear.|2.5|first"),
        {
            "1_1": ("Mass.", "Clear.", "second"),
            "2_1": ("Mass.", "Mass.", "first"),
            "1_2": ("Clear.", "Clear.", "second"),
            "2_2": ("Clear.", "Mass.", "first"),
        },
        ("confidence",),
    ),
    "rexval": Layout(
        REXVAL,
        [
            dict(zip(REXVAL, map(str, (0, "bleu", category, rater, significant, rater * (category - 1))), strict=True))
            for category, significant, rater in product(range(1, 7), (True, False), (0, 1))
        ],
        {"0_bleu": ("Mass.", "Clear.", {"0": 0, "1": 30})},
        file=REXVAL_RATINGS,
    ),
    "refisco-v0": Layout(
        V0,
        rows_of(
            V0,
            "7|Pain.|Left mass.|Right mass.|Urgent error|r1|X-REM",
            "7|Pain.|Clear.|[no edit]||r1|X-REM",
            "7|Pain.|As before.|[delete]|1|r1|X-REM",
            "7|Pain.||Large heart.|2|r1|X-REM",
        ),
        {"7_X-REM_r1": ("Left mass. Clear. As before.", "Right mass. Clear. Large heart.", {"r1": 6})},
        ("indication",),
    ),
    "refisco-v1": Layout(
        V1,
        rows_of(
            V1,
            "3|s|t|generated|Left mass. Clear.|Left mass.|Right mass.|Urgent error|Why|x",
            "3|s|t|generated|Left mass. Clear.|Clear.||||x",
        ),
        {"3_generated_x": ("Left mass. Clear.", "Right mass. Clear.", {"x": 3})},
        ("subject_id", "study_id", "report_text", "comments"),
    ),
    "rate-eval": Layout(
        RATE_EVAL,
        rows_of(RATE_EVAL, "Clear.|Clear lungs.|4.5|CT|Chest", "Clear.|Mass.|0|MRI|Head"),
        {"0": ("Clear lungs.", "Clear.", {"1": 4.5}), "1": ("Mass.", "Clear.", {"1": 0})},
        ("Modality", "Anatomy"),
    ),
    "radeval": Layout(
        RADEVAL,
        [
            {
                "annotator": "r1", "type": "findings", "ground_truth": "Clear.", "images_path": "x",
                "prediction1": "Mass.", "annotation1": annotation((1, 0, 2, 0, 0, 0, 3), (0,) * 7),
                "prediction2": "Clear.", "annotation2": annotation((0,) * 7, (0,) * 7),
                "prediction3": "Node.", "annotation3": annotation((0, 0, 0, 4, 5, 6, 0), (1,) * 7),
            }
        ],
        {
            "0_1": ("Mass.", "Clear.", {"r1": 6}),
            "0_2": ("Clear.", "Clear.", {"r1": 0}),
            "0_3": ("Node.", "Clear.", {"r1": 15}),
        },
        ("images_path",),
    ),
}  # fmt: skip


def csv_text(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([columns, *rows])
    return text.getvalue()


def write(folder: Path, layout: str, rows: Sequence[Row] | None = None, edit: Callable[[str], str] = str) -> Path:
    """Write the rows (by default the valid ones), with changes to the text of the file."""
    schema = LAYOUTS[layout]
    (folder / REXVAL_REPORTS).write_text(
        csv_text(["", "study_id", "gt_report", "bleu"], [["0", "s", "Clear.", "Mass."]])
    )
    cells = [list(row.values()) for row in (schema.rows if rows is None else rows)]
    (folder / schema.file).write_text(edit(csv_text(list(schema.columns), cells)), newline="")
    return folder / schema.file


def read(layout: str, path: Path) -> RatingSet | PreferenceSet:
    if layout == "preferences":
        return read_preferences(path)
    return read_ratings(path, layout, better="lower" if layout == "plain" else None)  # type: ignore[arg-type]


def contents(ratings: RatingSet | PreferenceSet) -> dict[str, tuple[str, str, Any]]:
    """Candidate, reference and ratings (or preference) by sample id."""
    if isinstance(ratings, PreferenceSet):
        values: list[Any] = [*ratings.expert, *ratings.expert]
    else:
        values = [dict(sample.ratings[ratings.target]) for sample in ratings.samples]
    return {
        pair.sample_id: (str(pair.candidate), str(pair.reference), value)
        for pair, value in zip(ratings.pairs, values, strict=True)
    }


def count_missing(ratings: RatingSet | PreferenceSet) -> int:
    if isinstance(ratings, PreferenceSet):
        return ratings.expert.count(None)
    return sum(math.isnan(value) for *_, values in contents(ratings).values() for value in values.values())


def with_cell(layout: str, column: str, cell: str) -> list[Row]:
    first, *others = LAYOUTS[layout].rows
    return [first | {column: cell}, *others]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    "edit",
    [str, lambda text: f"\ufeff{text}", lambda text: text.replace("\n", "\r\n"), lambda text: f"{text}\n\n"],
    ids=["as written", "BOM", "CRLF", "blank lines"],
)
def test_a_valid_file_is_read_exactly(layout: str, edit: Callable[[str], str], tmp_path: Path) -> None:
    ratings = read(layout, write(tmp_path, layout, edit=edit))
    assert contents(ratings) == LAYOUTS[layout].expected
    assert count_missing(ratings) == 0
    assert isinstance(ratings, PreferenceSet) or not ratings.notes


CELLS = [
    (layout, column, cell) for layout, schema in LAYOUTS.items() for column in schema.columns for cell in MALFORMED
]


@pytest.mark.parametrize(("layout", "column", "cell"), CELLS)
def test_a_malformed_cell_is_an_error_or_a_missing_rating(layout: str, column: str, cell: str, tmp_path: Path) -> None:
    schema = LAYOUTS[layout]
    path = write(tmp_path, layout, with_cell(layout, column, cell))
    outcome = OUTCOMES[schema.columns[column]].get(cell, "error")
    if outcome == "error":
        with pytest.raises(InputError) as error:
            read(layout, path)
        assert (error.value.file, error.value.line, error.value.field) == (path, 2, column)
        return
    ratings = read(layout, path)
    assert count_missing(ratings) == (outcome == "missing")
    if isinstance(ratings, PreferenceSet):
        return
    others = [value for key, value in contents(ratings).items() if key in list(schema.expected)[1:]]
    if column not in ("annotator", "ground_truth", "prediction2", "prediction3", "annotation2", "annotation3"):
        assert others == list(schema.expected.values())[1:]
    if outcome == "skipped":
        assert len(ratings.samples) == len(schema.expected) - 1
    if outcome in ("missing", "skipped"):
        assert any(f":2: {column}" in note or "1 of" in note for note in ratings.notes)


@pytest.mark.parametrize(
    ("layout", "column"), [(name, column) for name, item in LAYOUTS.items() for column in item.columns]
)
def test_a_missing_column_is_an_error_unless_it_is_optional(layout: str, column: str, tmp_path: Path) -> None:
    path = write(tmp_path, layout, edit=lambda text: text.replace(column, "another", 1))
    # `errors:b` is one of several columns of experts.
    if column in LAYOUTS[layout].optional or column.startswith("errors:"):
        read(layout, path)
        return
    with pytest.raises(InputError) as error:
        read(layout, path)
    assert (error.value.code, error.value.file, error.value.line) == (ErrorCode.MISSING_FIELD, path, 1)
    assert error.value.field == (None if column == "expert" else column)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_rows_of_another_length_are_errors(layout: str, tmp_path: Path) -> None:
    for changes in ({}, {"more": "x"}):
        first = dict(LAYOUTS[layout].rows[0])
        if not changes:
            first.popitem()
        path = write(tmp_path, layout, [first | changes, *LAYOUTS[layout].rows[1:]])
        with raises_code(ErrorCode.INVALID_FORMAT, file=path, line=2):
            read(layout, path)


@pytest.mark.parametrize("layout", ["plain", "preferences", "rexval"])
def test_duplicate_rows_are_errors(layout: str, tmp_path: Path) -> None:
    rows = LAYOUTS[layout].rows
    path = write(tmp_path, layout, [rows[0], rows[0], *rows[1:]])
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
    rows = LAYOUTS["rexval"].rows
    ratings = rating_set("rexval", write(tmp_path, "rexval", rows[1:]))
    assert contents(ratings)["0_bleu"][2] == pytest.approx({"0": math.nan, "1": 30}, nan_ok=True)
    assert ratings.samples[0].mean("errors") == 30
    assert [note[:1] for note in ratings.notes] == ["1"] * 3
    listed = [row for row in rows if row["num_errors"] != "0"]
    ratings = rating_set("rexval", write(tmp_path, "rexval", listed))
    assert contents(ratings)["0_bleu"][2] == {"1": 30}
    assert ratings.notes == [f"2 counts are not in {REXVAL_RATINGS}, which lists no count of 0: they are read as 0."]


def test_a_column_of_reports_that_is_no_candidate_is_refused(tmp_path: Path) -> None:
    for name in ("gt_report", "study_id"):
        path = write(tmp_path, "rexval", with_cell("rexval", "candidate_type", name))
        with raises_code(ErrorCode.UNKNOWN_NAME, file=path, line=2, field="candidate_type"):
            read("rexval", path)


@pytest.mark.parametrize("command", ["agreement", "ensemble fit"])
def test_commands_report_missing_ratings(command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    values = [place / 20 for place in range(20)]
    first = rows_of(PLAIN, "0|Clear.|Mass.|nan|1|A", "1|Clear.|Mass.|2||A")
    rows = first + rows_of(PLAIN, *(f"{place}|A.|B.|{place % 7}|{place % 5}|A" for place in range(2, 20)))
    folder = write_scores(tmp_path / "judge", values)
    option = ("--scores", folder) if command == "agreement" else ("--judges", f"a={folder}")
    table, out = write(tmp_path, "plain", rows), tmp_path / "out"
    assert run_meta(*command.split(), table, "--better", "lower", "--bootstrap", "0", *option, "--out", out) == 0
    note = "2 of 40 ratings of 'errors' are missing and excluded."
    assert note in " ".join(capsys.readouterr().out.split())
    assert command != "agreement" or note in html.unescape((out / "agreement.html").read_text())
