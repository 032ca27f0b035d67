"""`radfact judge-check`: evaluate a judge on labeled examples."""

from __future__ import annotations

from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from radfact.cli.command import with_options
from radfact.cli.options import JUDGE, OUTPUT, PriceOption, option
from radfact.cli.tables import new_console, say, show_check
from radfact.errors import ErrorCode, InputError
from radfact.io.jsonl import write_json
from radfact.io.outputs import Output
from radfact.judges.check import check_judge, load_labeled_queries
from radfact.judges.options import JudgeOptions
from radfact.metrics.llm.mentions import ComparisonMentions, check_comparisons
from radfact.metrics.resources import MetricResources
from radfact.options import only
from radfact.progress import Price, display_progress, parse_price

if TYPE_CHECKING:
    from rich.console import Console

_OPTIONS = only(
    *("judge", "judge_args", "base_url", "few_shots", "system", "answer_format", "batch", "concurrency", "max_invalid")
)


@with_options
def judge_check(
    judge: Annotated[JudgeOptions, _OPTIONS],
    labeled: Annotated[
        Path | None,
        typer.Argument(help="Labeled examples in the published few-shot format. Default: the built-in ones."),
    ] = None,
    price: PriceOption = None,
    comparisons: Annotated[
        bool, option("Test the detection of mentions of an earlier examination.", None, JUDGE, "--comparisons")
    ] = False,
    out: Annotated[
        Path | None,
        option("JSON file to write. Model responses are cached in cache/ in the same folder.", "FILE", OUTPUT),
        Output("file"),
    ] = None,
) -> None:
    """Evaluate a judge on labeled examples.

    Prints accuracy, precision, recall and F1 of the entailed class, F1 of the evidence, confusion matrices by label,
    relation, topic and set, time and tokens. With --batch report, also query the judge one sentence at a time, and
    print the agreement of the two modes. With --comparisons, test instead whether the model detects mentions of an
    earlier examination in 50 built-in sentences, as the metric comparison_mentions requires.
    """
    console = new_console()
    judge, token_price = judge.or_environment(), parse_price(price)
    cache = None if out is None else out.parent / "cache"
    if not comparisons:
        queries = load_labeled_queries(labeled)
        loaded = judge.load(cache)
        with display_progress(new_console(stderr=True), {"judging": loaded.usage}, token_price):
            check = check_judge(loaded, queries)
        show_check(console, check, token_price)
        record = {**asdict(check), "judge_settings": loaded.describe()}
    elif labeled is None:
        record = _check_comparisons(console, judge, token_price, cache)
    else:
        message = "expected a file of labeled examples or --comparisons, found both"
        raise InputError(message, code=ErrorCode.CONFLICTING_OPTIONS)
    if out is not None:
        write_json(out, record)
        say(console, f"Written to {out}", wrap=False)


def _check_comparisons(
    console: Console, judge: JudgeOptions, price: Price | None, cache: Path | None
) -> dict[str, object]:
    """Query the model with the packaged sentences and print its accuracy."""
    name = judge.required_judge
    with closing(MetricResources(judge=judge, cache=cache)) as resources:
        metric = ComparisonMentions(resources.client(ComparisonMentions.parameters, ComparisonMentions.name))
        with display_progress(new_console(stderr=True), resources.usage_by_role, price):
            record = check_comparisons(metric)
    for text in record["wrong"]:
        say(console, f"wrong: {text}", style="yellow", wrap=False)
    shares = ", ".join(f"{share} {record[share]:.1%}" for share in ("accuracy", "sensitivity", "specificity"))
    failures = f"{record['failures']} without a valid response, counted as wrong"
    say(console, f"{name} on {record['n']} sentences: {shares}; {failures}")
    return {"judge": name, **record}
