"""`maira stats`, `maira show` and `maira pack`: count, show and pack the samples of a manifest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from maira.cli.options import PreparedFolder
from maira.cli.show import exit_with_failures, print_line, show_progress
from radfact.cli.command import with_options
from radfact.io.outputs import Output

if TYPE_CHECKING:
    from maira.data.statistics import Column, Statistics


class _By(StrEnum):
    SOURCE = "source"
    SPLIT = "split"
    TASK = "task"


_Manifest = Annotated[Path, typer.Argument(help="manifest.jsonl of the samples.")]


@with_options
def stats(
    manifest: _Manifest,
    by: Annotated[
        list[_By] | None, typer.Option(help="Column to group by; repeatable. Default: source, split and task.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Also write the statistics as JSON."), Output("file")] = None,
) -> None:
    """Count patients, samples, laterals, priors, words, sentences and boxes of a manifest (MAIRA-2, table 1)."""
    from maira.data.statistics import COLUMNS, manifest_statistics
    from radfact.io.jsonl import write_json

    columns = [column for column in COLUMNS if not by or column in by]
    statistics = manifest_statistics(manifest)
    if out is not None:
        write_json(out, statistics.as_json(columns))
    _print_tables(Console(), statistics, columns)


@with_options
def show(
    manifest: _Manifest,
    out: Annotated[Path, typer.Option(help="Output file (.html)."), Output("file")],
    count: Annotated[int, typer.Option(help="Number of random samples; 0: all.", min=0)] = 50,
    seed: Annotated[int, typer.Option(min=0, help="Random seed of the selection.")] = 0,
    sample_id: Annotated[
        list[str] | None, typer.Option(help="Show this sample instead of random ones; repeatable.")
    ] = None,
) -> None:
    """Write a contact sheet: an HTML page of images, boxes and texts that opens from disk."""
    from maira.data.contact_sheet import write_contact_sheet

    sheet = write_contact_sheet(manifest, out, count=count or None, seed=seed, sample_ids=sample_id)
    console = Console()
    print_line(console, f"{sheet.shown} of {sheet.total} samples: {out}")
    if sheet.missing:
        print_line(console, f"{sheet.missing} images cannot be shown; they are listed on the page")


@with_options
def pack(
    manifest: _Manifest,
    out: PreparedFolder,
    shard_size: Annotated[str, typer.Option(help="Maximum size of a shard, such as 500MB.")] = "500MB",
    split: Annotated[list[str] | None, typer.Option(help="Split to pack; repeatable. Default: all.")] = None,
    shuffle: Annotated[
        int | None, typer.Option(help="Shuffle with this seed, for tools that read shards sequentially.")
    ] = None,
) -> None:
    """Pack samples and their images into training shards (tar files in WebDataset layout, with an index)."""
    from maira.data.pack_shards import pack as pack_shards
    from maira.data.pack_shards import parse_size

    size = parse_size(shard_size)
    with show_progress("packing") as on_progress:
        packed = pack_shards(manifest, out, shard_size=size, splits=split, shuffle=shuffle, on_progress=on_progress)
    console = Console()
    reused = f", {packed.reused} of them reused from an earlier run" if packed.reused else ""
    print_line(
        console, f"{packed.samples} samples, {packed.bytes / 1e6:.1f} MB in {packed.shards} shards{reused}: {out}"
    )
    exit_with_failures(console, [(str(failure.sample_id), failure.reason) for failure in packed.failures])


def _print_tables(console: Console, statistics: Statistics, columns: Sequence[Column]) -> None:
    """Print samples as in table 1, and statistics of their reports; two tables, to fit a narrow terminal."""
    groups, total = statistics.group_by(columns), statistics.total()
    rows = [([key or "-" for key in g.key], f) for g, f in zip(groups, statistics.rows(columns), strict=True)]
    if len(rows) > 1:
        rows.append((["total", *[""] * (len(columns) - 1)], total.as_json(total.samples)))
    share = "%\nof split" if "split" in columns else "%\nof all"
    for headings, cells in (
        (("patients", "samples", share, "%\nlateral", "%\nprior"), _samples),
        (("words\na report", "sentences\na report", "% sentences\nwith boxes", "boxes\neach"), _reports),
    ):
        table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
        for column in columns:
            table.add_column(column, no_wrap=True)
        for heading in headings:
            table.add_column(heading, justify="right", no_wrap=True)
        for number, (key, row) in enumerate(rows):
            table.add_row(*key, *cells(row), end_section=number == len(groups) - 1)
        console.print(table)
    print_line(console, _MEANING)
    if total.unidentified_studies:
        print_line(console, "* studies whose patient is unknown")


_MEANING = (
    "FindGen: narrative findings, GroundRep: grounded findings, PhraseGround: phrases, each a sample with the frontal "
    "image alone. A prior is a prior frontal image with its report."
)


def _samples(row: Mapping[str, Any]) -> list[str]:
    patients, unidentified = row["patients"], row["studies_of_unknown_patients"]
    known = [f"{patients:,}"] if patients or not unidentified else []
    unknown = [f"{unidentified:,}*"] if unidentified else []
    shares = (row[name] for name in ("share", "has_lateral", "has_prior"))
    return [" + ".join(known + unknown), f"{row['samples']:,}", *(_percent(share) for share in shares)]


def _reports(row: Mapping[str, Any]) -> list[str]:
    words, sentences, boxes = (
        "-" if (value := row[name]) is None else f"{value:.{digits}f}"
        for name, digits in (("words_a_report", 1), ("sentences_a_report", 1), ("boxes_a_located_sentence", 2))
    )
    return [words, sentences, _percent(row["sentences_with_boxes"]), boxes]


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f}"
