"""A MAIRA-2 trained to write reports, by the loop of `maira.train` (paper B.2)."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from maira.train.config.run_config import FromScratch, Recipe
from maira.train.data.corpus import open_corpus, origin_of, texts
from maira.train.export import write_checkpoint
from maira.train.loop import Start, kernel_for, open_in_turn, run_course
from maira.train.loss import TrainingModel
from maira.train.parallel import World, sharding
from maira.train.parts import TOKENIZER_STUDIES, choose_trained, load_parts
from maira.train.validation import validate_drafts


def train(recipe: Recipe, console: Console | None = None) -> Path:
    """Run a recipe to its end, from where it stopped if it was started before; returns the folder of the checkpoint.

    Raises:
        InputError: the recipe, a manifest or an image cannot be used, or the folder holds a run of another recipe.
        RunError: a fault of a step ended the run, it was told to stop (SIGTERM, Ctrl-C), or its end could not be
            saved.
    """
    return run_course(recipe, start_reports, console)


def start_reports(recipe: Recipe, world: World, console: Console) -> Start:
    """What a run of a MAIRA-2 begins with.

    Raises:
        InputError: the recipe, a manifest or an image cannot be used.
    """
    model, processor = load_parts(
        recipe, texts(recipe, TOKENIZER_STUDIES), empty=not world.is_main and sharding(recipe, world) == "fsdp"
    )
    vision = model.config.vision_config
    grid = vision.image_size // vision.patch_size if recipe.patch_loss else None
    corpus = open_in_turn(
        world,
        "reading studies",
        lambda on_progress: open_corpus(
            recipe, recipe.train, processor, recipe.out / "tables", patch_grid=grid, on_progress=on_progress
        ),
    )
    if world.is_main:
        for notice in corpus.notices():
            console.print(notice, highlight=False, markup=False, soft_wrap=True)
    choose_trained(model, recipe)
    training = TrainingModel(model, len(corpus.kinds), recipe.patch_loss, kernel_for(recipe, world))
    return Start(
        training,
        corpus,
        model.config,
        lambda folder: write_checkpoint(model, processor, recipe, world, folder),
        only_trained=not isinstance(recipe.model, FromScratch),
        origin=origin_of(recipe) if world.is_main else {},
        validate=(lambda log, steps: validate_drafts(recipe, processor, world, log, steps))
        if recipe.validation.sources
        else None,
    )
