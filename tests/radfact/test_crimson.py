"""CRIMSON: the published prompt, scores by the published formula, and responses that are refused."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
from chat_server import ChatServer, Reply
from hypothesis import given
from hypothesis import strategies as st

from radfact import evaluate
from radfact.errors import InputError
from radfact.llm import ChatClient, MockChatModel, load_chat_client, mock_client
from radfact.llm.response_text import parse_json
from radfact.metrics.llm.crimson import SEVERITY_WEIGHTS, SIGNIFICANCE_WEIGHTS, Crimson, crimson_prompt, crimson_score
from radfact.metrics.llm.responses.finding_errors import ATTRIBUTES, FindingErrors
from radfact.records import NO_CONTEXT, Pair, PatientContext, TextPair

URGENT, ACTIONABLE, MINOR, BENIGN = SIGNIFICANCE_WEIGHTS
AttributeErrors = Mapping[tuple[str, str], Sequence[str]]


def response(
    reference: Sequence[str],
    predicted: Sequence[str],
    matches: Sequence[tuple[str, str]] = (),
    attribute_errors: AttributeErrors | None = None,
) -> dict[str, Any]:
    """Return a valid response.

    Args:
        reference: significance of R1, R2, ...
        predicted: significance of P1, P2, ...
        matches: pairs of ids; all other findings are missing or false.
        attribute_errors: severities of the errors of a match.
    """
    findings = {
        name: [
            {"id": f"{letter}{number}", "finding": "a finding", "clinical_significance": significance}
            for number, significance in enumerate(levels, start=1)
        ]
        for name, letter, levels in (("reference_findings", "R", reference), ("predicted_findings", "P", predicted))
    }
    matched = {finding for match in matches for finding in match}
    unmatched = {
        name: [finding["id"] for finding in findings[side] if finding["id"] not in matched]
        for name, side in (("false_findings", "predicted_findings"), ("missing_findings", "reference_findings"))
    }
    details = {"error_types": ["location"], "explanation": "left, right"}
    errors = [
        {"ref_id": ref, "pred_id": pred, "severity": severity, **details}
        for (ref, pred), severities in (attribute_errors or {}).items()
        for severity in severities
    ]
    return {
        **findings,
        "matched_findings": [{"ref_id": ref, "pred_id": pred} for ref, pred in matches],
        "errors": {**unmatched, "attribute_errors": errors},
    }


ONE = (("R1", "P1"),)
WRONG_SIDE = {("R1", "P1"): ["significant"]}
# Computed by hand from the published formula. The first two are also in the tests of RadEval, which has the metric.
EXAMPLES: dict[str, tuple[dict[str, Any], float]] = {
    "the same finding": (response([ACTIONABLE], [ACTIONABLE], ONE), 1.0),
    "another finding, urgent": (response([ACTIONABLE], [URGENT]), -0.5),
    "normal and normal": (response([], []), 1.0),
    "all omitted": (response([URGENT, ACTIONABLE, MINOR], []), 0.0),
    "benign findings omitted": (response([BENIGN, BENIGN], []), 1.0),
    "benign findings invented": (response([], [BENIGN]), 1.0),
    "only false findings": (response([], [URGENT, ACTIONABLE]), -1.5 / 2.5),
    "only false findings, benign reference": (response([BENIGN], [MINOR]), -0.25 / 1.25),
    "one of two omitted": (response([URGENT, MINOR], [URGENT], ONE), 1 / 1.25),
    "as many false as correct": (response([ACTIONABLE, URGENT], [ACTIONABLE, ACTIONABLE], ONE), 0.0),
    "more false than correct": (response([ACTIONABLE], [ACTIONABLE, URGENT], ONE), -0.5 / 1.5),
    "a false finding": (response([URGENT], [URGENT, MINOR], ONE), 0.75),
    "a negligible attribute error": (response([URGENT], [URGENT], ONE, {("R1", "P1"): ["negligible"]}), 1.0),
    "a significant attribute error, urgent": (response([URGENT], [URGENT], ONE, WRONG_SIDE), 1 / 1.5),
    "a significant attribute error, minor": (response([MINOR], [MINOR], ONE, WRONG_SIDE), 0.25 / 0.75),
    "two significant attribute errors": (
        response([ACTIONABLE], [ACTIONABLE], ONE, {("R1", "P1"): ["significant", "significant"]}),
        0.5 / 1.5,
    ),
    "an attribute error of a benign finding": (response([BENIGN, URGENT], [BENIGN], ONE, WRONG_SIDE), 0.0),
    # A reference finding counts once, with the errors of both its matches.
    "two predicted findings for one": (
        response([ACTIONABLE], [MINOR, MINOR], (*ONE, ("R1", "P2")), {**WRONG_SIDE, ("R1", "P2"): ["significant"]}),
        0.5 / 1.5,
    ),
    "the weight of a match is the reference's": (response([MINOR, URGENT], [URGENT], ONE), 0.25 / 1.25),
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_scores_follow_the_published_formula(name: str) -> None:
    body, score = EXAMPLES[name]
    assert crimson_score(parse_json(json.dumps(body), FindingErrors)) == pytest.approx(score)


def test_scores_and_counts_come_from_one_response() -> None:
    body = response([URGENT, MINOR], [URGENT, MINOR, MINOR], ONE, {("R1", "P1"): ["significant", "negligible"]})
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
    """Draw a valid response."""
    levels = st.lists(st.sampled_from(list(SIGNIFICANCE_WEIGHTS)), max_size=5)
    reference, predicted = draw(levels), draw(levels)
    ids = [(f"R{i + 1}", f"P{j + 1}") for i in range(len(reference)) for j in range(len(predicted))]
    matches = draw(st.lists(st.sampled_from(ids), unique=True)) if ids else []
    severities = st.lists(st.sampled_from(list(SEVERITY_WEIGHTS)), max_size=3)
    return response(reference, predicted, matches, {match: draw(severities) for match in matches})


@given(responses())
def test_scores_are_between_minus_1_and_1_and_errors_never_raise_them(body: dict[str, Any]) -> None:
    score = crimson_score(FindingErrors.model_validate(body))
    assert -1 < score <= 1
    errors = body["errors"]
    if not (errors["false_findings"] or errors["missing_findings"] or errors["attribute_errors"]):
        assert score == pytest.approx(1)
    body["predicted_findings"].append({"id": "P9", "finding": "a mass", "clinical_significance": URGENT})
    errors["false_findings"].append("P9")
    assert crimson_score(FindingErrors.model_validate(body)) < score
    errors["false_findings"].pop()
    body["predicted_findings"].pop()
    errors["attribute_errors"] += [
        {**match, "severity": "significant", "error_types": ["location"], "explanation": ""}
        for match in body["matched_findings"]
    ]
    assert crimson_score(FindingErrors.model_validate(body)) <= score


# SHA-256 of `build_prompt` of crimson-score 0.2.0 for the same texts, with and without guidelines and context.
PROMPTS = {
    (True, False): "d5b5e212dc4684bb4655fad67280c54023195cf75514c3e2cd369b932b3be7c8",
    (True, True): "3bd340f3fb57aaad077bd83acc9f265368e6e1912638d035ec2b7177f0d681d5",
    (False, False): "cf74a64d57713d781f9007a9f8736600a72e127f627c1e6adc5af42208993624",
    (False, True): "7a7991196f77861a6c7cbe2ed764ec4c5dfcbe711e628d0de5bb05c4a7bfb325",
}


@pytest.mark.parametrize(("guidelines", "has_context"), PROMPTS)
def test_the_prompt_is_the_published_one(guidelines: bool, has_context: bool) -> None:
    context = PatientContext(82, "Known heart failure.") if has_context else NO_CONTEXT
    prompt = crimson_prompt("A candidate.", "A {context}\nreference.", context, guidelines=guidelines)
    assert hashlib.sha256(prompt.encode()).hexdigest() == PROMPTS[guidelines, has_context]


RIGHT = json.dumps(response([URGENT, MINOR], [URGENT, MINOR], ONE, WRONG_SIDE))


@pytest.mark.parametrize(
    "text",
    [
        RIGHT,
        f"```json\n{RIGHT}\n```",
        f"Here is my evaluation:\n```\n{RIGHT}\n```\nI hope that it helps.",
        f"<think>R1 matches P1 {{</think>{RIGHT}",
        json.dumps({**json.loads(RIGHT), "comment": "Fair."}, indent=4),
    ],
)
def test_responses_may_have_marks_around_them(text: str) -> None:
    assert parse_json(text, FindingErrors).model_dump() == json.loads(RIGHT)


def changed(path: str, value: Any) -> str:
    """Return a response with another value at a path such as "errors.false_findings"; None removes it."""
    body = json.loads(RIGHT)
    *above, name = path.split(".")
    place = body
    for step in above:
        place = place[int(step)] if isinstance(place, list) else place[step]
    if value is None:
        del place[name]
    else:
        place[name] = value
    return json.dumps(body)


MATCH = {"ref_id": "R1", "pred_id": "P1"}
INVALID = {
    "nothing": ("", "none"),
    "a refusal": ("I'm sorry, I can't help with that.", "none"),
    "reasoning alone": (f"<think>{RIGHT}", "none"),
    "cut off": (RIGHT[:-40], "expected one JSON object"),
    "two objects": (f"{RIGHT}\n{RIGHT}", "expected one JSON object"),
    "a key twice": (RIGHT.replace('"errors": {', '"errors": {}, "errors": {'), "duplicate key"),
    "deep lists": ('{"errors": ' + "[" * 100_000 + "]" * 100_000 + "}", "nested too deeply"),
    "no errors": (changed("errors", None), "errors"),
    "no matches": (changed("matched_findings", None), "matched_findings"),
    "no significance": (changed("reference_findings.0.clinical_significance", None), "clinical_significance"),
    "an unknown level": (changed("reference_findings.0.clinical_significance", "severe"), "urgent"),
    "the layout of the prompt": (changed("errors.attribute_errors.0.severity", "significant|negligible"), "severity"),
    "an id twice": (changed("reference_findings.1.id", "R1"), "duplicate id"),
    "an unknown false finding": (changed("errors.false_findings", ["P2", "P7"]), "found P7"),
    "an unknown match": (changed("matched_findings", [MATCH, {"ref_id": "R1", "pred_id": "P3"}]), "found P3"),
    "false and matched": (changed("errors.false_findings", ["P1", "P2"]), "expected P1 either"),
    "missing and matched": (changed("errors.missing_findings", ["R1", "R2"]), "expected R1 either"),
    "neither false nor matched": (changed("errors.false_findings", []), "expected P2 either"),
    "neither missing nor matched": (changed("errors.missing_findings", []), "expected R2 either"),
    "false twice": (changed("errors.false_findings", ["P2", "P2"]), "expected P2 either"),
    "an attribute of no match": (changed("errors.attribute_errors.0.pred_id", "P2"), "R1 and P2"),
}


@pytest.mark.parametrize("kind", INVALID)
def test_other_responses_are_refused_with_the_reason(kind: str) -> None:
    text, reason = INVALID[kind]
    with pytest.raises(ValueError, match=reason):
        parse_json(text, FindingErrors)


def test_an_invalid_response_is_sent_back_and_has_no_score_if_it_stays_invalid() -> None:
    model = MockChatModel([INVALID["neither false nor matched"][0], RIGHT])
    repaired = Crimson(ChatClient(model, {})).score([TextPair("1", "A candidate.", "A reference.")])
    assert repaired.usage["repairs"] == 1
    assert "expected P2 either in matched_findings or once in false_findings" in model.calls[1][-1][1]
    failed = Crimson(mock_client(INVALID["no errors"][0])).score([TextPair("1", "A candidate.", "A reference.")])
    assert all(math.isnan(values[0]) for values in failed.values.values())
    assert "errors" in failed.failures[0]
    assert failed.usage["failures"] == 1


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


@pytest.mark.parametrize(
    ("context", "lines"),
    [
        (PatientContext(82, "Known heart failure."), "Age: 82\n    Indication: Known heart failure."),
        (PatientContext(0.5), "Age: 6 months"),
        (PatientContext(indication="Cough.", comparison="Yesterday."), "Indication: Cough."),
        (PatientContext(comparison="Yesterday."), ""),
        (NO_CONTEXT, ""),
    ],
)
def test_age_and_indication_of_the_patient_are_part_of_the_prompt(context: PatientContext, lines: str) -> None:
    assert sent_context(context) == lines
    assert sent_context(context, guidelines=False) == lines


def test_the_context_can_be_left_out() -> None:
    assert sent_context(PatientContext(82), context=False) == ""


def test_arguments_are_true_or_false() -> None:
    with pytest.raises(InputError, match=r"metric_args.crimson.guidelines: expected true or false, found 'some'"):
        evaluate(
            [Pair("1", "A.", "B.")],
            ["crimson"],
            model=mock_client(RIGHT),
            metric_args={"crimson": {"guidelines": "some"}},
        )
