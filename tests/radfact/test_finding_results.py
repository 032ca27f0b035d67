"""Findings in a results folder, on its page, and between two systems."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest
from error_checks import raises_code
from results_folder import page_data

from radfact import Pair, evaluate
from radfact.errors import ErrorCode
from radfact.findings.metric import FindingsLLM
from radfact.llm import mock_client
from radfact.pages.comparison_page import finding_table, write_comparison
from radfact.pages.page import write_page
from radfact.results.compare import compare
from radfact.results.reader import read_outcomes

REFERENCES = {
    "side": "Left effusion. Cardiomegaly.",
    "omitted": "Small left pneumothorax.",
    "denied": "Right effusion.",
    "invented": "The heart is normal.",
    "normal": "No pneumothorax. The lungs are clear.",
}
CANDIDATES = {
    "side": "Right effusion. Cardiomegaly.",
    "omitted": "No effusion.",
    "denied": "No effusion.",
    "invented": "Rib fracture. Cardiomegaly.",
    "normal": "No pneumothorax. The lungs are clear.",
}


def pairs(candidates: dict[str, str]) -> list[Pair]:
    return [Pair(key, text, REFERENCES[key]) for key, text in candidates.items()]


def read_csv(path: Path) -> dict[str, dict[str, str]]:
    with path.open(encoding="utf-8") as handle:
        return {row["finding"]: row for row in csv.DictReader(handle)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("findings") / "first"
    evaluate(pairs(CANDIDATES), "findings", bootstrap=0, out=folder)
    return folder


@pytest.mark.parametrize(
    ("finding", "expected"),
    [
        ("pleural_effusion", {"support": 2, "attribute_error": 1, "side_error": 1, "reference_contradicted": 1}),
        ("cardiomegaly", {"support": 1, "correct": 1, "candidate_contradicted": 1}),
        ("pneumothorax", {"support": 1, "omitted": 1}),
        ("rib_fracture", {"support": 0, "unsupported": 1}),
    ],
)
def test_studies_are_counted_by_finding_and_verdict(folder: Path, finding: str, expected: dict[str, int]) -> None:
    row = read_csv(folder / "findings.csv")[finding]
    counts = {name: int(count) for name, count in row.items() if name not in ("metric", "finding")}
    assert {name: count for name, count in counts.items() if count or name == "support"} == expected


def test_the_table_is_sorted_by_support_and_has_no_absent_findings(folder: Path) -> None:
    rows = read_csv(folder / "findings.csv")
    assert next(iter(rows)) == "pleural_effusion"
    assert list(rows)[-1] == "rib_fracture"
    assert len(rows) == 4


def test_the_data_frame_has_the_rows_of_the_table(folder: Path) -> None:
    pytest.importorskip("pandas")
    frame = evaluate(pairs(CANDIDATES), "findings", bootstrap=0).to_dataframe("findings")
    rows = list(read_csv(folder / "findings.csv").values())
    assert frame.astype(str).to_dict("records") == rows


def test_a_set_without_a_metric_of_findings_has_no_table(tmp_path: Path) -> None:
    evaluate(pairs(CANDIDATES), "bleu_1", bootstrap=0, out=tmp_path)
    assert not (tmp_path / "findings.csv").exists()
    assert 'finding-counts"' not in (tmp_path / "report.html").read_text("utf-8")


def test_the_page_has_the_findings_of_both_reports_with_links_and_reasons(folder: Path) -> None:
    studies = {study["sample_id"]: study for study in page_data(folder / "report.html")["studies"]}
    first, second = studies["side"]["findings"]["findings"]["links"]
    assert (first["verdict"], first["tier"], first["attributes"]) == ("attribute_error", "actionable", ["side"])
    assert [finding["text"] for finding in first["candidate"]] == ["pleural effusion on the right"]
    assert [finding["text"] for finding in first["reference"]] == ["pleural effusion on the left"]
    assert first["reason"].endswith("different: side.")
    assert second["verdict"] == "correct"
    others = studies["normal"]["findings"]["findings"]["others"]
    assert "no pneumothorax" in others["both"]
    # They are not shown twice.
    assert all("details" not in study for study in studies.values())


def test_findings_are_linked_to_the_sentences_on_the_page(tmp_path: Path) -> None:
    from radfact.records import Sentence

    report = [Sentence(text="Clear lungs."), Sentence(text="There is a left effusion."), Sentence(text="Clear.")]
    evaluate([Pair("a", report, report)], "findings", bootstrap=0, out=tmp_path)
    (study,) = page_data(tmp_path / "report.html")["studies"]
    (link,) = study["findings"]["findings"]["links"]
    assert [link[side][0]["sentence"] for side in ("candidate", "reference")] == [1, 1]


def test_the_list_of_the_viewer_has_the_keys_of_the_findings(folder: Path) -> None:
    from radfact.pages.runs import OpenedRun

    findings = OpenedRun("run", folder).studies.findings
    assert findings["pleural_effusion\tactionable\tattribute_error:side"] == {0}
    assert findings["pneumothorax\turgent\tomitted"] == {1}


def test_details_that_do_not_fit_are_named_with_their_line(tmp_path: Path) -> None:
    evaluate(pairs(CANDIDATES), "findings", bootstrap=0, out=tmp_path)
    path = tmp_path / "metrics" / "findings.jsonl"
    rows = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    rows[1]["details"]["errors"][0]["reference"] = [7]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    with raises_code(ErrorCode.INVALID_VALUE, "findings.jsonl:2"):
        write_page(tmp_path)


def test_repeated_queries_of_a_model_leave_samples_without_findings(tmp_path: Path) -> None:
    finding: dict[str, Any] = {
        **{"finding": "nodule", "sentence": 0, "status": "present", "tier": "actionable", "character": []},
        **dict.fromkeys(("side", "zone", "degree", "size_mm", "change", "position")),
    }

    def respond(message: str) -> str:
        return json.dumps({"findings": [finding]}) if "Nodule" in message else "I cannot read this."

    metric = FindingsLLM(mock_client(respond))
    reports = [Pair("read", "Nodule.", "A Nodule."), Pair("unread", "Illegible.", "A Nodule.")]
    result = evaluate(reports, [metric], repeat=2, bootstrap=0, out=tmp_path)
    assert len(result.failures[1]) == 1
    assert read_csv(tmp_path / "findings.csv")["nodule"]["correct"] == "1"
    read, unread = page_data(tmp_path / "report.html")["studies"]
    assert [link["verdict"] for link in read["findings"]["findings_llm"]["links"]] == ["correct"]
    assert "findings" not in unread
    assert [study["details"]["findings_llm"]["failed_repeats"] for study in (read, unread)] == [0, 2]
    assert list(read_outcomes(tmp_path, {"read", "unread"})["findings_llm"]) == ["read"]


def test_two_systems_are_compared_by_finding_on_common_samples(folder: Path, tmp_path: Path) -> None:
    better = {**CANDIDATES, "side": "Left effusion.", "omitted": "Left pneumothorax."}
    del better["denied"]
    evaluate(pairs(better), "findings", bootstrap=0, out=tmp_path / "second")
    comparison = compare([folder, tmp_path / "second"], replicates=0, rounds=10)
    assert comparison.findings[0] == []
    contrasts = {contrast.finding: contrast for contrast in comparison.findings[1]}
    effusion = contrasts["pleural_effusion"]
    assert [(change.sample_id, change.baseline, change.system) for change in effusion.improved] == [
        ("side", "attribute_error", "correct")
    ]
    # The study of the denied effusion is not in both.
    assert (effusion.support, effusion.baseline_errors, effusion.errors) == (1, 1, 0)
    assert [change.sample_id for change in contrasts["cardiomegaly"].worse] == ["side"]
    # The degree is missing, so it is an attribute error; that is better than an omission.
    (change,) = contrasts["pneumothorax"].improved
    assert (change.baseline, change.system) == ("omitted", "attribute_error")
    table = finding_table(comparison, 1)
    assert [row[0] for row in table.rows] == ["pleural effusion", "pneumothorax", "cardiomegaly"]
    assert [row[0] for row in finding_table(comparison, 1, most=1).rows] == ["pleural effusion", "cardiomegaly"]
    write_comparison(comparison, tmp_path)
    with (tmp_path / "comparison_findings.csv").open(encoding="utf-8") as handle:
        rows = list(csv.DictReader(handle))
    assert [(row["finding"], row["sample_id"], row["change"]) for row in rows] == [
        ("pleural_effusion", "side", "improved"),
        ("pneumothorax", "omitted", "improved"),
        ("cardiomegaly", "side", "worse"),
    ]
    assert "attribute error → correct" in (tmp_path / "comparison.html").read_text("utf-8")


def test_equal_systems_have_no_changed_finding(folder: Path, tmp_path: Path) -> None:
    evaluate(pairs(CANDIDATES), "findings", bootstrap=0, out=tmp_path / "same")
    comparison = compare([folder, tmp_path / "same"], replicates=0, rounds=10)
    assert finding_table(comparison, 1).rows == []
