"""Stage `train`: training tokens per second, MFU and memory of a random model with the shape of MAIRA-2.

Both sides train the same model on the same synthetic samples: lengths of the paper's mix, 1 to 3 images each, random
tokens and pixels. `maira train` packs them into rows and computes logits for answers only. The baseline pads batches
to their longest sample and computes all logits, with transformers' Trainer and gradient checkpointing. Padding tokens
do not count. MFU counts the model's operations without recomputation (`maira.train.cost.flops`), relative to the data
sheet.
"""

from __future__ import annotations

import gc
import math
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import transformers
from torch import nn

from gpu_stages.cases import Measurement, Setup, parse_case
from gpu_stages.models import GIB, make_config, peak_memory, random_model, reset_peak_memory, synchronized_time
from maira.model.config import MairaConfig
from maira.model.modeling import MODULES, MairaForConditionalGeneration
from maira.train import attention
from maira.train.blocks import prepare_blocks
from maira.train.components import set_trainable, weight_dtype
from maira.train.config.run_config import TrainConfig
from maira.train.cost.accelerators import find_accelerator
from maira.train.cost.flops import make_rates
from maira.train.cost.memory import build_shapes, estimate_memory
from maira.train.cost.workload import paper_workload
from maira.train.data.packing import EncodedSample, PackedBatch, StepTotals, collate, pack
from maira.train.loss import MairaLossModel
from maira.train.optimizers import make_optimizer

METHODS: dict[str, dict[str, Any]] = {
    "full": {},
    "8bit": {"optimizer": "adamw_8bit", "weights": "bfloat16"},
    "lora": {"lora": {"rank": 64, "alpha": 128}},
    "qlora": {"lora": {"rank": 64, "alpha": 128, "quantize": "nf4"}},
}
"""Options of the run config by training method."""
MFU, SPEEDUP, MEMORY_ERROR = 0.45, 1.7, 0.1
"""Targets: MFU of full training, ratio of tokens per second to the baseline, relative error of the memory estimate."""


@dataclass(frozen=True)
class Plan:
    """Samples of a case.

    Attributes:
        samples: samples per optimizer step.
        steps: number of steps, including a first one for warm-up.
        baseline_batch_size: samples that the baseline pads together.
        text_share: text lengths relative to those of the paper.
    """

    samples: int = 32
    steps: int = 3
    baseline_batch_size: int = 4
    text_share: float = 1.0


TINY_PLAN = Plan(samples=4, steps=2, baseline_batch_size=2, text_share=0.1)


@dataclass(frozen=True)
class Run:
    """Result of training.

    Attributes:
        seconds: time of the steps after the first.
        loss: loss of the last row or batch.
        kernel: attention kernel; None for the baseline.
        filled: filled share of the rows; None for the baseline.
        estimate: peak memory by `maira.train.cost.memory`, bytes; None for the baseline.
    """

    seconds: float
    loss: float
    kernel: str | None = None
    filled: float | None = None
    estimate: int | None = None


def measure(case: str, setup: Setup) -> Iterator[Measurement]:
    """Train with the options of a case, and yield speed and memory."""
    options = parse_case(case)
    plan = TINY_PLAN if setup.is_tiny else Plan()
    config = make_config(setup, layers=int(options["layers"]) if "layers" in options else None)
    train_config = make_train_config(options, setup, plan)
    samples = make_samples(config, train_config, plan)
    gc.collect()
    model = trainable_model(config, train_config, setup.device)
    is_baseline = "baseline" in options
    # The memory of making the model, whose weights may then be quantized, does not count.
    reset_peak_memory(setup.device)
    run = (train_padded if is_baseline else train_packed)(model, samples, train_config, plan)
    peak = peak_memory(setup.device)
    timed = samples[plan.samples :]
    tokens, answers = (sum(map(count, timed)) for count in (lambda s: len(s.input_ids), _answer_tokens))
    rates = make_rates(config, train_config)
    flops = sum(rates.of([len(s.input_ids) for s in timed], sum(len(s.images) for s in timed), answers).values())
    yield Measurement("tokens per second", tokens / run.seconds, "tokens/s")
    yield Measurement("samples per second", len(timed) / run.seconds, "samples/s")
    yield Measurement("model FLOP/s", flops / run.seconds / 1e12, "TFLOP/s")
    yield _mfu(flops / run.seconds, setup, has_target=not is_baseline and options["method"] in ("full", "8bit"))
    # Random weights start at the loss of a uniform distribution.
    yield Measurement("loss", run.loss, at_most=2 * math.log(config.text_config.vocab_size))
    if not is_baseline:
        yield _speedup(tokens / run.seconds, options["method"], setup)
        yield Measurement("filled share of rows", run.filled)
        yield Measurement("attention kernel", run.kernel)
    yield from _memory(peak, run.estimate, is_compiled="compile" in options)


def _answer_tokens(sample: EncodedSample) -> int:
    return len(sample.input_ids) - sample.prompt_tokens


def _mfu(rate: float, setup: Setup, *, has_target: bool) -> Measurement:
    accelerator = find_accelerator(torch.cuda.get_device_name()) if setup.device.type == "cuda" else None
    if accelerator is None:
        return Measurement("MFU", None, reason="the peak rate of this device is not known")
    return Measurement("MFU", rate / accelerator.peak, at_least=MFU if has_target else None)


def _speedup(rate: float, method: str, setup: Setup) -> Measurement:
    baseline = setup.results.value(("train", f"method={method} baseline"), "tokens per second")
    if baseline is None:
        return Measurement("ratio to the baseline", None, reason=f"'method={method} baseline' has not been measured")
    return Measurement("ratio to the baseline", rate / baseline, at_least=SPEEDUP)


def _memory(peak: int | None, estimate: int | None, *, is_compiled: bool) -> Iterator[Measurement]:
    """Yield peak and estimate; a compiled model needs less memory than estimated, and more is never expected."""
    if estimate is not None:
        yield Measurement("estimated peak memory", estimate / GIB, "GiB")
    if peak is None:
        yield Measurement("peak memory", None, reason="measured on GPUs only")
        return
    yield Measurement("peak memory", peak / GIB, "GiB")
    if estimate is not None:
        least = None if is_compiled else 1 - MEMORY_ERROR
        yield Measurement("peak memory / estimate", peak / estimate, at_least=least, at_most=1 + MEMORY_ERROR)


def make_train_config(options: Mapping[str, str], setup: Setup, plan: Plan) -> TrainConfig:
    """Return the run config of a case.

    Args:
        options: options of the case.
        setup: setup of the case.
        plan: plan of the case.
    """
    values: dict[str, Any] = {"model": "none", "train": "none", "out": str(setup.folder), "epochs": 1}
    # Weights in bfloat16 need a computation in bfloat16, which is slow on a CPU.
    is_half = setup.device.type == "cuda" or options["method"] == "8bit"
    values |= {"global_batch": plan.samples, "precision": "bf16" if is_half else "no"}
    values |= {"activation_checkpointing": options.get("checkpointing", "none"), "compile": "compile" in options}
    values |= {"token_budget": int(options.get("budget", 8192))}
    return TrainConfig.model_validate(values | METHODS[options["method"]])


def trainable_model(
    config: MairaConfig, train_config: TrainConfig, device: torch.device
) -> MairaForConditionalGeneration:
    """Make a random model with the types of its weights, adapters and trained weights of a run config."""
    dtypes = {part: weight_dtype(train_config, part) for part in MODULES}
    model = random_model(config, device, dtypes)
    set_trainable(model, train_config)
    # Weights in 4 bits are quantized by the move.
    return model.to(device).train()


def make_samples(config: MairaConfig, train_config: TrainConfig, plan: Plan) -> list[EncodedSample]:
    """Make samples of noise with the paper's mix; the lengths of texts vary by a third around their mean.

    Args:
        config: configuration of the model.
        train_config: run config.
        plan: number of samples and length of texts.
    """
    rows = paper_workload(train_config, config, "the benchmark uses it").rows
    rng, side = np.random.default_rng(1), config.vision_config.image_size
    samples = []
    for row in rows[rng.integers(len(rows), size=plan.samples * plan.steps)]:
        images = int(row["images"])
        image_tokens = images * config.image_seq_length
        text = max(8, round((int(row["prompt"]) - image_tokens) * plan.text_share * rng.uniform(2 / 3, 4 / 3)))
        answer = max(4, round(int(row["answer"]) * plan.text_share * rng.uniform(2 / 3, 4 / 3)))
        words = rng.integers(3, config.text_config.vocab_size - 10, size=text + answer)
        ids = [config.image_token_index] * image_tokens + words.tolist()
        pixels = rng.standard_normal((images, side, side), np.float32)
        samples.append(EncodedSample(f"s{len(samples)}", "findings", ids, image_tokens + text, pixels))
    return samples


def packed_steps(samples: list[EncodedSample], train_config: TrainConfig) -> Iterator[list[PackedBatch]]:
    """Yield the rows of each step.

    Args:
        samples: samples of all steps.
        train_config: run config with the batch size and the tokens of a row.
    """
    for begin in range(0, len(samples), train_config.global_batch):
        step = samples[begin : begin + train_config.global_batch]
        totals = StepTotals(sum(map(_answer_tokens, step)), len(step))
        bins = pack([len(s.input_ids) for s in step], train_config.token_budget)
        yield [collate([step[i] for i in row], totals, pad_id=0) for row in bins]


def train_packed(
    model: MairaForConditionalGeneration, samples: list[EncodedSample], train_config: TrainConfig, _plan: Plan
) -> Run:
    """Train on packed rows as `maira train` does.

    Args:
        model: model to train.
        samples: samples of all steps.
        train_config: run config.
    """
    device = model.device
    is_half = train_config.precision == "bf16"
    kernel = attention.select_kernel(train_config.attention, device, torch.bfloat16 if is_half else torch.float32)
    training = MairaLossModel(model, 0, 0.0, kernel)
    prepare_blocks(training, train_config)
    optimizer = make_optimizer(training, train_config)
    steps = list(packed_steps(samples, train_config))
    started, loss = 0.0, math.nan
    for number, rows in enumerate(steps):
        if number == 1:
            started = synchronized_time(device)
        for batch in rows:
            with torch.autocast(device.type, torch.bfloat16, enabled=is_half):
                losses = training(batch.to(device))
            losses.total(batch.totals, 0.0).backward()
        torch.nn.utils.clip_grad_norm_(training.parameters(), train_config.clip)
        optimizer.step()
        optimizer.zero_grad()
        if number == len(steps) - 1:
            loss = float(losses.answer.detach() / losses.tokens.sum())
    seconds = synchronized_time(device) - started
    flat = [batch for rows in steps for batch in rows]
    filled = sum(len(s.input_ids) for s in samples) / (len(flat) * train_config.token_budget)
    estimate = _estimate(model.config, train_config, steps, kernel)
    return Run(seconds, loss, kernel.removeprefix("maira_"), filled, estimate)


def _estimate(config: Any, train_config: TrainConfig, steps: list[list[PackedBatch]], kernel: str) -> int:
    """Return the estimated peak memory for the longest row, in bytes."""
    longest = max((batch for rows in steps for batch in rows), key=lambda batch: batch.input_ids.shape[1])
    row = longest.starts.diff().tolist(), len(longest.pixel_values), len(longest.targets)
    accumulates = max(map(len, steps)) > 1
    parts = estimate_memory(
        build_shapes(config, train_config), train_config, *row, kernel=kernel, accumulates=accumulates
    )
    return sum(parts.values())


class PaddedSamples(torch.utils.data.Dataset[dict[str, Any]]):
    """Samples as tensors, like in a typical dataset."""

    def __init__(self, samples: list[EncodedSample]) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, number: int) -> dict[str, Any]:
        sample = self.samples[number]
        ids = torch.tensor(sample.input_ids)
        labels = ids.clone()
        labels[: sample.prompt_tokens] = -100
        pixels = torch.from_numpy(sample.images)[:, None].expand(-1, 3, -1, -1)
        return {"input_ids": ids, "labels": labels, "pixel_values": pixels}


def pad(samples: list[dict[str, Any]]) -> dict[str, Any]:
    """Return a batch that is as long as its longest sample."""
    texts = {"input_ids": 0, "labels": -100}
    batch = {
        name: nn.utils.rnn.pad_sequence([s[name] for s in samples], batch_first=True, padding_value=value)
        for name, value in texts.items()
    }
    masks = [torch.ones(len(s["input_ids"]), dtype=torch.long) for s in samples]
    batch["attention_mask"] = nn.utils.rnn.pad_sequence(masks, batch_first=True)
    return batch | {"pixel_values": torch.cat([s["pixel_values"] for s in samples])}


class AllLogits(nn.Module):
    """The model as a training script for the Trainer calls it: logits of every token, then transformers' loss."""

    def __init__(self, model: MairaForConditionalGeneration) -> None:
        super().__init__()
        self.model, self.config = model, model.config

    def gradient_checkpointing_enable(self, **options: Any) -> None:
        """Recompute the blocks of the language model."""
        self.model.model.language_model.gradient_checkpointing_enable(**options)

    def forward(self, labels: torch.Tensor, num_items_in_batch: Any = None, **inputs: Any) -> dict[str, Any]:
        """Return the loss.

        Args:
            labels: (batch, length), -100 at positions without a loss.
            num_items_in_batch: number of labels in the optimizer step.
            **inputs: inputs of the model.
        """
        logits = self.model(**inputs, use_cache=False).logits
        loss = self.model.loss_function(
            logits=logits,
            labels=labels,
            vocab_size=self.config.text_config.vocab_size,
            num_items_in_batch=num_items_in_batch,
        )
        return {"loss": loss}


class InOrderTrainer(transformers.Trainer):  # type: ignore[misc]
    """Trains on the same samples in the same steps as `maira train`."""

    def _get_train_sampler(self, train_dataset: Any = None) -> Any:
        return torch.utils.data.SequentialSampler(train_dataset or self.train_dataset)


def train_padded(
    model: MairaForConditionalGeneration, samples: list[EncodedSample], train_config: TrainConfig, plan: Plan
) -> Run:
    """Train with transformers' Trainer on padded batches: the baseline.

    Args:
        model: model to train.
        samples: samples of all steps.
        train_config: run config.
        plan: size of the batches.
    """
    device = model.device
    started: list[float] = []

    class Clock(transformers.TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, _args: Any, state: Any, _control: Any, **_options: Any) -> None:
            if state.global_step == 1:
                started.append(synchronized_time(device))

    with tempfile.TemporaryDirectory() as folder:
        arguments = transformers.TrainingArguments(
            folder,
            per_device_train_batch_size=plan.baseline_batch_size,
            gradient_accumulation_steps=plan.samples // plan.baseline_batch_size,
            max_steps=plan.steps,
            bf16=train_config.precision == "bf16",
            use_cpu=device.type == "cpu",
            gradient_checkpointing=True,
            gradient_checkpointing_kwargs={"use_reentrant": False},
            report_to=[],
            save_strategy="no",
            logging_strategy="no",
            disable_tqdm=True,
            remove_unused_columns=False,
        )
        wrapped = AllLogits(model)
        trainer = InOrderTrainer(
            wrapped,
            arguments,
            data_collator=pad,
            train_dataset=PaddedSamples(samples),
            callbacks=[Clock()],
            optimizers=(make_optimizer(wrapped, train_config), None),
        )
        trainer.pop_callback(transformers.PrinterCallback)
        loss = trainer.train().training_loss
    return Run(synchronized_time(device) - started[0], loss)
