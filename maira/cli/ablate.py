"""The command `maira ablate`."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from maira.cli.options import (
    Batch,
    Cache,
    CacheOption,
    Device,
    Engine,
    EngineArgs,
    EngineOption,
    Free,
    JudgeName,
    LanguageModel,
    MaxNewTokens,
    Metrics,
    OutFolder,
    ScoreConfig,
    Subset,
    Task,
    TaskOption,
    Weights,
    WorkerEngine,
    WorkerEngineOption,
    Workers,
    engine_options,
    read_studies,
)
from maira.cli.show import exit_with_failures, print_comparison, print_line, print_unused_inputs
from maira.runtime.processes import process_count
from radfact.errors import InputError, RunError


def ablate(
    configs: Annotated[
        list[str],
        typer.Argument(
            metavar="RECIPES",
            help="Recipes (YAML), the one that the others are compared with first; key=value instead of theirs, in "
            "which {name} is each recipe's name.",
        ),
    ],
    test: Annotated[Path, typer.Option(help="manifest.jsonl of the studies to test on.")],
    out: OutFolder,
    task: TaskOption = Task.FINDINGS,
    split: Annotated[str | None, typer.Option(help="Only studies of this split of the manifest.")] = None,
    subset: Subset = "all",
    infer: Annotated[
        bool,
        typer.Option(
            "--infer",
            help="Also the first recipe's model without the inputs that the others drop, at inference only.",
        ),
    ] = False,
    judge: JudgeName = None,
    config: ScoreConfig = None,
    metrics: Metrics = None,
    weights: Weights = None,
    launch: Annotated[
        str | None,
        typer.Option(
            metavar="LAUNCHER",
            help="What training and drafting run under, such as 'accelerate launch --multi_gpu --num_processes 8'.",
        ),
    ] = None,
    max_new_tokens: MaxNewTokens = None,
    engine: EngineOption = Engine.TRANSFORMERS,
    batch: Batch = None,
    device: Device = None,
    cache: CacheOption = Cache.DYNAMIC,
    language_model: LanguageModel = None,
    engine_arg: EngineArgs = None,
    workers: Workers = None,
    worker_engine: WorkerEngineOption = WorkerEngine.TRANSFORMERS,
    free: Free = False,
) -> None:
    """Train recipes that differ in little, test them alike and set them side by side (paper, D.7 to D.10).

    What is trained, drafted or scored is not done again: the same command goes on where it was interrupted, and
    recipes may be trained by maira train before. A recipe that fails is listed, and the others go on (exit code 3).
    """
    from data.manifest import write_manifest
    from maira.evaluate.ablations import Ablation, Drafting, plan_trials, read_configs, table_of
    from maira.evaluate.experiments import Scorer, Scoring, select_studies
    from maira.runtime.commands import Launcher
    from radfact.cli.inputs import check_folder

    if process_count() > 1:
        raise InputError("starts processes itself: run it alone, and name their launcher by --launch")
    engine_options(engine, free, batch, device, cache, workers, worker_engine, language_model, engine_arg)
    words = _words(
        engine=engine,
        free=free,
        batch=batch,
        device=device,
        cache=cache,
        workers=workers,
        worker_engine=worker_engine,
        language_model=language_model,
        engine_arg=engine_arg,
        max_new_tokens=max_new_tokens,
    )
    console = Console()
    overrides = [word for word in configs if "=" in word and not Path(word).exists()]
    recipes = read_configs([Path(word) for word in configs if word not in overrides], overrides)
    check_folder(out)
    trials = plan_trials(recipes, out, infer=infer)
    studies, left_out = read_studies(test, split)
    selection = select_studies(studies, task.value, subset, [trial.experiment for trial in trials])
    print_line(console, selection.in_words)
    print_unused_inputs(console, selection.studies, len(selection.studies))
    references = out / "manifest.jsonl"
    scoring = Scoring(references, out / "cache", judge, config, metrics, weights or ())
    scorers = [Scorer(trial.experiment, scoring) for trial in trials]
    # vLLM and Ray start processes of their own; a launcher's are for the transformers engine.
    how = Drafting(task.value, references, tuple(words), alone=engine is not Engine.TRANSFORMERS)
    ablation = Ablation(trials, how, Launcher(launch), lambda text: print_line(console, text))
    write_manifest(references, selection.studies)
    done = ablation.run(scorers)
    failed = [(str(failure.sample_id), failure.reason) for failure in left_out] + ablation.failures
    if not done:
        raise RunError(f"no recipe came to its end; {': '.join(ablation.failures[0])}")
    settings = {"task": task.value, "subset": subset, "split": split, "test": str(test), "failures": failed}
    table, about = table_of(ablation, done, selection)
    print_comparison(console, table, out, "ablation", "Ablations", settings, about)
    exit_with_failures(console, failed)


def _words(**options: object) -> list[str]:
    """Options as words of a command line, by the names of their parameters; those that were not given left out."""
    words: list[str] = []
    for name, value in options.items():
        option = f"--{name.replace('_', '-')}"
        if value is True:
            words.append(option)
        elif value is not None and value is not False:
            for one in value if isinstance(value, list) else [value]:
                words += [option, str(one.value if isinstance(one, StrEnum) else one)]
    return words
