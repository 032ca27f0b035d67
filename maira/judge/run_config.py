"""Recipes of judges: what a language model is trained on, and how."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import field_validator

from maira.train.config.files import read_config_values
from maira.train.config.run_config import BaseTrainConfig, LossValidationConfig, NonNegative
from maira.train.data.packing import JudgeTask
from radfact.errors import InputError
from radfact.records import Record


class ChatSource(Record):
    """Conversations with their answers, as `maira judge-data` writes them.

    Attributes:
        file: `samples.jsonl`; a relative path is relative to the working directory.
        split: only the samples of this split; None for all.
        tasks: shares of the source, times the recipe's; a task that is not named has none. None: the recipe's.
    """

    file: Path
    split: str | None = "train"
    tasks: dict[JudgeTask, NonNegative] | None = None


class JudgeValidationConfig(LossValidationConfig):
    """Which losses are measured while a run goes on: "loss/all" and those of the tasks, such as "loss/green"."""

    sources: list[ChatSource] = []  # noqa: RUF012


class JudgeTrainConfig(BaseTrainConfig):
    """Everything that decides the training of a judge; its language model is trained whole, or by adapters.

    Attributes:
        model: folder of a causal language model with its tokenizer and chat template.
        train: what to train on; the path of one file stands for a list with its split `train` alone.
    """

    model: Path
    train: list[ChatSource]
    validation: JudgeValidationConfig = JudgeValidationConfig()
    tasks: dict[JudgeTask, NonNegative] = {"entailment": 1.0, "green": 1.0, "vert": 1.0}  # noqa: RUF012

    @field_validator("train", mode="before")
    @classmethod
    def _path_is_a_file(cls, value: Any) -> Any:
        return [{"file": value}] if isinstance(value, str | Path) else value


def read_judge_config(path: Path, overrides: list[str] | None = None) -> JudgeTrainConfig:
    """Read a recipe of a judge; `base` and overrides are as in `maira.train.config.run_config.read_train_config`.

    Raises:
        InputError: a file is no YAML mapping, bases form a circle, a key is unknown or a value is wrong.
    """
    said = read_config_values(path, overrides)
    return said.checked(JudgeTrainConfig, said.values)


def check_folder(folder: Path) -> None:
    """See to it that a model's folder has what a judge starts from.

    Raises:
        InputError: the configuration or the weights are missing.
    """
    if not (folder / "config.json").is_file():
        raise InputError("no model here (config.json is missing)", file=folder, field="model")
