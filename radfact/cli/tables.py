"""Tables and messages that commands print."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from textwrap import fill
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console, JustifyMethod
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
_LONG = 40
"""Characters of a cell that is a text instead of a name or a number."""
_GAP = 2
"""Spaces between columns."""


def new_console(*, stderr: bool = False) -> Console:
    """Return a console that prints texts unchanged: `:m:` in a name is no emoji."""
    return Console(stderr=stderr, emoji=False, highlight=False)


def say(console: Console, text: str, style: str | None = None, *, wrap: bool = True, indent: int = 0) -> None:
    """Print plain text, without markup, broken at spaces; without line breaks, it can be searched and copied."""
    text = escape_for_terminal(text)
    if wrap:
        lines = [_break_at_spaces(line, console.width, indent) for line in text.split("\n")]
        text = "\n".join(lines)
    console.print(text, style=style, markup=False, soft_wrap=True)


def _break_at_spaces(line: str, width: int, indent: int = 0) -> str:
    """Break a line, and indent its continuation as its start or by a number of spaces."""
    space = " " * (indent or len(line) - len(line.lstrip()))
    return fill(line, max(width, 1), subsequent_indent=space, break_long_words=False, break_on_hyphens=False)


def show_rows(
    console: Console, headings: Sequence[str], rows: Iterable[Iterable[str]], *, keys: int = 1, title: str | None = None
) -> None:
    """Print a table of texts in parts as wide as the console, each with the first `keys` columns; no name is broken."""
    cells = [list(row) for row in rows]
    columns = [[row[index] for row in cells] for index in range(len(headings))]
    # Texts are broken at spaces.
    has_text = [index >= keys and any(len(cell) > _LONG for cell in column) for index, column in enumerate(columns)]
    unbroken = [
        [_LONG, *(cell_len(word) for cell in column for word in cell.split())] if is_text else map(cell_len, column)
        for column, is_text in zip(columns, has_text, strict=True)
    ]
    inner = [max(lengths, default=0) for lengths in unbroken]
    if _total_width(map(max, inner, map(cell_len, headings))) > console.width:
        headings = list(map(_break_at_spaces, headings, inner))
    widths = [max(width, *map(cell_len, heading.split("\n"))) for width, heading in zip(inner, headings, strict=True)]
    blocks = [list(range(keys))]
    for index in range(keys, len(headings)):
        if len(blocks[-1]) > keys and _total_width(widths[at] for at in (*blocks[-1], index)) > console.width:
            blocks.append(list(range(keys)))
        blocks[-1].append(index)
    for number, block in enumerate(blocks):
        if number:
            console.print()
        table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0), title=title)
        table.title_justify = "left"
        # A name that is too long for the console is continued in the next line by the terminal.
        table.width = total if (total := _total_width(widths[index] for index in block)) > console.width else None
        for index in block:
            justify: JustifyMethod = "left" if index < keys or has_text[index] else "right"
            table.add_column(escape(headings[index]), justify=justify, no_wrap=not has_text[index])
        for row in cells:
            table.add_row(*(escape(row[index]) for index in block))
        console.print(table, crop=False)


def _total_width(widths: Iterable[int]) -> int:
    return sum(width + _GAP for width in widths) - _GAP


def show_table(console: Console, table: PageTable, *, keys: int = 1, title: str | None = None) -> None:
    """Print a table of a page, of which the first `keys` columns name the rows."""
    from radfact.pages.meta_page import format_cell

    show_rows(console, table.headings, (map(format_cell, row) for row in table.rows), keys=keys, title=title)


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


def show_results(console: Console, result: EvaluationResult, price: Price | None, *, verbose: bool = False) -> None:
    """Print the main scores, and what was excluded or is missing; if verbose, all scores, counts and usage."""
    _show_scores(console, result, verbose)
    for role, usage in result.usage.items():
        if (verbose or price) and (usage.get("calls") or usage.get("cached")):
            say(console, f"{role}: {_calls(usage, price)}")
    if "radfact" in result.runs:
        _show_radfact(console, result, verbose)
    for note in result.examination_notes:
        say(console, note, style="yellow")
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
        say(console, f"without {name}: {why}", style="yellow", wrap=console.is_terminal)


def _show_scores(console: Console, result: EvaluationResult, verbose: bool) -> None:
    from radfact.results.display import format_interval, format_number, main_scores, score_label
    from radfact.results.schema import scores_with_value
    from radfact.results.writer import scores_file

    deviations, units, main = result.repeat_sd, result.units, main_scores(scores_file(result))
    with_value = scores_with_value(result.summaries)
    headings = ["score", "point", "median" if verbose else "", "95% interval", "repeat sd" if deviations else "", "n"]
    rows: list[list[str]] = []
    for metric, names in main.items():
        if verbose and rows:
            rows.append([""] * len(headings))
        for name in (name for name in result.runs[metric].summaries if name in with_value) if verbose else names:
            score = with_value[name]
            numbers = [score.point, score.median, deviations.get(name)]
            point, median, deviation = map(format_number, numbers)
            label = score_label(name, score.direction, units.get(name))
            rows.append([label, point, median, format_interval(score), deviation, str(score.n)])
    shown = [index for index, heading in enumerate(headings) if heading]
    show_rows(console, [headings[index] for index in shown], ([row[index] for index in shown] for row in rows))
    drawn = f"; {result.resampling.describe()}" if result.draws.get("bootstrap") else ""
    say(console, f"↑ higher is better, ↓ lower is better{drawn}.")
    if without := [
        name
        for metric, run in result.runs.items()
        if verbose or not main[metric]
        for name in run.summaries
        if name not in with_value
    ]:
        say(console, f"Scores without a value in any sample: {', '.join(without)}.")
    if result.repeat_sd:
        say(console, "repeat sd: standard deviation of the dataset-level score over the repeats.")
    for note in result.repeat_notes:
        say(console, note)
    if not verbose:
        say(console, f"Main scores; --verbose prints all {len(with_value)}, counts and usage. All are in scores.json.")


def _show_excluded(
    console: Console, prefix: str, failures: Sequence[tuple[str, str]], file: str = "samples.jsonl"
) -> None:
    for sample_id, reason in failures[:_LISTED]:
        say(console, f"{prefix}excluded: {sample_id}: {reason}", style="red", wrap=False)
    if len(failures) > _LISTED:
        say(console, f"{prefix}and {len(failures) - _LISTED} more, listed in {file}", style="red")


def _show_radfact(console: Console, result: EvaluationResult, verbose: bool) -> None:
    from radfact.judges.offline import unread_note

    judge, splitter, counts = result.judge or {}, result.splitter or {}, result.counts
    split = f", narratives split by {splitter.get('name')}" if splitter else ""
    say(console, f"radfact: judge {judge.get('name')}, {result.options['compat']} mode{split}")
    candidate, reference = counts["candidate_sentences"], counts["reference_sentences"]
    scored = len(result.pairs) - len(result.runs["radfact"].result.failures)
    text = f"{scored} of {counts['samples']} samples scored{_without_sentences(counts)}"
    if verbose:
        text += f"; {candidate} candidate and {reference} reference sentences"
    if verbose or counts["failed_judgments"]:
        text += f"; {counts['judgments']} judgments, {counts['failed_judgments']} without a valid response"
    say(console, text)
    if removed := counts["candidate_sentences_removed"] + counts["reference_sentences_removed"]:
        say(console, f"{removed} parts of narratives were removed and are not scored; see removed.jsonl")
    notes = [model["note"] for model in (judge, splitter) if model.get("note")]
    shots = [model for model in (judge, splitter) if verbose and model.get("few_shots_from")]
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
        text += f", {count} of them without a candidate sentence{empty}, hence no precision and a recall of 0"
    if count := counts["references_without_sentences"]:
        text += f", {count} of them without a reference sentence, hence no recall and a precision of 0"
    return text


def _calls(usage: Mapping[str, int], price: Price | None) -> str:
    return ", ".join(filter(None, (f"{usage.get('calls', 0)} calls", describe_usage(usage, price))))


def show_check(console: Console, check: JudgeCheck, price: Price | None) -> None:
    """Print the scores of a judge check, its errors, time and cost."""
    from radfact.judges.check import FAILED
    from radfact.results.display import format_number

    say(console, f"Judge {check.judge} on {check.n} labeled judgments")
    intervals = ((name, interval or (None, None)) for name, interval in check.intervals.items())
    scores = {name: {"value": getattr(check, name), "low": low, "high": high} for name, (low, high) in intervals}
    _show_values(console, "score", scores)
    _show_confusions(console, "label", {label: {label: row} for label, row in check.confusion.items()})
    if check.relations:
        relations = ("entailment", "neutral", "contradiction", "not_entailment", FAILED)
        shown = {name: "no relation" if name == "not_entailment" else name for name in relations}
        counts = {
            label: {heading: row.get(name, 0) for name, heading in shown.items()}
            for label, row in check.relations.items()
        }
        console.print()
        _show_values(console, "label", counts)
    if check.by_topic:
        _show_confusions(console, "topic", check.by_topic)
    _show_confusions(console, "set", check.by_set)
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


def _show_values(console: Console, heading: str, values: Mapping[str, Mapping[str, float | None]]) -> None:
    """Print a table of numbers by name; a whole number is a count."""
    from radfact.results.display import format_number

    rows = [
        [name, *(str(cell) if isinstance(cell, int) else format_number(cell) for cell in row.values())]
        for name, row in values.items()
    ]
    show_rows(console, [heading, *next(iter(values.values()))], rows)


def show_teacher_check(console: Console, check: Mapping[str, Any], price: Price | None) -> None:
    """Print how a judge differs from its teacher, and its cost."""
    from radfact.meta.report import CATEGORY_LEGEND

    failures = check["failures"]
    invalid = f", {len(failures)} without a valid response, which no row counts" if failures else ""
    say(console, f"{check['judge']} against its teacher: {check['metric']} on {check['n']} held-out pairs{invalid}")
    _show_excluded(console, "", list(failures.items()), "the file of --out")
    errors = {name.removeprefix("green_"): row for name, row in check["errors"].items()}
    _show_values(console, "mean absolute error", errors)
    console.print()
    _show_values(console, "agreement", check["agreement"])
    for name, reason in check["unavailable"].items():
        say(console, f"without {name}: {reason}", style="yellow")
    say(console, _calls(check["usage"], price))
    say(console, "constant: the error of the teacher's median as the only answer; teacher, student: means of the score")
    if check["metric"] == "green":
        legend = "accuracy, kappa: any significant error; accuracy_a to _f: the same number of them in a category."
        say(console, f"bleu_4: of all texts, 0 to 100; {legend} {CATEGORY_LEGEND}")


def _show_confusions(console: Console, heading: str, confusions: Mapping[str, Confusion]) -> None:
    """Print a table with the number of queries, the verdicts and the accuracy by label, topic or set."""
    from radfact.judges.check import FAILED, confusion_accuracy

    rows: dict[str, dict[str, float | None]] = {}
    for name, confusion in confusions.items():
        outcomes = ("entailment", "not_entailment", FAILED)
        counts = {outcome: sum(row.get(outcome, 0) for row in confusion.values()) for outcome in outcomes}
        rows[name] = {"n": sum(counts.values()), **counts, "accuracy": confusion_accuracy(confusion)}
    console.print()
    _show_values(console, heading, rows)


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
