"""Score the drafts of experiments with RadFact and other metrics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from maira.evaluate.experiments import LATERAL_MENTIONS, PAPER, Experiment
from radfact.api import MetricSet, evaluate
from radfact.cli.inputs import read_reports
from radfact.errors import ErrorCode, InputError, RunError
from radfact.io.options import InputOptions
from radfact.io.yaml_files import read_yaml
from radfact.judges.options import JudgeOptions
from radfact.metrics.options import MetricOptions
from radfact.metrics.radfact.options import BootstrapOptions, ScoringOptions
from radfact.metrics.registry import expand_presets, select_metrics
from radfact.options import Options, flag_of, parse_key_values
from radfact.progress import ProgressDisplay
from radfact.records import narratives

_IGNORED_KEYS = {
    *("pairs", "candidates", "references", "missing", "price", "dry_run", "out", "cache"),
    *("note", "images", "manifest", "unscored"),
}
"""Options of `radfact evaluate` that a configuration may contain and that do not apply to experiments."""


@dataclass(frozen=True)
class Scoring:
    """How the drafts of all experiments are scored.

    Attributes:
        references: manifest with the reference reports.
        cache: folder of the response cache, shared by all experiments.
        judge, metrics, radfact, bootstrap: options of `radfact evaluate`.
        narrative: score grounded reports as narratives; None scores reports as they are.
        limit: number of studies to score; None scores all.
        requires_metrics: whether metrics were named, so that unavailable ones are failures.
    """

    references: Path
    cache: Path
    judge: JudgeOptions
    metrics: MetricOptions
    radfact: ScoringOptions
    bootstrap: BootstrapOptions
    narrative: bool | None = None
    limit: int | None = None
    requires_metrics: bool = False

    @classmethod
    def from_options(
        cls,
        references: Path,
        cache: Path,
        *,
        judge: str | None = None,
        config: Path | None = None,
        metrics: str | None = None,
        weights: Sequence[str] = (),
    ) -> Scoring:
        """Combine a configuration file with options that override it.

        RadFact and the lateral mentions are always among the metrics.
        """
        groups = (JudgeOptions, MetricOptions, ScoringOptions, BootstrapOptions, InputOptions)
        values = {group: dict[str, Any]() for group in groups}
        for key, value in (_read_yaml(config) if config else {}).items():
            name = key.replace("_", "-")
            matches = [
                (group, field) for group in groups for field in group.model_fields if name in _keys(group, field)
            ]
            if not matches and key.replace("-", "_") not in _IGNORED_KEYS:
                raise InputError("unknown option", code=ErrorCode.UNKNOWN_NAME, file=config, field=key)
            for group, field in matches:
                is_mapping = group.model_fields[field].default_factory is dict
                values[group][field] = parse_key_values(value, key) if is_mapping and isinstance(value, list) else value
        for group, field, override in (
            (JudgeOptions, "judge", judge),
            (MetricOptions, "metrics", metrics),
            (MetricOptions, "weights", tuple(weights) or None),
        ):
            if override is not None:
                values[group][field] = override
        values[ScoringOptions].pop("compat", None)  # The option of the metrics selects the variant of RadFact, too.
        values[MetricOptions].setdefault("metrics", PAPER)
        metric_options = MetricOptions(**values[MetricOptions])
        expanded, compat = expand_presets(metric_options.metrics, metric_options.compat)
        names = dict.fromkeys(("radfact", LATERAL_MENTIONS, *map(str, expanded)))
        return cls(
            references,
            cache,
            JudgeOptions(**values[JudgeOptions]).or_environment(),
            metric_options.model_copy(update={"metrics": tuple(names), "compat": compat}),
            ScoringOptions(**values[ScoringOptions]),
            BootstrapOptions(**values[BootstrapOptions]),
            values[InputOptions].get("narrative"),
            values[InputOptions].get("limit"),
            requires_metrics=metrics is not None,
        )

    def check(self) -> None:
        """Check that judge and metrics can be loaded, before anything is drafted."""
        self.judge.required_judge  # noqa: B018 - raises an error
        self.judge.load_splitter(self.judge.load())
        select_metrics(self.metrics.metrics, self.metrics.compat)


def _keys(group: type[Options], field: str) -> set[str]:
    """Return the names of an option in a configuration file, with dashes."""
    return {field.replace("_", "-"), *(flag.removeprefix("--") for flag in flag_of(group, field).split("/"))}


def _read_yaml(path: Path) -> dict[str, Any]:
    values = read_yaml(path)
    if not isinstance(values, dict):
        raise InputError("expected options by name", code=ErrorCode.INVALID_FORMAT, file=path)
    return {str(key): value for key, value in values.items()}


def score_experiment(experiment: Experiment, scoring: Scoring) -> list[tuple[str, str]]:
    """Score the drafts of an experiment and write its results folder; progress is shown on standard error.

    Returns:
        Samples that could not be scored and named metrics that are unavailable, each with the reason.
    """
    inputs = InputOptions(
        candidates=experiment.drafts,
        references=scoring.references,
        missing="skip",
        narrative=scoring.narrative,
        limit=scoring.limit,
    )
    pairs = read_reports(None, inputs, scoring.bootstrap)
    options = {"missing": "skip", "narrative": scoring.narrative, "metrics": ",".join(scoring.metrics.metrics)}
    with MetricSet(
        scoring.metrics.metrics,
        needs_splitter=bool(narratives(pairs)),
        judge=scoring.judge,
        cache=scoring.cache,
        weights=scoring.metrics.weights,
        metric_args=scoring.metrics.metric_args,
        compat=scoring.metrics.compat,
        radfact=scoring.radfact.record(),
    ) as metrics:
        if "radfact" in metrics.unavailable:
            raise RunError(metrics.unavailable["radfact"], code=ErrorCode.NOTHING_SCORED)
        with ProgressDisplay(Console(stderr=True), metrics.resources.usage_by_role):
            draws = scoring.bootstrap
            result = evaluate(
                pairs,
                metrics,
                bootstrap=draws.bootstrap,
                seed=draws.seed,
                out=experiment.results,
                run={"options": options},
            )
    if "radfact" in result.unavailable:
        raise RunError(result.unavailable["radfact"], code=ErrorCode.NOTHING_SCORED)
    return [*experiment.unscored, *(result.unavailable.items() if scoring.requires_metrics else ())]
