"""`maira judge-data` and `maira judge-train`: a judge of one's own."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from maira.cli.show import end, say
from radfact.cli.meta_agreement import BetterName
from radfact.errors import InputError

if TYPE_CHECKING:
    from maira.judge.data import Written

DATA_MANUAL = "\n".join(
    (
        "Make training data for a judge, with what is held out: of reports, which are paired and which teachers are "
        "asked about, or, for VERT, of experts' ratings (--ratings).",
        "",
        "Teachers are asked in their order, each what those before it have no answer to: injected (the errors that "
        "rules put into reports are the answers), offline (entailment), PROVIDER:MODEL, vllm:PATH or "
        "python:MODULE:OBJECT (entailment).",
        "",
        "[bold]Examples[/bold]",
        "  maira judge-data reports.csv --task entailment --balanced \\",
        "      --teacher injected --teacher offline --out data",
        "  maira judge-data reports.csv --task green --teacher openai:MODEL \\",
        "      --drafts drafts.jsonl --out data",
        "  maira judge-data --task vert --ratings rate_train.csv \\",
        "      --layout rate-eval --out data",
        "  radfact judge-check data/heldout.json --judge vllm:runs/judge/checkpoint",
        "  radfact meta agreement data/heldout.csv --better higher --metrics green \\",
        "      --judge vllm:runs/judge/checkpoint",
    )
)
_RATED = "Experts' ratings (VERT)"
_TAUGHT = "Reports and teachers"


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
    REWORDED = "reworded"


class RatingsLayout(StrEnum):
    """How a set of ratings is laid out."""

    PLAIN = "plain"
    REXVAL = "rexval"
    REFISCO_V0 = "refisco-v0"
    REFISCO_V1 = "refisco-v1"
    RATE_EVAL = "rate-eval"
    RADEVAL = "radeval"


def judge_data(
    task: Annotated[TaskName, typer.Option(help="What the judge will be asked.")],
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="Folder to write to.")],
    reports: Annotated[
        Path | None,
        typer.Argument(help="References: CSV (id, report) or JSON Lines (sample_id, findings), as a manifest."),
    ] = None,
    teacher: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Who says what is right; may be repeated.", rich_help_panel=_TAUGHT),
    ] = None,
    pairing: Annotated[
        list[PairingName] | None,
        typer.Option(
            help="Kind of pairs; may be repeated. Default: all that there is something for.", rich_help_panel=_TAUGHT
        ),
    ] = None,
    drafts: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Drafts of a model (maira generate).", rich_help_panel=_TAUGHT),
    ] = None,
    few_shots: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Worked examples the judge will be shown, or none. Default: as --judge shows them.",
            rich_help_panel=_TAUGHT,
        ),
    ] = None,
    balanced: Annotated[
        bool,
        typer.Option(
            "--balanced",
            help="Draw as many entailed questions as others, few of them word for word.",
            rich_help_panel=_TAUGHT,
        ),
    ] = False,
    count: Annotated[int | None, typer.Option(min=1, help="Most pairs.", rich_help_panel=_TAUGHT)] = None,
    base_url: Annotated[
        str | None,
        typer.Option(metavar="URL", help="OpenAI-compatible server of the last teacher.", rich_help_panel=_TAUGHT),
    ] = None,
    judge_arg: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE", help="Argument of the last teacher; may be repeated.", rich_help_panel=_TAUGHT
        ),
    ] = None,
    concurrency: Annotated[int | None, typer.Option(min=1, help="Calls in flight.", rich_help_panel=_TAUGHT)] = None,
    ratings: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Rated pairs, instead of reports.", rich_help_panel=_RATED)
    ] = None,
    layout: Annotated[
        RatingsLayout | None, typer.Option(help="How they are laid out. Default: plain.", rich_help_panel=_RATED)
    ] = None,
    scale: Annotated[
        tuple[float, float] | None,
        typer.Option(
            metavar="LEAST GREATEST", help="Of the ratings. Default for rate-eval: 0 5.", rich_help_panel=_RATED
        ),
    ] = None,
    better: Annotated[
        BetterName | None, typer.Option(help="Which way those of a plain table are better.", rich_help_panel=_RATED)
    ] = None,
    target: Annotated[
        str | None,
        typer.Option(
            metavar="QUANTITY", help="What of the ratings is learnt. Default: the set's own.", rich_help_panel=_RATED
        ),
    ] = None,
    held_out: Annotated[float, typer.Option(min=0, max=0.9, help="Share of the references to hold out.")] = 0.1,
    seed: Annotated[int, typer.Option(min=0, help="Of all that is drawn.")] = 42,
) -> None:
    """Make training data for a judge."""
    from maira.judge.data import Aside, Teacher, make_judge_data, make_rated_data
    from radfact.cli.options import key_values, naming_options

    taught: dict[str, object] = {
        **{"--teacher": teacher, "--pairing": pairing, "--drafts": drafts, "--few-shots": few_shots},
        **{"--balanced": balanced, "--count": count},
        **{"--base-url": base_url, "--judge-arg": judge_arg, "--concurrency": concurrency},
    }
    rated = {"--layout": layout, "--scale": scale, "--better": better, "--target": target}
    _check_sources(task, reports, ratings, taught, rated)
    aside = Aside(held_out, seed)
    with naming_options(pairings="--pairing", arguments="--judge-arg"):
        if ratings is not None:
            written = make_rated_data(
                ratings,
                layout.value if layout else "plain",
                out,
                scale=scale,
                better=better.value if better else None,
                target=target,
                aside=aside,
            )
        else:
            names = teacher or []
            asked = Teacher(names[-1], base_url, key_values(judge_arg, "--judge-arg"), concurrency, out / "cache")
            written = make_judge_data(
                _references(reports),
                task.value,
                [*(Teacher(name, cache=out / "cache") for name in names[:-1]), asked],
                out,
                pairings=[one.value for one in pairing] if pairing else None,
                drafts=_drafts(drafts),
                few_shots=few_shots,
                balanced=balanced,
                aside=aside,
                count=count,
            )
    _show(written, out)


def _check_sources(
    task: TaskName,
    reports: Path | None,
    ratings: Path | None,
    taught: Mapping[str, object],
    rated: Mapping[str, object],
) -> None:
    """See to it that there are reports or ratings, and no options of the other."""
    if (reports is None) == (ratings is None):
        raise InputError("give reports, or experts' ratings with --ratings, one of the two")
    if ratings is not None and task is not TaskName.VERT:
        raise InputError(f"--ratings: scores of experts teach --task vert, and no answers of {task.value}")
    other = "reports" if ratings is not None else "--ratings"
    for option, value in (taught if ratings is not None else rated).items():
        if value:
            raise InputError(f"{option}: goes with {other} alone; leave this out")
    if ratings is None and not taught["--teacher"]:
        raise InputError("say who answers: --teacher injected, offline or PROVIDER:MODEL")


def _show(written: Written, out: Path) -> None:
    console = Console()
    for split, number in written.samples.items():
        say(console, f"{number} samples to {'train on' if split == 'train' else 'check with'}")
    say(console, f"{out / 'samples.jsonl'}; held out: {written.held_out}")
    end(console, list(written.failures.items()))


def _references(reports: Path | None) -> dict[str, str]:
    from radfact.meta.tables import read_reports

    return {} if reports is None else {one.sample_id: one.report for one in read_reports(reports, default_site="-")}


def _drafts(file: Path | None) -> dict[str, str] | None:
    from radfact.files import read_drafts
    from radfact.report import narrative

    return {key: narrative(report) for key, report in read_drafts(file).items()} if file else None


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
