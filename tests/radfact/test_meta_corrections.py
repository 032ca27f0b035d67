"""FineRadScore compared with radiologists: the tables of its paper by the command."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from chat_server import ChatServer, Reply, last
from meta_run import run_meta, write_table

from radfact.io.jsonl import read_json, read_jsonl
from radfact.meta.datasets.layouts import REXVAL_RATINGS, REXVAL_REPORTS

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


def entry(text: str, severity: str, *categories: str) -> dict[str, Any]:
    return {"corrections": text, "clinical severity": severity, "comments": "", "error category": list(categories)}


def corrector(request: dict[str, Any], _: int) -> Reply:
    """A model that deletes every mass, and paraphrases lines."""
    text = last(request)
    if text.startswith("Rewrite"):
        return 200, {}, f"In other words: {text.splitlines()[-1]}"
    candidate = text.partition("Ground Truth Text:")[0]
    masses = re.findall(r"\[(\d+)\][^\[]*Mass", candidate)
    entries = {line: entry("[delete]", "Not actionable", "False prediction of finding") for line in masses}
    return 200, {}, json.dumps(entries)


def corrections(server: ChatServer, table: Path, out: Path, *more: object) -> int:
    model = ("--judge", "openai:m", "--base-url", server.base_url, "--metrics", "bleu_2", "--out", out)
    return run_meta("corrections", table, *model, *more)


def test_the_tables_of_the_paper(tmp_path: Path, serve: Callable[..., ChatServer]) -> None:
    server, out = serve(corrector), tmp_path / "out"
    table = write_table(tmp_path / "v0.csv", V0, ROWS)
    assert corrections(server, table, out, "--layout", "refisco-v0", "--metrics", "bleu,rouge_l") == 0
    # Rows of the table are the lines that are numbered, however they would be divided otherwise.
    assert any("[0] Lungs are clear [1] Left effusion. Small [2] Mass" in last(request) for request in server.requests)
    result = read_json(out / "corrections.json")
    changes = result["changes"]["all"]
    assert {change: (share["value"], share["n"]) for change, share in changes.items()} == {
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
    assert "bleu_4" in read_json(out / "corrected/scores.json")["scores"]
    gain = result["gains"]["bleu_2"]
    assert gain["corrected"] > gain["base"]
    assert gain["n"] == 3
    assert result["text_similarity"]["bleu_2"] == {"value": 0.0, "n": 1}
    assert (out / "severities.png").read_bytes().startswith(b"\x89PNG")
    page = (out / "corrections.html").read_text()
    assert "3 of 3 reports, original, corrected by openai:m with the published examples." in page
    assert "(table 1)" in page
    assert "(tables 2 and 3)" in page
    items = [row["corrections"] for _, row in read_jsonl(out / "corrections.jsonl")]
    assert [[item["was"] for item in row] for row in items] == [["Mass"], ["Mass"], []]


def test_the_severity_of_a_kept_line_counts(tmp_path: Path, serve: Callable[..., ChatServer]) -> None:
    rows = [
        ["1", "", "Heart is large", "[no edit]", "4", "r1", "X-REM"],
        ["1", "", "Heart is large", "[delete]", "4", "r2", "X-REM"],
        ["2", "", "Mass", "[no edit]", "2", "r1", "X-REM"],
    ]
    table, out = write_table(tmp_path / "v0.csv", V0, rows), tmp_path / "out"
    assert corrections(serve(corrector), table, out, "--layout", "refisco-v0") == 0
    result = read_json(out / "corrections.json")
    # The model has 0, 0 and 1; the raters of the first report both have 4, though only one of them changes it.
    assert result["severities"]["model"]["mean_absolute"] == pytest.approx((4 + 4 + 1) / 3)
    assert result["severities"]["other raters"]["mean_absolute"] == 0.0
    assert result["changes"]["all"]["no_change"]["n"] == 2


def test_shuffled_references_and_paraphrased_candidates(tmp_path: Path, serve: Callable[..., ChatServer]) -> None:
    server = serve(corrector)
    table = write_table(tmp_path / "v0.csv", V0, [[*row[:2], f"{row[2]}.", row[3], *row[4:]] for row in ROWS[4:7]])
    command = (server, table)
    assert corrections(*command, tmp_path / "s", "--layout", "refisco-v0", "--setting", "shuffled") == 0
    assert last(server.requests[-1]).endswith("Ground Truth Text: Left effusion. Small. Lungs are clear.")
    assert "(table 4)" in (tmp_path / "s/corrections.html").read_text()
    assert corrections(*command, tmp_path / "p", "--layout", "refisco-v0", "--setting", "paraphrased") == 0
    query = last(server.requests[-1])
    assert "[0] In other words: Lungs are clear. [1] In other words: Left effusion. Small. [2] In other" in query
    assert query.endswith("Ground Truth Text: Lungs are clear. Left effusion. Small.")
    assert read_json(tmp_path / "p/corrections.json")["changes"]["all"]["delete"] == {"value": 1.0, "n": 1}
    assert "(table 7)" in (tmp_path / "p/corrections.html").read_text()


def test_categories_compared_with_expert_counts(tmp_path: Path, serve: Callable[..., ChatServer]) -> None:
    reports = [["s", "Clear.", "Clear. Mass."], ["t", "Clear.", "Mass."]]
    write_table(tmp_path / REXVAL_REPORTS, ["study_id", "gt_report", "bleu"], reports)
    columns = [
        "study_number",
        "candidate_type",
        "error_category",
        "rater_index",
        "clinically_significant",
        "num_errors",
    ]
    # One of two raters counts the mass of the first report; both count an omission in the second.
    errors = {(0, 1, 0, True), (1, 2, 0, True), (1, 2, 1, False)}
    rows = [
        [study, "bleu", category, rater, significant, int((study, category, rater, significant) in errors)]
        for study, category, rater, significant in product((0, 1), range(1, 7), (0, 1), (True, False))
    ]
    write_table(tmp_path / REXVAL_RATINGS, columns, rows)
    server, out = serve(corrector), tmp_path / "out"
    assert corrections(server, tmp_path, out, "--layout", "rexval", "--examples", "none") == 0
    assert all([message["role"] for message in request["messages"]] == ["user"] for request in server.requests)
    result = read_json(out / "corrections.json")["categories"]
    assert result["a"] == {"precision": {"value": 0.5, "n": 2}, "recall": {"value": 1.0, "n": 1}}
    assert result["b"]["recall"] == {"value": 0.0, "n": 1}
    assert "appendix D" in (out / "corrections.html").read_text()


def test_a_report_without_a_response_is_excluded(
    tmp_path: Path, serve: Callable[..., ChatServer], capsys: pytest.CaptureFixture[str]
) -> None:
    def reply(request: dict[str, Any], number: int) -> Reply:
        return (200, {}, "I cannot.") if "[1]" not in last(request) else corrector(request, number)

    table, out = write_table(tmp_path / "v0.csv", V0, ROWS), tmp_path / "out"
    assert corrections(serve(reply), table, out, "--layout", "refisco-v0") == 3
    assert "1 reports excluded" in capsys.readouterr().out
    assert list(read_json(out / "corrections.json")["excluded"]) == ["8_MIMIC-CXR_r1"]
