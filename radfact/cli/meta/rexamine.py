"""`radfact meta rexamine`: test metrics across writing styles and sites."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer

from radfact.cli.command import with_options
from radfact.cli.inputs import check_files
from radfact.cli.meta import options as own
from radfact.cli.meta.options import Scoring, client_of
from radfact.cli.options import INPUT, SCORES, ColumnOptions, option
from radfact.cli.tables import new_console, say, show_table
from radfact.errors import ErrorCode, InputError
from radfact.judges.options import JudgeOptions
from radfact.meta.datasets.reports import read_counts, read_reports
from radfact.meta.injection.llm_editor import ModelEditor
from radfact.meta.injection.records import RULES
from radfact.meta.injection.rules import RuleInjector
from radfact.meta.rexamine import Editor, short_table_c, table_2, totals_table
from radfact.meta.rexamine import rexamine as run
from radfact.metrics.options import MetricOptions


@with_options
def rexamine(
    reports: Annotated[Path, typer.Argument(help="Reports: CSV or JSON Lines with id, site and report.")],
    names: ColumnOptions,
    metrics: Annotated[MetricOptions, own.METRICS],
    judge: Annotated[JudgeOptions, own.MODEL],
    seed: own.Seed = 42,
    styler: Annotated[
        str | None, option("Model that standardizes reports, PROVIDER:MODEL. Default: the judge.", "NAME", INPUT)
    ] = None,
    errors_by: Annotated[str, option("How to inject errors: rules, or a model PROVIDER:MODEL.", "NAME", INPUT)] = RULES,
    counts: Annotated[
        Path | None,
        option("Error counts of experts: CSV with id, errors, and optional rater and categories.", "FILE", INPUT),
    ] = None,
    per_site: Annotated[int, option("Number of reports to draw per site; 0: all.", "N", SCORES, min=0)] = 40,
    out: own.Out = Path("rexamine"),
    cache: own.Cache = None,
    note: own.Notes = None,
) -> None:
    """Test metrics across writing styles and sites (ReXamine-Global).

    Standardizes the references, injects errors, scores candidates against original and standardized references, tests
    the effect of style, and compares with expert rankings. Every step is stored in the output folder, and the same
    command resumes an interrupted run. Experts fill in for_experts.csv in that folder; pass it with --counts.

    Each metric is tested by its main score (green by green, radfact by logical_f1); name other scores to select them.
    The significance level is 0.05, divided by the number of scores times sites.
    """
    check_files(counts)
    judge, cache = judge.or_environment(), cache or out / "cache"
    site_reports, excluded = read_reports(reports, columns=names.columns)
    expert_counts = None if counts is None else read_counts(counts)
    scoring = Scoring(metrics, judge, cache)
    if not metrics.metrics:
        raise InputError("--metrics: expected the metrics to test", code=ErrorCode.MISSING_OPTION)
    if styler is None and not judge.judge:
        message = "expected a model that standardizes the reports, in --styler or --judge"
        raise InputError(message, code=ErrorCode.MISSING_OPTION, field="styler")
    with ExitStack() as stack:
        parameters = {"temperature": 0}
        client = client_of(styler or judge.required_judge, judge, cache, option="--styler", parameters=parameters)
        style = ModelEditor(stack.enter_context(client), "standardize")
        injector: Editor = RuleInjector(seed=seed)
        if errors_by != RULES:
            client = client_of(errors_by, judge, cache, option="--errors-by", parameters={"temperature": None})
            injector = ModelEditor(stack.enter_context(client), "perturb")
        result = run(
            site_reports,
            out,
            styler=style,
            injector=injector,
            score=stack.enter_context(scoring.scorer(main_only=True)),
            counts=expert_counts,
            per_site=per_site or None,
            seed=seed,
            notes=[*excluded, *(note or ())],
        )
    console = new_console()
    show_table(console, table_2(result.tests))
    if result.rankings:
        show_table(console, short_table_c(result.rankings), keys=2)
    if result.totals:
        say(console, "Errors that the experts counted:")
        show_table(console, totals_table(result.totals, ["errors"]), keys=2)
    for line in result.notes:
        say(console, line)
    say(console, f"Read the result in {out / 'rexamine.html'}", wrap=False)
    if result.excluded:
        say(console, f"{len(result.excluded)} reports excluded, listed there", style="red")
    scoring.is_incomplete = bool(result.excluded)
    scoring.finish(console)
