"""`maira judge-data` and `maira judge-train`: train a custom judge."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from pydantic import PositiveInt
from rich.console import Console

from maira.cli.options import OutFolder, Overwrite
from maira.cli.show import exit_with_failures, print_line, warn_of_bfloat16
from radfact.cli.command import with_options
from radfact.errors import ErrorCode, InputError
from radfact.judges.options import JudgeOptions
from radfact.options import Option, Options, only


class ReportOptions(Options):
    """Training examples from reports."""

    panel = "Reports and teachers"

    teachers: Annotated[
        tuple[str, ...], Option("Teacher that labels the queries; repeatable.", flag="--teacher", metavar="NAME")
    ] = ()
    pairings: Annotated[
        tuple[
            Literal["random", "edited", "drafted", "nearest", "permuted", "reworded", "shuffled", "shortened", "mixed"],
            ...,
        ],
        Option(
            "Kind of report pairs; repeatable. Default: all whose inputs are available, without the last three.",
            flag="--pairing",
        ),
    ] = ()
    drafts: Annotated[
        Path | None, Option("Drafts of a model (maira generate, radfact meta inject --mixed).", metavar="FILE")
    ] = None
    balanced: Annotated[
        bool,
        Option(
            "Balance entailed and not-entailed queries, and limit verbatim matches to a third of the entailed "
            "training examples.",
            flag="--balanced",
        ),
    ] = False
    count: Annotated[PositiveInt | None, Option("Maximum number of pairs.")] = None


class RatingOptions(Options):
    """Training examples from expert ratings."""

    panel = "Expert ratings (VERT)"

    ratings: Annotated[Path | None, Option("Expert ratings of report pairs, instead of reports.", metavar="FILE")] = (
        None
    )
    layout: Annotated[
        Literal["plain", "rexval", "refisco-v0", "refisco-v1", "rate-eval", "radeval"],
        Option("Format of the ratings file."),
    ] = "plain"
    scale: Annotated[
        tuple[float, float] | None,
        Option("Lowest and highest rating. Default for rate-eval: 0 5.", metavar="LOWEST HIGHEST"),
    ] = None
    better: Annotated[
        Literal["higher", "lower"] | None, Option("Whether higher or lower ratings are better (--layout plain).")
    ] = None
    target: Annotated[
        str | None, Option("Rating to learn. Default: the main rating of the data set.", metavar="QUANTITY")
    ] = None


@with_options
def judge_data(
    task: Annotated[Literal["green", "vert", "entailment"], typer.Option(help="Task of the judge.")],
    out: OutFolder,
    options: ReportOptions,
    model: Annotated[JudgeOptions, only("judge_args", "base_url", "few_shots", "concurrency", "max_invalid")],
    rated: RatingOptions,
    reports: Annotated[
        Path | None,
        typer.Argument(
            help="Reference reports: CSV with id and report, or JSON Lines with sample_id and findings, such as "
            "a manifest."
        ),
    ] = None,
    held_out: Annotated[float, typer.Option(min=0, max=0.9, help="Fraction of the references to hold out.")] = 0.1,
    validation: Annotated[
        float, typer.Option(min=0, max=0.9, help="Fraction of the references for validation during training.")
    ] = 0.0,
    seed: Annotated[int, typer.Option(min=0, help="Random seed.")] = 42,
) -> None:
    """Create training data for a judge, with a held-out part.

    From pairs of reports, which teachers label, or, for VERT, from expert ratings (--ratings).

    Teachers are queried in order; each labels the queries that the previous ones could not: injected (labels are the
    errors that rules inject into reports), offline (entailment), PROVIDER:MODEL, vllm:PATH or python:MODULE:OBJECT
    (entailment). --judge-arg and --base-url apply to the last teacher.
    """
    from maira.judge.data import make_judge_data, make_rated_data
    from radfact.meta.datasets.reports import read_reports

    if (reports is None) == (rated.ratings is None):
        raise InputError("expected either reports or --ratings", code=ErrorCode.CONFLICTING_OPTIONS)
    required = "--ratings" if rated.ratings is None else "reports"
    for unused in (rated,) if rated.ratings is None else (options, model):
        if arguments := unused.as_arguments():
            raise InputError(f"only available with {required}", code=ErrorCode.CONFLICTING_OPTIONS, field=arguments[0])
    if held_out + validation >= 1:
        message = f"expected less than 1 together with --held-out {held_out:g}, found {validation:g}"
        raise InputError(message, field="validation")
    shares: dict[str, Any] = {"held_out": held_out, "validation": validation, "seed": seed}
    say = partial(print_line, Console())
    if rated.ratings is not None:
        if task != "vert":
            message = f"expected --task vert, which --ratings requires, found '{task}'"
            raise InputError(message, code=ErrorCode.CONFLICTING_OPTIONS, field="ratings")
        settings = rated.model_dump(exclude={"ratings", "layout"})
        written = make_rated_data(rated.ratings, rated.layout, out, **settings, **shares)
    else:
        assert reports is not None
        if not options.teachers:
            message = "expected a teacher: injected, offline or PROVIDER:MODEL"
            raise InputError(message, code=ErrorCode.MISSING_OPTION, field="teachers")
        # The options of a model are those of the last teacher; the worked examples are not for the teachers.
        last = model.model_copy(update={"judge": options.teachers[-1], "few_shots": None})
        drafts = _read_drafts(options.drafts) if options.drafts else {}
        read, notes = read_reports(reports, default_site="-")
        for note in notes:
            say(note)
        written = make_judge_data(
            {item.sample_id: item.report for item in read},
            task,
            [*(JudgeOptions(judge=name) for name in options.teachers[:-1]), last],
            out,
            cache=out / "cache",
            drafts=drafts,
            few_shots=model.few_shots,
            **shares,
            **options.model_dump(include={"pairings", "balanced", "count"}),
        )
    uses = {"train": "train on", "validation": "validate with", "heldout": "check with"}
    for split, number in written.samples.items():
        say(f"{number} samples to {uses[split]}")
    is_held = written.samples.get("heldout", 0) > 0
    say(f"{out / 'samples.jsonl'}; held out: {written.held_out if is_held else 'nothing'}")
    if held_out > 0 and not is_held:
        reason = "too few references were drawn, or all of their queries are in the training set too"
        say(f"No examples are held out: {reason}. Increase --held-out, or add reports.")
    exit_with_failures(Console(), list(written.failures.items()))


def _read_drafts(path: Path) -> dict[str, str]:
    from radfact.io.jsonl import read_jsonl
    from radfact.io.pairs import read_drafts
    from radfact.meta.injection.records import read_injected
    from radfact.records import narrative

    _, first = next(read_jsonl(path), (0, {}))
    if "source_id" not in first:
        return {key: narrative(report) for key, report in read_drafts(path).items()}
    injected = read_injected(path)
    drafts = {made.source_id: made.candidate for made in injected}
    if len(drafts) < len(injected):
        message = f"expected one candidate of each report (--mixed), found {len(injected)} of {len(drafts)}"
        raise InputError(message, code=ErrorCode.DUPLICATE, file=path, field="source_id")
    return drafts


def judge_train(
    config: Annotated[Path, typer.Argument(help="Run config (YAML), as in configs/judges.")],
    overrides: Annotated[list[str] | None, typer.Argument(help="key=value overrides of the run config.")] = None,
    overwrite: Overwrite = False,
) -> None:
    """Train a judge from a run config. The same command resumes an interrupted run.

    Use the resulting folder with vLLM: --judge vllm:PATH, or --judge openai:NAME --base-url URL for a server.
    """
    from maira.judge.run_config import read_judge_config
    from maira.train.config.check import check_run

    console, options = Console(), read_judge_config(config, overrides)
    check_run(options, partial(print_line, console), overwrite=overwrite)
    warn_of_bfloat16(console, options.precision)
    from maira.judge.training import setup_judge_training as setup
    from maira.train.loop import run_training

    command = ["maira", "judge-train", str(config), *(overrides or ())]
    print_line(console, f"judge: {run_training(options, setup, console, overwrite=overwrite, command=command)}")
