"""`radfact metrics`: list all metrics with their requirements and cost."""

from __future__ import annotations

from contextlib import suppress
from typing import Annotated

from rich.console import Console

from radfact.cli.command import with_options
from radfact.cli.tables import new_console, say
from radfact.errors import InputError
from radfact.judges.options import JudgeOptions
from radfact.metrics.options import MetricOptions
from radfact.metrics.protocol import describe_language
from radfact.metrics.registry import PRESETS, MetricEntry, entries
from radfact.metrics.resources import MetricResources
from radfact.options import only
from radfact.results.display import ARROWS

MAX_SCORES = 8
"""Scores of a metric that are listed."""


@with_options
def metrics(
    options: Annotated[MetricOptions, only("weights")],
    judge: Annotated[JudgeOptions, only("judge", "judge_args", "base_url")],
) -> None:
    """List all metrics with their scores, sources, cost per report and requirements."""
    console = new_console()
    resources = MetricResources(judge=judge.or_environment(), weights=options.weights)
    for entry in entries().values():
        fault = resources.find_fault(entry)
        style = "yellow" if fault else "green"
        say(console, f"{entry.name}: {fault or 'ready'}", style=style, wrap=console.is_terminal, indent=2)
        # The reason why a metric cannot be loaded is printed already.
        with suppress(InputError):
            _show(console, entry)
    resources.close()
    for name, preset in PRESETS.items():
        variants = ", ".join(preset.compat)
        say(console, f"{name}: preset of --metrics, {', '.join(preset.scores)} with --compat {variants}", wrap=False)
        say(console, f"  source {preset.source}")
    say(console, "↑ higher is better, ↓ lower is better. module:object names a custom metric.")


def _show(console: Console, entry: MetricEntry) -> None:
    metric, scores = entry.declared, entry.scores
    if not scores:
        say(console, "  scores known only after loading")
        return
    shown = ", ".join(f"{name}{ARROWS[direction]}" for name, direction in list(scores.items())[:MAX_SCORES])
    more = f" and {len(scores) - MAX_SCORES} more" if len(scores) > MAX_SCORES else ""
    if metric.measures:
        say(console, f"  measures {metric.measures}")
    say(console, f"  scores {shown}{more}")
    limits = f"{describe_language(metric)}{'; made for chest X-rays' if metric.for_chest_xrays else ''}"
    say(console, f"  source {entry.source}; cost per report: {metric.cost}; language: {limits}")
    if arguments := entry.arguments:
        named = ", ".join(f"{entry.name}.{name} ({default})" for name, default in arguments.items())
        say(console, f"  arguments --metric-arg {named}")
    for name, variant in entry.variants.items():
        declared = variant.load()
        say(console, f"  variant --compat {name}: {declared.difference} (source: {declared.source})")
