"""`radfact judge-check`: is a judge any good?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from radfact.cli import options as shared
from radfact.cli.inputs import check_folder
from radfact.cli.options import OUTPUT, JudgeOptions
from radfact.cli.price import read_price
from radfact.cli.tables import new_console, say_path, show_check
from radfact.live import LiveDisplay

MANUAL = "\n".join(
    (
        "Put labelled judgements to a judge: accuracy, precision, recall and F1 of the entailed class, F1 of the "
        "evidence, confusion by label and by topic, seconds and tokens.",
        "",
        "With --batch report it also asks one sentence a call, and says how far the two agree.",
        "",
        "[bold]Examples[/bold]",
        "  radfact judge-check --judge offline",
        "  radfact judge-check examples.json --judge openai:MODEL --batch report \\",
        "      --out check.json",
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
    from radfact.entailment.check import check, load_labelled
    from radfact.jsonl import write_json

    console = new_console()
    who = JudgeOptions(judge, judge_arg, base_url, few_shots, system, answer_format, batch, concurrency)
    rate = read_price(price)
    questions = load_labelled(labelled)
    if out is not None:
        check_folder(out.parent)
    loaded = who.load(None if out is None else out.parent / "cache")
    with LiveDisplay(new_console(stderr=True), {"judging": loaded.account}, rate):
        found = check(loaded, questions)
    show_check(console, found, rate)
    if out is not None:
        write_json(out, {**found.as_dict(), "described": loaded.describe()})
        say_path(console, "Written to", out)
