"""The protocol of metrics: attributes, input and results."""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from numbers import Real
from pathlib import Path
from traceback import extract_tb
from typing import TYPE_CHECKING, Any, Literal, Self, get_args

import numpy as np
import numpy.typing as npt

from radfact.errors import ErrorCode, InputError, RunError, brief
from radfact.languages import Language, normalize_characters
from radfact.llm.plan import RequestPlan
from radfact.records import Pair, TextPair, narrative
from radfact.statistics.bootstrap import CountsFunction, Direction, Summary, summarize, summarize_counts
from radfact.statistics.clusters import Clusters

if TYPE_CHECKING:
    from radfact.metrics.resources import MetricResources

Counts = npt.NDArray[np.float64]

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
_COLUMNS = frozenset(
    {"sample_id", "cluster", "failure", "failures", "failed_sentences", "reports"}
    | {f"{side}_sentences{kind}" for side in ("candidate", "reference") for kind in ("", "_with_boxes", "_removed")}
)
"""Columns of `samples.jsonl` other than scores."""


@dataclass(frozen=True, slots=True)
class Score:
    """Declaration of one score of a metric.

    Attributes:
        direction: whether `higher` or `lower` is better, or `neutral`.
        measures: what it measures, in a few words.
        unit: range or unit of its values, such as `0 to 100` or `errors`; empty for 0 to 1.
    """

    direction: Direction
    measures: str = ""
    unit: str = ""


@dataclass(frozen=True, slots=True)
class Requirements:
    """Requirements of a metric.

    Attributes:
        packages: modules that must be installed.
        weights: folder of weights by name -> files in it, alternatives separated by `|`.
        judge: `model` if it queries a language model, `any` if any judge of RadFact suffices.
    """

    packages: tuple[str, ...] = ()
    weights: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    judge: Literal["any", "model"] | None = None


@dataclass(frozen=True, slots=True)
class PooledScore:
    """A dataset-level score that is not a mean of sample-level scores, such as a corpus BLEU or a macro F1.

    Attributes:
        counts: (samples, k), contribution of each sample; NaN in a whole row = not scored.
        value: function of summed counts, (k,) -> float; computed again on every bootstrap replicate.
    """

    counts: Counts
    value: CountsFunction


@dataclass(frozen=True, slots=True)
class Repeats:
    """Repeated queries behind a result, whose values are means over the repeats."""

    count: int
    repeat_sd: Mapping[str, float | None]  # of each dataset-level score; None for fewer than two values
    partly_failed: int = 0  # samples that some repeats scored and others did not


@dataclass(frozen=True, slots=True)
class MetricResult:
    """Sample-level scores of a set of pairs, in their order.

    Attributes:
        values: score -> one value per sample; NaN = not scored, which is counted and never a 0.
        pooled: dataset-level scores that are not means; a score may be here alone, without sample-level values.
        details: one record per sample for a person to read (counts, explanations, corrections), JSON values; may be
            empty.
        failures: why a sample was not scored, by its index.
        usage: calls, tokens, repairs and failures of a model.
        usage_by_role: the same by model, if the metric queries more than one.
        counts: numbers of the whole set, such as judgments.
        repeats: repeated queries; None for a single query.
    """

    values: Mapping[str, Sequence[float]]
    pooled: Mapping[str, PooledScore] = field(default_factory=dict)
    details: Sequence[Mapping[str, Any]] = ()
    failures: Mapping[int, str] = field(default_factory=dict)
    usage: Mapping[str, int] = field(default_factory=dict)
    usage_by_role: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    counts: Mapping[str, int] = field(default_factory=dict)
    repeats: Repeats | None = None


def group_by_counts(pooled: Mapping[str, PooledScore]) -> list[tuple[list[str], Counts]]:
    """Return the names of scores that have the same counts, and these counts, which are resampled at once."""
    groups: dict[int, list[str]] = {}
    for name, score in pooled.items():
        groups.setdefault(id(score.counts), []).append(name)
    return [(names, pooled[names[0]].counts) for names in groups.values()]


def add_up_counts(counts: Sequence[Mapping[str, int]]) -> dict[str, int]:
    names = dict.fromkeys(name for mapping in counts for name in mapping)
    return {name: sum(mapping.get(name, 0) for mapping in counts) for name in names}


def _expand(result: MetricResult, places: Sequence[int], skipped: Mapping[int, str]) -> MetricResult:
    """Return the result of the pairs at `places` as that of all pairs, of which others were skipped for a reason."""
    count = len(places) + len(skipped)

    def spread(values: Sequence[float] | Counts) -> Counts:
        table = np.asarray(values, dtype=np.float64)
        all_pairs = np.full((count, *table.shape[1:]), math.nan)
        all_pairs[places] = table
        return all_pairs

    # Scores of the same counts stay together, so that they are resampled at once.
    tables = {id(pooled.counts): spread(pooled.counts) for pooled in result.pooled.values()}
    details = dict(zip(places, result.details, strict=False))
    failures = {**skipped, **{places[index]: failure for index, failure in result.failures.items()}}
    return replace(
        result,
        values={name: spread(column).tolist() for name, column in result.values.items()},
        pooled={name: PooledScore(tables[id(pooled.counts)], pooled.value) for name, pooled in result.pooled.items()},
        details=[details.get(place, {}) for place in range(count)] if details else [],
        failures=dict(sorted(failures.items())),
    )


class Metric(ABC):
    """Base class of metrics; a custom metric declares `name` and `scores` and implements `score`.

    Attributes:
        name: name on the command line and in results.
        measures: what it measures, in a few words.
        scores: every score with its direction and what it measures; a direction alone suffices.
        main_scores: scores that the metric's name selects where a metric is one row of a table, one test or one
            reward; by default the score with the name of the metric, or all.
        reads: `text` gives `score` pairs of texts (`radfact.records.TextPair`), sentences of a grounded report joined
            by spaces; `sentences` gives the pairs as they are.
        requirements: packages, weights and models that it needs.
        cost: cost per report.
        language: language that it reads; a pair with a text in another script is not scored, with the reason. A metric
            that reads texts of a language gets them in plain characters (`radfact.languages.normalize_characters`), and
            "" for a text without a word.
        scores_empty: whether a metric that reads texts of a language scores two texts without a word.
        needs_reference: whether it reads the reference; one that does not is computed for candidates without any.
        for_chest_xrays: whether its published prompt, its rules or its model are made for chest X-rays; a run warns if
            pairs declare another examination.
        source: where the metric is defined.
        is_variant: whether "all" does not select it: a variant of another built-in metric, or one without references.
        variant: name of the published variant that a subclass computes; its scores end in `.NAME`, so that they are
            never taken for those of the metric.
        difference: how this variant differs from the metric, in a few words.
        pooled: functions of pooled scores, so that `radfact compare` can compute them from the counts on disk.
        dataset_scores: scores without sample-level values.
        box_scores: scores that have no value for texts.
        worst_values: reward of an empty candidate where a score has no value.
        parameters: sampling parameters of the language model, unless the user sets others.
    """

    name: str = ""
    measures: str = ""
    scores: Mapping[str, Score | Direction] = {}
    main_scores: Sequence[str] = ()
    reads: Literal["text", "sentences"] = "text"
    requirements: Requirements = Requirements()
    cost: str = "not stated"
    language: Language = Language.ANY
    scores_empty: bool = False
    needs_reference: bool = True
    for_chest_xrays: bool = False
    source: str = "custom metric"
    is_variant: bool = False
    variant: str = ""
    difference: str = ""
    pooled: Mapping[str, CountsFunction] = {}
    dataset_scores: frozenset[str] = frozenset()
    box_scores: frozenset[str] = frozenset()
    worst_values: Mapping[str, float] = {}
    parameters: Mapping[str, Any] = {}

    @classmethod
    def create(cls, resources: MetricResources, **arguments: Any) -> Self:
        """Create the metric from the resources of a run: its folders of weights, or a client of its language model.

        Args:
            resources: of the run.
            arguments: further arguments of the constructor.

        Raises:
            InputError: a resource is missing or not valid.
        """
        if cls.requirements.judge == "model":
            return cls(resources.client(cls.parameters, cls.name), **arguments)  # type: ignore[call-arg]
        return cls(*resources.find_weights(cls.requirements), **arguments)

    def plan(self, pairs: Sequence[Any]) -> dict[str, RequestPlan]:
        """Count the requests to models that `score` would send for pairs, by role, without sending any."""
        if self.requirements.judge is None:
            return {}
        return {self.name: RequestPlan("not known", len(pairs), is_exact=False)}

    @abstractmethod
    def score(self, pairs: Sequence[Any]) -> MetricResult:
        """Compute the sample-level scores of pairs.

        Args:
            pairs: `TextPair` or `Pair`, depending on `reads`.

        Raises:
            RunError: nothing can be computed at all (a server, a key); a sample that cannot be scored is NaN with a
                reason instead.
        """

    def aggregate(
        self,
        result: MetricResult,
        names: Sequence[str],
        *,
        replicates: int,
        seed: int,
        clusters: Clusters | None = None,
    ) -> dict[str, Summary]:
        """Compute dataset-level scores: means of the samples that have a value, and pooled scores.

        Args:
            result: of `score`.
            names: scores to aggregate.
            replicates: of the bootstrap.
            seed: of the bootstrap.
            clusters: of the samples, which the bootstrap draws as a whole; None draws samples.
        """
        draws: dict[str, Any] = {"replicates": replicates, "seed": seed, "clusters": clusters}
        means = {name: result.values[name] for name in names if name not in result.pooled}
        summaries = summarize(means, **draws) if means else {}
        for group, counts in group_by_counts({name: result.pooled[name] for name in names if name in result.pooled}):
            summaries |= summarize_counts(counts, {name: result.pooled[name].value for name in group}, **draws)
        return summaries

    def describe(self) -> dict[str, Any] | None:
        """Return everything that determines a score, JSON values, for the record of a run; None if there is nothing."""
        return None


def directions_of(metric: Metric | type[Metric]) -> dict[str, Direction]:
    return {name: score.direction if isinstance(score, Score) else score for name, score in metric.scores.items()}


def units_of(metric: Metric | type[Metric]) -> dict[str, str]:
    """Return the unit of every score of a metric or of its class that is not a fraction."""
    return {name: score.unit for name, score in metric.scores.items() if isinstance(score, Score) and score.unit}


def describe_language(metric: Metric | type[Metric]) -> str:
    """Return the language that a metric reads, for a table."""
    if metric.requirements.judge is None:
        return str(metric.language)
    return "that of the judge (offline: English)" if metric.requirements.judge == "any" else "that of the model"


def main_scores_of(metric: Metric | type[Metric]) -> list[str]:
    """Return the scores that the name of a metric selects where it is one row of a table, one test or one reward."""
    own = [metric.name] if metric.name in metric.scores else metric.scores
    return list(metric.main_scores or own)


class FunctionMetric(Metric):
    """A metric computed by a function of candidate and reference that returns a number, or numbers by score."""

    def __init__(
        self,
        function: Callable[[str, str], float | Mapping[str, float]],
        name: str | None = None,
        scores: Mapping[str, Score | Direction] | None = None,
    ) -> None:
        self.function = function
        self.name = name or function.__name__
        self.scores = scores or {self.name: "higher"}

    def score(self, pairs: Sequence[TextPair]) -> MetricResult:
        values = [self.function(pair.candidate, pair.reference) for pair in pairs]
        rows: list[Mapping[str, Any]] = [row if isinstance(row, Mapping) else {self.name: row} for row in values]
        return MetricResult({name: [self._number(row.get(name)) for row in rows] for name in self.scores})

    def _number(self, value: Any) -> float:
        if not hasattr(value, "__float__"):
            found = "None" if value is None else type(value).__name__
            message = f"{self.name}: expected a number, or numbers by score, for every pair, found {found}"
            raise RunError(message, code=ErrorCode.INVALID_PLUGIN)
        return float(value)


def _readable_pairs(metric: Metric, pairs: Sequence[Pair]) -> tuple[dict[int, Pair], dict[int, str]]:
    """Return the pairs that a metric can read, in the form that it reads, and why it cannot read the others."""
    readable, skipped = dict[int, Pair](), dict[int, str]()
    for place, pair in enumerate(pairs):
        pair = pair if metric.needs_reference else replace(pair, reference="")
        item = TextPair.of(pair) if metric.reads == "text" else pair
        if metric.language is not Language.ANY:
            texts = [normalize_characters(narrative(report)) for report in (pair.candidate, pair.reference)]
            if not all(map(metric.language.matches, texts)):
                skipped[place] = metric.language.skip_reason
                continue
            if isinstance(item, TextPair):
                candidate, reference = (text if any(map(str.isalnum, text)) else "" for text in texts)
                if not candidate and not reference and not metric.scores_empty:
                    skipped[place] = "both reports are empty" if metric.needs_reference else "the candidate is empty"
                    continue
                item = replace(item, candidate=candidate, reference=reference)
        readable[place] = item
    return readable, skipped


def plan_pairs(metric: Metric, pairs: Sequence[Pair]) -> dict[str, RequestPlan]:
    """Count the requests to models that `score_pairs` would send, by role, without sending any."""
    return metric.plan([*_readable_pairs(metric, pairs)[0].values()])


def score_pairs(metric: Metric, pairs: Sequence[Pair]) -> MetricResult:
    """Score pairs by a metric, in the form that it reads, and validate its result; RunError if it can read none."""
    readable, skipped = _readable_pairs(metric, pairs)
    if pairs and not readable:
        raise RunError(f"no sample could be scored: {skipped[0]}", code=ErrorCode.NOTHING_SCORED)
    result = metric.score([*readable.values()])
    count = len(readable)

    def check(is_valid: bool, expected: str) -> None:
        if not is_valid:
            raise RunError(f"{metric.name}: expected {expected}", code=ErrorCode.INVALID_PLUGIN)

    check(isinstance(result, MetricResult), f"a MetricResult, found {type(result).__name__}")
    check(
        len(result.details) in (0, count) and set(result.failures) <= set(range(count)),
        f"details of {count} pairs and failures of these alone, found {len(result.details)} details",
    )
    for name in metric.scores:
        lengths = [len(result.values[name])] if name in result.values else []
        lengths += [len(result.pooled[name].counts)] if name in result.pooled else []
        check(bool(lengths), f"values of its score '{name}', found none")
        for length in lengths:
            check(length == count, f"{count} values of '{name}', one per pair, found {length}")
        odd = [value for value in result.values.get(name, ()) if not isinstance(value, Real | None)]
        check(not odd, f"numbers as '{name}' (None for a missing one), found {type(odd[0]).__name__ if odd else ''}")
    values = {name: [math.nan if item is None else item for item in column] for name, column in result.values.items()}
    result = replace(result, values=values)
    return _expand(result, [*readable], skipped) if skipped else result


def check_metric(metric: Any, label: str) -> None:
    """Validate the declaration of a metric, whose name in messages is `label`."""

    def check(is_valid: bool, expected: str, found: object, attribute: str = "") -> None:
        if not is_valid:
            message = f"{label}: expected {expected}, found {brief(found)}"
            field = f"metrics.{attribute}" if attribute else "metrics"
            raise InputError(message, code=ErrorCode.INVALID_PLUGIN, field=field)

    if isinstance(metric, type):
        check(False, f"a metric, for example {metric.__name__}()", metric)
    check(isinstance(metric, Metric), "a subclass of radfact.Metric with name, scores and score()", metric)
    is_name = isinstance(metric.name, str) and bool(_NAME.fullmatch(metric.name))
    check(is_name, "letters, digits, '_', '.' and '-'", metric.name, "name")
    is_mapping = isinstance(metric.scores, Mapping) and bool(metric.scores)
    check(is_mapping, "a mapping of scores to directions", metric.scores, "scores")
    allowed = f"a name of letters, digits, '_', '.' and '-', and none of {', '.join(sorted(_COLUMNS))}"
    for name in metric.scores:
        is_name = isinstance(name, str) and name not in _COLUMNS and bool(_NAME.fullmatch(name))
        check(is_name, allowed, name, "scores")
    directions = get_args(Direction)
    for name, direction in directions_of(metric).items():
        check(direction in directions, f"{', '.join(directions)} for '{name}'", direction, "scores")
    are_scores = not isinstance(metric.main_scores, str) and set(metric.main_scores) <= set(metric.scores)
    check(are_scores, "a list of its scores", metric.main_scores, "main_scores")
    check(metric.reads in ("text", "sentences"), "text or sentences", metric.reads, "reads")


@contextmanager
def report_errors(label: str, kind: type[InputError] | type[RunError]) -> Iterator[None]:
    """Convert any exception of a metric to a `kind` of one line with its location, so that other metrics continue."""
    try:
        yield
    except (InputError, RunError):
        raise
    except ModuleNotFoundError as error:
        raise kind(f"needs the package {error.name}", code=ErrorCode.MISSING_REQUIREMENT) from error
    except Exception as error:
        last = extract_tb(error.__traceback__)[-1]
        reason = f"{type(error).__name__}: {' '.join(str(error).split()):.300}"
        message = f"{label} fails with {reason} ({Path(last.filename).name}, line {last.lineno})"
        raise kind(message, code=ErrorCode.INVALID_PLUGIN) from error
