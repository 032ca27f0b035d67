"""`radfact meta ensemble`: several judges as one, fitted on experts."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from radfact.cli import meta_options as own
from radfact.cli.inputs import check_folder
from radfact.cli.meta_agreement import (
    BetterOption,
    ExpertOption,
    LayoutName,
    LayoutOption,
    TableArgument,
    TargetOption,
    read,
)
from radfact.cli.meta_options import show_table
from radfact.cli.options import FIGURES, INPUT, OUTPUT, key_values, naming_options
from radfact.cli.tables import new_console, say, say_path
from radfact.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from radfact.metrics.ensemble import Method

FIT_MANUAL = "\n".join(
    (
        "Fit an ensemble of judges on expert ratings, and say how well it agrees with them where it was not fitted.",
        "",
        "Judges are results folders by name; samples are matched by their ids, those of 'radfact meta pairs'. Beside "
        "the cross-validated ensemble stand its features alone.",
        "",
        "[bold]Examples[/bold]",
        "  radfact meta ensemble fit rate_test.csv --layout rate-eval \\",
        "      --judges gpt=results/gpt --judges opus=results/opus --figures vert \\",
        "      --out ensemble.json",
        "  radfact meta ensemble apply ensemble.json --judges gpt=new/gpt \\",
        "      --judges opus=new/opus --out scores.jsonl",
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
        help="A judge's results folder, or JSON Lines with sample_id and figures; may be repeated.",
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
    from radfact.meta.correlation import COEFFICIENTS, correlate
    from radfact.meta.page import Table
    from radfact.metrics.ensemble import cross_validate, fit_ensemble, read_features

    console = new_console()
    check_folder(out.parent)
    ratings = read(table, layout, expert, better, target)
    wanted = dict(zip((one.pair.sample_id for one in ratings.samples), ratings.means(ratings.target), strict=True))
    with naming_options(runs="--judges"):
        ids, features = read_features(_folders(judges), _names(figures))
    places = [place for place, key in enumerate(ids) if key in wanted]
    if not places:
        raise InputError("the judges have scored none of the rated reports; ids are those of 'radfact meta pairs'")
    chosen = {name: [column[place] for place in places] for name, column in features.items()}
    experts = [wanted[ids[place]] for place in places]
    known = _method(method)
    with naming_options(features="--judges", folds="--folds"):
        held_out = cross_validate(chosen, experts, method=known, folds=folds, seed=seed)
        ensemble = fit_ensemble(chosen, experts, method=known, target_name=ratings.target)
    rows = []
    for name, column in {"ensemble, cross-validated": held_out, **chosen}.items():
        found = correlate(experts, column, replicates=bootstrap, seed=seed)
        rows.append(
            [
                name,
                found["kendall"].n,
                *(found[one].value for one in COEFFICIENTS),
                found["kendall"].low,
                found["kendall"].high,
            ]
        )
    show_table(console, Table(["scores", "n", *COEFFICIENTS, "kendall low", "kendall high"], rows))
    say(
        console,
        f"Correlations with '{ratings.target}' of the experts, of which {ratings.better[ratings.target]} is better; "
        "nothing is turned round.",
    )
    ensemble.save(out)
    say_path(console, "Written to", out)


@app.command("apply")
def apply_ensemble(
    ensemble: Annotated[Path, typer.Argument(help="What 'fit' wrote.")],
    judges: JudgesOption,
    out: Annotated[
        Path, typer.Option(metavar="FILE", help="JSON Lines: sample_id, ensemble.", rich_help_panel=OUTPUT)
    ] = Path("ensemble.jsonl"),
) -> None:
    """Score reports by an ensemble: judges under the names that it was fitted with."""
    import math

    from radfact.jsonl import write_jsonl
    from radfact.metrics.ensemble import Ensemble, read_features

    loaded = Ensemble.load(ensemble)
    check_folder(out.parent)
    with naming_options(runs="--judges", features="--judges"):
        ids, features = read_features(_folders(judges))
        scores = loaded.apply(features)
    rows = ({"sample_id": key, "ensemble": None if math.isnan(s) else s} for key, s in zip(ids, scores, strict=True))
    write_jsonl(out, rows)
    missing = sum(map(math.isnan, scores))
    console = new_console()
    say(
        console,
        f"{len(scores) - missing} of {len(scores)} reports scored" + (", the others lack a figure" if missing else ""),
    )
    say_path(console, "Written to", out)


def _folders(judges: Sequence[str]) -> Mapping[str, Path]:
    return {name: Path(folder) for name, folder in key_values(judges, "--judges").items()}


def _names(figures: str | None) -> list[str] | None:
    return None if figures is None else [name.strip() for name in figures.split(",") if name.strip()]


def _method(method: MethodName) -> Method:
    return "average" if method is MethodName.AVERAGE else "linear_regression"
