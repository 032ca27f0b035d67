"""Options of RadFact's scores and of the intervals of all scores."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, NonNegativeInt

from radfact.options import Option, Options

Compat = Literal["paper", "exact"]
MAX_REPLICATES = 1_000_000
"""Upper bound of bootstrap replicates, whose values are in memory."""
OnFailure = Literal["drop", "not-entailed", "stop"]


class ScoringOptions(Options):
    """Options of RadFact's scores.

    A narrative that could not be split has no sentences, so that its sample is excluded with `on_failure` "drop" and
    "not-entailed" alike.
    """

    panel = "Scores"

    compat: Annotated[
        Compat, Option("paper: compute regions on the 224-pixel grid, as published; exact: without the grid.")
    ] = "paper"
    threshold: Annotated[
        float,
        Field(ge=0, le=1, allow_inf_nan=False),
        Option(
            "Fraction of a region that its evidence must cover: more than it, as the published code tests, or with "
            "--compat exact at least it, as the paper says.",
            metavar="FRACTION",
        ),
    ] = 0.5
    on_failure: Annotated[
        OnFailure,
        Option(
            "What to do if a query has no valid response: exclude the sample (drop), count the sentence as not "
            "entailed (as published), or stop."
        ),
    ] = "drop"


class BootstrapOptions(Options):
    """Bootstrap intervals, the random seed, and the clusters of samples."""

    panel = "Scores"

    bootstrap: Annotated[
        NonNegativeInt,
        Field(le=MAX_REPLICATES),
        Option("Number of bootstrap replicates; 0: no intervals.", metavar="N"),
    ] = 500
    seed: Annotated[NonNegativeInt, Option("Random seed.", metavar="N")] = 42
    cluster: Annotated[
        str | None,
        Option(
            "Column or field with the cluster of each sample, such as its patient; clusters are resampled as a whole. "
            "'none': resample single samples. Default: patient_id, or else study_id, where the input has it.",
            metavar="COLUMN",
        ),
    ] = None
