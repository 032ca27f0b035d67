"""A small results folder for the tests of the page, written as `radfact.results.radfact_writer` writes it."""

from __future__ import annotations

import base64
import json
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import yaml
from PIL import Image

from radfact.io.jsonl import write_json, write_jsonl
from radfact.results.schema import VERSION

if TYPE_CHECKING:
    from playwright.sync_api import Page

ROWS = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text("utf-8"))
HOSTILE = ROWS["sentences"][5][0][3]
"""The text of a sentence that would be markup."""


def sentence(sample_id: str, side: str, index: int, text: str, **fields: Any) -> dict[str, Any]:
    place = {"sample_id": sample_id, "side": side, "index": index, "text": text}
    verdict = {"boxes": None, "status": "not_entailment", "evidence": [], "spatial": "no_boxes", "why": None}
    return {**place, **verdict, **fields}


def figure(point: float | None, **fields: Any) -> dict[str, Any]:
    offsets = {"point": 0.0, "low": -0.1, "q25": -0.05, "median": 0.01, "q75": 0.05, "high": 0.1}
    values = {name: None if point is None else point + offset for name, offset in offsets.items()}
    return {**values, "n": 2, "direction": "higher", **fields}


def write_folder(folder: Path) -> Path:
    """Write the three studies of `results_folder.yaml`."""
    scores = {"logical_precision": figure(0.75), "logical_recall": figure(0.5), "logical_f1": figure(0.6)}
    judge = {"name": "tester", "note": "Figures of this judge stand alone."}
    metrics, counts = {"radfact": {"scores": list(scores)}}, {"samples": 3, "excluded": 1}
    record = {"version": VERSION, "scores": scores, "judge": judge, "counts": counts, "metrics": metrics}
    write_json(folder / "scores.json", record)
    write_json(folder / "run.json", {"version": VERSION, "seed": 42})
    write_jsonl(folder / "samples.jsonl", ROWS["samples"])
    rows = [sentence(*place_and_text, **fields) for place_and_text, fields in ROWS["sentences"]]
    write_jsonl(folder / "sentences.jsonl", rows)
    return folder


def write_image(path: Path, width: int = 40, height: int = 30, dtype: type[np.generic] = np.uint8) -> Path:
    ramp = np.linspace(0, np.iinfo(dtype).max, width * height).reshape(height, width).astype(dtype)  # type: ignore[type-var]
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(ramp).save(path)
    return path


def write_manifest(path: Path, *rows: dict[str, Any]) -> Path:
    write_jsonl(path, rows)
    return path


def page_data(path: Path) -> dict[str, Any]:
    """Return the data of the script of a page."""
    packed = path.read_text("utf-8").split('id="page-data">')[1].split("</script>")[0]
    data: dict[str, Any] = json.loads(zlib.decompress(base64.b64decode(packed)))
    return data


def await_script(page: Page) -> None:
    """Wait until the script of a page has read its data, and with it has drawn the page."""
    page.wait_for_function("() => !document.getElementById('page-data') || !document.scripts[1].textContent")


def cards(page: Page) -> list[str]:
    """Return the ids of the studies that a page lists, in one step, since it may replace its cards meanwhile."""
    names: list[str] = page.locator("#study-list article").evaluate_all("nodes => nodes.map((n) => n.dataset.sample)")
    return names
