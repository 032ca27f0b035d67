"""The commands that ask a model: generate, ground, boxes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from maira.cli.options import (
    Batch,
    Cache,
    CacheOption,
    Checkpoint,
    Device,
    Drop,
    Engine,
    EngineArgs,
    EngineOption,
    Free,
    LanguageModel,
    Manifest,
    MaxNewTokens,
    Preset,
    PresetOption,
    Task,
    TaskOption,
    WorkerEngine,
    WorkerEngineOption,
    Workers,
    engine_options,
    parse_dropped_inputs,
    read_studies,
)
from maira.cli.show import (
    exit_with_failures,
    generation_progress,
    print_box_scores,
    print_line,
    print_unused_inputs,
    report_changed,
)


def generate(
    checkpoint: Checkpoint,
    manifest: Manifest,
    out: Annotated[Path, typer.Option(help="Drafts to write (.jsonl).")],
    task: TaskOption = Task.GROUNDED,
    preset: PresetOption = Preset.RELEASE,
    drop: Drop = None,
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
    """Draft a report for every study; the same command goes on where an interrupted run stopped.

    On several GPUs: accelerate launch -m maira generate ..., or torchrun; all machines must see the files.
    """
    from maira.generate.drafts import generate_drafts
    from maira.model.task_examples import drop_inputs

    dropped = parse_dropped_inputs(drop)
    options = engine_options(engine, free, batch, device, cache, workers, worker_engine, language_model, engine_arg)
    studies, left_out = read_studies(manifest)
    with generation_progress("drafting") as on_progress:
        drafted, failures = generate_drafts(
            studies,
            checkpoint,
            out,
            task=task.value,
            preset=preset.value,
            drop=dropped,
            max_new_tokens=max_new_tokens,
            engine=engine.value,
            options=options,
            failures=left_out,
            on_changed=report_changed("studies", "drafted"),
            on_progress=on_progress,
        )
    console = Console()
    print_unused_inputs(console, [drop_inputs(study, dropped) for study in studies], len(studies))
    print_line(console, f"{drafted} of {len(studies) + len(left_out)} studies drafted: {out}")
    exit_with_failures(console, [(str(f.sample_id), f.reason) for f in failures])


def ground(
    checkpoint: Checkpoint,
    manifest: Manifest,
    out: Annotated[Path, typer.Option(help="Located phrases to write (.jsonl).")],
    phrases: Annotated[
        Path | None,
        typer.Option(
            help="What to locate: a .csv of sample_id,phrase, or .jsonl of these with boxes to compare with "
            "(default: the manifest's phrases)."
        ),
    ] = None,
    preset: PresetOption = Preset.RELEASE,
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
    """Locate phrases on frontal images (phrase grounding), and compare with their boxes where these are known."""
    from maira.grounding.evaluation import BoxSettings, ground_phrases
    from maira.grounding.phrases import manifest_phrases, read_phrases

    options = engine_options(engine, free, batch, device, cache, workers, worker_engine, language_model, engine_arg)
    studies, left_out = read_studies(manifest)
    if phrases is None:
        asked = manifest_phrases(studies)
    else:
        asked = read_phrases(phrases, [*(s.sample_id for s in studies), *(str(f.sample_id) for f in left_out)])
        left_out = [failure for failure in left_out if failure.sample_id in {phrase.sample_id for phrase in asked}]
    settings = BoxSettings(preset.value, max_new_tokens, engine.value, options)
    with generation_progress("locating") as on_progress:
        run = ground_phrases(
            studies,
            asked,
            checkpoint,
            out,
            settings,
            failures=left_out,
            on_changed=report_changed("phrases", "located"),
            on_progress=on_progress,
        )
    print_box_scores("Phrase grounding", f"{run.answered} of {run.asked} phrases located: {out}", run)


def boxes(
    checkpoint: Checkpoint,
    manifest: Manifest,
    out: Annotated[Path, typer.Option(help="Completed sentences to write (.jsonl).")],
    preset: PresetOption = Preset.RELEASE,
    drop: Drop = None,
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
    """Complete the boxes of the reference reports' sentences (box completion), and compare with the references."""
    from maira.grounding.evaluation import BoxSettings, complete_boxes, has_reference_boxes
    from maira.model.task_examples import drop_inputs

    dropped = parse_dropped_inputs(drop)
    options = engine_options(engine, free, batch, device, cache, workers, worker_engine, language_model, engine_arg)
    studies, left_out = read_studies(manifest)
    settings = BoxSettings(preset.value, max_new_tokens, engine.value, options, dropped)
    with generation_progress("completing") as on_progress:
        run = complete_boxes(
            studies,
            checkpoint,
            out,
            settings,
            failures=left_out,
            on_changed=report_changed("sentences", "completed"),
            on_progress=on_progress,
        )
    console = Console()
    print_unused_inputs(
        console, [drop_inputs(study, dropped) for study in studies if has_reference_boxes(study)], len(studies)
    )
    if without := sum(not has_reference_boxes(study) for study in studies):
        print_line(console, f"{without} of {len(studies)} studies have no sentence with boxes and are not asked")
    print_box_scores("Box completion", f"boxes of {run.answered} of {run.asked} sentences completed: {out}", run)
