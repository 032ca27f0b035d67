"""`radfact evaluate`: pairs of reports in, the figures of many metrics out, in one results folder with one page."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from radfact.cli import options as shared
from radfact.cli.inputs import Missing, check_files, check_folder, read_reports, with_images
from radfact.cli.metrics import WeightsOption, read_weights
from radfact.cli.options import FIGURES, INPUT, JUDGE, OUTPUT, JudgeOptions, naming_options
from radfact.cli.price import read_price
from radfact.cli.record import read_in_words, versions
from radfact.cli.tables import new_console, say, say_path, show_evaluation
from radfact.errors import ExitCode
from radfact.live import LiveDisplay

if TYPE_CHECKING:
    from radfact.entailment import Judge
    from radfact.metrics.evaluate import Evaluation
    from radfact.sentences import Splitter

# Rich keeps line ends as they are, so a paragraph is one line here.
MANUAL = "\n".join(
    (
        "Score candidates against references by many metrics and write one results folder with one page.",
        "",
        "Metrics are named as 'radfact metrics' lists them; the name of one figure (bleu_4) gives that one alone, all "
        "gives whatever can be computed, module:object is a metric of your own. One that lacks weights, a key or a "
        "package says so in one line, and the others go on.",
        "",
        "The folder holds scores.json, samples.jsonl (every figure of every sample), metrics/ (the details of each "
        "metric: explanations, corrections, findings), run.json and report.html. The same command finishes a run that "
        "was cut short; a metric that is done is not computed again, and no model is asked twice.",
        "",
        "[bold]Examples[/bold]",
        "  radfact evaluate pairs.csv --metrics rouge_l,bleu_4,radfact \\",
        "      --judge offline --out results/a",
        "  radfact evaluate --candidates drafts.jsonl --references manifest.jsonl \\",
        "      --metrics all --judge openai:MODEL --weights WEIGHTS",
        "",
        "[bold]Exit codes[/bold]",
        "  0 done; 1 the run failed; 2 wrong input or options;",
        "  3 done, with samples or named metrics left out and listed",
    )
)


def evaluate(
    pairs: Annotated[Path | None, typer.Argument(help="Pairs: grounded (.json) or narrative (.csv).")] = None,
    candidates: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Drafts (.jsonl) or COCO (.json); goes with --references.", rich_help_panel=INPUT
        ),
    ] = None,
    references: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Manifest (.jsonl) with the reference reports, or COCO (.json).", rich_help_panel=INPUT
        ),
    ] = None,
    missing: Annotated[
        Missing,
        typer.Option(
            help="A reference without a candidate: refuse it, leave it out and list it, or take an empty report.",
            rich_help_panel=INPUT,
        ),
    ] = Missing.REFUSE,
    metrics: Annotated[
        str,
        typer.Option(
            metavar="NAMES",
            help="Metrics or figures, separated by commas, or all.",
            rich_help_panel=FIGURES,
        ),
    ] = "all",
    weights: WeightsOption = None,
    config: shared.Config = None,  # noqa: ARG001
    judge: shared.JudgeName = None,
    judge_arg: shared.JudgeArgs = None,
    base_url: shared.BaseUrl = None,
    concurrency: shared.Concurrency = None,
    few_shots: shared.FewShots = None,
    system: shared.System = None,
    answer_format: shared.Format = shared.AnswerFormat.YAML,
    batch: shared.BatchOption = shared.Batch.SENTENCE,
    splitter: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Who splits narratives for RadFact: offline or a model. Default: the judge.",
            rich_help_panel=JUDGE,
        ),
    ] = None,
    price: shared.PriceOption = None,
    bootstrap: Annotated[
        int, typer.Option(min=0, metavar="N", help="Bootstrap replicates; 0 for none.", rich_help_panel=FIGURES)
    ] = 500,
    seed: Annotated[int, typer.Option(min=0, metavar="N", help="Seed of the bootstrap.", rich_help_panel=FIGURES)] = 42,
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="Results folder.", rich_help_panel=OUTPUT)] = Path(
        "results"
    ),
    cache: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Where the answers of a model are kept; several runs may share it. Default: cache/ in the results.",
            show_default=False,
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    manifest: shared.Manifest = None,
    note: shared.Notes = None,
    unscored: shared.Unscored = None,
    images: shared.Images = None,
) -> None:
    """Score candidates against references by many metrics and write one results folder with one page."""
    from radfact.metrics.evaluate import Work
    from radfact.metrics.folder import write_evaluation
    from radfact.metrics.registry import choose
    from radfact.metrics.resources import Resources
    from radfact.page import page_record, write_page

    console, started = new_console(), time.monotonic()
    who = JudgeOptions(judge, judge_arg, base_url, few_shots, system, answer_format, batch, concurrency)
    rate = read_price(price)
    with naming_options():
        choices = choose([name.strip() for name in metrics.split(",") if name.strip()])
    check_files(manifest, unscored)
    folders = read_weights(weights)
    read = read_reports(pairs, candidates, references, missing=missing)
    check_folder(out)
    cache = cache or out / "cache"
    with naming_options():
        resources = Resources(
            entailment=None if who.named is None else lambda: _entailment(who, splitter, cache),
            model=who.named,
            judge_args=who.arguments,
            base_url=base_url,
            concurrency=concurrency,
            cache=cache,
            weights=folders,
            radfact={"bootstrap": bootstrap, "seed": seed},
        )
    say(console, read_in_words(read))
    try:
        with naming_options():
            work = Work(choices, resources)
        with LiveDisplay(new_console(stderr=True), resources.accounts, rate):
            evaluation = work.run(read, bootstrap=bootstrap, seed=seed, folder=out)
    finally:
        resources.close()
    files = [path for path in (pairs, candidates, references) if path is not None]
    record = {
        "versions": versions(),
        "input": {"files": list(map(str, files)), "read": read.read, "skipped": read.skipped},
        "options": {"missing": missing.value, "metrics": metrics},
        "seconds": round(time.monotonic() - started, 3),
        "page": page_record(
            out, manifest or with_images(references), note or [], unscored, images.value if images else None
        ),
    }
    write_evaluation(evaluation, out, record)
    show_evaluation(console, evaluation, rate)
    say_path(console, "Read the studies in", write_page(out))
    if _incomplete(evaluation):
        raise typer.Exit(ExitCode.SAMPLES_LEFT_OUT)


def _entailment(who: JudgeOptions, splitter: str | None, cache: Path) -> tuple[Judge, Splitter]:
    return who.load(cache), who.load_splitter(splitter, None, None, cache)


def _incomplete(evaluation: Evaluation) -> bool:
    """Whether samples were left out, or a metric that was named gave nothing."""
    named = {choice.entry.name for choice in evaluation.choices if choice.by_name}
    left_out = bool(evaluation.left_out) or any(evaluation.failures)
    return left_out or not named.isdisjoint(evaluation.unavailable)
