"""Results folders for the tests of pages: one as `radfact.results.radfact_writer` writes it, and runs to explore."""

from __future__ import annotations

import base64
import json
import threading
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import yaml
from PIL import Image

from radfact import Pair, Sentence, evaluate
from radfact.io.jsonl import write_json, write_jsonl
from radfact.pages.access import Access, listen, page_url
from radfact.pages.server import Explorer, make_server
from radfact.results.options import PageOptions
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


# Two runs of one set, and the explorer's server

TOKEN = "a-token-of-more-than-twenty-letters"
EXPLORER = yaml.safe_load(Path(__file__).with_name("explorer.yaml").read_text("utf-8"))
REFERENCES, FIRST, SECOND = (
    {name: [Sentence.model_validate(row) for row in report] for name, report in EXPLORER[key].items()}
    for key in ("references", "first", "second")
)


def write_runs(root: Path) -> Path:
    """Write the runs `first`, which has one study more, and `second` below a folder, with images."""
    write_image(root / "data" / "frontal.png", 400, 200)
    images = {"frontal": "frontal.png", "lateral": "frontal.png"}
    rows = ({"sample_id": name, **images} if name == "effusion" else {"sample_id": name} for name in REFERENCES)
    manifest = write_manifest(root / "data" / "manifest.jsonl", *rows)
    for name, candidates in (("first", FIRST), ("second", SECOND)):
        pairs = [Pair(key, report, REFERENCES[key]) for key, report in candidates.items()]
        metrics = ["radfact", "findings"]
        page = PageOptions(manifest=manifest)
        evaluate(pairs, metrics, judge="offline", bootstrap=0, out=root / "runs" / name, page=page)
    return root / "runs"


@contextmanager
def serve_explorer(*folders: Path, token: str | None = TOKEN) -> Iterator[str]:
    """Serve the explorer of some folders on a free port, in a thread; return its address."""
    listener = listen("127.0.0.1", 0)
    address = page_url("127.0.0.1", listener.getsockname()[1], None).rstrip("/")
    server = make_server(Explorer(folders), listener, Access("127.0.0.1", token, "radfact_view", "Lax"))
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    with TemporaryDirectory() as cache, pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", cache)
        yield address
    server.shutdown()
    server.server_close()
