"""What metrics are made of: a judge, a model, weights; each is made once and shared."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from radfact.errors import ErrorCode, InputError
from radfact.judges import Judge, load_judge
from radfact.judges.callables import as_judge
from radfact.judges.protocol import SplittingJudge
from radfact.metrics.protocol import Metric, MetricResult, check_metric, report_errors
from radfact.metrics.registry import (
    MetricEntry,
    MetricSelection,
    MissingRequirementError,
    Weights,
    check_packages,
    entries,
)
from radfact.statistics.bootstrap import Summary

if TYPE_CHECKING:
    from radfact.judges import Splitter
    from radfact.judges.callables import JudgeFunction
    from radfact.llm import ChatClient

WITHOUT_MODEL = ("offline", "python")


class ResourceOptions(TypedDict, total=False):
    """What there is to make metrics of; all may be left out.

    Attributes:
        judge: of RadFact: a name as in `radfact.judges.load_judge`, a judge or a function.
        entailment: makes the judge and the splitter of RadFact instead, when they are needed.
        model: of the other metrics that ask a language model: a name as in `radfact.llm.load_chat_client`, or a
            client; by default the judge, if that is the name of a model. A client is asked with the parameters that it was
            made with, also where a metric wants others (its `parameters`), of which a warning is given.
        judge_args: further arguments of the model by name; a client has its own.
        base_url: address of an OpenAI-compatible server; likewise.
        concurrency: calls in flight; likewise.
        cache: folder for the answers of a model; a client has its own.
        splitter: of RadFact: a name as in `radfact.judges.load_splitter`, a splitter or a function; by default the
            judge's model, or the offline rules where it has none.
        weights: folders of weights by name (`wordnet`, `bertscore`, `chexbert`, `radgraph`), or folders that hold
            folders of these names.
        radfact: fields of `radfact.scoring.radfact.ScoringOptions`.
        metric_args: by the name of a metric, arguments that it is made with, such as `zero_shot` of fineradscore.
    """

    judge: str | Judge | JudgeFunction | None
    entailment: Callable[[], tuple[Judge, Splitter | None]] | None
    model: str | ChatClient | None
    judge_args: Mapping[str, Any] | None
    base_url: str | None
    concurrency: int | None
    cache: Path | None
    splitter: str | Splitter | Callable[[str], Sequence[str]] | None
    weights: Mapping[str, Path] | Sequence[Path]
    radfact: Mapping[str, Any] | None
    metric_args: Mapping[str, Mapping[str, Any]] | None


class MetricResources:
    """Makes metrics, and what they share."""

    def __init__(self, **options: Unpack[ResourceOptions]) -> None:
        """Take what there is; nothing is loaded yet.

        Args:
            options: as `ResourceOptions` has them.

        Raises:
            InputError: weights have a name that no metric knows, or options of a model go with a client.
        """
        self.judge, self.splitter = options.get("judge"), options.get("splitter")
        self.radfact = dict(options.get("radfact") or {})
        self._entailment = options.get("entailment")
        model = options.get("model")
        self.model = model if model is not None or not isinstance(self.judge, str) else self.judge
        self._options: dict[str, Any] = {name: options.get(name) for name in ("base_url", "concurrency", "cache")}
        self._judge_args = dict(options.get("judge_args") or {})
        self.metric_args = {name: dict(given) for name, given in (options.get("metric_args") or {}).items()}
        self.weights = _weights(options.get("weights") or ())
        self.needs_splitter = True
        self._clients: list[ChatClient] = []
        self._metrics: dict[str, Metric] = {}
        self.usage_by_role: dict[str, Callable[[], Mapping[str, int]]] = {}
        self._check_client()

    def metric(self, entry: MetricEntry) -> Metric:
        """The metric of an entry; the same one on every call.

        Raises:
            MissingRequirementError: something that it needs is not there.
            InputError: what is there cannot be used, or the entry is no metric.
        """
        if entry.name not in self._metrics:
            self._metrics[entry.name] = self._create(entry)
        return self._metrics[entry.name]

    def shared(self, name: str) -> Metric:
        """A metric of ours by name, for those that are made of it."""
        return self.metric(entries()[name])

    def _create(self, entry: MetricEntry) -> Metric:
        check_packages(entry.requirements)
        loaded, arguments = entry.load(), self.metric_args.get(entry.name, {})
        if isinstance(loaded, Metric) and not arguments:
            metric = loaded
        elif isinstance(loaded, type) and issubclass(loaded, Metric):
            # Missing weights are reported as such, before the signature is compared.
            self.weights.find_all(loaded.requirements)
            metric = _call(entry, partial(loaded.create, self), **arguments)
        else:
            metric = _call(entry, loaded, **arguments)
        check_metric(metric, entry.home)
        return SharedMetric(metric) if entry.requirements.weights and entry.requirements.judge is None else metric

    def identity(self, selection: MetricSelection, metric: Metric) -> dict[str, Any] | None:
        """Return everything that determines the result of a metric for given pairs; None if that is not known.

        It is known for built-in metrics, and for any that implements `describe`. A metric that queries a model and does
        not describe itself is computed again, with the cached responses of its model; so is RadFact with a custom judge,
        whose code may have changed.

        Args:
            selection: of the metric.
            metric: the metric.
        """
        entry, settings = selection.entry, metric.describe()
        is_known = settings is not None or (entry.is_builtin and metric.requirements.judge != "model")
        if selection.metric is not None or not is_known or _has_custom_judge(settings):
            return None
        files = [file for folder in self.weights.find_all(entry.requirements) for file in _files_below(folder)]
        return {
            "home": entry.home,
            "arguments": self.metric_args.get(entry.name, {}),
            "versions": {name: _version(name) for name in ("maira-radfact", *entry.requirements.packages)},
            "weights": [[str(file), file.stat().st_size, file.stat().st_mtime_ns] for file in files],
            "settings": settings,
        }

    def find_fault(self, entry: MetricEntry) -> InputError | None:
        """Return what prevents the creation of a metric, if anything; no weights are loaded to find out."""
        try:
            requirements = entry.requirements
            check_packages(requirements)
            self.weights.find_all(requirements)
            if requirements.judge == "model":
                self.client({}, entry.name)
            elif requirements.judge == "any":
                self.entailment()
        except InputError as error:
            return error
        return None

    def client(self, parameters: Mapping[str, Any], name: str) -> ChatClient:
        """A client of the model, with the sampling that a metric wants where the user says nothing else.

        Args:
            parameters: of the metric.
            name: of the metric, for the display of a run.

        Raises:
            MissingRequirementError: no model is named.
            InputError: the model cannot be reached for want of a package or a key, or an option does not fit.
        """
        from radfact.llm import ChatClient, load_chat_client, parse_model_args

        model = self.model
        if isinstance(model, ChatClient):
            _warn_of_parameters(name, parameters, model.identity.get("parameters"))
            return model
        if model is None:
            raise MissingRequirementError("needs a language model", "--judge PROVIDER:MODEL")
        if not _is_model(model):
            raise MissingRequirementError("needs a language model", f"--judge PROVIDER:MODEL instead of {model}")
        parameters = {**parameters, **parse_model_args(self._judge_args)}
        made = load_chat_client(model, parameters=parameters, **self._options)
        self._clients.append(made)
        self.usage_by_role[name] = made.usage_counter.as_dict
        return made

    def entailment(self) -> tuple[Judge, Splitter | None]:
        """The judge and the splitter of RadFact; no splitter where `needs_splitter` is false.

        Raises:
            MissingRequirementError: no judge is named.
            InputError: it cannot be made.
        """
        judge, splitter = (self._entailment or self._named)()
        if splitter is not None:
            self.usage_by_role["splitting"] = splitter.usage
        self.usage_by_role["judging"] = judge.usage
        return judge, splitter

    def _named(self) -> tuple[Judge, Splitter | None]:
        from radfact.judges import default_splitter, load_splitter
        from radfact.judges.callables import as_splitter

        judge, splitter = self.judge, self.splitter
        if judge is None:
            raise MissingRequirementError("needs a judge", "--judge offline or --judge PROVIDER:MODEL")
        if isinstance(judge, str):
            options: dict[str, Any] = self._options if _is_model(judge) else {}
            judge = load_judge(judge, judge_args=self._judge_args, **options)
        judge = as_judge(judge)
        if not self.needs_splitter:
            return judge, None
        same = isinstance(splitter, str) and splitter == self.judge
        if splitter is None or (same and isinstance(judge, SplittingJudge)):
            return judge, default_splitter(judge)
        if isinstance(splitter, str):
            # Another model than the judge stands elsewhere, and has other arguments.
            names = ("concurrency", "cache") if _is_model(splitter) else ()
            return judge, load_splitter(splitter, **{name: self._options[name] for name in names})
        return judge, as_splitter(splitter)

    def _check_client(self) -> None:
        """Options of a model would be of no effect on a client that is made already; a judge by name takes them."""
        if self.model is None or isinstance(self.model, str) or isinstance(self.judge, str) or self._entailment:
            return
        given = {"judge_args": self._judge_args or None, **self._options, "cache": None}
        for name, one in given.items():
            if one is not None:
                raise InputError("a client has its own; give the model's name instead of the client", field=name)

    def close(self) -> None:
        """Give back connections and the files of answers."""
        for client in self._clients:
            client.close()


class SharedMetric(Metric):
    """A metric that other metrics use too: the same pairs are not computed twice in a row."""

    def __init__(self, metric: Metric) -> None:
        for attribute in Metric.__annotations__:
            setattr(self, attribute, getattr(metric, attribute))
        self._metric = metric
        self._last: tuple[list[Any], MetricResult] | None = None

    def score(self, pairs: Sequence[Any]) -> MetricResult:
        """Return the result of the metric, computed or remembered."""
        if self._last is None or self._last[0] != list(pairs):
            self._last = list(pairs), self._metric.score(pairs)
        return self._last[1]

    def aggregate(
        self, result: MetricResult, names: Sequence[str], *, replicates: int, seed: int
    ) -> dict[str, Summary]:
        """Aggregate as the metric does."""
        return self._metric.aggregate(result, names, replicates=replicates, seed=seed)

    def describe(self) -> dict[str, Any] | None:
        """Describe the metric."""
        return self._metric.describe()


def _is_model(name: str) -> bool:
    return name.partition(":")[0] not in WITHOUT_MODEL


def _weights(given: Mapping[str, Path] | Sequence[Path]) -> Weights:
    if not isinstance(given, Mapping):
        return Weights(roots=tuple(map(Path, given)))
    known = sorted({name for entry in entries().values() for name in entry.requirements.weights})
    for name in given:
        if name not in known:
            raise InputError(
                f"no metric has weights of that name; expected {', '.join(known)}", field=f"weights.{name}"
            )
    return Weights({name: Path(folder) for name, folder in given.items()})


def _call(entry: MetricEntry, factory: Any, **arguments: Any) -> Any:
    """Call the class or function of an entry.

    Raises:
        InputError: it does not take these arguments, or fails.
    """
    field = "metric_args" if arguments else "metrics"
    if not callable(factory):
        raise InputError(
            f"{entry.home}: expected a subclass of radfact.Metric or a function that creates a metric",
            code=ErrorCode.INVALID_PLUGIN,
            field=field,
        )
    try:
        if entry.signature is not None:
            entry.signature.bind_partial(**arguments)
    except TypeError as error:
        raise InputError(f"{entry.home}: {error}", code=ErrorCode.INVALID_OPTION, field=field) from None
    with report_errors(entry.home, InputError):
        return factory(**arguments)


def _files_below(folder: Path) -> list[Path]:
    """All files of a folder and of those in it, links followed, in a fixed order."""
    walked = os.walk(folder, followlinks=True)
    return sorted(Path(where, name) for where, _, names in walked for name in names if Path(where, name).is_file())


def _warn_of_parameters(name: str, wanted: Mapping[str, Any], given: Mapping[str, Any] | None) -> None:
    """Say that a client has other parameters than a metric wants; one that does not state its own may have any."""
    other = {} if given is None else {key: value for key, value in wanted.items() if given.get(key) != value}
    if other:
        said = ", ".join(f"{key} {value}" for key, value in other.items())
        warnings.warn(f"{name} is meant to be asked with {said}; the client has parameters of its own", stacklevel=3)


def _has_custom_judge(settings: Mapping[str, Any] | None) -> bool:
    judge = (settings or {}).get("judge")
    return isinstance(judge, Mapping) and str(judge.get("name", "")).startswith("python")


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
