"""No error quotes a report: a marked text in the place of every value of every input file."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
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
BOX = {"x_min": 0.1, "y_min": 0.1, "x_max": 0.5, "y_max": 0.5}
STUDY = {
    "sample_id": "a",
    "frontal": "a.png",
    "findings": SENTENCES[0],
    "grounded_findings": [{"text": SENTENCES[0], "boxes": [BOX]}],
    "labels": [{"kind": "mass", "side": "left", "boxes": [BOX]}],
    "split": "test",
}
RESULT = {"type": "choices", "from_name": "label_0", "to_name": "image", "value": {"choices": ["A. Finding"]}}
TASK = {"data": {"sample_id": "a", "phrases": [{"value": f"1. {SENTENCES[0]}"}]}, "annotations": [{"result": [RESULT]}]}
COCO = {
    "images": [{"id": 1, "file_name": "a.png", "width": 60, "height": 40}],
    "annotations": [{"image_id": 1, "category_id": 5, "bbox": [2, 1, 4, 2], "caption": SENTENCES[0]}],
    "categories": [{"id": 5, "name": "Nodule"}],
}
RATED = "id,site,reference,candidate,expert:a,expert:b\n1,chest,{0},{1},1,2\n2,chest,{1},{0},0,1\n"
PREFERRED = "id,reference,candidate_1,candidate_2,confidence,expert_a\n1,{0},{1},{0},3,first\n"


QUERY = {
    "input": {"phrases_A": [SENTENCES[0]], "phrases_B": [SENTENCES[1]]},
    "output": {
        "phrases_A_evidenced": [{"phrase": SENTENCES[0], "evidence": [SENTENCES[1]], "status": "entailment"}],
        "phrases_B_evidenced": [],
    },
}
INJECTED = {
    "sample_id": "1",
    "source_id": "1",
    "reference": SENTENCES[0],
    "candidate": SENTENCES[1],
    "category": "a",
    "changes": [],
}


def _drafts(path: Path) -> object:
    references = path.parent / "references.jsonl"
    references.write_text(json.dumps(STUDY))
    return read_candidates_and_references(path, references)


READERS: dict[str, tuple[str, Any, Callable[[Path], object]]] = {
    "pairs": ("pairs.json", [{"example_id": "1", "prediction": [], "target": STUDY["grounded_findings"]}], read_pairs),
    "narratives": ("pairs.csv", "example_id,prediction,target\n1,{0},{1}\n2,{0},{1}\n", read_pairs),
    "drafts": ("drafts.jsonl", {"sample_id": "a", "report": STUDY["grounded_findings"]}, _drafts),
    "manifest": ("manifest.jsonl", STUDY, read_manifest),
    "table": ("studies.jsonl", STUDY, read_table),
    "CSV table": ("studies.csv", "sample_id,frontal,findings,split\na,a.png,{0},test\n", read_table),
    "phrases": ("phrases.jsonl", {"sample_id": "a", "phrase": SENTENCES[0]}, lambda path: read_phrases(path, {"a"})),
    "COCO": ("coco.json", COCO, read_coco),
    "annotations": (
        "export.json",
        [TASK],
        lambda path: read_label_studio(path, [Study.model_validate(STUDY | {"phrases": STUDY["grounded_findings"]})]),
    ),
    "labeled": ("labeled.json", [QUERY], load_labeled_queries),
    "ratings": ("ratings.csv", RATED, lambda path: read_ratings(path, better="lower")),
    "preferences": ("preferences.csv", PREFERRED, read_preferences),
    "reports": ("reports.csv", "id,site,report\n1,chest,{0}\n2,chest,{1}\n", read_reports),
    "injected": ("injected.jsonl", INJECTED, read_injected),
}
"""File name, valid content and reader of every file that has reports."""


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


@pytest.mark.parametrize("reader", READERS)
def test_an_error_never_quotes_a_text(reader: str, tmp_path: Path) -> None:
    name, content, read = READERS[reader]
    path = tmp_path / name
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
