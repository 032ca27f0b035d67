"""The command `radfact`: a thin layer over the library."""

from __future__ import annotations

import os
import time
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from radfact.command import run_command
from radfact.errors import ExitCode, InputError

if TYPE_CHECKING:
    from radfact.entailment import Judge
    from radfact.files import Pairs
    from radfact.report import Report
    from radfact.score import Result

# Rich keeps line ends as they are, so a paragraph is one line here.
MANUAL = "\n".join(
    (
        "Score radiology reports, sentence by sentence, against reference reports (RadFact).",
        "",
        "Every sentence of a report is put to a judge: does it follow from the other report? Logical precision is the "
        "share of candidate sentences that do, logical recall the share of reference sentences. Where sentences have "
        "boxes, grounding figures say how many of the entailed sentences also lie in the right place, spatial figures "
        "how many of all.",
        "",
        "[bold]Examples[/bold]",
        "  radfact score pairs.json --judge offline --out results",
        "  radfact score --candidates drafts.jsonl --references manifest.jsonl",
        "      --judge openai:MODEL --out results",
        "  radfact page results --manifest manifest.jsonl",
        "",
        "[bold]Files[/bold]",
        "  pairs.json      grounded: a list of {example_id, prediction, target},",
        "                  both reports lists of {text, boxes}",
        "  pairs.csv       narrative: columns example_id, prediction, target",
        "  drafts.jsonl    {sample_id, report} a line; the report is a list of",
        "                  {text, boxes} or one narrative",
        "  manifest.jsonl  {sample_id, grounded_findings or findings} a line,",
        "                  and image paths for the page",
        "Boxes are {x_min, y_min, x_max, y_max} in shares of the original image.",
        "",
        "[bold]Exit codes[/bold]",
        "  0 done; 1 the run failed; 2 wrong input or options;",
        "  3 done, with samples left out and listed",
    )
)

_NO_JUDGE = (
    "no judge is named: give --judge offline or --judge PROVIDER:MODEL (for example openai:MODEL), or set RADFACT_JUDGE"
)
_LISTED = 10

app = typer.Typer(
    help=MANUAL,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)


class _Compat(StrEnum):
    PAPER = "paper"
    EXACT = "exact"


class _OnFailure(StrEnum):
    DROP = "drop"
    NOT_ENTAILED = "not-entailed"
    STOP = "stop"


_ManifestOption = Annotated[
    Path | None, typer.Option(help="Manifest with the images for the page (default: --references).")
]
_NoteOption = Annotated[list[str] | None, typer.Option(help="A sentence for the banner of the page; may be repeated.")]
_UnscoredOption = Annotated[
    Path | None, typer.Option(help="Drafts without a reference, shown on the page and in no figure.")
]


@app.command()
def score(
    pairs: Annotated[Path | None, typer.Argument(help="Grounded pairs (.json) or narrative pairs (.csv).")] = None,
    candidates: Annotated[Path | None, typer.Option(help="Drafts (.jsonl); goes with --references.")] = None,
    references: Annotated[Path | None, typer.Option(help="Manifest (.jsonl) with the reference reports.")] = None,
    judge: Annotated[
        str | None, typer.Option(envvar="RADFACT_JUDGE", help="Who judges: offline, or PROVIDER:MODEL. No default.")
    ] = None,
    base_url: Annotated[str | None, typer.Option(help="Address of an OpenAI-compatible server.")] = None,
    few_shots: Annotated[
        Path | None, typer.Option(help="Few-shot examples in the published layout, instead of our own.")
    ] = None,
    concurrency: Annotated[int | None, typer.Option(help="Calls in flight to a language model.")] = None,
    model_arg: Annotated[
        list[str] | None, typer.Option(metavar="KEY=VALUE", help="One more argument of the model; may be repeated.")
    ] = None,
    compat: Annotated[
        _Compat, typer.Option(help="paper: as the published implementation computes; exact: without its resolution.")
    ] = _Compat.PAPER,
    threshold: Annotated[float, typer.Option(help="Share of a region that its evidence must cover.")] = 0.5,
    narrative: Annotated[
        bool | None,
        typer.Option(
            "--narrative/--grounded",
            help="Split every report anew and ignore boxes / insist on sentences. Default: as the file has it.",
            show_default=False,
        ),
    ] = None,
    on_failure: Annotated[
        _OnFailure, typer.Option(help="What becomes of a sample with a question that stays without a valid answer.")
    ] = _OnFailure.DROP,
    bootstrap: Annotated[int, typer.Option(help="Bootstrap replicates; 0 for none.")] = 500,
    seed: Annotated[int, typer.Option(help="Seed of the bootstrap.")] = 42,
    manifest: _ManifestOption = None,
    note: _NoteOption = None,
    unscored: _UnscoredOption = None,
    out: Annotated[Path, typer.Option(help="Results folder; the same command finishes one that was cut short.")] = Path(
        "results"
    ),
) -> None:
    """Score candidates against references and write a results folder with a page to read.

    The folder holds scores.json, samples.jsonl, sentences.jsonl, run.json and report.html.
    """
    from radfact.entailment import load_judge
    from radfact.page import write_page
    from radfact.results import write_results
    from radfact.score import RadFact

    console = Console()
    started = time.monotonic()
    if not judge:
        raise InputError(_NO_JUDGE)
    read = _as_asked(_read(pairs, candidates, references), narrative)
    if not read:
        raise InputError("no pairs to score", file=pairs or candidates)
    for path in (manifest, unscored):
        if path is not None and not path.is_file():
            raise InputError("no such file", file=path)
    if out.exists() and not out.is_dir():
        raise InputError("expected a results folder, found a file", file=out)
    model_args = _model_args(model_arg or [], few_shots, concurrency)
    loaded = load_judge(judge, base_url=base_url, model_args=model_args, cache=out / "cache")
    metric = RadFact(
        judge=loaded,
        compat=compat.value,
        threshold=threshold,
        on_failure=on_failure.value,
        bootstrap=bootstrap,
        seed=seed,
    )
    _make_folder(out)
    console.print(f"records read: {read.read}, skipped: {read.skipped}, pairs: {len(read)}", highlight=False)
    with Console(stderr=True).status(f"{loaded.name} is judging"):
        result = metric.score(read)
    options: dict[str, Any] = {
        "compat": compat.value,
        "threshold": threshold,
        "narrative": narrative,
        "on_failure": on_failure.value,
        "bootstrap": bootstrap,
        "seed": seed,
    }
    inputs = {
        "files": [str(path) for path in (pairs, candidates, references) if path is not None],
        "read": read.read,
        "skipped": read.skipped,
    }
    write_results(result, out, _run_record(loaded, options, inputs, time.monotonic() - started))
    page = write_page(out, manifest=manifest or references, notes=note or [], unscored=unscored)
    _show(console, result, f"RadFact, judge {loaded.name}, {compat.value} mode")
    console.print(f"Read the studies in {page}", highlight=False, markup=False, soft_wrap=True)
    if result.counts["left_out"]:
        raise typer.Exit(ExitCode.SAMPLES_LEFT_OUT)


@app.command()
def page(
    folder: Annotated[Path, typer.Argument(help="A results folder.")],
    manifest: Annotated[Path | None, typer.Option(help="Manifest with the images.")] = None,
    note: _NoteOption = None,
    unscored: _UnscoredOption = None,
) -> None:
    """Draw the page of a results folder again."""
    from radfact.page import write_page

    written = write_page(folder, manifest=manifest, notes=note or [], unscored=unscored)
    Console().print(f"Read the studies in {written}", highlight=False, markup=False, soft_wrap=True)


def main() -> None:
    """Entry point: what went wrong is one line on standard error and the exit code, never a traceback."""
    run_command(app, "radfact")


def _read(pairs: Path | None, candidates: Path | None, references: Path | None) -> Pairs:
    from radfact.files import read_candidates_and_references, read_pairs

    if pairs is not None and candidates is None and references is None:
        return read_pairs(pairs)
    if pairs is None and candidates is not None and references is not None:
        return read_candidates_and_references(candidates, references)
    raise InputError("expected either a file of pairs, or both --candidates and --references")


def _as_asked(pairs: Pairs, narrative: bool | None) -> Pairs:
    """Reports as narratives or as sentences, where the user insists on one."""
    from radfact.files import Pair, Pairs

    if narrative is None:
        return pairs
    if narrative:
        texts = (Pair(one.sample_id, _narrative(one.candidate), _narrative(one.reference)) for one in pairs)
        return Pairs(tuple(texts), pairs.read, pairs.skipped)
    for one in pairs:
        if isinstance(one.candidate, str) or isinstance(one.reference, str):
            raise InputError(f"--grounded needs lists of sentences; sample '{one.sample_id}' has a narrative")
    return pairs


def _narrative(report: Report) -> str:
    return report if isinstance(report, str) else " ".join(sentence.text for sentence in report)


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot be made a results folder: {error.strerror}", file=folder) from None
    if not os.access(folder, os.W_OK):
        raise InputError("results folder cannot be written to", file=folder)


def _model_args(given: list[str], few_shots: Path | None, concurrency: int | None) -> dict[str, str]:
    arguments = {}
    for one in given:
        key, equals, value = one.partition("=")
        if not (key and equals):
            raise InputError(f"expected KEY=VALUE, found '{one}'", field="--model-arg")
        arguments[key] = value
    if few_shots is not None:
        arguments["few_shots"] = str(few_shots)
    if concurrency is not None:
        arguments["concurrency"] = str(concurrency)
    return arguments


def _run_record(judge: Judge, options: dict[str, Any], inputs: dict[str, Any], seconds: float) -> dict[str, Any]:
    import platform
    from importlib.metadata import version

    versions = {name: version(name) for name in ("maira-radfact", "numpy", "pydantic")}
    return {
        "versions": {"python": platform.python_version(), **versions},
        "judge": judge.describe(),
        "options": options,
        "input": inputs,
        **judge.account(),
        "seconds": round(seconds, 3),
    }


def _show(console: Console, result: Result, title: str) -> None:
    table = Table(title=escape(title), title_justify="left")
    for heading in ("figure", "point", "median", "95 % interval", "n"):
        table.add_column(heading, justify="left" if heading == "figure" else "right")
    for name, figure in result.figures.items():
        interval = f"{_number(figure.low)} to {_number(figure.high)}" if figure.low is not None else "-"
        table.add_row(name, _number(figure.point), _number(figure.median), interval, str(figure.n))
    console.print(table)
    counts = result.counts
    console.print(
        f"{counts['scored']} of {counts['samples']} samples scored; "
        f"{counts['candidate_sentences']} candidate and {counts['reference_sentences']} reference sentences; "
        f"{counts['judgements']} judgements, {counts['failed_judgements']} without a valid answer",
        highlight=False,
    )
    # What a judge says of its own figures belongs beside them.
    for key, lead in (("note", ""), ("few_shots_from", "Few-shot examples of the judge: ")):
        if said := result.judge.get(key):
            console.print(f"{lead}{said}", style="yellow", markup=False, highlight=False)
    left_out = [sample for sample in result.samples if sample.failure is not None]
    for sample in left_out[:_LISTED]:
        console.print(f"left out: {sample.sample_id}: {sample.failure}", style="red", markup=False, highlight=False)
    if len(left_out) > _LISTED:
        console.print(f"and {len(left_out) - _LISTED} more, listed in samples.jsonl", style="red", highlight=False)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
