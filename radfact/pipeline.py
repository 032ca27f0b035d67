"""The scoring pipeline: pairs of reports in, an `EvaluationResult` and a results folder out."""

from __future__ import annotations

import asyncio
import concurrent.futures
import math
import platform
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from radfact.errors import ErrorCode, InputError, RunError, brief
from radfact.metrics.protocol import Metric, MetricResult, report_errors, score_pairs
from radfact.metrics.radfact_metric import RadFactMetric
from radfact.metrics.registry import MetricSelection, MissingRequirementError, select_metrics
from radfact.metrics.resources import MetricResources
from radfact.records import Pair, Pairs, Report, Sentence, narratives
from radfact.results.evaluation import EvaluationResult, MetricRun
from radfact.results.metric_cache import MetricCache
from radfact.results.options import PageOptions
from radfact.results.writer import write_results
from radfact.scoring.options import Compat, OnFailure

if TYPE_CHECKING:
    from radfact.judges import Judge, Splitter
    from radfact.judges.callables import JudgeFunction


def evaluate(
    pairs: Pairs | Iterable[Pair],
    metrics: str | Sequence[str | Metric] = ("radfact",),
    *,
    bootstrap: int = 500,
    seed: int = 42,
    out: Path | str | None = None,
    run: Mapping[str, Any] | None = None,
    page: PageOptions | None = None,
    **options: Any,
) -> EvaluationResult:
    """Score pairs by one or more metrics, and write a results folder with a page.

    A metric that lacks weights, a key or a package is skipped and named in `unavailable`; the others continue.

    Args:
        pairs: from `read_pairs` or `read_candidates_and_references`, or any pairs.
        metrics: names of metrics or of single scores, `module:object` of a custom metric, "all", or metrics themselves.
        bootstrap: replicates for the intervals; 0 for none.
        seed: of the bootstrap.
        out: results folder; a metric with a cached result for the same input is not computed again.
        run: further fields of `run.json`, JSON values only.
        page: images and notes of `report.html`.
        options: judge, model, weights and arguments of the metrics, as in
            `radfact.metrics.resources.MetricResources`. The `cache` is by default in `out`.

    Raises:
        InputError: a name is not a metric, an option is not valid, or no metric can be created.
        RunError: no metric could score anything.
    """
    started = time.monotonic()
    folder = None if out is None else Path(out)
    pairs = pairs if isinstance(pairs, Pairs) else list(pairs)
    options["cache"] = options.get("cache") or (folder and folder / "cache")
    resources = MetricResources(**options)
    resources.needs_splitter = bool(narratives(pairs))
    try:
        runner = MetricRunner(select_metrics(metrics), resources)
        result = runner.run(pairs, bootstrap=bootstrap, seed=seed, folder=folder)
    finally:
        resources.close()
    if folder is not None:
        record = {**run_record(pairs, started=started), **(run or {})}
        write_results_and_page(result, folder, record, page)
    return result


def write_results_and_page(
    result: EvaluationResult, folder: Path, run: Mapping[str, Any] | None = None, page: PageOptions | None = None
) -> Path:
    """Write a results folder and its page.

    Args:
        result: of an evaluation.
        folder: results folder.
        run: further fields of `run.json`.
        page: images and notes of the page.

    Returns:
        The path of the page.
    """
    from radfact.html.page import page_record, write_page

    record = page_record(page or PageOptions(), folder).model_dump(mode="json")
    write_results(result, folder, {**(run or {}), "page": record})
    return write_page(folder)


def run_record(pairs: Pairs | Sequence[Pair], *, started: float) -> dict[str, Any]:
    """Return versions, input and duration of a run for `run.json`.

    Args:
        pairs: the input.
        started: `time.monotonic()` at the start of the run.
    """
    record: dict[str, Any] = {"versions": versions()}
    if isinstance(pairs, Pairs):
        record["input"] = {
            "files": list(map(str, pairs.files)),
            "read": pairs.read,
            "skipped": pairs.skipped,
            "empty_candidates": len(pairs.empty_candidates),
            "without_reference": len(pairs.without_reference),
        }
    record["seconds"] = round(time.monotonic() - started, 3)
    return record


def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that every score depends on."""
    packages = {name: version(name) for name in ("maira-radfact", "numpy", "pydantic")}
    return {"python": platform.python_version(), **packages}


class MetricRunner:
    """The metrics of an evaluation, created before any model is queried, so that a display can watch their usage."""

    def __init__(self, selections: Sequence[MetricSelection], resources: MetricResources) -> None:
        """Create the metrics.

        Raises:
            InputError: none can be created, two have the same name or give a score of the same name, or arguments do
                not fit their metric.
        """
        self.resources, self.selections, self.started = resources, selections, time.monotonic()
        self.metrics: dict[str, tuple[MetricSelection, Metric]] = {}
        self.unavailable: dict[str, str] = {}
        errors: list[InputError] = []
        metric_of_score: dict[str, str] = {}
        for name in resources.metric_args:
            if name not in {selection.entry.name for selection in selections}:
                raise InputError(
                    "this metric is not selected", code=ErrorCode.CONFLICTING_OPTIONS, field=f"metric_args.{name}"
                )
        for selection in selections:
            try:
                metric = selection.metric or resources.metric(selection.entry)
            except InputError as error:
                # An unknown argument is wrong input; a missing package or weight only makes the metric unavailable.
                if selection.entry.name in resources.metric_args and not isinstance(error, MissingRequirementError):
                    raise
                self.unavailable[selection.entry.name] = str(error)
                errors.append(error)
                continue
            except ModuleNotFoundError as error:
                self.unavailable[selection.entry.name] = f"needs the package {error.name}"
                continue
            if metric.name in self.metrics:
                raise InputError(
                    f"two metrics have the name '{metric.name}'; rename one", code=ErrorCode.DUPLICATE, field="metrics"
                )
            for score in metric.scores:
                other = metric_of_score.setdefault(score, metric.name)
                if other != metric.name:
                    raise InputError(
                        f"the metrics {other} and {metric.name} both give the score '{score}'",
                        code=ErrorCode.DUPLICATE,
                        field="metrics",
                    )
            self.metrics[metric.name] = (selection, metric)
        if not self.metrics:
            if len(self.unavailable) == len(errors) == 1:
                raise errors[0]
            raise InputError(
                "no metric can be computed: " + "; ".join(f"{name}: {why}" for name, why in self.unavailable.items()),
                code=ErrorCode.MISSING_REQUIREMENT,
                field="metrics",
            )

    def run(
        self, pairs: Pairs | Iterable[Pair], *, bootstrap: int, seed: int, folder: Path | None = None
    ) -> EvaluationResult:
        """Score pairs by each metric.

        Args:
            pairs: as for `evaluate`.
            bootstrap: replicates.
            seed: of the bootstrap.
            folder: results folder with cached results; the result of each metric is cached there when it is done.

        Raises:
            InputError: two pairs have the same id, or there are no pairs.
            RunError: no metric could score anything.
        """
        scored_pairs = as_pairs(pairs)
        if not scored_pairs:
            raise InputError("no pairs to score", code=ErrorCode.EMPTY_INPUT)
        cache = None if folder is None else MetricCache(folder, scored_pairs)
        draws = {"bootstrap": bootstrap, "seed": seed}
        runs: dict[str, MetricRun] = {}
        unavailable = dict(self.unavailable)
        for name, (selection, metric) in self.metrics.items():
            started, identity, cached = time.monotonic(), None, None
            try:
                with report_errors(name, RunError):
                    if cache is not None:
                        identity = self.resources.identity(selection, metric)
                        cached = cache.read(metric, identity)
                    result = cached or score_pairs(metric, scored_pairs)
                    result = _check_values(result, selection, len(scored_pairs))
                    if cache is not None and cached is None:
                        cache.write(metric, identity, result)
                    runs[name] = MetricRun.of(
                        metric,
                        selection,
                        result,
                        draws,
                        seconds=round(time.monotonic() - started, 3),
                        arguments=self.resources.metric_args.get(selection.entry.name, {}),
                        reused=cached is not None,
                    )
            except RunError as error:
                if len(self.selections) == 1:
                    raise
                unavailable[selection.entry.name] = str(error)
        if not runs:
            raise RunError(
                "; ".join(f"{name}: {why}" for name, why in unavailable.items()), code=ErrorCode.NOTHING_SCORED
            )
        without_candidate = pairs.without_candidate if isinstance(pairs, Pairs) else ()
        return EvaluationResult(scored_pairs, runs, self.selections, unavailable, without_candidate, draws)


class RadFact:
    """RadFact with a judge: which sentences of each report follow from the other one, and where they lie.

    Source: MAIRA-2, appendix C.
    """

    def __init__(
        self,
        judge: Judge | JudgeFunction,
        *,
        compat: Compat = "paper",
        threshold: float = 0.5,
        on_failure: OnFailure = "drop",
        bootstrap: int = 500,
        seed: int = 42,
        splitter: Splitter | Callable[[str], Sequence[str]] | None = None,
    ) -> None:
        """Set the judge and the options.

        Args:
            judge: decides the entailment queries, or a function of (premises, hypothesis), see
                `radfact.judges.callables.CallableJudge`.
            compat: as in `radfact.scoring.options.ScoringOptions`.
            threshold: likewise.
            on_failure: likewise.
            bootstrap: number of replicates for the intervals; 0 for none.
            seed: of the bootstrap.
            splitter: splits narratives into sentences, or a function of one narrative; by default the judge's model
                does, or the offline rules if it has none.

        Raises:
            InputError: an option, the judge or the splitter is not valid.
        """
        for name, number in (("bootstrap", bootstrap), ("seed", seed)):
            if number < 0:
                raise InputError(f"expected 0 or more, found {number!r}", code=ErrorCode.INVALID_OPTION, field=name)
        self.metric = RadFactMetric(judge, splitter, compat=compat, threshold=threshold, on_failure=on_failure)
        self.bootstrap, self.seed = bootstrap, seed

    def score(
        self, candidates: Iterable[Pair] | Sequence[Report], references: Sequence[Report] | None = None
    ) -> EvaluationResult:
        """Score pairs, or a list of candidates against the list of their references (numbered from 0 then).

        Args:
            candidates: pairs, or reports.
            references: reports, if the candidates are reports.

        Raises:
            InputError: the two lists differ in length or hold something else than reports, or an id is a duplicate.
            RunError: with `on_failure="stop"`, a query or a narrative has no valid response.
        """
        pairs = as_pairs(candidates, references)
        draws = {"bootstrap": self.bootstrap, "seed": self.seed}
        (selection,) = select_metrics(self.metric.name)
        run = MetricRun.of(self.metric, selection, self.metric.score(pairs), draws)
        without_candidate = candidates.without_candidate if isinstance(candidates, Pairs) else ()
        return EvaluationResult(pairs, {run.metric.name: run}, [selection], {}, without_candidate, draws)

    async def ascore(
        self, candidates: Iterable[Pair] | Sequence[Report], references: Sequence[Report] | None = None
    ) -> EvaluationResult:
        """Score as `score` does, in a thread, so that the event loop stays free.

        Cancellation stops the waiting. Queries that were sent to a model continue until they are answered or the
        program ends; with a cache no response is lost, and the same call sends only what is missing.

        Args:
            candidates: as in `score`.
            references: as in `score`.

        Raises:
            InputError: as `score`.
            RunError: as `score`.
        """
        outcome: concurrent.futures.Future[EvaluationResult] = concurrent.futures.Future()

        def work() -> None:
            outcome.set_running_or_notify_cancel()
            try:
                outcome.set_result(self.score(candidates, references))
            except BaseException as error:
                outcome.set_exception(error)

        # A daemon thread, because the threads of a pool would keep an interrupted program alive until the last
        # response.
        threading.Thread(target=work, name="radfact-score", daemon=True).start()
        return await asyncio.wrap_future(outcome)


def as_pairs(candidates: Iterable[Pair] | Sequence[Report], references: Sequence[Report] | None = None) -> list[Pair]:
    """Return a list of valid pairs.

    Args:
        candidates: pairs, or reports.
        references: reports, if the candidates are reports.

    Raises:
        InputError: the two lists differ in length or hold something else than reports, or an id is a duplicate.
    """
    if isinstance(candidates, str) or isinstance(references, str):
        raise InputError("expected a list of reports, found one text")
    items = list(candidates)
    if references is None:
        pairs = [item for item in items if isinstance(item, Pair)]
        if len(pairs) != len(items):
            raise InputError("expected pairs, or a list of candidates and the list of their references")
    else:
        reports = [item for item in items if not isinstance(item, Pair)]
        if len(reports) != len(references):
            raise InputError(
                f"expected as many references as candidates, found {len(reports)} candidates and "
                f"{len(references)} references",
                code=ErrorCode.MISMATCH,
            )
        pairs = [Pair(str(i), *both) for i, both in enumerate(zip(reports, references, strict=True))]
    seen: set[str] = set()
    for pair in pairs:
        if pair.sample_id in seen:
            raise InputError(f"duplicate id '{pair.sample_id}'", code=ErrorCode.DUPLICATE, field="sample_id")
        seen.add(pair.sample_id)
        for side, report in (("candidate", pair.candidate), ("reference", pair.reference)):
            # A list of reports and a list of sentences are easily confused.
            is_sentences = isinstance(report, list | tuple) and all(isinstance(item, Sentence) for item in report)
            if not (isinstance(report, str) or is_sentences):
                raise InputError(
                    f"expected a list of Sentence or one narrative, found {brief(report)}",
                    field=f"{pair.sample_id}.{side}",
                )
    return pairs


def _check_values(result: MetricResult, selection: MetricSelection, count: int) -> MetricResult:
    """Check the values of a metric, and count samples without any value as failures where a custom metric does not.

    Args:
        result: of the metric.
        selection: of the metric.
        count: number of pairs.

    Raises:
        RunError: a value is infinite, or no sample could be scored.
    """
    for name, values in result.values.items():
        if any(map(math.isinf, values)):
            raise RunError(f"{selection.entry.name}: expected finite values of '{name}', found infinity")
    if selection.metric is not None or not selection.entry.is_builtin:
        silent = [
            place
            for place, row in enumerate(zip(*result.values.values(), strict=True))
            if place not in result.failures and all(map(math.isnan, row))
        ]
        result = replace(result, failures={**result.failures, **dict.fromkeys(silent, "gave no value")})
    if len(result.failures) == count:
        raise RunError(
            f"no sample could be scored ({result.failures[0]}); responses of a model stay in the cache",
            code=ErrorCode.NOTHING_SCORED,
        )
    return result
