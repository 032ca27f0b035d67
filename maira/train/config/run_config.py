"""Run configs of training, read from YAML files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

from pydantic import Field, PositiveInt, field_validator, model_validator

from maira.data.image_check import ImageCheck
from maira.data.shards import Shards
from maira.model.prompts import Preset, Task
from maira.model.task_examples import Input
from maira.train.config.files import read_config_values
from radfact.errors import ErrorCode, InputError
from radfact.io.jsonl import read_jsonl
from radfact.records import Record

Fraction = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
PositiveFloat = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Component = Literal["encoder", "adapter", "language_model"]
TASKS: tuple[Task, ...] = ("findings", "grounded", "phrase")
JudgeTask = Literal["entailment", "green", "vert"]  # of a language model that judges reports
ALL_TASKS: tuple[Task | JudgeTask, ...] = (*TASKS, "entailment", "green", "vert")
"""All tasks in the order of their numbers in the tables of samples."""
Beta = Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False)]


class VisionOptions(Record):
    """Arguments of `encoders.Encoder`; the defaults are RAD-DINO's."""

    image_size: PositiveInt = 518
    patch_size: PositiveInt = 14
    hidden_size: PositiveInt = 768
    num_hidden_layers: PositiveInt = 12
    num_attention_heads: PositiveInt = 12
    stem: Literal["patch", "conv"] = "patch"

    @model_validator(mode="after")
    def _check_consistency(self) -> VisionOptions:
        _check_multiple("image_size", self.image_size, "patch_size", self.patch_size)
        _check_multiple("hidden_size", self.hidden_size, "num_attention_heads", self.num_attention_heads)
        return self


class FromScratch(Record):
    """A model with random weights and a tokenizer trained with it."""

    vision_config: VisionOptions
    # Arguments of transformers' LlamaConfig, except those that the tokenizer determines.
    text_config: dict[str, Any]
    image_merge: PositiveInt = 1  # side of the square of patches that becomes one image token
    projector_n_layers: PositiveInt = 4  # linear layers of the adapter
    vocab_size: PositiveInt = 1000

    @field_validator("text_config")
    @classmethod
    def _check_text_config(cls, value: dict[str, Any]) -> dict[str, Any]:
        sizes = {k: size for k, size in value.items() if k.startswith(("num_", "max_")) or k.endswith("_size")}
        for key, number in sizes.items():
            if type(number) is not int or number <= 0:
                raise ValueError(f"{key}: expected a positive integer, found {number!r:.80}")
        pairs = [("num_attention_heads", "num_key_value_heads")]
        pairs += [("hidden_size", "num_attention_heads")] if value.get("head_dim") is None else []
        for name, divisor in pairs:
            if sizes.keys() >= {name, divisor}:
                _check_multiple(name, sizes[name], divisor, sizes[divisor])
        return value

    @model_validator(mode="after")
    def _check_image_merge(self) -> FromScratch:
        side = self.vision_config.image_size // self.vision_config.patch_size
        _check_multiple("image_size / patch_size", side, "image_merge", self.image_merge)
        return self


class EpochPart(NamedTuple):
    """The samples of a task of a source, and how often an epoch takes each of them."""

    source: int  # index in `train`
    task: Any
    available: int
    share: float

    @property
    def used(self) -> int:
        """Samples in an epoch, at least one."""
        return max(1, round(self.available * self.share))


class Source(Record):
    """Training or validation data; a path alone is a source, too."""

    path_field: ClassVar[str]
    split: str | None = None  # None for all

    @model_validator(mode="before")
    @classmethod
    def _parse_path(cls, value: Any) -> Any:
        return {cls.path_field: value} if isinstance(value, str | Path) else value

    def count_samples(self) -> dict[str | None, Counter[Any]]:
        """Count the samples by split and task, without checking them."""
        counts, default = dict[str | None, Counter[Any]](), type(self).model_fields["split"].default
        for _, row in read_jsonl(getattr(self, self.path_field)):
            split = row.get("split", default)
            counts.setdefault(split if isinstance(split, str) else None, Counter()).update(self._row_samples(row))
        return counts

    def _row_samples(self, row: Mapping[str, Any]) -> Mapping[Any, int]:
        raise NotImplementedError


class DataSource(Source):
    """Studies to train or validate on: a manifest or shards."""

    path_field = "manifest"

    manifest: Path | None = None  # `manifest.jsonl`; a relative path is relative to the working directory
    shards: str | None = None  # folder or URL of shards (`maira pack`)
    preferences: Path | None = None  # preference pairs of these studies (`preferences.jsonl`), for `dpo`
    # Factors of the configuration's shares; a task that is not named is omitted. None: all factors are 1.
    tasks: dict[Task, NonNegative] | None = None

    @model_validator(mode="after")
    def _check_source(self) -> DataSource:
        if (self.manifest is None) == (self.shards is None):
            raise ValueError("expected either a manifest or shards")
        return self

    def count_samples(self) -> dict[str | None, Counter[Any]]:
        """See `Source.count_samples`; the samples of preference pairs are their lines."""
        if self.shards is not None:
            shards = Shards(self.shards)
            counts = {}
            for number, split in enumerate(shards.index.splits):
                rows = shards.rows[shards.rows["split"] == number]
                columns = zip(TASKS, ("findings", "grounded", "phrases"), strict=True)
                counts[split] = Counter({task: int(rows[column].sum()) for task, column in columns})
        else:
            counts = super().count_samples()
        if self.preferences is not None and self.split in (None, *counts):
            pairs = sum(1 for _ in read_jsonl(self.preferences))
            other = counts if self.split is not None else {}
            counts = other | {self.split: Counter(dict.fromkeys(("grounded", "findings"), pairs))}
        return counts

    def _row_samples(self, row: Mapping[str, Any]) -> Mapping[Any, int]:
        reports, phrases = (row.get("findings"), row.get("grounded_findings")), row.get("phrases")
        counts = (*(report is not None for report in reports), len(phrases) if isinstance(phrases, list) else 0)
        return dict(zip(TASKS, counts, strict=True))


class LoraOptions(Record):
    """Options of low-rank adapters (LoRA) in the language model; `rank`, `alpha` and `dropout` as in peft."""

    rank: PositiveInt = 64
    alpha: PositiveFloat = 128
    dropout: Fraction = 0.0
    # Linear layers of each block that get an adapter.
    targets: tuple[str, ...] = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
    quantize: Literal["nf4"] | None = None  # hold the frozen weights in 4 bits (QLoRA; needs bitsandbytes)


class MairaLoraOptions(LoraOptions):
    """Options of low-rank adapters in a MAIRA-2's language model."""

    # Also train the rows of MAIRA-2's added tokens in the embeddings and the head. In a freshly assembled model these
    # rows are all the same, so without it the model cannot learn to write boxes.
    added_tokens: bool = True


def _as_list(value: Any) -> Any:
    return [value] if isinstance(value, str | Path | dict) else value


class LossValidationConfig(Record):
    """Losses that are computed during a run."""

    sources: list[Any] = []  # noqa: RUF012  # validation data, a source or a list; empty for no validation
    every: PositiveInt = 500  # optimizer steps between two validations; the last step is always validated
    samples: PositiveInt = 512  # maximum number of samples, a fixed draw
    # Metric by which the best checkpoint is kept, None for none: a loss ("loss/all", "loss/grounded", ...) or, of a
    # MAIRA-2, a score of the drafts ("drafts/logical_f1", "boxes/iou", ...).
    best_by: str | None = None

    _parse_sources = field_validator("sources", mode="before")(_as_list)


class ValidationConfig(LossValidationConfig):
    """Losses and scores of drafts that are computed during a run."""

    sources: list[DataSource] = []  # noqa: RUF012
    drafts_every: PositiveInt | None = None  # steps between two rounds of drafts and box completions; None for none
    drafts: PositiveInt = 100  # number of studies to draft, a fixed draw


class AnomalyConfig(Record):
    """Actions for anomalous steps and unreadable samples: end the run, or skip the step or the sample."""

    not_finite: Literal["stop", "skip"] = "stop"  # for a loss or gradient norm that is not finite
    # A step whose gradient norm is more than this many times its running mean is skipped; None skips none.
    spike: Annotated[float, Field(gt=1, allow_inf_nan=False)] | None = None
    most_skipped: PositiveInt = 3  # the run ends when more steps than this are skipped in a row
    image_check: ImageCheck = "refuse"  # whether an image that cannot be a chest radiograph counts as unreadable
    unreadable: Literal["stop", "skip"] = "stop"  # for a sample that cannot be read
    most_unreadable: PositiveInt = 100  # the run ends when more different samples than this cannot be read


class RewardConfig(Record):
    """The reward of a sampled report."""

    # Weights of scores, named as in `radfact evaluate --metrics`; scores that are better when lower are subtracted.
    scores: Annotated[dict[str, Annotated[float, Field(allow_inf_nan=False)]], Field(min_length=1)] = {  # noqa: RUF012
        "findings": 0.5,
        "spatial_f1": 0.5,
    }
    # Maximum penalty. A report with at most 1.5 times as many words as its reference has none; the penalty grows
    # linearly and reaches the maximum at twice the words of the reference.
    length_penalty: NonNegative = 0.1
    # Penalty for a report that the token limit cut off, or that has another irregularity of form.
    format_penalty: NonNegative = 0.1
    # Of `radfact.metrics.resources.MetricResources`: `judge`, `model`, `base_url`, `cache`, ...
    options: dict[str, Any] = {"judge": "offline"}  # noqa: RUF012


class GrpoConfig(Record):
    """Options of group-relative policy optimization (DeepSeekMath, section 4.1)."""

    # Responses per prompt, which form a group; `global_batch` counts responses.
    num_generations: Annotated[int, Field(ge=2)] = 8
    num_iterations: PositiveInt = 1  # optimizer steps with the same responses
    # Bounds of the probability ratio below and above 1 beyond which a token has no gradient; the upper one is `epsilon`
    # by default (DAPO, section 3.1).
    epsilon: PositiveFloat = 0.2
    epsilon_high: PositiveFloat | None = None
    # Divide the advantages of a group by the standard deviation of its rewards. Groups with almost equal rewards then
    # weigh as much as all others; Dr. GRPO, section 3.1, advises against it.
    scale_rewards: bool = True
    temperature: PositiveFloat = 1.0  # of the sampling
    max_new_tokens: PositiveInt | None = None  # limit of a response; None for that of the task
    reward: RewardConfig = RewardConfig()
    engine: Literal["transformers", "vllm"] = "transformers"  # samples the responses
    engine_args: dict[str, Any] = {}  # noqa: RUF012  # of vLLM, such as `gpu_memory_utilization`
    # Upper bound of the importance weights, which correct for the difference between the probabilities of vLLM and of
    # the model in training (Yao et al., "Your Efficient RL Framework Secretly Brings You Off-Policy RL Training",
    # 2025); None for no correction.
    importance_sampling_clip_max: PositiveFloat | None = 2.0

    @model_validator(mode="after")
    def _check_engine(self) -> GrpoConfig:
        if self.engine_args and self.engine != "vllm":
            raise ValueError("engine_args: only available with engine=vllm; remove them")
        return self


class DpoConfig(Record):
    """Options of direct preference optimization (Rafailov et al., "Direct Preference Optimization", 2023)."""

    # Weight of the log-probability ratios of model and reference model in the reward. The larger it is, the closer the
    # model stays to the reference model.
    beta: PositiveFloat = 0.1
    # Weight of the mean negative log-likelihood per token of the chosen answer, which keeps its probability from
    # falling (Pang et al., "Iterative Reasoning Preference Optimization", 2024, section 2).
    nll_weight: NonNegative = 0.0


class BaseTrainConfig(Record):
    """Options of a training run that all models share."""

    model: Any  # folder of the checkpoint to start from
    lora: LoraOptions | None = None  # train low-rank adapters in the language model
    train: list[Any]  # training data, a source or a list
    validation: LossValidationConfig = LossValidationConfig()
    # How often each sample of a task is seen in an epoch; 0.5 is every second, drawn anew. Several shares divide the
    # sources among their tasks. A source with samples of one task only is not divided: each is seen at least once.
    tasks: dict[Any, NonNegative]
    out: Path  # folder of the run: `states/` to resume from, `checkpoint/` when done, `metrics.jsonl` always
    # Length of the run, one of the two: epochs, or number of samples with repetitions.
    epochs: PositiveFloat | None = None
    passes: PositiveInt | None = None
    global_batch: PositiveInt = 128  # samples of one optimizer step over all processes
    token_budget: PositiveInt = 8192  # maximum tokens of one packed row, which is one forward pass on one process
    # AdamW with cosine decay after linear warm-up (MAIRA-2, appendix B.2).
    learning_rate: PositiveFloat = 2e-5
    warmup: Fraction = 0.03
    weight_decay: NonNegative = 0.0
    betas: tuple[Beta, Beta] = (0.9, 0.999)
    clip: PositiveFloat = 1.0
    optimizer: Literal["adamw", "adamw_8bit"] = "adamw"  # "adamw_8bit" (torchao) has its states in 8 bits
    precision: Literal["bf16", "no"] = "bf16"  # of the computation; "no" is float32
    # Type of trained weights and their gradients; "bfloat16" rounds stochastically and needs "adamw_8bit".
    weights: Literal["float32", "bfloat16"] = "float32"
    parallel: Literal["auto", "fsdp", "ddp"] = "auto"  # "auto": FSDP2 on accelerators, DDP on CPUs
    # Recompute in the backward pass nothing, all of a block but the matrix products ("selective"), or each block.
    activation_checkpointing: Literal["none", "selective", "full"] = "none"
    compile: bool = False  # compile each block of the language model with torch.compile
    # Kernel for packed rows ("varlen": the variable-length kernel; "samples": the samples as a padded batch); "auto"
    # selects the first that is available.
    attention: Literal["auto", "varlen", "samples"] = "auto"
    workers: PositiveInt = 4  # processes that prepare samples for one training process
    checkpoint_dtype: Literal["float32", "float16", "bfloat16"] = "float32"  # of the weights of the finished checkpoint
    seed: Annotated[int, Field(ge=0)] = 0  # of all random numbers
    save_every: PositiveInt = 500  # steps between two training states; one is saved before each validation as well
    keep: PositiveInt = 2  # number of training states kept
    log_every: PositiveInt = 20  # optimizer steps between two lines of metrics
    faults: AnomalyConfig = AnomalyConfig()
    # Targets of metrics in addition to the console and `metrics.jsonl`.
    trackers: tuple[Literal["tensorboard", "wandb"], ...] = ("tensorboard",)

    @property
    def trains(self) -> tuple[Component, ...]:
        """Trained components of the model; with `lora`, of the language model only its adapters."""
        return ("language_model",)

    @property
    def samples_per_draw(self) -> int:
        """Samples of the data that a step takes."""
        return self.global_batch

    @property
    def steps_per_draw(self) -> int:
        """Optimizer steps with the same samples."""
        return 1

    _parse_train = field_validator("train", mode="before")(_as_list)

    @field_validator("precision", mode="before")
    @classmethod
    def _parse_precision(cls, value: Any) -> Any:
        # In YAML 1.1 it is a Boolean.
        return "no" if value is False else value

    @model_validator(mode="after")
    def _check_consistency(self) -> BaseTrainConfig:
        if not self.train:
            raise ValueError("train: expected at least one source")
        if not any(any(self.shares(source).values()) for source in self.train):
            raise ValueError("tasks: at least one task needs a share above 0")
        if (self.epochs is None) == (self.passes is None):
            hint = "neither; set epochs=3" if self.epochs is None else "both; set passes=null or epochs=null"
            raise ValueError(f"epochs: expected either epochs or passes, found {hint}")
        if self.passes is not None and self.passes < self.global_batch:
            hint = f"set passes={self.global_batch} or global_batch={self.passes}"
            expected = f"at least global_batch, {self.global_batch}"
            raise ValueError(f"passes: expected {expected}, found {self.passes}; {hint}")
        if self.weights == "bfloat16" and self.optimizer != "adamw_8bit":
            raise ValueError("weights: bfloat16 needs the optimizer adamw_8bit, which rounds stochastically")
        return self

    def check_sources(self) -> None:
        """Check that the training and validation files exist, before a model is read."""
        for name, sources in (("train", self.train), ("validation.sources", self.validation.sources)):
            for index, source in enumerate(sources):
                for field, path in source:
                    if not isinstance(path, Path) or path.exists():
                        continue
                    # `train` may be a path instead of a list, and then has no keys in it.
                    is_path = name == "train" and len(self.train) == 1 and source.model_fields_set == {field}
                    key = name if is_path else f"{name}.{index}.{field}"
                    hint = ", or validation.sources=[] to disable validation" if name != "train" else ""
                    raise InputError(f"no such file; set {key}=FILE{hint}", code=ErrorCode.FILE_NOT_FOUND, file=path)

    def shares(self, source: Any) -> dict[Any, float]:
        """Return how often each sample of a source is seen in an epoch, by task, without tasks that are never seen."""
        own = self.tasks if source.tasks is None else {t: w * self.tasks.get(t, 0.0) for t, w in source.tasks.items()}
        return {task: share for task, share in own.items() if share > 0}

    def plan_epoch(self, available: Mapping[tuple[int, Any], int]) -> list[EpochPart]:
        """Return the parts of an epoch, from the number of samples of each source (its index) and task."""
        is_mix = sum(share > 0 for share in self.tasks.values()) > 1
        parts: list[EpochPart] = []
        for index, source in enumerate(self.train):
            shares = {task: share for task, share in self.shares(source).items() if available.get((index, task))}
            if is_mix and len(shares) == 1:
                shares = {task: max(share, (source.tasks or {}).get(task, 1.0)) for task, share in shares.items()}
            parts += [EpochPart(index, task, available[index, task], share) for task, share in shares.items()]
        return parts

    def plan_steps(self, samples: int) -> tuple[int, int]:
        """Return the optimizer steps of an epoch with a number of samples, and those of the run."""
        per_epoch = samples // self.samples_per_draw * self.steps_per_draw
        if not per_epoch:
            few = f"too few for a step, which takes {self.samples_per_draw}"
            largest = samples * (self.global_batch // self.samples_per_draw)
            message = f"an epoch has {samples} samples to train on, {few}; set global_batch={largest}"
            raise InputError(message, field="train")
        if self.passes is not None:
            return per_epoch, self.passes // self.global_batch * self.steps_per_draw
        return per_epoch, max(1, round((self.epochs or 0) * per_epoch))


class TrainConfig(BaseTrainConfig):
    """Options of a training run of a MAIRA-2."""

    model: Path | FromScratch  # folder of the checkpoint to start from, or the options of a fresh model
    # Trained components; with `lora`, of the language model only its adapters.
    trained: Annotated[tuple[Component, ...], Field(min_length=1)] = ("adapter", "language_model")
    lora: MairaLoraOptions | None = None  # train low-rank adapters, and the rows of MAIRA-2's added tokens
    train: list[DataSource]
    validation: ValidationConfig = ValidationConfig()
    # By default each sample is seen once in an epoch (MAIRA-2, table 1).
    tasks: dict[Task, NonNegative] = {"findings": 1.0, "grounded": 1.0, "phrase": 1.0}  # noqa: RUF012
    drop: tuple[Input, ...] = ()  # inputs that are removed in training and validation (MAIRA-2, appendix D.6)
    preset: Preset = "release"  # wording of the prompts
    # Weight of an auxiliary loss that predicts for every patch of a trained encoder which labeled findings cover it; 0
    # for none. Its head is not part of the checkpoint.
    patch_loss: NonNegative = 0.0
    grpo: GrpoConfig | None = None  # train with rewards of sampled reports instead of the reports of the data
    dpo: DpoConfig | None = None  # train with preference pairs instead of the reports of the data

    @model_validator(mode="after")
    def _check_training(self) -> TrainConfig:
        if self.lora is not None and "language_model" not in self.trained:
            raise ValueError("lora: the language model is not trained; add language_model to trained, or remove lora")
        if self.lora is not None and self.lora.quantize and isinstance(self.model, FromScratch):
            raise ValueError("lora.quantize: 4-bit weights need a checkpoint as the model; set model=FOLDER")
        if self.patch_loss and "encoder" not in self.trained:
            raise ValueError("patch_loss: the encoder is not trained; add it to trained, or remove patch_loss")
        if any(source.preferences is not None for source in self.validation.sources):
            raise ValueError("validation.sources: preferences are only available in `train`; remove them")
        has_preferences = [source.preferences is not None for source in self.train if self.shares(source)]
        if self.dpo is None and any(has_preferences):
            raise ValueError("dpo: expected options, since a source of `train` has preferences; set dpo={}")
        if self.dpo is not None and not all(has_preferences):
            raise ValueError("train: expected `preferences` in each source, since `dpo` is set")
        name = "grpo" if self.grpo is not None else "dpo"
        if self.grpo is not None and self.dpo is not None:
            raise ValueError("dpo: expected either grpo or dpo, found both; remove one of them")
        if self.is_post_training and not isinstance(self.model, Path):
            raise ValueError("model: expected the folder of a trained checkpoint, found the options of a new model")
        if self.is_post_training and any("phrase" in self.shares(source) for source in self.train):
            raise ValueError(f"tasks: phrase grounding is not available with {name}; set tasks={{grounded: 1}}")
        if self.is_post_training and self.patch_loss:
            raise ValueError(f"patch_loss: not available with {name}; remove it")
        if self.is_post_training and self.lora is not None and self.lora.dropout:
            raise ValueError(f"lora.dropout: expected 0 with {name}, as old or reference probabilities have no dropout")
        if self.grpo is None:
            return self
        if self.grpo.engine == "vllm" and self.lora is not None and self.lora.quantize is not None:
            raise ValueError("lora.quantize: not available with grpo.engine=vllm; set grpo.engine=transformers")
        sizes = {"global_batch": self.global_batch, "save_every": self.save_every}
        if self.validation.sources:
            sizes["validation.every"] = self.validation.every
            sizes["validation.drafts_every"] = self.validation.drafts_every or 0
        for field, size in sizes.items():
            option = "num_generations" if field == "global_batch" else "num_iterations"
            _check_multiple(field, size, f"grpo.{option}", getattr(self.grpo, option))
        return self

    @property
    def is_post_training(self) -> bool:
        """Whether a trained model is trained further with rewards or preferences."""
        return self.grpo is not None or self.dpo is not None

    @property
    def samples_per_draw(self) -> int:
        """Samples of the data that a step takes."""
        return self.global_batch // (self.grpo.num_generations if self.grpo else 1)

    @property
    def steps_per_draw(self) -> int:
        """Optimizer steps with the same samples."""
        return self.grpo.num_iterations if self.grpo else 1

    @property
    def trains(self) -> tuple[Component, ...]:
        """Trained components of the model."""
        return self.trained


def _check_multiple(name: str, value: int, divisor_name: str, divisor: int) -> None:
    """Raise a ValueError that names the nearest valid values unless a number is a multiple of another."""
    if value % divisor:
        multiples = [str(times * divisor) for times in (value // divisor, value // divisor + 1) if times]
        expected = f"a multiple of {divisor_name}, which is {divisor}, such as {' or '.join(multiples)}"
        raise ValueError(f"{name}: expected {expected}, found {value}")


def read_train_config(path: Path, overrides: list[str] | None = None) -> TrainConfig:
    """Read a configuration with its `base`, and apply overrides."""
    source = read_config_values(path, overrides)
    # Separately, since pydantic reports an error in a union as errors of all of its members.
    model = source.values.get("model")
    if "model" in source.values and not isinstance(model, str | dict):
        message = f"expected a folder or the options of a model, found {model!r:.80}"
        raise InputError(message, file=source.source_of("model"), field="model")
    if isinstance(model, dict):
        source.values["model"] = source.validate(FromScratch, model, field="model")
    return source.validate(TrainConfig, source.values)
