"""Findings as records, their matching, verdicts, significance and scores."""

import json
import math
import re
from collections.abc import Sequence
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
import yaml
from error_checks import raises_code
from hypothesis import given
from hypothesis import strategies as st

from radfact import Box, Pair, PatientContext, Sentence, evaluate
from radfact.errors import ErrorCode, Failure
from radfact.findings import Extraction, Finding, OfflineFindingExtractor, Significance
from radfact.findings.comparison import FindingComparison, compare_findings
from radfact.findings.differences import compare_units
from radfact.findings.metric import NO_REFERENCE, Findings, FindingsBase
from radfact.findings.significance import DEFAULT_PATH
from radfact.reader.ontology_file import DEFAULT_PATH as ONTOLOGY
from radfact.records import NO_CONTEXT, Report

RANKINGS = Path(__file__).resolve().parents[2].parent / "shared" / "data" / "radjudge" / "rankings.json"
CASES: dict[str, Any] = yaml.safe_load(Path(__file__).with_name("findings.yaml").read_text("utf-8"))
EXTRACTOR = OfflineFindingExtractor()
SIGNIFICANCE = Significance(EXTRACTOR.ontology)
METRIC = Findings()
REPORTS = st.lists(st.sampled_from(CASES["statements"]), min_size=1, max_size=6, unique=True).map(" ".join)


def extract(report: Any) -> tuple[Finding, ...]:
    (extraction,) = EXTRACTOR.extract([report])
    assert not isinstance(extraction, Failure)
    return extraction


def compare(candidate: Any, reference: Any, context: PatientContext = NO_CONTEXT) -> FindingComparison:
    return compare_findings(extract(candidate), extract(reference), SIGNIFICANCE, context)


def cost(candidate: Any, reference: Any, context: PatientContext = NO_CONTEXT) -> float:
    return compare(candidate, reference, context).error_sum


def score(candidate: Any, reference: Any, context: PatientContext = NO_CONTEXT) -> dict[str, float]:
    result = METRIC.score([Pair("1", candidate, reference, context=context)])
    return {name: column[0] for name, column in result.values.items()}


def test_findings_have_status_place_degree_size_change_character_position_and_sentence() -> None:
    report = (
        "Stable small left pleural effusion. Possible pneumonia in the right upper lobe. No pneumothorax. "
        "Calcified 12 mm nodule in the lingula. Endotracheal tube 4 cm above the carina."
    )
    effusion, pneumonia, pneumothorax, nodule, tube = extract(report)
    assert (effusion.concept, effusion.sides, effusion.degree) == ("pleural_effusion", {"left"}, (1, 2))
    assert "unchanged" in effusion.change
    assert effusion.text == "Stable small left pleural effusion"
    assert (pneumonia.status, pneumonia.places) == ("uncertain", (("right", "upper"),))
    assert (pneumothorax.status, pneumothorax.sentence) == ("absent", 2)
    assert (nodule.concept, nodule.sizes) == ("granuloma", (12.0,))
    assert {"above_carina", "good_position"} == set(tube.position)


def test_findings_of_grounded_reports_have_the_boxes_of_their_sentence() -> None:
    box = Box(x_min=0.1, y_min=0.2, x_max=0.3, y_max=0.4)
    findings = extract([Sentence(text="Effusion with atelectasis.", boxes=(box,)), Sentence(text="No pneumothorax.")])
    assert [(finding.concept, finding.boxes) for finding in findings] == [
        ("pleural_effusion", (box,)),
        ("atelectasis", (box,)),
        ("pneumothorax", None),
    ]


@pytest.mark.parametrize(("report", "expected"), CASES["findings"])
def test_findings_of_reports(report: str, expected: list[str] | None) -> None:
    (extraction,) = EXTRACTOR.extract([report])
    if isinstance(extraction, Failure):
        assert expected is None
    else:
        assert [finding.concept for finding in extraction] == expected
        assert all(finding.is_positive for finding in extraction)


@pytest.mark.parametrize(
    ("candidate", "reference", "expected", "patient"), [(*case, {})[:4] for case in CASES["errors"]]
)
def test_errors(candidate: Any, reference: Any, expected: list[list[str | None]], patient: dict[str, Any]) -> None:
    comparison = compare(candidate, reference, PatientContext(**patient))
    assert [[error.kind, error.attribute, error.tier] for error in comparison.errors] == expected


def test_several_findings_match_one_that_covers_them() -> None:
    (match,) = compare("Left pleural effusion. Right pleural effusion.", "Bilateral pleural effusions.").matches
    assert (match.candidate, match.reference) == ((0, 1), (0,))
    (match,) = compare("Support devices.", "Endotracheal tube. Right PICC.").matches
    assert match.reference == (0, 1)


def test_every_match_and_error_has_a_reason() -> None:
    comparison = compare("Left opacity. Normal heart.", "Right pneumonia. Cardiomegaly. Hiatal hernia.")
    assert [match.reason for match in comparison.matches] == [
        "opacity on the left is more general than pneumonia on the right; different: finding, side."
    ]
    assert [error.reason for error in comparison.errors[2:]] == [
        "The candidate states no cardiomegaly, which contradicts cardiomegaly.",
        "The candidate does not state hiatal hernia.",
    ]


def test_boxes_decide_the_location_where_both_reports_have_them() -> None:
    def report(side: str, *corners: float) -> list[Sentence]:
        names = ("x_min", "y_min", "x_max", "y_max")
        return [Sentence(text=f"{side} effusion.", boxes=(Box(**dict(zip(names, corners, strict=True))),))]

    same, other = (0.1, 0.5, 0.4, 0.9), (0.6, 0.5, 0.9, 0.9)
    test_errors(report("Left", *same), report("Right", *same), [], {})
    for candidate, reference, attribute in (
        (report("Left", *same), report("Left", *other), "region"),
        (report("Moderate left", *same), report("Small left", *same), "degree"),
    ):
        test_errors(candidate, reference, [["attribute_error", attribute, "actionable"]], {})


@pytest.mark.parametrize(("report", "tier", "patient"), [(*case, {})[:3] for case in CASES["tiers"]])
def test_tiers_depend_on_the_finding_and_the_patient(report: str, tier: str, patient: dict[str, Any]) -> None:
    assert SIGNIFICANCE.tier(extract(report)[0], PatientContext(**patient)) == tier


def test_every_finding_of_the_ontology_has_a_tier_of_the_table_or_the_default() -> None:
    tiers = {SIGNIFICANCE.tier(Finding(concept=concept), NO_CONTEXT) for concept in EXTRACTOR.ontology.findings}
    assert tiers == {"urgent", "actionable", "minor", "expected"}


def test_the_formula_of_the_main_score() -> None:
    assert score("No effusion.", "Pneumothorax.")["findings"] == pytest.approx(1 / 2)
    weights = SIGNIFICANCE.weights
    expected = 1 / (1 + weights["urgent"] + SIGNIFICANCE.differences.side * weights["actionable"])
    scored = score("Left effusion.", "Right effusion. Pneumothorax.")
    assert scored["findings"] == pytest.approx(expected)
    assert scored["findings_errors"] == pytest.approx(1 / expected - 1)


@pytest.mark.parametrize(
    ("candidate", "reference", "values"), [*CASES["scores"], ([], [Sentence(text="Pneumothorax.")], [0, None, 0, 0])]
)
def test_normal_and_empty_reports_have_defined_values(candidate: Any, reference: Any, values: list[float]) -> None:
    scored = score(candidate, reference)
    found = [scored[f"findings{name}"] for name in ("", "_precision", "_recall", "_f1")]
    assert [None if math.isnan(value) else value for value in found] == values


def test_an_empty_reference_and_an_unreadable_candidate_have_no_value() -> None:
    result = METRIC.score([Pair("1", "Effusion.", ""), Pair("2", "Lorem ipsum.", "Effusion."), Pair("3", "", "")])
    assert all(math.isnan(value) for column in result.values.values() for value in column)
    assert result.failures[0] == result.failures[2] == NO_REFERENCE
    assert "candidate" in result.failures[1]


def test_recall_of_urgent_findings_is_pooled_over_the_reports_that_have_some() -> None:
    pairs = [
        Pair("1", "Pneumothorax.", "Pneumothorax. Pulmonary edema."),
        Pair("2", "Pneumonia.", "Pneumonia."),
        Pair("3", "Clear lungs.", "Nodule."),
    ]
    scores = evaluate(pairs, ["findings"], bootstrap=0).summaries
    assert scores["findings_urgent_recall"].point == pytest.approx(2 / 3)
    assert scores["findings_urgent_recall"].n == 2


def test_details_can_be_read_as_findings_with_verdicts() -> None:
    (detail,) = METRIC.score([Pair("1", "Left effusion. No nodule.", "Right effusion. Cardiomegaly.")]).details
    read = [Finding.model_validate(row) for row in detail["candidate"]]
    assert [(finding.concept, finding.status) for finding in read] == [
        ("pleural_effusion", "present"),
        ("nodule", "absent"),
    ]
    assert [row["verdict"] for row in detail["candidate"]] == ["attribute_error", None]
    assert [row["verdict"] for row in detail["reference"]] == ["attribute_error", "omitted"]
    assert json.loads(json.dumps(detail))["matches"][0]["attributes"][2]["attribute"] == "side"


@given(REPORTS)
def test_a_report_has_no_error_compared_with_itself(report: str) -> None:
    assert cost(report, report) == 0.0


@given(REPORTS, REPORTS)
def test_scores_are_in_range_and_matching_never_costs_more_than_no_match(candidate: str, reference: str) -> None:
    comparison = compare(candidate, reference)
    apart = cost(candidate, "No fracture.") + cost("No fracture.", reference)
    assert 0.0 <= comparison.error_sum <= apart + 1e-9
    scored = score(candidate, reference)
    for name in ("findings", "findings_precision", "findings_recall", "findings_f1"):
        assert math.isnan(scored[name]) or 0.0 <= scored[name] <= 1.0


@given(REPORTS, REPORTS)
def test_no_matching_of_one_to_one_costs_less(candidate: str, reference: str) -> None:
    comparison = compare(candidate, reference)
    units, others = comparison.units["candidate"][:4], comparison.units["reference"][:4]
    comparison = compare_findings(
        [extract(candidate)[index] for unit in units for index in unit.indices],
        [extract(reference)[index] for unit in others for index in unit.indices],
        SIGNIFICANCE,
        NO_CONTEXT,
    )
    units, others = comparison.units["candidate"], comparison.units["reference"]
    apart = sum(unit.weight for unit in (*units, *others))
    for order in permutations([*range(len(others)), *[None] * len(units)], len(units)):
        total = apart
        for unit, index in zip(units, order, strict=True):
            other = None if index is None else others[index]
            difference = None if other is None else compare_units(unit, other, SIGNIFICANCE, NO_CONTEXT)
            if other is not None and difference is not None:
                total += max(unit.weight, other.weight) * difference.cost - unit.weight - other.weight
        assert comparison.error_sum <= total + 1e-4


@given(REPORTS, REPORTS)
def test_omitting_a_finding_of_the_reference_never_improves_the_score(report: str, added: str) -> None:
    assert cost(report, report) <= cost(report, f"{report} Pneumoperitoneum.")
    assert cost(f"{added} Hiatal hernia.", "Hiatal hernia.") <= cost(added, "Hiatal hernia.")


def significance(old: str, new: str, folder: Path) -> Path:
    """Write the table of significance with a change."""
    text = DEFAULT_PATH.read_text(encoding="utf-8")
    assert old in text
    path = folder / "mine.yaml"
    path.write_text(text.replace(old, new, 1), encoding="utf-8")
    return path


def test_the_table_can_be_replaced(tmp_path: Path) -> None:
    table = significance("  pneumothorax: urgent", "  pneumothorax: minor", tmp_path)
    pairs = [Pair("1", "No effusion.", "Pneumothorax.")]
    result = evaluate(pairs, ["findings"], metric_args={"findings": {"significance": table}}, bootstrap=0)
    assert result.scores["findings"] == pytest.approx(1 / (1 + SIGNIFICANCE.weights["minor"]))


@pytest.mark.parametrize(("old", "new", "code", "field"), CASES["tables"])
def test_an_error_in_the_table_has_its_field(old: str, new: str, code: str, field: str | None, tmp_path: Path) -> None:
    table = significance(old, new, tmp_path)
    with raises_code(ErrorCode(code), file=table, field=field):
        Findings(significance=table)


def test_an_ontology_without_some_findings_of_the_packaged_table_is_accepted(tmp_path: Path) -> None:
    text = ONTOLOGY.read_text(encoding="utf-8")
    (start,) = (match.start() for match in re.finditer(r"(?m)^  gastric_band:", text))
    end = re.compile(r"(?m)^  \w+:").search(text, start + 5)
    assert end is not None
    (tmp_path / "own.yaml").write_text(text[:start] + text[end.start() :], encoding="utf-8")
    metric = Findings(ontology=tmp_path / "own.yaml")
    assert metric.score([Pair("1", "Effusion.", "Effusion.")]).values["findings"] == [1.0]


def test_a_custom_extractor_is_used_and_its_failures_are_counted() -> None:
    class KeywordExtractor:
        name = "keyword"

        def extract(self, reports: Sequence[Report], contexts: Sequence[PatientContext]) -> list[Extraction]:
            found: dict[Any, Extraction] = {"?": Failure("no idea"), "nodule": (Finding(concept="nodule"),)}
            return [found.get(report, ()) for report, _ in zip(reports, contexts, strict=True)]

        def describe(self) -> dict[str, Any]:
            return {"name": self.name}

        def usage(self) -> dict[str, int]:
            return {}

    pairs = [Pair("1", "nodule", "nodule"), Pair("2", "?", "nodule"), Pair("3", "nothing", "nodule")]
    result = evaluate(pairs, [FindingsBase(KeywordExtractor())], bootstrap=0)
    omitted = 1 / (1 + SIGNIFICANCE.weights["actionable"])
    assert list(result.values["findings"]) == pytest.approx([1.0, math.nan, omitted], nan_ok=True)
    assert result.failures[1] == {"findings": "findings of the candidate: no idea"}


@pytest.mark.skipif(not RANKINGS.is_file(), reason="the rankings are not on this machine")
def test_rankings_of_radiologists() -> None:
    """All cases were seen in development."""
    right = total = 0
    for category in json.loads(RANKINGS.read_text(encoding="utf-8")):
        for case in category["tests"]:
            sums = {
                name: cost(candidate["text"], case["ground_truth"], PatientContext.of(candidate.get("context", {})))
                for name, candidate in case["candidates"].items()
            }
            rankings = case["expected_ranking"]
            for ranking in [rankings] if isinstance(rankings, str) else rankings:
                better, sign, worse = ranking.split()
                difference = sums[worse] - sums[better]
                right += difference > 0.02 if sign == ">" else abs(difference) <= 0.02
                total += 1
    assert total == 36
    assert right >= 35
