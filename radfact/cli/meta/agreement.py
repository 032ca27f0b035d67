"""`radfact meta agreement` and `radfact meta pairs`: do metrics agree with experts?"""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from radfact.cli import options as shared
from radfact.cli.inputs import check_folder
from radfact.cli.meta import options as own
from radfact.cli.meta.options import Scoring, client_of, collect_scores, say_notes, show_table
from radfact.cli.metrics import WeightsOption
from radfact.cli.options import FIGURES, INPUT, JudgeOptions, naming_options
from radfact.cli.tables import new_console, say_path
from radfact.errors import ErrorCode, InputError, suggest_name
from radfact.progress import ProgressDisplay

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from radfact.meta.datasets.preferences import PreferenceSet
    from radfact.meta.datasets.ratings import RatingSet
    from radfact.statistics.rater_agreement import PreferenceAccuracy

MANUAL = "\n".join(
    (
        "Correlate metrics with experts: Kendall's tau-b, Spearman and Pearson with bootstrap intervals, over all "
        "reports and by group; agreement between the experts; counts of errors; preferences by confidence; plots and "
        "a page.",
        "",
        "[bold]Layouts[/bold]",
        "  plain        CSV: id, reference, candidate, expert columns",
        "               (QUANTITY:RATER, expert or expert_RATER), optionally",
        "               site, modality, anatomy or group",
        "  preferences  CSV: id, reference, candidate_1, candidate_2,",
        "               confidence, expert columns (first, second, equal)",
        "  rexval       the folder with its two CSV files",
        "  refisco-v0, refisco-v1   the CSV of corrected lines",
        "  rate-eval    rate_test.csv of a task",
        "  radeval      the expert set's CSV",
        "",
        "Metrics are computed (--metrics), or read from results folders (--scores) of 'radfact evaluate' on the file "
        "that 'radfact meta pairs' writes.",
        "",
        "[bold]Examples[/bold]",
        "  radfact meta agreement ratings.csv --better lower --metrics rouge_l,bleu",
        "  radfact meta agreement preferences.csv --layout preferences \\",
        "      --metrics green --ask --judge openai:MODEL",
        "  radfact meta agreement rexval/ --layout rexval --metrics green \\",
        "      --judge openai:MODEL --out results/rexval",
    )
)


class LayoutName(StrEnum):
    """Layout of a set of ratings."""

    PLAIN = "plain"
    PREFERENCES = "preferences"
    REXVAL = "rexval"
    REFISCO_V0 = "refisco-v0"
    REFISCO_V1 = "refisco-v1"
    RATE_EVAL = "rate-eval"
    RADEVAL = "radeval"


class BetterName(StrEnum):
    """Which ratings are better."""

    HIGHER = "higher"
    LOWER = "lower"


TableArgument = Annotated[Path, typer.Argument(help="Ratings: a file, or the folder of a set.")]
LayoutOption = Annotated[LayoutName, typer.Option(help="Layout of the ratings.", rich_help_panel=INPUT)]
ExpertOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="COLUMN",
        help="Expert column of a plain table; may be repeated. Default: all columns with such names.",
        rich_help_panel=INPUT,
    ),
]
BetterOption = Annotated[
    BetterName | None,
    typer.Option(help="Which ratings of a plain table are better.", rich_help_panel=INPUT),
]
IdsOption = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Use these reports only: one id per line, or the beginning of ids before an underscore, such as the "
        "number of a study.",
        rich_help_panel=INPUT,
    ),
]
AskOption = Annotated[
    bool,
    typer.Option("--ask", help="Also query the judge for the better candidate (preferences).", rich_help_panel=FIGURES),
]
TargetOption = Annotated[
    str | None,
    typer.Option(
        metavar="QUANTITY",
        help="Rating to correlate with, such as significant. Default: the set's own.",
        rich_help_panel=FIGURES,
    ),
]
GroupOption = Annotated[
    str | None,
    typer.Option(
        metavar="KIND",
        help="Also correlate within groups, such as site. Default: the set's own.",
        rich_help_panel=FIGURES,
    ),
]


def agreement(
    table: TableArgument,
    layout: LayoutOption = LayoutName.PLAIN,
    expert: ExpertOption = None,
    better: BetterOption = None,
    target: TargetOption = None,
    ids: IdsOption = None,
    group: GroupOption = None,
    scores: own.Scores = None,
    metrics: own.Metrics = None,
    weights: WeightsOption = None,
    config: shared.Config = None,  # noqa: ARG001
    judge: shared.JudgeName = None,
    judge_arg: shared.JudgeArgs = None,
    base_url: shared.BaseUrl = None,
    concurrency: shared.Concurrency = None,
    bootstrap: own.Bootstrap = 1000,
    seed: own.Seed = 42,
    out: own.Out = Path("agreement"),
    cache: own.Cache = None,
    ask: AskOption = False,
) -> None:
    """Correlate metrics with experts."""
    console = new_console()
    check_folder(out)
    judge_options = JudgeOptions(judge, judge_arg, base_url, concurrency=concurrency)
    scoring = Scoring(metrics, weights, judge_options, cache or out / "cache")
    options: dict[str, Any] = {"layout": layout.value, "group": group, "bootstrap": bootstrap, "seed": seed}
    record = {"table": str(table), "ids": None if ids is None else str(ids), **options}
    if layout is LayoutName.PREFERENCES:
        _check_no_ids(ids)
        notes = _preferences(table, scores, scoring, ask, record, out)
    elif ask:
        raise InputError("--ask: expected --layout preferences", code=ErrorCode.CONFLICTING_OPTIONS)
    else:
        ratings = read(table, layout, expert, better, target, ids)
        notes = _correlations(ratings, scores, scoring, record, out)
    say_notes(console, notes)
    say_path(console, "Read the agreement in", out / "agreement.html")
    scoring.finish(console)


def _check_no_ids(ids: Path | None) -> None:
    if ids is not None:
        raise InputError("--ids: expected no ids with --layout preferences", code=ErrorCode.CONFLICTING_OPTIONS)


def _correlations(
    ratings: RatingSet, folders: Sequence[Path] | None, scoring: Scoring, record: dict[str, Any], out: Path
) -> list[str]:
    from radfact.meta.agreement import analysis
    from radfact.meta.agreement.report import AgreementResult, short_table, write_agreement

    kinds = sorted({kind for sample in ratings.samples for kind in sample.groups})
    group = record["group"]
    if group is not None and group not in kinds:
        hint = suggest_name(group, kinds, f"kinds are {', '.join(kinds) or 'none'}")
        raise InputError(f"--group: unknown kind '{group}'; {hint}", code=ErrorCode.UNKNOWN_NAME)
    scores = collect_scores(ratings.pairs, folders, scoring, out)
    draws = {"replicates": record["bootstrap"], "seed": record["seed"]}
    result = AgreementResult(
        analysis.correlate_with_experts(ratings, scores, group=group, **draws),
        analysis.compare_raters(ratings, **draws),
        analysis.count_errors(ratings, scores),
        analysis.compare_counts(ratings, scores),
    )
    show_table(new_console(), short_table(result.agreements))
    missing = write_agreement(result, ratings, scores, out, {**record, "target": ratings.target}, group)
    return [*ratings.notes, *missing]


def _preferences(
    table: Path, folders: Sequence[Path] | None, scoring: Scoring, ask: bool, record: dict[str, Any], out: Path
) -> list[str]:
    from radfact.meta.agreement.preferences import evaluate_scores
    from radfact.meta.agreement.report import AgreementResult, preference_table, write_agreement
    from radfact.meta.datasets.preferences import read_preferences
    from radfact.meta.datasets.ratings import RatingSet
    from radfact.meta.scores import ScoreColumns

    preferences = read_preferences(table)
    draws = {"replicates": record["bootstrap"], "seed": record["seed"]}
    excluded = sum(expert is None for expert in preferences.expert)
    notes = [f"{excluded} of {len(preferences.expert)} rows are excluded: the experts differ or have no preference."]
    queried, failed = _query_judge(preferences, scoring, draws) if ask else ({}, [])
    needs_scores = bool(not ask or folders or scoring.names)
    scores = collect_scores(preferences.pairs, folders, scoring, out) if needs_scores else ScoreColumns({}, {})
    accuracies = {**evaluate_scores(preferences, scores, **draws), **queried}
    show_table(new_console(), preference_table(accuracies))
    notes += failed
    result, ratings = AgreementResult([], preferences=accuracies), RatingSet([], {}, "", None, notes)
    return [*notes, *write_agreement(result, ratings, scores, out, record, None)]


def _query_judge(
    preferences: PreferenceSet, scoring: Scoring, draws: dict[str, int]
) -> tuple[dict[str, Mapping[float, PreferenceAccuracy]], list[str]]:
    """Return the accuracy of the judge's own preferences, and a note about failed queries."""
    from radfact.meta.agreement.preferences import evaluate_judge

    judge = scoring.judge
    client = client_of(judge.name, judge, scoring.cache, option="--judge", parameters={"temperature": 0})
    usage = {"preferences": client.usage_counter.as_dict}
    with client, ProgressDisplay(new_console(stderr=True), usage, None):
        result = evaluate_judge(client, preferences, **draws)
    accuracies = {f"{judge.name} (direct query)": result.accuracies}
    if not result.failures:
        return accuracies, []
    scoring.is_incomplete = True
    reason = next(iter(result.failures.values()))
    return accuracies, [f"{len(result.failures)} direct queries failed: {reason}."]


def read(
    table: Path,
    layout: LayoutName,
    expert: list[str] | None,
    better: BetterName | None,
    target: str | None,
    ids: Path | None = None,
) -> RatingSet:
    """Read a set of ratings as the options describe it."""
    from radfact.meta.datasets.layouts import LAYOUTS, read_ratings
    from radfact.meta.datasets.reports import read_ids

    known = next((name for name in LAYOUTS if name == layout.value), None)
    if known is None:
        raise InputError(
            f"--layout: expected ratings ({', '.join(LAYOUTS)}), found '{layout.value}'", code=ErrorCode.INVALID_OPTION
        )
    with naming_options():
        ratings = read_ratings(
            table, known, experts=expert or (), better=better.value if better else None, target=target
        )
        return ratings if ids is None else ratings.select(read_ids(ids))


def pairs(
    table: TableArgument,
    layout: LayoutOption = LayoutName.PLAIN,
    expert: ExpertOption = None,
    better: BetterOption = None,
    ids: IdsOption = None,
    out: Annotated[Path, typer.Option(metavar="FILE", help="CSV for 'radfact evaluate'.")] = Path("pairs.csv"),
) -> None:
    """Write the reports of a set of ratings as pairs for `radfact evaluate`."""
    from radfact.html.meta_page import Table
    from radfact.meta.datasets.preferences import read_preferences
    from radfact.records import narrative

    if layout is LayoutName.PREFERENCES:
        _check_no_ids(ids)
        reports = read_preferences(table).pairs
    else:
        reports = read(table, layout, expert, better, None, ids).pairs
    rows = [[pair.sample_id, narrative(pair.candidate), narrative(pair.reference)] for pair in reports]
    Table(["example_id", "prediction", "target"], rows).write(out)
    say_path(new_console(), f"{len(reports)} pairs written to", out)
