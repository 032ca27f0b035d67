"""Findings read by a language model, in a results folder, on its page, and between two systems."""

import csv
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from error_checks import raises_code
from results_folder import page_data

from radfact import Box, Pair, PatientContext, Sentence, evaluate
from radfact.errors import ErrorCode, Failure
from radfact.findings import Extraction, Finding, LLMFindingExtractor
from radfact.findings.metric import FindingsLLM
from radfact.llm import ChatClient, Message, MockChatModel, mock_client
from radfact.pages.comparison_page import finding_table, write_comparison
from radfact.pages.page import write_page
from radfact.pages.runs import OpenedRun
from radfact.records import NO_CONTEXT, Report
from radfact.results.compare import compare
from radfact.results.reader import read_outcomes

FIELDS = ("side", "zone", "degree", "size_mm", "change", "position")
EMPTY: dict[str, Any] = {
    **{"sentence": 0, "status": "present", "tier": "actionable", "character": []},
    **dict.fromkeys(FIELDS),
}


CASES = yaml.safe_load(Path(__file__).with_name("findings.yaml").read_text("utf-8"))
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


def extract(*reports: Report, model: MockChatModel | None = None) -> list[Extraction]:
    extractor = LLMFindingExtractor(mock_client(respond))
    if model is not None:
        extractor.client.backend = model
    return extractor.extract(reports, [NO_CONTEXT] * len(reports))


def only(report: Report) -> Finding:
    (extraction,) = extract(report)
    assert not isinstance(extraction, Failure), extraction
    return extraction[0]


def test_names_and_attributes_become_those_of_the_ontology() -> None:
    effusion = only("Stable small left effusion.")
    assert (effusion.concept, effusion.places, effusion.degree) == ("pleural_effusion", (("left", None),), (1, 2))
    assert "not_increased" in effusion.change
    assert (effusion.tier, effusion.text) == ("minor", "Stable small left effusion")
    (extraction,) = extract("Bilateral lower lobe airspace disease. No PTX.")
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
    assert extract("", [], model=model) == [(), ()]
    assert model.calls == []


@pytest.mark.parametrize(("report", "reason"), CASES["invalid"])
def test_an_invalid_response_is_a_failure_with_a_reason(report: str, reason: str) -> None:
    (extraction,) = extract(report)
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
    comparison = compare([folder, tmp_path / "second"], replicates=0, rounds=10)
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
    equal = compare([folder, tmp_path / "same"], replicates=0, rounds=10)
    assert finding_table(equal, 1).rows == []
