"""Training recipes: one YAML file a run that somebody would want to repeat."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from maira.model.prompts import Preset, Task
from maira.model.task_examples import Input
from maira.train.config.files import read_config_values
from radfact.errors import InputError
from radfact.records import Record

PositiveInt = Annotated[int, Field(gt=0)]
Fraction = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
PositiveFloat = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Component = Literal["encoder", "adapter", "language_model"]
Beta = Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False)]
_WHOLE = (
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "max_position_embeddings",
)
"""Arguments of LlamaConfig that are whole numbers above 0."""


class VisionOptions(Record):
    """The arguments of `encoders.Encoder`; what is left out is RAD-DINO's."""

    image_size: PositiveInt = 518
    patch_size: PositiveInt = 14
    hidden_size: PositiveInt = 768
    num_hidden_layers: PositiveInt = 12
    num_attention_heads: PositiveInt = 12
    stem: Literal["patch", "conv"] = "patch"

    @model_validator(mode="after")
    def _fits_together(self) -> VisionOptions:
        _check_multiple("image_size", self.image_size, "patch_size", self.patch_size)
        _check_multiple("hidden_size", self.hidden_size, "num_attention_heads", self.num_attention_heads)
        return self


class FromScratch(Record):
    """A model with random weights: configurations of its parts, and the size of the tokenizer trained with it.

    `text_config` holds arguments of transformers' LlamaConfig; the tokenizer decides those about the vocabulary.
    """

    vision_config: VisionOptions
    text_config: dict[str, Any]
    image_merge: PositiveInt = 1
    projector_n_layers: PositiveInt = 4
    vocab_size: PositiveInt = 1000

    @field_validator("text_config")
    @classmethod
    def _is_of_a_llama(cls, value: dict[str, Any]) -> dict[str, Any]:
        for key in _WHOLE:
            given = value.get(key)
            if key in value and (not isinstance(given, int) or isinstance(given, bool) or given <= 0):
                raise ValueError(f"{key}: expected a whole number above 0, found {given!r:.80}")
        heads = value.get("num_attention_heads")
        if heads and "hidden_size" in value and value.get("head_dim") is None:
            _check_multiple("hidden_size", value["hidden_size"], "num_attention_heads", heads)
        if heads and "num_key_value_heads" in value:
            _check_multiple("num_attention_heads", heads, "num_key_value_heads", value["num_key_value_heads"])
        return value

    @model_validator(mode="after")
    def _merges_whole_squares(self) -> FromScratch:
        side = self.vision_config.image_size // self.vision_config.patch_size
        _check_multiple("image_size / patch_size", side, "image_merge", self.image_merge)
        return self


class DataSource(Record):
    """Studies to train or validate on.

    Attributes:
        manifest: `manifest.jsonl`; a relative path is relative to the working directory.
        shards: instead, the folder or URL of shards (`maira pack`).
        split: only the studies of this split; None for all.
        tasks: shares of the source, times the recipe's; a task that is not named has none. None: the recipe's.
    """

    manifest: Path | None = None
    shards: str | None = None
    split: str | None = None
    tasks: dict[Task, NonNegative] | None = None

    @model_validator(mode="after")
    def _is_one_of_two(self) -> DataSource:
        if (self.manifest is None) == (self.shards is None):
            raise ValueError("give a manifest or shards, one of the two")
        return self


class LoraOptions(Record):
    """Low-rank adapters in the language model instead of its own weights (peft).

    Attributes:
        rank, alpha, dropout: as in peft's LoraConfig.
        targets: the linear layers of each block that get one.
        quantize: keep the weights below them in 4 bits (QLoRA; needs bitsandbytes).
    """

    rank: PositiveInt = 64
    alpha: PositiveFloat = 128
    dropout: Fraction = 0.0
    targets: tuple[str, ...] = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
    quantize: Literal["nf4"] | None = None


class MairaLoraOptions(LoraOptions):
    """Low-rank adapters in a MAIRA-2's language model.

    Attributes:
        added_tokens: train the rows of MAIRA-2's own tokens in the embeddings and the head beside the adapters; a
            freshly assembled model has the same for all of them and could not learn to write boxes without.
    """

    added_tokens: bool = True


class LossValidationConfig(Record):
    """Which losses are measured while a run goes on.

    Attributes:
        sources: of the samples; none, and nothing is validated.
        every: optimiser steps from one measurement of the losses to the next; the last step is always measured.
        samples: most samples whose losses are taken, a fixed draw.
        best_by: the figure by which the best checkpoint is kept, such as "loss/all"; None keeps none.
    """

    sources: list[Any] = []  # noqa: RUF012
    every: PositiveInt = 500
    samples: PositiveInt = 512
    best_by: str | None = None


class ValidationConfig(LossValidationConfig):
    """What is measured while a run goes on: losses, and perhaps drafts.

    Attributes:
        drafts_every: optimiser steps from one round of drafts and box completions to the next; None for none.
        drafts: studies that are drafted, a fixed draw.
        best_by: a loss ("loss/all", "loss/grounded", ...) or a figure of a round of drafts ("drafts/logical_f1",
            "boxes/iou", ...).
    """

    sources: list[DataSource] = []  # noqa: RUF012
    drafts_every: PositiveInt | None = None
    drafts: PositiveInt = 100


class AnomalyConfig(Record):
    """What becomes of a step that is not as it should be, and of a sample of which an image or a line cannot be read.

    Attributes:
        not_finite: a loss or gradient norm that is not finite ends the run, or the step is skipped.
        spike: a gradient norm this many times the running mean of the last is a spike; None looks for none.
        on_spike: as `not_finite`.
        most_skipped: a run ends when more steps than this are skipped in a row.
        unreadable: a sample that cannot be read ends the run, or is left out of its step or of what is validated.
        most_unreadable: a run ends when more samples than this cannot be read, each counted once.
    """

    not_finite: Literal["stop", "skip"] = "stop"
    spike: Annotated[float, Field(gt=1, allow_inf_nan=False)] | None = None
    on_spike: Literal["stop", "skip"] = "skip"
    most_skipped: PositiveInt = 3
    unreadable: Literal["stop", "skip"] = "stop"
    most_unreadable: PositiveInt = 100


class BaseTrainConfig(Record):
    """What decides a training run, whatever is trained.

    Attributes:
        model: a folder with a checkpoint to start from.
        lora: train low-rank adapters in the language model.
        train: what to train on.
        validation: what is measured meanwhile.
        tasks: how often each answer of a task is seen in an epoch; 0.5 is every second answer, drawn anew each epoch.
        out: folder of the run: `states/` to resume from, `checkpoint/` when done, `metrics.jsonl` always.
        epochs, passes: the length of the run; give one: rounds through `train`, or samples in all, repeats counted.
        global_batch: samples of one optimiser step over all processes.
        token_budget: most tokens of one packed row, which is one pass through the model on one process.
        learning_rate, warmup, weight_decay, betas, clip: AdamW with cosine decay after linear warm-up (paper B.2).
        optimizer: "adamw", or "adamw_8bit" (torchao) with its states in 8 bits.
        precision: of the computation, "bf16" or "no" (float32).
        weights: type in which trained weights and their gradients are held; "bfloat16" rounds stochastically and needs
            "adamw_8bit".
        parallel: how several processes share the work: FSDP2, DDP, or "auto": FSDP2 on accelerators, DDP on CPUs.
        activation_checkpointing: recompute in the backward pass nothing, all but the matrix products of a block
            ("selective"), or each block ("full").
        compile: torch.compile for each block of the language model.
        attention: kernel for packed rows ("varlen": one call of the variable-length kernel; "samples": one causal
            call over the samples side by side); "auto" takes the first that runs here.
        workers: processes that prepare samples for one training process.
        checkpoint_dtype: of the weights of the finished checkpoint.
        save_every, log_every: in optimiser steps; a state is saved before each validation as well.
        keep: states kept, the last ones.
        trackers: where figures go beside the console and `metrics.jsonl`.
    """

    model: Any
    lora: LoraOptions | None = None
    train: list[Any]
    validation: LossValidationConfig = LossValidationConfig()
    tasks: dict[Any, NonNegative]
    out: Path
    epochs: PositiveFloat | None = None
    passes: PositiveInt | None = None
    global_batch: PositiveInt = 128
    token_budget: PositiveInt = 8192
    learning_rate: PositiveFloat = 2e-5
    warmup: Fraction = 0.03
    weight_decay: NonNegative = 0.0
    betas: tuple[Beta, Beta] = (0.9, 0.999)
    clip: PositiveFloat = 1.0
    optimizer: Literal["adamw", "adamw_8bit"] = "adamw"
    precision: Literal["bf16", "no"] = "bf16"
    weights: Literal["float32", "bfloat16"] = "float32"
    parallel: Literal["auto", "fsdp", "ddp"] = "auto"
    activation_checkpointing: Literal["none", "selective", "full"] = "none"
    compile: bool = False
    attention: Literal["auto", "varlen", "samples"] = "auto"
    workers: PositiveInt = 4
    checkpoint_dtype: Literal["float32", "float16", "bfloat16"] = "float32"
    seed: Annotated[int, Field(ge=0)] = 0
    save_every: PositiveInt = 500
    keep: PositiveInt = 2
    log_every: PositiveInt = 20
    faults: AnomalyConfig = AnomalyConfig()
    trackers: tuple[Literal["tensorboard", "wandb"], ...] = ("tensorboard",)

    @property
    def trains(self) -> tuple[Component, ...]:
        """The parts of the model that are trained; with `lora` the language model's adapters stand for it."""
        return ("language_model",)

    @field_validator("precision", mode="before")
    @classmethod
    def _no_is_a_word(cls, value: Any) -> Any:
        # In YAML 1.1 it is a truth value.
        return "no" if value is False else value

    @model_validator(mode="after")
    def _fits_together(self) -> BaseTrainConfig:
        if not self.train:
            raise ValueError("train: give at least one source")
        if not any(any(self.shares(source).values()) for source in self.train):
            raise ValueError("tasks: at least one task needs a share above 0")
        if (self.epochs is None) == (self.passes is None):
            raise ValueError("epochs: give epochs or passes, one of the two")
        if self.passes is not None and self.passes < self.global_batch:
            raise ValueError(f"passes: {self.passes} samples are less than one global_batch of {self.global_batch}")
        if self.weights == "bfloat16" and self.optimizer != "adamw_8bit":
            raise ValueError("weights: bfloat16 needs the optimizer adamw_8bit, which rounds stochastically")
        return self

    def check_sources(self) -> None:
        """See to it that the files to train and validate on are there, before a model is read.

        Raises:
            InputError: one is not, with the key that names it.
        """
        for name, sources in (("train", self.train), ("validation.sources", self.validation.sources)):
            for place, source in enumerate(sources):
                for field, path in source:
                    if not isinstance(path, Path) or path.exists():
                        continue
                    # A path by itself, as it may stand in the recipe, has no keys that could be changed.
                    alone = name == "train" and self.train == [type(source).model_validate({field: path})]
                    key = name if alone else f"{name}.{place}.{field}"
                    without = ', and "validation.sources=[]" validates on nothing' if name != "train" else ""
                    message = f"no such file; it is the recipe's '{key}', and {key}=FILE names another{without}"
                    raise InputError(message, file=path)

    def shares(self, source: Any) -> dict[Any, float]:
        """How often each answer of a source is seen in an epoch, by task; tasks without any left out."""
        own = self.tasks if source.tasks is None else {t: w * self.tasks.get(t, 0.0) for t, w in source.tasks.items()}
        return {task: share for task, share in own.items() if share > 0}


class TrainConfig(BaseTrainConfig):
    """Everything that decides a training run of a MAIRA-2.

    Attributes:
        model: a folder with a checkpoint to start from, or the parts of a fresh model.
        trained: the parts whose weights are trained; with `lora` the language model's adapters stand for it.
        lora: train low-rank adapters in the language model, and the rows of MAIRA-2's own tokens beside them.
        train: what to train on; the path of one manifest stands for a list with it alone.
        tasks: as of any course; each answer is seen once where nothing is said (paper 004, table 1).
        drop: inputs that the model is never shown, in training and validation (paper 004, D.6).
        preset: wording of the prompts.
        patch_loss: weight of an auxiliary loss that asks every patch of a trained encoder which labelled findings
            cover it; 0 for none. The head for it is dropped with the training state.
    """

    model: Path | FromScratch
    trained: tuple[Component, ...] = ("adapter", "language_model")
    lora: MairaLoraOptions | None = None
    train: list[DataSource]
    validation: ValidationConfig = ValidationConfig()
    tasks: dict[Task, NonNegative] = {"findings": 1.0, "grounded": 1.0, "phrase": 1.0}  # noqa: RUF012
    drop: tuple[Input, ...] = ()
    preset: Preset = "release"
    patch_loss: NonNegative = 0.0

    @field_validator("train", mode="before")
    @classmethod
    def _path_is_a_manifest(cls, value: Any) -> Any:
        return [{"manifest": value}] if isinstance(value, str | Path) else value

    @model_validator(mode="after")
    def _trains_what_it_asks_for(self) -> TrainConfig:
        if self.lora is not None and "language_model" not in self.trained:
            raise ValueError(
                "lora: the language model is not trained; add language_model to trained, or leave lora out"
            )
        if self.patch_loss and "encoder" not in self.trained:
            raise ValueError("patch_loss: the encoder is not trained; add it to trained, or leave patch_loss out")
        return self

    @property
    def trains(self) -> tuple[Component, ...]:
        """The parts of the model that are trained."""
        return self.trained


def _check_multiple(name: str, value: int, divisor_name: str, divisor: int) -> None:
    """Raise a ValueError that names the nearest values that fit, unless one number is a multiple of another."""
    if value % divisor:
        fitting = [str(times * divisor) for times in (value // divisor, value // divisor + 1) if times]
        raise ValueError(
            f"{name}: {value} is no multiple of {divisor_name}, which is {divisor}; {' or '.join(fitting)} would be"
        )


def read_train_config(path: Path, overrides: list[str] | None = None) -> TrainConfig:
    """Read a recipe, with `key=value` overrides (values as in YAML, nested keys with dots, items of lists by number).

    A recipe may name another, `base: other.yaml` (relative to itself), and give only what it does otherwise: mappings
    are merged, everything else takes the place of what the base says.

    Raises:
        InputError: a file is no YAML mapping, bases form a circle, a key is unknown or given twice, a value wrong.
    """
    said = read_config_values(path, overrides)
    # By itself, since pydantic reports a fault of a union as faults of all of its members.
    model = said.values.get("model")
    if "model" in said.values and not isinstance(model, str | dict):
        message = f"expected a folder or the parts of a model, found {model!r:.80}"
        raise InputError(message, file=said.source_of("model"), field="model")
    if isinstance(model, dict):
        said.values["model"] = said.checked(FromScratch, model, field="model")
    return said.checked(TrainConfig, said.values)
