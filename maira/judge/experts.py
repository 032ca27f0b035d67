"""Training examples of a VERT scorer from experts' ratings.

Source: VERT, section 4.1.4.
"""

from __future__ import annotations

import math
from pathlib import Path

from maira.judge.pairing import ReportPair
from maira.judge.scores import make_vert_example
from maira.judge.training_examples import ExampleSet
from radfact.errors import ErrorCode, InputError
from radfact.meta.datasets.layouts import Layout
from radfact.meta.datasets.ratings import RatingSet
from radfact.records import narrative

EXPERTS = "experts"
"""Teacher of ratings."""
_SCALES: dict[Layout, tuple[float, float]] = {"rate-eval": (0, 5)}
"""Lowest and highest rating of published sets (VERT, section 3)."""
_RATE_EVAL_TRAIN = "rate_train.csv"


def training_file(path: Path, layout: Layout) -> Path:
    """Return the file to train on: of a folder with RaTE-Eval its training set, since metrics are tested on the other.

    Args:
        path: file or folder.
        layout: of the ratings.
    """
    return path / _RATE_EVAL_TRAIN if layout == "rate-eval" and path.is_dir() else path


def find_scale(layout: Layout, option: tuple[float, float] | None) -> tuple[float, float]:
    """Return the lowest and highest rating: the option, or as published for the layout.

    Args:
        layout: of the ratings.
        option: of the user.

    Raises:
        InputError: neither is known, or the numbers are not in order.
    """
    scale = option or _SCALES.get(layout)
    if scale is None:
        raise InputError(
            f"give the lowest and highest rating of the layout {layout}, such as 0 5",
            code=ErrorCode.MISSING_OPTION,
            field="scale",
        )
    if not -math.inf < scale[0] < scale[1] < math.inf:
        raise InputError(f"expected the lowest and the highest rating, found {scale[0]:g} {scale[1]:g}", field="scale")
    return scale


def make_rating_examples(ratings: RatingSet, scale: tuple[float, float], file: Path) -> ExampleSet:
    """Make VERT's prompt about every rated pair, with the mean rating as a share of the scale, where 1 is best.

    Args:
        ratings: a set of ratings; pairs without a rating are excluded.
        scale: the lowest and highest rating.
        file: of the ratings, for messages.

    Raises:
        InputError: a rating is outside of the scale.
    """
    lowest, highest = scale
    example_set = ExampleSet()
    # Pairs with the same reference are held out together.
    sources: dict[str, str] = {}
    for sample in ratings.samples:
        rating = sample.mean(ratings.target)
        if math.isnan(rating):
            example_set.failures[sample.pair.sample_id] = f"no rating of {ratings.target}"
            continue
        if not lowest <= rating <= highest:
            raise InputError(
                f"the rating {rating:g} of '{sample.pair.sample_id}' is outside of the scale {lowest:g} to {highest:g}",
                file=file,
                field=ratings.target,
            )
        share = (rating - lowest) / (highest - lowest)
        score = share if ratings.better[ratings.target] == "higher" else 1 - share
        source = sources.setdefault(narrative(sample.pair.reference), sample.pair.sample_id)
        example_set.examples.append(make_vert_example(ReportPair(sample.pair, "rated", source), score, EXPERTS))
    return example_set
