"""Stage `kernels`: the kernels that training and generation run, and their share of the time.

The model has two blocks of the 7B shape. Their names show the implementation that torch and its libraries select.
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from transformers import DynamicCache

from gpu_stages import generation, training
from gpu_stages.models import compute_dtype, make_config, profile_kernels, random_model
from gpu_stages.results import Measurement, Setup

MAX_KERNELS = 12


def measure(case: str, setup: Setup) -> Iterator[Measurement]:
    """Yield the kernels of training, or of generation."""
    yield from _training(setup) if case == "training" else _generation(setup)


def _training(setup: Setup) -> Iterator[Measurement]:
    plan = training.TINY_PLAN if setup.is_tiny else training.Plan(samples=3, steps=1)
    options = {"method": "full", "budget": "512" if setup.is_tiny else "16384"}
    config, train_config = make_config(setup, layers=2), training.make_train_config(options, setup, plan)
    model, samples = training.trainable_model(config, train_config, setup.device), training.make_samples(config, plan)
    yield from _profile("training", lambda: list(training.train_packed(model, samples, train_config)), setup)


@torch.inference_mode()
def _generation(setup: Setup) -> Iterator[Measurement]:
    model = random_model(make_config(setup, layers=2), setup.device).eval()
    rows, length = (2, 64) if setup.is_tiny else (8, 4360)
    config = model.config.text_config
    prompt = torch.randn(rows, length, config.hidden_size, device=setup.device, dtype=compute_dtype(setup.device))
    # Prompts of different lengths end in the same column.
    mask = torch.ones(rows, 1, 1, length + 1, dtype=torch.bool, device=setup.device)
    mask[0, ..., : length // 4] = False
    caches: list[Any] = []

    def prefill() -> None:
        caches[:] = [DynamicCache(config=config)]
        model.decode(prompt, past_key_values=caches[0], use_cache=True)

    def decode() -> None:
        model.decode(prompt[:, :1], attention_mask=mask, past_key_values=caches[0], use_cache=True)
        caches[0].crop(-1)

    yield from _profile("prefill", prefill, setup)
    yield from _profile("decoding step", decode, setup)
    pixels = torch.randn(generation.IMAGES, 1, *[model.config.vision_config.image_size] * 2, device=setup.device)
    yield from _profile("image encoder", lambda: model.encode_patches(pixels), setup)


def _profile(name: str, work: Callable[[], Any], setup: Setup) -> Iterator[Measurement]:
    """Yield the kernels with the largest share of the time, and the fused attention."""
    work()
    shares, fused = profile_kernels(work, setup.device)
    for kernel, share in list(shares.items())[:MAX_KERNELS]:
        yield Measurement(f"{name}: {kernel[:120]}", share, "of the time")
    yield Measurement(f"{name}: attention", fused)
