"""`radfact judge-check`: evaluate a judge on labeled examples."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from radfact.cli.command import with_options
from radfact.cli.options import INPUT, JUDGE, OUTPUT, PriceOption
from radfact.cli.tables import new_console, say, show_check, show_invariants
from radfact.errors import ErrorCode, InputError
from radfact.io.outputs import Output
from radfact.judges.options import JudgeOptions
from radfact.options import only
from radfact.progress import Price, ProgressDisplay, parse_price

if TYPE_CHECKING:
    from rich.console import Console

MANUAL = "\n".join(
    (
        "Evaluate a judge on labeled examples. Prints accuracy, precision, recall and F1 of the entailed class, F1 of "
        "the evidence, confusion matrices by label, relation, topic and set, time and tokens.",
        "",
        "With --batch report, also query the judge one sentence at a time, and print the agreement of the two modes.",
        "",
        "With --invariants FILE, evaluate the judge on rewritten sentences of your own reports instead, for which the "
        "correct verdict is known: swapped sides, changed numbers, negations, statements about an earlier examination, "
        "shuffled premises, an additional premise, equivalent normal statements. FILE needs no labels: drafts or a "
        "manifest (.jsonl), a table or pairs (.csv), grounded pairs or COCO (.json), or one sentence per line (.txt).",
        "",
        "With --comparisons, test instead whether the model detects mentions of an earlier examination in 50 built-in "
        "sentences, as the metric comparison_mentions requires.",
        "",
        "[bold]Examples[/bold]",
        "  radfact judge-check --judge offline",
        "  radfact judge-check examples.json --judge openai:MODEL --batch report \\",
        "      --out check.json",
        "  radfact judge-check --invariants drafts.jsonl --judge offline --limit 50",
        "  radfact judge-check --comparisons --judge openai:MODEL",
    )
)


@with_options
def judge_check(
    judge: Annotated[
        JudgeOptions,
        only(
            "judge",
            "judge_args",
            "base_url",
            "few_shots",
            "system",
            "answer_format",
            "batch",
            "concurrency",
            "max_invalid",
        ),
    ],
    labeled: Annotated[
        Path | None,
        typer.Argument(
            help="Labeled examples in the published few-shot format. Default: the built-in ones.",
        ),
    ] = None,
    price: PriceOption = None,
    comparisons: Annotated[
        bool,
        typer.Option(
            "--comparisons",
            help="Test the detection of mentions of an earlier examination.",
            rich_help_panel=JUDGE,
        ),
    ] = False,
    invariants: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Unlabeled reports; evaluate the judge on their rewritten sentences.",
            rich_help_panel=INPUT,
        ),
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="With --invariants: test at most N random cases of each kind. Default: all.",
            show_default=False,
            rich_help_panel=INPUT,
        ),
    ] = None,
    seed: Annotated[
        int,
        typer.Option(min=0, metavar="N", help="With --invariants: random seed of the cases.", rich_help_panel=INPUT),
    ] = 42,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="JSON file to write. --invariants also writes an HTML page with the same name. Model responses are "
            "cached in cache/ in the same folder.",
            rich_help_panel=OUTPUT,
        ),
        Output("file", siblings=("{stem}.html",)),
    ] = None,
) -> None:
    """Evaluate a judge on labeled examples."""
    from radfact.io.jsonl import write_json
    from radfact.judges.check import check_judge, load_labeled_queries

    console = new_console()
    judge, token_price = judge.or_environment(), parse_price(price)
    if sum((comparisons, invariants is not None, labeled is not None)) > 1:
        raise InputError(
            "expected at most one of a file of labeled examples, --invariants and --comparisons, found several",
            code=ErrorCode.CONFLICTING_OPTIONS,
        )
    if limit is not None and invariants is None:
        message = "expected --invariants FILE with --limit, found none"
        raise InputError(message, code=ErrorCode.MISSING_OPTION, field="limit")
    if out is not None and out.suffix == ".html":
        message = "expected a JSON file, found .html; --invariants writes the page to the same name with .html"
        raise InputError(message, code=ErrorCode.INVALID_OPTION, field="out")
    if comparisons:
        _check_comparisons(console, judge, token_price, out)
        return
    if invariants is not None:
        _check_invariants(console, judge, token_price, out, _Sample(invariants, limit, seed))
        return
    queries = load_labeled_queries(labeled)
    loaded_judge = judge.load(None if out is None else out.parent / "cache")
    with ProgressDisplay(new_console(stderr=True), {"judging": loaded_judge.usage}, token_price):
        result = check_judge(loaded_judge, queries)
    show_check(console, result, token_price)
    if out is not None:
        write_json(out, {**result.as_dict(), "judge_settings": loaded_judge.describe()})
        say(console, f"Written to {out}", wrap=False)


@dataclass(frozen=True, slots=True)
class _Sample:
    """Reports to rewrite, maximum number of cases of each kind, and random seed."""

    file: Path
    limit: int | None
    seed: int


def _check_invariants(
    console: Console, judge: JudgeOptions, price: Price | None, out: Path | None, sample: _Sample
) -> None:
    """Run the judge on rewritten sentences and print the violations."""
    from radfact.io.jsonl import write_json
    from radfact.io.pairs import read_reports
    from radfact.meta.robustness.invariants import check_invariants, make_cases, write_invariants_page

    reports = list(read_reports(sample.file).values())
    cases = make_cases(reports, limit=sample.limit, seed=sample.seed)
    loaded_judge = judge.load(None if out is None else out.parent / "cache")
    with ProgressDisplay(new_console(stderr=True), {"judging": loaded_judge.usage}, price):
        results = check_invariants(loaded_judge, cases)
    say(console, f"Judge {loaded_judge.name} on {len(cases)} cases of {len(reports)} reports")
    show_invariants(console, results)
    if out is not None:
        rows = [result.as_dict() for result in results]
        settings = {"reports": len(reports), "limit": sample.limit, "seed": sample.seed}
        description = {"judge": loaded_judge.name, "judge_settings": loaded_judge.describe()}
        write_json(out, {**description, **settings, "invariants": rows})
        page = out.with_suffix(".html")
        write_invariants_page(page, loaded_judge.name, results)
        say(console, f"Written to {out} and {page}", wrap=False)


def _check_comparisons(console: Console, judge: JudgeOptions, price: Price | None, out: Path | None) -> None:
    """Query the model with the packaged sentences and print its accuracy."""
    from radfact.io.jsonl import write_json
    from radfact.metrics.llm.mentions import ComparisonMentions, check_comparisons
    from radfact.metrics.resources import MetricResources

    name = judge.required_judge
    resources = MetricResources(judge=judge, cache=None if out is None else out.parent / "cache")
    try:
        metric = ComparisonMentions(resources.client(ComparisonMentions.parameters, ComparisonMentions.name))
        with ProgressDisplay(new_console(stderr=True), resources.usage_by_role, price):
            result = check_comparisons(metric)
    finally:
        resources.close()
    for text in result.wrong:
        say(console, f"wrong: {text}", style="yellow", wrap=False)
    say(
        console,
        f"{name} on {result.n} sentences: accuracy {result.accuracy:.1%}, sensitivity {result.sensitivity:.1%}, "
        f"specificity {result.specificity:.1%}; {result.failures} without a valid response, counted as wrong",
    )
    if out is not None:
        write_json(out, {"judge": name, **asdict(result)})
        say(console, f"Written to {out}", wrap=False)
