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
from radfact.cli.meta.options import Scoring, client_of, say_notes, show_table
from radfact.cli.metrics import WeightsOption
from radfact.cli.options import FIGURES, INPUT, JUDGE, JudgeOptions, naming_options
from radfact.cli.tables import new_console, say, say_path
from radfact.errors import ErrorCode, ExitCode, InputError
from radfact.progress import ProgressDisplay

if TYPE_CHECKING:
    from radfact.meta.agreement.corrections import CorrectionResult, CorrectionRun, Setting
    from radfact.meta.datasets.ratings import RatingSet

MANUAL = "\n".join(
    (
        "Correct reports with a model and FineRadScore's prompt, and compare the corrections with those of "
        "radiologists: the tables of the FineRadScore paper.",
        "",
        "ReFiSco: kind of correction of each line, corrected text, similarity to the reference before and after "
        "correction, severities compared with the radiologist's and, for candidates with several radiologists, "
        "between them. Sets with counts of errors (ReXVal, RadEval): precision and recall by category. For the "
        "correlation of the scores with counts see 'radfact meta agreement --metrics fineradscore'.",
        "",
        "[bold]Examples[/bold]",
        "  radfact meta corrections refisco-v1.csv --judge openai:MODEL",
        "  radfact meta corrections refisco-v0.csv --layout refisco-v0 \\",
        "      --setting shuffled --judge openai:MODEL --out results/shuffled",
        "  radfact meta corrections rexval/ --layout rexval --judge openai:MODEL",
        "",
        "[bold]Exit codes[/bold]",
        "  0 done; 1 the run failed; 2 wrong input or options;",
        "  3 done, with excluded reports without a usable response of the model",
    )
)
_TEXT_METRICS = "bleu_1,bleu_2,bertscore,rg_er,radgraph_f1,radcliq_v1"
"""Metrics of the paper; those without weights are skipped."""


class SettingName(StrEnum):
    """Changes to the reports before the model sees them."""

    ORIGINAL = "original"
    SHUFFLED = "shuffled"
    PARAPHRASED = "paraphrased"


SettingOption = Annotated[
    SettingName,
    typer.Option(
        help="Original reports, references with shuffled lines, or candidates with paraphrased lines.",
        rich_help_panel=INPUT,
    ),
]
ZeroShotOption = Annotated[
    bool, typer.Option("--zero-shot", help="Omit the published examples from the prompt.", rich_help_panel=JUDGE)
]
ParaphraserOption = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="Model that paraphrases lines. Default: the judge.", rich_help_panel=JUDGE),
]
TextMetricsOption = Annotated[
    str | None,
    typer.Option(
        metavar="NAMES",
        help="Metrics of texts. Default: BLEU-1, BLEU-2, and BERTScore, RadGraph and RadCliQ if weights are available.",
        rich_help_panel=FIGURES,
    ),
]


def corrections(
    table: TableArgument,
    layout: Annotated[
        LayoutName, typer.Option(help="Layout of the ratings.", rich_help_panel=INPUT)
    ] = LayoutName.REFISCO_V1,
    ids: IdsOption = None,
    setting: SettingOption = SettingName.ORIGINAL,
    zero_shot: ZeroShotOption = False,
    paraphrase_by: ParaphraserOption = None,
    metrics: TextMetricsOption = None,
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
    """Compare FineRadScore's corrections with radiologists'."""
    from radfact.meta.agreement.corrections import evaluate_corrections, has_categories
    from radfact.meta.agreement.corrections_report import write_corrections
    from radfact.metrics.registry import select_metrics

    check_folder(out)
    ratings = read(table, layout, None, BetterName.LOWER, None, ids)
    if not has_categories(ratings) and all(sample.corrections is None for sample in ratings.samples):
        message = f"--layout: expected corrected lines or errors by category, which '{layout.value}' does not have"
        raise InputError(message, code=ErrorCode.INVALID_OPTION)
    judge_options = JudgeOptions(judge, judge_arg, base_url, concurrency=concurrency)
    cache = cache or out / "cache"
    scoring = Scoring(metrics or _TEXT_METRICS, weights, judge_options, cache)
    if judge_options.named is None:
        raise InputError(
            "--judge: expected the model that corrects, PROVIDER:MODEL, or RADFACT_JUDGE in the environment",
            code=ErrorCode.MISSING_OPTION,
        )
    with naming_options():
        select_metrics(scoring.names)  # refuses unknown names before the model is queried
    chosen: Setting = setting.value
    run = _correct(ratings, judge_options, cache, chosen, zero_shot, paraphrase_by, seed)
    with scoring.scorer(main_only=True) as score:
        result = evaluate_corrections(run, ratings, score, out)
    name = judge_options.name
    record = {"table": str(table), "layout": layout.value, "judge": name, "zero_shot": zero_shot, "seed": seed}
    examples = "without the published examples" if zero_shot else "with the published examples"
    about = f"{len(run.reports)} of {len(ratings.samples)} reports, {chosen}, corrected by {name} {examples}."
    notes = [about, *ratings.notes, *(note or ())]
    missing = write_corrections(result, run, out, record, setting=chosen, notes=notes)
    console = new_console()
    _show(result)
    say_notes(console, [*ratings.notes, *missing])
    if run.excluded:
        say(console, f"{len(run.excluded)} reports excluded, listed on the page", style="red")
    say_path(console, "Read the result in", out / "corrections.html")
    scoring.finish(console, named=metrics is not None)
    if run.excluded:
        raise typer.Exit(ExitCode.INCOMPLETE)


def _correct(
    ratings: RatingSet,
    judge: JudgeOptions,
    cache: Path,
    setting: Setting,
    zero_shot: bool,
    paraphrase_by: str | None,
    seed: int,
) -> CorrectionRun:
    from contextlib import ExitStack

    from radfact.meta.agreement.corrections import correct_reports
    from radfact.metrics.fineradscore import FineRadScore

    with ExitStack() as stack:
        client = stack.enter_context(
            client_of(judge.name, judge, cache, option="--judge", parameters=FineRadScore.parameters)
        )
        usage_by_role = {"corrections": client.usage_counter.as_dict}
        paraphraser = None
        if paraphrase_by is not None:
            paraphraser = stack.enter_context(
                client_of(paraphrase_by, judge, cache, option="--paraphrase-by", parameters={})
            )
            usage_by_role["paraphrases"] = paraphraser.usage_counter.as_dict
        stack.enter_context(ProgressDisplay(new_console(stderr=True), usage_by_role, None))
        metric = FineRadScore(client, zero_shot=zero_shot)
        return correct_reports(ratings, metric, setting=setting, paraphraser=paraphraser, seed=seed)


def _show(result: CorrectionResult) -> None:
    from radfact.meta.agreement import corrections_report as report

    changes = report.change_table(result)
    changes = changes.select([name for name in changes.headings if not name.endswith(", n")])
    severities = report.severity_table(result).select(report.SEVERITY_COLUMNS)
    for table in (changes, report.text_table(result), severities, report.category_shares_table(result)):
        if table.rows:
            show_table(new_console(), table)
