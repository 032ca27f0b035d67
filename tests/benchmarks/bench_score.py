"""Time of every step of scoring, from files to a results folder, and peak memory.

    python tests/benchmarks/bench_score.py --studies 15000

Reports combine random findings, sides, zones, degrees and sizes, and have two to six boxes each; candidates keep most
sentences of their reference. The judge is the offline one.

    OMP_NUM_THREADS=1 python tests/benchmarks/bench_score.py --metrics
    OMP_NUM_THREADS=1 python tests/benchmarks/bench_score.py --metrics --weights FOLDER

prints instead the processor time of each metric for one pair of such reports, in milliseconds, after a few other pairs,
so that imports and weights are loaded. Metrics with a language model query one that answers at once, so that only our
part is measured, including retries of its invalid responses: add the time of your model, and see `cost` in `radfact
metrics` for its number of calls. A metric without its weights or packages has no time.
"""

import argparse
import random
import resource
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from radfact import Pair, RadFact, load_judge, read_candidates_and_references, write_results
from radfact.api import MetricSet
from radfact.io.jsonl import write_jsonl
from radfact.metrics.registry import entries
from radfact.pages.page import write_page

WARM_UP = 5
TEXTS: dict[str, list[str]] = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))


def random_box(rng: random.Random) -> dict[str, float]:
    (x0, x1), (y0, y1) = (sorted((round(rng.random(), 3), round(rng.random(), 3))) for _ in range(2))
    return {"x_min": x0, "y_min": y0, "x_max": x1, "y_max": y1}


def random_sentence(rng: random.Random) -> str:
    """Return a finding with one of many sizes, so that most sentences differ, as in real reports."""
    degree, finding, place = (rng.choice(TEXTS[kind]) for kind in ("degrees", "findings", "places"))
    return f"{degree} {finding} in the {place}, measuring {rng.randint(3, 60)} x {rng.randint(3, 60)} mm."


def random_report(rng: random.Random) -> list[dict[str, Any]]:
    """Return four to seven sentences with two to six boxes in total."""
    located = [
        {"text": random_sentence(rng), "boxes": [random_box(rng) for _ in range(rng.randint(1, 2))]}
        for _ in range(rng.randint(2, 3))
    ]
    return located + [{"text": text, "boxes": None} for text in rng.sample(TEXTS["normal"], rng.randint(2, 4))]


def write_studies(folder: Path, studies: int) -> tuple[Path, Path]:
    """Write drafts and a manifest, and return their paths."""
    rng, drafts, manifest = random.Random(0), [], []
    for number in range(studies):
        reference = random_report(rng)
        candidate = [sentence for sentence in reference if rng.random() < 0.6] + random_report(rng)[:3]
        manifest.append({"sample_id": f"study-{number}", "grounded_findings": reference})
        drafts.append({"sample_id": f"study-{number}", "report": candidate})
    write_jsonl(folder / "drafts.jsonl", drafts)
    write_jsonl(folder / "manifest.jsonl", manifest)
    return folder / "drafts.jsonl", folder / "manifest.jsonl"


@contextmanager
def print_time(step: str) -> Iterator[None]:
    """Print the seconds of the block and the peak memory so far."""
    started = time.perf_counter()
    yield
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 << (30 if sys.platform == "darwin" else 20))
    print(f"{step:<28} {time.perf_counter() - started:8.2f} s   peak {peak:5.2f} GiB")


def print_milliseconds(count: int, weights: dict[str, Path]) -> None:
    """Print a table of the time of one pair by metric."""
    rng = random.Random(0)
    texts = [" ".join(sentence["text"] for sentence in random_report(rng)) for _ in range(2 * (count + WARM_UP))]
    pairs = [Pair(str(number), *texts[2 * number : 2 * number + 2]) for number in range(count + WARM_UP)]
    print("| metric | ms per pair | note |\n|---|---|---|")
    for name, entry in entries().items():
        needs_model = entry.load().requirements.judge == "model"
        judge = {"judge": "mock:silent", "judge_args": {"responses": "none"}} if needs_model else {"judge": "offline"}
        try:
            with MetricSet(name, weights=weights, **judge) as metrics:
                ((_, metric),) = metrics.metrics.values()
                metric.score(pairs[:WARM_UP])
                started = time.process_time()
                metric.score(pairs[WARM_UP:])
                value, note = time.process_time() - started, "without the model" if needs_model else ""
        except Exception as error:  # continue with the next metric
            value, note = None, " ".join(str(error).split())[:60]
        print(f"| `{name}` | {'-' if value is None else f'{1000 * value / count:.2f}'} | {note} |", flush=True)


def main() -> None:
    """Print one line per step."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--studies", type=int, default=15_000)
    parser.add_argument("--metrics", action="store_true", help="time of each metric for one pair, of 300")
    parser.add_argument("--weights", type=Path, metavar="FOLDER", help="folder with a folder of weights per name")
    arguments = parser.parse_args()
    if arguments.metrics:
        print_milliseconds(300, {path.name: path for path in arguments.weights.iterdir()} if arguments.weights else {})
        return
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        drafts, manifest = write_studies(folder, arguments.studies)
        with print_time("all"):
            with print_time("read"):
                pairs = read_candidates_and_references(drafts, manifest)
            with print_time("score, with 500 replicates"):
                result = RadFact(load_judge("offline")).score(pairs)
            with print_time("write"):
                write_results(result, folder / "results")
            counts = result.counts
            del pairs, result
            with print_time("page"):
                write_page(folder / "results")
        print(", ".join(f"{count} {name.replace('_', ' ')}" for name, count in counts.items()))


if __name__ == "__main__":
    main()
