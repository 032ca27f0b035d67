"""`radfact score`: pairs of reports in, a results folder out."""

from __future__ import annotations

import time
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from radfact.cli import options as shared
from radfact.cli.inputs import check_files, check_folder, check_images, drafts_apart, read_reports, with_images
from radfact.cli.options import FIGURES, INPUT, JUDGE, JudgeOptions
from radfact.cli.price import read_price
from radfact.cli.run_record import differences, read_in_words, run_record
from radfact.cli.tables import new_console, say, say_path, show_result
from radfact.errors import ExitCode, RunError
from radfact.progress import ProgressDisplay

if TYPE_CHECKING:
    from radfact.scoring.radfact import Result

# Rich keeps line ends as they are, so a paragraph is one line here.
MANUAL = "\n".join(
    (
        "Score candidates against references and write a results folder with a page to read.",
        "",
        "The folder holds scores.json (the figures), samples.jsonl, sentences.jsonl (each sentence with its verdict "
        "and evidence), run.json (judge, options, calls) and report.html; the answers of a model are kept in cache/. "
        "The same command finishes a run that was cut short and asks nothing twice. Another judge or other options "
        "replace the results as a whole; the answers stay.",
        "",
        "[bold]Examples[/bold]",
        "  radfact score pairs.json --judge offline",
        "  radfact score pairs.csv --judge openai:MODEL --splitter offline \\",
        "      --price 0.5,1.5 --out results/model",
        "  radfact score --candidates drafts.jsonl --references manifest.jsonl \\",
        "      --judge openai:MODEL --base-url http://127.0.0.1:8000/v1",
        "  radfact score --config llama.yaml --compat exact",
        "",
        "[bold]Exit codes[/bold]",
        "  0 done; 1 the run failed; 2 wrong input or options;",
        "  3 done, with samples left out and listed",
    )
)


class Compat(StrEnum):
    """How regions are compared."""

    PAPER = "paper"
    EXACT = "exact"


class OnFailure(StrEnum):
    """What becomes of a sample with a failed judgement."""

    DROP = "drop"
    NOT_ENTAILED = "not-entailed"
    STOP = "stop"


def score(
    pairs: shared.PairsArgument = None,
    candidates: shared.Candidates = None,
    references: shared.References = None,
    missing: shared.MissingOption = shared.Missing.REFUSE,
    narrative: Annotated[
        bool | None,
        typer.Option(
            "--narrative/--grounded",
            help="Split every report anew and ignore its regions / insist on sentences. Default: as the file has it.",
            show_default=False,
            rich_help_panel=INPUT,
        ),
    ] = None,
    config: shared.Config = None,  # noqa: ARG001
    judge: shared.JudgeName = None,
    judge_arg: shared.JudgeArgs = None,
    base_url: shared.BaseUrl = None,
    few_shots: shared.FewShots = None,
    system: shared.System = None,
    answer_format: shared.Format = shared.AnswerFormat.YAML,
    batch: shared.BatchOption = shared.Batch.SENTENCE,
    concurrency: shared.Concurrency = None,
    splitter: shared.SplitterName = None,
    splitter_arg: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", help="As --judge-arg, for the splitter.", rich_help_panel=JUDGE),
    ] = None,
    splitter_few_shots: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Worked examples of splitting, published layout.", rich_help_panel=JUDGE),
    ] = None,
    price: shared.PriceOption = None,
    engine: Annotated[
        shared.Engine,
        typer.Option(
            help="local: this process; ray: a Ray cluster, each worker with a judge in its process.",
            rich_help_panel=JUDGE,
        ),
    ] = shared.Engine.LOCAL,
    workers: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Workers of --engine ray.", rich_help_panel=JUDGE)
    ] = None,
    compat: Annotated[
        Compat,
        typer.Option(
            help="paper: as the published implementation computes; exact: without its resolution.",
            rich_help_panel=FIGURES,
        ),
    ] = Compat.PAPER,
    threshold: Annotated[
        float,
        typer.Option(
            min=0,
            max=1,
            metavar="SHARE",
            help="Share of a region that its evidence must cover.",
            rich_help_panel=FIGURES,
        ),
    ] = 0.5,
    on_failure: Annotated[
        OnFailure,
        typer.Option(
            help="A sample with a question that stays without a valid answer: leave it out, count the sentence as not "
            "entailed (as published), or stop.",
            rich_help_panel=FIGURES,
        ),
    ] = OnFailure.DROP,
    bootstrap: shared.Bootstrap = 500,
    seed: shared.Seed = 42,
    out: shared.Out = Path("results"),
    cache: shared.CacheFolder = None,
    manifest: shared.Manifest = None,
    note: shared.Notes = None,
    unscored: shared.Unscored = None,
    images: shared.Images = None,
) -> None:
    """Score candidates against references and write a results folder with a page to read."""
    from radfact.html.page import page_record, write_page
    from radfact.io.pairs import narratives
    from radfact.results.radfact_writer import write_results
    from radfact.scoring.radfact import RadFact

    console, started = new_console(), time.monotonic()
    who = JudgeOptions(
        judge, judge_arg, base_url, few_shots, system, answer_format, batch, concurrency, engine, workers
    )
    rate = read_price(price)
    check_files(manifest, unscored)
    read = read_reports(pairs, candidates, references, missing=missing, narrative=narrative)
    check_images(manifest, unscored, read)
    check_folder(out)
    cache = cache or out / "cache"
    loaded = who.load(cache)
    usage_by_role = {"judging": loaded.usage}
    split = None
    if narratives(read):
        split = who.load_splitter(loaded, splitter, splitter_arg, splitter_few_shots, cache)
        usage_by_role = {"splitting": split.usage, **usage_by_role}
    metric = RadFact(
        loaded,
        compat=compat.value,
        threshold=threshold,
        on_failure=on_failure.value,
        bootstrap=bootstrap,
        seed=seed,
        splitter=split,
    )
    files = [path for path in (pairs, candidates, references) if path is not None]
    chosen = {"missing": missing.value, "narrative": narrative, **metric.options}
    say(console, read_in_words(read))
    if replaced := differences(out, files, {"judge": loaded, "splitter": split}, chosen):
        say(console, f"{out} holds figures {replaced}; they are replaced when this run is done", style="yellow")
    with ProgressDisplay(new_console(stderr=True), usage_by_role, rate):
        result = metric.score(read)
    _refuse_empty(result)
    record = {
        **run_record(files, read, result),
        "options": {**chosen, "engine": engine.value},
        "seconds": round(time.monotonic() - started, 3),
        "page": page_record(
            out,
            manifest or with_images(references),
            note or [],
            *drafts_apart(unscored, candidates, read),
            images.value if images else None,
        ),
    }
    write_results(result, out, record)
    show_result(console, result, f"RadFact, judge {loaded.name}, {compat.value} mode", rate)
    page = write_page(out)
    say_path(console, "Read the studies in", page)
    if result.counts["left_out"]:
        raise typer.Exit(ExitCode.INCOMPLETE)


def _refuse_empty(result: Result) -> None:
    """Stop before figures of nothing replace those that are there.

    Raises:
        RunError: judgements or splits failed, and no sample could be scored.
    """
    failed = result.counts["failed_judgements"] + result.counts["failed_narratives"]
    if failed and not result.counts["scored"]:
        reason = next(sample.failure for sample in result.samples if sample.failure is not None)
        raise RunError(f"no sample could be scored ({reason}); no results are written, answers are kept in cache")
