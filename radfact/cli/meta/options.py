"""Options and helpers that the commands of `radfact meta` share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from radfact.api import MetricSet
from radfact.cli.options import INPUT, OUTPUT, SCORES, ColumnOptions, option
from radfact.cli.tables import new_console, say
from radfact.errors import ErrorCode, ExitCode, InputError
from radfact.io.outputs import Output
from radfact.judges.options import JudgeOptions
from radfact.llm import ChatClient
from radfact.meta.scores import SampleMatch, ScoreColumns, ScoreFunction, compute_scores, load_scores
from radfact.metrics.options import MetricOptions
from radfact.metrics.registry import select_metrics
from radfact.options import Option, only, rename_fields
from radfact.progress import display_progress
from radfact.records import Pair

if TYPE_CHECKING:
    from rich.console import Console


MODEL = only("judge", "judge_args", "base_url", "concurrency", "max_invalid")
"""Options of a judge or another language model."""
METRICS = only("metrics", "weights", metrics=())
DRAWS = only(bootstrap=1000)


Scores = Annotated[
    list[Path] | None, option("Results folder to read scores of these samples from; repeatable.", "FOLDER", INPUT)
]
Seed = Annotated[int, option("Random seed.", "N", SCORES, min=0)]
Out = Annotated[Path, option("Output folder.", "FOLDER", OUTPUT), Output("folder")]
Notes = Annotated[list[str] | None, option("Note shown at the top of the page; repeatable.", "TEXT", OUTPUT)]
Cache = Annotated[
    Path | None, option("Cache of model responses. Default: cache/ in the output folder.", "FOLDER", OUTPUT)
]


@dataclass
class Scoring:
    """The selected metrics, what they need, and the reason for each metric without a result."""

    metrics: MetricOptions
    judge: JudgeOptions
    cache: Path
    unavailable: dict[str, str] = field(default_factory=dict)
    is_incomplete: bool = False

    def finish(self, console: Console, *, named: bool = True) -> None:
        """Print which metrics gave no result."""
        for name, reason in self.unavailable.items():
            say(console, f"without {name}: {reason}", style="yellow")
        selected = select_metrics(self.metrics.metrics) if named and self.unavailable else []
        if self.is_incomplete or any(choice.is_named and choice.entry.name in self.unavailable for choice in selected):
            raise typer.Exit(ExitCode.INCOMPLETE)

    @contextmanager
    def scorer(self, *, main_only: bool = False) -> Iterator[ScoreFunction]:
        """Create the metrics, show their progress, and release their resources at the end."""
        own = self.metrics
        with MetricSet(own.metrics, judge=self.judge, cache=self.cache, weights=own.weights) as metrics:

            def score(pairs: Sequence[Pair], folder: Path) -> ScoreColumns:
                scores = compute_scores(pairs, metrics, folder, main_only=main_only)
                self.unavailable.update(scores.unavailable)
                return scores

            with display_progress(new_console(stderr=True), metrics.resources.usage_by_role, None):
                yield score


def client_of(name: str, judge: JudgeOptions, cache: Path, *, option: str, parameters: Mapping[str, Any]) -> ChatClient:
    with rename_fields({"judge": option}):
        return judge.load_client(parameters, cache, name=name)


def collect_scores(pairs: Sequence[Pair], folders: Sequence[Path] | None, scoring: Scoring, out: Path) -> ScoreColumns:
    """Read scores from results folders, compute them by metrics, or both."""
    if not (folders or scoring.metrics.metrics):
        message = "expected --metrics to compute, or --scores with a results folder"
        raise InputError(message, code=ErrorCode.MISSING_OPTION)
    scores = load_scores(folders, pairs) if folders else ScoreColumns({}, {})
    say_matches(scores.matches)
    if scoring.metrics.metrics:
        with scoring.scorer() as score:
            computed = score(pairs, out / "evaluation")
        scores = ScoreColumns(
            {**scores.values, **computed.values},
            {**scores.directions, **computed.directions},
            matches=scores.matches,
            models={**scores.models, **computed.models},
            rule_based=list(dict.fromkeys([*scores.rule_based, *computed.rule_based])),
            units={**scores.units, **computed.units},
            notes=computed.notes,
        )
    return scores


def comma_list(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def say_matches(matches: Sequence[SampleMatch]) -> None:
    """Print the samples that results folders lack, have in addition, or have with other texts."""
    say_notes(new_console(), [note for match in matches for note in match.notes()])


def say_notes(console: Console, notes: Sequence[str]) -> None:
    for note in notes:
        say(console, note, style="yellow")


class RatingOptions(ColumnOptions):
    """The ratings to read, and how to interpret them."""

    layout: Annotated[
        Literal["plain", "preferences", "rexval", "refisco-v0", "refisco-v1", "rate-eval", "radeval", "radevalx"],
        Option("Format of the ratings file."),
    ] = "plain"
    experts: Annotated[
        tuple[str, ...],
        Option(
            "Column with the ratings of one expert (--layout plain); repeatable. Default: all columns named "
            "QUANTITY:RATER, expert or expert_RATER.",
            flag="--expert",
            metavar="COLUMN",
        ),
    ] = ()
    better: Annotated[
        Literal["higher", "lower"] | None, Option("Whether higher or lower ratings are better (--layout plain).")
    ] = None
    target: Annotated[
        str | None,
        Option(
            "Rating to use, such as significant. Default: the main rating of the data set.",
            metavar="QUANTITY",
            panel="Scores",
        ),
    ] = None
    ids: Annotated[
        Path | None,
        Option(
            "File with the ids of the reports to use, one per line; a prefix before an underscore, such as a study "
            "number, selects all ids that start with it.",
            metavar="FILE",
        ),
    ] = None
