"""Training of a model of the 7B shape: useful tokens a second, MFU and peak memory, beside what users write today.

    python tests/benchmarks/train.py
    python tests/benchmarks/train.py --ours "budget=8192" --ours "budget=16384 compile=1"
    python tests/benchmarks/train.py --states 8bit --ours "checkpointing=full" --ours "compile=1 attention=varlen"
    python tests/benchmarks/train.py --layers 8 --states full --out results.jsonl

Both sides train the same model with random weights on the same synthetic samples of the paper's lengths, 1, 2 and 3
images each with as many placeholders as a real one has. Ours packs them into rows and computes logits for answers only.
The baseline pads batches to their longest sample and computes all logits, under transformers' Trainer with gradient
checkpointing. Tokens of padding count for neither. MFU counts the operations that are executed by the model
(`maira.train.cost.flops`), recomputation left out. Without an accelerator a small shape runs instead, which tells
whether the script works and what packing is worth on that machine, in the processor's time, and nothing about a GPU.
"""

from __future__ import annotations

import argparse
import copy
import gc
import json
import platform
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from torch import nn

from maira.model.config import RAD_DINO, VICUNA_7B, MairaConfig
from maira.model.modeling import MairaForConditionalGeneration
from maira.train import attention
from maira.train.blocks import prepare_blocks
from maira.train.components import MODULES, set_trainable, weight_dtype
from maira.train.config.run_config import TrainConfig
from maira.train.cost.accelerators import find_accelerator
from maira.train.cost.flops import make_rates
from maira.train.cost.memory import ParallelSetup, RowShape, build_shapes, estimate_memory
from maira.train.cost.workload import paper_workload
from maira.train.data.packing import EncodedSample, PackedBatch, StepTotals, collate, pack
from maira.train.loss import MairaLossModel
from maira.train.optimizers import make_optimizer

SMALL_ENCODER = {"image_size": 112, "hidden_size": 96, "num_hidden_layers": 2, "num_attention_heads": 3}
SMALL_MODEL = {
    "hidden_size": 256,
    "intermediate_size": 688,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "vocab_size": 32207,
}
STATES = {
    "full": {},
    "8bit": {"optimizer": "adamw_8bit", "weights": "bfloat16"},
    "lora": {"lora": {"rank": 64, "alpha": 128}},
}


def configuration(given: argparse.Namespace) -> MairaConfig:
    """The 7B model, or the small one, with the layers asked for."""
    encoder, text = dict(RAD_DINO), dict(VICUNA_7B)
    if given.shape == "small":
        encoder, text = encoder | SMALL_ENCODER, text | SMALL_MODEL
    if given.layers is not None:
        text["num_hidden_layers"] = given.layers
    return MairaConfig(vision_config=encoder, text_config=text)


def make_recipe(given: argparse.Namespace, changes: dict[str, Any]) -> TrainConfig:
    """What both sides train, and how ours does."""
    values = {"model": "none", "train": "none", "out": "none", "epochs": 1, "global_batch": given.samples}
    values |= {"precision": "bf16" if torch.cuda.is_available() else "no"} | STATES[given.states] | changes
    return TrainConfig.model_validate(values)


def variant(words: str, given: argparse.Namespace) -> dict[str, Any]:
    """The recipe's fields for "budget=8192 checkpointing=full compile=1 attention=varlen"."""
    names = {"budget": "token_budget", "checkpointing": "activation_checkpointing"}
    changes: dict[str, Any] = {"token_budget": given.budget, "activation_checkpointing": given.checkpointing}
    for word in words.split():
        name, _, value = word.partition("=")
        changes[names.get(name, name)] = value
    return changes


def make_model(config: MairaConfig, train_config: TrainConfig, device: torch.device) -> MairaForConditionalGeneration:
    """Random weights, made on the device part by part in the types that they are held in."""
    torch.manual_seed(0)
    with torch.device("meta"):
        model: MairaForConditionalGeneration = MairaForConditionalGeneration(copy.deepcopy(config))
    for part, name in MODULES.items():
        model.get_submodule(name).to(weight_dtype(train_config, part))
    model.to_empty(device=device)
    with torch.no_grad():
        for parameter in model.parameters():
            # Norms and scales stay near 1, as after training; the rest is small noise.
            parameter.normal_(0, 0.02) if parameter.ndim > 1 else parameter.fill_(1)
    rotary: Any = model.language_model.model.rotary_emb
    fresh = type(rotary)(config.text_config)
    rotary.inv_freq, rotary.original_inv_freq = fresh.inv_freq.to(device), fresh.inv_freq.to(device)
    set_trainable(model, train_config)
    return model.to(device).train()


def make_samples(given: argparse.Namespace, config: MairaConfig, train_config: TrainConfig) -> list[EncodedSample]:
    """Samples of the paper's mix, with texts and images of noise; texts vary by a third around their mean."""
    rows = paper_workload(train_config, config, "the benchmark asks for it").rows
    rng, side = np.random.default_rng(1), config.vision_config.image_size
    made = []
    for row in rows[rng.integers(len(rows), size=given.samples * given.steps)]:
        images = int(row["images"])
        pictured = images * config.image_seq_length
        text = max(8, round((int(row["prompt"]) - pictured) * given.text_share * rng.uniform(2 / 3, 4 / 3)))
        answer = max(4, round(int(row["answer"]) * given.text_share * rng.uniform(2 / 3, 4 / 3)))
        words = rng.integers(3, config.text_config.vocab_size - 10, size=text + answer)
        ids = [config.image_token_index] * pictured + words.tolist()
        radiographs = rng.standard_normal((images, side, side), np.float32)
        made.append(EncodedSample(f"s{len(made)}", "findings", ids, pictured + text, radiographs))
    return made


def packed_steps(
    samples: list[EncodedSample], given: argparse.Namespace, train_config: TrainConfig
) -> Iterator[list[PackedBatch]]:
    """Rows of each step."""
    for begin in range(0, len(samples), given.samples):
        step = samples[begin : begin + given.samples]
        totals = StepTotals(sum(len(s.input_ids) - s.prompt_tokens for s in step), len(step))
        bins = pack([len(s.input_ids) for s in step], train_config.token_budget)
        yield [collate([step[i] for i in row], totals, pad_id=0) for row in bins]


def train_ours(
    model: MairaForConditionalGeneration, samples: list[EncodedSample], given: Any, train_config: TrainConfig
) -> dict[str, Any]:
    """Seconds of the steps after the first, which warms up, and the peak that is estimated."""
    device = next(model.parameters()).device
    half = train_config.precision == "bf16"
    kernel = attention.select_kernel(train_config.attention, device, torch.bfloat16 if half else torch.float32)
    training = MairaLossModel(model, 0, 0.0, kernel)
    prepare_blocks(training, train_config)
    optimizer = make_optimizer(training, train_config)
    steps = list(packed_steps(samples, given, train_config))
    started = 0.0
    for number, rows in enumerate(steps):
        if number == 1:
            started = clock(device)
        for batch in rows:
            with torch.autocast(device.type, torch.bfloat16, enabled=half):
                losses = training(batch.to(device))
            losses.total(batch.totals, 0.0).backward()
        torch.nn.utils.clip_grad_norm_(training.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    seconds = clock(device) - started
    flat = [batch for rows in steps for batch in rows]
    fullest = max(flat, key=lambda batch: batch.input_ids.shape[1])
    row = RowShape(tuple(fullest.starts.diff().tolist()), len(fullest.pixel_values), len(fullest.targets))
    setting = ParallelSetup(kernel=kernel, accumulates=max(map(len, steps)) > 1)
    shapes = build_shapes(model.config, train_config)
    filled = sum(len(s.input_ids) for s in samples) / (len(flat) * train_config.token_budget)
    return {
        "seconds": seconds,
        "kernel": kernel,
        "estimate": estimate_memory(shapes, train_config, row, setting).total,
        "rows_filled": round(filled, 3),
    }


class Padded(torch.utils.data.Dataset[dict[str, Any]]):
    """Samples as a user's data set has them."""

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
    """A batch as long as its longest sample."""
    texts = {"input_ids": 0, "labels": -100}
    batch = {
        name: nn.utils.rnn.pad_sequence([s[name] for s in samples], batch_first=True, padding_value=value)
        for name, value in texts.items()
    }
    masks = [torch.ones(len(s["input_ids"]), dtype=torch.long) for s in samples]
    batch["attention_mask"] = nn.utils.rnn.pad_sequence(masks, batch_first=True)
    return batch | {"pixel_values": torch.cat([s["pixel_values"] for s in samples])}


class Plain(nn.Module):
    """The model as a user's training script calls it: logits of every token, then transformers' loss."""

    def __init__(self, model: MairaForConditionalGeneration) -> None:
        super().__init__()
        self.model, self.config = model, model.config

    def gradient_checkpointing_enable(self, **options: Any) -> None:
        """As every model of transformers."""
        self.model.language_model.gradient_checkpointing_enable(**options)

    def forward(self, labels: torch.Tensor, **inputs: Any) -> dict[str, Any]:
        """Loss and logits."""
        logits = self.model(**inputs, use_cache=False).logits
        loss = self.model.language_model.loss_function(
            logits=logits, labels=labels, vocab_size=self.config.text_config.vocab_size
        )
        return {"loss": loss}


class InOrder(transformers.Trainer):
    """The same samples in the same steps as ours."""

    def _get_train_sampler(self, train_dataset: Any = None) -> Any:
        return torch.utils.data.SequentialSampler(train_dataset or self.train_dataset)


def train_plainly(
    model: MairaForConditionalGeneration, samples: list[EncodedSample], given: Any, train_config: TrainConfig
) -> dict[str, Any]:
    """transformers' Trainer over padded batches; seconds as for ours."""
    device = next(model.parameters()).device
    started: list[float] = []

    class Clock(transformers.TrainerCallback):
        def on_step_end(self, _args: Any, state: Any, _control: Any, **_options: Any) -> None:
            if state.global_step == 1:
                started.append(clock(device))

    with tempfile.TemporaryDirectory() as folder:
        arguments = transformers.TrainingArguments(
            folder,
            per_device_train_batch_size=given.batch,
            gradient_accumulation_steps=given.samples // given.batch,
            max_steps=given.steps,
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
        wrapped = Plain(model)
        trainer = InOrder(
            wrapped,
            arguments,
            data_collator=pad,
            train_dataset=Padded(samples),
            callbacks=[Clock()],
            optimizers=(make_optimizer(wrapped, train_config), None),
        )
        trainer.train()
    return {"seconds": clock(device) - started[0]}


def clock(device: torch.device) -> float:
    """Seconds, once the device has done what it was told; on a CPU the processor's, whatever else it does meanwhile."""
    if device.type != "cuda":
        return time.process_time()
    torch.cuda.synchronize(device)
    return time.perf_counter()


def peak_memory() -> int:
    """Of the GPU since it was last reset, bytes; 0 on a CPU, where a process cannot tell one side from the other."""
    return torch.cuda.max_memory_allocated() if torch.cuda.is_available() else 0


def measure(name: str, given: argparse.Namespace, changes: dict[str, Any], config: MairaConfig) -> dict[str, Any]:
    """Train one way, from a model of its own, and say what came of it."""
    train_config = make_recipe(given, changes)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    # What was compiled for another way counts towards the limit of compiled programs a function may have.
    torch.compiler.reset()
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    samples = make_samples(given, config, train_config)
    work = train_plainly if name == "baseline" else train_ours
    found: dict[str, Any] = {"name": name, "changes": {k: str(v) for k, v in changes.items()}}
    try:
        found |= work(make_model(config, train_config, device), samples, given, train_config)
    except torch.OutOfMemoryError:
        return found | {"failed": "out of memory"}
    timed = samples[given.samples :]
    tokens = sum(len(s.input_ids) for s in timed)
    answers = sum(len(s.input_ids) - s.prompt_tokens for s in timed)
    flops = make_rates(config, train_config).of(
        [len(s.input_ids) for s in timed], sum(len(s.images) for s in timed), answers
    )
    rate = flops.total / found["seconds"]
    found |= {"tokens_per_second": tokens / found["seconds"], "tflops": rate / 1e12, "peak": peak_memory()}
    known = find_accelerator(torch.cuda.get_device_name()) if device.type == "cuda" else None
    if known:
        found["mfu"] = rate / known.peak
    return found


def show(found: dict[str, Any], baseline: dict[str, Any] | None) -> None:
    """One line."""
    words = " ".join(f"{key}={value}" for key, value in found["changes"].items())
    if "failed" in found:
        print(f"{found['name']:9} {found['failed']}  {words}", flush=True)
        return
    parts = [f"{found['name']:9} {found['tokens_per_second']:10,.0f} tokens/s  {found['tflops']:8.3f} TFLOP/s"]
    parts += [f"MFU {found['mfu']:.1%}"] if "mfu" in found else []
    parts += [f"peak {found['peak'] / 2**30:.1f} GiB"] if found["peak"] else []
    parts += [f"estimate {found['estimate'] / 2**30:.2f} GiB"] if "estimate" in found else []
    if baseline and "tokens_per_second" in baseline:
        parts.append(f"{found['tokens_per_second'] / baseline['tokens_per_second']:.2f} x the baseline")
    print("  ".join([*parts, words]), flush=True)


def options() -> argparse.Namespace:
    """Of the command line; what is not given depends on whether there is an accelerator."""
    has_gpu = torch.cuda.is_available()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ours", action="append", help="one way to train ours, as key=value words; may be repeated")
    parser.add_argument("--states", choices=STATES, default="lora" if has_gpu else "full", help="what is trained, how")
    parser.add_argument("--shape", choices=("7b", "small"), default="7b" if has_gpu else "small")
    parser.add_argument("--layers", type=int, help="of the language model (default: all)")
    parser.add_argument("--samples", type=int, default=32 if has_gpu else 8, help="of an optimiser step")
    parser.add_argument("--steps", type=int, default=4, help="the first warms up")
    parser.add_argument("--batch", type=int, default=4, help="samples the baseline pads together")
    parser.add_argument("--budget", type=int, default=8192 if has_gpu else 1024, help="tokens of a row of ours")
    parser.add_argument("--checkpointing", choices=("none", "selective", "full"), default="full")
    parser.add_argument("--text-share", type=float, default=1.0 if has_gpu else 0.2, help="of the paper's text lengths")
    parser.add_argument("--no-baseline", action="store_true", help="ours alone")
    parser.add_argument("--out", type=Path, help="append the figures here, JSON Lines")
    return parser.parse_args()


def main() -> None:
    """Print a line for the baseline and for each way to train ours."""
    given = options()
    if given.samples % given.batch:
        sys.exit("--samples must be a multiple of --batch")
    config = configuration(given)
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else f"CPU, {torch.get_num_threads()} threads"
    print(device)
    print(f"Python {platform.python_version()}, torch {torch.__version__}, transformers {transformers.__version__}")
    print(f"{given.shape} shape, {config.text_config.num_hidden_layers} layers, states: {given.states}")
    if not torch.cuda.is_available():
        print("no accelerator: what follows is in the processor's time and says nothing about a GPU")
    baseline = None
    ways = [] if given.no_baseline else [("baseline", "")]
    for name, words in [*ways, *(("ours", words) for words in given.ours or [""])]:
        found = measure(name, given, variant(words, given), config)
        baseline = found if name == "baseline" else baseline
        show(found, baseline)
        if given.out:
            about = {"device": device, "torch": torch.__version__, "shape": given.shape, "states": given.states}
            with given.out.open("a", encoding="utf-8") as handle:
                handle.write(json.dumps(about | {"layers": config.text_config.num_hidden_layers} | found) + "\n")


if __name__ == "__main__":
    main()
