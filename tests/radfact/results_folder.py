"""A small results folder for the tests of the page, written as `radfact.results.radfact_writer` writes it."""

from __future__ import annotations

import base64
import json
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from radfact.io.jsonl import write_json, write_jsonl
from radfact.results.schema import VERSION

if TYPE_CHECKING:
    from playwright.sync_api import Page

HOSTILE = "</script><script>document.title = 'taken'</script><img src=x onerror=\"document.title='taken'\">"

FIGURES = ("logical_precision", "logical_recall", "logical_f1")


def box(x_min: float, y_min: float, x_max: float, y_max: float) -> dict[str, float]:
    return {"x_min": x_min, "y_min": y_min, "x_max": x_max, "y_max": y_max}


def ring() -> dict[str, Any]:
    """A mask of 8 x 8 pixels: the square of rows and columns 2 to 5 without its four pixels in the middle."""
    return {"size": [8, 8], "counts": [18, 4, 4, 1, 2, 1, 4, 1, 2, 1, 4, 4, 18]}


def sentence(sample_id: str, side: str, index: int, text: str, **fields: Any) -> dict[str, Any]:
    row: dict[str, Any] = {
        "boxes": None,
        "status": "not_entailment",
        "evidence": [],
        "spatial": "no_boxes",
        "why": None,
    }
    return {"sample_id": sample_id, "side": side, "index": index, "text": text, **row, **fields}


def figure(point: float | None, **fields: Any) -> dict[str, Any]:
    names = ("point", "low", "q25", "median", "q75", "high")
    offsets = (0.0, -0.1, -0.05, 0.01, 0.05, 0.1)
    values = {name: None if point is None else point + offset for name, offset in zip(names, offsets, strict=True)}
    return {**values, "n": 2, "direction": "higher", **fields}


def write_folder(folder: Path) -> Path:
    """Three studies in input order `good`, `bad`, `failed`; the first has two boxes a side, the second hostile text."""
    figures = {"logical_precision": figure(0.75), "logical_recall": figure(0.5), "logical_f1": figure(0.6)}
    judge = {"name": "tester", "note": "Figures of this judge stand alone."}
    metrics, counts = {"radfact": {"scores": list(FIGURES)}}, {"samples": 3, "excluded": 1}
    scores = {"version": VERSION, "scores": figures, "judge": judge, "counts": counts, "metrics": metrics}
    write_json(folder / "scores.json", scores)
    write_json(folder / "run.json", {"version": VERSION, "seed": 42})
    scored = {"good": 1.0, "bad": 0.25}
    write_jsonl(
        folder / "samples.jsonl",
        [
            {
                "sample_id": name,
                **dict.fromkeys(FIGURES, scored.get(name)),
                "failure": None if name in scored else "no valid answer",
            }
            for name in ("good", "bad", "failed")
        ],
    )
    entailed = {"status": "entailment", "spatial": "entailed"}
    left, right = box(0.5, 0.25, 0.75, 0.75), box(0.125, 0.5, 0.375, 0.875)
    write_jsonl(
        folder / "sentences.jsonl",
        [
            sentence("good", "candidate", 0, "Nodule in the left mid zone.", boxes=[left], evidence=[1], **entailed),
            sentence("good", "candidate", 1, "Small effusion on the right.", boxes=[right], evidence=[0], **entailed),
            sentence("good", "candidate", 2, "Trachea central.", why="nothing said of the trachea"),
            sentence("good", "reference", 0, "Right-sided effusion.", boxes=[right], evidence=[1], **entailed),
            sentence("good", "reference", 1, "Left nodule.", boxes=[left], evidence=[0], **entailed),
            sentence("bad", "candidate", 0, HOSTILE),
            sentence("bad", "reference", 0, "Clavicle fracture."),
            sentence("failed", "candidate", 0, "Aorta unfolded.", status=None, spatial=None),
        ],
    )
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
