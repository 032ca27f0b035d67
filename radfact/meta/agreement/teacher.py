"""A judge compared with its teacher on held-out pairs: GREEN's answers or VERT's scores."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from radfact.api import evaluate
from radfact.error_categories import ERROR_CATEGORIES
from radfact.errors import ErrorCode, Failure, InputError, RunError, check_unique_id
from radfact.llm.response_text import strip_reasoning
from radfact.meta.datasets.rows import read_rows
from radfact.metrics.llm.green import Green
from radfact.metrics.llm.llm_metric import LLMMetric, complete
from radfact.metrics.llm.responses.assessment import parse_assessment
from radfact.metrics.llm.vert import VertTuned
from radfact.records import Pair, TextPair
from radfact.statistics.bootstrap import CountsFunction, Summary, summarize, summarize_counts
from radfact.statistics.clusters import clusters_of
from radfact.statistics.rater_agreement import confusion_counts, kappa_from_counts

_COMPARED = ("green", "green_significant", "green_insignificant", "green_matched", "vert_tuned")
_SIMILARITY = ("bertscore", "rouge_l", "bleu_4")

HeldOut = tuple[TextPair, str, Any]
"""A pair of reports, the text of the teacher's answer, which is empty for VERT's score, and the parsed answer."""


def read_held_out(file: Path) -> tuple[type[LLMMetric[Any]], list[HeldOut]]:
    """Read `heldout.csv` of `maira judge-data`: pairs with GREEN's answers (`answer`), else with scores (`expert`)."""
    headings, rows = read_rows(file, ("id", "reference", "candidate", "expert"))
    metric: type[LLMMetric[Any]] = Green if "answer" in headings else VertTuned
    held_out: list[HeldOut] = []
    lines: dict[str, int] = {}
    for row in rows:
        pair, text = Pair(row.id("id"), row.report("candidate"), row.report("reference")), row.text("answer")
        check_unique_id(lines, pair.sample_id, row.line, file=file, field="id")
        try:
            if metric is Green:
                answer: Any = parse_assessment(text)
            else:
                answer = row.number("expert", "a score from 0 to 1", lambda value: 0 <= value <= 1)
        except ValueError as error:
            raise row.error(f"expected an answer in GREEN's notation: {error}", "answer") from None
        held_out.append((TextPair.of(pair), text, answer))
    if not held_out:
        raise InputError("expected held-out pairs, found none", code=ErrorCode.EMPTY_INPUT, file=file)
    return metric, held_out


def compare_with_teacher(
    judge: str, metric: LLMMetric[Any], held_out: Sequence[HeldOut], *, weights: Any = ()
) -> dict[str, Any]:
    """Compare a judge, the student, with its teacher on pairs with a valid response (GREEN, tables 1 to 8)."""
    requests = metric.requests([pair for pair, *_ in held_out])
    responses, usage = complete(metric.client, [replace(item, parse=_with_text(item.parse)) for item in requests])
    failures: dict[str, str] = {}
    samples: list[dict[str, Any]] = []
    texts: list[Pair] = []
    for (pair, text, answer), response in zip(held_out, responses, strict=True):
        if isinstance(response, Failure):
            failures[pair.sample_id] = response.reason
            continue
        scores = {"teacher": metric.compute_scores(answer), "student": metric.compute_scores(response[1])}
        samples.append({"id": pair.sample_id, **scores, "answer": response[0]})
        texts.append(Pair(pair.sample_id, response[0], text, cluster=pair.reference))
    if not samples:
        message = f"expected valid responses, found none of {len(held_out)}: {next(iter(failures.values()))}"
        raise RunError(message, code=ErrorCode.JUDGE_FAILED)
    ids, references = [pair.sample_id for pair in texts], [pair.cluster for pair in texts]
    draws: dict[str, Any] = {"clusters": clusters_of("reference", references, ids)}
    sides = ("teacher", "student")
    # score -> (2, samples)
    columns = {name: np.array([[row[side][name] for row in samples] for side in sides]) for name in metric.scores}
    gaps = {name: np.abs(teacher - student) for name, (teacher, student) in columns.items()}
    errors = {}
    for name, summary in summarize({name: gaps[name].tolist() for name in _COMPARED if name in gaps}, **draws).items():
        teacher, student = columns[name]
        errors[name] = _values(summary) | {
            "sd": float(gaps[name].std()),
            # Of the best constant answer.
            "constant": float(np.abs(teacher - np.median(teacher)).mean()),
            "teacher": float(teacher.mean()),
            "student": float(student.mean()),
        }
    if "green" in columns:
        categories, verdicts = range(2), (columns["green_significant"] > 0).astype(int)
    else:
        # The judge learns scores with one decimal, which Python rounds.
        categories = range(11)
        verdicts = np.array([[round(10 * round(x, 1)) for x in side] for side in columns[metric.name].tolist()])
    functions: dict[str, CountsFunction] = {
        "accuracy": lambda counts: float(counts[:: len(categories) + 1].sum() / counts.sum()),
        "kappa": kappa_from_counts(categories),
    }
    agreement = summarize_counts(confusion_counts(verdicts.T.tolist(), categories), functions, **draws)
    unavailable: dict[str, str] = {}
    if "green" in columns:
        same = {letter: gaps[f"green_significant_{letter}"] == 0 for letter in ERROR_CATEGORIES}
        agreement |= summarize({f"accuracy_{letter}": known.tolist() for letter, known in same.items()}, **draws)
        similarity = evaluate(texts, _SIMILARITY, weights=weights)
        agreement, unavailable = {**similarity.summaries, **agreement}, similarity.unavailable
    return {
        "judge": judge,
        "metric": metric.name,
        "n": len(held_out),
        "failures": failures,
        "errors": errors,
        "agreement": {name: _values(summary) for name, summary in agreement.items()},
        "unavailable": unavailable,
        "usage": usage,
        "samples": samples,
    }


def _values(summary: Summary) -> dict[str, Any]:
    return {"n": summary.n, "value": summary.point, "low": summary.low, "high": summary.high}


def _with_text(parse: Callable[[str], Any]) -> Callable[[str], tuple[str, Any]]:
    """Keep the text of a response with its content."""
    return lambda text: (strip_reasoning(text).strip(), parse(text))
