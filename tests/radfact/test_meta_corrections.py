"""FineRadScore compared with radiologists: shares, severities, categories and settings of the paper, by the command."""

import json
import re
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from chat_server import Reply, last
from hypothesis import given
from hypothesis import strategies as st
from meta_run import Serve, run_meta, write_table

from radfact.errors import Failure
from radfact.io.jsonl import read_json, read_jsonl
from radfact.llm import mock_client
from radfact.meta.agreement.corrections import (
    CorrectedReport,
    change_agreement,
    corrected_text_pairs,
    paraphrase,
    shuffle_lines,
)
from radfact.meta.datasets.layouts import REXVAL_RATINGS, REXVAL_REPORTS
from radfact.meta.datasets.ratings import RatedReport
from radfact.metrics.llm.fineradscore import split_lines
from radfact.metrics.llm.responses.corrections import Correction, Corrections
from radfact.records import Pair
from radfact.statistics.rater_agreement import Mean, SeverityErrors, rater_severity_errors, severity_errors

Result = tuple[dict[str, Any], str, list[dict[str, Any]]]
Compare = Callable[..., Result]

V0 = ["id", "indication", "impression_original", "impression_edited", "score", "annotator", "source"]
ROWS = [
    ["7", "", "Lungs are clear", "[no edit]", "No error", "r1", "X-REM"],
    ["7", "", "Left effusion. Small", "Right effusion", "Urgent error", "r1", "X-REM"],
    ["7", "", "Mass", "[delete]", "Not actionable", "r1", "X-REM"],
    ["7", "", "", "Heart is large", "2", "r1", "X-REM"],
    ["7", "", "Lungs are clear", "[no edit]", "No error", "r2", "X-REM"],
    ["7", "", "Left effusion. Small", "[no edit]", "", "r2", "X-REM"],
    ["7", "", "Mass", "[delete]", "Actionable nonurgent error", "r2", "X-REM"],
    ["8", "", "Lungs are clear", "[no edit]", "", "r1", "MIMIC-CXR"],
]


def corrector(request: dict[str, Any], _: int) -> Reply:
    """A model that deletes every mass, and paraphrases lines."""
    text = last(request)
    if text.startswith("Rewrite"):
        return 200, {}, f"In other words: {text.splitlines()[-1]}"
    mass = {"corrections": "[delete]", "clinical severity": "Not actionable", "comments": ""}
    mass["error category"] = ["False prediction of finding"]  # type: ignore[assignment]
    candidate = text.partition("Ground Truth Text:")[0]
    return 200, {}, json.dumps(dict.fromkeys(re.findall(r"\[(\d+)\][^\[]*Mass", candidate), mass))


@pytest.fixture
def compare(tmp_path: Path, serve: Serve) -> Compare:
    """Compare a model with a table, or with rows of ReFiSco; return the record, the page and the requests."""

    def run(rows: list[list[str]] | Path, *more: str, reply: Any = corrector, exit_code: int = 0) -> Result:
        server, out = serve(reply), tmp_path / "out"
        table = write_table(tmp_path / "v0.csv", V0, rows) if isinstance(rows, list) else rows
        model = ("--layout", "refisco-v0", "--judge", "openai:m", "--base-url", server.base_url, "--metrics", "bleu_2")
        print(run_meta("corrections", table, *model, "--out", out, *more, exit_code=exit_code))
        return read_json(out / "corrections.json"), (out / "corrections.html").read_text(), server.requests

    return run


def test_the_tables_of_the_paper(tmp_path: Path, compare: Compare) -> None:
    result, page, requests = compare(ROWS, "--metrics", "bleu,rouge_l")
    # Rows of the table are the lines that are numbered, however they would be divided otherwise.
    assert any("[0] Lungs are clear [1] Left effusion. Small [2] Mass" in last(request) for request in requests)
    assert {change: (share["value"], share["n"]) for change, share in result["changes"]["all"].items()} == {
        "no_change": (1.0, 4),
        "delete": (1.0, 2),
        "rewrite": (0.0, 1),
        "insert": (0.0, 1),
        "no_insert": (1.0, 2),
    }
    assert set(result["changes"]) == {"all", "X-REM", "MIMIC-CXR"}
    # Maximum severities 3, 2 and 0 against 1, 1 and 0; and the two raters of the same candidate, 3 against 2.
    model, others = result["severities"]["model"], result["severities"]["other raters"]
    assert model["mean_absolute"] == pytest.approx(1.0)
    assert model["shares"] == {str(gap): pytest.approx(1 / 3) for gap in (-2, -1, 0)}
    assert (others["mean_absolute"], others["n"]) == (1.0, 1)
    # A metric is one row, and all its scores are in the results folders.
    assert list(result["gains"]) == ["bleu_2", "rouge_l"]
    assert "bleu_4" in read_json(tmp_path / "out/corrected/scores.json")["scores"]
    gain = result["gains"]["bleu_2"]
    assert (gain["corrected"] > gain["base"], gain["n"]) == (True, 3)
    assert result["text_similarity"]["bleu_2"] == {"value": 0.0, "n": 1}
    assert (tmp_path / "out/severities.png").read_bytes().startswith(b"\x89PNG")
    assert "3 of 3 reports, original, corrected by openai:m with the published examples." in page
    assert ("(table 1)" in page, "(tables 2 and 3)" in page) == (True, True)
    items = [row["corrections"] for _, row in read_jsonl(tmp_path / "out/corrections.jsonl")]
    assert [[item["was"] for item in row] for row in items] == [["Mass"], ["Mass"], []]


def test_the_severity_of_a_kept_line_counts(compare: Compare) -> None:
    rows = [
        ["1", "", "Heart is large", "[no edit]", "4", "r1", "X-REM"],
        ["1", "", "Heart is large", "[delete]", "4", "r2", "X-REM"],
        ["2", "", "Mass", "[no edit]", "2", "r1", "X-REM"],
    ]
    result, _, _ = compare(rows)
    # The model has 0, 0 and 1; the raters of the first report both have 4, though only one of them changes it.
    assert result["severities"]["model"]["mean_absolute"] == pytest.approx((4 + 4 + 1) / 3)
    assert result["severities"]["other raters"]["mean_absolute"] == 0.0
    assert result["changes"]["all"]["no_change"]["n"] == 2


@pytest.mark.parametrize(
    ("setting", "table", "candidate", "reference"),
    [
        ("shuffled", 4, "[0] Lungs are clear. [1] Left", "Left effusion. Small. Lungs are clear."),
        (
            *("paraphrased", 7),
            "[0] In other words: Lungs are clear. [1] In other words: Left effusion. Small. [2] In other",
            "Lungs are clear. Left effusion. Small.",
        ),
    ],
)
def test_references_may_be_shuffled_and_candidates_paraphrased(
    setting: str, table: int, candidate: str, reference: str, compare: Compare
) -> None:
    rows = [[*row[:2], f"{row[2]}.", row[3], *row[4:]] for row in ROWS[4:7]]
    result, page, requests = compare(rows, "--setting", setting)
    assert candidate in last(requests[-1])
    assert last(requests[-1]).endswith(f"Ground Truth Text: {reference}")
    assert result["changes"]["all"]["delete"] == {"value": 1.0, "n": 1}
    assert f"(table {table})" in page


def test_categories_compared_with_expert_counts(tmp_path: Path, compare: Compare) -> None:
    reports = [["s", "Clear.", "Clear. Mass."], ["t", "Clear.", "Mass."]]
    write_table(tmp_path / REXVAL_REPORTS, ["study_id", "gt_report", "bleu"], reports)
    columns = ["study_number", "candidate_type", "error_category", "rater_index", "clinically_significant"]
    # One of two raters counts the mass of the first report; both count an omission in the second.
    errors = {(0, 1, 0, True), (1, 2, 0, True), (1, 2, 1, False)}
    rows = [
        [study, "bleu", category, rater, significant, int((study, category, rater, significant) in errors)]
        for study, category, rater, significant in product((0, 1), range(1, 7), (0, 1), (True, False))
    ]
    write_table(tmp_path / REXVAL_RATINGS, [*columns, "num_errors"], rows)
    result, page, requests = compare(tmp_path, "--layout", "rexval", "--examples", "none")
    assert all([message["role"] for message in request["messages"]] == ["user"] for request in requests)
    shares = result["categories"]
    assert shares["a"] == {"precision": {"value": 0.5, "n": 2}, "recall": {"value": 1.0, "n": 1}}
    assert shares["b"]["recall"] == {"value": 0.0, "n": 1}
    assert "appendix D" in page


def test_a_report_without_a_response_is_excluded(compare: Compare, capsys: pytest.CaptureFixture[str]) -> None:
    def reply(request: dict[str, Any], number: int) -> Reply:
        return (200, {}, "I cannot.") if "[1]" not in last(request) else corrector(request, number)

    result, page, _ = compare(ROWS, reply=reply, exit_code=3)
    assert list(result["excluded"]) == ["8_MIMIC-CXR_r1"]
    assert "1 reports excluded" in capsys.readouterr().out
    assert "8_MIMIC-CXR_r1" in page


LINES = ("Nodule.", "Edema.", "Effusion.", "Clear.")
EXPERT = Corrections(
    LINES, (Correction(1, None, 3), Correction(2, "No effusion.", 2), Correction(None, "Fracture.", 2))
)
MODEL = Corrections(LINES, (Correction(1, "No edema.", 3), Correction(2, "No effusion.", 1)))
NOTHING = Corrections(LINES)


def report(expert: Corrections, model: Corrections) -> CorrectedReport:
    pair = Pair("1", "c", "r")
    return CorrectedReport(RatedReport(pair, {}), pair, model, expert)


def test_line_and_report_level_agreement() -> None:
    # Left alone: 2 + 4 lines, all left; deleted: rewritten instead; inserted in one report, and missed there.
    assert change_agreement([report(EXPERT, MODEL), report(NOTHING, NOTHING)]) == {
        "no_change": Mean(1.0, 6),
        "delete": Mean(0.0, 1),
        "rewrite": Mean(1.0, 1),
        "insert": Mean(0.0, 1),
        "no_insert": Mean(1.0, 1),
    }
    reverse = change_agreement([report(NOTHING, EXPERT)])
    assert (reverse["no_change"], reverse["delete"]) == (Mean(0.5, 4), Mean(None, 0))
    # The corrected text is one text per report.
    pairs = corrected_text_pairs([report(EXPERT, MODEL), report(NOTHING, NOTHING)])
    assert pairs == [Pair("0", "No edema. No effusion.", "No effusion. Fracture.")]


def test_severities() -> None:
    assert severity_errors([0, 3, 4, 1], [0, 4, 2, 1]) == SeverityErrors(0.75, {-2: 0.25, 0: 0.5, 1: 0.25}, 4)
    assert severity_errors([], []) is None
    # A random rater is compared with all others: if 4 is chosen of (2, 2, 4), the errors are 2 and 2; else 0 and 2.
    errors = [rater_severity_errors([(2, 2, 4), (3,)], seed=seed) for seed in range(20)]
    assert {error and (error.mean_absolute, error.n) for error in errors} == {(1.0, 2), (2.0, 2)}
    assert rater_severity_errors([(3,)]) is None


@given(st.lists(st.sampled_from(["Edema.", "Nodule.", "Clear lungs."]), max_size=5).map(" ".join), st.integers(0, 9))
def test_a_shuffled_report_has_the_same_lines_in_another_order(report: str, seed: int) -> None:
    shuffled = shuffle_lines(report, seed=seed)
    lines = split_lines(report)
    assert sorted(split_lines(shuffled)) == sorted(lines)
    assert (shuffled != report) == (len(set(lines)) > 1)
    assert shuffle_lines(report, seed=seed) == shuffled


def test_paraphrases() -> None:
    client = mock_client(lambda text: "```\nThe heart is big.\n```" if "Cardiomegaly" in text else "No.")
    assert paraphrase(client, ["Cardiomegaly."]) == ["The heart is big."]
    (refusal,) = paraphrase(mock_client("I'm sorry, but I can't assist with that."), ["Cardiomegaly."])
    assert isinstance(refusal, Failure)
