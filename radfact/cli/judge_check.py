"""`radfact judge-check`: is a judge any good?"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from radfact.cli.command import with_options
from radfact.cli.inputs import check_folder
from radfact.cli.options import JUDGE, OUTPUT, PriceOption
from radfact.cli.tables import new_console, say, say_line, say_path, show_check
from radfact.errors import ErrorCode, InputError
from radfact.judges.options import JudgeOptions
from radfact.options import only
from radfact.progress import Price, ProgressDisplay, parse_price

if TYPE_CHECKING:
    from rich.console import Console

MANUAL = "\n".join(
    (
        "Put labelled judgements to a judge: accuracy, precision, recall and F1 of the entailed class, F1 of the "
        "evidence, confusion by label and by topic, seconds and tokens.",
        "",
        "With --batch report it also asks one sentence a call, and says how far the two agree.",
        "",
        "With --comparisons it puts 50 sentences of our own to the model instead: does each speak of an earlier "
        "examination? The metric comparison_mentions is as good as the model is at that.",
        "",
        "[bold]Examples[/bold]",
        "  radfact judge-check --judge offline",
        "  radfact judge-check examples.json --judge openai:MODEL --batch report \\",
        "      --out check.json",
        "  radfact judge-check --comparisons --judge openai:MODEL",
    )
)


@with_options
def judge_check(
    judge: Annotated[
        JudgeOptions,
        only("judge", "judge_args", "base_url", "few_shots", "system", "answer_format", "batch", "concurrency"),
    ],
    labelled: Annotated[
        Path | None,
        typer.Argument(
            help="Labelled judgements in the published few-shot layout. Default: those that come with radfact.",
        ),
    ] = None,
    price: PriceOption = None,
    comparisons: Annotated[
        bool,
        typer.Option(
            "--comparisons",
            help="Check how the model detects mentions of an earlier examination.",
            rich_help_panel=JUDGE,
        ),
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Write the result as JSON too, and keep a model's answers in the folder cache beside it.",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
) -> None:
    """Put labelled judgements to a judge and print how often it was right."""
    from radfact.io.jsonl import write_json
    from radfact.judges.check import check_judge, load_labeled_queries

    console = new_console()
    judge, rate = judge.or_environment(), parse_price(price)
    if out is not None:
        check_folder(out.parent)
    if comparisons:
        if labelled is not None:
            raise InputError(
                "expected no file, since --comparisons has its own sentences", code=ErrorCode.CONFLICTING_OPTIONS
            )
        _check_comparisons(console, judge, rate, out)
        return
    questions = load_labeled_queries(labelled)
    loaded = judge.load(None if out is None else out.parent / "cache")
    with ProgressDisplay(new_console(stderr=True), {"judging": loaded.usage}, rate):
        found = check_judge(loaded, questions)
    show_check(console, found, rate)
    if out is not None:
        write_json(out, {**found.as_dict(), "described": loaded.describe()})
        say_path(console, "Written to", out)


def _check_comparisons(console: Console, judge: JudgeOptions, rate: Price | None, out: Path | None) -> None:
    """Ask the model about our own labelled sentences, and print how often it was right."""
    from radfact.io.jsonl import write_json
    from radfact.metrics.mentions import ComparisonMentions, check_comparisons
    from radfact.metrics.resources import MetricResources

    name = judge.required_judge
    resources = MetricResources(judge=judge, cache=None if out is None else out.parent / "cache")
    try:
        metric = ComparisonMentions(resources.client(ComparisonMentions.parameters, ComparisonMentions.name))
        with ProgressDisplay(new_console(stderr=True), resources.usage_by_role, rate):
            found = check_comparisons(metric)
    finally:
        resources.close()
    for text in found.wrong:
        say_line(console, f"wrong: {text}", style="yellow")
    say(
        console,
        f"{name} on {found.n} sentences: accuracy {found.accuracy:.1%}, sensitivity {found.sensitivity:.1%}, "
        f"specificity {found.specificity:.1%}; {found.failures} without a valid answer, which count as wrong",
    )
    if out is not None:
        write_json(out, {"judge": name, **asdict(found)})
        say_path(console, "Written to", out)
