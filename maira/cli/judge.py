"""`maira judge-data` and `maira judge-train`: a judge of one's own."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from maira.cli.show import end, say

DATA_MANUAL = "\n".join(
    (
        "Make training data for a judge: pairs of reports, a teacher's answers, and what is held out.",
        "",
        "[bold]Examples[/bold]",
        "  maira judge-data reports.csv --task entailment --teacher offline \\",
        "      --out data",
        "  maira judge-data reports.csv --task green --teacher openai:MODEL \\",
        "      --drafts drafts.jsonl --out data",
        "  radfact judge-check data/heldout.json --judge vllm:runs/judge/checkpoint",
        "  radfact meta agreement data/heldout.csv --better higher --metrics green \\",
        "      --judge vllm:runs/judge/checkpoint",
    )
)


class TaskName(StrEnum):
    """What a judge is asked."""

    GREEN = "green"
    VERT = "vert"
    ENTAILMENT = "entailment"


class PairingName(StrEnum):
    """How a candidate is found for a reference."""

    RANDOM = "random"
    EDITED = "edited"
    DRAFTED = "drafted"
    NEAREST = "nearest"
    PERMUTED = "permuted"


def judge_data(
    reports: Annotated[
        Path, typer.Argument(help="References: CSV (id, report) or JSON Lines (sample_id, findings), as a manifest.")
    ],
    task: Annotated[TaskName, typer.Option(help="What the judge will be asked.")],
    teacher: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="Who says what is right: injected (errors put in by rules), offline (entailment), PROVIDER:MODEL, "
            "vllm:PATH or python:MODULE:OBJECT (entailment).",
        ),
    ],
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="Folder to write to.")],
    pairing: Annotated[
        list[PairingName] | None,
        typer.Option(help="Kind of pairs; may be repeated. Default: all that there is something for."),
    ] = None,
    drafts: Annotated[Path | None, typer.Option(metavar="FILE", help="Drafts of a model (maira generate).")] = None,
    few_shots: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Worked examples the judge will be shown, or none. Default: as --judge shows them."
        ),
    ] = None,
    held_out: Annotated[float, typer.Option(min=0, max=0.9, help="Share of the references to hold out.")] = 0.1,
    count: Annotated[int | None, typer.Option(min=1, help="Most pairs.")] = None,
    base_url: Annotated[
        str | None, typer.Option(metavar="URL", help="OpenAI-compatible server of the teacher.")
    ] = None,
    judge_arg: Annotated[
        list[str] | None, typer.Option(metavar="KEY=VALUE", help="Argument of the teacher; may be repeated.")
    ] = None,
    concurrency: Annotated[int | None, typer.Option(min=1, help="Calls in flight.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of all that is drawn.")] = 42,
) -> None:
    """Make training data for a judge."""
    from maira.judge.data import Teacher, make_judge_data
    from radfact.cli.options import key_values, naming_options
    from radfact.files import read_drafts
    from radfact.meta.tables import read_reports
    from radfact.report import narrative

    references = {one.sample_id: one.report for one in read_reports(reports, default_site="-")}
    drafted = {key: narrative(report) for key, report in read_drafts(drafts).items()} if drafts else None
    with naming_options(pairings="--pairing"):
        written = make_judge_data(
            references,
            task.value,
            Teacher(teacher, base_url, key_values(judge_arg, "--judge-arg"), concurrency, out / "cache"),
            out,
            pairings=[one.value for one in pairing] if pairing else None,
            drafts=drafted,
            few_shots=few_shots,
            held_out=held_out,
            count=count,
            seed=seed,
        )
    console = Console()
    for split, number in written.samples.items():
        say(console, f"{number} samples to {'train on' if split == 'train' else 'check with'}")
    say(console, f"{out / 'samples.jsonl'}; held out: {written.held_out}")
    end(console, list(written.failures.items()))


def judge_train(
    recipe: Annotated[Path, typer.Argument(help="Recipe (YAML), as in configs/judges.")],
    overrides: Annotated[list[str] | None, typer.Argument(help="key=value, instead of the recipe's.")] = None,
) -> None:
    """Train a language model as a judge; the same command goes on where an interrupted run stopped.

    The folder that it leaves is served by vLLM like any other: --judge vllm:FOLDER, or --judge openai:NAME --base-url.
    """
    from transformers.utils.logging import disable_progress_bar

    from maira.judge.recipe import read_judge_recipe
    from maira.judge.training import train_judge

    disable_progress_bar()
    console = Console()
    say(console, f"judge: {train_judge(read_judge_recipe(recipe, overrides), console)}")
