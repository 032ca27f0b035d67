"""Stage `train`: training tokens per second, MFU and memory of a random model with the shape of MAIRA-2.

Both sides train the same model on the same synthetic samples: average lengths of the paper, 1 to 3 images each, random
tokens and pixels. `maira train` packs them into rows and computes logits for answers only. The baseline pads batches
to their longest sample and computes all logits, with transformers' Trainer and gradient checkpointing. Padding tokens
do not count. MFU counts the model's operations without recomputation (`maira.train.cost.flops`), relative to the data
sheet.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
import transformers
from torch import nn
from torch._dynamo.utils import counters

from gpu_stages import models
from gpu_stages.models import synchronized_time
from gpu_stages.results import Measurement, Setup, parse_case
from maira.model.config import MairaConfig
from maira.model.modeling import MairaForConditionalGeneration as Model
from maira.train import attention
from maira.train.components import set_trainable, weight_dtype
from maira.train.config.run_config import TrainConfig
from maira.train.cost.flops import find_accelerator, make_rates
from maira.train.cost.memory import build_shapes, estimate_memory
from maira.train.data.packing import EncodedSample, PackedBatch, StepTotals, collate, pack
from maira.train.loss import Losses, MairaLossModel
from maira.train.parallel import make_optimizer, prepare_blocks

METHODS: dict[str, dict[str, Any]] = {
    "full": {},
    "8bit": {"optimizer": "adamw_8bit", "weights": "bfloat16"},
    "lora": {"lora": {"rank": 64, "alpha": 128}},
}
"""Options of the run config by training method."""
MFU, SPEEDUP, MEMORY_ERROR = 0.5, 1.7, 0.1
"""Targets: MFU of full training, ratio of tokens per second to the baseline, relative error of the memory estimate."""
PROMPT_TOKENS, ANSWER_TOKENS, LATERAL_SHARE, PRIOR_SHARE = 196, 140, 0.534, 0.265
"""Text tokens of an average sample of MAIRA-2's mix, and its shares of samples with a lateral and a prior (table 1)."""


@dataclass(frozen=True)
class Plan:
    """Samples of a step, steps, samples that the baseline pads together, and length of texts relative to the paper."""

    samples: int = 32
    steps: int = 4
    padded: int = 4
    text_share: float = 1.0


TINY_PLAN = Plan(samples=4, steps=2, padded=2, text_share=0.1)


def measure(case: str, setup: Setup) -> Iterator[Measurement]:
    """Train with the options of a case, and yield the seconds of each phase, speed and memory."""
    options = parse_case(case)
    plan, is_baseline = TINY_PLAN if setup.is_tiny else Plan(), "baseline" in options
    config, train_config = models.make_config(setup), make_train_config(options, setup, plan)
    samples = make_samples(config, plan)
    started = synchronized_time(setup.device)
    model = trainable_model(config, train_config, setup.device)
    # The memory of making the model does not count.
    models.reset_peak_memory(setup.device)
    times, graphs = [synchronized_time(setup.device)], counters["stats"]["unique_graphs"]
    yield Measurement("seconds to build", times[0] - started, "s")
    if is_baseline:
        train_padded(model, samples, train_config, plan, times.append)
        for number, (begin, end) in enumerate(pairwise(times), 1):
            yield Measurement(f"seconds of step {number}", end - begin, "s")
    else:
        for loss in train_packed(model, samples, train_config):  # noqa: B007
            times.append(synchronized_time(setup.device))
            yield Measurement(f"seconds of step {len(times) - 1}", times[-1] - times[-2], "s")
        # Random weights start at the loss of a uniform distribution.
        yield Measurement("loss", loss, at_most=2 * math.log(config.text_config.vocab_size))
    yield Measurement("compiled graphs", counters["stats"]["unique_graphs"] - graphs)
    # The first step compiles, allocates and selects kernels.
    seconds, timed = times[-1] - times[1], samples[plan.samples :]
    lengths, images = [len(sample.input_ids) for sample in timed], sum(len(sample.images) for sample in timed)
    rates = make_rates(config, train_config.trains, train_config.lora)
    flops = sum(rates.of(lengths, images, sum(map(_answer_tokens, timed))).values())
    yield Measurement("tokens per second", sum(lengths) / seconds, "tokens/s")
    yield Measurement("model FLOP/s", flops / seconds / 1e12, "TFLOP/s")
    is_gpu = setup.device.type == "cuda"
    if (accelerator := find_accelerator(torch.cuda.get_device_name(setup.device)) if is_gpu else None) is None:
        yield Measurement("MFU", None, reason="the peak rate of this device is not known")
    else:
        has_target = not is_baseline and options["method"] in ("full", "8bit")
        yield Measurement("MFU", flops / seconds / accelerator.peak, at_least=MFU if has_target else None)
    yield from models.measure_memory(setup.device)
    if is_baseline:
        return
    baseline = ("train", f"method={options['method']} baseline")
    ratio = ("ratio to the baseline", sum(lengths) / seconds, baseline, "tokens per second")
    yield setup.results.ratio(*ratio, SPEEDUP)
    if is_gpu:
        yield _compare_estimate(model, train_config, samples)


def _answer_tokens(sample: EncodedSample) -> int:
    return len(sample.input_ids) - sample.prompt_tokens


def _compare_estimate(model: Model, train_config: TrainConfig, samples: list[EncodedSample]) -> Measurement:
    """Compare the peak with the estimate for the longest row; a compiled model may need less, and never more."""
    steps = list(packed_steps(samples, train_config))
    longest = max((batch for rows in steps for batch in rows), key=lambda batch: batch.input_ids.shape[1])
    row = longest.starts.diff().tolist(), len(longest.pixel_values), len(longest.targets)
    shapes = build_shapes(model.config, train_config)
    kernel, accumulates = select_kernel(train_config, model.device), max(map(len, steps)) > 1
    estimate = sum(estimate_memory(shapes, train_config, *row, kernel=kernel, accumulates=accumulates).values())
    ratio = torch.cuda.max_memory_allocated(model.device) / estimate
    least = None if train_config.compile else 1 - MEMORY_ERROR
    return Measurement("peak memory / estimate", ratio, at_least=least, at_most=1 + MEMORY_ERROR)


def make_train_config(options: Mapping[str, str], setup: Setup, plan: Plan) -> TrainConfig:
    """Return the run config of a case."""
    # Weights in bfloat16 need a computation in bfloat16, which is slow on a CPU.
    is_half = setup.device.type == "cuda" or options["method"] == "8bit"
    values = {"model": "none", "train": "none", "out": str(setup.folder), "epochs": 1, "global_batch": plan.samples}
    values |= {"precision": "bf16" if is_half else "no", "compile": "compile" in options}
    values |= {"activation_checkpointing": options.get("checkpointing", "none"), **METHODS[options["method"]]}
    return TrainConfig.model_validate({**values, "token_budget": int(options.get("budget", 8192))})


def trainable_model(config: MairaConfig, train_config: TrainConfig, device: torch.device) -> Model:
    """Make a random model with the types of its weights, adapters and trained weights of a run config."""
    model = models.random_model(config, device, lambda part: weight_dtype(train_config, part))
    set_trainable(model, train_config)
    return model.to(device).train()


def make_samples(config: MairaConfig, plan: Plan) -> list[EncodedSample]:
    """Make samples of noise; the lengths of texts vary by a third around their mean."""
    rng, side = np.random.default_rng(1), config.vision_config.image_size
    samples = []
    for number in range(plan.samples * plan.steps):
        images = 1 + int(rng.random() < LATERAL_SHARE) + int(rng.random() < PRIOR_SHARE)
        prompt, answer = (
            max(4, round(mean * plan.text_share * rng.uniform(2 / 3, 4 / 3))) for mean in (PROMPT_TOKENS, ANSWER_TOKENS)
        )
        words = rng.integers(3, config.text_config.vocab_size - 10, size=prompt + answer)
        image_tokens = images * config.image_seq_length
        ids = [config.image_token_index] * image_tokens + words.tolist()
        pixels = rng.standard_normal((images, side, side), np.float32)
        samples.append(EncodedSample(f"s{number}", "findings", ids, image_tokens + prompt, pixels))
    return samples


def packed_steps(samples: list[EncodedSample], train_config: TrainConfig) -> Iterator[list[PackedBatch]]:
    """Yield the rows of each step."""
    for begin in range(0, len(samples), train_config.global_batch):
        step = samples[begin : begin + train_config.global_batch]
        totals = StepTotals(sum(map(_answer_tokens, step)), len(step))
        bins = pack([len(s.input_ids) for s in step], train_config.token_budget)
        yield [collate([step[i] for i in row], totals, pad_id=0) for row in bins]


def select_kernel(train_config: TrainConfig, device: torch.device) -> str:
    """Return the attention kernel of a run config."""
    dtype = torch.bfloat16 if train_config.precision == "bf16" else torch.float32
    return attention.select_kernel(train_config.attention, device, dtype)


def backward(model: MairaLossModel, batch: PackedBatch, *, is_half: bool) -> Losses:
    """Compute the losses of a packed row, with autocast if `is_half`, and add their gradient."""
    device = next(model.parameters()).device
    with torch.autocast(device.type, torch.bfloat16, enabled=is_half):
        losses: Losses = model(batch.to(device))
    losses.total(batch.totals, 0.0).backward()
    return losses


def train_packed(model: Model, samples: list[EncodedSample], train_config: TrainConfig) -> Iterator[float]:
    """Train on packed rows as `maira train` does, and yield the loss of the last row of each step."""
    training = MairaLossModel(model, 0, 0.0, select_kernel(train_config, model.device))
    prepare_blocks(training, train_config)
    optimizer = make_optimizer(training, train_config)
    for rows in packed_steps(samples, train_config):
        for batch in rows:
            losses = backward(training, batch, is_half=train_config.precision == "bf16")
        torch.nn.utils.clip_grad_norm_(training.parameters(), train_config.clip)
        optimizer.step()
        optimizer.zero_grad()
        yield float(losses.answer.detach() / losses.tokens.sum())


def pad(samples: list[EncodedSample]) -> dict[str, Any]:
    """Return a batch that is as long as its longest sample."""
    ids = [torch.tensor(sample.input_ids) for sample in samples]
    answers = [row.clone() for row in ids]
    for row, sample in zip(answers, samples, strict=True):
        row[: sample.prompt_tokens] = -100
    texts = {"input_ids": (ids, 0), "labels": (answers, -100), "attention_mask": (list(map(torch.ones_like, ids)), 0)}
    batch = {name: nn.utils.rnn.pad_sequence(rows, True, value) for name, (rows, value) in texts.items()}
    pixels = [torch.from_numpy(sample.images)[:, None].expand(-1, 3, -1, -1) for sample in samples]
    return batch | {"pixel_values": torch.cat(pixels)}


class AllLogits(nn.Module):
    """The model as a training script for the Trainer calls it: logits of every token, then transformers' loss."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model, self.config = model, model.config
        self.gradient_checkpointing_enable = model.model.language_model.gradient_checkpointing_enable

    def forward(self, labels: torch.Tensor, num_items_in_batch: Any = None, **inputs: Any) -> dict[str, Any]:
        """Return the loss of labels (batch, length), which are -100 where there is none."""
        logits, size = self.model(**inputs, use_cache=False).logits, self.config.text_config.vocab_size
        count = {"num_items_in_batch": num_items_in_batch}
        return {"loss": self.model.loss_function(logits=logits, labels=labels, vocab_size=size, **count)}


def train_padded(
    model: Model, samples: list[EncodedSample], train_config: TrainConfig, plan: Plan, on_step: Callable[[float], None]
) -> None:
    """Train the baseline: padded batches, transformers' Trainer; call `on_step` with the time after each step."""

    class Clock(transformers.TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, _args: Any, _state: Any, _control: Any, **_options: Any) -> None:
            on_step(synchronized_time(model.device))

    sizes: Any = {"per_device_train_batch_size": plan.padded, "max_steps": plan.steps}
    quiet: Any = {"report_to": [], "save_strategy": "no", "logging_strategy": "no", "disable_tqdm": True}
    arguments = transformers.TrainingArguments(
        str(train_config.out / "trainer"),
        gradient_accumulation_steps=plan.samples // plan.padded,
        train_sampling_strategy="sequential",  # the same samples in the same steps as `maira train`
        bf16=train_config.precision == "bf16",
        use_cpu=model.device.type == "cpu",
        gradient_checkpointing=True,
        gradient_checkpointing_kwargs={"use_reentrant": False},
        remove_unused_columns=False,
        **sizes,
        **quiet,
    )
    wrapped = AllLogits(model)
    data: Any = {"data_collator": pad, "train_dataset": samples}
    optimizers = make_optimizer(wrapped, train_config), None
    trainer = transformers.Trainer(wrapped, arguments, **data, callbacks=[Clock()], optimizers=optimizers)
    trainer.pop_callback(transformers.PrinterCallback)
    trainer.train()
