"""Two runs of one set for the tests of the explorer, and its server."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import yaml
from results_folder import write_image, write_manifest

from radfact import Pair, Sentence, evaluate
from radfact.pages.access import Access, listen, page_url
from radfact.pages.server import Explorer, make_server
from radfact.results.options import PageOptions

TOKEN = "a-token-of-more-than-twenty-letters"
CASES = yaml.safe_load(Path(__file__).with_name("explorer.yaml").read_text("utf-8"))
REFERENCES, FIRST, SECOND = (
    {name: [Sentence.model_validate(row) for row in report] for name, report in CASES[key].items()}
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
    yield address
    server.shutdown()
    server.server_close()
