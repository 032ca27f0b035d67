"""`radfact meta agreement` and `radfact meta pairs`: agreement of metrics with experts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from importlib.resources import as_file, files
from itertools import product
from pathlib import Path
from shutil import copytree
from typing import Annotated, Any

import typer

from radfact.cli.command import with_options
from radfact.cli.meta import options as own
from radfact.cli.meta.options import RatingOptions, Scoring, client_of, collect_scores, say_notes
from radfact.cli.options import INPUT, OUTPUT, SCORES, option
from radfact.cli.tables import new_console, say, show_table
from radfact.error_categories import ERROR_CATEGORIES
from radfact.errors import ErrorCode, InputError, suggest_name
from radfact.io.columns import EXAMINATION
from radfact.io.jsonl import write_json
from radfact.io.outputs import Output, replace_files
from radfact.io.pairs import CLUSTER_COLUMNS, read_pairs
from radfact.judges.options import JudgeOptions
from radfact.meta.agreement import analysis
from radfact.meta.agreement.preferences import evaluate_judge, evaluate_scores, find_wrong_preferences
from radfact.meta.agreement.report import (
    AgreementResult,
    contrast_table,
    preference_table,
    short_table,
    write_agreement,
)
from radfact.meta.datasets.layouts import LAYOUTS, read_ratings
from radfact.meta.datasets.preferences import Consensus, PreferenceSet, read_preferences
from radfact.meta.datasets.ratings import RatingSet
from radfact.meta.datasets.reports import read_ids
from radfact.meta.datasets.shots import ids_without, one_per_category, rated_shots
from radfact.meta.scores import ScoreColumns
from radfact.metrics.llm.vert import draw_shots
from radfact.metrics.options import MetricOptions
from radfact.metrics.radfact.options import MAX_REPLICATES, BootstrapOptions
from radfact.options import only, rename_fields
from radfact.pages.meta_page import Table
from radfact.progress import display_progress
from radfact.records import NO_CLUSTERS, Pair, narrative
from radfact.statistics.rater_agreement import PreferenceAccuracy

TableArgument = Annotated[Path, typer.Argument(help="Ratings: a file, or the folder of a data set.")]


@with_options
def agreement(
    table: TableArgument,
    rating: RatingOptions,
    metrics: Annotated[MetricOptions, own.METRICS],
    judge: Annotated[JudgeOptions, own.MODEL],
    draws: Annotated[BootstrapOptions, own.DRAWS],
    group: Annotated[
        str | None,
        option("Also correlate within groups, such as site. Default: the groups of the data set.", "KIND", SCORES),
    ] = None,
    scores: own.Scores = None,
    ask: Annotated[
        bool, option("Also ask the judge which candidate is better (--layout preferences).", None, SCORES, "--ask")
    ] = False,
    consensus: Annotated[
        Consensus,
        option("Which experts decide a row (--layout preferences): all of them, or more than half.", None, INPUT),
    ] = "unanimous",
    baseline: Annotated[
        str | None,
        option(
            "Score that the others are tested against: which agrees better with the experts? Default: the first.",
            "SCORE",
            SCORES,
        ),
    ] = None,
    rounds: Annotated[int, option("Number of permutations.", "N", SCORES, min=1, max=MAX_REPLICATES)] = 1000,
    out: own.Out = Path("agreement"),
    cache: own.Cache = None,
) -> None:
    """Measure the agreement of metrics with experts.

    Kendall's tau-b, Spearman and Pearson correlation with bootstrap intervals, over all reports and by group; paired
    tests of each score against a baseline; the reports on which scores and experts disagree most; agreement between
    the experts; counts of errors; preferences by confidence. Writes plots and an HTML page.

    The layout plain is a CSV with id, reference, candidate, expert columns (QUANTITY:RATER, expert or expert_RATER)
    and optionally site, modality, anatomy or group; preferences is a CSV with id, reference, candidate_1, candidate_2,
    expert columns (first, second, equal) and optionally confidence (one number a row, higher is surer); rexval is the
    folder with the two CSV files; refisco-v0 and refisco-v1 are CSV files of corrected lines; rate-eval is
    rate_test.csv of a task; radeval is the CSV of the expert set; radevalx is the folder with its two CSV files.

    Scores are computed (--metrics), or read (--scores) from results folders of 'radfact evaluate' on the pairs that
    'radfact meta pairs' writes.
    """
    console = new_console()
    scoring = Scoring(metrics, judge.or_environment(), cache or out / "cache")
    ids = None if rating.ids is None else str(rating.ids)
    record = {"table": str(table), "ids": ids, "layout": rating.layout, "group": group, **draws.record()}
    record["columns"] = rating.columns
    if rating.layout == "preferences":
        options = {"consensus": consensus, "cluster": draws.cluster}
        notes = _preferences(_read_preferences(table, rating, **options), scores, scoring, ask, record | options, out)
    elif ask:
        raise InputError("expected --layout preferences", code=ErrorCode.CONFLICTING_OPTIONS, field="--ask")
    else:
        record |= {"baseline": baseline, "rounds": rounds}
        ratings = read(table, rating, draws.cluster)
        ratings = replace(ratings, notes=[*ratings.notes, *ratings.agreement_notes()])
        notes = _correlations(ratings, scores, scoring, record, out)
    say_notes(console, notes)
    say(console, f"Read the agreement in {out / 'agreement.html'}", wrap=False)
    scoring.finish(console)


def _read_preferences(table: Path, rating: RatingOptions, **options: Any) -> PreferenceSet:
    if rating.ids is not None:
        raise InputError("expected no ids with --layout preferences", code=ErrorCode.CONFLICTING_OPTIONS, field="--ids")
    return read_preferences(table, columns=rating.columns, **options)


def _correlations(
    ratings: RatingSet, folders: Sequence[Path] | None, scoring: Scoring, record: dict[str, Any], out: Path
) -> list[str]:
    kinds = sorted({kind for sample in ratings.samples for kind in sample.groups})
    group = record["group"]
    if group is not None and group not in kinds:
        hint = suggest_name(group, kinds, f"kinds are {', '.join(kinds) or 'none'}")
        raise InputError(f"--group: unknown kind '{group}'; {hint}", code=ErrorCode.UNKNOWN_NAME)
    scores = collect_scores(ratings.pairs, folders, scoring, out)
    draws = {"replicates": record["bootstrap"], "seed": record["seed"]}
    with rename_fields({"baseline": "--baseline"}):
        tests = analysis.compare_metrics(ratings, scores, record["baseline"], rounds=record["rounds"], **draws)
    result = AgreementResult(
        analysis.correlate_with_experts(ratings, scores, group=group, **draws),
        tests,
        analysis.find_disagreements(ratings, scores),
        analysis.compare_raters(ratings, **draws),
        analysis.count_errors(ratings, scores),
        analysis.compare_counts(ratings, scores),
    )
    drawn = ratings.clusters.resampling()
    record |= {"resampling": asdict(drawn), "target": ratings.target}
    overall = {row.score: row.coefficients for row in result.agreement if row.group == "all"}
    show_table(new_console(), short_table("score", overall))
    if tests:
        say(new_console(), f"Compared with {tests[0].baseline}, over the reports with both scores:")
        show_table(new_console(), contrast_table(tests))
    for note in (f"Intervals: {drawn.describe()}.", *scores.model_notes()):
        say(new_console(), note)
    with replace_files(out) as new:
        missing = write_agreement(result, ratings, scores, new, record, group)
    return [*ratings.notes, *missing]


def _preferences(
    preferences: PreferenceSet,
    folders: Sequence[Path] | None,
    scoring: Scoring,
    ask: bool,
    record: dict[str, Any],
    out: Path,
) -> list[str]:
    drawn = preferences.clusters.resampling()
    record |= {"resampling": asdict(drawn)}
    draws = {"replicates": record["bootstrap"], "seed": record["seed"]}
    notes = [*preferences.notes, f"Intervals: {drawn.describe()}."]
    queried: dict[str, Mapping[float, PreferenceAccuracy]] = {}
    failed: list[str] = []
    if ask:
        name = scoring.judge.required_judge
        client = client_of(name, scoring.judge, scoring.cache, option="--judge", parameters={"temperature": 0})
        with client, display_progress(new_console(stderr=True), {"preferences": client.usage_counter.as_dict}, None):
            queried[f"{name} (direct query)"], failed = evaluate_judge(client, preferences, **draws)
        scoring.is_incomplete = bool(failed)
    needs_scores = bool(not ask or folders or scoring.metrics.metrics)
    scores = collect_scores(preferences.pairs, folders, scoring, out) if needs_scores else ScoreColumns({}, {})
    if ask:
        scores = replace(scores, models={**scores.models, "direct query": scoring.judge.required_judge})
    notes += scores.model_notes()
    accuracies = {**evaluate_scores(preferences, scores, **draws), **queried}
    show_table(new_console(), preference_table(accuracies))
    if failed:
        notes.append(f"{len(failed)} direct queries failed: {failed[0]}.")
    wrong = find_wrong_preferences(preferences, scores)
    result = AgreementResult([], disagreements=wrong, preferences=accuracies)
    with replace_files(out) as new:
        return [*notes, *write_agreement(result, RatingSet([], {}, "", None, notes), scores, new, record, None)]


def read(table: Path, options: RatingOptions, cluster: str | None = None, *, texts_only: bool = False) -> RatingSet:
    if options.layout == "preferences":
        message = f"expected ratings ({', '.join(LAYOUTS)}), found 'preferences'"
        raise InputError(message, code=ErrorCode.INVALID_OPTION, field="--layout")
    own_options = options.model_dump(include={"experts", "better", "target", "columns"})
    ratings = read_ratings(table, options.layout, cluster=cluster, texts_only=texts_only, **own_options)
    return ratings if options.ids is None else ratings.select(read_ids(options.ids))


@with_options
def examples(out: own.Out = Path("examples")) -> None:
    """Write an example of every layout of rating sets: a few made-up reports with made-up ratings."""
    with as_file(files("radfact.meta.datasets") / "examples") as source, replace_files(out) as new:
        copytree(source, new, dirs_exist_ok=True)
        names = sorted(path.name for path in source.iterdir())
    console = new_console()
    for name in names:
        layout = name.removesuffix(".csv")
        more = " --better lower" if layout == "plain" else ""
        command = f"radfact meta agreement {out / name} --layout {layout}{more} --metrics rouge_l"
        say(console, command, wrap=False)


@with_options
def pairs(
    table: TableArgument,
    rating: Annotated[RatingOptions, only("layout", "ids", "columns")],
    out: Annotated[
        Path, typer.Option(metavar="FILE", help="CSV file to write, for 'radfact evaluate'."), Output("file")
    ] = Path("pairs.csv"),
) -> None:
    """Write the reports of a rated data set as pairs for 'radfact evaluate'."""
    if rating.layout == "preferences":
        preferences = _read_preferences(table, rating, texts_only=True)
        reports, by, notes = preferences.pairs, None, preferences.notes
    else:
        ratings = read(table, rating, texts_only=True)
        reports, by, notes = ratings.pairs, ratings.cluster_by, ratings.notes
    known = [name for name in EXAMINATION if any(getattr(pair.context, name) for pair in reports)]
    rows = [[pair.sample_id, *map(narrative, (pair.candidate, pair.reference))] for pair in reports]
    for row, pair in zip(rows, reports, strict=True):
        row += [*([] if by is None else [pair.cluster or ""]), *(getattr(pair.context, name) or "" for name in known)]
    Table(["example_id", "prediction", "target", *([] if by is None else [by]), *known], rows).write(out)
    say_notes(new_console(), notes)
    say(new_console(), f"{len(reports)} pairs written to {out}", wrap=False)


@with_options
def shots(
    table: TableArgument,
    rating: RatingOptions,
    seed: own.Seed = 42,
    n: Annotated[int, option("Number of examples to draw.", "N", SCORES, "--n", min=1)] = 10,
    by_category: Annotated[bool, option("Instead, one of each error category.", None, SCORES, "--by-category")] = False,
    scale: Annotated[tuple[float, float] | None, option("Lowest and highest rating.", "LOW HIGH", INPUT)] = None,
    exclude: Annotated[list[Path] | None, option("Pairs or ratings to test on; repeatable.", "FILE", INPUT)] = None,
    out: Annotated[Path, option("JSON file to write.", "FILE", OUTPUT), Output("file")] = Path("shots.json"),
) -> None:
    """Write few-shot examples for VERT from expert ratings (VERT, section 4.1.3).

    An example has the mean counts of the experts, and max(0, 1 - 0.15 x significant errors) as its score; in sets
    without counts by category, it has the mean rating on a scale from 0 to 1 (--scale, by default 0 5 for rate-eval).
    --by-category selects reports with an error of the category, significant if possible, and the fewest others. No
    example has the reference, the id, the study or the patient of a pair in the files of --exclude.
    """
    console, ratings = new_console(), read(table, rating)
    count = len(ratings.samples)
    if rating.target is not None and scale is None and ratings.has_categories:
        message = "expected --scale LOW HIGH, since otherwise errors are counted by category"
        raise InputError(message, code=ErrorCode.CONFLICTING_OPTIONS, field="--target")
    notes = [*ratings.notes]
    for file, by in product(exclude or (), (NO_CLUSTERS, *CLUSTER_COLUMNS)):
        try:
            kept = ids_without(read(table, rating, by), tests := _read_tests(file, rating, by))
        except InputError as error:
            if error.field != "cluster":
                raise
            continue  # the column is not in both files
        ratings = replace(ratings, samples=[of for of in ratings.samples if of.pair.sample_id in kept])
        notes += [] if tests else [f"{file} has no pairs: nothing is excluded."]
    with rename_fields({"scale": "--scale", "n": "--n"}):
        known = rated_shots(ratings, (0.0, 5.0) if scale is None and rating.layout == "rate-eval" else scale)
        if not known or (by_category and not ratings.has_categories):
            expected = "errors by category" if known else "rated reports that are not excluded"
            raise InputError(f"expected {expected}, found none", code=ErrorCode.EMPTY_INPUT, file=table)
        chosen = one_per_category(known, seed=seed) if by_category else draw_shots(known, n, seed=seed)
    write_json(out, [shot.model_dump(exclude_defaults=True) for shot in chosen])
    missing = ERROR_CATEGORIES.keys() - {shot.category for shot in chosen} if by_category else ()
    say_notes(console, [*notes, *(f"No other report has an error ({letter})." for letter in sorted(missing))])
    ids = ", ".join(str(shot.id) for shot in chosen)
    say(console, f"{len(chosen)} examples from {len(known)} of {count} reports: {ids}")
    style = "rad-err" if by_category else "random"
    say(console, f"--metric-arg vert.shots={out} --metric-arg vert.style={style}", wrap=False)


def _read_tests(file: Path, rating: RatingOptions, cluster: str) -> Sequence[Pair]:
    """Read pairs, or else ratings, to test on."""
    other_file = {ErrorCode.MISSING_FIELD, ErrorCode.INVALID_FORMAT}
    try:
        return read_pairs(file, missing="empty", columns=rating.columns, cluster=cluster).pairs
    except InputError as error:
        is_rated_by_several = error.code is ErrorCode.DUPLICATE and rating.layout == "plain"
        if error.field == "cluster" or not (error.code in other_file or is_rated_by_several):
            raise
        reason = error.message
    try:
        return read(file, rating.model_copy(update={"ids": None}), cluster, texts_only=True).pairs
    except InputError as error:
        if error.field == "cluster" or error.code not in other_file:
            raise
        message = f"expected pairs, or ratings in the layout {rating.layout}; for pairs, {reason}"
        raise InputError(message, code=error.code, file=file) from None
