"""Score the drafts of experiments with RadFact and other metrics."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from maira.evaluate.experiments import Experiment
from radfact.api import MetricSet, evaluate
from radfact.cli.inputs import read_reports
from radfact.errors import ErrorCode, InputError, RunError
from radfact.io.options import InputOptions
from radfact.io.yaml_files import read_yaml
from radfact.judges.options import JudgeOptions
from radfact.metrics.options import MetricOptions
from radfact.metrics.radfact.options import BootstrapOptions, ScoringOptions
from radfact.metrics.registry import expand_presets, select_metrics
from radfact.options import flag_of, parse_key_values
from radfact.progress import ProgressDisplay
from radfact.records import narratives
from radfact.results.schema import RADFACT

LATERAL_MENTIONS, COMPARISON_MENTIONS = "lateral_mentions", "comparison_mentions"
PAPER = (
    *(LATERAL_MENTIONS, COMPARISON_MENTIONS, "rouge_l", "bleu_1", "bleu_4", "meteor", "radgraph_f1", "rg_er"),
    *("radcliq_v0", "chexbert_macro_f1_14", "chexbert_micro_f1_14", "chexbert_macro_f1_5", "chexbert_micro_f1_5"),
    "chexbert_similarity",
)
"""Metrics of MAIRA-2, tables B.3 and D.1 to D.10, in addition to RadFact."""
_GROUPS: Mapping[Any, Sequence[str]] = {
    InputOptions: ("narrative", "limit"),
    JudgeOptions: tuple(JudgeOptions.model_fields),
    MetricOptions: tuple(MetricOptions.model_fields),  # its `compat` selects the variant of RadFact, too
    BootstrapOptions: tuple(BootstrapOptions.model_fields),
    ScoringOptions: ("threshold", "on_failure"),
}
"""Options of `radfact evaluate` that apply to experiments."""
_IGNORED_KEYS = {
    *("pairs", "candidates", "references", "missing", "section", "price", "dry_run", "out", "cache"),
    *("note", "images", "manifest", "unscored"),
}
"""Other options of it, which a configuration may contain."""


@dataclass(frozen=True)
class Scoring:
    """How the drafts of all experiments are scored, by options of `radfact evaluate`.

    Attributes:
        references: manifest with the reference reports.
        requires_metrics: whether metrics were named, so that unavailable ones are failures.
    """

    references: Path
    inputs: InputOptions
    judge: JudgeOptions
    metrics: MetricOptions
    bootstrap: BootstrapOptions
    radfact: ScoringOptions
    requires_metrics: bool

    @classmethod
    def from_options(cls, references: Path, config: Path | None = None, **options: Any) -> Scoring:
        """Combine a configuration file with options that override it, and check that judge and metrics can be loaded.

        RadFact and the lateral mentions are always among the metrics.
        """
        values: dict[str, Any] = {"metrics": PAPER, **(_read_config(config) if config else {})}
        values |= {name: value for name, value in options.items() if value or value == ""}
        inputs, judge, metrics, bootstrap, radfact = (
            group(**{name: values[name] for name in names if name in values}) for group, names in _GROUPS.items()
        )
        named, compat = expand_presets(metrics.metrics, metrics.compat)
        names = tuple(dict.fromkeys((RADFACT, LATERAL_MENTIONS, *map(str, named))))
        metrics = metrics.model_copy(update={"metrics": names, "compat": compat})
        judge = judge.or_environment()
        judge.required_judge  # noqa: B018 - raises an error
        judge.load_splitter(judge.load())
        select_metrics(names, compat)
        return cls(references, inputs, judge, metrics, bootstrap, radfact, options.get("metrics") is not None)


def _read_config(path: Path) -> dict[str, Any]:
    """Read options by their names or those of their flags."""
    content = read_yaml(path)
    if not isinstance(content, dict):
        raise InputError("expected options by name", code=ErrorCode.INVALID_FORMAT, file=path)
    known = {
        key.removeprefix("--").replace("-", "_"): (group, name)
        for group, names in _GROUPS.items()
        for name in names
        for key in (*flag_of(group, name).split("/"), name)
    }
    values: dict[str, Any] = {}
    for key, value in content.items():
        option = str(key).replace("-", "_")
        if option in known:
            group, name = known[option]
            is_mapping = group.model_fields[name].default_factory is dict
            values[name] = parse_key_values(value, str(key)) if is_mapping and isinstance(value, list) else value
        elif option not in _IGNORED_KEYS:
            raise InputError("unknown option", code=ErrorCode.UNKNOWN_NAME, file=path, field=str(key))
    return values


def score_experiment(experiment: Experiment, scoring: Scoring, say: Callable[[str], None]) -> list[tuple[str, str]]:
    """Score the drafts of an experiment and write its results folder; progress is shown on standard error.

    Returns:
        Samples that could not be scored and named metrics that are unavailable, each with the reason.
    """
    files = {"candidates": experiment.drafts, "references": scoring.references, "missing": "skip"}
    inputs = scoring.inputs.model_copy(update=files)
    pairs = read_reports(None, inputs, scoring.bootstrap)
    options = {"missing": "skip", "narrative": inputs.narrative, "metrics": ",".join(scoring.metrics.metrics)}
    with MetricSet(
        **dict(scoring.metrics),
        needs_splitter=bool(narratives(pairs)),
        judge=scoring.judge,
        cache=experiment.folder.parent / "cache",  # shared by all experiments
        radfact=scoring.radfact.record(),
    ) as metrics:
        if RADFACT in metrics.unavailable:
            raise RunError(metrics.unavailable[RADFACT], code=ErrorCode.NOTHING_SCORED)
        with ProgressDisplay(Console(stderr=True), metrics.resources.usage_by_role):
            draws, out = scoring.bootstrap, experiment.results
            run = {"options": options}
            result = evaluate(pairs, metrics, bootstrap=draws.bootstrap, seed=draws.seed, out=out, run=run)
    if RADFACT in result.unavailable:
        raise RunError(result.unavailable[RADFACT], code=ErrorCode.NOTHING_SCORED)
    scored = sum(sample.failure is None for sample in result.samples)
    say(f"{experiment.name}: {scored} studies scored: {experiment.results}")
    failures: list[tuple[str, str]] = []
    for sample in result.samples:
        if sample.failure is not None:
            failures.append((sample.sample_id, sample.failure))
        else:
            failures += [(sample.sample_id, f"{name}: {reason}") for name, reason in sample.failures.items()]
    failures += result.unavailable.items() if scoring.requires_metrics else ()
    return [(f"{experiment.name}: {key}", reason) for key, reason in failures]
