"""Names of scores for a person, the main ones, and an evaluation as text and as a table for interactive Python."""

from __future__ import annotations

import math
import re
from collections.abc import Container, Sequence
from html import escape
from typing import TYPE_CHECKING

from radfact.errors import ErrorCode, option_error, suggest_name
from radfact.metrics.options import split_names
from radfact.metrics.protocol import main_scores_of
from radfact.metrics.registry import entries
from radfact.results.schema import RADFACT, ScoresFile, describe_models, scores_with_value
from radfact.statistics.bootstrap import Direction, Summary

if TYPE_CHECKING:
    from radfact.results.evaluation import EvaluationResult

ARROWS: dict[Direction, str] = {"higher": "↑", "lower": "↓", "neutral": ""}
"""Direction in which a score is better."""
_MAX_SHOWN = 6
"""Scores in the line of text."""
_HEADINGS = ("score", "value", "95% interval", "n")
_WITH_BOXES = ("grounding_f1", "spatial_f1")
"""Main scores of RadFact for reports with boxes; the others have no value of them."""


def main_scores(scores: ScoresFile) -> dict[str, list[str]]:
    """Return the declared main scores that have a value by metric, or else the first selected one; RadFact's first."""
    known = entries()
    main: dict[str, list[str]] = {}
    for metric, record in sorted(scores.metrics.items(), key=lambda item: item[0] != RADFACT):
        declared = main_scores_of(known[metric].declared) if metric in known else []
        names = [*declared, *(_WITH_BOXES if metric == RADFACT else ())]
        own = [name for name in record.scores if name in scores.scores and scores.scores[name].point is not None]
        main[metric] = [name for name in names if name in own] or own[:1]
    return main


def select_scores(scores: ScoresFile, known: Container[str], chosen: str | Sequence[str]) -> list[str]:
    """Return the chosen scores among those that are known; the name of a metric stands for its main scores."""
    main = main_scores(scores)
    selected: list[str] = []
    for name in split_names(chosen):
        own = [name] if name in known else [score for score in main.get(name, ()) if score in known]
        if not own:
            names = [score for score in scores.scores if score in known]
            hint = suggest_name(name, [*names, *main], f"they are {', '.join(names)}")
            raise option_error(f"expected names of scores, found '{name}'; {hint}", "scores", ErrorCode.UNKNOWN_NAME)
        selected += own
    return list(dict.fromkeys(selected))


def describe_result(result: EvaluationResult) -> str:
    values = result.scores
    main = [name for run in result.runs.values() for name in run.selection.main_scores(run.metric) if name in values]
    scores = [f"{name} {format_number(values[name])}" for name in main[:_MAX_SHOWN]]
    more = ", ..." if len(main) > _MAX_SHOWN else ""
    return f"EvaluationResult({_samples(result)}: {', '.join(scores)}{more})"


def scores_table(result: EvaluationResult) -> str:
    """Return the scores that have a value as an HTML table, with samples, judge and models below it."""
    from radfact.results.writer import scores_file

    units = result.units
    rows = [
        (
            score_label(name, score.direction, units.get(name)),
            format_number(score.point),
            format_interval(score),
            str(score.n),
        )
        for name, score in scores_with_value(result.summaries).items()
    ]
    notes = [_samples(result)]
    notes += [f"{name}: {model}" for name, model in describe_models(scores_file(result)).items()]
    notes += [f"without {name}: {reason}" for name, reason in result.unavailable.items()]
    head = "".join(f"<th>{escape(heading)}</th>" for heading in _HEADINGS)
    body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table><p>{'<br>'.join(map(escape, notes))}</p>"


def score_label(name: str, direction: Direction, unit: str | None) -> str:
    """Return the name of a score with an arrow to its better values, and its unit."""
    return " ".join(filter(None, (name, ARROWS[direction], f"({unit})" if unit else "")))


def _samples(result: EvaluationResult) -> str:
    samples, excluded = result.counts["samples"], result.counts["excluded"]
    drawn = f" drawn from {result.drawn_from}" if result.drawn_from is not None else ""
    return f"{samples} {'sample' if samples == 1 else 'samples'}{drawn}{f', {excluded} excluded' if excluded else ''}"


def format_number(value: float | None) -> str:
    """Format a score with three decimals, or a dash if there is none."""
    return "-" if value is None or math.isnan(value) else f"{value:.3f}"


def format_interval(score: Summary) -> str:
    """Format the 95% interval of a score, or a dash if there is none."""
    return "-" if score.low is None else f"{format_number(score.low)} to {format_number(score.high)}"


_DISPLAY_NAMES = (
    *("F1", "ROUGE", "ROUGE-L", "BLEU", "METEOR", "BERTScore", "CheXbert", "CheXprompt", "CRIMSON", "JSON"),
    *("RadFact", "RadGraph", "RadCliQ", "RG", "ER", "GREEN", "VERT", "FineRadScore"),
)
_BY_WORDS = {name.lower().replace("-", " "): name for name in _DISPLAY_NAMES}
_KNOWN = re.compile(rf"\b({'|'.join(sorted(_BY_WORDS, key=len, reverse=True))})\b")


def words(name: str) -> str:
    """Return the name of a score for a person, with metrics as their papers write them; others stay as they are."""
    folder, slash, score = name.rpartition("/")
    if slash or not re.fullmatch(r"\w+", name):
        return f"{folder}/{words(score)}" if slash and re.fullmatch(r"\w+", score) else name
    spaced = _KNOWN.sub(lambda match: _BY_WORDS[match[0]], name.replace("_", " "))
    spaced = re.sub(r"^BLEU (\d)$", r"BLEU-\1", spaced)
    return spaced[:1].upper() + spaced[1:]
