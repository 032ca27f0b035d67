"""`radfact meta corrections`: compare the corrections of FineRadScore with those of radiologists."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

from radfact.cli.command import with_options
from radfact.cli.meta import options as own
from radfact.cli.meta.agreement import TableArgument, read
from radfact.cli.meta.options import RatingOptions, Scoring, client_of, say_notes
from radfact.cli.options import INPUT, JUDGE, option
from radfact.cli.tables import new_console, say, show_table
from radfact.errors import ErrorCode, InputError
from radfact.io.outputs import replace_files
from radfact.judges.options import JudgeOptions
from radfact.meta.agreement import corrections as report
from radfact.meta.agreement.corrections import Setting, correct_reports, evaluate_corrections, write_corrections
from radfact.metrics.llm.fineradscore import Examples, FineRadScore
from radfact.metrics.options import MetricOptions
from radfact.metrics.registry import select_metrics
from radfact.options import only
from radfact.progress import display_progress

_TEXT_METRICS = ("bleu_1", "bleu_2", "bertscore", "rg_er", "radgraph_f1", "radcliq_v1")
"""Metrics of the paper and the default; those without weights are skipped."""


@with_options
def corrections(
    table: TableArgument,
    rating: Annotated[RatingOptions, only("layout", "ids", "columns", layout="refisco-v1", better="lower")],
    metrics: Annotated[MetricOptions, own.METRICS],
    judge: Annotated[JudgeOptions, own.MODEL],
    seed: own.Seed = 42,
    setting: Annotated[
        Setting,
        option("Original reports, references with shuffled lines, or candidates with paraphrased lines.", None, INPUT),
    ] = "original",
    examples: Annotated[
        Examples,
        option(
            "Send the published examples as turns of the conversation, in the first message, or not at all.",
            None,
            JUDGE,
        ),
    ] = "turns",
    paraphrase_by: Annotated[
        str | None, option("Model that paraphrases lines. Default: the judge.", "NAME", JUDGE)
    ] = None,
    out: own.Out = Path("corrections"),
    cache: own.Cache = None,
    note: own.Notes = None,
) -> None:
    """Compare the corrections of FineRadScore with those of radiologists.

    Corrects reports with a model and the prompt of FineRadScore, as in the tables of the FineRadScore paper. For
    ReFiSco: the kind of correction of each line, the corrected text, the similarity to the reference before and after
    correction, and severities compared with those of the radiologists and, for candidates with several radiologists,
    among them. For error counts by category (ReXVal, RadEval, --layout plain): precision and recall. For the
    correlation of scores with error counts, see 'radfact meta agreement --metrics fineradscore'.
    """
    ratings = read(table, rating)
    if not ratings.has_categories and all(sample.corrections is None for sample in ratings.samples):
        message = f"--layout: expected corrected lines or errors by category, which '{rating.layout}' does not have"
        raise InputError(message, code=ErrorCode.INVALID_OPTION)
    judge, cache = judge.or_environment(), cache or out / "cache"
    name = judge.required_judge
    selected = metrics if metrics.metrics else metrics.model_copy(update={"metrics": _TEXT_METRICS})
    scoring = Scoring(selected, judge, cache)
    select_metrics(selected.metrics)  # refuses unknown names before the model is queried
    models = {"corrections": ("--judge", name, FineRadScore.parameters)}
    if paraphrase_by is not None:
        models["paraphrases"] = ("--paraphrase-by", paraphrase_by, {})
    with ExitStack() as stack:
        clients = {
            role: stack.enter_context(client_of(model, judge, cache, option=option, parameters=parameters))
            for role, (option, model, parameters) in models.items()
        }
        usage_by_role = {role: client.usage_counter.as_dict for role, client in clients.items()}
        stack.enter_context(display_progress(new_console(stderr=True), usage_by_role, None))
        metric, paraphraser = FineRadScore(clients["corrections"], examples=examples), clients.get("paraphrases")
        reports, excluded = correct_reports(ratings, metric, setting=setting, paraphraser=paraphraser, seed=seed)
    with scoring.scorer(main_only=True) as score:
        result = evaluate_corrections(reports, ratings, score, out)
    record = {"table": str(table), "layout": rating.layout, "judge": name, "examples": examples, "seed": seed}
    shots = "without the published examples" if examples == "none" else "with the published examples"
    about = f"{len(reports)} of {len(ratings.samples)} reports, {setting}, corrected by {name} {shots}."
    notes = [about, *ratings.notes, *(note or ())]
    with replace_files(out) as new:
        missing = write_corrections(result, reports, excluded, new, record, setting=setting, notes=notes)
    console = new_console()
    changes = report.change_table(result)
    changes = changes.select([name for name in changes.headings if not name.endswith(", n")])
    severities = report.severity_table(result).select(report.SEVERITY_COLUMNS)
    for shown in (changes, report.text_table(result), severities, report.category_shares_table(result)):
        if shown.rows:
            show_table(console, shown)
    say_notes(console, [*ratings.notes, *missing])
    if excluded:
        say(console, f"{len(excluded)} reports excluded, listed on the page", style="red")
    say(console, f"Read the result in {out / 'corrections.html'}", wrap=False)
    scoring.is_incomplete = bool(excluded)
    scoring.finish(console, named=bool(metrics.metrics))
