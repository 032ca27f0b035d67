"""`radfact split`: split narratives into single-finding sentences that can be read, edited and scored."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from radfact.cli.command import with_options
from radfact.cli.options import INPUT, OUTPUT, PriceOption
from radfact.cli.tables import new_console, say
from radfact.errors import ErrorCode, ExitCode, Failure, InputError
from radfact.io.csv_tables import read_csv
from radfact.io.jsonl import read_jsonl, write_json, write_jsonl
from radfact.io.outputs import Output
from radfact.io.pairs import read_pairs, read_references
from radfact.judges.loading import load_splitter
from radfact.judges.options import JudgeOptions
from radfact.judges.protocol import ExplainingSplitter, flatten_split, locate_removed
from radfact.options import only, rename_fields
from radfact.progress import ProgressDisplay, parse_price

_PAIR_FIELDS = ("prediction", "target")
_REPORT_FIELDS = ("report", "findings")


@with_options
def split(
    file: Annotated[
        Path,
        typer.Argument(help="Pairs (.csv), or drafts or references (.jsonl).", rich_help_panel=INPUT),
    ],
    out: Annotated[
        Path,
        typer.Option(metavar="OUT", help="Sentences: .json for pairs, else .jsonl.", rich_help_panel=OUTPUT),
        Output("file", siblings=("{stem}.removed.jsonl",)),
    ],
    judge: Annotated[JudgeOptions, only("judge", "judge_args", "base_url", "few_shots", "concurrency", "max_invalid")],
    price: PriceOption = None,
) -> None:
    """Split narratives into sentences of one finding each, and list what was removed.

    OUT has the layout of grounded reports, without boxes: read and edit the sentences, then score OUT.
    OUT.removed.jsonl lists the removed parts. Reports that already are sentences are unchanged. 'maira sentences'
    writes a manifest instead.
    """
    is_pairs = file.suffix.lower() == ".csv"
    expected, fields = (".json", _PAIR_FIELDS) if is_pairs else (".jsonl", _REPORT_FIELDS)
    if out.suffix.lower() != expected:
        message = f"expected a {expected} file for the sentences of {file.name}, found '{out.name}'"
        raise InputError(message, code=ErrorCode.INVALID_OPTION, field="out")
    rows = _read_rows(file)
    judge, token_price = judge.or_environment(), parse_price(price)
    with rename_fields({"splitter": "judge", "splitter_args": "judge_args"}):
        splitter = load_splitter(
            judge.required_judge,
            base_url=judge.base_url,
            splitter_args=judge.judge_args,
            few_shots=judge.few_shots,
            concurrency=judge.concurrency,
            max_invalid=judge.max_invalid,
            cache=out.parent / "cache",
        )
    with ProgressDisplay(new_console(stderr=True), {"splitting": splitter.usage}, token_price):
        new_rows, removed, failures, sentences = _split(rows, fields, splitter)
    removed_file = out.with_name(f"{out.stem}.removed.jsonl")
    (write_json if is_pairs else write_jsonl)(out, new_rows)
    write_jsonl(removed_file, removed)
    console = new_console()
    for sample_id, reason in failures.items():
        say(console, f"{sample_id}: {reason}", style="yellow", wrap=False)
    say(console, f"{len(new_rows)} of {len(rows)} samples, {sentences} sentences, {len(removed)} parts removed")
    for reason, count in Counter(row["reason"] for row in removed).most_common():
        say(console, f"  {count} x {reason or 'no reason given'}")
    say(console, f"Written to {out} and {removed_file}", wrap=False)
    if failures:
        raise typer.Exit(ExitCode.INCOMPLETE)


def _read_rows(file: Path) -> list[tuple[str, dict[str, Any]]]:
    """Return the id and the columns of each sample; the file is checked as before scoring."""
    if file.suffix.lower() == ".csv":
        ids = [pair.sample_id for pair in read_pairs(file, cluster="none")]
        return list(zip(ids, (dict(cells) for _, cells in read_csv(file)[1]), strict=True))
    if file.suffix.lower() == ".jsonl":
        reports = read_references(file)
        rows = [row for _, row in read_jsonl(file)]
        return [(row["sample_id"], row) for row in rows if row["sample_id"] in reports]
    message = "expected pairs (.csv), or drafts or references (.jsonl)"
    raise InputError(message, code=ErrorCode.INVALID_FORMAT, file=file)


def _narratives(row: Mapping[str, Any], fields: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield the fields of a row that hold a narrative, and the narratives."""
    for name in fields:
        if isinstance(value := row.get(name), str) and not (name == "findings" and row.get("grounded_findings")):
            yield name, value.strip()


def _split(
    rows: Sequence[tuple[str, dict[str, Any]]], fields: Sequence[str], splitter: ExplainingSplitter
) -> tuple[list[dict[str, Any]], list[dict[str, Any]], dict[str, str], int]:
    """Split narratives, equal ones once; return rows, removed parts, failures by id, and the number of sentences."""
    texts = list(dict.fromkeys(text for _, row in rows for _, text in _narratives(row, fields) if text))
    splits: dict[str, Any] = {"": [], **dict(zip(texts, splitter.explain(texts), strict=True))}
    new_rows, all_removed, failures, count = list[dict[str, Any]](), list[dict[str, Any]](), dict[str, str](), 0
    for sample_id, row in rows:
        narratives = list(_narratives(row, fields))
        if failed := [splits[text] for _, text in narratives if isinstance(splits[text], Failure)]:
            failures[sample_id] = failed[0].reason
            continue
        new_row = dict(row)
        for name, text in narratives:
            sentences = [{"text": sentence} for sentence in flatten_split(splits[text])]
            new_row["grounded_findings" if name == "findings" else name] = sentences
            count += len(sentences)
            removed = locate_removed(text, splits[text])
            all_removed += [{"sample_id": sample_id, "field": name, **asdict(part)} for part in removed]
        new_rows.append(new_row)
    return new_rows, all_removed, failures, count
