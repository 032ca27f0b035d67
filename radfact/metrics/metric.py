"""What a metric is: pairs of reports in, figures of every sample out, and an account of what they cost."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from radfact.files import Pair
from radfact.stats import Direction

Counts = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Pooled:
    """A figure of the set that is no mean of per-sample figures, such as a corpus BLEU or a macro F1.

    Attributes:
        counts: (samples, k), what each sample adds; NaN in a whole row = not scored.
        value: the figure of summed counts, (k,) -> float; taken anew on every bootstrap replicate.
    """

    counts: Counts
    value: Callable[[Counts], float]


@dataclass(frozen=True, slots=True)
class Scored:
    """What a metric says of a set of pairs, in their order.

    A metric whose class has `pooled`, a mapping of figure to the function in `Pooled`, can have such figures compared
    between results folders (`radfact compare`), which hold the counts. One whose class has `of_the_set`, the names of
    figures without values of samples, has them refused as a reward before anything is scored.

    Attributes:
        values: figure -> one value a sample; NaN = not scored, which is counted and never a 0. The figure of the set is
            the mean of those that have a value, unless `pooled` has it.
        pooled: figures of the set that are no means; a figure may stand here alone, without values of samples.
        details: one record a sample that a person can read (counts, explanations, corrections), JSON values; empty
            where there is nothing to say.
        failures: why a sample was not scored, by its place.
        account: calls, tokens, repairs, failures of a model that was asked.
    """

    values: Mapping[str, Sequence[float]]
    pooled: Mapping[str, Pooled] = field(default_factory=dict)
    details: Sequence[Mapping[str, Any]] = ()
    failures: Mapping[int, str] = field(default_factory=dict)
    account: Mapping[str, int] = field(default_factory=dict)


@runtime_checkable
class Metric(Protocol):
    """A metric; a user's own needs these three members and nothing else."""

    @property
    def name(self) -> str:
        """Its name on the command line and in results."""
        ...

    @property
    def figures(self) -> Mapping[str, Direction]:
        """Every figure that it gives, and which way is better."""
        ...

    def score(self, pairs: Sequence[Pair]) -> Scored:
        """Score pairs.

        Raises:
            RunFailed: nothing could be asked or computed at all (a server, a key); a sample that cannot be scored is
                NaN with a reason instead.
        """
        ...
