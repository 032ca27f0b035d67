"""Experiments on one test set: the same studies drafted by several models or from several inputs, and scored alike."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.console import Console
from typer.main import get_command

from maira.data.study import Study
from maira.model.task_examples import INPUTS, Input, has_inputs, parse_inputs
from radfact.api import MetricSet, evaluate
from radfact.cli.command import with_options
from radfact.cli.inputs import read_reports
from radfact.cli.main import create_app
from radfact.cli.options import InputOptions
from radfact.errors import ErrorCode, InputError, RunError
from radfact.judges.options import JudgeOptions
from radfact.metrics.options import MetricOptions, RepeatOptions
from radfact.metrics.radfact.options import BootstrapOptions, ScoringOptions
from radfact.metrics.registry import expand_presets, select_metrics
from radfact.options import only
from radfact.progress import display_progress
from radfact.records import narratives
from radfact.results.schema import RADFACT

LATERAL_MENTIONS, COMPARISON_MENTIONS = "lateral_mentions", "comparison_mentions"
PAPER = (
    *(LATERAL_MENTIONS, COMPARISON_MENTIONS, "rouge_l", "bleu_1", "bleu_4", "meteor", "radgraph_f1", "rg_er"),
    *("radcliq_v0", "chexbert_macro_f1_14", "chexbert_micro_f1_14", "chexbert_macro_f1_5", "chexbert_micro_f1_5"),
    "chexbert_similarity",
)
"""Metrics of MAIRA-2, tables B.3 and D.1 to D.10, in addition to RadFact."""
ReportTask = Literal["findings", "grounded"]
_REFERENCE: dict[ReportTask, str] = {"findings": "findings", "grounded": "grounded_findings"}


@dataclass(frozen=True)
class Experiment:
    """Drafts of one model with all inputs or without the dropped ones, and their scores."""

    folder: Path
    dropped: tuple[Input, ...] = ()

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def drafts(self) -> Path:
        return self.folder / "drafts.jsonl"

    @property
    def boxes(self) -> Path:
        """The file of box completions, if there are any."""
        return self.folder / "boxes.jsonl"

    @property
    def results(self) -> Path:
        return self.folder / "results"

    def record(self) -> dict[str, Any]:
        """Return what the file of a comparison says about the experiment, besides its scores."""
        return {"dropped": list(self.dropped)}


def without_inputs(out: Path, drops: Sequence[str]) -> list[Experiment]:
    dropped = dict.fromkeys(map(parse_inputs, drops))
    if not dropped:
        message = f"expected inputs to drop: some of {', '.join(INPUTS)}, joined by +"
        raise InputError(message, code=ErrorCode.MISSING_OPTION, field="--drop")
    return [Experiment(out / "all-inputs"), *(Experiment(out / f"no-{'+'.join(names)}", names) for names in dropped)]


def select_studies(
    studies: Sequence[Study], task: ReportTask, subset: str, experiments: Sequence[Experiment]
) -> tuple[list[Study], str]:
    """Select the studies with a reference report of the task, and describe their number and that of skipped ones."""
    if subset == "all":
        required: tuple[Input, ...] = ()
    elif subset == "with-input":
        required = tuple(name for name in INPUTS if any(name in item.dropped for item in experiments))
    else:
        try:
            required = parse_inputs(subset)
        except InputError as error:
            message = f"expected all, with-input, or input names: {error.message}"
            raise InputError(message, code=ErrorCode.UNKNOWN_NAME, field="--subset") from None
    complete = [study for study in studies if has_inputs(study, required)]
    reference = _REFERENCE[task]
    # The other reference is removed: readers of a manifest prefer the grounded report.
    other = {field: None for field in _REFERENCE.values() if field != reference}
    selected = [study.model_copy(update=other) for study in complete if getattr(study, reference) is not None]
    if not selected:
        message = f"expected studies with {', '.join([*required, reference])}, found none among {len(studies)}"
        raise InputError(message, code=ErrorCode.EMPTY_INPUT)
    n_complete = len(complete)
    reasons = {"an input of the subset": len(studies) - n_complete, "a reference report": n_complete - len(selected)}
    skipped = ", ".join(f"{count} without {reason}" for reason, count in reasons.items() if count)
    return selected, f"{len(selected)} studies" + (f"; skipped: {skipped}." if skipped else ".")


@dataclass(frozen=True)
class Scoring:
    """How the drafts of all experiments are scored, by options of `radfact evaluate`."""

    references: Path
    inputs: InputOptions
    bootstrap: BootstrapOptions
    metrics: Mapping[str, Any]
    requires_metrics: bool


def read_scoring(
    references: Path,
    score_config: Path | None = None,
    *,
    judge: str | None = None,
    metrics: str | None = None,
    weights: Sequence[str] = (),
) -> Scoring:
    """Read options as `radfact evaluate` does, which override those of a file, and check judge and metrics."""
    read: list[Scoring] = []

    @with_options
    def check(
        inputs: Annotated[InputOptions, only("narrative", "limit")],
        judge_options: JudgeOptions,
        selected: Annotated[MetricOptions, only(metrics=PAPER)],  # its `compat` selects the variant of RadFact, too
        repeats: RepeatOptions,
        bootstrap: BootstrapOptions,
        radfact: Annotated[ScoringOptions, only("threshold", "on_failure")],
    ) -> None:
        judge_options = judge_options.or_environment()
        judge_options.required_judge  # noqa: B018 - raises an error
        judge_options.load_splitter(judge_options.load())
        named, compat = expand_presets(selected.metrics, selected.compat)
        names = tuple(dict.fromkeys((RADFACT, LATERAL_MENTIONS, *map(str, named))))
        select_metrics(names, compat)
        options = {**dict(selected), "metrics": names, "compat": compat, "repeat": repeats.repeat}
        options |= {"judge": judge_options, "radfact": radfact.record()}
        read.append(Scoring(references, inputs, bootstrap, options, metrics is not None))

    app = typer.Typer()
    app.command()(check)
    command, program = get_command(app), get_command(create_app(["evaluate"]))
    words = [word for folder in weights for word in ("--weights", folder)]
    for flag, value in (("--config", score_config), ("--judge", judge), ("--metrics", metrics)):
        words += [] if value is None else [flag, str(value)]
    command.invoke(command.make_context("evaluate", words, parent=typer.Context(program)))
    return read[0]


def score_experiment(experiment: Experiment, scoring: Scoring, say: Callable[[str], None]) -> list[tuple[str, str]]:
    """Score an experiment's drafts, write its results folder, and return what could not be scored, and why."""
    files = {"candidates": experiment.drafts, "references": scoring.references, "missing": "skip"}
    inputs = scoring.inputs.model_copy(update=files)
    pairs = read_reports(None, inputs, scoring.bootstrap)
    names = ",".join(scoring.metrics["metrics"])
    run = {"options": {"missing": "skip", "narrative": inputs.narrative, "metrics": names}}
    cache = experiment.folder.parent / "cache"  # shared by all experiments
    with MetricSet(**scoring.metrics, needs_splitter=bool(narratives(pairs)), cache=cache) as metrics:
        if RADFACT in metrics.unavailable:
            raise RunError(metrics.unavailable[RADFACT], code=ErrorCode.NOTHING_SCORED)
        with display_progress(Console(stderr=True), metrics.resources.usage_by_role):
            draws, out = scoring.bootstrap, experiment.results
            result = evaluate(pairs, metrics, bootstrap=draws.bootstrap, seed=draws.seed, out=out, run=run)
    if RADFACT in result.unavailable:
        raise RunError(result.unavailable[RADFACT], code=ErrorCode.NOTHING_SCORED)
    scored = sum(sample.failure is None for sample in result.samples)
    say(f"{experiment.name}: {scored} studies scored: {experiment.results}")
    failures: list[tuple[str, str]] = []
    for sample in result.samples:
        if sample.failure is not None:
            failures.append((sample.sample_id, sample.failure))
        else:
            failures += [(sample.sample_id, f"{name}: {reason}") for name, reason in sample.failures.items()]
    failures += result.unavailable.items() if scoring.requires_metrics else ()
    return [(f"{experiment.name}: {key}", reason) for key, reason in failures]
