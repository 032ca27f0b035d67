"""Tables and messages that commands print."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from radfact.errors import escape_for_terminal, list_some
from radfact.languages import Language
from radfact.progress import Price, describe_usage

if TYPE_CHECKING:
    from radfact.judges.check import Confusion, JudgeCheck
    from radfact.pages.meta_page import Table as PageTable
    from radfact.records import Pairs
    from radfact.results.evaluation import EvaluationResult

_LISTED = 10


def new_console(*, stderr: bool = False) -> Console:
    """Return a console that prints texts unchanged: `:m:` in a name is no emoji."""
    return Console(stderr=stderr, emoji=False, highlight=False)


def say(console: Console, text: str, style: str | None = None, *, wrap: bool = True) -> None:
    """Print plain text, without markup; without line breaks, names and paths can be searched and copied."""
    console.print(escape_for_terminal(text), style=style, markup=False, soft_wrap=not wrap)


def text_table(headings: Iterable[str], rows: Iterable[Iterable[str]] = ()) -> Table:
    """Return a table of plain texts; all columns but the first are aligned to the right."""
    table = Table()
    for index, heading in enumerate(headings):
        table.add_column(escape(heading), justify="right" if index else "left", overflow="fold")
    for row in rows:
        table.add_row(*map(escape, row))
    return table


def show_table(console: Console, table: PageTable) -> None:
    """Print a table of a page."""
    from radfact.pages.meta_page import format_cell

    console.print(text_table(table.headings, (map(format_cell, row) for row in table.rows)))


def describe_input(pairs: Pairs) -> str:
    """Return how many records were read, skipped and paired, and where values are missing."""
    parts = [f"records read: {pairs.read}, skipped: {pairs.skipped}, pairs: {len(pairs)}"]
    if pairs.drawn_from is not None:
        parts.append(f", a random sample of {pairs.drawn_from}")
    if pairs.empty_candidates:
        parts.append(f", of these {len(pairs.empty_candidates)} with an empty candidate")
    if pairs.without_reference:
        parts.append(f"; drafts without a reference report, not scored: {len(pairs.without_reference)}")
    parts += [f"\nno value in {field}: {list_some(places)}" for field, places in pairs.missing_values.items()]
    return "".join(parts)


def show_results(console: Console, result: EvaluationResult, price: Price | None) -> None:
    """Print the scores by metric, the usage of models with its cost, and what was excluded."""
    console.print(_score_table(result))
    for note in _score_notes(result):
        say(console, note)
    for role, usage in result.usage.items():
        if usage.get("calls") or usage.get("cached"):
            say(console, f"{role}: {_calls(usage, price)}")
    if "radfact" in result.runs:
        _show_radfact(console, result)
    skip_reasons = list(dict.fromkeys(language.skip_reason for language in Language))
    for name, run in result.runs.items():
        failures = [(result.pairs[index].sample_id, reason) for index, reason in run.result.failures.items()]
        for skip_reason in skip_reasons:
            if count := sum(reason.endswith(skip_reason) for _, reason in failures):
                noun = "sample" if count == 1 else "samples"
                say(console, f"{name}: {count} {noun} not scored: {skip_reason}", style="red", wrap=False)
        _show_excluded(console, f"{name}: ", [item for item in failures if not item[1].endswith(tuple(skip_reasons))])
    _show_excluded(console, "", list(result.without_candidate.items()))
    for name, why in result.unavailable.items():
        say(console, f"without {name}: {why}", style="yellow", wrap=False)


def _score_table(result: EvaluationResult) -> Table:
    from radfact.results.display import format_interval, format_number, score_label
    from radfact.results.schema import scores_with_value

    deviations = result.repeat_sd
    repeat = ["repeat sd"] if deviations else []
    table = text_table(["score", "point", "bootstrap\nmedian", "95% interval", *repeat, "n", "failed"])
    # Names of scores are wrapped instead, because truncated names may look the same.
    for column in table.columns[1:]:
        column.no_wrap = True
    with_value, units = scores_with_value(result.summaries), result.units
    for run in result.runs.values():
        for name, score in run.summaries.items():
            if name in with_value:
                deviation = [format_number(deviations.get(name))] if deviations else []
                points = [format_number(score.point), format_number(score.median), format_interval(score)]
                cells = [*points, *deviation, str(score.n)]
                label = escape(score_label(name, score.direction, units.get(name)))
                table.add_row(label, *cells, str(len(run.result.failures)))
        table.add_section()
    return table


def _score_notes(result: EvaluationResult) -> Iterator[str]:
    from radfact.results.schema import scores_with_value

    drawn = f"; {result.resampling.describe()}" if result.draws.get("bootstrap") else ""
    yield f"↑ higher is better, ↓ lower is better{drawn}."
    if without := [name for name in result.summaries if name not in scores_with_value(result.summaries)]:
        yield f"Scores without a value in any sample: {', '.join(without)}."
    if result.repeat_sd:
        yield "repeat sd: standard deviation of the dataset-level score over the repeats."
    yield from result.repeat_notes


def _show_excluded(console: Console, prefix: str, failures: Sequence[tuple[str, str]]) -> None:
    for sample_id, reason in failures[:_LISTED]:
        say(console, f"{prefix}excluded: {sample_id}: {reason}", style="red", wrap=False)
    if len(failures) > _LISTED:
        say(console, f"{prefix}and {len(failures) - _LISTED} more, listed in samples.jsonl", style="red")


def _show_radfact(console: Console, result: EvaluationResult) -> None:
    from radfact.judges.offline import unread_note

    judge, splitter, counts = result.judge or {}, result.splitter or {}, result.counts
    split = f", narratives split by {splitter.get('name')}" if splitter else ""
    say(console, f"radfact: judge {judge.get('name')}, {result.options['compat']} mode{split}")
    candidate, reference = counts["candidate_sentences"], counts["reference_sentences"]
    say(
        console,
        f"{counts['scored']} of {counts['samples']} samples scored{_without_sentences(counts)}; "
        f"{candidate} candidate and {reference} reference sentences; {counts['judgments']} judgments, "
        f"{counts['failed_judgments']} without a valid response",
    )
    if removed := counts["candidate_sentences_removed"] + counts["reference_sentences_removed"]:
        say(console, f"{removed} parts of narratives were removed and are not scored; see removed.jsonl")
    notes = [model["note"] for model in (judge, splitter) if model.get("note")]
    shots = [model for model in (judge, splitter) if model.get("few_shots_from")]
    notes += [f"Few-shot examples of {model.get('name')}: {model['few_shots_from']}" for model in shots]
    if unread := counts.get("unread_sentences"):
        notes.append(unread_note(unread, candidate + reference))
    if count := counts.get("narratives_without_marks"):
        notes.append(f"{count} of {counts['narratives']} narratives have no sentence marks; rules find the sentences.")
    if count := counts.get("judgments_without_relation"):
        notes.append(
            f"The judge does not report whether {count} sentences are neutral or contradicted. Scores "
            "logical_*_implied that depend on them have no value."
        )
    for note in filter(None, dict.fromkeys(notes)):
        say(console, str(note), style="yellow")


def _without_sentences(counts: Mapping[str, int]) -> str:
    """Return how many of the scored samples have no precision or no recall, and why."""
    text = ""
    if count := counts["candidates_without_sentences"]:
        empty = f" ({counts['empty_candidates']} empty)" if counts["empty_candidates"] else ""
        text += f", {count} of them have no candidate sentence{empty}, hence no precision and a recall of 0"
    if count := counts["references_without_sentences"]:
        text += f", {count} of them have no reference sentence, hence no recall and a precision of 0"
    return text


def _calls(usage: Mapping[str, int], price: Price | None) -> str:
    return ", ".join(filter(None, (f"{usage.get('calls', 0)} calls", describe_usage(usage, price))))


def show_check(console: Console, check: JudgeCheck, price: Price | None) -> None:
    """Print the scores of a judge check, its errors, time and cost."""
    from radfact.judges.check import FAILED
    from radfact.results.display import format_number

    say(console, f"Judge {check.judge} on {check.n} labeled judgments")
    names = ("accuracy", "precision", "recall", "f1", "evidence_f1")
    console.print(text_table(names, [[format_number(getattr(check, name)) for name in names]]))
    console.print(_confusion_table("label", {label: {label: row} for label, row in check.confusion.items()}))
    if check.relations:
        relations = ("entailment", "neutral", "contradiction", "not_entailment", FAILED)
        headings = ["no relation" if name == "not_entailment" else name for name in relations]
        rows = [[label, *(str(row.get(name, 0)) for name in relations)] for label, row in check.relations.items()]
        console.print(text_table(["label", *headings], rows))
    if check.by_topic:
        console.print(_confusion_table("topic", check.by_topic))
    console.print(_confusion_table("set", check.by_set))
    usage = {name: getattr(check, name) for name in ("calls", "tokens_in", "tokens_out", "failures")}
    pace = f" ({check.n / check.seconds:.3g} per second)" if check.seconds else ""
    say(console, f"{check.seconds:.3g} seconds{pace}; {_calls(usage, price)}")
    if (agreement := check.agreement) is not None:
        say(
            console,
            f"One call per report and one call per sentence agree on {agreement.share:.1%} of {agreement.n}: accuracy "
            f"{format_number(agreement.accuracy_report)} and {format_number(agreement.accuracy_sentence)}",
        )
    say(console, "Precision, recall and F1 are those of the entailed class. A failed response counts as wrong.")


def _confusion_table(heading: str, confusions: Mapping[str, Confusion]) -> Table:
    """Return a table with the number of queries, the verdicts and the accuracy by label, topic or set."""
    from radfact.judges.check import FAILED, confusion_accuracy
    from radfact.results.display import format_number

    outcomes = ("entailment", "not_entailment", FAILED)
    rows = []
    for name, confusion in confusions.items():
        counts = [sum(row.get(outcome, 0) for row in confusion.values()) for outcome in outcomes]
        rows.append([name, str(sum(counts)), *map(str, counts), format_number(confusion_accuracy(confusion))])
    return text_table([heading, "n", *outcomes, "accuracy"], rows)


@contextmanager
def quiet_libraries() -> Iterator[None]:
    """Suppress the warnings and progress bars of libraries; errors are raised as usual."""
    # Read when transformers is imported, which may be later.
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(before)
