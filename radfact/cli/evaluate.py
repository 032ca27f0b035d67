"""`radfact evaluate` and `radfact score`: score pairs of reports and write a results folder with an HTML page."""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from operator import add
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from radfact import api
from radfact.cli.command import with_options
from radfact.cli.inputs import check_files, describe_difference, fill_page_options, read_reports
from radfact.cli.options import CacheFolder, DryRunOption, InputOptions, Out, PairsArgument, PriceOption, VerboseOption
from radfact.cli.tables import describe_input, new_console, quiet_libraries, say, show_results, show_rows
from radfact.errors import ExitCode
from radfact.io.pairs import read_drafts
from radfact.judges.options import JudgeOptions
from radfact.llm.plan import RequestPlan
from radfact.metrics.options import MetricOptions, RepeatOptions
from radfact.metrics.radfact.options import BootstrapOptions, ScoringOptions
from radfact.metrics.registry import need_references
from radfact.options import only
from radfact.pages.page import check_manifest
from radfact.progress import Price, display_progress, format_count, parse_price
from radfact.records import narratives
from radfact.results.options import PageOptions

SCORE_HELP = """Score candidates against references with RadFact, and write a results folder.

This is 'radfact evaluate --metrics radfact'. The same command resumes an interrupted run. Another judge or other
options replace all results, but not the cached responses.

Exit code 3: samples were excluded, and are listed."""
_COMPARED = (
    *("missing", "section", "columns", "limit", "narrative", "metrics", "variants"),
    *("repeat", "engine", "bootstrap", "seed", "cluster"),
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
    verbose: VerboseOption = False,
    out: Out = Path("results"),
    cache: CacheFolder = None,
) -> None:
    """Score candidates against references with many metrics, and write a results folder.

    --metrics takes the names that 'radfact metrics' lists, names of single scores (bleu_4), module:object for a custom
    metric, rexrank for the ReXrank leaderboard's metrics as it computes them, or all for every metric that can be
    computed. A metric that lacks weights, an API key or a package is reported in one line. The same command resumes an
    interrupted run: cached responses of models are reused.

    Exit code 3: samples or named metrics were excluded, and are listed.
    """
    console, rate, judge = new_console(), parse_price(price), judge.or_environment()
    check_files(page.manifest, page.unscored)
    read = read_reports(pairs, inputs, bootstrap, needs_reference=need_references(metrics.metrics))
    if page.manifest is not None:
        drafts = read.without_reference if page.unscored is None else read_drafts(page.unscored)
        check_manifest(page.manifest, [*(pair.sample_id for pair in read), *read.without_candidate, *drafts])
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
            show_plan(console, selected.plan(read), selected.unavailable, rate)
            return
        models = (inputs, metrics, repeats, judge, scoring, bootstrap)
        options = {name: value for model in models for name, value in model.record().items()}
        options["metrics"] = [item for item in selected.names if isinstance(item, str)]
        # `compat` in the record of a run is that of RadFact.
        options["variants"] = list(selected.compat) or None
        if difference := describe_difference(out, read, selected, {name: options[name] for name in _COMPARED}):
            say(console, f"{out} holds scores {difference}; they are replaced at the end of this run", style="yellow")
        with display_progress(new_console(stderr=True), selected.resources.usage_by_role, rate):
            result = api.evaluate(
                read,
                selected,
                bootstrap=bootstrap.bootstrap,
                seed=bootstrap.seed,
                out=out,
                run={"options": options},
                page=fill_page_options(page, read),
            )
    show_results(console, result, rate, verbose=verbose)
    say(console, f"Read the studies in {out / 'report.html'}", wrap=False)
    named = {selection.entry.name for selection in result.selections if selection.is_named}
    if result.counts["excluded"] > 0 or not named.isdisjoint(result.unavailable):
        raise typer.Exit(ExitCode.INCOMPLETE)


evaluate = with_options(_evaluate)
score = with_options(_evaluate, metrics=only("compat", metrics=("radfact",)))
score.__doc__ = SCORE_HELP


_NOTES = (
    "Tokens are estimated from cached responses, or else by 4 characters per token and the limit of a response; after "
    "a run with --limit, its responses are cached.\n"
    "'about': the offline rules estimate the sentences of narratives that are not split yet. Repairs of invalid "
    "responses and retries are not included.\n"
    "Nothing was sent or written."
)


def show_plan(
    console: Console, plans: Mapping[str, RequestPlan], unavailable: Mapping[str, str], price: Price | None
) -> None:
    """Print queries, tokens and, with a price, cost of a run by role."""
    for name, why in unavailable.items():
        say(console, f"without {name}: {why}", style="yellow", wrap=console.is_terminal)
    if not any(plan.queries for plan in plans.values()):
        say(console, "No queries to a model. Nothing was computed.")
        return
    headings = ["role", "model", "queries", "cached", "tokens in", "tokens out"]
    rows = []
    for role, plan in plans.items():
        tokens_in, (low, high) = plan.tokens_in, plan.tokens_out
        cells = [
            f"{'' if plan.is_exact else 'about '}{plan.queries:,}",
            f"{plan.cached:,}",
            "unknown" if tokens_in is None else format_count(tokens_in),
            format_count(low) if low == high else f"up to {format_count(high)}" if high else "unknown",
        ]
        rows.append([role, plan.model, *cells, *([_cost(plan, price)] if price else [])])
    if price and len(rows) > 1:
        rows.append(["all", "", "", "", "", "", _cost(reduce(add, plans.values()), price)])
    show_rows(console, [*headings, *([f"cost {price.currency}".strip()] if price else [])], rows, keys=2)
    say(console, _NOTES if price else f"{_NOTES} --price IN,OUT,CURRENCY adds the cost.")


def _cost(plan: RequestPlan, price: Price) -> str:
    """Return the range of the cost; "unknown" if the tokens of a prompt are, "from" if responses have no limit."""
    low, high = plan.tokens_out
    if plan.tokens_in is None:
        return "unknown"
    lowest = price.cost({"tokens_in": plan.tokens_in, "tokens_out": low})
    if high is None:
        return f"from {lowest:,.2f}"
    highest = price.cost({"tokens_in": plan.tokens_in, "tokens_out": high})
    return f"{lowest:,.2f}" if low == high else f"{lowest:,.2f} to {highest:,.2f}"
