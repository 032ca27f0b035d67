"""`radfact meta agreement`: do metrics agree with experts?"""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from radfact.cli import options as shared
from radfact.cli.inputs import check_folder
from radfact.cli.meta import options as own
from radfact.cli.meta.options import Scoring, client_of, figures_of, show_table
from radfact.cli.metrics import WeightsOption
from radfact.cli.options import FIGURES, INPUT, JudgeOptions, naming_options
from radfact.cli.tables import new_console, say, say_path
from radfact.errors import InputError
from radfact.progress import ProgressDisplay

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from radfact.meta.agreement.preferences import Accuracy
    from radfact.meta.datasets.preference_table import Preferences
    from radfact.meta.datasets.ratings import Ratings

MANUAL = "\n".join(
    (
        "Correlate metrics with experts: Kendall's tau-b, Spearman, Pearson with bootstrap intervals, over all and by "
        "group; the experts among themselves; counts of errors; preferences by confidence; plots and a page.",
        "",
        "[bold]Layouts[/bold]",
        "  plain        CSV: id, reference, candidate, expert columns",
        "               (QUANTITY:RATER, expert or expert_RATER), and perhaps",
        "               site, modality, anatomy or group",
        "  preferences  CSV: id, reference, candidate_1, candidate_2,",
        "               confidence, expert columns (first, second, equal)",
        "  rexval       the folder with its two CSV files",
        "  refisco-v0, refisco-v1   the CSV of corrected lines",
        "  rate-eval    rate_test.csv of a task",
        "  radeval      the expert set's CSV",
        "",
        "Metrics are computed here (--metrics), or read from results folders (--scores) of 'radfact evaluate' on the "
        "file that 'radfact meta pairs' writes.",
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
    """How a set of ratings is laid out."""

    PLAIN = "plain"
    PREFERENCES = "preferences"
    REXVAL = "rexval"
    REFISCO_V0 = "refisco-v0"
    REFISCO_V1 = "refisco-v1"
    RATE_EVAL = "rate-eval"
    RADEVAL = "radeval"


class BetterName(StrEnum):
    """Which way ratings are better."""

    HIGHER = "higher"
    LOWER = "lower"


TableArgument = Annotated[Path, typer.Argument(help="Ratings: a file, or the folder of a set.")]
LayoutOption = Annotated[LayoutName, typer.Option(help="How the ratings are laid out.", rich_help_panel=INPUT)]
ExpertOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="COLUMN",
        help="Expert column of a plain table; may be repeated. Default: all named like one.",
        rich_help_panel=INPUT,
    ),
]
BetterOption = Annotated[
    BetterName | None,
    typer.Option(help="Which way the ratings of a plain table are better.", rich_help_panel=INPUT),
]
IdsOption = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Keep these reports alone: an id a line, or what ids begin with before an underscore, such as the number "
        "of a study.",
        rich_help_panel=INPUT,
    ),
]
AskOption = Annotated[
    bool,
    typer.Option(
        "--ask", help="Of preferences: also ask the judge which candidate is better.", rich_help_panel=FIGURES
    ),
]
TargetOption = Annotated[
    str | None,
    typer.Option(
        metavar="QUANTITY",
        help="What of the ratings is correlated, such as significant. Default: the set's own.",
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
    group: Annotated[
        str | None,
        typer.Option(
            metavar="KIND", help="Correlate within each, such as site. Default: the set's own.", rich_help_panel=FIGURES
        ),
    ] = None,
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
    who = JudgeOptions(judge, judge_arg, base_url, concurrency=concurrency)
    scoring = Scoring(metrics, weights, who, cache or out / "cache")
    options: dict[str, Any] = {"layout": layout.value, "group": group, "bootstrap": bootstrap, "seed": seed}
    record = {"table": str(table), "ids": None if ids is None else str(ids), **options}
    if layout is LayoutName.PREFERENCES:
        if ids is not None:
            raise InputError("--ids: of preferences all rows are taken")
        notes = _preferences(table, scores, scoring, ask, record, out)
    elif ask:
        raise InputError("--ask: only of preferences (--layout preferences)")
    else:
        ratings = read(table, layout, expert, better, target, ids)
        notes = _correlations(ratings, scores, scoring, record, out)
    for note in notes:
        say(console, note, style="yellow")
    say_path(console, "Read the agreement in", out / "agreement.html")
    scoring.finish(console)


def _correlations(
    ratings: Ratings, scores: Sequence[Path] | None, scoring: Scoring, record: dict[str, Any], out: Path
) -> list[str]:
    from radfact.meta.agreement import analysis as meta
    from radfact.meta.agreement.report import Findings, write_agreement
    from radfact.meta.agreement.tables import short_table

    console = new_console()
    kinds = sorted({kind for one in ratings.samples for kind in one.groups})
    group = record["group"]
    if group is not None and group not in kinds:
        raise InputError(f"--group: no such kind '{group}'; there are {', '.join(kinds) or 'none'}")
    figures = figures_of(ratings.pairs, scores, scoring, out)
    drawn = {"replicates": record["bootstrap"], "seed": record["seed"]}
    findings = Findings(
        meta.agreement(ratings, figures, group=group, **drawn),
        meta.inter_rater(ratings, **drawn),
        meta.count_errors(ratings, figures),
        meta.counted(ratings, figures),
    )
    show_table(console, short_table(findings.agreements))
    missing = write_agreement(findings, ratings, figures, out, {**record, "target": ratings.target}, group)
    return [*ratings.notes, *missing]


def _preferences(
    table: Path, scores: Sequence[Path] | None, scoring: Scoring, ask: bool, record: dict[str, Any], out: Path
) -> list[str]:
    from radfact.meta.agreement.analysis import Figures
    from radfact.meta.agreement.report import Findings, write_agreement
    from radfact.meta.agreement.tables import preference_table
    from radfact.meta.datasets.preference_table import accuracies, read_preferences
    from radfact.meta.datasets.ratings import Ratings

    console = new_console()
    preferences = read_preferences(table)
    drawn = {"replicates": record["bootstrap"], "seed": record["seed"]}
    left_out = sum(one is None for one in preferences.expert)
    notes = [f"{left_out} of {len(preferences.expert)} rows are out: the experts differ, or prefer none."]
    asked, failed = _asked(preferences, scoring, drawn) if ask else ({}, [])
    only_asked = ask and not scores and not scoring.names
    figures = Figures({}, {}) if only_asked else figures_of(preferences.pairs, scores, scoring, out)
    found = {**accuracies(preferences, figures, **drawn), **asked}
    show_table(console, preference_table(found))
    notes += failed
    findings, nobody = Findings([], preferences=found), Ratings([], {}, "", None, notes)
    return [*notes, *write_agreement(findings, nobody, figures, out, record, None)]


def _asked(
    preferences: Preferences, scoring: Scoring, drawn: dict[str, int]
) -> tuple[dict[str, Mapping[float, Accuracy]], list[str]]:
    """What the judge prefers when it is asked directly, and how many answers could not be used."""
    from radfact.meta.datasets.preference_table import ask_directly

    who = scoring.who
    client = client_of(who.name, who, scoring.cache, option="--judge", parameters={"temperature": 0})
    with client, ProgressDisplay(new_console(stderr=True), {"asking": client.usage_counter.as_dict}, None):
        answers = ask_directly(client, preferences, **drawn)
    levels = {f"{who.name}, asked": answers.levels}
    if not answers.failures:
        return levels, []
    scoring.left_out = True
    why = next(iter(answers.failures.values()))
    return levels, [f"{len(answers.failures)} rows are out of what was asked directly: {why}."]


def read(
    table: Path,
    layout: LayoutName,
    expert: list[str] | None,
    better: BetterName | None,
    target: str | None,
    ids: Path | None = None,
) -> Ratings:
    """A set of ratings, or part of it, as the user describes it."""
    from radfact.meta.datasets.layouts import LAYOUTS, read_ratings
    from radfact.meta.datasets.report_table import read_ids

    known = next((one for one in LAYOUTS if one == layout.value), None)
    if known is None:
        raise InputError(f"--layout: expected ratings ({', '.join(LAYOUTS)}), found '{layout.value}'")
    with naming_options():
        ratings = read_ratings(
            table, known, experts=expert or (), better=better.value if better else None, target=target
        )
        return ratings if ids is None else ratings.only(read_ids(ids))


def pairs(
    table: TableArgument,
    layout: LayoutOption = LayoutName.PLAIN,
    expert: ExpertOption = None,
    better: BetterOption = None,
    ids: IdsOption = None,
    out: Annotated[Path, typer.Option(metavar="FILE", help="CSV for 'radfact evaluate'.")] = Path("pairs.csv"),
) -> None:
    """Write the reports of a set of ratings as pairs for `radfact evaluate`."""
    from radfact.meta.datasets.preference_table import read_preferences
    from radfact.meta.datasets.report_table import pair_table

    if layout is LayoutName.PREFERENCES:
        if ids is not None:
            raise InputError("--ids: of preferences all rows are taken")
        found = read_preferences(table).pairs
    else:
        found = read(table, layout, expert, better, None, ids).pairs
    pair_table(found).write(out)
    say_path(new_console(), f"{len(found)} pairs written to", out)
