"""Options of RadFact's scores and of the intervals of all scores."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, NonNegativeInt

from radfact.options import Option, Options

Compat = Literal["paper", "exact"]
OnFailure = Literal["drop", "not-entailed", "stop"]


class ScoringOptions(Options):
    """How verdicts become RadFact's scores.

    A narrative that could not be split has no sentences, so that its sample is excluded with `on_failure` "drop" and
    "not-entailed" alike.
    """

    panel = "Scores"

    compat: Annotated[
        Compat, Option("RadFact: paper: as the published implementation computes; exact: without its resolution.")
    ] = "paper"
    threshold: Annotated[
        float,
        Field(ge=0, le=1, allow_inf_nan=False),
        Option("RadFact: share of a region that its evidence must cover.", metavar="SHARE"),
    ] = 0.5
    on_failure: Annotated[
        OnFailure,
        Option(
            "RadFact: a sample with a query without a valid response: exclude it, count the sentence as not entailed "
            "(as published), or stop."
        ),
    ] = "drop"


class BootstrapOptions(Options):
    """Intervals of all scores."""

    panel = "Scores"

    bootstrap: Annotated[NonNegativeInt, Option("Bootstrap replicates; 0 for none.", metavar="N")] = 500
    seed: Annotated[NonNegativeInt, Option("Seed of the bootstrap and of all other random choices.", metavar="N")] = 42
