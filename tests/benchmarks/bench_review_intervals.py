"""Coverage of the intervals of `maira review summary` on simulated reader studies.

    python tests/benchmarks/bench_review_intervals.py 2x20 3x20 --simulations 100

In each simulated study, every reader reads every study in two arms. A value is the mean of its arm plus normal effects
of reader, study, draft, reader x arm, and the reading; the truth is known. The coverage of means is over both arms.
"""

import argparse
import math
import re
import time
from collections import Counter

import numpy as np

from maira.review.effects import Estimate, Rating, estimate_effects

ARMS = ("first", "second")
MEANS = (2.0, 3.0)


def parse_design(text: str) -> tuple[int, int]:
    """Return the numbers of readers and studies that `READERSxSTUDIES` describes."""
    if not (match := re.fullmatch(r"([1-9]\d*)x([1-9]\d*)", text)):
        raise argparse.ArgumentTypeError(f"expected READERSxSTUDIES such as 3x20, found {text!r}")
    return int(match[1]), int(match[2])


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
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("designs", nargs="+", type=parse_design, metavar="READERSxSTUDIES")
    parser.add_argument("--simulations", type=int, default=100, help="simulated reader studies of each design")
    parser.add_argument("--reader-arm-sd", type=float, nargs="+", default=[0.3], help="of the effect of reader x arm")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    print("readers  studies  sd reader x arm  difference  means  fitted by a model  seconds per study")
    for design in options.designs:
        for deviation in options.reader_arm_sd:
            generator = np.random.default_rng(options.seed)
            counts: Counter[str] = Counter()
            start = time.perf_counter()
            for _ in range(options.simulations):
                estimates = estimate_effects(simulate(design, deviation, generator), ARMS)
                difference = estimates[ARMS]
                counts["difference"] += contains(difference, MEANS[1] - MEANS[0])
                counts["means"] += sum(contains(estimates[(arm,)], mean) for arm, mean in zip(ARMS, MEANS, strict=True))
                counts["model"] += difference.method.startswith("mixed model")
            seconds = (time.perf_counter() - start) / options.simulations
            difference_share = counts["difference"] / options.simulations
            error = math.sqrt(difference_share * (1 - difference_share) / options.simulations)
            print(
                f"{design[0]:7}  {design[1]:7}  {deviation:15.2f}  {difference_share:.2f} ± {error:.2f}"
                f"  {counts['means'] / len(ARMS) / options.simulations:5.2f}  {counts['model']:5} of"
                f" {options.simulations:<8}  {seconds:17.2f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
