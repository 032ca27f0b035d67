"""The registry of metrics: names of classes, which are imported when they are used."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from importlib.metadata import entry_points
from inspect import getattr_static
from typing import Any

from radfact.errors import ErrorCode, InputError, suggest_name
from radfact.judges.callables import add_working_directory_to_path
from radfact.metrics.protocol import Metric, check_metric, directions_of, main_scores_of
from radfact.statistics.bootstrap import Direction

GROUP = "radfact.metrics"
"""Entry points of this group are metrics too: NAME = "module:object"."""

_BUILTIN = {
    "radfact": "radfact.metrics.radfact.metric:RadFactMetric",
    "findings": "radfact.findings.metric:Findings",
    "findings_llm": "radfact.findings.metric:FindingsLLM",
    "consistency": "radfact.metrics.consistency:Consistency",
    "consistency_llm": "radfact.metrics.consistency:ConsistencyLLM",
    "rouge_l": "radfact.metrics.classical.rouge:RougeL",
    "bleu": "radfact.metrics.classical.bleu:Bleu",
    "meteor": "radfact.metrics.classical.meteor:Meteor",
    "bertscore": "radfact.metrics.classical.bertscore:BertScore",
    "chexbert": "radfact.metrics.classical.chexbert:CheXbert",
    "radgraph": "radfact.metrics.classical.radgraph:RadGraph",
    "radcliq": "radfact.metrics.classical.radcliq:RadCliQ",
    "ratescore": "radfact.metrics.classical.ratescore:RaTEScore",
    "lateral_mentions": "radfact.metrics.classical.lateral_mentions:LateralMentions",
    "green": "radfact.metrics.llm.green:Green",
    "vert": "radfact.metrics.llm.vert:Vert",
    "vert_formula": "radfact.metrics.llm.vert:VertFormula",
    "vert_rubric": "radfact.metrics.llm.vert:VertRubric",
    "vert_tuned": "radfact.metrics.llm.vert:VertTuned",
    "fineradscore": "radfact.metrics.llm.fineradscore:FineRadScore",
    "chexprompt": "radfact.metrics.llm.chexprompt:CheXprompt",
    "chexprompt_json": "radfact.metrics.llm.chexprompt:CheXpromptJson",
    "crimson": "radfact.metrics.llm.crimson:Crimson",
    "comparison_mentions": "radfact.metrics.llm.comparison_mentions:ComparisonMentions",
}
_VARIANTS = {
    "radfact.exact": "radfact.metrics.radfact.metric:ExactRadFact",
    "rouge_l.radeval": "radfact.metrics.classical.rouge:RadEvalRougeL",
    "rouge_l.coco": "radfact.metrics.classical.rouge:CocoRougeL",
    "bleu.radeval": "radfact.metrics.classical.bleu:RadEvalBleu",
    "bleu.coco": "radfact.metrics.classical.bleu:CocoBleu",
    "bleu.rexrank": "radfact.metrics.classical.bleu:RexrankBleu",
    "meteor.hf": "radfact.metrics.classical.meteor:HuggingFaceMeteor",
    "chexbert.rrg": "radfact.metrics.classical.chexbert:RrgCheXbert",
    "radcliq.inverse": "radfact.metrics.classical.radcliq:InverseRadCliQ",
    "ratescore.rexrank": "radfact.metrics.classical.ratescore:PackageRaTEScore",
}
"""Published variants as METRIC.VARIANT: subclasses that `--compat VARIANT` selects instead."""


@dataclass(frozen=True, slots=True)
class Preset:
    """The scores of a benchmark, without the suffixes of the variants in `compat`, and where it names them."""

    scores: tuple[str, ...]
    compat: tuple[str, ...]
    source: str


PRESETS: Mapping[str, Preset] = {
    "rexrank": Preset(
        ("bleu_2", "bertscore", "chexbert_similarity", "radgraph_f1", "radcliq_v1", "ratescore", "green"),
        ("rexrank", "inverse"),
        "rajpurkarlab/ReXrank-metric, README, read from a stored public copy that was not verified to be the newest",
    )
}
"""Presets of `--metrics` by name."""


class MissingRequirementError(InputError):
    """A metric that cannot be created because a package, weights, a key or a judge is missing; the others continue."""

    def __init__(self, need: str, remedy: str) -> None:
        self.need, self.remedy = need, remedy
        super().__init__(f"{need}: {remedy}", code=ErrorCode.MISSING_REQUIREMENT)


@dataclass(frozen=True, slots=True)
class MetricEntry:
    """A metric whose properties import it; `home` is "module:object" of its class, of a factory, or of itself."""

    name: str
    home: str
    package: str | None = None  # that registers it; None for built-in and custom metrics

    @property
    def is_builtin(self) -> bool:
        return self.package is None and self.name != self.home

    @property
    def variants(self) -> dict[str, MetricEntry]:
        items = ((*key.split("."), home) for key, home in _VARIANTS.items())
        return {variant: replace(self, home=home) for name, variant, home in items if name == self.name}

    def load(self) -> Any:
        """Import the object at `home`, also from the current directory for a custom metric."""
        module, _, name = self.home.partition(":")
        if self.name == self.home:
            add_working_directory_to_path()
        try:
            return getattr(importlib.import_module(module), name)
        except Exception as error:
            message = f"metric '{self.name}' cannot be loaded from {self.home}: {error}"
            raise InputError(message, code=ErrorCode.INVALID_PLUGIN) from error

    @property
    def declared(self) -> type[Metric] | Metric:
        """The object that declares the attributes of the metric; `Metric` if only a factory can create it."""
        loaded = self.load()
        return loaded if isinstance(loaded, Metric) or _is_metric_class(loaded) else Metric

    @property
    def source(self) -> str:
        return self.declared.source if self.package is None else f"package {self.package}"

    @property
    def scores(self) -> Mapping[str, Direction]:
        """Its scores and their directions; empty if only the created metric knows them."""
        declared = self.declared
        return directions_of(declared) if isinstance(declared.scores, Mapping) else {}

    @property
    def arguments(self) -> Mapping[str, Any]:
        """Arguments that it can be created with, and their defaults."""
        parameters = () if (signature := self.signature) is None else signature.parameters.values()
        return {item.name: item.default for item in parameters if item.default is not inspect.Parameter.empty}

    @property
    def signature(self) -> inspect.Signature | None:
        """Signature of the class or function that creates the metric; None if there is none."""
        loaded = self.load()
        # A class that overrides `create` takes the arguments of that method.
        if _is_metric_class(loaded) and getattr_static(loaded, "create") is not getattr_static(Metric, "create"):
            loaded = loaded.create
        with suppress(TypeError, ValueError):  # A metric, or a callable of an extension module without signature
            return inspect.signature(loaded)
        return None

    def check_arguments(self, arguments: Mapping[str, Any]) -> None:
        """Check that the metric can be created with these arguments."""
        field = "metric_args" if arguments else "metrics"
        if not callable(self.load()):
            message = f"{self.home}: expected a subclass of radfact.Metric or a function that creates a metric"
            raise InputError(message, code=ErrorCode.INVALID_PLUGIN, field=field)
        try:
            if (signature := self.signature) is not None:
                signature.bind_partial(**arguments)
        except TypeError as error:
            raise InputError(f"{self.home}: {error}", code=ErrorCode.INVALID_OPTION, field=field) from None


def _is_metric_class(value: Any) -> bool:
    return isinstance(value, type) and issubclass(value, Metric)


@cache
def entries() -> Mapping[str, MetricEntry]:
    """Return all metrics by name: the built-in ones, then those that installed packages add under other names."""
    table = {name: MetricEntry(name, home) for name, home in _BUILTIN.items()}
    for point in entry_points(group=GROUP):
        package = point.dist.name if point.dist else "unknown"
        table.setdefault(point.name, MetricEntry(point.name, point.value, package))
    return table


@dataclass(frozen=True, slots=True)
class MetricSelection:
    """A selected metric, all or some of its scores; `is_named` is false if only "all" selects it."""

    entry: MetricEntry
    is_whole: bool = True
    scores: tuple[str, ...] = ()
    is_named: bool = True
    metric: Metric | None = None

    def select(self, metric: Metric) -> dict[str, Direction]:
        """Return the selected scores of a metric and their directions, in its order."""
        directions, suffix = directions_of(metric), f".{metric.variant}"
        return {
            name: directions[name] for name in directions if self.is_whole or name.removesuffix(suffix) in self.scores
        }

    def main_scores(self, metric: Metric) -> list[str]:
        """Return the selected scores where the metric is one row, test or reward: by its name the main scores."""
        selected = {*self.scores, *(main_scores_of(metric) if self.is_whole else ())}
        return [name for name in metric.scores if name in selected]


def expand_presets(
    metrics: str | Sequence[str | Metric], compat: str | Sequence[str] = ()
) -> tuple[list[str | Metric], tuple[str, ...]]:
    """Replace the names of presets among the names of metrics by their scores, and add their variants to `compat`."""
    names: list[str | Metric] = []
    variants = dict.fromkeys([compat] if isinstance(compat, str) else compat)
    for item in [metrics] if isinstance(metrics, str) else metrics:
        preset = PRESETS.get(item) if isinstance(item, str) else None
        names += preset.scores if preset else [item]
        variants |= dict.fromkeys(preset.compat if preset else ())
    return names, tuple(variants)


def select_metrics(metrics: str | Sequence[str | Metric], compat: Sequence[str] = ()) -> list[MetricSelection]:
    """Return the metrics of names of metrics or scores, or all, each once; variants in `compat` replace some."""
    items = [metrics] if isinstance(metrics, str) else metrics
    if not items:
        message = "expected at least one metric; see 'radfact metrics'"
        raise InputError(message, code=ErrorCode.MISSING_OPTION, field="metrics")
    selected: dict[str, MetricSelection] = {}
    for name in (item for item in items if isinstance(item, str)):
        for entry in _default_entries() if name == "all" else (_find_entry(name),):
            earlier = selected.get(entry.name, MetricSelection(entry, is_whole=False, is_named=False))
            is_score = name not in ("all", entry.name)
            selected[entry.name] = replace(
                earlier,
                is_whole=earlier.is_whole or not is_score,
                scores=(*earlier.scores, name) if is_score else earlier.scores,
                is_named=earlier.is_named or name != "all",
            )
    _check_variants([*selected.values()], compat)
    chosen = [replace(selection, entry=choose_variant(selection.entry, compat)) for selection in selected.values()]
    for metric in (item for item in items if not isinstance(item, str)):
        check_metric(metric, type(metric).__name__)
        home = f"{type(metric).__module__}:{type(metric).__qualname__}"
        chosen.append(MetricSelection(MetricEntry(metric.name, home), metric=metric))
    return chosen


def need_references(metrics: str | Sequence[str | Metric]) -> bool:
    """Return whether all of some metrics read the references."""
    selections = select_metrics(expand_presets(metrics)[0])
    return all((item.metric or item.entry.declared).needs_reference for item in selections)


def _default_entries() -> Iterator[MetricEntry]:
    """Yield all metrics but variants; a package's metric that cannot be loaded is reported when it is created."""
    for entry in entries().values():
        with suppress(InputError):
            if entry.declared.is_variant:
                continue
        yield entry


def _check_variants(selections: Sequence[MetricSelection], names: Sequence[str]) -> None:
    """Check that each variant is one of a selected metric."""
    for name in names:
        if any(name in selection.entry.variants for selection in selections):
            continue
        metrics = [key.removesuffix(f".{name}") for key in _VARIANTS if key.endswith(f".{name}")]
        if not metrics:
            known = dict.fromkeys(key.partition(".")[2] for key in _VARIANTS)
            hint = suggest_name(name, known, f"variants are {', '.join(known)}")
            raise InputError(f"unknown variant '{name}'; {hint}", code=ErrorCode.UNKNOWN_NAME, field="compat")
        message = f"expected a variant of a selected metric, found '{name}' of {', '.join(metrics)}"
        hint = f"use 'radfact evaluate --metrics {metrics[0]}'"
        raise InputError(f"{message}; {hint}", code=ErrorCode.CONFLICTING_OPTIONS, field="compat")


def choose_variant(entry: MetricEntry, names: Sequence[str]) -> MetricEntry:
    """Return the variant of a metric that is among some names of variants, or the metric itself without one."""
    variants = [name for name in dict.fromkeys(names) if name in entry.variants]
    if len(variants) > 1:
        message = f"expected one variant of {entry.name}, found {', '.join(variants)}; score them in separate runs"
        raise InputError(message, code=ErrorCode.CONFLICTING_OPTIONS, field="compat")
    return entry.variants[variants[0]] if variants else entry


def _find_entry(name: str) -> MetricEntry:
    """Return the metric with a name or a score of this name; other packages are searched only for unknown names."""
    if ":" in name or name in _BUILTIN:
        return MetricEntry(name, _BUILTIN.get(name, name))
    if name in entries():
        return entries()[name]
    known: dict[str, MetricEntry] = {}
    for entry in entries().values():
        # A package's metric that cannot be loaded is no reason to refuse another's score.
        with suppress(InputError):
            known.update(dict.fromkeys(entry.scores, entry))
    if name in known:
        return known[name]
    hint = suggest_name(name, [*entries(), *known], "see 'radfact metrics'")
    message = f"expected the name of a metric or of a score, found '{name}'; {hint}"
    raise InputError(message, code=ErrorCode.UNKNOWN_NAME, field="metrics")
