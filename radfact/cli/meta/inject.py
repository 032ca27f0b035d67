"""`radfact meta inject` and `radfact meta detect`: inject errors, and measure whether metrics detect them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Annotated, get_args

import typer

from radfact.cli.command import with_options
from radfact.cli.meta import options as own
from radfact.cli.meta.options import Scoring, client_of, collect_scores, comma_list, say_notes
from radfact.cli.options import INPUT, JUDGE, OUTPUT, ColumnOptions, option
from radfact.cli.tables import new_console, say, show_table
from radfact.error_categories import CategoryLetter
from radfact.errors import ErrorCode, ExitCode, Failure, InputError, RunError
from radfact.io.outputs import Output, replace_files
from radfact.judges.options import JudgeOptions
from radfact.llm import ChatClient
from radfact.meta.datasets.reports import SiteReport, read_reports
from radfact.meta.injection import detection, llm_editor
from radfact.meta.injection.records import RULES, InjectedReport, ReportSentences, read_injected, write_injected
from radfact.meta.injection.rewording import reword
from radfact.meta.injection.rules import RuleInjector, is_readable
from radfact.metrics.options import MetricOptions
from radfact.options import only
from radfact.progress import display_progress

_MAX_LISTED = 10
_HARMLESS = "harmless"


@with_options
def inject(
    reports: Annotated[Path, typer.Argument(help="CSV or JSON Lines with id, report; site, modality, anatomy.")],
    names: ColumnOptions,
    model: Annotated[JudgeOptions, only("judge_args", "base_url", "concurrency", "max_invalid")],
    by: Annotated[str, option("How to inject errors: rules, or a model PROVIDER:MODEL.", "NAME", JUDGE)] = RULES,
    types: Annotated[
        str, option("Error categories, a to f, and harmless for rewordings; separated by commas.", "TYPES", INPUT)
    ] = "a,b,c,d,e,f",
    errors: Annotated[str, option("Numbers of errors per candidate, separated by commas.", "NUMBERS", INPUT)] = "1,2,3",
    mixed: Annotated[
        bool, option("Write one candidate per report, with errors of several categories.", None, INPUT, "--mixed")
    ] = False,
    modality: Annotated[str, option("Modality of reports without a modality.", "TEXT", INPUT)] = "X-ray",
    region: Annotated[str, option("Body region of reports without an anatomy.", "TEXT", INPUT)] = "chest",
    seed: own.Seed = 42,
    out: Annotated[Path, option("JSON Lines file to write.", "FILE", OUTPUT), Output("file")] = Path("injected.jsonl"),
    cache: own.Cache = None,
) -> None:
    """Inject errors into reports, or reword them, and write labeled candidates.

    A candidate has its changed sentences, category and number of errors, or the kind of a harmless rewording.

    --by rules: no model; all six GREEN categories, a to f; the candidate with k + 1 errors contains those of the
    candidate with k; --types harmless rewords reports without an error. --by PROVIDER:MODEL: as in the VERT paper
    (categories a and b, checked for plausibility, up to five requests) or, with --mixed, as in the GREEN paper (several
    categories at once).
    """
    console = new_console()
    (letters, with_rewordings), numbers = _parse_types(types), _parse_numbers(errors)
    sources, notes = read_reports(reports, default_site="", examination=(modality, region), columns=names.columns)
    failed: dict[str, str] = {}
    unreadable = 0
    if by == RULES:
        candidates = _inject_by_rules(sources, letters, numbers, mixed=mixed, seed=seed) if letters else []
        candidates += [row for report in sources for row in reword(report, seed=seed)] if with_rewordings else []
        unreadable = sum(not is_readable(ReportSentences.of(report.report)) for report in sources)
    else:
        if with_rewordings:
            raise InputError("--types: expected harmless with --by rules", code=ErrorCode.CONFLICTING_OPTIONS)
        client = client_of(by, model, cache or out.parent / "cache", option="--by", parameters={"temperature": None})
        with client, display_progress(new_console(stderr=True), {"injection": client.usage_counter.as_dict}, None):
            if mixed:
                keys = [report.sample_id for report in sources]
                drawn = [llm_editor.draw_categories(key, seed=seed) for key in keys]
                made = llm_editor.inject_mixed_with_model(client, sources, drawn, seed=seed)
                results = dict(zip(keys, made, strict=True))
            else:
                results = _inject_by_model(client, sources, letters, numbers)
        failed = {key: result.reason for key, result in results.items() if isinstance(result, Failure)}
        candidates = [result for result in results.values() if isinstance(result, InjectedReport)]
    unreadable_note = (
        f"{unreadable} of {len(sources)} reports get no errors: at least half of their sentences have no known finding "
        "(the rules read English reports of chest X-rays; use a model with --by)"
    )
    if not candidates:
        reason = unreadable_note if unreadable == len(sources) else "no report allows such changes"
        raise RunError(next(iter(failed.values()), reason))
    write_injected(out, candidates)
    used = len({candidate.source_id for candidate in candidates})
    say(console, f"{len(candidates)} candidates of {used} of {len(sources)} reports")
    say_notes(console, [*notes, *([unreadable_note] if unreadable else [])])
    for key, reason in list(failed.items())[:_MAX_LISTED]:
        say(console, f"excluded: {key}: {reason}", style="red")
    say(console, f"Written to {out}", wrap=False)
    if failed:
        raise typer.Exit(ExitCode.INCOMPLETE)


def _parse_types(types: str) -> tuple[list[CategoryLetter], bool]:
    """Return the letters, and whether there are harmless rewordings."""
    known: tuple[CategoryLetter, ...] = get_args(CategoryLetter)
    names = comma_list(types)
    unknown = [name for name in names if name not in (*known, _HARMLESS)]
    if unknown or not names:
        message = f"--types: expected letters a to f or {_HARMLESS}, found '{', '.join(unknown) or types}'"
        raise InputError(message, code=ErrorCode.INVALID_OPTION)
    return [letter for letter in known if letter in names], _HARMLESS in names


def _parse_numbers(errors: str) -> list[int]:
    numbers = comma_list(errors)
    if not numbers or not all(number.isdecimal() and int(number) > 0 for number in numbers):
        message = f"--errors: expected whole numbers from 1 such as 1,2,3, found '{errors}'"
        raise InputError(message, code=ErrorCode.INVALID_OPTION)
    return sorted({int(number) for number in numbers})


def _inject_by_rules(
    reports: Sequence[SiteReport], letters: Sequence[CategoryLetter], numbers: Sequence[int], *, mixed: bool, seed: int
) -> list[InjectedReport]:
    injector = RuleInjector(seed=seed)
    candidates: list[InjectedReport] = []
    for report in reports:
        made: list[InjectedReport | None]
        if mixed:
            made = [injector.inject_mixed(report.sample_id, report.report, max(numbers))]
        else:
            kinds = product(letters, numbers)
            made = [injector.inject(report.sample_id, report.report, *kind) for kind in kinds]
        candidates += [row.model_copy(update=report.labels) for row in made if row and row.changes]
    return candidates


def _inject_by_model(
    client: ChatClient, reports: Sequence[SiteReport], letters: Sequence[CategoryLetter], numbers: Sequence[int]
) -> dict[str, InjectedReport | Failure]:
    if beyond := [letter for letter in letters if letter not in ("a", "b")]:
        message = f"--types: expected a and b for a model, found {', '.join(beyond)}; --mixed takes all"
        raise InputError(message, code=ErrorCode.CONFLICTING_OPTIONS)
    results: dict[str, InjectedReport | Failure] = {}
    for letter, number in product(letters, numbers):
        made = llm_editor.inject_with_model(client, reports, letter, number)
        results |= zip((f"{report.sample_id}_{letter}{number}" for report in reports), made, strict=True)
    return results


@with_options
def detect(
    injected: Annotated[Path, typer.Argument(help="JSON Lines written by 'radfact meta inject'.")],
    metrics: Annotated[MetricOptions, own.METRICS],
    judge: Annotated[JudgeOptions, own.MODEL],
    scores: own.Scores = None,
    out: own.Out = Path("detection"),
    cache: own.Cache = None,
    note: own.Notes = None,
) -> None:
    """Measure whether metrics detect injected errors.

    How scores fall with the number of errors, for which categories, how many errors are counted, and how often a
    harmless rewording costs more than 0.02 of a score.
    """
    console = new_console()
    rows = read_injected(injected)
    scoring = Scoring(metrics, judge.or_environment(), cache or out / "cache")
    columns = collect_scores(detection.detection_pairs(rows), scores, scoring, out)
    result = detection.detect(rows, columns)
    circular = columns.circular_notes(by_rules=any(row.by == RULES for row in rows))
    notes = [*columns.model_notes(), *circular]
    record = {"injected": str(injected), "models": columns.models, "circular": bool(circular)}
    with replace_files(out) as new:
        missing = detection.write_detection(result, rows, new, record, [*notes, *(note or ())])
    show_table(console, detection.detection_table(result), keys=2)
    if result.rewordings:
        say(console, f"Harmless rewordings; costly: more than {detection.COSTLY:g} (by kind: rewordings.csv):")
        show_table(console, detection.rewording_table([row for row in result.rewordings if row.kind == "all"]), keys=2)
    say_notes(console, [*notes, *missing])
    say(console, f"Read the curves in {out / 'detection.html'}", wrap=False)
    scoring.finish(console)
