"""`radfact meta rexamine`: what style and site do to metrics."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from radfact.cli import options as shared
from radfact.cli.inputs import check_files, check_folder
from radfact.cli.meta import options as own
from radfact.cli.meta.options import Scoring, client_of, show_table
from radfact.cli.metrics import WeightsOption
from radfact.cli.options import FIGURES, INPUT, JudgeOptions, naming_options
from radfact.cli.tables import new_console, say, say_path
from radfact.errors import ExitCode, InputError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console

    from radfact.meta.injection.perturb import Perturber
    from radfact.meta.injection.style import Styler
    from radfact.meta.robustness.rexamine import Rexamined

MANUAL = "\n".join(
    (
        "Test metrics across writing styles and sites (ReXamine-Global): standardise references, put errors in, score "
        "candidates against both kinds of references, test what style changes, rank with experts.",
        "",
        "The file of reports is a CSV with id, site and report, or JSON Lines of the same. Every step is kept in the "
        "results folder; the same command goes on where it stopped. for_experts.csv there is what experts fill in, "
        "and --counts takes it back.",
        "",
        "A metric that is named is tested by its headline figure (green by green, radfact by logical_f1); other "
        "figures are named by themselves. Significant is below 0.05 over figures times sites.",
        "",
        "[bold]Examples[/bold]",
        "  radfact meta rexamine reports.csv --metrics rouge_l,bleu_2",
        "  radfact meta rexamine reports.csv --styler openai:MODEL \\",
        "      --errors-by openai:MODEL --metrics all --judge openai:MODEL",
        "  radfact meta rexamine reports.csv --metrics rouge_l,bleu_2 \\",
        "      --counts rexamine/for_experts.csv",
        "",
        "[bold]Exit codes[/bold]",
        "  0 done; 1 the run failed; 2 wrong input or options;",
        "  3 done, with reports left out and listed",
    )
)
RULES = "rules"


StylerOption = Annotated[
    str,
    typer.Option(metavar="NAME", help="Who standardises: rules, or a model PROVIDER:MODEL.", rich_help_panel=INPUT),
]
ErrorsOption = Annotated[
    str, typer.Option(metavar="NAME", help="Who puts errors in: rules, or PROVIDER:MODEL.", rich_help_panel=INPUT)
]
CountsOption = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="The experts' numbers: CSV with id and errors.", rich_help_panel=INPUT),
]
PerSiteOption = Annotated[
    int, typer.Option(min=0, metavar="N", help="Reports drawn of each site; 0 for all.", rich_help_panel=FIGURES)
]


def rexamine(
    reports: Annotated[Path, typer.Argument(help="Reports: CSV or JSON Lines with id, site and report.")],
    styler: StylerOption = RULES,
    errors_by: ErrorsOption = RULES,
    counts: CountsOption = None,
    per_site: PerSiteOption = 40,
    metrics: own.Metrics = None,
    weights: WeightsOption = None,
    config: shared.Config = None,  # noqa: ARG001
    judge: shared.JudgeName = None,
    judge_arg: shared.JudgeArgs = None,
    base_url: shared.BaseUrl = None,
    concurrency: shared.Concurrency = None,
    seed: own.Seed = 42,
    out: own.Out = Path("rexamine"),
    cache: own.Cache = None,
    note: own.Notes = None,
) -> None:
    """Test metrics across writing styles and sites."""
    from radfact.meta.datasets.report_table import read_counts, read_reports
    from radfact.meta.robustness.rexamine import rexamine as run

    check_folder(out)
    check_files(counts)
    who = JudgeOptions(judge, judge_arg, base_url, concurrency=concurrency)
    cache = cache or out / "cache"
    read = read_reports(reports)
    counted = None if counts is None else read_counts(counts)
    scoring = Scoring(metrics, weights, who, cache)
    if not scoring.names:
        raise InputError("expected --metrics with the metrics to test")
    with (
        _styler(styler, who, cache) as style,
        _perturber(errors_by, who, cache, seed) as perturber,
        scoring.scorer(headline=True) as score,
        naming_options(),
    ):
        found = run(
            read,
            out,
            styler=style,
            perturber=perturber,
            score=score,
            counts=counted,
            per_site=per_site or None,
            seed=seed,
            notes=note or (),
        )
    console = new_console()
    _show(console, found, out)
    scoring.finish(console)
    if found.left_out:
        raise typer.Exit(ExitCode.INCOMPLETE)


def _show(console: Console, found: Rexamined, out: Path) -> None:
    """Table 2 and the gist of table C, what has to be known of them, and where the page is."""
    from radfact.meta.robustness.statistics import table_2, table_c_in_short

    show_table(console, table_2(found.tests))
    if found.rankings:
        show_table(console, table_c_in_short(found.rankings))
    for one in found.notes:
        say(console, one)
    say_path(console, "Read the result in", out / "rexamine.html")
    if found.left_out:
        say(console, f"{len(found.left_out)} reports left out, listed there", style="red")


@contextmanager
def _styler(name: str, who: JudgeOptions, cache: Path) -> Iterator[Styler]:
    from radfact.meta.injection.style import ModelStyler, RuleStyler

    if name == RULES:
        yield RuleStyler()
        return
    with client_of(name, who, cache, option="--styler", parameters={"temperature": 0}) as client:
        yield ModelStyler(client)


@contextmanager
def _perturber(name: str, who: JudgeOptions, cache: Path, seed: int) -> Iterator[Perturber]:
    from radfact.meta.injection.perturb import ModelPerturber, RulePerturber

    if name == RULES:
        yield RulePerturber(seed=seed)
        return
    with client_of(name, who, cache, option="--errors-by", parameters={"temperature": None}) as client:
        yield ModelPerturber(client)
