"""`radfact judge-check`: evaluate a judge on labeled examples."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from radfact.cli.command import with_options
from radfact.cli.inputs import check_folder
from radfact.cli.options import JUDGE, OUTPUT, PriceOption
from radfact.cli.tables import new_console, say, show_check
from radfact.errors import ErrorCode, InputError
from radfact.judges.options import JudgeOptions
from radfact.options import only
from radfact.progress import Price, ProgressDisplay, parse_price

if TYPE_CHECKING:
    from rich.console import Console

MANUAL = "\n".join(
    (
        "Evaluate a judge on labeled examples, and print accuracy, precision, recall and F1 of the entailed class, F1 "
        "of the evidence, confusion matrices by label and topic, time and tokens.",
        "",
        "With --batch report, also query the judge one sentence at a time, and print the agreement of the two modes.",
        "",
        "With --comparisons, test instead whether the model detects mentions of an earlier examination in 50 built-in "
        "sentences. The metric comparison_mentions depends on this.",
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
    labeled: Annotated[
        Path | None,
        typer.Argument(
            help="Labeled examples in the published few-shot format. Default: the built-in ones.",
        ),
    ] = None,
    price: PriceOption = None,
    comparisons: Annotated[
        bool,
        typer.Option(
            "--comparisons",
            help="Test the detection of mentions of an earlier examination.",
            rich_help_panel=JUDGE,
        ),
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Also write the result as JSON; model responses are cached in cache/ in the same folder.",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
) -> None:
    """Evaluate a judge on labeled examples."""
    from radfact.io.jsonl import write_json
    from radfact.judges.check import check_judge, load_labeled_queries

    console = new_console()
    judge, token_price = judge.or_environment(), parse_price(price)
    if out is not None:
        check_folder(out.parent)
    if comparisons:
        if labeled is not None:
            raise InputError(
                "expected no file, since --comparisons has its own sentences", code=ErrorCode.CONFLICTING_OPTIONS
            )
        _check_comparisons(console, judge, token_price, out)
        return
    queries = load_labeled_queries(labeled)
    loaded_judge = judge.load(None if out is None else out.parent / "cache")
    with ProgressDisplay(new_console(stderr=True), {"judging": loaded_judge.usage}, token_price):
        result = check_judge(loaded_judge, queries)
    show_check(console, result, token_price)
    if out is not None:
        write_json(out, {**result.as_dict(), "described": loaded_judge.describe()})
        say(console, f"Written to {out}", wrap=False)


def _check_comparisons(console: Console, judge: JudgeOptions, price: Price | None, out: Path | None) -> None:
    """Query the model with the packaged sentences and print its accuracy."""
    from radfact.io.jsonl import write_json
    from radfact.metrics.mentions import ComparisonMentions, check_comparisons
    from radfact.metrics.resources import MetricResources

    name = judge.required_judge
    resources = MetricResources(judge=judge, cache=None if out is None else out.parent / "cache")
    try:
        metric = ComparisonMentions(resources.client(ComparisonMentions.parameters, ComparisonMentions.name))
        with ProgressDisplay(new_console(stderr=True), resources.usage_by_role, price):
            result = check_comparisons(metric)
    finally:
        resources.close()
    for text in result.wrong:
        say(console, f"wrong: {text}", style="yellow", wrap=False)
    say(
        console,
        f"{name} on {result.n} sentences: accuracy {result.accuracy:.1%}, sensitivity {result.sensitivity:.1%}, "
        f"specificity {result.specificity:.1%}; {result.failures} without a valid response, counted as wrong",
    )
    if out is not None:
        write_json(out, {"judge": name, **asdict(result)})
        say(console, f"Written to {out}", wrap=False)
