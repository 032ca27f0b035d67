"""A MAIRA-2 trained to write reports, by the loop of `maira.train` (paper B.2)."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from maira.train.components import TOKENIZER_STUDIES, load_model, set_trainable
from maira.train.config.run_config import FromScratch, TrainConfig
from maira.train.data.dataset import data_fingerprints, open_dataset, texts
from maira.train.export import write_checkpoint
from maira.train.loop import TrainingSetup, attention_kernel, main_process_first, run_training
from maira.train.loss import MairaLossModel
from maira.train.parallel import DistributedContext, sharding
from maira.train.validation import make_report_validator


def train(config: TrainConfig, console: Console | None = None) -> Path:
    """Run a recipe to its end, from where it stopped if it was started before; returns the folder of the checkpoint.

    Raises:
        InputError: the recipe, a manifest or an image cannot be used, or the folder holds a run of another recipe.
        RunError: a fault of a step ended the run, it was told to stop (SIGTERM, Ctrl-C), or its end could not be
            saved.
    """
    return run_training(config, setup_report_training, console)


def setup_report_training(config: TrainConfig, world: DistributedContext, console: Console) -> TrainingSetup:
    """What a run of a MAIRA-2 begins with.

    Raises:
        InputError: the recipe, a manifest or an image cannot be used.
    """
    model, processor = load_model(
        config, texts(config, TOKENIZER_STUDIES), empty=not world.is_main and sharding(config, world) == "fsdp"
    )
    vision = model.config.vision_config
    grid = vision.image_size // vision.patch_size if config.patch_loss else None
    dataset = main_process_first(
        world,
        "reading studies",
        lambda on_progress: open_dataset(
            config, config.train, processor, config.out / "tables", patch_grid=grid, on_progress=on_progress
        ),
    )
    if world.is_main:
        for notice in dataset.notices():
            console.print(notice, highlight=False, markup=False, soft_wrap=True)
    set_trainable(model, config)
    training = MairaLossModel(model, len(dataset.kinds), config.patch_loss, attention_kernel(config, world))
    return TrainingSetup(
        training,
        dataset,
        model.config,
        lambda folder: write_checkpoint(model, processor, config, world, folder),
        only_trained=not isinstance(config.model, FromScratch),
        origin=data_fingerprints(config) if world.is_main else {},
        validate=(lambda log, steps: make_report_validator(config, processor, world, log, steps))
        if config.validation.sources
        else None,
    )
