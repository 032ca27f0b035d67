"""Processor time of each metric for one pair of reports, in milliseconds.

    OMP_NUM_THREADS=1 python tests/benchmarks/time_metrics.py
    OMP_NUM_THREADS=1 python tests/benchmarks/time_metrics.py --weights FOLDER

The pairs are those of `bench_score.py` as narratives, all texts different. Each metric scores a few other pairs first,
so that imports and weights are loaded. Metrics with a language model query one that answers at once, so that only our
part is measured, including retries of its invalid responses: add the time of your model, and see `cost` in `radfact
metrics` for its number of calls. A metric without its weights or packages has no time.
"""

from __future__ import annotations

import argparse
import random
import time
from pathlib import Path

from bench_score import random_report

from radfact import Pair
from radfact.api import MetricSet
from radfact.metrics.registry import entries

WARM_UP = 5


def random_pairs(count: int) -> list[Pair]:
    """Return random pairs of narratives."""
    rng = random.Random(0)

    def narrative() -> str:
        return " ".join(sentence["text"] for sentence in random_report(rng))

    return [Pair(str(number), narrative(), narrative()) for number in range(count)]


def milliseconds(name: str, pairs: list[Pair], weights: dict[str, Path]) -> tuple[float, str]:
    """Return the time of one pair and a note; NaN with the reason if the metric cannot be computed."""
    needs_model = entries()[name].load().requirements.judge == "model"
    judge = {"judge": "mock:silent", "judge_args": {"responses": "none"}} if needs_model else {"judge": "offline"}
    try:
        with MetricSet(name, weights=weights, **judge) as metrics:
            ((_, metric),) = metrics.metrics.values()
            metric.score(pairs[:WARM_UP])
            started = time.process_time()
            metric.score(pairs[WARM_UP:])
            seconds = time.process_time() - started
    except Exception as error:  # continue with the next metric
        return float("nan"), " ".join(str(error).split())[:60]
    return 1000 * seconds / (len(pairs) - WARM_UP), "without the model" if needs_model else ""


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=300)
    parser.add_argument("--weights", type=Path, metavar="FOLDER", help="folder with a folder of weights per name")
    arguments = parser.parse_args()
    weights = {} if arguments.weights is None else {folder.name: folder for folder in arguments.weights.iterdir()}
    pairs = random_pairs(WARM_UP + arguments.pairs)
    print("| metric | ms per pair | note |\n|---|---|---|")
    for name in entries():
        value, note = milliseconds(name, pairs, weights)
        print(f"| `{name}` | {'-' if value != value else f'{value:.2f}'} | {note} |", flush=True)


if __name__ == "__main__":
    main()
