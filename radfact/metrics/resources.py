"""Resources of metrics: a judge, a model, weights; each is loaded once and shared."""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from radfact.cache_folders import weights_folder
from radfact.errors import ErrorCode, InputError
from radfact.judges import Judge, Splitter
from radfact.judges.callables import JudgeFunction, as_judge, as_splitter
from radfact.judges.options import JudgeOptions
from radfact.metrics.options import RepeatOptions
from radfact.metrics.protocol import Metric, Requirements, check_metric, report_errors
from radfact.metrics.registry import MetricEntry, MissingRequirementError, entries
from radfact.metrics.weights import catalog, find_lack
from radfact.options import rename_fields

if TYPE_CHECKING:
    from radfact.llm import ChatClient

WITHOUT_MODEL = ("offline", "python")


class MetricResources:
    """Creates metrics from the judge, the model and the weights that they share."""

    def __init__(
        self,
        *,
        judge: str | Judge | JudgeFunction | JudgeOptions | None = None,
        splitter: str | Splitter | Callable[[str], Sequence[str]] | None = None,
        model: str | ChatClient | None = None,
        cache: Path | None = None,
        weights: Mapping[str, Path] | Sequence[Path] = (),
        metric_args: Mapping[str, Mapping[str, Any]] | None = None,
        radfact: Mapping[str, Any] | None = None,
        repeat: int = 1,
        **judge_options: Any,
    ) -> None:
        """Set the resources; nothing is loaded yet.

        Args:
            judge: judge of RadFact: a name as in `JudgeOptions`, all options of a judge, a judge or a function.
            splitter: splitter of RadFact: a name, a splitter or a function; by default the judge's own one.
            model: model of the metrics that query a language model: a name as in `radfact.llm.load_chat_client`, or a
                client; by default the judge, if it is a model. A client keeps its own sampling parameters, and a
                warning is given if a metric asks for others.
            cache: folder of the response cache of a model; a client has its own.
            weights: folders of weights by name (`wordnet`, `bertscore`, `chexbert`, `radgraph`, `ratescore`), or
                folders that hold folders of these names; other weights come from the folder of `radfact weights fetch`.
            metric_args: arguments of the metrics by their names, such as `examples` of fineradscore.
            radfact: fields of `radfact.metrics.radfact.options.ScoringOptions`.
            repeat: number of times to query a model about the same pairs (`radfact.metrics.options.RepeatOptions`).
            judge_options: further fields of `radfact.judges.options.JudgeOptions`, such as `base_url`.

        Raises:
            InputError: an unknown option, weights of a name that no metric knows, or options of a model with a client.
        """
        if isinstance(judge, JudgeOptions):
            self._judge_options = judge
        else:
            named = {"judge": judge, "splitter": splitter}
            judge_options |= {name: value for name, value in named.items() if isinstance(value, str)}
            self._judge_options = JudgeOptions(**judge_options)
        self._judge = None if isinstance(judge, str | JudgeOptions) else judge
        self._splitter = None if isinstance(splitter, str) else splitter
        self._cache = cache
        judge_name = None if self._judge is not None else self._judge_options.judge
        self._model = judge_name if model is None else model
        # The address of a model that is named in addition is not that of a judge without one.
        self._own_options = self._judge_options
        if model is not None and judge_name is not None and not _is_model(judge_name):
            no_model = {"base_url": None, "concurrency": None, "max_invalid": None}
            self._own_options = self._judge_options.model_copy(update=no_model)
        self.radfact = dict(radfact or {})
        self.repeat = RepeatOptions(repeat=repeat).repeat
        self.metric_args = {name: dict(arguments) for name, arguments in (metric_args or {}).items()}
        self._weights = weights if isinstance(weights, Mapping) else {}
        self._weight_roots = () if isinstance(weights, Mapping) else weights
        # All metrics are imported to know the names.
        metrics = entries().values() if self._weights else ()
        known = {name for entry in metrics for name in entry.declared.requirements.weights}
        if unknown := [name for name in self._weights if name not in known]:
            message = f"no metric has weights of that name; expected {', '.join(sorted(known))}"
            raise InputError(message, code=ErrorCode.UNKNOWN_NAME, field=f"weights.{unknown[0]}")
        self.needs_splitter = True
        self.usage_by_role: dict[str, Callable[[], Mapping[str, int]]] = {}
        self._clients: list[ChatClient] = []
        self._metrics: dict[MetricEntry, Metric] = {}
        if self._model is not None and not isinstance(self._model, str) and judge_name is None:
            for name in ("judge_args", "base_url", "concurrency", "max_invalid"):
                if getattr(self._judge_options, name) not in (None, {}):
                    message = "a client has its own; give the model's name instead of the client"
                    raise InputError(message, code=ErrorCode.CONFLICTING_OPTIONS, field=name)

    def metric(self, entry: MetricEntry) -> Metric:
        """Return the metric of an entry, the same object on every call."""
        if entry in self._metrics:
            return self._metrics[entry]
        factory, arguments = entry.load(), self.metric_args.get(entry.name, {})
        is_class, requirements = isinstance(factory, type) and issubclass(factory, Metric), entry.declared.requirements
        _check_packages(requirements)
        if is_class:
            # Missing weights are reported as such, before the signature is compared.
            self.find_weights(requirements)
        if isinstance(factory, Metric) and not arguments:
            metric: Any = factory
        else:
            entry.check_arguments(arguments)
            fields = {name: f"metric_args.{entry.name}.{name}" for name in arguments}
            with rename_fields(fields), report_errors(entry.home, InputError):
                metric = factory.create(self, **arguments) if is_class else factory(**arguments)
        check_metric(metric, entry.home)
        if requirements.weights and requirements.judge is None and metric.reads == "text":
            # Another metric may combine this one, and score the same texts next.
            remembered = lru_cache(maxsize=1)(lambda pairs, score=metric.score: score(list(pairs)))
            metric.score = lambda pairs: remembered(tuple(pairs))
        self._metrics[entry] = metric
        return self._metrics[entry]

    def find_fault(self, entry: MetricEntry) -> InputError | None:
        """Return what prevents the creation of a metric, if anything; no weights are loaded to find out."""
        try:
            requirements = entry.declared.requirements
            _check_packages(requirements)
            self.find_weights(requirements)
            if requirements.judge == "model":
                self.client({}, entry.name)
            elif requirements.judge == "any":
                self.entailment()
        except InputError as error:
            return error
        return None

    def find_weights(self, requirements: Requirements) -> list[Path]:
        """Return the folders of all required weights; `MissingRequirementError` names every missing file."""
        found, missing = [], []
        for name, files in requirements.weights.items():
            roots = [Path(root) / name for root in (*self._weight_roots, weights_folder())]
            places = [Path(self._weights[name])] if name in self._weights else roots
            folder = next((place for place in places if place.is_dir()), None)
            if folder is None:
                entry = catalog().get(name)
                ways = [f"radfact weights fetch {name}", entry.package] if entry else []
                fetch = "".join(f"{way}, or " for way in ways if way)
                missing.append(f"{fetch}--weights {name}=FOLDER with {', '.join(files).replace('|', ' or ')}")
            elif lack := find_lack(folder, files):
                missing.append(lack)
            else:
                found.append(folder)
        if missing:
            raise MissingRequirementError("needs weights", "; ".join(missing))
        return found

    def client(self, parameters: Mapping[str, Any], name: str) -> ChatClient:
        """Return a client of the language model with the parameters of the metric `name`, unless others are set."""
        from radfact.llm import ChatClient

        model = self._model
        if isinstance(model, ChatClient):
            # A client may not know its own parameters.
            known = parameters if (own := model.identity.get("parameters")) is None else own
            if differences := [f"{key} {value}" for key, value in parameters.items() if known.get(key) != value]:
                warnings.warn(f"{name} requires {', '.join(differences)}; the client has other values", stacklevel=2)
            return model
        if model is None or not _is_model(model):
            instead = "" if model is None else f" instead of {model}"
            raise MissingRequirementError("needs a language model", f"--judge PROVIDER:MODEL{instead}")
        client = self._judge_options.load_client(parameters, self._cache, name=model)
        self._clients.append(client)
        self.usage_by_role[name] = client.usage_counter.as_dict
        return client

    def entailment(self) -> tuple[Judge, Splitter | None]:
        """Return the judge and the splitter of RadFact; no splitter if `needs_splitter` is false."""
        if self._judge is not None:
            judge = as_judge(self._judge)
        elif self._judge_options.judge is None:
            raise MissingRequirementError("needs a judge", "--judge offline or --judge PROVIDER:MODEL")
        else:
            judge = self._own_options.load(self._cache)
        splitter = None
        if self.needs_splitter:
            own = self._splitter
            splitter = self._own_options.load_splitter(judge, self._cache) if own is None else as_splitter(own)
            self.usage_by_role["splitting"] = splitter.usage
        self.usage_by_role["judging"] = judge.usage
        return judge, splitter

    def close(self) -> None:
        """Close the connections of all clients and their response caches."""
        for client in self._clients:
            client.close()


def _is_model(name: str) -> bool:
    return name.partition(":")[0] not in WITHOUT_MODEL


def _check_packages(requirements: Requirements) -> None:
    for package in requirements.packages:
        if importlib.util.find_spec(package) is None:
            raise MissingRequirementError(f"needs the package {package}", 'pip install "maira-radfact[metrics,model]"')
