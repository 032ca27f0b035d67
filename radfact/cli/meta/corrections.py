"""`radfact meta corrections`: does FineRadScore correct reports as radiologists do?"""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from radfact.cli import options as shared
from radfact.cli.inputs import check_folder
from radfact.cli.meta import options as own
from radfact.cli.meta.agreement import BetterName, IdsOption, LayoutName, TableArgument, read
from radfact.cli.meta.options import Scoring, client_of, show_table
from radfact.cli.metrics import WeightsOption
from radfact.cli.options import FIGURES, INPUT, JUDGE, JudgeOptions, naming_options
from radfact.cli.tables import new_console, say, say_path
from radfact.errors import ExitCode, InputError
from radfact.progress import ProgressDisplay

if TYPE_CHECKING:
    from rich.console import Console

    from radfact.meta.agreement.corrections import Answers, CorrectionFindings, Setting
    from radfact.meta.datasets.ratings import Ratings

MANUAL = "\n".join(
    (
        "Have a model correct reports by FineRadScore's prompt, and set that beside what radiologists did: the tables "
        "of the FineRadScore paper.",
        "",
        "On ReFiSco: the same kind of correction of each line, the same text, likeness to the reference before and "
        "after correction, severities beside the radiologist's and, where several have the same candidate, beside "
        "their own disagreement. On sets with counts of errors (ReXVal, RadEval): precision and recall by category. "
        "How the scores correlate with counts is what 'radfact meta agreement --metrics fineradscore' says.",
        "",
        "[bold]Examples[/bold]",
        "  radfact meta corrections refisco-v1.csv --judge openai:MODEL",
        "  radfact meta corrections refisco-v0.csv --layout refisco-v0 \\",
        "      --setting shuffled --judge openai:MODEL --out results/shuffled",
        "  radfact meta corrections rexval/ --layout rexval --judge openai:MODEL",
        "",
        "[bold]Exit codes[/bold]",
        "  0 done; 1 the run failed; 2 wrong input or options;",
        "  3 done, with reports left out that the model gave no usable answer for",
    )
)
TEXTS = "bleu_1,bleu_2,bertscore,rg_er,radgraph_f1,radcliq_v1"
"""Figures of texts that the paper shows, and what there is of them without weights."""


class SettingName(StrEnum):
    """What is done with the reports before the model sees them."""

    ORIGINAL = "original"
    SHUFFLED = "shuffled"
    PARAPHRASED = "paraphrased"


SettingOption = Annotated[
    SettingName,
    typer.Option(
        help="The reports as they are, the reference's lines in another order, or the candidate's in other words.",
        rich_help_panel=INPUT,
    ),
]
ZeroShotOption = Annotated[
    bool, typer.Option("--zero-shot", help="Leave out the published examples.", rich_help_panel=JUDGE)
]
RephraserOption = Annotated[
    str | None,
    typer.Option(
        metavar="NAME", help="Model that puts lines in other words. Default: the judge.", rich_help_panel=JUDGE
    ),
]
TextsOption = Annotated[
    str | None,
    typer.Option(
        metavar="NAMES",
        help="Figures of texts. Default: BLEU-1, BLEU-2, BERTScore, RadGraph and RadCliQ, as far as weights are there.",
        rich_help_panel=FIGURES,
    ),
]


def corrections(
    table: TableArgument,
    layout: Annotated[
        LayoutName, typer.Option(help="How the ratings are laid out.", rich_help_panel=INPUT)
    ] = LayoutName.REFISCO_V1,
    ids: IdsOption = None,
    setting: SettingOption = SettingName.ORIGINAL,
    zero_shot: ZeroShotOption = False,
    paraphrase_by: RephraserOption = None,
    metrics: TextsOption = None,
    weights: WeightsOption = None,
    config: shared.Config = None,  # noqa: ARG001
    judge: shared.JudgeName = None,
    judge_arg: shared.JudgeArgs = None,
    base_url: shared.BaseUrl = None,
    concurrency: shared.Concurrency = None,
    seed: own.Seed = 42,
    out: own.Out = Path("corrections"),
    cache: own.Cache = None,
    note: own.Notes = None,
) -> None:
    """Set FineRadScore's corrections beside radiologists'."""
    from radfact.meta.agreement.corrections import compare_corrections, has_categories
    from radfact.meta.agreement.corrections_report import write_corrections
    from radfact.metrics.registry import select_metrics

    check_folder(out)
    ratings = read(table, layout, None, BetterName.LOWER, None, ids)
    if not has_categories(ratings) and all(one.corrections is None for one in ratings.samples):
        raise InputError(f"--layout: '{layout.value}' has neither corrected lines nor errors by category")
    who = JudgeOptions(judge, judge_arg, base_url, concurrency=concurrency)
    cache = cache or out / "cache"
    scoring = Scoring(metrics or TEXTS, weights, who, cache)
    if who.named is None:
        raise InputError("--judge: name the model that corrects, PROVIDER:MODEL, or set RADFACT_JUDGE")
    with naming_options():
        select_metrics(scoring.names)  # a name that is none is refused before a model is paid
    chosen = _setting(setting)
    answers = _ask(ratings, who, cache, chosen, zero_shot, paraphrase_by, seed)
    with scoring.scorer(headline=True) as score:
        found = compare_corrections(answers, ratings, score, out)
    record = {"table": str(table), "layout": layout.value, "judge": who.name, "zero_shot": zero_shot, "seed": seed}
    shown = "without the published examples" if zero_shot else "with the published examples"
    about = f"{len(answers.reports)} of {len(ratings.samples)} reports, {chosen}, corrected by {who.name} {shown}."
    notes = [about, *ratings.notes, *(note or ())]
    missing = write_corrections(found, answers, out, record, setting=chosen, notes=notes)
    console = new_console()
    _show(console, found, answers, [*ratings.notes, *missing])
    say_path(console, "Read the result in", out / "corrections.html")
    scoring.finish(console, named=metrics is not None)
    if answers.left_out:
        raise typer.Exit(ExitCode.INCOMPLETE)


def _ask(
    ratings: Ratings,
    who: JudgeOptions,
    cache: Path,
    setting: Setting,
    zero_shot: bool,
    paraphrase_by: str | None,
    seed: int,
) -> Answers:
    from contextlib import ExitStack

    from radfact.meta.agreement.corrections import correct
    from radfact.metrics.fineradscore import FineRadScore

    with ExitStack() as stack:
        client = stack.enter_context(
            client_of(who.name, who, cache, option="--judge", parameters=FineRadScore.parameters)
        )
        usage_by_role = {"correcting": client.usage_counter.as_dict}
        other = None
        if paraphrase_by is not None:
            other = stack.enter_context(client_of(paraphrase_by, who, cache, option="--paraphrase-by", parameters={}))
            usage_by_role["rephrasing"] = other.usage_counter.as_dict
        stack.enter_context(ProgressDisplay(new_console(stderr=True), usage_by_role, None))
        metric = FineRadScore(client, zero_shot=zero_shot)
        return correct(ratings, metric, setting=setting, rephraser=other, seed=seed)


def _setting(name: SettingName) -> Setting:
    if name is SettingName.ORIGINAL:
        return "original"
    return "shuffled" if name is SettingName.SHUFFLED else "paraphrased"


def _show(console: Console, found: CorrectionFindings, answers: Answers, notes: list[str]) -> None:
    from radfact.meta.agreement.corrections_report import (
        SEVERITY_COLUMNS,
        category_table,
        change_table,
        severity_table,
        text_table,
    )

    changes = change_table(found)
    changes = changes.only([name for name in changes.headings if not name.endswith(", n")])
    severities = severity_table(found).only(SEVERITY_COLUMNS)
    for table in (changes, text_table(found), severities, category_table(found)):
        if table.rows:
            show_table(console, table)
    for one in notes:
        say(console, one, style="yellow")
    if answers.left_out:
        say(console, f"{len(answers.left_out)} reports left out, listed on the page", style="red")
