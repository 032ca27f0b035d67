"""`maira train` and `maira assemble`: the commands that write a checkpoint."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console

from maira.cli.options import CheckpointFolder, Overwrite
from maira.cli.show import print_line
from radfact.cli.command import with_options


def train(
    config: Annotated[Path, typer.Argument(help="Run config (YAML).")],
    overrides: Annotated[list[str] | None, typer.Argument(help="key=value overrides of the run config.")] = None,
    overwrite: Overwrite = False,
) -> None:
    """Train a model from a run config. The same command resumes an interrupted run.

    Use torchrun or accelerate launch for several GPUs or machines. On SIGTERM the run saves its state before the next
    step and exits with code 1.
    """
    from maira.train.config.check import check_run
    from maira.train.config.run_config import read_train_config

    console, options = Console(), read_train_config(config, overrides)
    check_run(options, partial(print_line, console), overwrite=overwrite)
    from maira.train.loop import run_training
    from maira.train.report_training import setup_report_training as setup

    command = ["maira", "train", str(config), *(overrides or ())]
    print_line(console, f"checkpoint: {run_training(options, setup, console, overwrite=overwrite, command=command)}")


@with_options
def assemble(
    encoder: Annotated[Path, typer.Option(help="RAD-DINO: Hugging Face folder, or DINOv2 state dict.")],
    language_model: Annotated[Path, typer.Option(help="Folder of a Llama model with its tokenizer, such as Vicuna.")],
    out: CheckpointFolder,
    seed: Annotated[int, typer.Option(min=0, help="Seed for initializing the adapter.")] = 0,
    dtype: Annotated[
        Literal["float32", "float16", "bfloat16"], typer.Option(help="Data type of the weights.")
    ] = "float32",
    rope_factor: Annotated[float, typer.Option(help="Linear scaling factor of the rotary embedding.", min=1)] = 1.5,
) -> None:
    """Create an untrained model from a published encoder and language model."""
    import torch
    from transformers.utils.logging import disable_progress_bar

    from maira.model.assemble import assemble as run

    disable_progress_bar()
    config = run(encoder, language_model, out, seed=seed, dtype=getattr(torch, dtype), rope_factor=rope_factor)
    print_line(
        Console(),
        f"vocabulary of {config.text_config.vocab_size} tokens, {config.image_seq_length} tokens per image: {out}",
    )
