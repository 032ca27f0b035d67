"""The commands that make a checkpoint: train, convert, assemble."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from maira.cli.options import OutFolder
from maira.cli.show import print_line, show_progress
from radfact.cli.command import with_options


class Layout(StrEnum):
    """How the files of a checkpoint name its tensors."""

    RELEASED = "released"
    TRANSFORMERS5 = "transformers5"
    OWN = "own"


class Dtype(StrEnum):
    """Type of weights."""

    FLOAT32 = "float32"
    FLOAT16 = "float16"
    BFLOAT16 = "bfloat16"


def train(
    config: Annotated[Path, typer.Argument(help="Recipe (YAML).")],
    overrides: Annotated[list[str] | None, typer.Argument(help="key=value, instead of the recipe's.")] = None,
) -> None:
    """Train a model by a recipe; the same command goes on where an interrupted run stopped.

    Several processes, on one machine or more, are started by torchrun or accelerate launch. At SIGTERM the state is
    saved before the next step and the run ends with exit code 1.
    """
    from transformers.utils.logging import disable_progress_bar

    from maira.train.config.run_config import read_train_config
    from maira.train.report_training import train as run

    disable_progress_bar()
    console = Console()
    print_line(console, f"checkpoint: {run(read_train_config(config, overrides), console)}")


@with_options
def convert(
    checkpoint: Annotated[Path, typer.Argument(help="Folder of a MAIRA-2, in any of the layouts.")],
    out: OutFolder,
    to: Annotated[Layout, typer.Option(help="Layout to write.")] = Layout.OWN,
    shard_size: Annotated[str, typer.Option(help="Largest size of a file.")] = "5GB",
) -> None:
    """Write a checkpoint in another layout, every byte of its tensors kept."""
    from maira.model.convert import convert as run

    with show_progress("writing files") as on_progress:
        written = run(checkpoint, out, to.value, shard_size=shard_size, on_progress=on_progress)
    print_line(Console(), f"{written} tensors in the layout '{to.value}': {out}")


@with_options
def assemble(
    encoder: Annotated[Path, typer.Option(help="RAD-DINO: Hugging Face's folder, or DINOv2's state dict.")],
    language_model: Annotated[Path, typer.Option(help="Folder of a Llama with its tokenizer, such as Vicuna.")],
    out: OutFolder,
    seed: Annotated[int, typer.Option(help="Of the adapter's weights.")] = 0,
    dtype: Annotated[Dtype, typer.Option(help="Type of all weights.")] = Dtype.FLOAT32,
    rope_factor: Annotated[float, typer.Option(help="Linear scaling of the rotary embedding.", min=1)] = 1.5,
) -> None:
    """Make a fresh model from a published encoder and language model, ready to train."""
    import torch
    from transformers.utils.logging import disable_progress_bar

    from maira.model.assemble import assemble as run

    disable_progress_bar()
    config = run(encoder, language_model, out, seed=seed, dtype=getattr(torch, dtype.value), rope_factor=rope_factor)
    print_line(
        Console(), f"a model of {config.text_config.vocab_size} tokens, {config.image_seq_length} an image: {out}"
    )
