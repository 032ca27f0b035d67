"""Many metrics over the same pairs: one evaluation, whatever each of them needs."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Unpack

from radfact.errors import InputError, RunError
from radfact.io.pairs import Pair, Pairs, check_ids
from radfact.metrics.protocol import Metric, Scored, check_scored, naming_metric
from radfact.metrics.registry import Choice, MissingRequirementError, choose, is_ours
from radfact.metrics.resources import ResourceOptions, Resources
from radfact.results.evaluation import Evaluation, MetricRun
from radfact.results.folder import Store, write_evaluation
from radfact.statistics.bootstrap import Direction, Summary, summarize, summarize_counts


def evaluate(
    pairs: Pairs | Iterable[Pair],
    metrics: str | Sequence[str | Metric] = ("radfact",),
    *,
    bootstrap: int = 500,
    seed: int = 42,
    out: Path | None = None,
    **options: Unpack[ResourceOptions],
) -> Evaluation:
    """Score pairs by several metrics.

    A metric that lacks weights, a key or a package is left out and named in `unavailable`; the others go on.

    Args:
        pairs: as `radfact.io.pairs` reads them, or any pairs.
        metrics: names of metrics or of single figures, `module:object` of one's own, "all", or metrics themselves.
        bootstrap: replicates for the intervals; 0 for none.
        seed: of the bootstrap.
        out: results folder; a metric that stands there with the same input is not computed again.
        options: what metrics are made of (`judge`, `model`, `judge_args`, `weights`, `metric_args`, ...): all are in
            `radfact.metrics.resources.ResourceOptions`. The `cache` is by default in `out`.

    Raises:
        InputError: a name is no metric, an option has a value that it cannot have, or no metric can be made.
        RunError: no metric could score anything.
    """
    folder = None if out is None else Path(out)
    given = [metrics] if isinstance(metrics, str) else metrics
    names = [one for one in given if isinstance(one, str)]
    own = [Choice.of(one) for one in given if not isinstance(one, str)]
    options["radfact"] = {**(options.get("radfact") or {}), "bootstrap": bootstrap, "seed": seed}
    options["cache"] = options.get("cache") or (folder and folder / "cache")
    resources = Resources(**options)
    try:
        work = Work([*(choose(names) if names or not own else []), *own], resources)
        evaluation = work.run(pairs, bootstrap=bootstrap, seed=seed, folder=folder)
    finally:
        resources.close()
    if folder is not None:
        from radfact.html.page import write_page

        write_evaluation(evaluation, folder)
        write_page(folder)
    return evaluation


class Work:
    """The metrics of an evaluation, made before anything is asked, so that a display can watch what they spend."""

    def __init__(self, choices: Sequence[Choice], resources: Resources) -> None:
        """Make what can be made.

        Raises:
            InputError: none can be made, two have the same name or give a figure of the same name, or arguments do
                not fit their metric.
        """
        self.resources, self.choices = resources, choices
        self.metrics: dict[str, tuple[Choice, Metric]] = {}
        self.unavailable: dict[str, str] = {}
        homes: dict[str, str] = {}
        for name in resources.metric_args:
            if name not in {choice.entry.name for choice in choices}:
                raise InputError("no such metric is asked for", field=f"metric_args.{name}")
        for choice in choices:
            try:
                metric = choice.metric or resources.metric(choice.entry)
            except InputError as error:
                if choice.entry.name in resources.metric_args and not isinstance(error, MissingRequirementError):
                    raise
                self.unavailable[choice.entry.name] = str(error)
                continue
            except ModuleNotFoundError as error:
                self.unavailable[choice.entry.name] = f"needs the package {error.name}"
                continue
            if metric.name in self.metrics:
                raise InputError(f"two metrics are called '{metric.name}'; give one another name", field="metrics")
            _check(metric, homes)
            self.metrics[metric.name] = (choice, metric)
        if not self.metrics:
            raise InputError(
                "no metric can be computed: " + "; ".join(f"{name}: {why}" for name, why in self.unavailable.items()),
                field="metrics",
            )

    def run(
        self,
        pairs: Pairs | Iterable[Pair],
        *,
        bootstrap: int,
        seed: int,
        folder: Path | None = None,
        before: Callable[[str], None] | None = None,
    ) -> Evaluation:
        """Score pairs by each metric in turn.

        Args:
            pairs: as for `evaluate`.
            bootstrap: replicates.
            seed: of the bootstrap.
            folder: of earlier results of the same input, which are taken as they are; each metric's are written there
                when it is done.
            before: told the name of each metric before it begins.

        Raises:
            InputError: an id stands twice, or there are no pairs.
            RunError: no metric could score anything.
        """
        given = list(pairs)
        check_ids(given)
        if not given:
            raise InputError("no pairs to score")
        store = None if folder is None else Store(folder, given)
        runs: dict[str, MetricRun] = {}
        unavailable = dict(self.unavailable)
        for name, (choice, metric) in self.metrics.items():
            if before is not None:
                before(name)
            try:
                runs[name] = self._run_one(choice, metric, given, store, {"replicates": bootstrap, "seed": seed})
            except RunError as error:
                unavailable[choice.entry.name] = str(error)
        if not runs:
            raise RunError("; ".join(f"{name}: {why}" for name, why in unavailable.items()))
        left_out = pairs.left_out if isinstance(pairs, Pairs) else ()
        return Evaluation(given, runs, self.choices, unavailable, left_out, {"bootstrap": bootstrap, "seed": seed})

    def _run_one(
        self, choice: Choice, metric: Metric, pairs: Sequence[Pair], store: Store | None, draws: Mapping[str, int]
    ) -> MetricRun:
        """Score pairs by one metric, or take what it said of them before.

        Raises:
            RunError: it could not, or fails.
        """
        started = time.monotonic()
        ours = choice.metric is None and is_ours(choice.entry)
        with naming_metric(metric.name, RunError):
            identity = self.resources.identity(choice, metric)
            kept = None if store is None else store.read(metric, identity)
            scored = kept or metric.score(pairs)
            check_scored(scored, metric, len(pairs))
            _check_finite(scored, metric)
            if not ours:
                scored = _with_reasons(scored)
            if len(scored.failures) == len(pairs):
                raise RunError(f"no sample could be scored ({scored.failures[0]})")
            wanted = choice.wanted(metric.figures)
            found = summaries(metric, scored, wanted, **draws)
            if store is not None and kept is None:
                store.write(metric, identity, scored)
        seconds = round(time.monotonic() - started, 3)
        arguments = self.resources.metric_args.get(choice.entry.name, {})
        return MetricRun(metric, choice, wanted, scored, found, seconds, arguments, reused=kept is not None)


def summaries(
    metric: Metric, scored: Scored, wanted: Mapping[str, Direction], *, replicates: int, seed: int
) -> dict[str, Summary]:
    """The figures of a set: means of the samples', those that are pooled, or as the metric itself takes them.

    Args:
        metric: one with a method `summarize`, as RadFact has, draws its replicates itself.
        scored: what it said.
        wanted: figures.
        replicates: of the bootstrap.
        seed: of the bootstrap.
    """
    own = getattr(metric, "summarize", None)
    if own is not None:
        found: dict[str, Summary] = dict(own(scored, replicates=replicates, seed=seed))
    else:
        means = {name: scored.values[name] for name in wanted if name in scored.values and name not in scored.pooled}
        found = summarize(means, replicates=replicates, seed=seed) if means else {}
        groups: dict[int, dict[str, Any]] = {}
        for name in wanted:
            if name in scored.pooled:
                groups.setdefault(id(scored.pooled[name].counts), {})[name] = scored.pooled[name]
        for group in groups.values():
            counts = next(iter(group.values())).counts
            values = {name: pooled.value for name, pooled in group.items()}
            found |= summarize_counts(counts, values, replicates=replicates, seed=seed)
    return {name: replace(found[name], direction=direction) for name, direction in wanted.items()}


def _check(metric: Metric, homes: dict[str, str]) -> None:
    for figure in metric.figures:
        if figure in homes:
            raise InputError(f"the metrics {homes[figure]} and {metric.name} both give '{figure}'", field="metrics")
        homes[figure] = metric.name


def _check_finite(scored: Scored, metric: Metric) -> None:
    for name in metric.figures:
        if any(math.isinf(value) for value in scored.values.get(name, ())):
            raise RunError(f"gave an infinite value for '{name}'")


def _with_reasons(scored: Scored) -> Scored:
    """A metric of one's own may leave samples without any value and not say why: they are failures all the same."""
    columns = list(scored.values.values())
    silent = [
        place
        for place, row in enumerate(zip(*columns, strict=True))
        if place not in scored.failures and all(map(math.isnan, row))
    ]
    return replace(scored, failures={**scored.failures, **dict.fromkeys(silent, "gave no value")})
