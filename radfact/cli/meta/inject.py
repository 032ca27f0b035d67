"""`radfact meta inject` and `radfact meta detect`: errors put in on purpose, and whether metrics notice them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, get_args

import typer

from radfact.cli import options as shared
from radfact.cli.inputs import check_folder
from radfact.cli.meta import options as own
from radfact.cli.meta.options import Scoring, client_of, figures_of, show_table
from radfact.cli.meta.rexamine import RULES
from radfact.cli.metrics import WeightsOption
from radfact.cli.options import INPUT, JUDGE, OUTPUT, JudgeOptions
from radfact.cli.tables import new_console, say, say_path
from radfact.errors import ExitCode, Failure, InputError, RunError
from radfact.progress import ProgressDisplay

if TYPE_CHECKING:
    from collections.abc import Sequence

    from radfact.error_categories import CategoryLetter
    from radfact.llm import ChatClient
    from radfact.meta.datasets.report_table import SiteReport
    from radfact.meta.injection.records import Injected

INJECT_MANUAL = "\n".join(
    (
        "Put errors into reports and write candidates with labels: which sentence, what kind, how many.",
        "",
        "By rules (no model; all six categories a to f of GREEN; the errors of k are among those of k + 1), by a model "
        "after the VERT paper (a and b, checked for plausibility, up to five tries), or, with --mixed, by a model "
        "after the GREEN paper (several kinds at once).",
        "",
        "[bold]Examples[/bold]",
        "  radfact meta inject reports.csv --out injected.jsonl",
        "  radfact meta inject reports.csv --by openai:MODEL --types a,b",
        "  radfact meta detect injected.jsonl --metrics rouge_l,bleu_2",
        "",
        "[bold]Exit codes[/bold]",
        "  0 done; 1 the run failed; 2 wrong input or options;",
        "  3 done, with reports that a model failed on left out and listed",
    )
)
DETECT_MANUAL = "\n".join(
    (
        "Score candidates whose errors are known: does a metric get worse with every error, of which kinds, and how "
        "many does it count?",
        "",
        "[bold]Examples[/bold]",
        "  radfact meta detect injected.jsonl --metrics rouge_l,bleu_2",
        "  radfact meta detect injected.jsonl --metrics green,vert \\",
        "      --judge openai:MODEL --out results/detection",
    )
)
_LISTED = 10


ByOption = Annotated[str, typer.Option(metavar="NAME", help="rules, or a model PROVIDER:MODEL.", rich_help_panel=JUDGE)]
TypesOption = Annotated[str, typer.Option(metavar="LETTERS", help="Kinds of errors, a to f.", rich_help_panel=INPUT)]
ErrorsOption = Annotated[str, typer.Option(metavar="NUMBERS", help="Errors a candidate.", rich_help_panel=INPUT)]
MixedOption = Annotated[
    bool, typer.Option("--mixed", help="One candidate a report with errors of several kinds.", rich_help_panel=INPUT)
]
ModalityOption = Annotated[
    str, typer.Option(metavar="TEXT", help="Told to who checks plausibility.", rich_help_panel=INPUT)
]
RegionOption = Annotated[str, typer.Option(metavar="TEXT", help="Body region, told likewise.", rich_help_panel=INPUT)]
InjectedOption = Annotated[Path, typer.Option(metavar="FILE", help="JSON Lines of candidates.", rich_help_panel=OUTPUT)]


def inject(
    reports: Annotated[Path, typer.Argument(help="Reports: CSV or JSON Lines with id, report and perhaps site.")],
    by: ByOption = RULES,
    types: TypesOption = "a,b,c,d,e,f",
    errors: ErrorsOption = "1,2,3",
    mixed: MixedOption = False,
    modality: ModalityOption = "X-ray",
    region: RegionOption = "chest",
    config: shared.Config = None,  # noqa: ARG001
    judge_arg: shared.JudgeArgs = None,
    base_url: shared.BaseUrl = None,
    concurrency: shared.Concurrency = None,
    seed: own.Seed = 42,
    out: InjectedOption = Path("injected.jsonl"),
    cache: own.Cache = None,
) -> None:
    """Put errors into reports."""
    from radfact.meta.datasets.report_table import read_reports
    from radfact.meta.injection.records import write_injected

    console = new_console()
    check_folder(out.parent)
    plan = _Plan(_letters(types), _numbers(errors), mixed, seed, modality, region)
    read = read_reports(reports, default_site="")
    failed: dict[str, str] = {}
    unread = 0
    if by == RULES:
        found, unread = _by_rules(read, plan)
    else:
        who = JudgeOptions(by, judge_arg, base_url, concurrency=concurrency)
        client = client_of(by, who, cache or out.parent / "cache", option="--by", parameters={"temperature": None})
        with client, ProgressDisplay(new_console(stderr=True), {"injecting": client.usage_counter.as_dict}, None):
            found, failed = _by_model(client, read, plan)
    if not found:
        why = _unread(unread, len(read)) if unread == len(read) else "no report has room for such errors"
        raise RunError(next(iter(failed.values()), why))
    write_injected(out, found)
    say(console, f"{len(found)} candidates of {len({one.source_id for one in found})} of {len(read)} reports")
    if unread:
        say(console, _unread(unread, len(read)), style="yellow")
    for key, why in list(failed.items())[:_LISTED]:
        say(console, f"left out: {key}: {why}", style="red")
    say_path(console, "Written to", out)
    if failed:
        raise typer.Exit(ExitCode.INCOMPLETE)


@dataclass(frozen=True, slots=True)
class _Plan:
    """Which errors are put in, how many at a time, and what is said of the image."""

    letters: Sequence[CategoryLetter]
    numbers: Sequence[int]
    mixed: bool
    seed: int
    modality: str
    region: str


def _letters(types: str) -> list[CategoryLetter]:
    from radfact.error_categories import CategoryLetter

    known: tuple[CategoryLetter, ...] = get_args(CategoryLetter)
    said = [one.strip() for one in types.split(",") if one.strip()]
    wrong = [one for one in said if one not in known]
    if wrong or not said:
        raise InputError(f"--types: expected letters a to f, found '{', '.join(wrong) or types}'")
    return [one for one in known if one in said]


def _numbers(errors: str) -> list[int]:
    said = [one.strip() for one in errors.split(",") if one.strip()]
    if not said or not all(one.isdecimal() and int(one) > 0 for one in said):
        raise InputError(f"--errors: expected whole numbers from 1 such as 1,2,3, found '{errors}'")
    return sorted({int(one) for one in said})


def _unread(unread: int, reports: int) -> str:
    return (
        f"{unread} of {reports} reports get no errors: half of their sentences or more name no known finding (the "
        "rules read English reports of chest X-rays; --by takes a model)"
    )


def _by_rules(reports: Sequence[SiteReport], plan: _Plan) -> tuple[list[Injected], int]:
    """The candidates, and how many reports the rules cannot read."""
    from radfact.meta.injection.rules import RuleInjector, is_read
    from radfact.meta.injection.sentences import Sentences

    injector = RuleInjector(seed=plan.seed)
    found: list[Injected] = []
    for one in reports:
        if plan.mixed:
            made = [injector.mixed(one.sample_id, one.report, max(plan.numbers))]
        else:
            kinds = ((letter, k) for letter in plan.letters for k in plan.numbers)
            tried = (injector.inject(one.sample_id, one.report, *kind) for kind in kinds)
            made = [row for row in tried if row is not None]
        found += [row.model_copy(update={"site": one.site or None}) for row in made if row.changes]
    return found, sum(not is_read(Sentences.of(one.report)) for one in reports)


def _by_model(client: ChatClient, reports: Sequence[SiteReport], plan: _Plan) -> tuple[list[Injected], dict[str, str]]:
    from radfact.meta.injection.llm_editor import Source, draw_categories, inject_by_model, modify_by_model

    sources = [Source(one.sample_id, one.report, plan.modality, plan.region) for one in reports]
    answers: list[tuple[str, Injected | Failure]] = []
    if plan.mixed:
        drawn = [draw_categories(one.sample_id, seed=plan.seed) for one in reports]
        got = modify_by_model(client, sources, drawn, seed=plan.seed)
        answers = [(source.source_id, one) for source, one in zip(sources, got, strict=True)]
    else:
        if beyond := [letter for letter in plan.letters if letter not in ("a", "b")]:
            raise InputError(f"--types: a model is only told how to make a and b, not {', '.join(beyond)}; or --mixed")
        for letter in plan.letters:
            for count in plan.numbers:
                got = inject_by_model(client, sources, letter, count)
                keys = (f"{one.source_id}_{letter}{count}" for one in sources)
                answers += zip(keys, got, strict=True)
    failed = {key: one.reason for key, one in answers if isinstance(one, Failure)}
    return [one for _, one in answers if not isinstance(one, Failure)], failed


def detect(
    injected: Annotated[Path, typer.Argument(help="What 'radfact meta inject' wrote.")],
    scores: own.Scores = None,
    metrics: own.Metrics = None,
    weights: WeightsOption = None,
    config: shared.Config = None,  # noqa: ARG001
    judge: shared.JudgeName = None,
    judge_arg: shared.JudgeArgs = None,
    base_url: shared.BaseUrl = None,
    concurrency: shared.Concurrency = None,
    out: own.Out = Path("detection"),
    cache: own.Cache = None,
    note: own.Notes = None,
) -> None:
    """Score candidates whose errors are known."""
    from radfact.html.meta_page import Table
    from radfact.meta.injection.detection import detect as run
    from radfact.meta.injection.detection import detection_pairs, write_detected
    from radfact.meta.injection.records import read_injected

    console = new_console()
    check_folder(out)
    rows = read_injected(injected)
    who = JudgeOptions(judge, judge_arg, base_url, concurrency=concurrency)
    scoring = Scoring(metrics, weights, who, cache or out / "cache")
    found = run(rows, figures_of(detection_pairs(rows), scores, scoring, out))
    missing = write_detected(found, rows, out, {"injected": str(injected)}, note or ())
    listed = [[one.figure, one.category, one.steps, one.n, one.above_rewording] for one in found.noticed]
    show_table(console, Table(["figure", "kind", "steps noticed", "steps", "above rewording"], listed))
    for one in missing:
        say(console, one, style="yellow")
    say_path(console, "Read the curves in", out / "detection.html")
    scoring.finish(console)
