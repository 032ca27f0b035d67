"""What the commands print at their end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from radfact.cli.price import Price
from radfact.errors import escape_for_terminal
from radfact.progress import short

if TYPE_CHECKING:
    from radfact.judges.check import Check, Confusion
    from radfact.results.evaluation import Evaluation
    from radfact.scoring.radfact import Result

_LISTED = 10
MARKS = {"higher": "↑", "lower": "↓", "neutral": ""}
"""Which way is better."""


def new_console(*, stderr: bool = False) -> Console:
    """A console that leaves texts alone: a name such as openai:m: holds no emoji."""
    return Console(stderr=stderr, emoji=False, highlight=False)


def show_result(console: Console, result: Result, title: str, price: Price | None) -> None:
    """The figures of a run, who gave them, what they cost, and what was left out."""
    from radfact.judges.offline.judge import unread_note

    table = Table(title=escape(title), title_justify="left")
    for heading in ("figure", "point", "median", "95 % interval", "n"):
        table.add_column(heading, justify="left" if heading == "figure" else "right")
    for name, figure in result.figures.items():
        interval = f"{number(figure.low)} to {number(figure.high)}" if figure.low is not None else "-"
        table.add_row(name, number(figure.point), number(figure.median), interval, str(figure.n))
    console.print(table)
    counts = result.counts
    say(
        console,
        f"{counts['scored']} of {counts['samples']} samples scored; {counts['candidate_sentences']} candidate and "
        f"{counts['reference_sentences']} reference sentences; {counts['judgements']} judgements, "
        f"{counts['failed_judgements']} without a valid answer",
    )
    for part, usage in result.usage.items():
        if usage.get("calls") or usage.get("cached"):
            say(console, f"{part}: {answers(usage)}{_cost(usage, price)}")
    # What a judge says of its own figures belongs beside them.
    if result.splitter is not None:
        say(console, f"Narratives split by: {result.splitter.get('name')}")
    for who in filter(None, (result.judge, result.splitter)):
        for key, lead in (("note", ""), ("few_shots_from", f"Few-shot examples of {who.get('name')}: ")):
            if said := who.get(key):
                say(console, f"{lead}{said}", style="yellow")
    if said := unread_note(counts.get("unread_sentences", 0), len(result.sentences)):
        say(console, said, style="yellow")
    left_out = [sample for sample in result.samples if sample.failure is not None]
    for sample in left_out[:_LISTED]:
        say(console, f"left out: {sample.sample_id}: {sample.failure}", style="red")
    if len(left_out) > _LISTED:
        say(console, f"and {len(left_out) - _LISTED} more, listed in samples.jsonl", style="red")


def show_evaluation(console: Console, evaluation: Evaluation, price: Price | None) -> None:
    """The figures of a run by metric, what they cost, and what was left out."""
    table = Table()
    for heading in ("figure", "point", "95 % interval", "n", "failed"):
        table.add_column(heading, justify="left" if heading == "figure" else "right", no_wrap=heading != "figure")
    for run in evaluation.runs.values():
        failed = str(len(run.scored.failures))
        for figure, one in run.summaries.items():
            interval = f"{number(one.low)} to {number(one.high)}" if one.low is not None else "-"
            lead = f"{escape(figure)} {MARKS[one.direction]}".strip()
            table.add_row(lead, number(one.point), interval, str(one.n), failed)
        table.add_section()
    console.print(table)
    say(console, "↑ higher is better, ↓ lower is better, others are neither.")
    for name, run in evaluation.runs.items():
        usage = run.scored.usage
        if usage.get("calls") or usage.get("cached"):
            say(console, f"{name}: {answers(usage)}{_cost(usage, price)}")
        for place, reason in list(run.scored.failures.items())[:_LISTED]:
            say_line(console, f"{name}: left out: {evaluation.pairs[place].sample_id}: {reason}", style="red")
        if len(run.scored.failures) > _LISTED:
            say(console, f"{name}: and {len(run.scored.failures) - _LISTED} more, listed in samples.jsonl", style="red")
    for note in _notes_of_judges(evaluation):
        say(console, note, style="yellow")
    for name, why in evaluation.unavailable.items():
        say_line(console, f"without {name}: {why}", style="yellow")
    if evaluation.left_out:
        say(console, f"{len(evaluation.left_out)} references without a candidate are in no figure", style="red")
    kept = [name for name, run in evaluation.runs.items() if run.reused]
    if kept:
        say(console, f"taken from the earlier run: {', '.join(kept)}")


def _notes_of_judges(evaluation: Evaluation) -> list[str]:
    """What RadFact's judge and splitter say of their own figures."""
    from radfact.judges.offline.judge import unread_note

    run = evaluation.runs.get("radfact")
    if run is None:
        return []
    who = evaluation.settings_of_radfact
    judge, splitter = who.get("judge") or {}, who.get("splitter") or {}
    split = f", narratives split by {splitter.get('name')}" if splitter else ""
    usage = run.scored.usage
    unread = unread_note(usage.get("unread_sentences", 0), usage.get("sentences", 0))
    return [
        f"radfact: judge {judge.get('name')}{split}",
        *dict.fromkeys(str(one["note"]) for one in (judge, splitter) if one.get("note")),
        *([unread] if unread else []),
    ]


def answers(usage: Mapping[str, int]) -> str:
    """An usage in words: how many answers, from where, and how many that could not be used."""
    parts = [f"{usage.get('calls', 0)} calls"]
    for key, words in (
        ("cached", "answers that were kept"),
        ("repairs", "repaired"),
        ("failures", "failed"),
        ("retries", "retries"),
    ):
        if usage.get(key):
            parts.append(f"{usage[key]} {words}")
    if usage.get("tokens_in"):
        parts.append(f"tokens {short(usage['tokens_in'])} in, {short(usage['tokens_out'])} out")
    return ", ".join(parts)


def _cost(usage: Mapping[str, int], price: Price | None) -> str:
    return "" if price is None else f", cost {price.of(usage):.2f}"


def show_check(console: Console, check: Check, price: Price | None) -> None:
    """How often a judge was right, in what it was wrong, and what it took."""
    say(console, f"Judge {check.judge} on {check.n} labelled judgements")
    table = Table()
    figures = {name: getattr(check, name) for name in ("accuracy", "precision", "recall", "f1", "evidence_f1")}
    for name in figures:
        table.add_column(name, justify="right")
    table.add_row(*map(number, figures.values()))
    console.print(table)
    console.print(_confusion_table("label", {label: {label: row} for label, row in check.confusion.items()}))
    if check.by_topic:
        console.print(_confusion_table("topic", check.by_topic))
    cost = {name: getattr(check, name) for name in ("calls", "tokens_in", "tokens_out", "failures")}
    pace = f" ({check.n / check.seconds:.3g} a second)" if check.seconds else ""
    say(console, f"{check.seconds:.3g} seconds{pace}; {answers(cost)}{_cost(cost, price)}")
    if check.agreement is not None:
        agreement = check.agreement
        say(
            console,
            f"A report a call agrees with a sentence a call on {agreement.share:.1%} of {agreement.n}: accuracy "
            f"{number(agreement.accuracy_report)} against {number(agreement.accuracy_sentence)}",
        )
    say(console, "Precision, recall and F1 are those of the entailed class; a failed answer counts as wrong.")


def _confusion_table(heading: str, rows: Mapping[str, Confusion]) -> Table:
    """One line a label or topic: how many, how they were judged, and the share that was judged rightly."""
    from radfact.judges.check import FAILED, accuracy_of

    table = Table()
    table.add_column(heading)
    for name in ("n", "entailment", "not_entailment", FAILED, "accuracy"):
        table.add_column(name, justify="right")
    for name, confusion in rows.items():
        said = {
            status: sum(row.get(status, 0) for row in confusion.values())
            for status in ("entailment", "not_entailment", FAILED)
        }
        table.add_row(
            escape(name),
            str(sum(said.values())),
            *(str(count) for count in said.values()),
            number(accuracy_of(confusion)),
        )
    return table


def say(console: Console, text: str, style: str | None = None) -> None:
    """One paragraph of plain text: nothing in it is markup."""
    console.print(escape_for_terminal(text), style=style, markup=False)


def number(value: float | None) -> str:
    """A figure in three decimals, a dash where there is none."""
    return "-" if value is None else f"{value:.3f}"


def say_line(console: Console, text: str, style: str | None = None) -> None:
    """One line of plain text however long it is, so that it can be searched for and copied."""
    console.print(escape_for_terminal(text), style=style, markup=False, soft_wrap=True)


def say_path(console: Console, lead: str, path: object) -> None:
    """Where something lies."""
    say_line(console, f"{lead} {path}")
