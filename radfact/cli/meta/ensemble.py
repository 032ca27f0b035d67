"""`radfact meta ensemble`: several judges as one, fitted on experts."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from radfact.cli import options as shared
from radfact.cli.inputs import check_folder
from radfact.cli.meta import options as own
from radfact.cli.meta.agreement import (
    BetterOption,
    ExpertOption,
    IdsOption,
    LayoutName,
    LayoutOption,
    TableArgument,
    TargetOption,
    read,
)
from radfact.cli.meta.options import say_matches, show_table
from radfact.cli.options import FIGURES, INPUT, OUTPUT, key_values, naming_options
from radfact.cli.tables import new_console, say, say_path
from radfact.errors import ExitCode, InputError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from radfact.meta.ensembles.model import Judged, Method

FIT_MANUAL = "\n".join(
    (
        "Fit an ensemble of judges on expert ratings, and say how well it agrees with them where it was not fitted.",
        "",
        "Judges are results folders by name; samples are matched by their ids, those of 'radfact meta pairs'. Beside "
        "the cross-validated ensemble stand its features alone.",
        "",
        "[bold]Examples[/bold]",
        "  radfact meta ensemble fit rate_test.csv --layout rate-eval \\",
        "      --judges gpt=results/gpt --judges opus=results/opus \\",
        "      --figures vert --out ensemble.json",
        "  radfact meta ensemble apply ensemble.json \\",
        "      --judges gpt=new/gpt --judges opus=new/opus --out new/ensemble",
    )
)
APPLY_MANUAL = "\n".join(
    (
        "Score reports by an ensemble: judges under the names that it was fitted with, for the samples that all have.",
        "",
        "The scores are a results folder with the figure 'ensemble', as 'radfact evaluate' writes one: 'radfact meta "
        "agreement --scores', 'radfact compare' and 'radfact page' take it as any other.",
        "",
        "[bold]Examples[/bold]",
        "  radfact meta ensemble apply ensemble.json \\",
        "      --judges gpt=new/gpt --judges opus=new/opus --out new/ensemble",
        "",
        "[bold]Exit codes[/bold]",
        "  0 done; 1 the run failed; 2 wrong input or options;",
        "  3 done, with samples left out that a judge has not scored",
    )
)

app = typer.Typer(
    help="Several judges as one: fitted on experts, applied to new reports.",
    no_args_is_help=True,
    rich_markup_mode="rich",
)

JudgesOption = Annotated[
    list[str],
    typer.Option(
        "--judges",
        metavar="NAME=FOLDER",
        help="A judge's results folder; may be repeated.",
        rich_help_panel=INPUT,
    ),
]


class MethodName(StrEnum):
    """How features become one score."""

    LINEAR_REGRESSION = "linear_regression"
    AVERAGE = "average"


@app.command(help=FIT_MANUAL)
def fit(
    table: TableArgument,
    judges: JudgesOption,
    layout: LayoutOption = LayoutName.PLAIN,
    expert: ExpertOption = None,
    better: BetterOption = None,
    target: TargetOption = None,
    ids: IdsOption = None,
    figures: Annotated[
        str | None,
        typer.Option(
            metavar="NAMES", help="Figures of every judge, separated by commas. Default: all.", rich_help_panel=FIGURES
        ),
    ] = None,
    method: Annotated[
        MethodName, typer.Option(help="A regression fitted on the experts, or the plain mean.", rich_help_panel=FIGURES)
    ] = MethodName.LINEAR_REGRESSION,
    folds: Annotated[
        int, typer.Option(min=2, metavar="N", help="Parts of the cross-validation.", rich_help_panel=FIGURES)
    ] = 10,
    bootstrap: own.Bootstrap = 1000,
    seed: own.Seed = 42,
    out: Annotated[Path, typer.Option(metavar="FILE", help="The ensemble as JSON.", rich_help_panel=OUTPUT)] = Path(
        "ensemble.json"
    ),
) -> None:
    """Fit an ensemble of judges on expert ratings."""
    from radfact.meta.datasets.matching import digests_of, match
    from radfact.meta.ensembles.fit import fit_on_ratings

    console = new_console()
    check_folder(out.parent)
    ratings = read(table, layout, expert, better, target, ids)
    with naming_options(runs="--judges", features="--judges"):
        judged = _judged(judges, figures)
        say_matches([match(folder, digests_of(ratings.pairs)) for folder in _folders(judges).values()])
        found = fit_on_ratings(ratings, judged, method=_method(method), folds=folds, seed=seed)
    show_table(console, found.table(replicates=bootstrap, seed=seed))
    say(
        console,
        f"Correlations with '{ratings.target}' of the experts, of which {ratings.better[ratings.target]} is better; "
        "nothing is turned round.",
    )
    found.ensemble.save(out)
    say_path(console, "Written to", out)


@app.command("apply", help=APPLY_MANUAL)
def apply_ensemble(
    ensemble: Annotated[Path, typer.Argument(help="What 'fit' wrote.")],
    judges: JudgesOption,
    bootstrap: shared.Bootstrap = 500,
    seed: shared.Seed = 42,
    out: own.Out = Path("ensemble"),
) -> None:
    """Score reports by an ensemble: judges under the names that it was fitted with."""
    from radfact.meta.datasets.matching import match
    from radfact.meta.ensembles.fit import apply_to_folders
    from radfact.meta.ensembles.model import Ensemble
    from radfact.pipeline import versions
    from radfact.results.reader import read_digests

    loaded, folders = Ensemble.load(ensemble), _folders(judges)
    check_folder(out)
    first, *others = folders.values()
    with naming_options(runs="--judges", features="--judges"):
        judged = _judged(judges, None)
        read = read_digests(first)
        say_matches([match(folder, read) for folder in others])
        files = {"files": [str(ensemble)], "judges": {name: str(folder) for name, folder in folders.items()}}
        counts = {"read": len(read), "skipped": len(read) - len(judged.sample_ids)}
        record = {"versions": versions(), "input": {**files, **counts}}
        evaluation = apply_to_folders(loaded, judged, folders, out, run=record, bootstrap=bootstrap, seed=seed)
    missing = sum(map(bool, evaluation.failures))
    console = new_console()
    say(console, f"{len(evaluation.pairs) - missing} of {len(evaluation.pairs)} reports scored")
    say_path(console, "Results in", out)
    if missing:
        say(console, f"{missing} left out, because a judge has not scored them", style="red")
        raise typer.Exit(ExitCode.INCOMPLETE)


def _judged(judges: Sequence[str], figures: str | None) -> Judged:
    from radfact.meta.ensembles.model import read_features

    return read_features(_folders(judges), _names(figures))


def _folders(judges: Sequence[str]) -> Mapping[str, Path]:
    return {name: Path(folder) for name, folder in key_values(judges, "--judges").items()}


def _names(figures: str | None) -> list[str] | None:
    if figures is None:
        return None
    names = [name.strip() for name in figures.split(",") if name.strip()]
    if not names:
        raise InputError("--figures: expected names of figures, separated by commas")
    return names


def _method(method: MethodName) -> Method:
    return "average" if method is MethodName.AVERAGE else "linear_regression"
