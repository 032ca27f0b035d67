"""What a metric is: pairs of reports in, figures of every sample out, and an usage of what they cost."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from traceback import extract_tb
from typing import Any, Protocol, get_args, runtime_checkable

import numpy as np
import numpy.typing as npt

from radfact.errors import InputError, RunError, brief
from radfact.records import Pair
from radfact.statistics.bootstrap import Direction

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
_COLUMNS = frozenset(
    {"sample_id", "failure", "failures", "failed_sentences", "reports"}
    | {f"{side}_{what}" for side in ("candidate", "reference") for what in ("sentences", "sentences_with_boxes")}
)
"""Of `samples.jsonl`, beside the figures."""

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
    figures without values of samples, or `of_boxes`, the names of those without values of texts, has them refused as a
    reward before anything is scored. One whose class has `worst`, a mapping of figure to value, has an empty candidate
    rewarded by it where the figure has no value. The names of figures in its `headline` are what its name means where
    a metric is one row, test or reward (`headline_of`).

    Attributes:
        values: figure -> one value a sample; NaN = not scored, which is counted and never a 0. The figure of the set is
            the mean of those that have a value, unless `pooled` has it.
        pooled: figures of the set that are no means; a figure may stand here alone, without values of samples.
        details: one record a sample that a person can read (counts, explanations, corrections), JSON values; empty
            where there is nothing to say.
        failures: why a sample was not scored, by its place.
        usage: calls, tokens, repairs, failures of a model that was asked.
        usage_by_role: the same by model, of a metric that queries more than one.
        counts: numbers of the set, such as judgments.
    """

    values: Mapping[str, Sequence[float]]
    pooled: Mapping[str, Pooled] = field(default_factory=dict)
    details: Sequence[Mapping[str, Any]] = ()
    failures: Mapping[int, str] = field(default_factory=dict)
    usage: Mapping[str, int] = field(default_factory=dict)
    usage_by_role: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    counts: Mapping[str, int] = field(default_factory=dict)


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
            RunError: nothing could be asked or computed at all (a server, a key); a sample that cannot be scored is
                NaN with a reason instead.
        """
        ...


@runtime_checkable
class Described(Metric, Protocol):
    """A metric that says what it was made of."""

    def describe(self) -> dict[str, Any]:
        """Everything that changes a value, JSON values."""
        ...


def headline_of(metric: Metric) -> list[str]:
    """The figures that the name of a metric means where a metric is one row of a table, one test or one reward.

    They are those of its `headline`; without one, the figure of its own name, or all where none is called so.
    """
    own = [metric.name] if metric.name in metric.figures else metric.figures
    return list(getattr(metric, "headline", own))


def check_metric(made: Any, what: str) -> None:
    """See to it that something is a metric, down to the names of its figures.

    Args:
        made: the metric.
        what: it is called in the message.

    Raises:
        InputError: a member is missing or not what it should be.
    """
    if isinstance(made, type):
        raise InputError(f"{made.__name__} is a class; give a metric made of it", field="metrics")
    if not isinstance(made, Metric):
        raise InputError(f"{what} is no metric: expected the members name, figures and score", field="metrics")
    if not isinstance(made.name, str) or not _NAME.fullmatch(made.name):
        raise InputError(
            f"{what}: expected letters, digits, '_', '.' and '-', found {brief(made.name)}", field="metrics.name"
        )
    figures = made.figures
    if not isinstance(figures, Mapping) or not figures:
        raise InputError(
            f"{what}: expected a mapping of figures to directions, found {brief(figures)}", field="metrics.figures"
        )
    for figure, direction in figures.items():
        if isinstance(figure, str) and (figure in _COLUMNS or not _NAME.fullmatch(figure)):
            raise InputError(
                f"{what}: expected a figure's name of letters, digits, '_', '.' and '-', and none of "
                f"{', '.join(sorted(_COLUMNS))}, found {brief(figure)}",
                field="metrics.figures",
            )
        if not isinstance(figure, str) or direction not in get_args(Direction):
            raise InputError(
                f"{what}: expected the name of a figure and {', '.join(get_args(Direction))}, found "
                f"{figure!r:.40}: {direction!r:.40}",
                field="metrics.figures",
            )
    headline = getattr(made, "headline", figures)
    named = isinstance(headline, Collection) and not isinstance(headline, str) and len(headline) > 0
    if not named or any(one not in list(figures) for one in headline):
        raise InputError(f"{what}: expected names of its figures, found {brief(headline)}", field="metrics.headline")


def check_scored(scored: Any, metric: Metric, count: int) -> None:
    """See to it that what a metric gave is what it promises, which one of a user's own may not keep to.

    Args:
        scored: what it gave.
        metric: with the figures that it names.
        count: of the pairs.

    Raises:
        RunError: it is no `Scored`, lacks a figure, or has not one value a pair.
    """
    if not isinstance(scored, Scored):
        raise RunError(f"gave {type(scored).__name__}, not Scored")
    if len(scored.details) not in (0, count) or not set(scored.failures) <= set(range(count)):
        raise RunError("gave not one record of details a pair, or a failure of a pair that there is not")
    for name in metric.figures:
        column, pooled = scored.values.get(name), scored.pooled.get(name)
        if column is None and pooled is None:
            raise RunError(f"gave no figure '{name}', which it names")
        if (column is not None and len(column) != count) or (pooled is not None and len(pooled.counts) != count):
            raise RunError(f"gave not one value a pair for '{name}'")


@contextmanager
def naming_metric(what: str, kind: type[InputError] | type[RunError]) -> Iterator[None]:
    """Faults of a metric as one line that says where they are, so that the other metrics go on.

    The code may be a user's own, and that of ours runs models whose files and memory are the user's.

    Args:
        what: the code is called in the message.
        kind: of the error that is raised instead.
    """
    try:
        yield
    except (InputError, RunError):
        raise
    except ModuleNotFoundError as error:
        raise kind(f"needs the package {error.name}") from error
    except Exception as error:
        last = extract_tb(error.__traceback__)[-1]
        said = " ".join(str(error).split())
        message = (
            f"{what} fails with {type(error).__name__}: {said:.300} ({Path(last.filename).name}, line {last.lineno})"
        )
        raise kind(message) from error
