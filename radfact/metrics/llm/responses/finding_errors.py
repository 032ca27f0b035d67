"""CRIMSON's response format: findings of two reports, their matches and errors in JSON."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, WithJsonSchema, model_validator

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


class _Part(BaseModel):
    """Part of a response. Unknown fields are ignored, although the schema sent to the server forbids them."""

    model_config = ConfigDict(json_schema_extra={"additionalProperties": False})


class ReportFinding(_Part):
    id: str
    finding: str
    clinical_significance: Significance


class Match(_Part):
    ref_id: str
    pred_id: str


class AttributeDifference(Match):
    severity: Severity
    error_types: list[_ErrorType]
    explanation: str


class Errors(_Part):
    """Ids of unmatched findings, and the attribute errors of matched ones."""

    false_findings: list[str]
    missing_findings: list[str]
    attribute_errors: list[AttributeDifference]


class FindingErrors(_Part):
    """Response whose lists are consistent, as the prompt requires; the authors' parser accepts others."""

    reference_findings: list[ReportFinding]
    predicted_findings: list[ReportFinding]
    matched_findings: list[Match]
    errors: Errors

    @model_validator(mode="after")
    def _check_lists(self) -> FindingErrors:
        matches = {(match.ref_id, match.pred_id) for match in self.matched_findings}
        sides = (
            ("reference_findings", {ref_id for ref_id, _ in matches}, "missing_findings"),
            ("predicted_findings", {pred_id for _, pred_id in matches}, "false_findings"),
        )
        for name, matched, other in sides:
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
                raise ValueError(
                    f"expected matched findings in attribute_errors, found {error.ref_id} and {error.pred_id}"
                )
        return self
