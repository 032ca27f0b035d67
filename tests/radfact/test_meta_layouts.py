"""Readers of published ratings, on files of the documented layouts that the tests write."""

from __future__ import annotations

import json
import math
from itertools import product
from pathlib import Path

import pytest
from meta_run import write_table

from radfact.errors import ErrorCode, InputError
from radfact.meta.agreement.analysis import compare_raters
from radfact.meta.agreement.corrections import line_changes
from radfact.meta.datasets.layouts import REXVAL_RATINGS, REXVAL_REPORTS, parse_annotation, read_ratings
from radfact.meta.datasets.ratings import RatedReport, RatingSet
from radfact.meta.datasets.reports import read_ids

REXVAL_COLUMNS = [
    "study_number",
    "candidate_type",
    "error_category",
    "rater_index",
    "clinically_significant",
    "num_errors",
]


def rexval(folder: Path, ratings: list[list[object]]) -> Path:
    """Columns as public code reads them; texts of our own."""
    reports = [["s1", "No effusion.", "Effusion.", "Clear."], ["s2", "Large heart.", "Heart normal.", "Large heart."]]
    write_table(folder / REXVAL_REPORTS, ["study_id", "gt_report", "radgraph", "bleu"], reports)
    write_table(folder / REXVAL_RATINGS, REXVAL_COLUMNS, ratings)
    return folder


def test_rexval_counts_by_rater_and_significance(tmp_path: Path) -> None:
    errors = {
        (0, "radgraph", 1, 0, True): 1,
        (0, "radgraph", 2, 0, False): 2,
        (0, "radgraph", 6, 1, True): 3,
    }
    raters = [(0, "radgraph", 0), (0, "radgraph", 1), (1, "bleu", 0)]
    cells = [
        (study, method, category, rater, kind)
        for (study, method, rater), category, kind in product(raters, range(1, 7), (True, False))
    ]
    ratings = read_ratings(rexval(tmp_path, [[*cell, errors.get(cell, 0)] for cell in cells]), "rexval")
    first, second = ratings.samples
    assert (first.pair.sample_id, first.pair.candidate, first.pair.reference) == (
        "0_radgraph",
        "Effusion.",
        "No effusion.",
    )
    assert second.pair.reference == "Large heart."
    assert first.ratings["significant"] == {"0": 1.0, "1": 3.0}
    assert first.ratings["errors"] == {"0": 3.0, "1": 3.0}
    assert first.ratings["significant_f"] == {"0": 0.0, "1": 3.0}
    assert ratings.means("errors") == [3.0, 0.0]
    assert (ratings.cluster_by, [sample.pair.cluster for sample in ratings.samples]) == ("study_id", ["0", "1"])
    assert read_ratings(tmp_path, "rexval", cluster="none").clusters is None
    with pytest.raises(InputError) as caught:
        read_ratings(tmp_path, "rexval", cluster="patient_id")
    assert (caught.value.code, caught.value.field) == (ErrorCode.UNKNOWN_NAME, "cluster")
    assert (ratings.target, ratings.group, first.groups) == ("errors", "candidate_type", {"candidate_type": "radgraph"})


@pytest.mark.parametrize(
    ("row", "field"),
    [
        ([2, "bleu", 1, 0, True, 1], "study_number"),
        ([0, "s_emb", 1, 0, True, 1], "candidate_type"),
        ([0, "bleu", 7, 0, True, 1], "error_category"),
    ],
)
def test_rexval_names_the_line_and_the_field(row: list[object], field: str, tmp_path: Path) -> None:
    with pytest.raises(InputError) as error:
        read_ratings(rexval(tmp_path, [row]), "rexval")
    assert (error.value.line, error.value.field) == (2, field)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError) as error:
        read_ratings(tmp_path, "rexval")
    assert error.value.file == tmp_path / REXVAL_REPORTS
    write_table(tmp_path / REXVAL_REPORTS, ["study_id", "gt_report"], [["a", "b"]])
    with pytest.raises(InputError) as error:
        read_ratings(tmp_path, "rexval")
    assert error.value.file == tmp_path / REXVAL_RATINGS


def refisco_v0(tmp_path: Path, rows: list[list[str]]) -> RatingSet:
    """Read rows of id, original, edited, severity, annotator and source."""
    columns = ["id", "indication", "impression_original", "impression_edited", "score", "annotator", "source"]
    path = write_table(tmp_path / "v0.csv", columns, [[row[0], "", *row[1:]] for row in rows])
    return read_ratings(path, "refisco-v0")


def severities(report: RatedReport) -> list[float]:
    return [report.mean(name) for name in ("severity_sum", "severity_max", "problem_lines")]


def test_refisco_v0_has_candidates_corrections_and_severities(tmp_path: Path) -> None:
    rows = [
        ["7", "Lungs are clear.", "[no edit]", "No error", "r1", "X-REM"],
        ["7", "Left effusion.", "Right effusion.", "Urgent error", "r1", "X-REM"],
        ["7", "Compared to prior.", "[delete]", "Not actionable", "r1", "X-REM"],
        ["7", "", "Heart is large.", "2", "r1", "X-REM"],
        ["7", "Lungs are clear.", "[no edit]", "", "r2", "MIMIC-CXR"],
    ]
    first, second = refisco_v0(tmp_path, rows).samples
    assert first.pair.candidate == "Lungs are clear. Left effusion. Compared to prior."
    assert first.pair.reference == "Lungs are clear. Right effusion. Heart is large."
    assert severities(first) == [6, 3, 3]
    assert first.corrections is not None
    assert line_changes(first.corrections) == ["no_change", "rewrite", "delete"]
    assert first.corrections.insertions == ["Heart is large."]
    assert (second.mean("severity_sum"), second.groups) == (0, {"source": "MIMIC-CXR"})


def test_raters_of_one_candidate_with_different_references_are_compared(tmp_path: Path) -> None:
    lines = [("7", "Left effusion."), ("8", "Mass."), ("9", "Clear.")]
    by_rater = {"r1": ["Urgent error", "Not actionable", ""], "r2": ["Emergent error", "Urgent error", ""]}
    rows = [
        [key, line, "Better." if severity else "[no edit]", severity, rater, "X-REM"]
        for rater, rated in by_rater.items()
        for (key, line), severity in zip(lines, rated, strict=True)
    ]
    ratings = refisco_v0(tmp_path, [*rows, [*rows[0][:5], "other"]])
    assert len(ratings.samples) == 7
    results = {(row.quantity, row.first, row.second): row for row in compare_raters(ratings, replicates=0)}
    agreement = results["severity_max", "r1", "r2"]
    assert agreement.kendall.n == 3
    assert agreement.mean_absolute_difference == pytest.approx((1 + 2 + 0) / 3)


def test_severities_of_kept_lines_count_and_rewordings_without_an_error_are_no_corrections(tmp_path: Path) -> None:
    rows = [
        ["7", "Heart normal.", "The heart is normal.", "No error", "r", "s"],
        ["7", "Compared to prior.", "[no edit]", "Not actionable", "r", "s"],
        ["7", "Left effusion.", "Right effusion.", "Urgent error", "r", "s"],
    ]
    (report,) = refisco_v0(tmp_path, rows).samples
    assert severities(report) == [4, 3, 2]
    assert report.corrections is not None
    assert line_changes(report.corrections) == ["no_change", "no_change", "rewrite"]
    assert report.pair.reference == "The heart is normal. Compared to prior. Right effusion."


@pytest.mark.parametrize(
    ("deleted", "kept"), [("[Delete]", "[No Edit]"), ("DELETE", "no edit"), ("deleted", "No edits.")]
)
def test_spellings_of_refisco_marks(deleted: str, kept: str, tmp_path: Path) -> None:
    (report,) = refisco_v0(tmp_path, [["7", "A.", kept, "0", "r", "s"], ["7 ", "B.", deleted, "2", "r ", "s"]]).samples
    assert (report.pair.candidate, report.pair.reference) == ("A. B.", "A.")
    assert report.corrections is not None
    assert line_changes(report.corrections) == ["no_change", "delete"]


def test_refisco_v1_keeps_a_line_without_a_correction(tmp_path: Path) -> None:
    columns = "data_id,subject_id,study_id,report_type,report_text,original_line,corrected_line,error_clinical_severity"
    rows = [
        ["1", "s", "t", "generated", "A. B.", "A.", "", "", "", "x"],
        ["1", "s", "t", "generated", "A. B.", "B.", "[delete]", "Actionable nonurgent error", "why", "x"],
    ]
    path = write_table(tmp_path / "v1.csv", [*columns.split(","), "comments", "annotator_id"], rows)
    (report,) = read_ratings(path, "refisco-v1").samples
    assert (report.pair.candidate, report.pair.reference, report.mean("severity_max")) == ("A. B.", "A.", 2)
    assert report.corrections is not None
    assert report.corrections.items[0].comment == "why"


def test_ids_select_reports(tmp_path: Path) -> None:
    rows = [[study, method, 1, 0, True, 1] for study in (0, 1) for method in ("radgraph", "bleu")]
    ratings = read_ratings(rexval(tmp_path, rows), "rexval")
    (tmp_path / "ids.txt").write_text("1\n\n0_bleu\n")
    selected = ratings.select(read_ids(tmp_path / "ids.txt"))
    assert [sample.pair.sample_id for sample in selected.samples] == ["0_bleu", "1_bleu", "1_radgraph"]
    with pytest.raises(InputError, match="'2'") as error:
        ratings.select(frozenset({"1", "2"}))
    assert error.value.code is ErrorCode.UNKNOWN_NAME
    (tmp_path / "ids.txt").write_text("\n")
    with pytest.raises(InputError) as error:
        read_ids(tmp_path / "ids.txt")
    assert error.value.code is ErrorCode.EMPTY_INPUT


def test_higher_rate_eval_scores_are_better(tmp_path: Path) -> None:
    write_table(
        tmp_path / "rate_test.csv",
        ["gt_report", "similar_report", "Score", "Modality"],
        [["Clear.", "Clear lungs.", "4.5", "CT"], ["Clear.", "Mass.", "0.25", "MRI"], ["A.", "B.", "", "MRI"]],
    )
    ratings = read_ratings(tmp_path, "rate-eval")
    assert ratings.better == {"score": "higher"}
    assert ratings.means("score") == pytest.approx([4.5, 0.25, math.nan], nan_ok=True)
    assert (ratings.samples[0].pair.reference, ratings.group) == ("Clear.", "modality")


RADEVAL = [f"{kind}{n}" for n in (1, 2, 3) for kind in ("prediction", "annotation")]
OBJECT = json.dumps(
    {
        "Clinically Significant": dict.fromkeys("abcdefg", 0) | {"a": 1, "b": 2},
        "Insignificant": dict.fromkeys("abcdefg", 0),
    }
)
LINES = """Clinically Significant Errors:
(a) False prediction of finding: 1
(b) Omission of finding: 0
(c) Incorrect location/position of finding: 0
(d) Incorrect severity: 0
(e) Mention of comparison not present in the reference: 2
(f) Omission of a change from a previous study: 0
(g) Inarticulate report / grammar: 0

Clinically Insignificant Errors:
(a) False prediction of finding: 0.
(b) Omission of finding: 0.
(c) Location: 0.
(d) Severity: 0.
(e) Mention of comparison: 0.
(f) Omitted change: 0.
(g) Inarticulate report / grammar: 1."""


def test_radeval_has_three_candidates_per_row(tmp_path: Path) -> None:
    path = write_table(
        tmp_path / "expert.csv",
        ["annotator", "type", "ground_truth", "images_path", *RADEVAL],
        [["r1", "findings", "Clear.", "x", "Mass.", OBJECT, "Clear.", LINES, "Node.", "one or two"]],
    )
    ratings = read_ratings(path, "radeval")
    assert [sample.pair.sample_id for sample in ratings.samples] == ["0_1", "0_2", "0_3"]
    assert ratings.means("significant")[:2] == [3.0, 3.0]
    assert ratings.means("errors")[:2] == [3.0, 4.0]
    assert {
        value for by_rater in ratings.samples[2].ratings.values() for value in map(math.isnan, by_rater.values())
    } == {True}
    assert len(ratings.notes) == 4
    assert ":2: annotation3" in ratings.notes[3]


@pytest.mark.parametrize(
    "text",
    ["", "none", "{}", '{"significant": {"omission of finding": "some"}}', '{"significant": {"colour": 1}}',
     "Significant:\nomission of finding: 1\nomission of finding: 2", '{"significant": {"omission of finding": 1.5}}'],
)  # fmt: skip
def test_invalid_annotations_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        parse_annotation(text)


def known_counts(text: str) -> dict[str, dict[str, float]]:
    """The counts of an annotation that are not missing."""
    counts = parse_annotation(text)
    return {kind: {letter: n for letter, n in counts[kind].items() if not math.isnan(n)} for kind in counts}


@pytest.mark.parametrize(
    "heading",
    ["Non-significant", "not clinically significant", "Non-clinically significant errors",
     "not clinically-significant", "Errors that are not clinically significant", "insignificant",
     "Errors without significance", "clinically_not_significant", "Of no clinical significance", "aren't significant"],
)  # fmt: skip
def test_headings_of_insignificant_errors(heading: str) -> None:
    text = f"Clinically significant errors:\nomission of finding: 1\n{heading}:\nomission of finding: 3"
    assert known_counts(text) == {"significant": {"b": 1}, "insignificant": {"b": 3}}
    data = {"Errors of clinical significance": {"location": 2}, heading: {"location": 0}}
    assert known_counts(str(data)) == {"significant": {"c": 2}, "insignificant": {"c": 0}}


@pytest.mark.parametrize(
    "heading", ["Significant and insignificant", "Possibly significant", "No significant errors", "not insignificant"]
)
def test_an_ambiguous_heading_above_counts_is_refused(heading: str) -> None:
    text = f"Significant:\nomission of finding: 1\n{heading}:\n"
    assert known_counts(text) == {"significant": {"b": 1}, "insignificant": {}}
    with pytest.raises(ValueError, match="ambiguous"):
        parse_annotation(f"{text}severity: 1")


def test_a_plain_table_may_have_several_quantities(tmp_path: Path) -> None:
    path = write_table(
        tmp_path / "t.csv",
        ["id", "reference", "candidate", "errors:a", "errors:b", "fluency:a", "modality"],
        [["1", "r", "c", "2", "", "5", "CT"], ["2", "r", "c", "0", "1", "4", ""]],
    )
    ratings = read_ratings(path, better="lower")
    assert (ratings.target, ratings.raters("errors"), ratings.means("errors")) == ("errors", ["a", "b"], [2.0, 0.5])
    assert ratings.indices_by_group("modality") == {"all": [0, 1], "CT": [0]}
    only = read_ratings(path, better="lower", experts=["fluency:a"])
    assert list(only.better) == ["fluency"]


PLAIN = ["id", "reference", "candidate"]


@pytest.mark.parametrize(
    ("header", "row", "line", "field", "code"),
    [
        (PLAIN, ["1", "r", "c"], 1, None, ErrorCode.MISSING_FIELD),
        ([*PLAIN, "expert", "expert"], ["1", "r", "c", "1", "2"], 1, "expert", None),
        ([*PLAIN, "expert", "expert_1"], ["1", "r", "c", "1", "2"], 1, None, ErrorCode.DUPLICATE),
        ([*PLAIN, "expert: A", "expert_A"], ["1", "r", "c", "1", "2"], 1, None, ErrorCode.DUPLICATE),
    ],
)
def test_invalid_plain_tables_are_refused(
    header: list[str], row: list[str], line: int, field: str | None, code: ErrorCode | None, tmp_path: Path
) -> None:
    path = write_table(tmp_path / "t.csv", header, [[*row]])
    with pytest.raises(InputError) as error:
        read_ratings(path, better="higher")
    assert (error.value.file, error.value.line, error.value.field) == (path, line, field)
    assert code in (None, error.value.code)


def test_spaces_around_an_id_are_stripped(tmp_path: Path) -> None:
    path = write_table(tmp_path / "t.csv", ["id", "reference", "candidate", "expert"], [["1", "r", "c", "1"]] * 2)
    path.write_text(path.read_text().replace("\n1,", "\n1 ,", 1))
    with pytest.raises(InputError) as error:
        read_ratings(path, better="higher")
    assert (error.value.line, error.value.field, error.value.code) == (3, "id", ErrorCode.DUPLICATE)
