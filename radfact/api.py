"""Scoring: pairs of reports in, an `EvaluationResult` and a results folder out.

Commands, Python and the jobs of `maira` call `evaluate`. `RadFact` and rewards score alike, and write no files.
"""

from __future__ import annotations

import math
import platform
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Self

from radfact.errors import ErrorCode, InputError, RunError, option_error
from radfact.io.outputs import RESULTS_FOLDER, lock_output, replace_files
from radfact.io.pairs import PairLike, ReportLike, as_pairs
from radfact.judges import Judge, Splitter
from radfact.judges.callables import JudgeFunction
from radfact.judges.options import JudgeOptions
from radfact.llm.plan import RequestPlan
from radfact.llm.protocol import use_repeat
from radfact.metrics.protocol import Metric, MetricResult, plan_pairs, report_errors, score_pairs
from radfact.metrics.radfact.options import BootstrapOptions, Compat, OnFailure
from radfact.metrics.registry import (
    MetricSelection,
    MissingRequirementError,
    expand_presets,
    need_references,
    select_metrics,
)
from radfact.metrics.repeats import combine_repeats
from radfact.metrics.resources import MetricResources
from radfact.records import Pairs, narratives
from radfact.results.evaluation import EvaluationResult, MetricRun
from radfact.results.options import PageOptions
from radfact.results.writer import write_files, write_results

if TYPE_CHECKING:
    from radfact.results.compare import Comparison


def evaluate(
    pairs: Iterable[PairLike],
    metrics: str | Sequence[str | Metric] | MetricSet = ("radfact",),
    *,
    bootstrap: int = 500,
    seed: int = 42,
    out: Path | str | None = None,
    run: Mapping[str, Any] | None = None,
    page: PageOptions | None = None,
    overwrite: bool = False,
    **options: Any,
) -> EvaluationResult:
    """Score pairs by one or more metrics, and write a results folder with a page.

    A metric that lacks weights, a key or a package is skipped and named in `unavailable`; the others continue.

    Args:
        pairs: from `read_pairs` or `read_candidates_and_references`, any pairs, or objects `{example_id, prediction,
            target}`. The bootstrap draws their clusters as a whole, where they have them.
        metrics: names of metrics or of single scores, `module:object` of a custom metric, "all", the preset "rexrank",
            or metrics themselves.
        bootstrap: replicates for the intervals; 0 for none.
        seed: of the bootstrap.
        out: results folder, also of an interrupted run, whose responses of models are cached.
        run: further fields of `run.json`, JSON values only.
        page: images and notes of `report.html`.
        overwrite: whether `out` may hold files of another origin; those with the names of results are replaced.
        options: judge, model, weights, variants (`compat`) and arguments of the metrics, as in
            `radfact.metrics.resources.MetricResources`. The `cache` is by default in `out`.

    Raises:
        InputError: a name is not a metric, an option is not valid, no metric can be created, or `out` cannot be used.
        RunError: no metric could score anything.
    """
    started = time.monotonic()
    folder = None if out is None else Path(out)
    pairs = as_pairs(pairs, needs_reference=isinstance(metrics, MetricSet) or need_references(metrics))
    with ExitStack() as stack:
        if folder is not None:
            stack.enter_context(lock_output(folder, RESULTS_FOLDER, inputs=pairs.files, overwrite=overwrite))
        if not isinstance(metrics, MetricSet):
            options["cache"] = options.get("cache") or (folder and folder / "cache")
            metrics = stack.enter_context(MetricSet(metrics, needs_splitter=bool(narratives(pairs)), **options))
        result = metrics.score(pairs, bootstrap=bootstrap, seed=seed)
        if folder is not None:
            # Imported late: only results on disk have a page.
            from radfact.pages.page import page_record, write_page

            record = {
                "versions": versions(),
                "input": {
                    "files": list(map(str, pairs.files)),
                    "models": list(pairs.models),
                    "read": pairs.read,
                    "skipped": pairs.skipped,
                    "empty_candidates": len(pairs.empty_candidates),
                    "without_reference": len(pairs.without_reference),
                },
                "seconds": round(time.monotonic() - started, 3),
                **(run or {}),
                "page": page_record(page or PageOptions(), folder).model_dump(mode="json"),
            }
            with replace_files(folder) as new:
                write_files(result, new, record)
                write_page(new, base=folder)
    return result


def compare(
    *systems: EvaluationResult | Path | str,
    names: Sequence[str] = (),
    scores: str | Sequence[str] = (),
    bootstrap: int = 500,
    rounds: int | None = None,
    seed: int = 42,
    cluster: str | None = None,
    metrics: Sequence[str] = (),
) -> Comparison:
    """Compare the first of some systems with the others on the samples that all have, with significance tests.

    Args:
        systems: results in memory, or results folders, the baseline first.
        names: of the systems; by default those of the folders, or "system 1" and so on for results in memory.
        scores: names of the main scores, over which Holm's method runs, or of metrics; by default one main score of
            each metric.
        bootstrap: replicates for the intervals; 0 for none.
        rounds: of approximate randomization; by default 1000, or 200 for each test if that is more.
        seed: of both.
        cluster: what is resampled and swapped as a whole, as in `radfact compare`.
        metrics: `module:object` of custom metrics whose pooled scores are compared.

    Raises:
        InputError: the systems have no sample or no score in common, or an option is not valid.
    """
    from radfact.results.compare import compare as compare_folders

    if names and len(names) != len(systems):
        message = f"expected a name for each of the {len(systems)} systems, found {len(names)}"
        raise option_error(message, "names", ErrorCode.MISMATCH)
    if len({*names}) < len(names):
        raise option_error(f"expected different names, found {', '.join(names)}", "names", ErrorCode.DUPLICATE)
    if rounds is not None and rounds < 1:
        raise option_error(f"expected 1 round or more, found {rounds}", "rounds")
    draws = BootstrapOptions(bootstrap=bootstrap, seed=seed)
    options = {"replicates": draws.bootstrap, "rounds": rounds, "seed": draws.seed, "cluster": cluster}
    with TemporaryDirectory() as temporary:
        folders = []
        for number, system in enumerate(systems, start=1):
            if isinstance(system, EvaluationResult):
                folders.append(Path(temporary) / f"system {number}")
                write_results(system, folders[-1], {"versions": versions()})
            else:
                folders.append(Path(system))
        return compare_folders(folders, names=names, scores=scores, metrics=metrics, **options)


def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that every score depends on."""
    packages = {name: version(name) for name in ("maira-radfact", "numpy", "pydantic")}
    return {"python": platform.python_version(), **packages}


_NO_REFERENCES = "needs a reference for each candidate: a column 'reference', or --references FILE"


class MetricSet:
    """Selected metrics and their resources, created before any model is queried; its context closes connections."""

    def __init__(self, metrics: str | Sequence[str | Metric], *, needs_splitter: bool = True, **options: Any) -> None:
        self.names, self.compat = expand_presets(metrics, options.pop("compat", ()))
        self.selections = select_metrics(self.names, self.compat)
        self.resources = MetricResources(**options)
        self.resources.needs_splitter = needs_splitter
        self.metrics: dict[str, tuple[MetricSelection, Metric]] = {}
        self.unavailable: dict[str, str] = {}
        try:
            self._create_all()
        except BaseException:
            self.resources.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.resources.close()

    def _create_all(self) -> None:
        for name in self.resources.metric_args.keys() - {selection.entry.name for selection in self.selections}:
            raise option_error("this metric is not selected", f"metric_args.{name}", ErrorCode.CONFLICTING_OPTIONS)
        errors: list[InputError] = []
        metric_of_score: dict[str, str] = {}
        for selection in self.selections:
            name = selection.entry.name
            try:
                metric = selection.metric or self.resources.metric(selection.entry)
            except InputError as error:
                # An unknown argument is wrong input; a missing package or weight only makes the metric unavailable.
                if name in self.resources.metric_args and not isinstance(error, MissingRequirementError):
                    raise
                self.unavailable[name] = str(error)
                errors.append(error)
                continue
            except ModuleNotFoundError as error:
                self.unavailable[name] = f"needs the package {error.name}"
                continue
            if not selection.select(metric):
                scores = ", ".join(selection.scores)
                message = f"the variant '{metric.variant}' of {metric.name} has no score {scores}"
                raise option_error(message, "compat", ErrorCode.CONFLICTING_OPTIONS)
            if metric.name in self.metrics:
                message = f"two metrics have the name '{metric.name}'; rename one"
                raise option_error(message, "metrics", ErrorCode.DUPLICATE)
            for score in metric.scores:
                other = metric_of_score.setdefault(score, metric.name)
                if other != metric.name:
                    message = f"the metrics {other} and {metric.name} both give the score '{score}'"
                    raise option_error(message, "metrics", ErrorCode.DUPLICATE)
            self.metrics[metric.name] = (selection, metric)
        if not self.metrics:
            if len(self.unavailable) == len(errors) == 1:
                raise errors[0]
            reasons = "; ".join(f"{name}: {why}" for name, why in self.unavailable.items())
            raise option_error(f"no metric can be computed: {reasons}", "metrics", ErrorCode.MISSING_REQUIREMENT)

    def score(self, pairs: Pairs, *, bootstrap: int, seed: int, is_strict: bool = True) -> EvaluationResult:
        """Score pairs by each metric."""
        if is_strict and not pairs:
            raise InputError("no pairs to score", code=ErrorCode.EMPTY_INPUT)
        draws, repeat = {"bootstrap": bootstrap, "seed": seed}, self.resources.repeat
        evaluation = EvaluationResult(pairs, {}, self.selections, {**self.unavailable}, draws, repeat)
        for name, (selection, metric) in self.metrics.items():
            started = time.monotonic()
            directions = selection.select(metric)
            try:
                if metric.needs_reference and not pairs.has_references:
                    raise RunError(_NO_REFERENCES, code=ErrorCode.MISSING_REQUIREMENT)
                with report_errors(metric.name, RunError):
                    results = [score_pairs(metric, pairs)]
                    # A metric that does not query a model is computed once.
                    has_model = any(results[0].usage.get(name) for name in ("calls", "cached"))
                    for number in range(1, repeat if has_model else 1):
                        with use_repeat(number):
                            results.append(score_pairs(metric, pairs))
                    result = results[0] if len(results) == 1 else combine_repeats(metric, results, len(pairs))
                    if is_strict:
                        result = _check_values(result, selection, len(pairs))
                    summaries = metric.aggregate(
                        result, [*directions], replicates=bootstrap, seed=seed, clusters=evaluation.clusters
                    )
            except RunError as error:
                if len(self.selections) == 1:
                    raise
                evaluation.unavailable[selection.entry.name] = str(error)
                continue
            evaluation.runs[name] = MetricRun(
                metric,
                selection,
                directions,
                result,
                {score: replace(summaries[score], direction=direction) for score, direction in directions.items()},
                round(time.monotonic() - started, 3),
                self.resources.metric_args.get(selection.entry.name, {}),
            )
        if not evaluation.runs:
            reasons = "; ".join(f"{name}: {why}" for name, why in evaluation.unavailable.items())
            raise RunError(reasons, code=ErrorCode.NOTHING_SCORED)
        return evaluation

    def plan(self, pairs: Pairs) -> dict[str, RequestPlan]:
        """Count the requests to models that `score` would send, by role, without sending any."""
        plans: dict[str, RequestPlan] = {}
        for _, metric in self.metrics.values():
            if metric.needs_reference and not pairs.has_references:
                continue
            for number in range(self.resources.repeat):
                with use_repeat(number):
                    for role, plan in plan_pairs(metric, pairs).items():
                        plans[role] = plans[role] + plan if role in plans else plan
        return plans


class RadFact:
    """RadFact with a judge: which sentences of each report follow from the other one, and where they lie.

    Source: MAIRA-2, appendix C.
    """

    def __init__(
        self,
        judge: str | Judge | JudgeFunction | JudgeOptions,
        *,
        compat: Compat = "paper",
        threshold: float = 0.5,
        on_failure: OnFailure = "drop",
        bootstrap: int = 500,
        seed: int = 42,
        splitter: str | Splitter | Callable[[str], Sequence[str]] | None = None,
        cache: Path | str | None = None,
        **judge_options: Any,
    ) -> None:
        """Set the judge and the options.

        Args:
            judge: decides the entailment queries: a name as in `JudgeOptions`, all options of a judge, a judge, or a
                function of (premises, hypothesis), see `radfact.judges.callables.CallableJudge`.
            compat: as in `radfact.metrics.radfact.options.ScoringOptions`.
            threshold: likewise.
            on_failure: likewise.
            bootstrap: number of replicates for the intervals; 0 for none.
            seed: of the bootstrap.
            splitter: splits narratives into sentences: a name, a splitter, or a function of one narrative; by default
                the judge's model does, or the offline rules if it has none.
            cache: folder of the response cache of a model that is named.
            judge_options: further fields of `radfact.judges.options.JudgeOptions`, such as `base_url`.

        Raises:
            InputError: an option, the judge or the splitter is not valid, or a package or key is missing.
        """
        draws = BootstrapOptions(bootstrap=bootstrap, seed=seed)
        self.bootstrap, self.seed = draws.bootstrap, draws.seed
        if judge_options and not isinstance(judge, str):
            message = "a judge has its own options; give the judge's name instead of the judge"
            raise option_error(message, next(iter(judge_options)), ErrorCode.CONFLICTING_OPTIONS)
        self._metrics = MetricSet(
            "radfact",
            needs_splitter=splitter is not None or isinstance(judge, str | JudgeOptions),
            judge=judge,
            splitter=splitter,
            cache=None if cache is None else Path(cache),
            radfact={"compat": compat, "threshold": threshold, "on_failure": on_failure},
            **judge_options,
        )

    def score(
        self, candidates: Iterable[PairLike] | Iterable[ReportLike], references: Iterable[ReportLike] | None = None
    ) -> EvaluationResult:
        """Score pairs, or a list of candidates against the list of their references (numbered from 0 then).

        Args:
            candidates: pairs, objects `{example_id, prediction, target}`, or reports: narratives, or lists of sentences
                or of objects `{text, boxes}`.
            references: reports, if the candidates are reports.

        Raises:
            InputError: the two lists differ in length or hold something else than reports, or an id is a duplicate.
            RunError: with `on_failure="stop"`, a query or a narrative has no valid response.
        """
        pairs = as_pairs(candidates, references)
        return self._metrics.score(pairs, bootstrap=self.bootstrap, seed=self.seed, is_strict=False)

    async def ascore(
        self, candidates: Iterable[PairLike] | Iterable[ReportLike], references: Iterable[ReportLike] | None = None
    ) -> EvaluationResult:
        """Score in a thread, so that the event loop stays free. See `score` for arguments and errors.

        Cancellation stops the waiting. Queries that were sent to a model continue until they are answered or the
        program ends; with a cache no response is lost, and the same call sends only what is missing.
        """
        import asyncio
        import concurrent.futures

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


def _check_values(result: MetricResult, selection: MetricSelection, count: int) -> MetricResult:
    """Refuse infinite values and a metric without any, and count what a custom metric does not report as a failure."""
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
