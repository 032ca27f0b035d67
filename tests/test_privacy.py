"""No error quotes a report: a marked text in the place of every value of every input file."""

import csv
import io
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from fault_inputs import SENTENCES

from maira.data.annotation.results import read_label_studio
from maira.data.manifest import read_manifest
from maira.data.sources.table import read_table
from maira.data.study import Study
from maira.grounding.phrases import read_phrases
from radfact.errors import InputError
from radfact.io.coco import read_coco
from radfact.io.pairs import read_candidates_and_references, read_pairs
from radfact.judges.check import load_labeled_queries
from radfact.meta.datasets.layouts import read_ratings
from radfact.meta.datasets.preferences import read_preferences
from radfact.meta.datasets.reports import read_reports
from radfact.meta.injection.records import read_injected

SECRET = "Marked words about the patient."
FILES = yaml.safe_load(Path(__file__).with_name("report_files.yaml").read_text("utf-8"))


def _drafts(path: Path) -> object:
    references = path.parent / "references.jsonl"
    references.write_text(json.dumps(FILES["manifest.jsonl"]))
    return read_candidates_and_references(path, references)


def _annotations(path: Path) -> object:
    study = Study.model_validate(FILES["manifest.jsonl"] | {"phrases": FILES["drafts.jsonl"]["report"]})
    return read_label_studio(path, [study])


READERS: dict[str, Callable[[Path], object]] = {
    "pairs.json": read_pairs,
    "pairs.csv": read_pairs,
    "drafts.jsonl": _drafts,
    "manifest.jsonl": read_manifest,
    "studies.jsonl": read_table,
    "studies.csv": read_table,
    "phrases.jsonl": lambda path: read_phrases(path, {"a"}),
    "coco.json": read_coco,
    "export.json": _annotations,
    "labeled.json": load_labeled_queries,
    "ratings.csv": lambda path: read_ratings(path, better="lower"),
    "preferences.csv": read_preferences,
    "reports.csv": read_reports,
    "injected.jsonl": read_injected,
}
"""Reader of every file that has reports."""


def _with_secret(value: Any) -> Iterator[Any]:
    """Yield a JSON value with the marked text in the place of each of its parts, of each name, and as a list."""
    yield from (SECRET, [SECRET], {SECRET: SECRET})
    keys = range(len(value)) if isinstance(value, list) else list(value) if isinstance(value, dict) else ()
    # Errors name the id of a sample.
    for key in (key for key in keys if not str(key).endswith("id")):
        for part in _with_secret(value[key]):
            changed = value.copy()
            changed[key] = part
            yield changed


def _damaged(name: str, content: Any) -> Iterator[str]:
    if name.endswith(".csv"):
        rows = list(csv.reader(content.format(SECRET, SECRET.upper()).splitlines()))
        tables = [rows[1:]]
        for place, row in enumerate(rows):
            tables += [
                [*rows[:place], [*row[:cell], SECRET, *row[cell + 1 :]], *rows[place + 1 :]] for cell in range(len(row))
            ]
        for table in tables:
            written = io.StringIO()
            csv.writer(written).writerows(table)
            yield written.getvalue()
        yield written.getvalue() + f'"{SECRET}'
        return
    for value in _with_secret(content):
        yield json.dumps(value)
    yield f'{json.dumps(content)[:-3]} {SECRET}"'


@pytest.mark.parametrize("name", READERS)
def test_an_error_never_quotes_a_text(name: str, tmp_path: Path) -> None:
    content, read, path = FILES[name], READERS[name], tmp_path / name
    path.write_text(content.format(*SENTENCES) if isinstance(content, str) else json.dumps(content))
    read(path)
    errors = []
    for damaged in _damaged(name, content):
        path.write_text(damaged)
        try:
            read(path)
        except InputError as error:
            errors.append(str(error).removeprefix(str(path)))
    assert errors
    words = SECRET.lower().removesuffix(".")
    assert [error for error in errors if words in error.lower()] == []
