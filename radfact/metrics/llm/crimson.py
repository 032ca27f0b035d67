"""CRIMSON: a language model lists findings and errors, which are weighted by clinical significance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from radfact.errors import ErrorCode, InputError
from radfact.llm import ChatClient, ChatRequest, PromptPrefix
from radfact.llm.response_text import parse_json
from radfact.metrics.llm.llm_metric import LLMMetric, fill_prompt, load_prompt
from radfact.metrics.llm.responses.finding_errors import (
    ATTRIBUTES,
    FindingErrors,
    ReportFinding,
    Severity,
    Significance,
)
from radfact.metrics.protocol import MetricResult, Score
from radfact.records import NO_CONTEXT, PatientContext, TextPair

SIGNIFICANCE_WEIGHTS: Mapping[Significance, float] = {
    "urgent": 1.0,
    "actionable_not_urgent": 0.5,
    "not_actionable_not_urgent": 0.25,
    "benign_expected": 0.0,
}
"""Weight of a finding by its clinical significance. Source: the authors' code of CRIMSON."""

SEVERITY_WEIGHTS: Mapping[Severity, float] = {"significant": 0.5, "negligible": 0.0}
"""Weight of an attribute error by its severity. Source: the authors' code of CRIMSON."""


def crimson_prompt(
    candidate: str, reference: str, context: PatientContext = NO_CONTEXT, *, guidelines: bool = True
) -> str:
    """Return the published prompt for two reports, with the doubled braces that the authors' code sends."""
    values = {"Age": _age(context), "Indication": context.indication}
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


def _age(context: PatientContext) -> str | None:
    """Return an age as in the authors' examples ("82"). The format of an age below one year is ours."""
    if context.age is None:
        return None
    return f"{context.age:g}" if context.age >= 1 else f"{context.age * 12:.2g} months"


def crimson_score(response: FindingErrors) -> float:
    """Compute the score, in (-1, 1], from the findings and errors of a pair.

    Source: the authors' code of CRIMSON, which rounds to four decimal places; the formula is in `docs/metrics.md`.
    """
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
    source = "CRIMSON (rajpurkarlab/CRIMSON)"
    parameters: Mapping[str, Any] = {"temperature": 0, "max_tokens": 8192}

    def __init__(self, client: ChatClient, *, guidelines: bool = True, context: bool = True) -> None:
        for name, value in (("guidelines", guidelines), ("context", context)):
            if not isinstance(value, bool):
                raise InputError(f"expected true or false, found {value!r}", code=ErrorCode.INVALID_OPTION, field=name)
        super().__init__(client)
        self.guidelines, self.context = guidelines, context
        self._prefix = PromptPrefix([("system", load_prompt("crimson_system"))])

    def request(
        self, candidate: str, reference: str, context: PatientContext = NO_CONTEXT
    ) -> ChatRequest[FindingErrors]:
        content = crimson_prompt(candidate, reference, context, guidelines=self.guidelines)
        return ChatRequest(
            (("user", content),),
            partial(parse_json, model=FindingErrors),
            prefix=self._prefix,
            schema=FindingErrors.model_json_schema(),
            schema_required=False,
        )

    def pair_request(self, pair: TextPair) -> ChatRequest[FindingErrors]:
        return self.request(pair.candidate, pair.reference, self._context_of(pair))

    def _context_of(self, pair: TextPair) -> PatientContext:
        return pair.context if self.context else NO_CONTEXT

    def score(self, pairs: Sequence[TextPair]) -> MetricResult:
        contexts = map(self._context_of, pairs)
        with_context = sum(context.age is not None or context.indication is not None for context in contexts)
        return replace(super().score(pairs), counts={"crimson_with_context": with_context})

    def compute_scores(self, response: FindingErrors) -> Mapping[str, float]:
        errors = response.errors
        return {
            "crimson": crimson_score(response),
            "crimson_false_findings": len(errors.false_findings),
            "crimson_missing_findings": len(errors.missing_findings),
            "crimson_attribute_errors": len(errors.attribute_errors),
            **{
                f"crimson_{name}_errors": sum(name in error.error_types for error in errors.attribute_errors)
                for name in ATTRIBUTES
            },
        }
