"""GREEN: errors by category and matched findings, as a language model counts them (paper 000)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from radfact.error_categories import ERROR_CATEGORIES
from radfact.llm import ChatRequest
from radfact.metrics.llm_metric import AskedMetric, fill, load_prompt
from radfact.metrics.responses.assessment import Assessment, parse_assessment
from radfact.statistics.bootstrap import Direction


def green_score(matched: int, significant: float, insignificant: float = 0.0, *, weight: float = 1.0) -> float:
    """weight x M / (weight x M + errors), and 0 where nothing matches.

    GREEN is `green_score(M, S)` (paper 000, equation 1); the unified form of paper 003, appendix B.5, gives the others.

    Args:
        matched: M, matched findings.
        significant: significant errors, already weighed.
        insignificant: insignificant errors, already weighed.
        weight: of the matched findings.
    """
    return weight * matched / (weight * matched + significant + insignificant) if matched else 0.0


def count_figures(prefix: str) -> dict[str, Direction]:
    """The figures that every answer in GREEN's notation has: all errors, by significance and by category; matches."""
    kinds = ("significant", "insignificant")
    errors = [f"{prefix}_ec", *(f"{prefix}_{kind}" for kind in kinds)]
    errors += [f"{prefix}_{kind}_{letter}" for kind in kinds for letter in ERROR_CATEGORIES]
    return {**dict.fromkeys(errors, "lower"), f"{prefix}_matched": "higher"}


def read_counts(prefix: str, answer: Assessment) -> dict[str, float]:
    """The values of `count_figures`."""
    counts: dict[str, float] = {
        f"{prefix}_ec": answer.significant.total + answer.insignificant.total,
        f"{prefix}_matched": answer.matched,
    }
    for kind, errors in (("significant", answer.significant), ("insignificant", answer.insignificant)):
        counts[f"{prefix}_{kind}"] = errors.total
        counts |= {f"{prefix}_{kind}_{letter}": n for letter, n in zip(ERROR_CATEGORIES, errors.counts, strict=True)}
    return counts


class Green(AskedMetric[Assessment]):
    """GREEN with GREEN-EC, GREEN-F1 and the weighted form, all of one answer; long reports are not cut.

    The prompt is that on which the published GREEN models were tuned (paper 000, appendix A.1). Of M matched findings,
    S significant and I insignificant errors: `green` = M / (M + S) (equation 1), `green_ec` = S + I, `green_f1` =
    2M / (2M + S), `green_weighted` = M / (M + 2S + 0.5I) (paper 003, appendix B); 0 where M is 0.
    """

    name: ClassVar[str] = "green"
    figures: ClassVar[Mapping[str, Direction]] = {
        **dict.fromkeys(("green", "green_f1", "green_weighted"), "higher"),
        **count_figures("green"),
    }
    parameters: ClassVar[Mapping[str, Any]] = {"temperature": 0, "max_tokens": 2048}
    """Paper 000, section 3.1.2: deterministic, 2,048 tokens."""

    def question(self, candidate: str, reference: str) -> ChatRequest[Assessment]:
        """The prompt, as the only message."""
        return ChatRequest(
            (("user", fill(load_prompt("green"), reference=reference, candidate=candidate)),), parse_assessment
        )

    def read(self, answer: Assessment) -> Mapping[str, float]:
        """Scores and counts of an answer."""
        matched, significant, insignificant = answer.matched, answer.significant.total, answer.insignificant.total
        return {
            "green": green_score(matched, significant),
            "green_f1": green_score(matched, significant, weight=2),
            "green_weighted": green_score(matched, 2 * significant, 0.5 * insignificant),
            **read_counts("green", answer),
        }

    def detail(self, answer: Assessment) -> Mapping[str, Any]:
        """Explanation, errors and findings."""
        return answer.as_record()
