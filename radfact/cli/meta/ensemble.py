"""`radfact meta ensemble`: fit an ensemble of judges on expert ratings, and apply it."""

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
from radfact.errors import ErrorCode, ExitCode, InputError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from radfact.meta.ensembles.model import Method

FIT_MANUAL = "\n".join(
    (
        "Fit an ensemble of judges on expert ratings, and show its agreement with them in a cross-validation.",
        "",
        "Judges are named results folders; samples are matched by the ids of 'radfact meta pairs'. The agreement of "
        "each feature alone is shown for comparison.",
        "",
        "[bold]Examples[/bold]",
        "  radfact meta ensemble fit rate_test.csv --layout rate-eval \\",
        "      --judges gpt=results/gpt --judges opus=results/opus \\",
        "      --features vert --out ensemble.json",
        "  radfact meta ensemble apply ensemble.json \\",
        "      --judges gpt=new/gpt --judges opus=new/opus --out new/ensemble",
    )
)
APPLY_MANUAL = "\n".join(
    (
        "Score reports by an ensemble: results folders of judges with the names of the fit, for their common samples.",
        "",
        "The output is a results folder with the score 'ensemble', as 'radfact evaluate' writes one, for 'radfact meta "
        "agreement --scores', 'radfact compare' and 'radfact page'.",
        "",
        "[bold]Examples[/bold]",
        "  radfact meta ensemble apply ensemble.json \\",
        "      --judges gpt=new/gpt --judges opus=new/opus --out new/ensemble",
        "",
        "[bold]Exit codes[/bold]",
        "  0 done; 1 the run failed; 2 wrong input or options;",
        "  3 done, with excluded samples that a judge has not scored",
    )
)

app = typer.Typer(
    help="Ensembles of judges: fit on expert ratings, apply to new reports.",
    no_args_is_help=True,
    rich_markup_mode="rich",
)

JudgesOption = Annotated[
    list[str],
    typer.Option(
        "--judges",
        metavar="NAME=FOLDER",
        help="Results folder of a judge; may be repeated.",
        rich_help_panel=INPUT,
    ),
]


class MethodName(StrEnum):
    """How features are combined."""

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
    features: Annotated[
        str | None,
        typer.Option(
            metavar="NAMES", help="Scores of every judge, separated by commas. Default: all.", rich_help_panel=FIGURES
        ),
    ] = None,
    method: Annotated[
        MethodName, typer.Option(help="Regression fitted on the experts, or average.", rich_help_panel=FIGURES)
    ] = MethodName.LINEAR_REGRESSION,
    folds: Annotated[
        int, typer.Option(min=2, metavar="N", help="Folds of the cross-validation.", rich_help_panel=FIGURES)
    ] = 10,
    bootstrap: own.Bootstrap = 1000,
    seed: own.Seed = 42,
    out: Annotated[Path, typer.Option(metavar="FILE", help="The ensemble as JSON.", rich_help_panel=OUTPUT)] = Path(
        "ensemble.json"
    ),
) -> None:
    """Fit an ensemble of judges on expert ratings."""
    from radfact.meta.ensembles.fit import fit_on_ratings
    from radfact.meta.ensembles.model import read_features
    from radfact.meta.scores import match_samples, pair_digests

    console = new_console()
    check_folder(out.parent)
    ratings = read(table, layout, expert, better, target, ids)
    folders = _folders(judges)
    chosen: Method = method.value
    with naming_options(runs="--judges", features="--judges"):
        judge_scores = read_features(folders, _names(features))
        digests = pair_digests(ratings.pairs)
        say_matches([match_samples(folder, digests) for folder in folders.values()])
        fitted = fit_on_ratings(ratings, judge_scores, method=chosen, folds=folds, seed=seed)
    show_table(console, fitted.table(replicates=bootstrap, seed=seed))
    direction = ratings.better[ratings.target]
    say(console, f"Correlations with '{ratings.target}' of the experts ({direction} is better), on their own scales.")
    fitted.ensemble.save(out)
    say_path(console, "Written to", out)


@app.command("apply", help=APPLY_MANUAL)
def apply_ensemble(
    ensemble: Annotated[Path, typer.Argument(help="Output of 'fit'.")],
    judges: JudgesOption,
    bootstrap: shared.Bootstrap = 500,
    seed: shared.Seed = 42,
    out: own.Out = Path("ensemble"),
) -> None:
    """Score reports by an ensemble."""
    from radfact.meta.ensembles.fit import apply_to_folders
    from radfact.meta.ensembles.model import Ensemble, read_features
    from radfact.meta.scores import match_samples
    from radfact.pipeline import versions
    from radfact.results.reader import read_digests

    loaded, folders = Ensemble.load(ensemble), _folders(judges)
    check_folder(out)
    first, *others = folders.values()
    with naming_options(runs="--judges", features="--judges"):
        judge_scores = read_features(folders)
        digests = read_digests(first)
        say_matches([match_samples(folder, digests) for folder in others])
        files = {"files": [str(ensemble)], "judges": {name: str(folder) for name, folder in folders.items()}}
        counts = {"read": len(digests), "skipped": len(digests) - len(judge_scores.sample_ids)}
        record = {"versions": versions(), "input": {**files, **counts}}
        result = apply_to_folders(loaded, judge_scores, folders, out, run=record, bootstrap=bootstrap, seed=seed)
    missing = sum(map(bool, result.failures))
    console = new_console()
    say(console, f"{len(result.pairs) - missing} of {len(result.pairs)} reports scored")
    say_path(console, "Results in", out)
    if missing:
        say(console, f"{missing} excluded, because a judge has not scored them", style="red")
        raise typer.Exit(ExitCode.INCOMPLETE)


def _folders(judges: Sequence[str]) -> Mapping[str, Path]:
    return {name: Path(folder) for name, folder in key_values(judges, "--judges").items()}


def _names(features: str | None) -> list[str] | None:
    if features is None:
        return None
    names = [name.strip() for name in features.split(",") if name.strip()]
    if not names:
        raise InputError("--features: expected names of scores, separated by commas", code=ErrorCode.INVALID_OPTION)
    return names
