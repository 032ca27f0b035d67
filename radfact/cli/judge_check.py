"""`radfact judge-check`: is a judge any good?"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from radfact.cli import options as shared
from radfact.cli.inputs import check_folder
from radfact.cli.options import JUDGE, OUTPUT, JudgeOptions, naming_options
from radfact.cli.tables import new_console, say, say_line, say_path, show_check
from radfact.errors import InputError
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


def judge_check(
    labelled: Annotated[
        Path | None,
        typer.Argument(
            help="Labelled judgements in the published few-shot layout. Default: those that come with radfact.",
        ),
    ] = None,
    config: shared.Config = None,  # noqa: ARG001
    judge: shared.JudgeName = None,
    judge_arg: shared.JudgeArgs = None,
    base_url: shared.BaseUrl = None,
    few_shots: shared.FewShots = None,
    system: shared.System = None,
    answer_format: shared.Format = shared.AnswerFormat.YAML,
    batch: shared.BatchOption = shared.Batch.SENTENCE,
    concurrency: shared.Concurrency = None,
    price: shared.PriceOption = None,
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
    who = JudgeOptions(judge, judge_arg, base_url, few_shots, system, answer_format, batch, concurrency)
    rate = parse_price(price)
    if out is not None:
        check_folder(out.parent)
    if comparisons:
        if labelled is not None:
            raise InputError("--comparisons has sentences of its own; leave the file out")
        _check_comparisons(console, who, rate, out)
        return
    questions = load_labeled_queries(labelled)
    loaded = who.load(None if out is None else out.parent / "cache")
    with ProgressDisplay(new_console(stderr=True), {"judging": loaded.usage}, rate):
        found = check_judge(loaded, questions)
    show_check(console, found, rate)
    if out is not None:
        write_json(out, {**found.as_dict(), "described": loaded.describe()})
        say_path(console, "Written to", out)


def _check_comparisons(console: Console, who: JudgeOptions, rate: Price | None, out: Path | None) -> None:
    """Ask the model about our own labelled sentences, and print how often it was right."""
    from radfact.io.jsonl import write_json
    from radfact.metrics.mentions import ComparisonMentions, check_comparisons
    from radfact.metrics.resources import MetricResources

    made = MetricResources(
        model=who.name,
        judge_args=who.arguments,
        base_url=who.base_url,
        concurrency=who.concurrency,
        cache=None if out is None else out.parent / "cache",
    )
    try:
        with naming_options():
            metric = ComparisonMentions(made.client(ComparisonMentions.parameters, ComparisonMentions.name))
        with ProgressDisplay(new_console(stderr=True), made.usage_by_role, rate):
            found = check_comparisons(metric)
    finally:
        made.close()
    for text in found.wrong:
        say_line(console, f"wrong: {text}", style="yellow")
    say(
        console,
        f"{who.name} on {found.n} sentences: accuracy {found.accuracy:.1%}, sensitivity {found.sensitivity:.1%}, "
        f"specificity {found.specificity:.1%}; {found.failures} without a valid answer, which count as wrong",
    )
    if out is not None:
        write_json(out, {"judge": who.name, **asdict(found)})
        say_path(console, "Written to", out)
