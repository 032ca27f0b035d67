"""`radfact split`: split narratives into single-finding sentences that can be read, edited and scored."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from radfact.cli.command import with_options
from radfact.cli.options import INPUT, OUTPUT, ColumnOptions, PriceOption, option
from radfact.cli.tables import new_console, say
from radfact.errors import ErrorCode, ExitCode, Failure, InputError, list_some
from radfact.io.columns import NAMES
from radfact.io.csv_tables import write_csv
from radfact.io.jsonl import write_json, write_jsonl
from radfact.io.outputs import Output
from radfact.io.pairs import read_rows
from radfact.judges.loading import splitter_of
from radfact.judges.options import JudgeOptions
from radfact.judges.protocol import ExplainingSplitter, flatten_split, locate_removed
from radfact.options import only
from radfact.progress import display_progress, parse_price
from radfact.records import find_missing, is_missing

_FIELDS = (*NAMES["candidate"], *NAMES["reference"], "report", "findings")
"""Fields that may hold a narrative."""


@with_options
def split(
    file: Annotated[
        Path, typer.Argument(help="Pairs (.csv or .jsonl), or drafts or references (.jsonl).", rich_help_panel=INPUT)
    ],
    names: ColumnOptions,
    out: Annotated[
        Path,
        option("Sentences: .json for pairs, else .jsonl.", "OUT", OUTPUT),
        Output("file", siblings=("{stem}.removed.jsonl",)),
    ],
    judge: Annotated[JudgeOptions, only("judge", "judge_args", "base_url", "few_shots", "concurrency", "max_invalid")],
    price: PriceOption = None,
    check: Annotated[
        Path | None,
        option(
            "Also write each narrative (reference) with its sentences (candidate) for 'radfact evaluate', whose scores "
            "then tell what the split changes (.csv).",
            "FILE",
            OUTPUT,
        ),
        Output("file"),
    ] = None,
) -> None:
    """Split narratives into sentences of one finding each, and list what was removed.

    OUT has the layout of grounded reports, without boxes: read and edit the sentences, then score OUT.
    OUT.removed.jsonl lists the removed parts. Reports that already are sentences are unchanged. 'maira sentences'
    writes a manifest instead.
    """
    expected = {".csv": ".json", ".jsonl": ".jsonl"}.get(file.suffix.lower())
    if expected is None:
        message = "expected pairs (.csv or .jsonl), or drafts or references (.jsonl)"
        raise InputError(message, code=ErrorCode.INVALID_FORMAT, file=file)
    if out.suffix.lower() != expected:
        message = f"expected a {expected} file for the sentences of {file.name}, found '{out.name}'"
        raise InputError(message, code=ErrorCode.INVALID_OPTION, field="out")
    columns = names.columns or {}
    fields = {*_FIELDS, *(columns[side] for side in ("candidate", "reference") if side in columns)}
    read = read_rows(file, columns)
    rows = {key: row for key, (_, row, has_reference) in read.items() if has_reference}
    judge, token_price = judge.or_environment(), parse_price(price)
    splitter = splitter_of(judge, out.parent / "cache")
    with display_progress(new_console(stderr=True), {"splitting": splitter.usage}, token_price):
        new_rows, removed, failures, compared = _split(rows, fields, splitter)
    console, removed_file = new_console(), out.with_name(f"{out.stem}.removed.jsonl")
    (write_json if expected == ".json" else write_jsonl)(out, new_rows)
    write_jsonl(removed_file, removed)
    if check is not None:
        pairs = ((key, " ".join(sentences), text) for key, sentences, text in compared)
        write_csv(check, ("id", "candidate", "reference"), pairs)
        say(console, f"Narratives with their sentences written to {check}", wrap=False)
    for name, lines in find_missing([(line, row) for line, row, _ in read.values()], fields).items():
        say(console, f"no value in {file.name}: {name}: {list_some(lines)}", wrap=False)
    for sample_id, reason in failures.items():
        say(console, f"{sample_id}: {reason}", style="yellow", wrap=False)
    count = sum(len(sentences) for _, sentences, _ in compared)
    say(console, f"{len(new_rows)} of {len(read)} samples, {count} sentences, {len(removed)} parts removed")
    for reason, count in Counter(row["reason"] for row in removed).most_common():
        say(console, f"  {count} x {reason or 'no reason given'}")
    say(console, f"Written to {out} and {removed_file}", wrap=False)
    if failures:
        raise typer.Exit(ExitCode.INCOMPLETE)


def _narratives(row: Mapping[str, Any], fields: Collection[str]) -> Iterator[tuple[str, str]]:
    """Yield the fields of a row that hold a narrative, and the narratives."""
    for name, value in row.items():
        is_narrative = name in fields and isinstance(value, str) and not is_missing(value)
        if is_narrative and not (name == "findings" and row.get("grounded_findings")):
            yield name, value.strip()


def _split(
    rows: Mapping[str, Mapping[str, Any]], fields: Collection[str], splitter: ExplainingSplitter
) -> tuple[list[dict[str, Any]], list[dict[str, Any]], dict[str, str], list[tuple[str, list[str], str]]]:
    """Split narratives, equal ones once, into rows, removed parts, failures by id, and sentences of each narrative."""
    texts = list(dict.fromkeys(text for row in rows.values() for _, text in _narratives(row, fields) if text))
    splits: dict[str, Any] = {"": [], **dict(zip(texts, splitter.explain(texts), strict=True))}
    new_rows, all_removed, failures = list[dict[str, Any]](), list[dict[str, Any]](), dict[str, str]()
    compared: list[tuple[str, list[str], str]] = []
    for sample_id, row in rows.items():
        narratives = list(_narratives(row, fields))
        if failed := [splits[text] for _, text in narratives if isinstance(splits[text], Failure)]:
            failures[sample_id] = failed[0].reason
            continue
        new_row = {**row, **dict.fromkeys(find_missing([("", row)], fields))}
        for name, text in narratives:
            sentences = flatten_split(splits[text])
            new_row["grounded_findings" if name == "findings" else name] = [{"text": each} for each in sentences]
            compared.append((f"{sample_id} {name}", sentences, text))
            removed = locate_removed(text, splits[text])
            all_removed += [{"sample_id": sample_id, "field": name, **asdict(part)} for part in removed]
        new_rows.append(new_row)
    return new_rows, all_removed, failures, compared
