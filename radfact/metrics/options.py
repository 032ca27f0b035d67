"""Options of the metrics."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, PositiveInt

from radfact.errors import ErrorCode, InputError
from radfact.options import Option, Options


def split_names(value: Any) -> Any:
    """Return the names in a text that are separated by commas, as a tuple."""
    names = value.split(",") if isinstance(value, str) else value
    return tuple(name.strip() for name in names if name.strip())


def _nest_arguments(value: Any) -> Any:
    """Return arguments by metric, also of the flat form {"METRIC.KEY": value}."""
    from radfact.llm import parse_model_args

    arguments: dict[str, dict[str, Any]] = {}
    for name, argument in value.items():
        if isinstance(argument, Mapping):
            arguments.setdefault(name, {}).update(argument)
            continue
        metric, _, key = name.rpartition(".")
        if not (metric and key):
            message = f"expected METRIC.KEY=VALUE, found '{name}={argument}'"
            raise InputError(message, code=ErrorCode.INVALID_OPTION)
        arguments.setdefault(metric, {}).update(parse_model_args({key: argument}, field="metric_args"))
    return arguments


def _find_folders(value: Any) -> Any:
    """Return folders by name, or folders that hold folders of these names, from items of the form [NAME=]FOLDER."""
    if not isinstance(value, Mapping):
        items = [(name, Path(folder)) for name, _, folder in (str(item).rpartition("=") for item in value)]
        if len({bool(name) for name, _ in items}) > 1:
            message = "expected folders as NAME=FOLDER, or folders that hold these, not both"
            raise InputError(message, code=ErrorCode.CONFLICTING_OPTIONS)
        value = dict(items) if any(name for name, _ in items) else tuple(folder for _, folder in items)
    for folder in value.values() if isinstance(value, Mapping) else value:
        if not Path(folder).is_dir():
            raise InputError("--weights: no such folder", code=ErrorCode.FILE_NOT_FOUND, file=folder)
    return value


class MetricOptions(Options):
    """The metrics to compute, their arguments and weights."""

    panel = "Scores"

    metrics: Annotated[
        tuple[str, ...],
        BeforeValidator(split_names),
        Option("Metrics or scores to compute, separated by commas, or all.", metavar="NAMES", cli_type=str),
    ] = ("all",)
    metric_args: Annotated[
        Mapping[str, Mapping[str, Any]],
        BeforeValidator(_nest_arguments),
        Option(
            "Argument of a metric, such as fineradscore.examples=none ('radfact metrics' lists them); repeatable.",
            flag="--metric-arg",
            metavar="METRIC.KEY=VALUE",
        ),
    ] = Field(default_factory=dict)
    compat: Annotated[
        tuple[str, ...],
        BeforeValidator(split_names),
        Option(
            "Published variant to compute instead of the default, such as exact for RadFact, or coco for BLEU and "
            "ROUGE-L ('radfact metrics' lists them); repeatable. Applies to every selected metric that has it.",
            metavar="NAME",
        ),
    ] = ()
    weights: Annotated[
        Mapping[str, Path] | tuple[Path, ...],
        BeforeValidator(_find_folders),
        Option(
            "Weights of metrics: a folder with subfolders named wordnet, bertscore, chexbert, radgraph and ratescore, "
            "or NAME=FOLDER for one of them; repeatable. Default: those of 'radfact weights fetch'.",
            metavar="[NAME=]FOLDER",
            panel="Input",
            cli_type=list[str],
        ),
    ] = ()


class RepeatOptions(Options):
    """Repeated queries to models."""

    panel = "Scores"

    repeat: Annotated[
        PositiveInt,
        Option(
            "Number of times to query a model about the same reports, to measure how much its responses vary. Scores "
            "are means over the repeats. Metrics without a model ignore this option.",
            metavar="K",
        ),
    ] = 1
