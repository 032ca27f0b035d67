"""Findings as records, their matching, verdicts, significance and scores."""

import csv
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
from results_folder import page_data

from radfact import Box, Pair, PatientContext, Sentence, evaluate
from radfact.errors import ErrorCode, Failure
from radfact.findings import Extraction, Finding, LLMFindingExtractor, OfflineFindingExtractor, Significance
from radfact.findings.comparison import FindingComparison, compare_findings
from radfact.findings.differences import compare_units
from radfact.findings.metric import NO_REFERENCE, Findings, FindingsBase, FindingsLLM
from radfact.findings.significance import DEFAULT_PATH
from radfact.llm import ChatClient, Message, MockChatModel, mock_client
from radfact.pages.comparison_page import finding_table, write_comparison
from radfact.pages.page import write_page
from radfact.pages.runs import OpenedRun
from radfact.reader.ontology_file import DEFAULT_PATH as ONTOLOGY
from radfact.records import NO_CONTEXT, Report
from radfact.results.compare import compare as compare_runs
from radfact.results.reader import read_outcomes

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


FIELDS = ("side", "zone", "degree", "size_mm", "change", "position")
EMPTY: dict[str, Any] = {
    **{"sentence": 0, "status": "present", "tier": "actionable", "character": []},
    **dict.fromkeys(FIELDS),
}


RESPONSES: dict[str, list[dict[str, Any]]] = CASES["responses"]
STUDIES: dict[str, list[str]] = CASES["studies"]
CANDIDATES = {name: candidate for name, (candidate, _) in STUDIES.items()}


def respond(message: str, conversation: Sequence[Message] = ()) -> str:
    request = next((content for role, content in conversation if role == "user"), message)
    report = " ".join(line.partition(": ")[2] for line in request.split("Report:\n")[-1].splitlines())
    key = next((key for key in RESPONSES if key.replace(".", "") == report.replace(".", "")), None)
    if key is None:
        return "I cannot read this."
    return json.dumps({"findings": [{**EMPTY, **entry} for entry in RESPONSES[key]]})


def extract_by_model(*reports: Report, model: MockChatModel | None = None) -> list[Extraction]:
    extractor = LLMFindingExtractor(mock_client(respond))
    if model is not None:
        extractor.client.backend = model
    return extractor.extract(reports, [NO_CONTEXT] * len(reports))


def only(report: Report) -> Finding:
    (extraction,) = extract_by_model(report)
    assert not isinstance(extraction, Failure), extraction
    return extraction[0]


def test_names_and_attributes_become_those_of_the_ontology() -> None:
    effusion = only("Stable small left effusion.")
    assert (effusion.concept, effusion.places, effusion.degree) == ("pleural_effusion", (("left", None),), (1, 2))
    assert "not_increased" in effusion.change
    assert (effusion.tier, effusion.text) == ("minor", "Stable small left effusion")
    (extraction,) = extract_by_model("Bilateral lower lobe airspace disease. No PTX.")
    assert not isinstance(extraction, Failure)
    disease, pneumothorax = extraction
    assert (disease.concept, disease.places) == ("consolidation", (("left", "lower"), ("right", "lower")))
    assert (pneumothorax.concept, pneumothorax.status, pneumothorax.tier) == ("pneumothorax", "absent", None)
    assert only("ETT too low.").position == ("malpositioned",)
    assert only("15 mm nodule, possibly a mass.").sizes == (15.0,)
    assert only("The effusion has resolved.").status == "absent"
    assert only("Swyer-James syndrome.").concept == "swyer-james syndrome"
    box = Box(x_min=0.1, y_min=0.2, x_max=0.3, y_max=0.4)
    assert only([Sentence(text="Left effusion.", boxes=(box,))]).boxes == (box,)


def test_an_empty_report_is_not_sent() -> None:
    model = MockChatModel(respond)
    assert extract_by_model("", [], model=model) == [(), ()]
    assert model.calls == []


@pytest.mark.parametrize(("report", "reason"), CASES["invalid"])
def test_an_invalid_response_is_a_failure_with_a_reason(report: str, reason: str) -> None:
    (extraction,) = extract_by_model(report)
    assert isinstance(extraction, Failure)
    assert reason in extraction.reason


def test_the_request_has_the_patient_the_sentences_and_the_names_and_an_invalid_field_is_sent_back() -> None:
    invalid = json.dumps({"findings": [{**EMPTY, "finding": "nodule", "side": "middle"}]})
    model = MockChatModel([invalid, respond("Report:\n0: Left effusion.")])
    extractor = LLMFindingExtractor(ChatClient(model, {}))
    (extraction,) = extractor.extract(["Left effusion."], [PatientContext(age=67, indication="Fever.")])
    assert not isinstance(extraction, Failure)
    (_, system), (_, user) = model.calls[0]
    assert user == "Patient: age: 67 years; indication: Fever.\nReport:\n0: Left effusion"
    assert "pleural effusion" in system
    assert "findings[0].side" in model.calls[1][-1][1]


def test_scores_tiers_and_failures() -> None:
    pairs = [
        Pair("side", "Left effusion.", "Right effusion."),
        Pair("same", "Swyer-James syndrome.", "Swyer-James syndrome."),
        Pair("tier", "Stable small left effusion.", "ETT too low."),
        Pair("unclear", "Something else.", "Left effusion."),
    ]
    result = evaluate(pairs, ["findings_llm"], model=mock_client(respond), bootstrap=0)
    scores = [sample.scores["findings_llm"] for sample in result.samples]
    assert scores[:3] == [pytest.approx(1 / (1 + 0.75 * 0.7)), 1.0, pytest.approx(1 / (1 + 1.0 + 0.4))]
    assert math.isnan(scores[3])
    assert "findings of the candidate" in result.failures[3]["findings_llm"]
    # Six distinct reports; the invalid one has two repairs.
    assert result.usage["findings_llm"]["calls"] == 5 + 3
    assert result.usage["findings_llm"]["failures"] == 1
    settings = FindingsLLM(mock_client(respond)).describe()["extractor"]
    assert (settings["model"]["model"], len(settings["prompt_sha256"])) == ("mock:model", 64)


def pairs(candidates: dict[str, str]) -> list[Pair]:
    return [Pair(key, text, STUDIES[key][1]) for key, text in candidates.items()]


def read_csv(path: Path) -> dict[str, dict[str, str]]:
    with path.open(encoding="utf-8") as handle:
        return {row["finding"]: row for row in csv.DictReader(handle)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("findings") / "first"
    evaluate(pairs(CANDIDATES), "findings", bootstrap=0, out=folder)
    return folder


def test_the_table_counts_studies_by_finding_and_verdict_with_the_most_frequent_first(folder: Path) -> None:
    rows = read_csv(folder / "findings.csv")
    counts = {
        finding: {name: int(count) for name, count in row.items() if name not in ("metric", "finding") and count != "0"}
        for finding, row in rows.items()
    }
    assert list(counts.items()) == list(CASES["counts"].items())
    pytest.importorskip("pandas")
    frame = evaluate(pairs(CANDIDATES), "findings", bootstrap=0).to_dataframe("findings")
    assert frame.astype(str).to_dict("records") == list(rows.values())


def test_a_set_without_a_metric_of_findings_has_no_table(tmp_path: Path) -> None:
    evaluate(pairs(CANDIDATES), "bleu_1", bootstrap=0, out=tmp_path)
    assert not (tmp_path / "findings.csv").exists()
    assert 'finding-counts"' not in (tmp_path / "report.html").read_text("utf-8")


def test_page_and_viewer_have_the_findings_of_both_reports_with_links_and_reasons(folder: Path) -> None:
    studies = {study["sample_id"]: study for study in page_data(folder / "report.html")["studies"]}
    side, normal = (studies[name]["findings"]["findings"] for name in ("side", "normal"))
    assert [link["verdict"] for link in side["links"]] == ["attribute_error", "correct"]
    link = side["links"][0]
    assert link["reason"].endswith("different: side.")
    (mention,) = link["candidate"]
    assert (link["attributes"], mention["text"], mention["sentence"]) == (["side"], "pleural effusion on the right", 0)
    assert "no pneumothorax" in normal["others"]["both"]
    # They are not shown twice.
    assert all("details" not in study for study in studies.values())
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
    comparison = compare_runs([folder, tmp_path / "second"], replicates=0, rounds=10)
    assert comparison.findings[0] == []
    effusion = next(contrast for contrast in comparison.findings[1] if contrast.finding == "pleural_effusion")
    # The study of the denied effusion is not in both.
    assert (effusion.support, effusion.baseline_errors, effusion.errors) == (1, 1, 0)
    table = finding_table(comparison, 1)
    assert [row[0] for row in table.rows] == ["pleural effusion", "pneumothorax", "cardiomegaly"]
    assert [row[0] for row in finding_table(comparison, 1, most=1).rows] == ["pleural effusion", "cardiomegaly"]
    write_comparison(comparison, tmp_path)
    columns = ("sample_id", "baseline_verdict", "verdict", "change")
    rows = read_csv(tmp_path / "comparison_findings.csv")
    assert {name: [row[column] for column in columns] for name, row in rows.items()} == CASES["changes"]
    assert "attribute error → correct" in (tmp_path / "comparison.html").read_text("utf-8")
    evaluate(pairs(CANDIDATES), "findings", bootstrap=0, out=tmp_path / "same")
    equal = compare_runs([folder, tmp_path / "same"], replicates=0, rounds=10)
    assert finding_table(equal, 1).rows == []
