"""Options that the commands of `radfact meta` share: the metrics that are asked about, and how they are made."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from radfact.cli.metrics import read_weights
from radfact.cli.options import FIGURES, INPUT, OUTPUT, JudgeOptions, naming_options
from radfact.cli.tables import new_console, say
from radfact.errors import ExitCode, InputError
from radfact.progress import ProgressDisplay

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from rich.console import Console

    from radfact.html.meta_page import Table
    from radfact.llm import ChatClient
    from radfact.meta.agreement.analysis import Figures
    from radfact.meta.datasets.matching import Match
    from radfact.records import Pair

Metrics = Annotated[
    str | None,
    typer.Option(
        metavar="NAMES", help="Metrics or figures to compute, separated by commas, or all.", rich_help_panel=FIGURES
    ),
]
Scores = Annotated[
    list[Path] | None,
    typer.Option(
        metavar="FOLDER", help="Results folder with figures of these samples; may be repeated.", rich_help_panel=INPUT
    ),
]
Bootstrap = Annotated[
    int, typer.Option(min=0, metavar="N", help="Bootstrap resamples; 0 for none.", rich_help_panel=FIGURES)
]
Seed = Annotated[int, typer.Option(min=0, metavar="N", help="Seed of all that is drawn.", rich_help_panel=FIGURES)]
Out = Annotated[Path, typer.Option(metavar="FOLDER", help="Folder of the results.", rich_help_panel=OUTPUT)]
Notes = Annotated[
    list[str] | None,
    typer.Option(metavar="TEXT", help="A sentence for the page; may be repeated.", rich_help_panel=OUTPUT),
]
Cache = Annotated[
    Path | None,
    typer.Option(
        metavar="FOLDER",
        help="Where the answers of a model are kept. Default: cache/ in the results.",
        show_default=False,
        rich_help_panel=OUTPUT,
    ),
]


@dataclass
class Scoring:
    """The metrics as the user named them."""

    metrics: str | None
    weights: list[str] | None
    who: JudgeOptions
    cache: Path
    missing: dict[str, str] = field(default_factory=dict)
    """Why a metric gave nothing, once they have been computed."""
    left_out: bool = False
    """Whether a model that was asked besides gave no answer on some samples."""

    @property
    def names(self) -> list[str]:
        """Of metrics and figures."""
        return [name.strip() for name in (self.metrics or "").split(",") if name.strip()]

    def finish(self, console: Console, *, named: bool = True) -> None:
        """Say which metrics gave nothing; one that was named is as a sample left out.

        Args:
            console: to say it on.
            named: whether the user has named them at all.

        Raises:
            typer.Exit: with the code for that.
        """
        from radfact.metrics.registry import select_metrics

        for name, why in self.missing.items():
            say(console, f"without {name}: {why}", style="yellow")
        asked_for = select_metrics(self.names) if named and self.missing else []
        if self.left_out or any(one.is_named and one.entry.name in self.missing for one in asked_for):
            raise typer.Exit(ExitCode.INCOMPLETE)

    @contextmanager
    def scorer(self, *, headline: bool = False) -> Iterator[Scorer]:
        """Make the metrics, show how far they are, and give back what they hold at the end.

        Args:
            headline: as for `radfact.meta.agreement.scoring.compute_figures`.

        Raises:
            InputError: none is named, or none can be made.
        """
        from radfact.metrics.registry import select_metrics
        from radfact.metrics.resources import MetricResources
        from radfact.pipeline import MetricRunner

        with naming_options():
            choices = select_metrics(self.names)
        resources = MetricResources(
            judge=self.who.named,
            judge_args=self.who.arguments,
            base_url=self.who.base_url,
            concurrency=self.who.concurrency,
            cache=self.cache,
            weights=read_weights(self.weights),
        )
        try:
            with naming_options():
                work = MetricRunner(choices, resources)
            with ProgressDisplay(new_console(stderr=True), resources.usage_by_role, None):
                yield Scorer(work, self.missing, headline)
        finally:
            resources.close()


class Scorer:
    """Computes the figures of pairs by metrics that were made once."""

    def __init__(self, work: Any, missing: dict[str, str], headline: bool) -> None:
        self._work, self._missing, self._headline = work, missing, headline

    def __call__(self, pairs: Sequence[Pair], folder: Path) -> Figures:
        """The figures of pairs, kept in a results folder."""
        from radfact.meta.agreement.scoring import compute_figures

        found = compute_figures(pairs, self._work, folder, headline=self._headline)
        self._missing.update(found.unavailable)
        return found


def client_of(name: str, who: JudgeOptions, cache: Path, *, option: str, parameters: Mapping[str, Any]) -> ChatClient:
    """A client of a model that is asked for texts, named by an option.

    Args:
        name: PROVIDER:MODEL.
        who: arguments of the model, the address of its server, calls in flight.
        cache: where answers are kept.
        option: that named it, for messages.
        parameters: of the sampling, where the user names no others.
    """
    from radfact.llm import load_chat_client, parse_model_args

    with naming_options(judge=option):
        return load_chat_client(
            name,
            base_url=who.base_url,
            parameters={**parameters, **parse_model_args(who.arguments)},
            concurrency=who.concurrency,
            cache=cache,
        )


def figures_of(pairs: Sequence[Pair], scores: Sequence[Path] | None, scoring: Scoring, out: Path) -> Figures:
    """Figures from results folders, computed by metrics, or both.

    Raises:
        InputError: neither is named.
    """
    from radfact.meta.agreement.analysis import Figures
    from radfact.meta.agreement.scoring import read_figures

    if not (scores or scoring.names):
        raise InputError("expected --metrics to compute, or --scores with a results folder")
    found = read_figures(scores, pairs) if scores else Figures({}, {})
    say_matches(found.matches)
    if scoring.names:
        with scoring.scorer() as score:
            computed = score(pairs, out / "evaluation")
        values, directions = {**found.values, **computed.values}, {**found.directions, **computed.directions}
        found = Figures(values, directions, matches=found.matches)
    return found


def say_matches(matches: Sequence[Match]) -> None:
    """Say of results folders which samples they lack, have besides, or have with other texts."""
    console = new_console()
    for one in matches:
        for note in one.notes():
            say(console, note, style="yellow")


def show_table(console: Console, table: Table, title: str | None = None) -> None:
    """A table on the console."""
    from rich.markup import escape
    from rich.table import Table as RichTable

    from radfact.html.meta_page import shown

    drawn = RichTable(title=title and escape(title), title_justify="left")
    for place, heading in enumerate(table.headings):
        drawn.add_column(escape(heading), justify="right" if place else "left", overflow="fold")
    for row in table.rows:
        drawn.add_row(*(escape(shown(cell)) for cell in row))
    console.print(drawn)
