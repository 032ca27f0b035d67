"""The commands `maira evaluate`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from maira.cli.options import Checkpoint, ComparisonOptions, Manifest, OutFolder, read_studies
from maira.cli.show import (
    exit_with_failures,
    generation_progress,
    print_comparison,
    print_line,
    print_scores,
    print_unused_inputs,
)
from maira.generate.options import EngineOptions, GenerationOptions
from maira.runtime.processes import is_main
from radfact.cli.command import with_options
from radfact.io.hub import resolve_model
from radfact.io.outputs import Output
from radfact.options import only

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
    from radfact.io.pairs import read_drafts

    scores = evaluate_labels(read_drafts(drafts), read_manifest(manifest))
    print_scores(Console(), "Findings by the generator's labels", scores)
    if out is not None:
        from dataclasses import asdict

        from radfact.io.jsonl import write_json

        write_json(out, {"scores": {name: asdict(score) for name, score in scores.items()}})


@app.command("baseline")
@with_options
def write_baseline(
    manifest: Manifest,
    out: Annotated[Path, typer.Option(help="Output file of drafts (.jsonl)."), Output("file")],
) -> None:
    """Write a baseline: the most frequent report for every study."""
    from maira.data.manifest import read_manifest
    from maira.grounding.labels import most_frequent_report
    from radfact.io.jsonl import write_jsonl

    studies = read_manifest(manifest)
    report = most_frequent_report(studies)
    write_jsonl(out, ({"sample_id": study.sample_id, **report, "model": "most frequent report"} for study in studies))
    print_line(Console(), f"most frequent report written for {len(studies)} studies: {out}")


@app.command("inputs")
@with_options
def evaluate_by_inputs(
    checkpoint: Checkpoint,
    manifest: Manifest,
    out: OutFolder,
    generation: Annotated[GenerationOptions, only("task", "preset", "max_new_tokens", task="findings")],
    comparison: ComparisonOptions,
    engine: EngineOptions,
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
    from maira.data.manifest import write_manifest
    from maira.evaluate.comparison import compare
    from maira.evaluate.experiments import select_studies, without_inputs
    from maira.evaluate.scoring import Scoring, score_experiment
    from maira.generate.drafts import generate_drafts

    console = Console()
    experiments = without_inputs(out, drop or ())
    checkpoint = resolve_model(checkpoint, field="checkpoint")
    studies, skipped = read_studies(manifest)
    selection = select_studies(studies, generation.task, comparison.subset, experiments)
    print_line(console, selection.description)
    print_unused_inputs(console, selection.studies, len(selection.studies))
    scoring = Scoring.from_options(
        out / "manifest.jsonl",
        out / "cache",
        judge=comparison.judge,
        config=comparison.score_config,
        metrics=comparison.metrics,
        weights=comparison.weights,
    )
    scoring.check()
    failed: list[tuple[str, str]] = []
    for experiment in experiments:
        with generation_progress(
            f"drafting {experiment.name}", f"studies of {experiment.name}", "drafted"
        ) as callbacks:
            _, failures = generate_drafts(
                selection.studies,
                checkpoint,
                experiment.drafts,
                generation.model_copy(update={"drop": experiment.dropped}),
                engine,
                failures=skipped,
                **callbacks,
            )
        failed += [(f"{experiment.name}: {failure.sample_id}", failure.reason) for failure in failures]
    if not is_main():
        return  # all processes draft, one scores
    write_manifest(scoring.references, selection.studies)
    for experiment in experiments:
        failed += [(f"{experiment.name}: {key}", reason) for key, reason in score_experiment(experiment, scoring)]
        print_line(console, f"{experiment.name}: {len(experiment.samples)} studies scored: {experiment.results}")
    table = compare(experiments, [selection.description], experiments[0])
    settings = {"task": generation.task, "subset": comparison.subset}
    print_comparison(console, table, out, "table", "Reports without some inputs", settings)
    exit_with_failures(console, failed)
