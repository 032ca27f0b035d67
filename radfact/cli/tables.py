"""Tables and messages that commands print."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from radfact.errors import escape_for_terminal
from radfact.languages import Language
from radfact.progress import Price, format_count

if TYPE_CHECKING:
    from radfact.judges.check import Confusion, JudgeCheck
    from radfact.meta.robustness.invariants import InvariantResult
    from radfact.pages.meta_page import Table as PageTable
    from radfact.records import Pairs
    from radfact.results.evaluation import EvaluationResult

_LISTED = 10
_EXAMPLES = 3
RADFACT = "radfact"
MARKS = {"higher": "↑", "lower": "↓", "neutral": ""}
"""Direction in which a score is better."""


def new_console(*, stderr: bool = False) -> Console:
    """Return a console that prints texts unchanged: `:m:` in a name is no emoji."""
    return Console(stderr=stderr, emoji=False, highlight=False)


def describe_input(pairs: Pairs) -> str:
    """Return how many records were read, skipped and paired."""
    empty = f", of these {len(pairs.empty_candidates)} with an empty candidate" if pairs.empty_candidates else ""
    apart = (
        f"; drafts without a reference report, not scored: {len(pairs.without_reference)}"
        if pairs.without_reference
        else ""
    )
    drawn = f", a random sample of {pairs.drawn_from}" if pairs.drawn_from is not None else ""
    return f"records read: {pairs.read}, skipped: {pairs.skipped}, pairs: {len(pairs)}{drawn}{empty}{apart}"


def show_results(console: Console, result: EvaluationResult, price: Price | None) -> None:
    """Print the scores by metric, the usage of models, and what was excluded.

    Args:
        console: console to print to.
        result: of an evaluation.
        price: of tokens; None to print no cost.
    """
    from radfact.results.display import score_label
    from radfact.results.schema import scores_with_value

    table = Table()
    deviations = result.repeat_sd
    headings = [
        "score",
        "point",
        "bootstrap\nmedian",
        "95% interval",
        *(["repeat sd"] if deviations else []),
        "n",
        "failed",
    ]
    for heading in headings:
        is_score = heading == "score"
        # Names of scores are wrapped, because truncated names may look the same.
        table.add_column(heading, justify="left" if is_score else "right", no_wrap=not is_score, overflow="fold")
    with_value, units = scores_with_value(result.summaries), result.units
    for run in result.runs.values():
        failed = str(len(run.result.failures))
        for name, score in run.summaries.items():
            if name not in with_value:
                continue
            interval = f"{number(score.low)} to {number(score.high)}" if score.low is not None else "-"
            label = escape(score_label(name, score.direction, units.get(name)))
            deviation = [number(deviations.get(name))] if deviations else []
            table.add_row(label, number(score.point), number(score.median), interval, *deviation, str(score.n), failed)
        table.add_section()
    console.print(table)
    drawn = f"; {result.resampling.describe()}" if result.draws.get("bootstrap") else ""
    say(console, f"↑ higher is better, ↓ lower is better{drawn}.")
    if without := [name for name in result.summaries if name not in with_value]:
        say(console, f"Scores without a value in any sample: {', '.join(without)}.")
    if deviations:
        say(console, "repeat sd: standard deviation of the dataset-level score over the repeats.")
    for note in result.repeat_notes:
        say(console, note)
    for role, usage in result.usage.items():
        if usage.get("calls") or usage.get("cached"):
            say(console, f"{role}: {answers(usage)}{_cost(usage, price)}")
    if RADFACT in result.runs:
        _show_radfact(console, result)
    for name, run in result.runs.items():
        others = list(run.result.failures.items())
        for skip_reason in (language.skip_reason for language in Language):
            count = sum(reason.endswith(skip_reason) for _, reason in others)
            if count:
                noun = "sample" if count == 1 else "samples"
                say(console, f"{name}: {count} {noun} not scored: {skip_reason}", style="red", wrap=False)
            others = [item for item in others if not item[1].endswith(skip_reason)]
        for index, reason in others[:_LISTED]:
            say(console, f"{name}: excluded: {result.pairs[index].sample_id}: {reason}", style="red", wrap=False)
        if len(others) > _LISTED:
            say(console, f"{name}: and {len(others) - _LISTED} more, listed in samples.jsonl", style="red")
    for sample_id, reason in list(result.without_candidate.items())[:_LISTED]:
        say(console, f"excluded: {sample_id}: {reason}", style="red", wrap=False)
    if len(result.without_candidate) > _LISTED:
        say(console, f"and {len(result.without_candidate) - _LISTED} more, listed in samples.jsonl", style="red")
    for name, why in result.unavailable.items():
        say(console, f"without {name}: {why}", style="yellow", wrap=False)
    if cached := [name for name, run in result.runs.items() if run.reused]:
        say(console, f"cached, from the earlier run: {', '.join(cached)}")


def _show_radfact(console: Console, result: EvaluationResult) -> None:
    from radfact.judges.offline import unread_note

    judge, splitter, counts = result.judge or {}, result.splitter or {}, result.counts
    split = f", narratives split by {splitter.get('name')}" if splitter else ""
    say(console, f"radfact: judge {judge.get('name')}, {result.options['compat']} mode{split}")
    say(
        console,
        f"{counts['scored']} of {counts['samples']} samples scored{_without_sentences(counts)}; "
        f"{counts['candidate_sentences']} candidate and "
        f"{counts['reference_sentences']} reference sentences; {counts['judgments']} judgments, "
        f"{counts['failed_judgments']} without a valid response",
    )
    if removed := counts["candidate_sentences_removed"] + counts["reference_sentences_removed"]:
        say(
            console,
            f"{removed} parts of narratives were removed and are not scored; see removed.jsonl",
        )
    notes = [str(model["note"]) for model in (judge, splitter) if model.get("note")]
    notes += [
        f"Few-shot examples of {model.get('name')}: {model['few_shots_from']}"
        for model in (judge, splitter)
        if model.get("few_shots_from")
    ]
    sentences = counts["candidate_sentences"] + counts["reference_sentences"]
    if unread := counts.get("unread_sentences"):
        notes += filter(None, [unread_note(unread, sentences)])
    if count := counts.get("judgments_without_relation"):
        notes.append(
            f"The judge does not report whether {count} sentences are neutral or contradicted. Scores "
            "logical_*_implied that depend on them have no value."
        )
    for note in dict.fromkeys(notes):
        say(console, note, style="yellow")


def _without_sentences(counts: Mapping[str, int]) -> str:
    """Return how many of the scored samples have no precision or no recall, and why."""
    parts = []
    if count := counts["candidates_without_sentences"]:
        empty = f" ({counts['empty_candidates']} empty)" if counts["empty_candidates"] else ""
        parts.append(f"{count} of them have no candidate sentence{empty}, hence no precision and a recall of 0")
    if count := counts["references_without_sentences"]:
        parts.append(f"{count} of them have no reference sentence, hence no recall and a precision of 0")
    return "".join(f", {part}" for part in parts)


def answers(usage: Mapping[str, int]) -> str:
    """Return a usage as text: calls, cached and failed responses, tokens."""
    parts = [f"{usage.get('calls', 0)} calls"]
    for key, label in (
        ("cached", "cached"),
        ("repairs", "repaired"),
        ("failures", "failed"),
        ("retries", "retries"),
    ):
        if usage.get(key):
            parts.append(f"{usage[key]} {label}")
    if usage.get("tokens_in"):
        parts.append(f"tokens {format_count(usage['tokens_in'])} in, {format_count(usage['tokens_out'])} out")
    return ", ".join(parts)


def _cost(usage: Mapping[str, int], price: Price | None) -> str:
    return "" if price is None else f", cost {price.format_cost(usage)}"


def show_check(console: Console, check: JudgeCheck, price: Price | None) -> None:
    """Print the scores of a judge check, its errors, time and cost.

    Args:
        console: console to print to.
        check: result of the judge check.
        price: of tokens; None to print no cost.
    """
    say(console, f"Judge {check.judge} on {check.n} labeled judgments")
    table = Table()
    scores = {name: getattr(check, name) for name in ("accuracy", "precision", "recall", "f1", "evidence_f1")}
    for name in scores:
        table.add_column(name, justify="right")
    table.add_row(*map(number, scores.values()))
    console.print(table)
    console.print(_confusion_table("label", {label: {label: row} for label, row in check.confusion.items()}))
    if check.relations:
        console.print(_relation_table(check.relations))
    if check.by_topic:
        console.print(_confusion_table("topic", check.by_topic))
    console.print(_confusion_table("set", check.by_set))
    cost = {name: getattr(check, name) for name in ("calls", "tokens_in", "tokens_out", "failures")}
    pace = f" ({check.n / check.seconds:.3g} per second)" if check.seconds else ""
    say(console, f"{check.seconds:.3g} seconds{pace}; {answers(cost)}{_cost(cost, price)}")
    if check.agreement is not None:
        agreement = check.agreement
        say(
            console,
            f"One call per report and one call per sentence agree on {agreement.share:.1%} of {agreement.n}: accuracy "
            f"{number(agreement.accuracy_report)} and {number(agreement.accuracy_sentence)}",
        )
    say(console, "Precision, recall and F1 are those of the entailed class. A failed response counts as wrong.")


def show_invariants(console: Console, results: Sequence[InvariantResult]) -> None:
    """Print the violations of each kind of invariant, with examples.

    Args:
        console: console to print to.
        results: results of `check_invariants`.
    """
    from radfact.meta.robustness.invariants import results_table

    numbers = results_table(results)
    table = Table()
    for position, heading in enumerate(numbers.headings):
        table.add_column(heading, justify="right" if position else "left")
    for row in numbers.rows:
        table.add_row(*map(str, row))
    console.print(table)
    for result in results:
        for example in result.examples[:_EXAMPLES]:
            premises = " ".join(example.premises)
            say(console, f"{result.kind}: {example.verdict}: {example.hypothesis}", style="yellow")
            say(console, f"  report: {premises}" + (f"\n  reason: {example.why}" if example.why else ""))


def _confusion_table(heading: str, rows: Mapping[str, Confusion]) -> Table:
    """Return a table with the number of queries, the verdicts and the accuracy by label or topic."""
    from radfact.judges.check import FAILED, confusion_accuracy

    table = Table()
    table.add_column(heading)
    for name in ("n", "entailment", "not_entailment", FAILED, "accuracy"):
        table.add_column(name, justify="right")
    for name, confusion in rows.items():
        counts = {
            status: sum(row.get(status, 0) for row in confusion.values())
            for status in ("entailment", "not_entailment", FAILED)
        }
        table.add_row(
            escape(name),
            str(sum(counts.values())),
            *(str(count) for count in counts.values()),
            number(confusion_accuracy(confusion)),
        )
    return table


def _relation_table(relations: Confusion) -> Table:
    """Return the confusion matrix of label and relation as a table."""
    from radfact.judges.check import FAILED

    table = Table()
    table.add_column("label")
    outcomes = ("entailment", "neutral", "contradiction", "not_entailment", FAILED)
    for name in outcomes:
        table.add_column("no relation" if name == "not_entailment" else name, justify="right")
    for label, row in relations.items():
        table.add_row(escape(label), *(str(row.get(name, 0)) for name in outcomes))
    return table


def say(console: Console, text: str, style: str | None = None, *, wrap: bool = True) -> None:
    """Print a paragraph of plain text, without markup.

    Args:
        console: console to print to.
        text: to print.
        style: of Rich, such as "yellow".
        wrap: whether to break lines; without line breaks, names and paths can be searched and copied.
    """
    console.print(escape_for_terminal(text), style=style, markup=False, soft_wrap=not wrap)


def show_table(console: Console, table: PageTable) -> None:
    """Print a table.

    Args:
        console: console to print to.
        table: table to print.
    """
    from radfact.pages.meta_page import format_cell

    drawn = Table()
    for column, heading in enumerate(table.headings):
        drawn.add_column(escape(heading), justify="right" if column else "left", overflow="fold")
    for row in table.rows:
        drawn.add_row(*(escape(format_cell(cell)) for cell in row))
    console.print(drawn)


def number(value: float | None) -> str:
    """Format a score with three decimals, or a dash if there is none."""
    return "-" if value is None else f"{value:.3f}"
