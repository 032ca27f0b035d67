"""Stage `correctness`: the phantom checkpoint on the device, compared with float32 on the CPU."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from gpu_stages.results import Measurement, Setup
from gpu_stages.training import backward
from maira.data.phantoms import write_phantoms
from maira.model.modeling import MairaForConditionalGeneration as Model
from maira.model.processor import MairaProcessor
from maira.train import attention
from maira.train.config.run_config import TrainConfig
from maira.train.data.dataset import open_dataset
from maira.train.data.packing import EncodedSample, PackedBatch, StepTotals, collate
from maira.train.loss import MairaLossModel

CHECKPOINT = Path(__file__).resolve().parents[3] / "checkpoints" / "phantom"
HEADS, WIDTH = 32, 128
"""Attention heads of Vicuna 7B, and their width."""
STUDIES, TINY_STUDIES = 16, 1


class Tolerance(NamedTuple):
    """Largest accepted errors for a dtype: ||value - reference|| / ||reference|| unless stated otherwise."""

    logits: float  # of every token; float32 without TF32
    same_token: float  # smallest share of equal most likely tokens at the positions of answers
    loss: float  # relative error of the loss of each sample of a packed row
    gradient: float  # of a packed row, of all trained weights
    output: float  # of the attention of packed samples with heads of the 7B model
    output_gradient: float


TOLERANCES = {
    torch.float32: Tolerance(1e-4, 0.999, 1e-4, 1e-3, 1e-4, 1e-3),
    torch.bfloat16: Tolerance(0.03, 0.95, 0.05, 0.1, 0.01, 0.02),
}


def measure(case: str, setup: Setup) -> Iterator[Measurement]:
    """Yield the errors of a case."""
    # TF32 is the default of convolutions.
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        yield from {"logits": _logits, "packed": _packed, "attention": _attention}[case](setup)


def relative_error(value: Tensor, reference: Tensor) -> float:
    """Return ||value - reference|| / ||reference|| in float64; NaN if a value is NaN."""
    exact = reference.double().cpu()
    return float((value.double().cpu() - exact).norm() / exact.norm())


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _samples(setup: Setup) -> list[EncodedSample]:
    """Return findings and grounded reports of phantoms, with one to three images."""
    count, folder = TINY_STUDIES if setup.is_tiny else STUDIES, setup.folder / "phantoms"
    list(write_phantoms(folder, count, seed=11, size=224, split="test"))
    values = {"model": str(CHECKPOINT), "train": str(folder / "manifest.jsonl"), "out": str(setup.folder), "epochs": 1}
    config = TrainConfig.model_validate(values | {"tasks": {"findings": 1, "grounded": 1}})
    processor = MairaProcessor.from_pretrained(CHECKPOINT)
    dataset = open_dataset(config, config.train, processor, setup.folder / "tables")
    return [dataset.encode(row) for row in range(len(dataset.table))]


def _load(device: torch.device, dtype: torch.dtype) -> Model:
    return Model.from_pretrained(CHECKPOINT, dtype=dtype).to(device).eval()


@torch.inference_mode()
def _sample_logits(model: Model, sample: EncodedSample) -> Tensor:
    """Return (tokens, vocabulary) of one sample."""
    ids = torch.tensor([sample.input_ids], device=model.device)
    pixels = torch.from_numpy(sample.images)[:, None].to(model.device)
    logits: Tensor = model(input_ids=ids, pixel_values=pixels).logits[0].float().cpu()
    return logits


def _logits(setup: Setup) -> Iterator[Measurement]:
    samples = _samples(setup)
    reference = _load(torch.device("cpu"), torch.float32)
    expected = [_sample_logits(reference, sample) for sample in samples]
    for dtype, tolerance in TOLERANCES.items():
        model = _load(setup.device, dtype)
        logits = [_sample_logits(model, sample) for sample in samples]
        worst = max(relative_error(*pair) for pair in zip(logits, expected, strict=True))
        same = [
            (values.argmax(-1) == references.argmax(-1))[sample.prompt_tokens - 1 : -1]
            for values, references, sample in zip(logits, expected, samples, strict=True)
        ]
        yield Measurement(f"logits, {_name(dtype)}: largest error", worst, at_most=tolerance.logits)
        share = float(torch.cat(same).double().mean())
        yield Measurement(f"answers, {_name(dtype)}: same token", share, at_least=tolerance.same_token)


def _losses(model: Model, kernel: str, batch: PackedBatch, *, is_half: bool = False) -> tuple[Tensor, Tensor]:
    """Return the loss of each sample of a row, and the gradient of all weights as one vector."""
    loss_model = MairaLossModel(model, 0, 0.0, kernel).train()
    loss_model.zero_grad()
    losses = backward(loss_model, batch, is_half=is_half)
    gradient = torch.cat([p.grad.float().flatten().cpu() for p in model.parameters() if p.grad is not None])
    return (losses.per_sample / losses.tokens).cpu(), gradient


def _packed(setup: Setup) -> Iterator[Measurement]:
    """Compare a packed row with single samples on the CPU in float32."""
    samples = _samples(setup)
    totals = StepTotals(sum(len(s.input_ids) - s.prompt_tokens for s in samples), len(samples))
    row = collate(samples, totals, pad_id=0, multiple=64)
    reference = _load(torch.device("cpu"), torch.float32)
    single = [_losses(reference, attention.SAMPLES, collate([sample], totals, pad_id=0)) for sample in samples]
    expected = torch.cat([loss for loss, _ in single])
    gradient = torch.stack([part for _, part in single]).sum(0)
    for dtype, tolerance in TOLERANCES.items():
        kernel = attention.select_kernel("auto", setup.device, dtype)
        model = _load(setup.device, torch.float32)
        losses, row_gradient = _losses(model, kernel, row, is_half=dtype == torch.bfloat16)
        name = f"packed, {_name(dtype)}"
        yield Measurement(f"{name}: kernel", kernel.removeprefix("maira_"))
        worst = float(((losses - expected).abs() / expected).max())
        yield Measurement(f"{name}: largest error of a loss", worst, at_most=tolerance.loss)
        error = relative_error(row_gradient, gradient)
        yield Measurement(f"{name}: error of the gradient", error, at_most=tolerance.gradient)


def _attention(setup: Setup) -> Iterator[Measurement]:
    """Compare the kernels for packed rows with single samples, at the head size of the 7B model."""
    lengths = (40, 1, 25) if setup.is_tiny else (1600, 1, 2900, 4300, 700)
    starts = torch.tensor(np.cumsum([0, *lengths]), dtype=torch.int32)
    torch.manual_seed(0)
    # (3, heads, tokens, width): queries, keys and values, rounded so that both dtypes get the same numbers
    states = torch.randn(3, HEADS, sum(lengths), WIDTH, device=setup.device).bfloat16().float()
    weights = torch.randn(sum(lengths), HEADS, WIDTH, device=setup.device)
    attention.register_kernels()
    module = torch.nn.Module().eval()
    expected = _attend_single_samples(states, lengths, weights)
    batch: Any = type("Row", (), {"input_ids": torch.empty(1, sum(lengths), device=setup.device)})
    batch.starts, batch.longest = starts.to(setup.device), max(lengths)
    for dtype, tolerance in TOLERANCES.items():
        kernel = attention.select_kernel("auto", setup.device, dtype)
        row = attention.packed_kwargs(kernel, batch)["row"]
        inputs = states.to(dtype, copy=True).requires_grad_()
        query, key, value = (part[None] for part in inputs)
        packed = attention._varlen if kernel == attention.VARLEN else attention._samples
        output = attention._attend(packed, module, query, key, value, None, scaling=WIDTH**-0.5, row=row)[0][0]
        (output.float() * weights).sum().backward()
        name = f"{kernel.removeprefix('maira_')}, {_name(dtype)}"
        yield Measurement(f"{name}: error", relative_error(output.detach(), expected[0]), at_most=tolerance.output)
        error = relative_error(inputs.grad, expected[1])  # type: ignore[arg-type]
        yield Measurement(f"{name}: error of gradients", error, at_most=tolerance.output_gradient)


def _attend_single_samples(states: Tensor, lengths: Sequence[int], weights: Tensor) -> tuple[Tensor, Tensor]:
    """Return outputs (tokens, heads, width) and gradients of `states`, from float32 and explicit scores."""
    inputs = states.clone().requires_grad_()
    outputs = []
    for query, key, value in (part.unbind() for part in inputs.split(list(lengths), dim=2)):
        # One head at a time to save memory.
        parts = []
        for q, k, v in zip(query, key, value, strict=True):
            scores = q @ k.T * WIDTH**-0.5
            mask = torch.ones_like(scores, dtype=torch.bool).triu(1)
            parts.append(scores.masked_fill(mask, -torch.inf).softmax(-1) @ v)
        outputs.append(torch.stack(parts, dim=1))
    output = torch.cat(outputs)
    (output * weights).sum().backward()
    return output.detach(), inputs.grad  # type: ignore[return-value]
