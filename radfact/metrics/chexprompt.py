"""CheXprompt (G-Rad): errors of a report, counted by a language model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from radfact.error_categories import ERROR_CATEGORIES
from radfact.llm import ChatRequest, PromptPrefix, structured_request
from radfact.metrics.llm_metric import LLMMetric, load_prompt
from radfact.metrics.protocol import Score
from radfact.metrics.responses.assessment import parse_errors, parse_sections
from radfact.metrics.responses.counts import MAX_COUNT

_Count = Annotated[int, Field(ge=0, le=MAX_COUNT)]


class CategoryCounts(BaseModel):
    """Number of errors of each category in `ERROR_CATEGORIES`."""

    model_config = ConfigDict(extra="forbid")

    a: _Count
    b: _Count
    c: _Count
    d: _Count
    e: _Count
    f: _Count


class ErrorCounts(BaseModel):
    """Number of errors of a candidate by significance and category, in the JSON of the prompt."""

    model_config = ConfigDict(extra="forbid", populate_by_name=True)

    significant: CategoryCounts = Field(alias="significant errors")
    insignificant: CategoryCounts = Field(alias="insignificant errors")


class CheXprompt(LLMMetric[ErrorCounts]):
    """Errors of a report in six categories by significance, counted by a language model with OUR prompt.

    No paper prints CheXprompt's prompt, so these scores compare among themselves and not with published ones.
    `chexprompt_errors` and `chexprompt_significant` are numbers of errors; `chexprompt_error_free` and
    `chexprompt_significant_error_free` are 100 or 0 per report, so that the mean is a percentage.

    Source: MAIRA-2, table D.1, for the scores.
    """

    name = "chexprompt"
    display_name = "CheXprompt"
    measures = "errors per report, and the fraction of reports without errors"
    scores: Mapping[str, Score] = {
        "chexprompt_errors": Score("lower", "number of errors"),
        "chexprompt_significant": Score("lower", "number of significant errors"),
        "chexprompt_error_free": Score("higher", "percentage of reports without errors"),
        "chexprompt_significant_error_free": Score("higher", "percentage of reports without significant errors"),
    }
    main_scores = ("chexprompt_errors",)
    cost = "a response"
    source = "MAIRA-2, appendix D.1; our prompt"
    parameters: Mapping[str, Any] = {"temperature": 0, "max_tokens": 1024}

    def request(self, candidate: str, reference: str) -> ChatRequest[ErrorCounts]:
        """Build the instructions as the system message, and the two reports as the user's. See `LLMMetric`."""
        content = f"Reference report:\n{reference}\n\nCandidate report:\n{candidate}"
        return structured_request(
            (("user", content),),
            ErrorCounts,
            lambda counts: counts,
            parse_error_counts,
            prefix=PromptPrefix([("system", load_prompt("chexprompt"))]),
        )

    def compute_scores(self, response: ErrorCounts) -> Mapping[str, float]:
        """Compute numbers of errors, and whether there are none."""
        counts = response.model_dump()
        significant = sum(counts["significant"].values())
        errors = significant + sum(counts["insignificant"].values())
        return {
            "chexprompt_errors": errors,
            "chexprompt_significant": significant,
            "chexprompt_error_free": 0.0 if errors else 100.0,
            "chexprompt_significant_error_free": 0.0 if significant else 100.0,
        }

    def record(self, response: ErrorCounts) -> Mapping[str, Any]:
        """Return the counts by letter."""
        return response.model_dump()


def parse_error_counts(text: str) -> ErrorCounts:
    """Parse a response of a model that does not follow the JSON schema: other JSON, or GREEN's notation.

    Raises:
        ValueError: a count is missing or invalid.
    """
    sections = parse_sections(text)
    # In text, the next section shows that a section is not cut off; JSON must have all the keys of the prompt.
    is_json = not all(isinstance(body, str) for body in sections.get("significant", ()))
    errors = {
        "significant": parse_errors(sections, "significant", complete=is_json),
        "insignificant": parse_errors(sections, "insignificant", complete=True),
    }
    return ErrorCounts.model_validate(
        {kind: dict(zip(ERROR_CATEGORIES, errors[kind].counts, strict=True)) for kind in errors}
    )
