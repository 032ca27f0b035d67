"""GREEN: errors by category and matched findings, counted by a language model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from radfact.error_categories import ERROR_CATEGORIES
from radfact.llm import ChatRequest
from radfact.metrics.llm.llm_metric import LLMMetric, fill_prompt, load_prompt
from radfact.metrics.llm.responses.assessment import Assessment, parse_assessment, total
from radfact.metrics.protocol import Score
from radfact.records import TextPair


def green_score(matched: int, significant: float, insignificant: float = 0.0, *, weight: float = 1.0) -> float:
    """Compute weight x M / (weight x M + errors), which is 0 if nothing matches (VERT, appendix B.5)."""
    return weight * matched / (weight * matched + significant + insignificant) if matched else 0.0


def count_scores(prefix: str) -> dict[str, Score]:
    """Return the scores that are counts: errors in all, by significance and by category, and matched findings."""
    kinds = ("significant", "insignificant")
    errors = [f"{prefix}_ec", *(f"{prefix}_{kind}" for kind in kinds)]
    errors += [f"{prefix}_{kind}_{letter}" for kind in kinds for letter in ERROR_CATEGORIES]
    scores = {name: Score("lower", "number of errors", "errors") for name in errors}
    return {**scores, f"{prefix}_matched": Score("higher", "number of matched findings", "findings")}


def compute_counts(prefix: str, assessment: Assessment) -> dict[str, float]:
    """Return the values of `count_scores`."""
    kinds = (assessment.significant, assessment.insignificant)
    totals = [total(errors) for errors in kinds]
    by_category = [errors[letter].count for errors in kinds for letter in ERROR_CATEGORIES]
    return dict(zip(count_scores(prefix), (sum(totals), *totals, *by_category, assessment.matched.count), strict=True))


class Green(LLMMetric[Assessment]):
    """GREEN with GREEN-EC, GREEN-F1 and the weighted form, all from one response; long reports are not cut.

    M are matched findings, S significant and I insignificant errors; all scores are 0 if M is 0. The prompt is the one
    that the published GREEN models are tuned to.
    """

    name = "green"
    measures = "matched findings against significant errors of six kinds"
    scores: Mapping[str, Score] = {
        "green": Score("higher", "M / (M + S)"),
        "green_f1": Score("higher", "2M / (2M + S)"),
        "green_weighted": Score("higher", "M / (M + 2S + 0.5I)"),
        **count_scores("green"),
    }
    cost = "a response of up to 2,048 tokens"
    source = "GREEN; VERT, appendix B"
    parameters: Mapping[str, Any] = {"temperature": 0, "max_tokens": 2048}

    def request(self, pair: TextPair) -> ChatRequest[Assessment]:
        content = fill_prompt(load_prompt("green"), reference=pair.reference, candidate=pair.candidate)
        return ChatRequest((("user", content),), parse_assessment)

    def compute_scores(self, response: Assessment) -> Mapping[str, float]:
        matched, significant = response.matched.count, total(response.significant)
        return {
            "green": green_score(matched, significant),
            "green_f1": green_score(matched, significant, weight=2),
            "green_weighted": green_score(matched, 2 * significant, 0.5 * total(response.insignificant)),
            **compute_counts("green", response),
        }
