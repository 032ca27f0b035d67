"""The commands `maira evaluate` and `maira ablate`."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from maira.cli.options import Checkpoint, ComparisonOptions, Manifest, OutFolder, read_inputs, read_studies
from maira.cli.show import exit_with_failures, generation_progress, print_line, print_scores, print_unused_inputs
from maira.generate.engine import EngineOptions, GenerationOptions
from maira.runtime.processes import is_main, process_count
from radfact.cli.command import with_options
from radfact.cli.tables import show_table
from radfact.errors import ErrorCode, InputError, RunError, option_error
from radfact.io.jsonl import write_json, write_jsonl
from radfact.io.outputs import Output, replace_files
from radfact.io.pairs import read_drafts
from radfact.options import only

if TYPE_CHECKING:
    from maira.data.study import Study
    from maira.evaluate.experiments import Experiment, Scoring

app = typer.Typer(help="Evaluate drafts of phantoms without a judge, or run an input ablation.", no_args_is_help=True)


@app.command("labels")
@with_options
def evaluate_by_labels(
    drafts: Annotated[Path, typer.Argument(help="Grounded drafts of phantoms (.jsonl).")],
    manifest: Manifest,
    out: Annotated[Path | None, typer.Option(help="Also write the scores as JSON."), Output("file")] = None,
) -> None:
    """Compute F1 over findings (kind and side) and IoU of matched boxes, without a judge."""
    from maira.data.manifest import read_manifest
    from maira.grounding.labels import evaluate_labels

    scores = evaluate_labels(read_drafts(drafts), read_manifest(manifest))
    print_scores(Console(), "Findings by the generator's labels", scores)
    if out is not None:
        fields = ("point", "low", "high", "n")
        values = {name: {field: getattr(score, field) for field in fields} for name, score in scores.items()}
        write_json(out, {"scores": values})


@app.command("baseline")
@with_options
def write_baseline(
    manifest: Manifest, out: Annotated[Path, typer.Option(help="Output file of drafts (.jsonl)."), Output("file")]
) -> None:
    """Write a baseline: the most frequent report for every study."""
    from maira.data.manifest import read_manifest
    from maira.grounding.labels import most_frequent_report

    studies = read_manifest(manifest)
    report = most_frequent_report(studies)
    write_jsonl(out, ({"sample_id": study.sample_id, **report, "model": "most frequent report"} for study in studies))
    print_line(Console(), f"most frequent report written for {len(studies)} studies: {out}")


@app.command("inputs")
@with_options
def evaluate_by_inputs(
    manifest: Manifest,
    out: OutFolder,
    generation: Annotated[GenerationOptions, only("task", "preset", "max_new_tokens", task="findings")],
    comparison: ComparisonOptions,
    engine: EngineOptions,
    checkpoint: Checkpoint = None,
    drop: Annotated[
        list[str] | None,
        typer.Option(
            metavar="INPUTS",
            help="Add a run without these inputs, joined by +: prior, lateral, technique, comparison, indication. "
            "Required; repeatable.",
        ),
    ] = None,
) -> None:
    """Input ablation: score reports generated with all inputs and with some removed (MAIRA-2, appendix D.6)."""
    from maira.evaluate.experiments import score_experiment, without_inputs
    from maira.generate.drafts import generate_drafts

    experiments = without_inputs(out, drop or ())
    model, studies, skipped = read_inputs(checkpoint, engine, manifest)
    selected, description, scoring = _prepare(studies, generation, comparison, experiments)
    failed: list[tuple[str, str]] = []
    for experiment in experiments:
        title, items = f"drafting {experiment.name}", f"studies of {experiment.name}"
        with generation_progress(title, items, "drafted") as progress:
            own = generation.model_copy(update={"drop": experiment.dropped})
            _, failures = generate_drafts(selected, model, experiment.drafts, own, engine, failures=skipped, **progress)
        failed += [(f"{experiment.name}: {failure.sample_id}", failure.reason) for failure in failures]
    if not is_main():
        return  # all processes draft, one scores
    for experiment in experiments:
        failed += score_experiment(experiment, scoring, partial(print_line, Console()))
    settings = {"task": generation.task, "subset": comparison.subset}
    _finish(out / "table", "Reports without some inputs", experiments, experiments[0], [description], settings, failed)


@with_options
def ablate(
    configs: Annotated[
        list[str],
        typer.Argument(
            metavar="CONFIGS",
            help="Run configs (YAML), the baseline first, and key=value overrides of all of them; {name} in an "
            "override stands for the name of each config.",
        ),
    ],
    test: Annotated[Path, typer.Option(help="manifest.jsonl of the test studies.")],
    out: OutFolder,
    generation: Annotated[GenerationOptions, only("task", "max_new_tokens", task="findings")],
    comparison: ComparisonOptions,
    engine: EngineOptions,
    split: Annotated[str | None, typer.Option(help="Use only this split of the manifest.")] = None,
    infer: Annotated[
        bool,
        typer.Option(
            "--infer",
            help="Also test the baseline without the inputs that the other configs drop (removed at inference only).",
        ),
    ] = False,
    launch: Annotated[
        str | None,
        typer.Option(
            metavar="LAUNCHER",
            help="Launcher for training and generation, such as 'accelerate launch --multi_gpu --num_processes 8'.",
        ),
    ] = None,
) -> None:
    """Train several run configs, evaluate them on the same test set, and compare them (MAIRA-2, tables D.7 to D.10).

    The same command resumes an interrupted run: completed training (also by 'maira train'), drafts and scores are
    reused. A config that fails is listed, and the others continue (exit code 3).
    """
    from maira.evaluate.ablations import describe_trials, plan_trials, read_configs, train_and_score
    from maira.generate.transformers_engine import select_device

    if process_count() > 1:
        message = "ablate starts processes itself; run it without a launcher, and use --launch"
        raise InputError(message, code=ErrorCode.CONFLICTING_OPTIONS)
    if engine.engine == "server":
        raise InputError("ablate trains its models", code=ErrorCode.CONFLICTING_OPTIONS, field="engine")
    launcher = shlex.split(launch or "")
    if launch is not None and not (launcher and shutil.which(launcher[0])):
        raise option_error(f"program not found: {''.join(launcher[:1])}", "--launch")
    if engine.device is not None:
        # A wrong device would be found only after the training.
        select_device(engine.device)
    trials = plan_trials(read_configs(*split_configs(configs)), out, infer=infer)
    studies, skipped = read_studies(test, split)
    _, description, scoring = _prepare(studies, generation, comparison, trials)
    arguments = [*engine.as_arguments(), *GenerationOptions(max_new_tokens=generation.max_new_tokens).as_arguments()]
    # vLLM and Ray start their own processes; a launcher is for the transformers engine.
    draft_launcher = launcher if engine.engine == "transformers" else []
    launchers = {"launcher": launcher, "draft_launcher": draft_launcher}
    say = partial(print_line, Console())
    failed, unscored = train_and_score(trials, scoring, say, task=generation.task, options=arguments, **launchers)
    succeeded, baseline = [trial for trial in trials if trial.name not in failed], trials[0]
    if not succeeded:
        raise RunError(f"all configurations failed; {': '.join(next(iter(failed.items())))}")
    notes = [description, *describe_trials(succeeded, generation.task)]
    notes += [f"{name} failed: {reason}" for name, reason in failed.items()]
    failures = [(str(failure.sample_id), failure.reason) for failure in skipped] + [*failed.items(), *unscored]
    settings = {"task": generation.task, "subset": comparison.subset, "split": split, "test": str(test)}
    _finish(out / "ablation", "Ablations", succeeded, baseline, notes, {**settings, "failures": failures}, failures)


def split_configs(words: Sequence[str]) -> tuple[list[Path], list[str]]:
    """Return the run configs and the overrides among words; the path of a file may have "=" in it."""
    overrides = [word for word in words if "=" in word and not Path(word).exists()]
    if not (paths := [Path(word) for word in words if word not in overrides]):
        raise InputError("expected a run config (YAML), found overrides only", code=ErrorCode.MISSING_OPTION)
    return paths, overrides


def _prepare(
    studies: Sequence[Study],
    generation: GenerationOptions,
    options: ComparisonOptions,
    experiments: Sequence[Experiment],
) -> tuple[list[Study], str, Scoring]:
    """Select the studies, write them as the references of all experiments, and check how they are scored."""
    from maira.data.manifest import write_manifest
    from maira.evaluate.experiments import read_scoring, select_studies

    console = Console()
    selected, description = select_studies(studies, generation.task, options.subset, experiments)
    print_line(console, description)
    print_unused_inputs(console, selected, len(selected))
    references = experiments[0].folder.parent / "manifest.jsonl"
    scoring = read_scoring(references, **options.model_dump(exclude={"subset"}))
    if is_main():
        write_manifest(references, selected)
    return selected, description, scoring


def _finish(
    file: Path,
    title: str,
    experiments: Sequence[Experiment],
    baseline: Experiment,
    notes: Sequence[str],
    settings: Mapping[str, Any],
    failures: list[tuple[str, str]],
) -> None:
    """Compare experiments, write and print the tables and notes, and exit."""
    from maira.evaluate.comparison import compare, tables_of, write_comparison

    console = Console()
    comparison = compare(experiments, baseline, notes)
    settings = {**settings, "base": baseline.name if baseline in experiments else None}
    with replace_files(file.parent) as new:
        write_comparison(comparison, experiments, new / file.name, title, settings)
    for heading, scores in tables_of(comparison).items():
        print_line(console, heading)
        show_table(console, scores)
    for note in comparison.notes:
        print_line(console, note)
    print_line(console, f"tables: {file}.md")
    exit_with_failures(console, failures)
