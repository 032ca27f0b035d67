"""Experts' ratings as what a VERT scorer learns (paper 003, section 4.1.4)."""

from __future__ import annotations

import math
from pathlib import Path

from maira.judge.pairing import ReportPair
from maira.judge.scores import make_vert_example
from maira.judge.training_examples import ExampleSet
from radfact.errors import InputError
from radfact.meta.datasets.layouts import Layout
from radfact.meta.datasets.ratings import RatingSet
from radfact.records import narrative

EXPERTS = "experts"
"""Whose answers ratings are."""
_SCALES: dict[Layout, tuple[float, float]] = {"rate-eval": (0, 5)}
"""Least and greatest rating of published sets (paper 003, section 3)."""
_RATE_EVAL_TRAIN = "rate_train.csv"


def training_file(path: Path, layout: Layout) -> Path:
    """The file to learn from: of a folder with RaTE-Eval its training set, where a metric is tested on the other."""
    return path / _RATE_EVAL_TRAIN if layout == "rate-eval" and path.is_dir() else path


def find_scale(layout: Layout, given: tuple[float, float] | None) -> tuple[float, float]:
    """The least and the greatest rating: as given, or as published for the layout.

    Raises:
        InputError: neither is known, or the two are no scale.
    """
    scale = given or _SCALES.get(layout)
    if scale is None:
        raise InputError(f"say the least and the greatest rating of the layout {layout}, such as 0 5", field="scale")
    if not -math.inf < scale[0] < scale[1] < math.inf:
        raise InputError(f"expected the least and the greatest rating, found {scale[0]:g} {scale[1]:g}", field="scale")
    return scale


def make_rating_examples(ratings: RatingSet, scale: tuple[float, float], file: Path) -> ExampleSet:
    """VERT's question about every rated pair, and the experts' mean rating as a share of the scale, 1 the best.

    Args:
        ratings: a set of ratings; a pair that nobody has rated teaches nothing.
        scale: the least and the greatest rating.
        file: they come from, for messages.

    Raises:
        InputError: a rating lies outside the scale.
    """
    least, greatest = scale
    lesson = ExampleSet()
    # Pairs of one reference belong together, also where they are held out.
    sources: dict[str, str] = {}
    for one in ratings.samples:
        rating = one.mean(ratings.target)
        if math.isnan(rating):
            lesson.failures[one.pair.sample_id] = f"nobody has rated its {ratings.target}"
            continue
        if not least <= rating <= greatest:
            raise InputError(
                f"the rating {rating:g} of '{one.pair.sample_id}' is outside of the scale {least:g} to {greatest:g}",
                file=file,
                field=ratings.target,
            )
        share = (rating - least) / (greatest - least)
        score = share if ratings.better[ratings.target] == "higher" else 1 - share
        source = sources.setdefault(narrative(one.pair.reference), one.pair.sample_id)
        lesson.taught.append(make_vert_example(ReportPair(one.pair, "rated", source), score, EXPERTS))
    return lesson
