"""Training of a MAIRA-2 model to write reports, by the reports of the data or by rewards of its own.

Source: MAIRA-2, appendix B.2.
"""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from maira.model.config import context_window
from maira.train.components import TOKENIZER_STUDIES, load_model, set_trainable
from maira.train.config.run_config import FromScratch, TrainConfig
from maira.train.data.dataset import data_fingerprints, iterate_texts, open_dataset
from maira.train.data.schedule import DataSchedule
from maira.train.export import write_checkpoint
from maira.train.logging import MetricsLogger
from maira.train.loop import TrainingSetup, attention_kernel, main_process_first, run_training
from maira.train.loss import MairaLossModel
from maira.train.parallel import DistributedContext, ParallelModel, sharding
from maira.train.rewards import ReportReward
from maira.train.rollouts import PromptDataset, RolloutSampler, policy_loss
from maira.train.validation import make_report_validator


def train(config: TrainConfig, console: Console | None = None, *, overwrite: bool = False) -> Path:
    """Train a model to the end, resuming an interrupted run, and return the folder of the checkpoint.

    Args:
        config: of the run.
        console: for messages; the standard output by default.
        overwrite: whether the folder may hold files of another origin.

    Raises:
        InputError: the configuration, a manifest or an image cannot be used, or the folder holds a run of another
            configuration.
        RunError: an anomaly ended the run, it was terminated (SIGTERM, Ctrl-C), or its end could not be saved.
    """
    return run_training(config, setup_report_training, console, overwrite=overwrite)


def setup_report_training(config: TrainConfig, context: DistributedContext, console: Console) -> TrainingSetup:
    """Make model, data and the rest of a MAIRA-2 run.

    Args:
        config: of the run.
        context: processes of the run.
        console: for messages.

    Raises:
        InputError: the configuration, a manifest or an image cannot be used.
    """
    model, processor = load_model(
        config,
        iterate_texts(config, TOKENIZER_STUDIES),
        empty=not context.is_main and sharding(config, context) == "fsdp",
    )
    vision = model.config.vision_config
    grid = vision.image_size // vision.patch_size if config.patch_loss else None
    dataset = main_process_first(
        context,
        "reading studies",
        lambda on_progress: open_dataset(
            config, config.train, processor, config.out / "tables", patch_grid=grid, on_progress=on_progress
        ),
    )
    if context.is_main:
        for note, count in dataset.notes.items():
            console.print(
                f"{count} of {len(dataset.table)} answers: {note}", highlight=False, markup=False, soft_wrap=True
            )
    policy = policy_loss(config.grpo, model, processor) if config.grpo else None
    set_trainable(model, config)
    kernel = attention_kernel(config, context)
    training = MairaLossModel(model, len(dataset.kinds), config.patch_loss, kernel, policy)
    prompts, make_sampler = None, None
    if config.grpo:
        prompts = PromptDataset(dataset, config.grpo, context_window(model.config.text_config))
        reward = ReportReward(config.grpo.reward)

        def make_sampler(model: ParallelModel, schedule: DataSchedule, log: MetricsLogger) -> RolloutSampler:
            return RolloutSampler(config, prompts, schedule, model, processor, reward, log)

    return TrainingSetup(
        training,
        prompts or dataset,
        model.config,
        lambda folder: write_checkpoint(model, processor, config, context, folder),
        only_trained=not isinstance(config.model, FromScratch),
        origin=data_fingerprints(config) if context.is_main else {},
        make_validator=(lambda log, steps: make_report_validator(config, processor, context, log, steps))
        if config.validation.sources
        else None,
        make_sampler=make_sampler,
    )
