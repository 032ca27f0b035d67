"""`maira doctor`: what is installed, and which commands can run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from radfact.cli.command import with_options
from radfact.cli.doctor import Json, command_words, show
from radfact.metrics.options import MetricOptions
from radfact.options import only


@with_options
def doctor(
    context: typer.Context,
    metrics: Annotated[MetricOptions, only("weights")],
    folders: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="MODELS", help="Model folders. Default: checkpoints/, models/, runs/ and the Hugging Face cache."
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Check the installation: everything that 'radfact doctor' checks, and model folders.

    Missing files of MAIRA-2, RAD-DINO, Vicuna and other models are listed. Each problem has a fix below it. Exit
    code 1: a core requirement is missing or broken.
    """
    from typer.main import get_command

    from maira.doctor import diagnose
    from radfact.cli.main import create_app as radfact

    commands = {"maira": command_words(context.find_root().command), "radfact": command_words(get_command(radfact()))}
    show(diagnose(commands, folders or (), metrics.weights), json)
