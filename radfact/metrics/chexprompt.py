"""CheXprompt (G-Rad): errors of a report, counted by a language model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from radfact.error_categories import ERROR_CATEGORIES
from radfact.llm import ChatRequest, PromptPrefix
from radfact.metrics.llm_metric import LLMMetric, load_prompt
from radfact.metrics.responses.assessment import CategoryErrors, parse_errors, parse_sections
from radfact.statistics.bootstrap import Direction


@dataclass(frozen=True, slots=True)
class ErrorCounts:
    """Errors of a candidate by significance."""

    significant: CategoryErrors
    insignificant: CategoryErrors


class CheXprompt(LLMMetric[ErrorCounts]):
    """Errors of a report in six categories by significance, counted by a language model with OUR prompt.

    No paper prints CheXprompt's prompt, so these scores compare among themselves and not with published ones.
    `chexprompt_errors` and `chexprompt_significant` are numbers of errors; `chexprompt_error_free` and
    `chexprompt_significant_error_free` are 100 or 0 per report, so that the mean is a percentage.

    Source: MAIRA-2, table D.1, for the scores.
    """

    name: ClassVar[str] = "chexprompt"
    figures: ClassVar[Mapping[str, Direction]] = {
        "chexprompt_errors": "lower",
        "chexprompt_significant": "lower",
        "chexprompt_error_free": "higher",
        "chexprompt_significant_error_free": "higher",
    }
    headline = ("chexprompt_errors",)
    parameters: ClassVar[Mapping[str, Any]] = {"temperature": 0, "max_tokens": 1024}

    def request(self, candidate: str, reference: str) -> ChatRequest[ErrorCounts]:
        """Build the instructions as the system message, and the two reports as the user's."""
        content = f"Reference report:\n{reference}\n\nCandidate report:\n{candidate}"
        return ChatRequest(
            (("user", content),), parse_error_counts, prefix=PromptPrefix([("system", load_prompt("chexprompt"))])
        )

    def compute_scores(self, response: ErrorCounts) -> Mapping[str, float]:
        """Compute numbers of errors, and whether there are none."""
        significant = response.significant.total
        errors = significant + response.insignificant.total
        return {
            "chexprompt_errors": errors,
            "chexprompt_significant": significant,
            "chexprompt_error_free": 0.0 if errors else 100.0,
            "chexprompt_significant_error_free": 0.0 if significant else 100.0,
        }

    def record(self, response: ErrorCounts) -> Mapping[str, Any]:
        """Return the counts by letter."""
        return {
            kind: dict(zip(ERROR_CATEGORIES, errors.counts, strict=True))
            for kind, errors in (("significant", response.significant), ("insignificant", response.insignificant))
        }


def parse_error_counts(text: str) -> ErrorCounts:
    """Parse a response in JSON, as the prompt asks for, or in GREEN's notation.

    Raises:
        ValueError: if a count is missing or invalid.
    """
    sections = parse_sections(text)
    # In text, the next section shows that a section is not cut off; JSON must have all the keys of the prompt.
    is_json = not all(isinstance(body, str) for body in sections.get("significant", ()))
    return ErrorCounts(
        parse_errors(sections, "significant", complete=is_json),
        parse_errors(sections, "insignificant", complete=True),
    )
