"""CRIMSON: the published prompt, scores by the published formula, and responses that are refused."""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from chat_server import ChatServer, Reply
from hypothesis import given
from hypothesis import strategies as st

from radfact import evaluate
from radfact.errors import InputError
from radfact.llm import ChatClient, MockChatModel, load_chat_client, mock_client
from radfact.metrics.llm.crimson import SEVERITY_WEIGHTS, SIGNIFICANCE_WEIGHTS, Crimson, crimson_prompt, crimson_score
from radfact.metrics.llm.responses.finding_errors import ATTRIBUTES, FindingErrors
from radfact.records import NO_CONTEXT, Pair, PatientContext, TextPair

LEVELS = dict(zip(("urgent", "actionable", "minor", "benign"), SIGNIFICANCE_WEIGHTS, strict=True))
CASES: dict[str, Any] = yaml.safe_load(Path(__file__).with_name("crimson.yaml").read_text("utf-8"))


def answer(reference: Sequence[str], candidate: Sequence[str], matches: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """Return a valid answer from levels and matches, as in `crimson.yaml`; other findings are missing or false."""
    findings = [
        [
            {"id": f"{letter}{number}", "finding": "a finding", "clinical_significance": LEVELS[level]}
            for number, level in enumerate(levels, start=1)
        ]
        for letter, levels in (("R", reference), ("P", candidate))
    ]
    matched = " ".join(matches).split()
    missing, false = ([item["id"] for item in side if item["id"] not in matched] for side in findings)
    pairs = {ids: dict(zip(("ref_id", "pred_id"), ids.split(), strict=True)) for ids in matches}
    details = {"error_types": ["location"], "explanation": "left, right"}
    errors = [{**pairs[ids], "severity": severity, **details} for ids in matches for severity in matches[ids]]
    return {
        "reference_findings": findings[0],
        "predicted_findings": findings[1],
        "matched_findings": list(pairs.values()),
        "errors": {"false_findings": false, "missing_findings": missing, "attribute_errors": errors},
    }


@pytest.mark.parametrize("name", CASES["scores"])
def test_scores_follow_the_published_formula(name: str) -> None:
    example = dict(CASES["scores"][name])
    score = example.pop("score")
    assert crimson_score(FindingErrors.model_validate(answer(**example))) == pytest.approx(score, abs=1e-6)


def test_scores_and_counts_come_from_one_response() -> None:
    body = answer(["urgent", "minor"], ["urgent", "minor", "minor"], {"R1 P1": ["significant", "negligible"]})
    body["errors"]["attribute_errors"][1]["error_types"] = ["severity", "measurement", "uncertainty"]
    result = Crimson(mock_client(json.dumps(body))).score([TextPair("1", "A candidate.", "A reference.")])
    assert {name: values[0] for name, values in result.values.items() if values[0]} == {
        "crimson": pytest.approx((1 / 1.5 - 0.5) / 1.25),
        "crimson_false_findings": 2,
        "crimson_missing_findings": 1,
        "crimson_attribute_errors": 2,
        "crimson_location_errors": 1,
        "crimson_severity_errors": 1,
        "crimson_measurement_errors": 1,
    }
    assert list(result.values) == list(Crimson.scores)
    assert result.details == [body]


@st.composite
def responses(draw: st.DrawFn) -> dict[str, Any]:
    """Draw a valid answer."""
    levels = st.lists(st.sampled_from(list(LEVELS)), max_size=5)
    reference, candidate = draw(levels), draw(levels)
    ids = [f"R{i + 1} P{j + 1}" for i in range(len(reference)) for j in range(len(candidate))]
    matches = draw(st.lists(st.sampled_from(ids), unique=True)) if ids else []
    severities = st.lists(st.sampled_from(list(SEVERITY_WEIGHTS)), max_size=3)
    return answer(reference, candidate, {match: draw(severities) for match in matches})


@given(responses())
def test_scores_are_between_minus_1_and_1_and_errors_never_raise_them(body: dict[str, Any]) -> None:
    score = crimson_score(FindingErrors.model_validate(body))
    assert -1 < score <= 1
    errors = body["errors"]
    if not (errors["false_findings"] or errors["missing_findings"] or errors["attribute_errors"]):
        assert score == pytest.approx(1)
    body["predicted_findings"].append({"id": "P9", "finding": "a mass", "clinical_significance": "urgent"})
    errors["false_findings"].append("P9")
    assert crimson_score(FindingErrors.model_validate(body)) < score
    errors["false_findings"].pop()
    body["predicted_findings"].pop()
    errors["attribute_errors"] += [
        {**match, "severity": "significant", "error_types": ["location"], "explanation": ""}
        for match in body["matched_findings"]
    ]
    assert crimson_score(FindingErrors.model_validate(body)) <= score


@pytest.mark.parametrize(("guidelines", "has_context", "digest"), CASES["prompts"])
def test_the_prompt_is_the_published_one(guidelines: bool, has_context: bool, digest: str) -> None:
    context = PatientContext(82, "Known heart failure.") if has_context else NO_CONTEXT
    prompt = crimson_prompt("A candidate.", "A {context}\nreference.", context, guidelines=guidelines)
    assert hashlib.sha256(prompt.encode()).hexdigest() == digest


RIGHT = json.dumps(answer(["urgent", "minor"], ["urgent", "minor"], {"R1 P1": ["significant"]}))


def test_an_invalid_response_is_sent_back() -> None:
    invalid = RIGHT.replace('"false_findings": ["P2"]', '"false_findings": []')
    model = MockChatModel([invalid, RIGHT])
    repaired = Crimson(ChatClient(model, {})).score([TextPair("1", "A candidate.", "A reference.")])
    assert repaired.usage["repairs"] == 1
    assert "expected P2 either in matched_findings or once in false_findings" in model.calls[1][-1][1]


def test_servers_are_asked_for_the_format_and_may_refuse_schemas(serve: Callable[..., ChatServer]) -> None:
    def reply(body: dict[str, Any], _: int) -> Reply:
        return (400, {}, "no schemas") if "response_format" in body else (200, {}, RIGHT)

    server = serve(reply)
    client = load_chat_client("openai:m", base_url=server.base_url, parameters=Crimson.parameters)
    result = Crimson(client).score([TextPair("1", "A candidate.", "A reference.")])
    assert result.values["crimson_false_findings"] == [1]
    body = server.requests[0]
    assert (body["temperature"], body["max_tokens"]) == (0, 8192)
    assert body["messages"][0] == {
        "role": "system",
        "content": "You are an expert radiology evaluator that assesses the accuracy of radiology reports.",
    }
    schema = body["response_format"]["json_schema"]["schema"]
    objects = [schema, *schema["$defs"].values()]
    # As OpenAI's strict mode requires.
    assert all(item["additionalProperties"] is False for item in objects)
    assert all(item["required"] == list(item["properties"]) for item in objects)
    assert schema["$defs"]["AttributeDifference"]["properties"]["error_types"]["items"]["enum"] == list(ATTRIBUTES)


def sent_context(context: PatientContext, /, **arguments: bool) -> str:
    """Return the lines on the patient in the prompt for a pair."""
    model = MockChatModel(RIGHT)
    pairs = [Pair("1", "A candidate.", "A reference.", context=context)]
    result = evaluate(pairs, ["crimson"], model=ChatClient(model, {}), metric_args={"crimson": arguments}, bootstrap=0)
    prompt = model.calls[0][-1][1]
    before, _, _ = prompt.partition("Reference Findings (Ground Truth):\n")
    lines = before.partition("Patient Context:\n")[2].strip()
    assert ("Context guidelines:" in prompt) == (bool(lines) and arguments.get("guidelines", True))
    assert result.counts["crimson_with_context"] == bool(lines)
    return lines


@pytest.mark.parametrize(("patient", "lines"), CASES["contexts"])
def test_age_and_indication_of_the_patient_are_part_of_the_prompt(patient: dict[str, Any], lines: str) -> None:
    context = PatientContext(**patient)
    assert sent_context(context) == lines
    assert sent_context(context, guidelines=False) == lines
    assert sent_context(context, context=False) == ""


def test_arguments_are_true_or_false() -> None:
    with pytest.raises(InputError, match=r"metric_args.crimson.guidelines: expected true or false, found 'some'"):
        sent_context(NO_CONTEXT, guidelines="some")  # type: ignore[arg-type]
