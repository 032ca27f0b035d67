"""The commands that run a model: generate, ground, boxes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from maira.cli.options import RESUMED_FILE, Checkpoint, Manifest, read_inputs
from maira.cli.show import exit_with_failures, generation_progress, print_box_scores, print_line, print_unused_inputs
from maira.generate.engine import EngineOptions, GenerationOptions
from radfact.cli.command import with_options
from radfact.options import only


@with_options
def generate(
    manifest: Manifest,
    out: Annotated[Path, typer.Option(help="Output file of drafts (.jsonl)."), RESUMED_FILE],
    generation: GenerationOptions,
    engine: EngineOptions,
    checkpoint: Checkpoint = None,
) -> None:
    """Generate a draft report for every study. The same command resumes an interrupted run.

    On several GPUs: accelerate launch -m maira generate ..., or torchrun; all machines need access to the files.
    """
    from maira.generate.drafts import generate_drafts
    from maira.model.task_examples import drop_inputs

    folder, studies, skipped = read_inputs(checkpoint, engine, manifest)
    with generation_progress("drafting", "studies", "drafted") as callbacks:
        drafted, failures = generate_drafts(studies, folder, out, generation, engine, failures=skipped, **callbacks)
    console = Console()
    print_unused_inputs(console, [drop_inputs(study, generation.drop) for study in studies], len(studies))
    print_line(console, f"{drafted} of {len(studies) + len(skipped)} studies drafted: {out}")
    exit_with_failures(console, [(str(failure.sample_id), failure.reason) for failure in failures])


@with_options
def ground(
    manifest: Manifest,
    out: Annotated[Path, typer.Option(help="Output file of located phrases (.jsonl)."), RESUMED_FILE],
    generation: Annotated[GenerationOptions, only("preset", "max_new_tokens")],
    engine: EngineOptions,
    checkpoint: Checkpoint = None,
    phrases: Annotated[
        Path | None,
        typer.Option(
            help="Phrases to locate: .csv with sample_id,phrase, or .jsonl with sample_id, phrase and reference boxes. "
            "Default: the phrases of the manifest."
        ),
    ] = None,
) -> None:
    """Locate phrases on frontal images (phrase grounding), and compare their boxes with reference boxes, if any."""
    from maira.grounding.evaluation import ground_phrases
    from maira.grounding.phrases import manifest_phrases, read_phrases

    folder, studies, skipped = read_inputs(checkpoint, engine, manifest)
    if phrases is None:
        items = manifest_phrases(studies)
    else:
        sample_ids = [*(study.sample_id for study in studies), *(str(failure.sample_id) for failure in skipped)]
        items = read_phrases(phrases, sample_ids)
        skipped = [failure for failure in skipped if failure.sample_id in {phrase.sample_id for phrase in items}]
    with generation_progress("locating", "phrases", "located") as callbacks:
        run = ground_phrases(studies, items, folder, out, generation, engine, failures=skipped, **callbacks)
    print_box_scores("Phrase grounding", f"{run.answered} of {run.requested} phrases located: {out}", run)


@with_options
def boxes(
    manifest: Manifest,
    out: Annotated[Path, typer.Option(help="Output file of completed sentences (.jsonl)."), RESUMED_FILE],
    generation: Annotated[GenerationOptions, only("preset", "drop", "max_new_tokens")],
    engine: EngineOptions,
    checkpoint: Checkpoint = None,
) -> None:
    """Complete the boxes of reference sentences (box completion), and compare them with the reference boxes."""
    from maira.grounding.evaluation import complete_boxes, has_reference_boxes
    from maira.model.task_examples import drop_inputs

    folder, studies, skipped = read_inputs(checkpoint, engine, manifest)
    with generation_progress("completing", "sentences", "completed") as callbacks:
        run = complete_boxes(studies, folder, out, generation, engine, failures=skipped, **callbacks)
    console = Console()
    grounded = [drop_inputs(study, generation.drop) for study in studies if has_reference_boxes(study)]
    print_unused_inputs(console, grounded, len(studies))
    if skipped_count := len(studies) - len(grounded):
        print_line(console, f"{skipped_count} of {len(studies)} studies have no sentence with boxes and are skipped")
    print_box_scores("Box completion", f"boxes of {run.answered} of {run.requested} sentences completed: {out}", run)
