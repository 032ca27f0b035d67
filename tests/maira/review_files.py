"""What the tests of the review server review: drafts with their studies and verdicts, and a way to change them."""

import os
import re
import subprocess
import sys
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from long_values import DATA
from PIL import Image

from maira.review.changes import Review, change_adapter
from maira.review.store import Store
from maira.review.studies import read_review_drafts
from maira.review.times import ChangeTimes
from radfact.io.jsonl import write_jsonl


def box(*corners: float) -> dict[str, float]:
    return dict(zip(("x_min", "y_min", "x_max", "y_max"), corners, strict=True))


CORNERS = [0.25, 0.25, 0.5, 0.75]
BOX = box(*CORNERS)
REPORT: list[dict[str, Any]] = [{"text": "The heart size is normal.", "boxes": [BOX]}, {"text": "No pleural effusion."}]
REFERENCE: list[dict[str, Any]] = [{"text": "The heart is enlarged.", "boxes": [BOX]}]
SENTENCES = ["The heart size is normal.", "The bony structures are intact.", "No pleural effusion."]
CASES: dict[str, Any] = yaml.safe_load(Path(__file__).with_name("review_cases.yaml").read_text("utf-8"))


def write_set(
    folder: Path, reports: Mapping[str, Any], studies: Mapping[str, dict[str, Any]] | None = None
) -> tuple[Path, Path]:
    """Write drafts and a manifest with one small radiograph, and give both paths."""
    Image.new("L", (40, 20), 90).save(folder / "radiograph.png")
    rows = [
        {"sample_id": key, "frontal": "radiograph.png", "grounded_findings": REFERENCE, **(studies or {}).get(key, {})}
        for key in reports
    ]
    write_jsonl(folder / "manifest.jsonl", rows)
    write_jsonl(folder / "drafts.jsonl", [{"sample_id": key, "report": report} for key, report in reports.items()])
    return folder / "drafts.jsonl", folder / "manifest.jsonl"


def write_review_set(folder: Path, count: int = 3, *, texts: list[str] | None = None, bare: int | None = None) -> Path:
    """Studies `s1`, `s2`, ... of three sentences, the first with a box; `s1` has every input, `bare` nothing."""
    radiograph = Image.new("L", (400, 300), 0)
    radiograph.paste(200, (200, 0, 400, 300))
    radiograph.save(folder / "frontal.png")
    Image.new("L", (200, 300), 90).save(folder / "lateral.png")
    Image.new("L", (400, 300), 60).save(folder / "prior.png")
    first, *others = texts or SENTENCES
    draft = [{"text": first, "boxes": [box(0.1, 0.2, 0.3, 0.6)]}, *({"text": text} for text in others)]
    reference = [
        {"text": "The heart is mildly enlarged.", "boxes": [box(0.6, 0.2, 0.8, 0.6)]},
        {"text": "No effusion."},
    ]
    shared = {"frontal": "frontal.png", "indication": "Cough.", "grounded_findings": reference}
    studies: dict[str, dict[str, Any]] = {f"s{number}": {**shared} for number in range(1, count + 1)}
    studies["s1"] |= DATA["other inputs"]
    if bare is not None:
        studies[f"s{bare}"] = {"frontal": "frontal.png", "grounded_findings": None}
    write_set(folder, {name: [] if name == f"s{bare}" else draft for name in studies}, studies)
    return folder


def write_verdicts(folder: Path) -> Path:
    """RadFact's results for the first study of `write_review_set`: all entailed but the first sentence."""
    rows = [
        {
            "sample_id": "s1",
            "side": "candidate",
            "index": index,
            "text": text,
            "status": "entailment" if index else "not_entailment",
            "evidence": [1] if index else [],
            "why": "because",
        }
        for index, text in enumerate(SENTENCES)
    ]
    write_jsonl(folder / "results" / "sentences.jsonl", rows)
    return folder / "results"


def new_store(folder: Path, reports: Mapping[str, Any], readers: Sequence[str] = ("Ada",)) -> Store:
    """A review of these reports with its readers."""
    drafts, _ = write_set(folder, reports)
    store = Store(folder / "review.sqlite", read_review_drafts(drafts))
    for name in readers:
        store.add_reader(name)
    return store


def change(store: Store, kind: str, number: int = 1, reader: str = "Ada", **fields: Any) -> Review:
    """Make a change on the present state."""
    new_change = change_adapter.validate_python({"kind": kind, **fields})
    version = store.review(reader, number).version
    return store.add_change(reader, number, uuid.uuid4().hex, version, new_change)


def finish(store: Store, number: int = 1, reader: str = "Ada", severity: int = 0) -> Review:
    """Finish a study after all steps, with a severity for the corrections that have none."""
    for step in (2, 3, 4):
        change(store, "step", number, reader, step=step)
    for correction in store.review(reader, number).state.corrections:
        if correction.severity is None:
            change(store, "assess", number, reader, sentence=correction.id, severity=severity)
    return change(store, "finish", number, reader)


def change_times(store: Store, reader: str = "Ada") -> dict[int, ChangeTimes]:
    reviews = enumerate(store.reviews(reader), 1)
    return {number: (review.began, review.finished) for number, review in reviews if review.began}


def start_server(folder: Path, *options: str) -> tuple[subprocess.Popen[str], str, str]:
    """The command itself on the set of a folder, so that it can be killed, its address, and what it printed so far."""
    command = [sys.executable, "-m", "maira", "review", "drafts.jsonl", "--manifest", "manifest.jsonl", "--no-browser"]
    # Lines as they come, in one piece.
    root = str(Path(__file__).parents[2])
    server = subprocess.Popen(
        [*command, "--port", "0", *options],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": root, "PYTHONUNBUFFERED": "1", "COLUMNS": "200"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert server.stdout is not None
    printed = ""
    for line in server.stdout:
        printed += line
        if address := re.search(r"https?://127\.0\.0\.1:\d+/\?\S+", line):
            return server, address[0], printed
    raise AssertionError(f"the server did not start: {printed}")
