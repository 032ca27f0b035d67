"""CRIMSON: a language model lists findings and errors, which are weighted by clinical significance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Annotated, Any, Literal

from pydantic import WithJsonSchema, model_validator

from radfact.errors import option_error
from radfact.llm import ChatClient, ChatRequest, PromptPrefix
from radfact.llm.response_text import parse_json
from radfact.metrics.llm.llm_metric import LLMMetric, ResponsePart, fill_prompt, load_prompt
from radfact.metrics.protocol import MetricResult, Score
from radfact.records import NO_CONTEXT, PatientContext, TextPair

ATTRIBUTES = (
    "location",
    "severity",
    "descriptor",
    "measurement",
    "certainty",
    "unspecific",
    "overinterpretation",
    "temporal",
)
"""Types of attribute errors, in the order of the prompt."""

Significance = Literal["urgent", "actionable_not_urgent", "not_actionable_not_urgent", "benign_expected"]
Severity = Literal["significant", "negligible"]

# The score does not depend on the type, so an unknown type does not invalidate the response.
_ErrorType = Annotated[str, WithJsonSchema({"type": "string", "enum": list(ATTRIBUTES)})]

SIGNIFICANCE_WEIGHTS: Mapping[Significance, float] = {
    "urgent": 1.0,
    "actionable_not_urgent": 0.5,
    "not_actionable_not_urgent": 0.25,
    "benign_expected": 0.0,
}
"""Weight of a finding by its clinical significance. Source: the authors' code of CRIMSON."""

SEVERITY_WEIGHTS: Mapping[Severity, float] = {"significant": 0.5, "negligible": 0.0}
"""Weight of an attribute error by its severity. Source: the authors' code of CRIMSON."""


class ReportFinding(ResponsePart):
    id: str
    finding: str
    clinical_significance: Significance


class Match(ResponsePart):
    ref_id: str
    pred_id: str


class AttributeDifference(Match):
    severity: Severity
    error_types: list[_ErrorType]
    explanation: str


class Errors(ResponsePart):
    """Ids of unmatched findings, and the attribute errors of matched ones."""

    false_findings: list[str]
    missing_findings: list[str]
    attribute_errors: list[AttributeDifference]


class FindingErrors(ResponsePart):
    """Response whose lists are consistent, as the prompt requires; the authors' parser accepts others."""

    reference_findings: list[ReportFinding]
    predicted_findings: list[ReportFinding]
    matched_findings: list[Match]
    errors: Errors

    @model_validator(mode="after")
    def _check_lists(self) -> FindingErrors:
        matches = {(match.ref_id, match.pred_id) for match in self.matched_findings}
        sides = (("reference_findings", "missing_findings"), ("predicted_findings", "false_findings"))
        for place, (name, other) in enumerate(sides):
            matched = {match[place] for match in matches}
            ids = [finding.id for finding in getattr(self, name)]
            if len(set(ids)) < len(ids):
                raise ValueError(f"expected unique ids in {name}, found a duplicate id")
            unmatched = getattr(self.errors, other)
            for finding in dict.fromkeys((*ids, *matched, *unmatched)):
                if finding not in ids:
                    raise ValueError(f"expected an id of {name}, found {finding}")
                if (finding in matched) + unmatched.count(finding) != 1:
                    raise ValueError(f"expected {finding} either in matched_findings or once in {other}")
        for error in self.errors.attribute_errors:
            if (error.ref_id, error.pred_id) not in matches:
                found = f"{error.ref_id} and {error.pred_id}"
                raise ValueError(f"expected matched findings in attribute_errors, found {found}")
        return self


def crimson_prompt(
    candidate: str, reference: str, context: PatientContext = NO_CONTEXT, *, guidelines: bool = True
) -> str:
    """Return the published prompt for two reports, with the doubled braces that the authors' code sends."""
    age = None if context.age is None else f"{context.age:g}"
    if context.age is not None and context.age < 1:
        age = f"{context.age * 12:.2g} months"  # this format is ours; the authors' examples are of adults
    values = {"Age": age, "Indication": context.indication}
    lines = "".join(f"    {name}: {value}\n" for name, value in values.items() if value)
    return fill_prompt(
        load_prompt("crimson"),
        context=f"Patient Context:\n{lines}\n\n" if lines else "",
        reference=reference,
        candidate=candidate,
        significance_examples=f"{load_prompt('crimson_significance')}\n\n" if guidelines else "",
        attribute_guidelines=f"{load_prompt('crimson_attributes')}\n\n" if guidelines else "",
        context_guidelines=f"{load_prompt('crimson_context')}\n\n" if guidelines and lines else "",
    )


def crimson_score(response: FindingErrors) -> float:
    """Compute the score, in (-1, 1], as the authors' code of CRIMSON, which rounds it; see `docs/metrics.md`."""
    weights = _weights(response.reference_findings)
    predicted = _weights(response.predicted_findings)
    attribute_errors = dict.fromkeys(weights, 0.0)
    for error in response.errors.attribute_errors:
        attribute_errors[error.ref_id] += SEVERITY_WEIGHTS[error.severity]
    correct = sum(
        weights[ref_id] ** 2 / (weights[ref_id] + attribute_errors[ref_id])
        for ref_id in dict.fromkeys(match.ref_id for match in response.matched_findings)
        if weights[ref_id]
    )
    false = sum(predicted[pred_id] for pred_id in response.errors.false_findings)
    if false > correct:
        return -(false - correct) / (1 + false - correct)
    total = sum(weights.values())
    return (correct - false) / total if total else 1.0


def _weights(findings: Sequence[ReportFinding]) -> dict[str, float]:
    return {finding.id: SIGNIFICANCE_WEIGHTS[finding.clinical_significance] for finding in findings}


class Crimson(LLMMetric[FindingErrors]):
    """CRIMSON with the published prompt, weights and formula, and the number of errors of each type.

    The age and indication of the patient are part of the prompt if a pair has them. The authors' code requests any JSON
    object; here the request has a JSON schema. See `FindingErrors` for invalid responses, and `docs/metrics.md`.
    """

    name = "crimson"
    measures = "abnormal findings and their errors, weighted by clinical significance"
    scores: Mapping[str, Score] = {
        "crimson": Score("higher", "weighted findings and errors", "-1 to 1"),
        "crimson_false_findings": Score("lower", "number of false findings", "findings"),
        "crimson_missing_findings": Score("lower", "number of missing findings", "findings"),
        "crimson_attribute_errors": Score("lower", "number of attribute errors", "errors"),
        **{
            f"crimson_{name}_errors": Score("lower", f"number of attribute errors, {name}", "errors")
            for name in ATTRIBUTES
        },
    }
    cost = "a response of up to 8,192 tokens"
    for_chest_xrays = True
    source = "CRIMSON (rajpurkarlab/CRIMSON)"
    parameters: Mapping[str, Any] = {"temperature": 0, "max_tokens": 8192}

    def __init__(self, client: ChatClient, *, guidelines: bool = True, context: bool = True) -> None:
        for name, value in (("guidelines", guidelines), ("context", context)):
            if not isinstance(value, bool):
                raise option_error(f"expected true or false, found {value!r}", name)
        super().__init__(client)
        self.guidelines, self.context = guidelines, context
        self._prefix = PromptPrefix([("system", load_prompt("crimson_system"))])

    def request(self, pair: TextPair) -> ChatRequest[FindingErrors]:
        context = pair.context if self.context else NO_CONTEXT
        content = crimson_prompt(pair.candidate, pair.reference, context, guidelines=self.guidelines)
        parse, schema = partial(parse_json, model=FindingErrors), FindingErrors.model_json_schema()
        return ChatRequest((("user", content),), parse, self._prefix, schema, schema_required=False)

    def score(self, pairs: Sequence[TextPair]) -> MetricResult:
        known = sum(pair.context.age is not None or pair.context.indication is not None for pair in pairs)
        return replace(super().score(pairs), counts={"crimson_with_context": known if self.context else 0})

    def compute_scores(self, response: FindingErrors) -> Mapping[str, float]:
        errors = response.errors
        counts = (len(errors.false_findings), len(errors.missing_findings), len(errors.attribute_errors))
        by_type = (sum(name in error.error_types for error in errors.attribute_errors) for name in ATTRIBUTES)
        return dict(zip(self.scores, (crimson_score(response), *counts, *by_type), strict=True))
