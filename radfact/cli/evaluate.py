"""`radfact evaluate` and `radfact score`: pairs of reports in, a results folder with a page out."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from radfact.cli import options as shared
from radfact.cli.green_summary import EmbeddingsOption, check_embeddings, summarise_where_possible
from radfact.cli.inputs import (
    check_files,
    check_folder,
    check_images,
    describe_difference,
    page_options,
    read_reports,
)
from radfact.cli.library_output import quiet_libraries
from radfact.cli.metrics import MetricArgs, WeightsOption, read_metric_args, read_weights
from radfact.cli.options import FIGURES, JUDGE, JudgeOptions, naming_options
from radfact.cli.tables import describe_input, new_console, say, say_path, show_results
from radfact.errors import ExitCode
from radfact.progress import ProgressDisplay, parse_price

if TYPE_CHECKING:
    from radfact.judges import Judge, Splitter
    from radfact.results.evaluation import EvaluationResult

# Rich keeps line ends as they are, so a paragraph is one line here.
EVALUATE_MANUAL = "\n".join(
    (
        "Score candidates against references by many metrics and write one results folder with one page.",
        "",
        "Metrics are named as 'radfact metrics' lists them; the name of one score (bleu_4) selects that one alone, all "
        "selects whatever can be computed, module:object is a custom metric. A metric that lacks weights, a key or a "
        "package is reported in one line, and the others continue.",
        "",
        "The folder holds scores.json, samples.jsonl (every score of every sample), sentences.jsonl, metrics/ (the "
        "details of each metric: explanations, corrections, findings), run.json and report.html. The same command "
        "finishes an interrupted run; a metric that is done is not computed again, and no model is queried twice.",
        "",
        "[bold]Examples[/bold]",
        "  radfact evaluate pairs.csv --metrics rouge_l,bleu_4,radfact \\",
        "      --judge offline --out results/a",
        "  radfact evaluate --candidates drafts.jsonl --references manifest.jsonl \\",
        "      --metrics all --judge openai:MODEL --weights WEIGHTS",
        "  radfact evaluate pairs.csv --metrics vert,fineradscore \\",
        "      --judge openai:MODEL --metric-arg fineradscore.zero_shot=true \\",
        "      --metric-arg vert.shots=shots.json --metric-arg vert.style=rate-err",
        "",
        "[bold]Exit codes[/bold]",
        "  0 done; 1 the run failed; 2 wrong input or options;",
        "  3 done, with samples or named metrics excluded and listed",
    )
)
SCORE_MANUAL = "\n".join(
    (
        "Score candidates against references by RadFact and write a results folder with a page to read.",
        "",
        "The same as 'radfact evaluate --metrics radfact'. The folder holds scores.json, samples.jsonl, sentences.jsonl "
        "(each sentence with its verdict and evidence), run.json (judge, options, calls) and report.html; responses "
        "of a model are cached in cache/. The same command finishes an interrupted run and sends no query twice. "
        "Another judge or other options replace the results as a whole; the cached responses stay.",
        "",
        "[bold]Examples[/bold]",
        "  radfact score pairs.json --judge offline",
        "  radfact score pairs.csv --judge openai:MODEL --splitter offline \\",
        "      --price 0.5,1.5 --out results/model",
        "  radfact score --candidates drafts.jsonl --references manifest.jsonl \\",
        "      --judge openai:MODEL --base-url http://127.0.0.1:8000/v1",
        "  radfact score --config llama.yaml --compat exact",
        "",
        "[bold]Exit codes[/bold]",
        "  0 done; 1 the run failed; 2 wrong input or options;",
        "  3 done, with samples excluded and listed",
    )
)


def evaluate(
    pairs: shared.PairsArgument = None,
    candidates: shared.Candidates = None,
    references: shared.References = None,
    missing: shared.MissingOption = shared.Missing.REFUSE,
    narrative: shared.NarrativeOption = None,
    metrics: Annotated[
        str,
        typer.Option(metavar="NAMES", help="Metrics or scores, separated by commas, or all.", rich_help_panel=FIGURES),
    ] = "all",
    metric_arg: MetricArgs = None,
    weights: WeightsOption = None,
    config: shared.Config = None,
    judge: shared.JudgeName = None,
    judge_arg: shared.JudgeArgs = None,
    base_url: shared.BaseUrl = None,
    few_shots: shared.FewShots = None,
    system: shared.System = None,
    answer_format: shared.Format = shared.AnswerFormat.YAML,
    batch: shared.BatchOption = shared.Batch.SENTENCE,
    concurrency: shared.Concurrency = None,
    splitter: shared.SplitterName = None,
    splitter_arg: shared.SplitterArgs = None,
    splitter_few_shots: shared.SplitterFewShots = None,
    price: shared.PriceOption = None,
    engine: shared.EngineOption = shared.Engine.LOCAL,
    workers: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Workers of --engine ray.", rich_help_panel=JUDGE)
    ] = None,
    compat: shared.CompatOption = shared.CompatMode.PAPER,
    threshold: shared.Threshold = 0.5,
    on_failure: shared.OnFailureOption = shared.OnFailureMode.DROP,
    bootstrap: shared.Bootstrap = 500,
    seed: shared.Seed = 42,
    embeddings: EmbeddingsOption = None,
    out: shared.Out = Path("results"),
    cache: shared.CacheFolder = None,
    manifest: shared.Manifest = None,
    note: shared.Notes = None,
    unscored: shared.Unscored = None,
    images: shared.Images = None,
) -> None:
    """Score candidates against references by many metrics and write one results folder with one page."""
    del config
    from radfact.metrics.registry import select_metrics
    from radfact.metrics.resources import MetricResources
    from radfact.pipeline import MetricRunner, run_record, write_results_and_page
    from radfact.records import narratives

    console, rate = new_console(), parse_price(price)
    judge_options = JudgeOptions(
        judge, judge_arg, base_url, few_shots, system, answer_format, batch, concurrency, engine, workers
    )
    metric_args, weight_folders = read_metric_args(metric_arg), read_weights(weights)
    check_files(manifest, unscored)
    check_embeddings(embeddings)
    read = read_reports(pairs, candidates, references, missing=missing, narrative=narrative)
    check_images(manifest, unscored, read)
    check_folder(out)
    cache = cache or out / "cache"

    def load_judge_and_splitter() -> tuple[Judge, Splitter | None]:
        loaded = judge_options.load(cache)
        if not narratives(read):
            return loaded, None
        return loaded, judge_options.load_splitter(loaded, splitter, splitter_arg, splitter_few_shots, cache)

    scoring = {"compat": compat.value, "threshold": threshold, "on_failure": on_failure.value}
    with naming_options(metric_args="--metric-arg"):
        selections = select_metrics([name.strip() for name in metrics.split(",") if name.strip()])
        is_radfact_alone = [selection.entry.name for selection in selections] == ["radfact"]
        resources = MetricResources(
            # Without a judge, RadFact is one of the metrics that are not available.
            entailment=load_judge_and_splitter if judge_options.named or is_radfact_alone else None,
            judge=judge_options.named,
            judge_args=judge_options.arguments,
            base_url=base_url,
            concurrency=concurrency,
            cache=cache,
            weights=weight_folders,
            radfact=scoring,
            metric_args=metric_args,
        )
    try:
        with quiet_libraries(), naming_options(metric_args="--metric-arg"):
            runner = MetricRunner(selections, resources)
        say(console, describe_input(read))
        run_options = {"missing": missing.value, "narrative": narrative, "metrics": metrics, "engine": engine.value}
        draws = {"bootstrap": bootstrap, "seed": seed}
        if difference := describe_difference(out, read, runner, {**run_options, **draws}):
            say(console, f"{out} holds scores {difference}; they are replaced when this run is done", style="yellow")
        with quiet_libraries(), ProgressDisplay(new_console(stderr=True), resources.usage_by_role, rate):
            result = runner.run(read, folder=out, **draws)
    finally:
        resources.close()
    record = {**run_record(read, started=runner.started), "options": run_options}
    options = page_options(read, manifest, note, unscored, images)
    page = write_results_and_page(result, out, record, options)
    show_results(console, result, rate)
    if "green" in result.runs and summarise_where_possible(console, out, embeddings):
        from radfact.html.page import write_page

        page = write_page(out)
    say_path(console, "Read the studies in", page)
    if _is_incomplete(result):
        raise typer.Exit(ExitCode.INCOMPLETE)


def score(**options: Any) -> None:
    """Score candidates against references by RadFact and write a results folder with a page to read."""
    evaluate(**options, metrics="radfact")


# `radfact score` has the options of `radfact evaluate`, except those of other metrics.
_PARAMETERS = {
    name: parameter
    for name, parameter in inspect.signature(evaluate, eval_str=True).parameters.items()
    if name not in ("metrics", "metric_arg", "weights", "embeddings")
}
score.__signature__ = inspect.Signature([*_PARAMETERS.values()], return_annotation=None)  # type: ignore[attr-defined]
score.__annotations__ = {name: parameter.annotation for name, parameter in _PARAMETERS.items()}


def _is_incomplete(result: EvaluationResult) -> bool:
    """Return whether samples are excluded, or a metric that was named is unavailable."""
    named = {selection.entry.name for selection in result.selections if selection.is_named}
    return result.counts["excluded"] > 0 or not named.isdisjoint(result.unavailable)
