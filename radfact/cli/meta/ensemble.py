"""`radfact meta ensemble`: fit an ensemble of judges on expert ratings, and apply it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer

from radfact.api import versions
from radfact.cli.command import with_options
from radfact.cli.meta import options as own
from radfact.cli.meta.agreement import TableArgument, read
from radfact.cli.meta.options import RatingOptions, comma_list, say_matches, say_notes
from radfact.cli.options import INPUT, OUTPUT, SCORES, Out, option
from radfact.cli.tables import new_console, say, show_table
from radfact.errors import ErrorCode, ExitCode, InputError
from radfact.io.outputs import Output
from radfact.meta.ensembles import Ensemble, Method, apply_to_folders, fit_on_ratings, read_features
from radfact.meta.scores import match_samples, pair_digests
from radfact.metrics.radfact.options import BootstrapOptions
from radfact.options import only, parse_key_values, rename_fields
from radfact.results.reader import read_digests

app = typer.Typer(
    help="Ensembles of judges: fit on expert ratings, apply to new reports.",
    no_args_is_help=True,
    rich_markup_mode="rich",
)

JudgesOption = Annotated[list[str], option("Results folder of a judge; repeatable.", "NAME=FOLDER", INPUT, "--judges")]


@app.command()
@with_options
def fit(
    table: TableArgument,
    judges: JudgesOption,
    rating: RatingOptions,
    draws: Annotated[BootstrapOptions, own.DRAWS],
    features: Annotated[
        str | None, option("Scores of each judge to use, separated by commas. Default: all.", "NAMES", SCORES)
    ] = None,
    method: Annotated[
        Method, option("Linear regression on the expert ratings, or average.", None, SCORES)
    ] = "linear_regression",
    folds: Annotated[int, option("Number of cross-validation folds.", "N", SCORES, min=2)] = 10,
    out: Annotated[Path, option("JSON file to write.", "FILE", OUTPUT), Output("file")] = Path("ensemble.json"),
) -> None:
    """Fit an ensemble of judges on expert ratings, and print its cross-validated agreement with the experts.

    Each judge is a results folder with a name; samples are matched by the ids that 'radfact meta pairs' writes. The
    agreement of each feature alone is printed for comparison.
    """
    console = new_console()
    ratings = read(table, rating, draws.cluster)
    folders, names = _folders(judges), None if features is None else comma_list(features)
    if names == []:
        raise InputError("--features: expected names of scores, separated by commas", code=ErrorCode.INVALID_OPTION)
    with rename_fields({"runs": "--judges", "features": "--judges"}):
        sample_ids, scores = read_features(folders, names)
        digests = pair_digests(ratings.pairs)
        say_matches([match_samples(folder, digests) for folder in folders.values()])
        fitted, agreement, clusters = fit_on_ratings(
            ratings, sample_ids, scores, method=method, folds=folds, seed=draws.seed, replicates=draws.bootstrap
        )
    show_table(console, agreement)
    direction = ratings.better[ratings.target]
    say(console, f"Correlations with '{ratings.target}' of the experts ({direction} is better), on their own scales.")
    say(console, f"Intervals: {clusters.resampling().describe()}.")
    say_notes(console, ratings.notes)
    fitted.save(out)
    say(console, f"Written to {out}", wrap=False)


@app.command("apply")
@with_options
def apply_ensemble(
    ensemble: Annotated[Path, typer.Argument(help="JSON file written by 'radfact meta ensemble fit'.")],
    judges: JudgesOption,
    draws: Annotated[BootstrapOptions, only("bootstrap", "seed")],
    out: Out = Path("ensemble"),
) -> None:
    """Score reports with an ensemble, on the common samples of the judges' results folders.

    The judges need the names that were used in 'fit'. The output is a results folder with the score 'ensemble', for
    'radfact meta agreement --scores', 'radfact compare' and 'radfact page'. Samples without a score of every judge are
    excluded and counted.
    """
    loaded, folders = Ensemble.load(ensemble), _folders(judges)
    first, *others = folders.values()
    with rename_fields({"runs": "--judges", "features": "--judges"}):
        sample_ids, scores = read_features(folders)
        digests = read_digests(first)
        say_matches([match_samples(folder, digests) for folder in others])
        files = {"files": [str(ensemble)], "judges": {name: str(folder) for name, folder in folders.items()}}
        counts = {"read": len(digests), "skipped": len(digests) - len(sample_ids)}
        record = {"versions": versions(), "input": {**files, **counts}}
        values = dict(zip(sample_ids, loaded.apply(scores.values), strict=True))
        result = apply_to_folders(loaded, values, folders, out, run=record, bootstrap=draws.bootstrap, seed=draws.seed)
    missing = sum(map(bool, result.failures))
    console = new_console()
    say(console, f"{len(result.pairs) - missing} of {len(result.pairs)} reports scored")
    say(console, f"Results in {out}", wrap=False)
    if missing:
        say(console, f"{missing} excluded: not scored by all judges", style="red")
        raise typer.Exit(ExitCode.INCOMPLETE)


def _folders(judges: Sequence[str]) -> Mapping[str, Path]:
    return {name: Path(folder) for name, folder in parse_key_values(judges, "--judges").items()}
