"""Findings read by a language model: requests, responses, failures and scores, with a scripted model."""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from radfact import Box, Pair, PatientContext, Sentence, evaluate
from radfact.errors import Failure
from radfact.findings import Extraction, Finding, LLMFindingExtractor
from radfact.findings.metric import FindingsLLM
from radfact.llm import ChatClient, Message, MockChatModel, mock_client
from radfact.records import NO_CONTEXT, Report

FIELDS = ("side", "zone", "degree", "size_mm", "change", "position")
EMPTY: dict[str, Any] = {
    **{"sentence": 0, "status": "present", "tier": "actionable", "character": []},
    **dict.fromkeys(FIELDS),
}


CASES = yaml.safe_load(Path(__file__).with_name("findings.yaml").read_text("utf-8"))
RESPONSES: dict[str, list[dict[str, Any]]] = CASES["responses"]


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


@pytest.mark.parametrize(
    ("report", "reason"),
    [
        ("Something else.", "expected a JSON object"),
        ("Wrong sentence.", "expected 0 to 0, found 3"),
        ("Nothing.", "expected at least one finding"),
    ],
)
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
