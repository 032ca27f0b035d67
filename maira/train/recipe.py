"""Training recipes: one YAML file a run that somebody would want to repeat."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import yaml
from pydantic import Field, ValidationError, model_validator

from maira.prompts import Preset, Task
from radfact.errors import InputError
from radfact.jsonl import read_text
from radfact.report import Record, as_input_error

RecordT = TypeVar("RecordT", bound=Record)
Positive = Annotated[int, Field(gt=0)]
Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Weight = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Above0 = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Beta = Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False)]


class Vision(Record):
    """The arguments of `encoders.Encoder`; what is left out is RAD-DINO's."""

    image_size: Positive = 518
    patch_size: Positive = 14
    hidden_size: Positive = 768
    num_hidden_layers: Positive = 12
    num_attention_heads: Positive = 12
    stem: Literal["patch", "conv"] = "patch"
    frozen: bool = True


class FromScratch(Record):
    """A model with random weights: configurations of its parts, and the size of the tokenizer trained with it.

    `text_config` holds arguments of transformers' LlamaConfig; the tokenizer decides those about the vocabulary.
    """

    vision_config: Vision
    text_config: dict[str, Any]
    image_merge: Positive = 1
    projector_n_layers: Positive = 4
    vocab_size: Positive = 1000


class Recipe(Record):
    """Everything that decides the outcome of a training run.

    Attributes:
        model: a folder with a checkpoint to start from, or the parts of a fresh model.
        train: a manifest; a relative path is relative to the working directory.
        out: folder of the run: `state/` to resume from, `checkpoint/` when done, `metrics.jsonl` always.
        tasks: weights of the task mix (paper 004, table 1).
        preset: wording of the prompts.
        global_batch: samples of one optimiser step over all processes.
        micro_batch: samples of one pass through the model on one process.
        passes: samples to train on in all, repeats counted.
        learning_rate, warmup, weight_decay, betas, clip: AdamW with cosine decay after linear warm-up (paper B.2).
        patch_loss: weight of an auxiliary loss that asks every patch of an unfrozen encoder which labelled findings
            cover it; 0 for frozen encoders. The head for it is dropped with the training state.
        precision: of the computation, "bf16" or "no" (float32).
        checkpoint_dtype: of the weights of the finished checkpoint; the training state is always float32.
        save_every, log_every: in optimiser steps.
    """

    model: Path | FromScratch
    train: Path
    out: Path
    tasks: dict[Task, Weight] = {"grounded": 1.0}  # noqa: RUF012
    preset: Preset = "release"
    global_batch: Positive = 128
    micro_batch: Positive = 8
    passes: Positive
    learning_rate: Above0 = 2e-5
    warmup: Share = 0.03
    weight_decay: Weight = 0.0
    betas: tuple[Beta, Beta] = (0.9, 0.999)
    clip: Above0 = 1.0
    patch_loss: Weight = 0.0
    precision: Literal["bf16", "no"] = "bf16"
    checkpoint_dtype: Literal["float32", "float16", "bfloat16"] = "float32"
    seed: Annotated[int, Field(ge=0)] = 0
    save_every: Positive = 500
    log_every: Positive = 20

    @model_validator(mode="after")
    def _trains_on_something(self) -> Recipe:
        if not any(self.tasks.values()):
            raise ValueError("tasks: at least one task needs a weight above 0")
        if self.passes < self.global_batch:
            raise ValueError(f"passes: {self.passes} samples are less than one global_batch of {self.global_batch}")
        return self


def read_recipe(path: Path, overrides: list[str] | None = None) -> Recipe:
    """Read a recipe, with `key=value` overrides (values as in YAML, nested keys with dots).

    Raises:
        InputError: the file is no YAML mapping, a key is unknown or a value is wrong.
    """
    try:
        values = yaml.safe_load(read_text(path))
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        raise InputError("not YAML", file=path, line=mark.line + 1 if mark else None) from None
    if not isinstance(values, dict):
        raise InputError("expected keys and values, as in configs/phantom.yaml", file=path)
    for override in overrides or []:
        _override(values, override)
    # By itself, since pydantic reports a fault of a union as faults of all of its members.
    model = values.get("model")
    if "model" in values and not isinstance(model, str | dict):
        raise InputError(f"expected a folder or the parts of a model, found {model!r:.80}", file=path, field="model")
    if isinstance(model, dict):
        values["model"] = _checked(FromScratch, model, path, "model")
    return _checked(Recipe, values, path)


def _checked(kind: type[RecordT], values: dict[str, Any], path: Path, field: str = "") -> RecordT:
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        raise as_input_error(error, file=path, field=field) from None


def _override(values: dict[str, Any], override: str) -> None:
    key, equals, value = override.partition("=")
    if not equals:
        raise InputError(f"expected key=value, got '{override}'", field="overrides")
    place = values
    *parents, last = key.split(".")
    for parent in parents:
        place = place.setdefault(parent, {})
        if not isinstance(place, dict):
            raise InputError(f"'{parent}' has no keys of its own", field=key)
    try:
        place[last] = yaml.safe_load(value)
    except yaml.YAMLError:
        raise InputError(f"not a YAML value: {value!r:.80}", field=key) from None
