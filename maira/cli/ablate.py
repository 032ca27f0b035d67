"""The command `maira ablate`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from maira.cli.options import ComparisonOptions, OutFolder, read_studies
from maira.cli.show import exit_with_failures, print_comparison, print_line, print_unused_inputs
from maira.generate.options import EngineOptions, GenerationOptions
from maira.runtime.processes import process_count
from radfact.cli.command import with_options
from radfact.errors import ErrorCode, InputError, RunError
from radfact.options import only


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
    from maira.data.manifest import write_manifest
    from maira.evaluate.ablations import Ablation, Drafting, compare_trials, plan_trials, read_configs
    from maira.evaluate.experiments import select_studies
    from maira.evaluate.scoring import Scoring
    from maira.generate.transformers_engine import select_device
    from maira.runtime.commands import Launcher

    if process_count() > 1:
        message = "ablate starts processes itself; run it without a launcher, and use --launch"
        raise InputError(message, code=ErrorCode.CONFLICTING_OPTIONS)
    if engine.device is not None:
        # A wrong device would be found only after the training.
        select_device(engine.device)
    console = Console()
    overrides = [word for word in configs if "=" in word and not Path(word).exists()]
    train_configs = read_configs([Path(word) for word in configs if word not in overrides], overrides)
    trials = plan_trials(train_configs, out, infer=infer)
    studies, skipped = read_studies(test, split)
    selection = select_studies(studies, generation.task, comparison.subset, [trial.experiment for trial in trials])
    print_line(console, selection.description)
    print_unused_inputs(console, selection.studies, len(selection.studies))
    references = out / "manifest.jsonl"
    scoring = Scoring.from_options(
        references,
        out / "cache",
        judge=comparison.judge,
        config=comparison.score_config,
        metrics=comparison.metrics,
        weights=comparison.weights,
    )
    scoring.check()
    # vLLM and Ray start their own processes; a launcher is for the transformers engine.
    arguments = [*engine.as_arguments(), *GenerationOptions(max_new_tokens=generation.max_new_tokens).as_arguments()]
    drafting = Drafting(generation.task, references, tuple(arguments), alone=engine.engine != "transformers")
    ablation = Ablation(trials, drafting, scoring, Launcher(launch), lambda text: print_line(console, text))
    write_manifest(references, selection.studies)
    succeeded = ablation.run()
    failed = [(str(failure.sample_id), failure.reason) for failure in skipped] + ablation.failures
    if not succeeded:
        raise RunError(f"all configurations failed; {': '.join(ablation.failures[0])}")
    settings = {
        "task": generation.task,
        "subset": comparison.subset,
        "split": split,
        "test": str(test),
        "failures": failed,
    }
    table, details = compare_trials(ablation, succeeded, selection)
    print_comparison(console, table, out, "ablation", "Ablations", settings, details)
    exit_with_failures(console, failed)
