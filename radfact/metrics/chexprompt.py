"""Counts of errors in the manner of CheXprompt (G-Rad): how many a report has, and whether it has any (paper 004)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from radfact.error_categories import ERROR_CATEGORIES
from radfact.llm import ChatRequest, PromptPrefix
from radfact.metrics.llm_metric import AskedMetric, load_prompt
from radfact.metrics.responses.assessment import CategoryErrors, parse_errors, parse_sections
from radfact.statistics.bootstrap import Direction


@dataclass(frozen=True, slots=True)
class ErrorCounts:
    """Errors of a candidate by significance."""

    significant: CategoryErrors
    insignificant: CategoryErrors


class CheXprompt(AskedMetric[ErrorCounts]):
    """Errors of a report, counted by a language model in six categories by significance; the prompt is OURS.

    The published prompt is in none of the papers, so figures compare among themselves, not with published ones.
    `chexprompt_errors` and `chexprompt_significant` are numbers of errors; `chexprompt_error_free` and
    `chexprompt_significant_error_free` are 100 or 0 a report, so that the mean is a percentage (paper 004, table D.1).
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

    def question(self, candidate: str, reference: str) -> ChatRequest[ErrorCounts]:
        """The instructions as the system message, the two reports after it."""
        content = f"Reference report:\n{reference}\n\nCandidate report:\n{candidate}"
        return ChatRequest(
            (("user", content),), read_error_counts, prefix=PromptPrefix([("system", load_prompt("chexprompt"))])
        )

    def read(self, answer: ErrorCounts) -> Mapping[str, float]:
        """Numbers of errors, and whether there are none."""
        significant = answer.significant.total
        errors = significant + answer.insignificant.total
        return {
            "chexprompt_errors": errors,
            "chexprompt_significant": significant,
            "chexprompt_error_free": 0.0 if errors else 100.0,
            "chexprompt_significant_error_free": 0.0 if significant else 100.0,
        }

    def detail(self, answer: ErrorCounts) -> Mapping[str, Any]:
        """The counts by letter."""
        return {
            kind: dict(zip(ERROR_CATEGORIES, errors.counts, strict=True))
            for kind, errors in (("significant", answer.significant), ("insignificant", answer.insignificant))
        }


def read_error_counts(text: str) -> ErrorCounts:
    """Read an answer, in JSON as asked for or in GREEN's notation.

    Raises:
        ValueError: a count is missing or cannot be read.
    """
    sections = parse_sections(text)
    # In text what follows shows that a section was not cut off; in JSON all keys were asked for.
    in_json = not all(isinstance(body, str) for body in sections.get("significant", ()))
    return ErrorCounts(
        parse_errors(sections, "significant", complete=in_json),
        parse_errors(sections, "insignificant", complete=True),
    )
