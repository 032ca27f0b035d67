"""Invariants of entailment: rewriting by wording, cases, and the violations of judges."""

from __future__ import annotations

import csv
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from error_checks import raises_code

from radfact.errors import ErrorCode
from radfact.io.jsonl import write_json, write_jsonl
from radfact.io.pairs import read_reports
from radfact.judges import CallableJudge
from radfact.judges.offline import OfflineJudge
from radfact.meta.robustness import rewriting
from radfact.meta.robustness.invariants import (
    EXPECTATIONS,
    InvariantResult,
    check_invariants,
    make_cases,
    write_invariants_page,
)
from radfact.statistics.proportions import wilson_interval

REPORTS = [
    "There is a 9 mm nodule in the left upper lobe. The heart is enlarged. The lungs are clear.",
    "Small right pleural effusion. No pneumothorax. Fracture of the fifth rib.",
]


@pytest.mark.parametrize(
    ("sentence", "swapped"),
    [
        ("Small Left effusion.", "Small Right effusion."),
        ("LLL opacity.", "RLL opacity."),
        ("Left and right effusions.", None),
        ("Bilateral effusions, more on the left.", None),
        ("The left tube has been left in place.", None),
        ("No left effusion.", None),
        ("The left lung is clear.", None),
        ("Effusion.", None),
    ],
)
def test_sides_are_swapped_where_the_other_side_contradicts(sentence: str, swapped: str | None) -> None:
    assert rewriting.swap_sides(sentence) == swapped


@pytest.mark.parametrize(
    ("sentence", "changed"),
    [
        ("A 9 mm nodule.", "A 21 mm nodule."),
        ("Fracture of the fifth rib.", "Fracture of the eighth rib."),
        ("Fracture of the 3rd rib.", "Fracture of the 6th rib."),
        ("Compression of T10.", "Compression of T7."),
        ("No nodule of 9 mm.", None),
        ("A nodule of less than 9 mm.", None),
        ("Fractures of the third through eighth ribs.", None),
        ("Unchanged since 12/05/2009.", None),
        ("A nodule.", None),
    ],
)
def test_numbers_are_changed_where_another_number_contradicts(sentence: str, changed: str | None) -> None:
    assert rewriting.change_number(sentence) == changed


@pytest.mark.parametrize(
    ("sentence", "negated"),
    [
        ("There is a small effusion.", "There is no small effusion."),
        ("Small effusion.", "No small effusion."),
        ("The heart is enlarged.", "The heart is not enlarged."),
        ("There are no nodules.", "There are nodules."),
        ("No effusion.", "Effusion."),
        ("The heart is not enlarged.", "The heart is enlarged."),
        ("Possible effusion.", None),
        ("No effusion and no nodule.", None),
        ("The lungs are clear except for a nodule.", None),
        ("Stable contours.", None),
        ("Effusion with atelectasis.", None),
    ],
)
def test_a_statement_is_negated_as_a_whole_or_not_at_all(sentence: str, negated: str | None) -> None:
    assert rewriting.negate(sentence) == negated


@pytest.mark.parametrize(
    ("sentence", "phrase"),
    [
        ("There is a small effusion.", "small effusion"),
        ("A nodule is seen in the left lung.", "nodule in the left lung"),
        ("The heart is enlarged.", None),
        ("No small effusion.", None),
        ("Unchanged small effusion.", None),
    ],
)
def test_findings_are_found_in_plain_statements(sentence: str, phrase: str | None) -> None:
    assert rewriting.extract_finding(sentence) == phrase


def test_cases_that_the_rest_of_the_report_entails_are_excluded() -> None:
    def kinds(report: str) -> Counter[str]:
        return Counter(case.kind for case in make_cases([report]))

    assert kinds("Left effusion.")["side swap"] == 1
    assert kinds("Left effusion. Right effusion.")["side swap"] == 0
    assert kinds("Left effusion. Bilateral effusions.")["side swap"] == 0
    assert kinds("A 9 mm nodule. A 21 mm mass.")["number change"] == 1
    assert kinds("Large effusion. No right effusion.")["negation"] == 0
    assert kinds("The lungs are clear. Left nodule.")["negation"] == 1


def test_cases_depend_on_the_seed_and_the_limit_only() -> None:
    reports = REPORTS * 5
    assert make_cases(reports, seed=1) == make_cases(reports, seed=1)
    assert make_cases(reports, seed=1) != make_cases(reports, seed=2)
    limited = Counter(case.kind for case in make_cases(reports, limit=2))
    assert limited == dict.fromkeys(EXPECTATIONS, 2)


def by_kind(judge: Any) -> dict[str, InvariantResult]:
    return {result.kind: result for result in check_invariants(judge, make_cases(REPORTS))}


def test_a_judge_that_entails_all_violates_every_contradiction() -> None:
    results = by_kind(CallableJudge(lambda *_: (True, [0])))
    violated = {kind for kind, result in results.items() if result.violations}
    assert violated == {"side swap", "number change", "negation", "prior", "visibility"}
    assert all(results[kind].rate == 1 for kind in violated)
    example = results["side swap"].examples[0]
    assert (example.verdict, example.hypothesis in example.premises) == ("entailment", False)


def test_a_judge_that_entails_nothing_violates_identity_and_paraphrase() -> None:
    results = by_kind(CallableJudge(lambda *_: False))
    assert {kind for kind, result in results.items() if result.violations} == {"identity", "paraphrase"}


def test_a_judge_that_reads_one_premise_violates_order_and_addition() -> None:
    results = by_kind(CallableJudge(lambda premises, hypothesis: (premises[0] == hypothesis, [0])))
    own = make_cases([f"{REPORTS[0]} {REPORTS[1]}"] * 40)
    counts = {r.kind: r.violations for r in check_invariants(CallableJudge(lambda p, h: (p[0] == h, [0])), own)}
    assert counts["order"] > 0
    assert counts["addition"] > 0
    assert results["identity"].violations > 0


def test_failed_queries_are_counted_apart() -> None:
    def fail(*_: object) -> bool:
        raise ValueError("no idea")

    result = by_kind(CallableJudge(fail))["identity"]
    assert (result.checked, result.violations, result.rate, result.interval) == (0, 0, None, None)
    assert result.failures == 6


def test_the_offline_judge_violates_no_invariant_of_plain_reports() -> None:
    assert {kind: result.violations for kind, result in by_kind(OfflineJudge()).items() if result.violations} == {}


@pytest.mark.parametrize(
    ("part", "whole", "low", "high"), [(0, 10, 0.0, 0.2775), (10, 10, 0.7225, 1.0), (5, 10, 0.2366, 0.7634)]
)
def test_the_wilson_interval_is_that_of_scipy(part: int, whole: int, low: float, high: float) -> None:
    # From scipy.stats.binomtest(part, whole).proportion_ci(method="wilson").
    assert wilson_interval(part, whole) == pytest.approx((low, high), abs=1e-4)
    assert wilson_interval(0, 0) is None


def write_layouts(folder: Path) -> dict[str, Path]:
    text = "Small left effusion."
    grounded = [{"text": text, "boxes": None}]
    files = {name: folder / name for name in ("drafts.jsonl", "manifest.jsonl", "pairs.json", "sentences.txt")}
    write_jsonl(files["drafts.jsonl"], [{"sample_id": "1", "report": text}, {"sample_id": "2", "report": grounded}])
    write_jsonl(files["manifest.jsonl"], [{"sample_id": "1", "findings": text}, {"sample_id": "2", "findings": None}])
    write_json(files["pairs.json"], [{"example_id": "1", "prediction": grounded, "target": []}])
    files["sentences.txt"].write_text(f"{text}\n\nHeart.\n", encoding="utf-8")
    for name, header, row in (
        ("table.csv", ("id", "report"), ("1", text)),
        ("pairs.csv", ("example_id", "prediction", "target"), ("1", text, "")),
    ):
        files[name] = folder / name
        with files[name].open("w", encoding="utf-8", newline="") as handle:
            csv.writer(handle).writerows([header, row])
    return files


@pytest.mark.parametrize(
    ("name", "keys"),
    [
        ("drafts.jsonl", ["1", "2"]),
        ("manifest.jsonl", ["1"]),
        ("pairs.json", ["1/candidate", "1/reference"]),
        ("pairs.csv", ["1/candidate", "1/reference"]),
        ("table.csv", ["1"]),
        ("sentences.txt", ["1", "3"]),
    ],
)
def test_reports_are_read_from_every_layout(tmp_path: Path, name: str, keys: list[str]) -> None:
    path = write_layouts(tmp_path)[name]
    reports = read_reports(path)
    assert list(reports) == keys
    assert make_cases(list(reports.values()))[0].query.premises == ("Small left effusion.",) or name == "sentences.txt"


def test_a_table_without_ids_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("report\nHeart.\n", encoding="utf-8")
    with raises_code(ErrorCode.MISSING_FIELD, field="id"):
        read_reports(tmp_path / "a.csv")


def test_the_page_shows_numbers_and_examples(tmp_path: Path) -> None:
    results = list(by_kind(CallableJudge(lambda *_: (True, [0]))).values())
    write_invariants_page(tmp_path / "check.html", "all", results)
    page = (tmp_path / "check.html").read_text("utf-8")
    assert "side swap" in page
    assert "9 mm nodule in the right upper lobe" in page


def test_reports_without_sentences_are_refused() -> None:
    with raises_code(ErrorCode.EMPTY_INPUT):
        make_cases(["", []])
