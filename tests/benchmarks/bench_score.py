"""How long scoring takes and how much memory, from files to a results folder: seconds of every step and the peak.

    python tests/benchmarks/bench_score.py --studies 15000

Reports are made of findings, sides, zones, degrees and sizes drawn at random, with two to six boxes each; candidates
keep most of their reference. The judge is the offline one unless `--verbatim` asks for one that costs nothing, which
leaves reading, figures, bootstrap and writing to be measured.
"""

from __future__ import annotations

import argparse
import random
import resource
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from radfact import RadFact, load_judge, read_candidates_and_references, write_results
from radfact.html.page import write_page
from radfact.io.jsonl import write_jsonl

FINDINGS = ["pleural effusion", "opacity", "consolidation", "nodule", "atelectasis", "pneumothorax", "scarring", "mass"]
DEGREES = ["Small", "Moderate", "Large", "Mild", "New", "Unchanged", "Increased", "Decreased", "Possible", "Persistent"]
PLACES = [
    f"{side} {zone}" for side in ("left", "right") for zone in ("base", "apex", "mid zone", "upper lobe", "hilum")
]
NORMAL = [
    "The heart is normal in size.",
    "No pleural effusion.",
    "No pneumothorax.",
    "The lungs are clear.",
    "The mediastinal contours are unremarkable.",
    "No acute osseous abnormality.",
    "The aorta is tortuous.",
    "There is a right internal jugular line ending in the superior vena cava.",
]


def box(draw: random.Random) -> dict[str, float]:
    (x0, x1), (y0, y1) = (sorted((round(draw.random(), 3), round(draw.random(), 3))) for _ in range(2))
    return {"x_min": x0, "y_min": y0, "x_max": x1, "y_max": y1}


def size(draw: random.Random) -> str:
    """Some of many, so that most sentences are read for the first time, as in real reports."""
    return f"measuring {draw.randint(3, 60)} x {draw.randint(3, 60)} mm"


def report(draw: random.Random) -> list[dict[str, Any]]:
    """Four to seven sentences, with two to six boxes in all."""
    located = [
        {
            "text": f"{draw.choice(DEGREES)} {draw.choice(FINDINGS)} in the {draw.choice(PLACES)}, {size(draw)}.",
            "boxes": [box(draw) for _ in range(draw.randint(1, 2))],
        }
        for _ in range(draw.randint(2, 3))
    ]
    return located + [{"text": text, "boxes": None} for text in draw.sample(NORMAL, draw.randint(2, 4))]


def write_studies(folder: Path, studies: int) -> tuple[Path, Path]:
    """Drafts and a manifest."""
    draw = random.Random(0)
    drafts: list[dict[str, Any]] = []
    manifest: list[dict[str, Any]] = []
    for number in range(studies):
        reference = report(draw)
        candidate = [one for one in reference if draw.random() < 0.6] + report(draw)[:3]
        manifest.append({"sample_id": f"study-{number}", "grounded_findings": reference})
        drafts.append({"sample_id": f"study-{number}", "report": candidate})
    paths = folder / "drafts.jsonl", folder / "manifest.jsonl"
    for path, rows in zip(paths, (drafts, manifest), strict=True):
        write_jsonl(path, rows)
    return paths


def verbatim(premises: Sequence[str], hypothesis: str) -> tuple[bool, list[int]]:
    """Entailed is what is said in the same words."""
    return (True, [premises.index(hypothesis)]) if hypothesis in premises else (False, [])


@contextmanager
def timed(step: str) -> Iterator[None]:
    """Print the seconds of the block and the peak of memory so far."""
    started = time.perf_counter()
    yield
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 << (30 if sys.platform == "darwin" else 20))
    print(f"{step:<28} {time.perf_counter() - started:8.2f} s   peak {peak:5.2f} GiB")


def main() -> None:
    """Print one line a step."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--studies", type=int, default=15_000)
    parser.add_argument("--verbatim", action="store_true", help="a judge that costs nothing")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        drafts, manifest = write_studies(folder, given.studies)
        judge = verbatim if given.verbatim else load_judge("offline")
        with timed("all"):
            with timed("read"):
                pairs = read_candidates_and_references(drafts, manifest)
            with timed("score, with 500 replicates"):
                result = RadFact(judge).score(pairs)
            with timed("write"):
                write_results(result, folder / "results")
            counts = result.counts
            del pairs, result
            with timed("page"):
                write_page(folder / "results")
        print(", ".join(f"{count} {name.replace('_', ' ')}" for name, count in counts.items()))


if __name__ == "__main__":
    main()
