"""Parser of CRIMSON's response format: findings of two reports, their matches and errors in JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError, WithJsonSchema

from radfact.llm.response_text import bodies
from radfact.records import as_input_error

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
    reference_findings: list[ReportFinding]
    predicted_findings: list[ReportFinding]
    matched_findings: list[Match]
    errors: Errors


def parse_finding_errors(text: str) -> FindingErrors:
    """Parse a response and check that its lists are consistent, as the prompt requires.

    Reasoning text, code fences and text around the JSON object are accepted. The parser of the authors' code also
    repairs invalid JSON, treats missing lists as empty, gives unknown significance the weight 0.25 and unknown ids the
    weight 0, and does not compare the lists. Here, all of these are errors.

    Source: the authors' prompt and code of CRIMSON.
    """
    *_, body = bodies(text)
    start, end = body.find("{"), body.rfind("}")
    if start < 0:
        raise ValueError("expected a JSON object, found none")
    try:
        data = json.loads(body[start : end + 1], object_pairs_hook=_unique_keys)
        response = FindingErrors.model_validate(data)
    except json.JSONDecodeError as error:
        raise ValueError(f"expected one JSON object: {error}") from None
    except RecursionError:
        raise ValueError("expected the format in the instructions, found JSON that is nested too deeply") from None
    except ValidationError as error:
        first = as_input_error(error, kind=FindingErrors)
        raise ValueError(f"{first.field or 'the object'}: {first.message}") from None
    _check_lists(response)
    return response


def _unique_keys(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        raise ValueError("expected unique keys, found a duplicate key in an object")
    return values


def _check_lists(response: FindingErrors) -> None:
    matches = {(match.ref_id, match.pred_id) for match in response.matched_findings}
    sides = (
        ("reference_findings", {ref_id for ref_id, _ in matches}, "missing_findings"),
        ("predicted_findings", {pred_id for _, pred_id in matches}, "false_findings"),
    )
    for name, matched, other in sides:
        ids = [finding.id for finding in getattr(response, name)]
        if len(set(ids)) < len(ids):
            raise ValueError(f"expected unique ids in {name}, found a duplicate id")
        unmatched = getattr(response.errors, other)
        for finding in dict.fromkeys((*ids, *matched, *unmatched)):
            if finding not in ids:
                raise ValueError(f"{finding} is not an id of {name}")
            if (finding in matched) + unmatched.count(finding) != 1:
                raise ValueError(f"{finding} must be either in matched_findings or once in {other}")
    for error in response.errors.attribute_errors:
        if (error.ref_id, error.pred_id) not in matches:
            raise ValueError(f"attribute_errors has {error.ref_id} and {error.pred_id}, which are not matched")
