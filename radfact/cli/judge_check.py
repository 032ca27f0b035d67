"""`radfact judge-check`: evaluate a judge on labeled examples."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
from rich.console import Console

from radfact.cli.command import with_options
from radfact.cli.options import JUDGE, OUTPUT, PriceOption, option
from radfact.cli.tables import new_console, say, show_check, show_teacher_check
from radfact.errors import ErrorCode, InputError
from radfact.io.jsonl import write_json
from radfact.io.outputs import Output
from radfact.judges.check import check_judge, load_labeled_queries
from radfact.judges.options import JudgeOptions
from radfact.meta.agreement.teacher import compare_with_teacher, read_held_out
from radfact.metrics.llm.comparison_mentions import ComparisonMentions, check_comparisons
from radfact.metrics.options import MetricOptions
from radfact.metrics.protocol import Metric
from radfact.metrics.resources import MetricResources
from radfact.options import only
from radfact.progress import Price, display_progress, parse_price

MetricT = TypeVar("MetricT", bound=Metric)
_OPTIONS = only(
    *("judge", "judge_args", "base_url", "few_shots", "system", "answer_format", "batch", "concurrency", "max_invalid")
)


@with_options
def judge_check(
    judge: Annotated[JudgeOptions, _OPTIONS],
    similarity: Annotated[MetricOptions, only("weights", metrics=())],
    labeled: Annotated[
        Path | None,
        typer.Argument(
            help="Labeled examples in the published few-shot format, or heldout.csv. Default: the built-in examples."
        ),
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
    """Evaluate a judge on labeled examples, or compare it with the teacher that labeled them.

    Prints accuracy, precision, recall and F1 of the entailed class, F1 of the evidence and Cohen's kappa, confusion
    matrices by label, relation, topic and set, time and tokens. With --batch report, also query the judge one sentence
    at a time, and print the agreement of the two modes. With heldout.csv of 'maira judge-data', print instead the mean
    absolute errors of GREEN's or VERT's scores against the teacher's, the similarity of the answers and the agreement
    of the verdicts. With --comparisons, test instead whether the model detects mentions of an earlier examination in 50
    built-in sentences, as the metric comparison_mentions requires.
    """
    console = new_console()
    judge, token_price = judge.or_environment(), parse_price(price)
    cache = None if out is None else out.parent / "cache"
    if comparisons and labeled is not None:
        message = "expected a file of labeled examples or --comparisons, found both"
        raise InputError(message, code=ErrorCode.CONFLICTING_OPTIONS)
    name = judge.required_judge
    if comparisons:
        with _metric(ComparisonMentions, judge, token_price, cache) as metric:
            record = {"judge": name, **check_comparisons(metric)}
        _show_comparisons(console, record)
    elif labeled is not None and ".csv" in labeled.suffixes:
        kind, held_out = read_held_out(labeled)
        with _metric(kind, judge, token_price, cache) as metric:
            record = compare_with_teacher(name, metric, held_out, weights=similarity.weights)
        show_teacher_check(console, record, token_price)
    else:
        queries = load_labeled_queries(labeled)
        loaded = judge.load(cache)
        with display_progress(new_console(stderr=True), {"judging": loaded.usage}, token_price):
            check = check_judge(loaded, queries)
        show_check(console, check, token_price)
        record = {**asdict(check), "judge_settings": loaded.describe()}
    if out is not None:
        write_json(out, record)
        say(console, f"Written to {out}", wrap=False)


@contextmanager
def _metric(kind: type[MetricT], judge: JudgeOptions, price: Price | None, cache: Path | None) -> Iterator[MetricT]:
    """Create a metric that queries the judge's model, and show the progress of its queries."""
    with closing(MetricResources(judge=judge, cache=cache)) as resources:
        metric = kind.create(resources)
        with display_progress(new_console(stderr=True), resources.usage_by_role, price):
            yield metric


def _show_comparisons(console: Console, record: Mapping[str, Any]) -> None:
    for text in record["wrong"]:
        say(console, f"wrong: {text}", style="yellow", wrap=False)
    shares = ", ".join(f"{share} {record[share]:.1%}" for share in ("accuracy", "sensitivity", "specificity"))
    failures = f"{record['failures']} without a valid response, counted as wrong"
    say(console, f"{record['judge']} on {record['n']} sentences: {shares}; {failures}")
