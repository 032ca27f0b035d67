"""`radfact evaluate` and `radfact score`: score pairs of reports and write a results folder with an HTML page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from radfact.cli.command import with_options
from radfact.cli.inputs import (
    check_files,
    check_images,
    describe_difference,
    fill_page_options,
    read_reports,
)
from radfact.cli.library_output import quiet_libraries
from radfact.cli.options import CacheFolder, DryRunOption, Out, PairsArgument, PriceOption
from radfact.cli.plan import show_plan
from radfact.cli.tables import describe_input, new_console, say, show_results
from radfact.errors import ExitCode
from radfact.io.options import InputOptions
from radfact.judges.options import JudgeOptions
from radfact.metrics.options import MetricOptions, RepeatOptions
from radfact.metrics.radfact.options import BootstrapOptions, ScoringOptions
from radfact.options import only, record_options
from radfact.progress import ProgressDisplay, parse_price
from radfact.results.options import PageOptions

# Rich keeps line ends as they are, so a paragraph is one line here.
EVALUATE_MANUAL = "\n".join(
    (
        "Score candidates against references with many metrics, and write a results folder with an HTML page.",
        "",
        "--metrics takes the names that 'radfact metrics' lists, names of single scores (bleu_4), module:object for a "
        "custom metric, rexrank for the ReXrank leaderboard's metrics as it computes them, or all for every metric "
        "that can be computed. A metric that lacks weights, an API key or a package is reported in one line, and the "
        "others are computed.",
        "",
        "The folder holds scores.json, samples.jsonl (every score of every sample), sentences.jsonl, metrics/ (the "
        "details of each metric: explanations, corrections, findings), run.json and report.html. The same command "
        "resumes an interrupted run: completed metrics are reused, and so are the cached responses of models.",
        "",
        "[bold]Examples[/bold]",
        "  radfact evaluate pairs.csv --metrics rouge_l,bleu_4,radfact \\",
        "      --judge offline --out results/a",
        "  radfact evaluate --candidates drafts.jsonl --references manifest.jsonl \\",
        "      --metrics all --judge openai:MODEL --weights WEIGHTS",
        "  radfact evaluate pairs.csv --metrics vert,fineradscore \\",
        "      --judge openai:MODEL --metric-arg fineradscore.examples=none \\",
        "      --metric-arg vert.shots=shots.json --metric-arg vert.style=rate-err",
        "",
        "[bold]Exit codes[/bold]",
        "  0 done; 1 the run failed; 2 wrong input or options;",
        "  3 done, with samples or named metrics excluded and listed",
    )
)
SCORE_MANUAL = "\n".join(
    (
        "Score candidates against references with RadFact, and write a results folder with an HTML page.",
        "",
        "Equivalent to 'radfact evaluate --metrics radfact'. The folder holds scores.json, samples.jsonl, "
        "sentences.jsonl (each sentence with its verdict and evidence), run.json (judge, options, calls) and "
        "report.html; the responses of a model are cached in cache/. The same command resumes an interrupted run. "
        "Running with another judge or other options replaces all results, but not the cached responses.",
        "",
        "[bold]Examples[/bold]",
        "  radfact score pairs.json --judge offline",
        "  radfact score pairs.csv --judge openai:MODEL --splitter offline \\",
        "      --price 0.5,1.5,EUR --limit 20 --out results/model",
        "  radfact score pairs.csv --judge openai:MODEL --price 0.5,1.5,EUR --dry-run",
        "  radfact score --candidates drafts.jsonl --references manifest.jsonl \\",
        "      --judge openai:MODEL --base-url http://127.0.0.1:8000/v1",
        "  radfact score --config llama.yaml --compat exact",
        "",
        "[bold]Exit codes[/bold]",
        "  0 done; 1 the run failed; 2 wrong input or options;",
        "  3 done, with samples excluded and listed",
    )
)


_COMPARED = (
    "missing",
    "section",
    "limit",
    "narrative",
    "metrics",
    "variants",
    "repeat",
    "engine",
    "bootstrap",
    "seed",
    "cluster",
)
"""Options that tell whether finished results are those of another run."""
PAGE = only("manifest", "notes", "unscored", "images")


def _evaluate(
    inputs: InputOptions,
    metrics: MetricOptions,
    repeats: RepeatOptions,
    judge: JudgeOptions,
    scoring: Annotated[ScoringOptions, only("threshold", "on_failure")],
    bootstrap: BootstrapOptions,
    page: Annotated[PageOptions, PAGE],
    pairs: PairsArgument = None,
    price: PriceOption = None,
    dry_run: DryRunOption = False,
    out: Out = Path("results"),
    cache: CacheFolder = None,
) -> None:
    """Score candidates against references with many metrics, and write a results folder with an HTML page."""
    from radfact import api
    from radfact.records import narratives

    console, rate, judge = new_console(), parse_price(price), judge.or_environment()
    check_files(page.manifest, page.unscored)
    read = read_reports(pairs, inputs, bootstrap)
    if page.manifest is not None:
        check_images(page.manifest, page.unscored, read)
    if metrics.metrics == ("radfact",):
        judge.required_judge  # noqa: B018 - raises an error before anything is loaded
    cache = cache or out / "cache"
    if dry_run:
        # No worker is started, and no cache is created.
        judge = judge.model_copy(update={"engine": "local", "workers": None})
    with (
        quiet_libraries(),
        api.MetricSet(
            metrics.metrics,
            needs_splitter=bool(narratives(read)),
            judge=judge,
            cache=None if dry_run and not cache.is_dir() else cache,
            weights=metrics.weights,
            metric_args=metrics.metric_args,
            compat=metrics.compat,
            radfact=scoring.record(),
            repeat=repeats.repeat,
        ) as selected,
    ):
        say(console, describe_input(read))
        if dry_run:
            show_plan(console, selected.plan(read, out), selected.unavailable, rate)
            return
        options = record_options(inputs, metrics, repeats, judge, scoring, bootstrap)
        options["metrics"] = [item for item in selected.names if isinstance(item, str)]
        # `compat` in the record of a run is that of RadFact.
        options["variants"] = list(selected.resources.compat) or None
        if difference := describe_difference(out, read, selected, {name: options[name] for name in _COMPARED}):
            say(console, f"{out} holds scores {difference}; they are replaced at the end of this run", style="yellow")
        with ProgressDisplay(new_console(stderr=True), selected.resources.usage_by_role, rate):
            result = api.evaluate(
                read,
                selected,
                bootstrap=bootstrap.bootstrap,
                seed=bootstrap.seed,
                out=out,
                run={"options": options},
                page=fill_page_options(page, read),
            )
    show_results(console, result, rate)
    say(console, f"Read the studies in {out / 'report.html'}", wrap=False)
    named = {selection.entry.name for selection in result.selections if selection.is_named}
    if result.counts["excluded"] > 0 or not named.isdisjoint(result.unavailable):
        raise typer.Exit(ExitCode.INCOMPLETE)


evaluate = with_options(_evaluate)
score = with_options(_evaluate, metrics=only("compat", metrics=("radfact",)))
