"""`maira judge-data` and `maira judge-train`: a judge of one's own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from maira.cli.judge_options import (
    Balanced,
    BaseUrl,
    BetterOption,
    Concurrency,
    Count,
    DraftsOption,
    FewShots,
    HeldOut,
    JudgeArgs,
    LayoutOption,
    OutOption,
    Pairings,
    RatingsOption,
    Reports,
    Scale,
    Seed,
    Target,
    TaskName,
    TaskOption,
    Teachers,
)
from maira.cli.show import exit_with_failures, print_line
from radfact.errors import InputError

if TYPE_CHECKING:
    from maira.judge.data import JudgeDataSummary, Teacher

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


def judge_data(
    task: TaskOption,
    out: OutOption,
    reports: Reports = None,
    teacher: Teachers = None,
    pairing: Pairings = None,
    drafts: DraftsOption = None,
    few_shots: FewShots = None,
    balanced: Balanced = False,
    count: Count = None,
    base_url: BaseUrl = None,
    judge_arg: JudgeArgs = None,
    concurrency: Concurrency = None,
    ratings: RatingsOption = None,
    layout: LayoutOption = None,
    scale: Scale = None,
    better: BetterOption = None,
    target: Target = None,
    held_out: HeldOut = 0.1,
    seed: Seed = 42,
) -> None:
    """Make training data for a judge."""
    from maira.judge.data import HoldOut, make_judge_data, make_rated_data
    from radfact.cli.options import naming_options

    taught: dict[str, object] = {
        **{"--teacher": teacher, "--pairing": pairing, "--drafts": drafts, "--few-shots": few_shots},
        **{"--balanced": balanced, "--count": count},
        **{"--base-url": base_url, "--judge-arg": judge_arg, "--concurrency": concurrency},
    }
    rated = {"--layout": layout, "--scale": scale, "--better": better, "--target": target}
    _check_sources(task, reports, ratings, taught, rated)
    aside = HoldOut(held_out, seed)
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
            written = make_judge_data(
                _references(reports),
                task.value,
                _teachers(teacher or (), base_url, judge_arg, concurrency, out / "cache"),
                out,
                pairings=[one.value for one in pairing] if pairing else None,
                drafts=_drafts(drafts),
                few_shots=few_shots,
                balanced=balanced,
                aside=aside,
                count=count,
            )
    _show(written, out, wanted=held_out > 0)


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


def _teachers(
    names: Sequence[str], base_url: str | None, judge_arg: list[str] | None, concurrency: int | None, cache: Path
) -> list[Teacher]:
    """Those that are named, the last with what goes with a model."""
    from maira.judge.data import Teacher
    from radfact.cli.options import key_values

    last = Teacher(names[-1], base_url, key_values(judge_arg, "--judge-arg"), concurrency, cache)
    return [*(Teacher(name, cache=cache) for name in names[:-1]), last]


def _show(written: JudgeDataSummary, out: Path, *, wanted: bool) -> None:
    """What was written; where something was to be held out and nothing is, the remedy."""
    console = Console()
    for split, number in written.samples.items():
        print_line(console, f"{number} samples to {'train on' if split == 'train' else 'check with'}")
    is_held = written.samples.get("heldout", 0) > 0
    print_line(console, f"{out / 'samples.jsonl'}; held out: {written.held_out if is_held else 'nothing'}")
    if wanted and not is_held:
        print_line(
            console,
            "There is nothing to check or to validate with: too few references were drawn, or all that is asked of "
            "them is asked in training too. Give a greater --held-out, or more reports.",
        )
    exit_with_failures(console, list(written.failures.items()))


def _references(reports: Path | None) -> dict[str, str]:
    from radfact.meta.datasets.reports import read_reports

    return {} if reports is None else {one.sample_id: one.report for one in read_reports(reports, default_site="-")}


def _drafts(file: Path | None) -> dict[str, str] | None:
    from radfact.io.pairs import read_drafts
    from radfact.records import narrative

    return {key: narrative(report) for key, report in read_drafts(file).items()} if file else None


def judge_train(
    config: Annotated[Path, typer.Argument(help="Recipe (YAML), as in configs/judges.")],
    overrides: Annotated[list[str] | None, typer.Argument(help="key=value, instead of the recipe's.")] = None,
) -> None:
    """Train a language model as a judge; the same command goes on where an interrupted run stopped.

    The folder that it leaves is served by vLLM like any other: --judge vllm:FOLDER, or --judge openai:NAME --base-url.
    """
    from transformers.utils.logging import disable_progress_bar

    from maira.judge.run_config import read_judge_config
    from maira.judge.training import train_judge

    disable_progress_bar()
    console = Console()
    print_line(console, f"judge: {train_judge(read_judge_config(config, overrides), console)}")
