"""`maira judge-data` and `maira judge-train`: train a custom judge."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from pydantic import PositiveInt
from rich.console import Console

from maira.cli.show import exit_with_failures, print_line
from radfact.cli.command import with_options
from radfact.errors import ErrorCode, InputError
from radfact.judges.options import JudgeOptions
from radfact.options import Option, Options, only, rename_fields

if TYPE_CHECKING:
    from maira.judge.data import JudgeDataSummary, Teacher


class ReportOptions(Options):
    """Training examples from reports."""

    panel = "Reports and teachers"

    teachers: Annotated[
        tuple[str, ...], Option("Source of the labels; repeatable.", flag="--teacher", metavar="NAME")
    ] = ()
    pairings: Annotated[
        tuple[Literal["random", "edited", "drafted", "nearest", "permuted", "reworded"], ...],
        Option("Kind of pairs; repeatable. Default: all whose input is available.", flag="--pairing"),
    ] = ()
    drafts: Annotated[Path | None, Option("Drafts of a model (maira generate).", metavar="FILE")] = None
    balanced: Annotated[
        bool,
        Option("Draw as many entailed queries as others; few of those to train on word for word.", flag="--balanced"),
    ] = False
    count: Annotated[PositiveInt | None, Option("Maximum number of pairs.")] = None


class RatingOptions(Options):
    """Training examples from experts' ratings."""

    panel = "Experts' ratings (VERT)"

    ratings: Annotated[Path | None, Option("Rated pairs, instead of reports.", metavar="FILE")] = None
    layout: Annotated[
        Literal["plain", "rexval", "refisco-v0", "refisco-v1", "rate-eval", "radeval"], Option("Layout of the ratings.")
    ] = "plain"
    scale: Annotated[
        tuple[float, float] | None,
        Option("Lowest and highest rating. Default for rate-eval: 0 5.", metavar="LOWEST HIGHEST"),
    ] = None
    better: Annotated[
        Literal["higher", "lower"] | None, Option("Direction in which the ratings of a plain table are better.")
    ] = None
    target: Annotated[
        str | None, Option("Quantity of the ratings to learn. Default: that of the set.", metavar="QUANTITY")
    ] = None


DATA_MANUAL = "\n".join(
    (
        "Make training data for a judge, with a held-out part: from reports, which are paired and labeled by teachers, "
        "or, for VERT, from experts' ratings (--ratings).",
        "",
        "Teachers are queried in their order, each about what those before it cannot label: injected (the errors that "
        "rules put into reports are the labels), offline (entailment), PROVIDER:MODEL, vllm:PATH or "
        "python:MODULE:OBJECT (entailment). The options of a model are those of the last teacher.",
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


@with_options
def judge_data(
    task: Annotated[Literal["green", "vert", "entailment"], typer.Option(help="Task of the judge.")],
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="Folder to write.")],
    options: ReportOptions,
    model: Annotated[JudgeOptions, only("judge_args", "base_url", "few_shots", "concurrency")],
    rated: RatingOptions,
    reports: Annotated[
        Path | None,
        typer.Argument(help="References: CSV (id, report) or JSON Lines (sample_id, findings), as a manifest."),
    ] = None,
    held_out: Annotated[float, typer.Option(min=0, max=0.9, help="Share of the references to hold out.")] = 0.1,
    seed: Annotated[int, typer.Option(min=0, help="Seed of all random choices.")] = 42,
) -> None:
    """Make training data for a judge."""
    from maira.judge.data import HoldOut, make_judge_data, make_rated_data

    if (reports is None) == (rated.ratings is None):
        raise InputError("expected either reports or --ratings", code=ErrorCode.CONFLICTING_OPTIONS)
    hold_out = HoldOut(held_out, seed)
    if rated.ratings is not None:
        if task != "vert":
            raise InputError(
                f"expected --task vert, which experts' scores teach, found '{task}'",
                code=ErrorCode.CONFLICTING_OPTIONS,
                field="ratings",
            )
        _refuse((options, model), "reports")
        written = make_rated_data(
            rated.ratings,
            rated.layout,
            out,
            scale=rated.scale,
            better=rated.better,
            target=rated.target,
            hold_out=hold_out,
        )
    else:
        _refuse((rated,), "--ratings")
        if not options.teachers:
            raise InputError(
                "expected a teacher: injected, offline or PROVIDER:MODEL",
                code=ErrorCode.MISSING_OPTION,
                field="teachers",
            )
        with rename_fields({"arguments": "judge_args"}):
            written = make_judge_data(
                _references(reports),
                task,
                _teachers(options.teachers, model, out / "cache"),
                out,
                pairings=options.pairings or None,
                drafts=_drafts(options.drafts),
                few_shots=model.few_shots,
                balanced=options.balanced,
                hold_out=hold_out,
                count=options.count,
            )
    _show(written, out, expects_heldout=held_out > 0)


def _refuse(models: Sequence[Options], required: str) -> None:
    """Refuse options that have no effect without an input that is not given.

    Raises:
        InputError: one of them differs from its default.
    """
    for options in models:
        if arguments := options.as_arguments():
            raise InputError(f"only available with {required}", code=ErrorCode.CONFLICTING_OPTIONS, field=arguments[0])


def _teachers(names: Sequence[str], model: JudgeOptions, cache: Path) -> list[Teacher]:
    """Return the teachers; the options of a model are those of the last one."""
    from maira.judge.data import Teacher

    last = Teacher(names[-1], model.base_url, model.judge_args, model.concurrency, cache)
    return [*(Teacher(name, cache=cache) for name in names[:-1]), last]


def _show(written: JudgeDataSummary, out: Path, *, expects_heldout: bool) -> None:
    """Print what was written, and what to change if nothing could be held out."""
    console = Console()
    for split, number in written.samples.items():
        print_line(console, f"{number} samples to {'train on' if split == 'train' else 'check with'}")
    is_held = written.samples.get("heldout", 0) > 0
    print_line(console, f"{out / 'samples.jsonl'}; held out: {written.held_out if is_held else 'nothing'}")
    if expects_heldout and not is_held:
        print_line(
            console,
            "Nothing is held out to check or validate with: too few references were drawn, or training has all of "
            "their queries as well. Choose a greater --held-out, or add reports.",
        )
    exit_with_failures(console, list(written.failures.items()))


def _references(reports: Path | None) -> dict[str, str]:
    from radfact.meta.datasets.reports import read_reports

    if reports is None:
        return {}
    return {item.sample_id: item.report for item in read_reports(reports, default_site="-")}


def _drafts(file: Path | None) -> dict[str, str] | None:
    from radfact.io.pairs import read_drafts
    from radfact.records import narrative

    return {key: narrative(report) for key, report in read_drafts(file).items()} if file else None


def judge_train(
    config: Annotated[Path, typer.Argument(help="Configuration (YAML), as in configs/judges.")],
    overrides: Annotated[list[str] | None, typer.Argument(help="key=value, overrides the configuration.")] = None,
) -> None:
    """Train a language model as a judge. The same command resumes an interrupted run.

    vLLM serves the resulting folder like any other: --judge vllm:FOLDER, or --judge openai:NAME --base-url.
    """
    from transformers.utils.logging import disable_progress_bar

    from maira.judge.run_config import read_judge_config
    from maira.judge.training import train_judge

    disable_progress_bar()
    console = Console()
    print_line(console, f"judge: {train_judge(read_judge_config(config, overrides), console)}")
