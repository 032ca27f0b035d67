"""`maira stats`, `maira show` and `maira pack`: count, show and pack the samples of a manifest."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from maira.cli.options import ManifestArgument, PreparedFolder
from maira.cli.show import exit_with_failures, print_line, show_progress
from radfact.cli.command import with_options
from radfact.cli.tables import show_rows
from radfact.io.outputs import Output

_By = StrEnum("_By", ["SOURCE", "SPLIT", "TASK"])
_MEANING = (
    "FindGen: narrative findings, GroundRep: grounded findings, PhraseGround: phrases, each a sample with the frontal "
    "image alone. A prior is a prior frontal image with its report."
)


@with_options
def stats(
    manifest: ManifestArgument,
    by: Annotated[
        list[_By] | None, typer.Option(help="Column to group by; repeatable. Default: source, split and task.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Also write the statistics as JSON."), Output("file")] = None,
) -> None:
    """Count patients, samples, laterals, priors, words, sentences and boxes of a manifest (MAIRA-2, table 1)."""
    from maira.data.statistics import COLUMNS, manifest_statistics
    from radfact.io.jsonl import write_json

    columns = [column for column in COLUMNS if not by or column in by]
    statistics = manifest_statistics(manifest, columns)
    if out is not None:
        write_json(out, statistics)
    console, total = Console(), statistics["total"]
    whole = "split" if "split" in columns else "all"
    rows = [([row[column] or "-" for column in columns], _cells(row, whole)) for row in statistics["groups"]]
    if len(rows) > 1:
        rows.append((["total", *[""] * (len(columns) - 1)], _cells(total, whole)))
    # Two tables, of samples and of their reports, to fit a narrow terminal.
    for part in (slice(5), slice(5, None)):
        lines = [(*key, *[*cells.values()][part]) for key, cells in rows]
        show_rows(console, (*columns, *[*rows[0][1]][part]), lines, keys=len(columns))
    print_line(console, _MEANING)
    if total["studies_of_unknown_patients"]:
        print_line(console, "* studies whose patient is unknown")


@with_options
def show(
    manifest: ManifestArgument,
    out: Annotated[Path, typer.Option(help="Output file (.html)."), Output("file")],
    count: Annotated[int, typer.Option(help="Number of random samples; 0: all.", min=0)] = 50,
    seed: Annotated[int, typer.Option(min=0, help="Random seed of the selection.")] = 0,
    sample_id: Annotated[
        list[str] | None, typer.Option(help="Show this sample instead of random ones; repeatable.")
    ] = None,
) -> None:
    """Write a contact sheet: an HTML page of images, boxes and texts that opens from disk."""
    from maira.data.contact_sheet import write_contact_sheet

    console = Console()
    shown, total, missing = write_contact_sheet(manifest, out, count=count or None, seed=seed, sample_ids=sample_id)
    print_line(console, f"{shown} of {total} samples: {out}")
    if missing:
        print_line(console, f"{missing} images cannot be shown; they are listed on the page")


@with_options
def pack(
    manifest: ManifestArgument,
    out: PreparedFolder,
    shard_size: Annotated[str, typer.Option(help="Maximum size of a shard, such as 500MB.")] = "500MB",
    split: Annotated[list[str] | None, typer.Option(help="Split to pack; repeatable. Default: all.")] = None,
    shuffle: Annotated[
        int | None, typer.Option(help="Shuffle with this seed, for tools that read shards sequentially.")
    ] = None,
) -> None:
    """Pack samples and their images into training shards (tar files in WebDataset layout, with an index)."""
    from maira.data.shards import pack as pack_shards
    from maira.data.shards import parse_size

    size = parse_size(shard_size)
    with show_progress("packing") as on_progress:
        index, reused, failures = pack_shards(
            manifest, out, shard_size=size, splits=split, shuffle=shuffle, on_progress=on_progress
        )
    console, megabytes = Console(), sum(shard.bytes for shard in index.shards) / 1e6
    earlier = f", {reused} of them reused from an earlier run" if reused else ""
    print_line(console, f"{index.samples} samples, {megabytes:.1f} MB in {len(index.shards)} shards{earlier}: {out}")
    exit_with_failures(console, [(str(failure.sample_id), failure.reason) for failure in failures])


def _cells(row: Mapping[str, Any], whole: str) -> dict[str, str]:
    """Return the cells of a group by their headings: samples as in table 1, and statistics of their reports."""
    unknown = row["studies_of_unknown_patients"]
    patients = [f"{row['patients']:,}"] if row["patients"] or not unknown else []
    return {
        "patients": " + ".join([*patients, f"{unknown:,}*"] if unknown else patients),
        "samples": f"{row['samples']:,}",
        f"%\nof {whole}": _number(row["share"], 100),
        "%\nlateral": _number(row["has_lateral"], 100),
        "%\nprior": _number(row["has_prior"], 100),
        "words\na report": _number(row["words_a_report"]),
        "sentences\na report": _number(row["sentences_a_report"]),
        "% sentences\nwith boxes": _number(row["sentences_with_boxes"], 100),
        "boxes\neach": _number(row["boxes_a_located_sentence"], digits=2),
    }


def _number(value: float | None, scale: float = 1, digits: int = 1) -> str:
    return "-" if value is None else f"{scale * value:.{digits}f}"
