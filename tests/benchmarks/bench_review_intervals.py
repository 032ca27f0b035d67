"""Coverage of the intervals of `maira review summary` on simulated reader studies.

    python tests/benchmarks/bench_review_intervals.py 2x20 3x20 --simulations 100

In each simulated study, every reader reads every study in two arms. A value is the mean of its arm plus normal effects
of reader, study, draft, reader x arm, and the reading; the truth is known. The coverage of means is over both arms.
"""

import argparse
import math
import time
from itertools import product

import numpy as np

from maira.review.effects import Estimate, Rating, estimate_effects

ARMS = ("first", "second")
MEANS = (2.0, 3.0)


def design(text: str) -> tuple[int, int]:
    """Return the numbers of readers and studies that `READERSxSTUDIES` describes."""
    readers, studies = map(int, text.split("x"))
    return readers, studies


def simulate(counts: tuple[int, int], reader_arm_sd: float, generator: np.random.Generator) -> list[Rating]:
    """Return readings of these numbers of readers and studies, with random effects."""
    readers, studies = counts
    shape = (readers, studies, len(ARMS))
    values = (
        np.asarray(MEANS)
        + generator.normal(0, 1, (readers, 1, 1))
        + generator.normal(0, 1, (1, studies, 1))
        + generator.normal(0, 0.5, (1, studies, len(ARMS)))
        + generator.normal(0, reader_arm_sd, (readers, 1, len(ARMS)))
        + generator.normal(0, 0.5, shape)
    )
    return [
        Rating(float(value), ARMS[arm], f"reader {reader}", f"study {study}")
        for (reader, study, arm), value in np.ndenumerate(values)
    ]


def contains(effect: Estimate, truth: float) -> bool:
    """Return whether the interval of an effect contains a value; an effect without an interval does not."""
    return effect.low is not None and effect.high is not None and effect.low <= truth <= effect.high


def main() -> None:
    """Print one line of coverage for each design."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("designs", nargs="+", type=design, metavar="READERSxSTUDIES")
    parser.add_argument("--simulations", type=int, default=100, help="simulated reader studies of each design")
    parser.add_argument("--reader-arm-sd", type=float, nargs="+", default=[0.3], help="of the effect of reader x arm")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    print("readers  studies  sd reader x arm  difference  means  fitted by a model  seconds per study")
    count = options.simulations
    for (readers, studies), deviation in product(options.designs, options.reader_arm_sd):
        generator, start = np.random.default_rng(options.seed), time.perf_counter()
        covered, means, modeled = 0, 0, 0
        for _ in range(count):
            estimates = estimate_effects(simulate((readers, studies), deviation, generator), ARMS)
            covered += contains(estimates[ARMS], MEANS[1] - MEANS[0])
            means += sum(contains(estimates[(arm,)], mean) for arm, mean in zip(ARMS, MEANS, strict=True))
            modeled += estimates[ARMS].method.startswith("mixed model")
        share, seconds = covered / count, (time.perf_counter() - start) / count
        error = math.sqrt(share * (1 - share) / count)
        line = (
            f"{readers:7}  {studies:7}  {deviation:15.2f}  {share:.2f} ± {error:.2f}  {means / len(ARMS) / count:5.2f}"
        )
        line += f"  {modeled:5} of {count:<8}  {seconds:17.2f}"
        print(line, flush=True)


if __name__ == "__main__":
    main()
