"""Training configurations of judges."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from maira.train.config.files import read_config_values
from maira.train.config.run_config import BaseTrainConfig, JudgeTask, LossValidationConfig, NonNegative, Source


class ChatSource(Source):
    """Conversations with their answers, as `maira judge-data` writes them (`samples.jsonl`)."""

    path_field = "file"
    file: Path  # a relative path is relative to the working directory
    split: str | None = "train"
    # Factors of the configuration's shares; a task that is not named is omitted. None: all factors are 1.
    tasks: dict[JudgeTask, NonNegative] | None = None

    def _row_samples(self, row: Mapping[str, Any]) -> Mapping[Any, int]:
        return {str(row.get("task")): 1}


class JudgeValidationConfig(LossValidationConfig):
    """Losses that are computed during a run: "loss/all" and those of the tasks, such as "loss/green"."""

    sources: list[ChatSource] = []  # noqa: RUF012


class JudgeTrainConfig(BaseTrainConfig):
    """Options of the training of a judge, a language model that is trained entirely or by adapters."""

    model: Path  # folder of a causal language model with its tokenizer and chat template
    train: list[ChatSource]
    validation: JudgeValidationConfig = JudgeValidationConfig()
    tasks: dict[JudgeTask, NonNegative] = {"entailment": 1.0, "green": 1.0, "vert": 1.0}  # noqa: RUF012


def read_judge_config(path: Path, overrides: list[str] | None = None) -> JudgeTrainConfig:
    """Read the configuration of a judge; `base` and overrides as in `read_train_config`."""
    source = read_config_values(path, overrides)
    return source.validate(JudgeTrainConfig, source.values)
