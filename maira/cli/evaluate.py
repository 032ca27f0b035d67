"""The commands `maira evaluate`."""

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
    Engine,
    EngineArgs,
    EngineOption,
    Free,
    JudgeName,
    LanguageModel,
    Manifest,
    MaxNewTokens,
    Metrics,
    OutFolder,
    Preset,
    PresetOption,
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
from maira.cli.show import (
    exit_with_failures,
    generation_progress,
    print_comparison,
    print_line,
    print_scores,
    print_unused_inputs,
    report_changed,
)
from maira.runtime.processes import is_main

app = typer.Typer(
    help="Evaluate what the inputs are worth, or drafts of phantoms by their own labels.", no_args_is_help=True
)


@app.command("labels")
def evaluate_by_labels(
    drafts: Annotated[Path, typer.Argument(help="Grounded drafts of phantoms (.jsonl).")],
    manifest: Manifest,
    out: Annotated[Path | None, typer.Option(help="Also write the figures as JSON.")] = None,
) -> None:
    """F1 over findings (kind and side) and IoU of matched boxes, without any judge."""
    from data.manifest import read_manifest
    from maira.grounding.labels import evaluate_labels
    from radfact.io.pairs import read_drafts

    figures = evaluate_labels(read_drafts(drafts), read_manifest(manifest))
    print_scores(Console(), "Findings by the generator's labels", figures)
    if out is not None:
        from dataclasses import asdict

        from radfact.io.jsonl import write_json

        write_json(out, {"figures": {name: asdict(figure) for name, figure in figures.items()}})


@app.command("baseline")
def write_baseline(
    manifest: Manifest,
    out: Annotated[Path, typer.Option(help="Drafts to write (.jsonl).")],
) -> None:
    """Drafts that ignore the images: for every study the report whose findings are the most frequent."""
    from data.manifest import read_manifest
    from maira.grounding.labels import most_frequent_report
    from radfact.io.jsonl import write_jsonl

    studies = read_manifest(manifest)
    report = most_frequent_report(studies)
    write_jsonl(out, ({"sample_id": study.sample_id, **report, "model": "most frequent report"} for study in studies))
    print_line(Console(), f"{len(studies)} times the most frequent report: {out}")


@app.command("inputs")
def evaluate_by_inputs(
    checkpoint: Checkpoint,
    manifest: Manifest,
    out: OutFolder,
    drop: Annotated[
        list[str] | None,
        typer.Option(
            metavar="INPUTS",
            help="One more run without these, joined by +: prior, lateral, technique, comparison, indication; may be "
            "repeated, and is needed once.",
        ),
    ] = None,
    task: TaskOption = Task.FINDINGS,
    subset: Subset = "all",
    judge: JudgeName = None,
    config: ScoreConfig = None,
    metrics: Metrics = None,
    weights: Weights = None,
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
    """What inputs are worth: reports with all of them and without some, scored and set side by side (paper, D.6)."""
    from data.manifest import write_manifest
    from maira.evaluate.comparison import compare
    from maira.evaluate.experiments import Scorer, Scoring, select_studies, without_inputs
    from maira.generate.drafts import generate_drafts
    from radfact.cli.inputs import check_folder

    console = Console()
    options = engine_options(engine, free, batch, device, cache, workers, worker_engine, language_model, engine_arg)
    check_folder(out)
    experiments = without_inputs(out, drop or ())
    studies, left_out = read_studies(manifest)
    selection = select_studies(studies, task.value, subset, experiments)
    print_line(console, selection.in_words)
    print_unused_inputs(console, selection.studies, len(selection.studies))
    how = Scoring(out / "manifest.jsonl", out / "cache", judge, config, metrics, weights or ())
    scorers = [Scorer(one, how) for one in experiments]
    failed: list[tuple[str, str]] = []
    for one in experiments:
        with generation_progress(f"drafting {one.name}") as on_progress:
            _, failures = generate_drafts(
                selection.studies,
                checkpoint,
                one.drafts,
                task=task.value,
                preset=preset.value,
                drop=one.dropped,
                max_new_tokens=max_new_tokens,
                engine=engine.value,
                options=options,
                failures=left_out,
                on_changed=report_changed(f"studies of {one.name}", "drafted"),
                on_progress=on_progress,
            )
        failed += [(f"{one.name}: {failure.sample_id}", failure.reason) for failure in failures]
    if not is_main():
        return  # drafting is shared, scoring is not
    write_manifest(how.references, selection.studies)
    for one, scorer in zip(experiments, scorers, strict=True):
        failed += [(f"{one.name}: {key}", reason) for key, reason in scorer.score()]
        print_line(console, f"{one.name}: {len(one.samples)} studies scored: {one.results}")
    table = compare(experiments, [selection.in_words], experiments[0])
    settings = {"task": task.value, "subset": subset}
    print_comparison(console, table, out, "table", "Reports without some inputs", settings)
    exit_with_failures(console, failed)
