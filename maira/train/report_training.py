"""Training of a MAIRA-2 to write reports: supervised (MAIRA-2, appendix B.2), by rewards or preferences."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from rich.console import Console
from torch import nn

from maira.model.config import context_window
from maira.runtime.processes import DistributedContext
from maira.train.components import TOKENIZER_STUDIES, check_context, load_model, set_trainable, write_checkpoint
from maira.train.config.run_config import FromScratch, TrainConfig
from maira.train.data.dataset import StudyDataset, data_fingerprints, iterate_texts, open_dataset
from maira.train.data.packing import prompt_table
from maira.train.data.schedule import DataSchedule
from maira.train.logging import MetricsLogger
from maira.train.loop import Objective, TrainingSetup, attention_kernel, run_training
from maira.train.loss import MairaLossModel
from maira.train.parallel import ParallelModel, main_process_first, sharding
from maira.train.post.dpo import DpoLoss, DpoObjective
from maira.train.post.grpo import RolloutSampler, policy_loss
from maira.train.post.preferences import open_preferences
from maira.train.post.rewards import ReportReward
from maira.train.validation import make_report_validator
from radfact.options import rename_fields


def train(config: TrainConfig, console: Console | None = None, *, overwrite: bool = False) -> Path:
    """Train a model to the end, resuming an interrupted run, and return the folder of the checkpoint."""
    return run_training(config, setup_report_training, console, overwrite=overwrite)


def setup_report_training(config: TrainConfig, context: DistributedContext, console: Console) -> TrainingSetup:
    if config.grpo is not None and config.grpo.engine == "vllm":
        from maira.train.post.rollout_engine import check_engine

        check_engine(config, context)
    empty = not context.is_main and sharding(config, context) == "fsdp"
    model, processor = load_model(config, iterate_texts(config, TOKENIZER_STUDIES), empty=empty)
    window, origin = context_window(model.config.text_config), data_fingerprints(config) if context.is_main else {}
    dataset: StudyDataset
    policy: nn.Module | None = None
    make_objective: Callable[[ParallelModel, DataSchedule, MetricsLogger], Objective] | None = None
    kinds = 0
    if config.dpo:
        pairs = dataset = open_preferences(config, processor, window)
        policy = DpoLoss(config.dpo)
        make_objective = partial(DpoObjective, config, pairs, origin.get("model"))
    else:
        vision, tables = model.config.vision_config, config.out / "tables"
        grid = vision.image_size // vision.patch_size if config.patch_loss else None
        open_answers = partial(open_dataset, config, config.train, processor, tables, grid)
        answers = dataset = main_process_first(context, "reading studies", open_answers)
        kinds = len(answers.kinds)
        if config.grpo:
            # The answers of the table are the limits of the responses.
            answers.table = prompt_table(answers.table, config.grpo, window)
            policy = policy_loss(config.grpo, model, processor)
            with rename_fields({name: f"grpo.reward.{name}" for name in ("scores", "options")}):
                reward = ReportReward(config.grpo.reward)
            make_objective = partial(RolloutSampler, config, answers, processor, reward)
        check_context(dataset.table, model.config, dataset.sample_id)
    for note, count in dataset.notes.items() if context.is_main else ():
        console.print(f"{count} of {len(dataset.table)} answers: {note}", highlight=False, markup=False, soft_wrap=True)
    set_trainable(model, config)
    make_validator = partial(make_report_validator, config, processor, context) if config.validation.sources else None
    return TrainingSetup(
        MairaLossModel(model, kinds, config.patch_loss, attention_kernel(config, context), policy),
        dataset,
        partial(write_checkpoint, model, processor, config, context),
        only_trained=not isinstance(config.model, FromScratch),
        origin=origin,
        make_validator=make_validator,
        make_objective=make_objective,
    )
