"""Training configurations of judges."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import field_validator

from maira.train.config.files import read_config_values
from maira.train.config.run_config import BaseTrainConfig, LossValidationConfig, NonNegative
from maira.train.data.packing import JudgeTask
from radfact.records import Record


class ChatSource(Record):
    """Conversations with their answers, as `maira judge-data` writes them (`samples.jsonl`)."""

    file: Path  # a relative path is relative to the working directory
    split: str | None = "train"  # None for all
    # Factors of the configuration's shares; a task that is not named is omitted. None: all factors are 1.
    tasks: dict[JudgeTask, NonNegative] | None = None


class JudgeValidationConfig(LossValidationConfig):
    """Losses that are computed during a run: "loss/all" and those of the tasks, such as "loss/green"."""

    sources: list[ChatSource] = []  # noqa: RUF012


class JudgeTrainConfig(BaseTrainConfig):
    """Options of the training of a judge, a language model that is trained entirely or by adapters."""

    model: Path  # folder of a causal language model with its tokenizer and chat template
    train: list[ChatSource]  # the path of a file stands for a list with its split `train`
    validation: JudgeValidationConfig = JudgeValidationConfig()
    tasks: dict[JudgeTask, NonNegative] = {"entailment": 1.0, "green": 1.0, "vert": 1.0}  # noqa: RUF012

    @field_validator("train", mode="before")
    @classmethod
    def _path_is_a_file(cls, value: Any) -> Any:
        return [{"file": value}] if isinstance(value, str | Path) else value


def read_judge_config(path: Path, overrides: list[str] | None = None) -> JudgeTrainConfig:
    """Read the configuration of a judge; `base` and overrides as in `read_train_config`."""
    source = read_config_values(path, overrides)
    return source.validate(JudgeTrainConfig, source.values)
