"""`maira doctor`: what is installed and found, and which commands can run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from radfact.cli.doctor import Json, command_words, show
from radfact.cli.metrics import WeightsOption, read_weights


def doctor(
    context: typer.Context,
    folders: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[MODELS]...",
            help="Folders of models to look at (default: checkpoints/, models/, runs/ and Hugging Face's cache).",
            show_default=False,
        ),
    ] = None,
    weights: WeightsOption = None,
    json: Json = False,
) -> None:
    """Say what is installed and found on this machine, and for every command whether it can run.

    What radfact doctor says, and the folders of models: MAIRA-2, RAD-DINO, Vicuna and others, with the files that they
    lack. What is missing has the one line that mends it below. Exit code 1 says that something which every command
    needs is broken.
    """
    from typer.main import get_command

    from maira.doctor import examine
    from radfact.cli.main import app as radfact

    commands = {
        "maira": command_words(context.find_root().command),
        "radfact": command_words(get_command(radfact)),
    }
    show(examine(commands, folders or (), read_weights(weights)), json)
