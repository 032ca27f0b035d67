"""Stages `generate`, `vllm` and `encode`: reports per second of a random model with the shape of MAIRA-2.

Every prompt has three images and about as many tokens as a real one with a prior report; every response continues to
the token limit, constrained by the grammar of grounded reports. "engine=plain" follows the model card of the release:
the processor, then `generate`, one study at a time without constraints. All read image files that differ for every
study, and are warmed up first.

The lower bound of the time per report is the arithmetic of encoder, adapter and prompts at the rate of a large matrix
product, plus reading all weights and the cache for every token at the rate of a large copy. Both rates are measured.
"""

from __future__ import annotations

import gc
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image

from gpu_stages.cases import Measurement, Setup, parse_case
from gpu_stages.machine import PeakRates, measure_peak_rates
from gpu_stages.models import (
    GIB,
    best_seconds,
    compute_dtype,
    make_config,
    peak_memory,
    random_model,
    reset_peak_memory,
)
from maira.generate.engine import GenerationRequest, Response
from maira.generate.options import EngineOptions
from maira.generate.transformers_engine import TransformersEngine
from maira.model.image_processor import MairaImageProcessor
from maira.model.modeling import MairaForConditionalGeneration
from maira.model.processor import MairaProcessor
from maira.model.prompts import Context, Messages, build_messages
from maira.model.task_examples import Example
from maira.model.tokens import IMAGE
from maira.train.data.tokenizer import train_tokenizer

IMAGES = 3
NEW_TOKENS, TINY_NEW_TOKENS = 150, 8
TEXT_TOKENS, TINY_TEXT_TOKENS = 253, 40
"""Least tokens of a prompt in addition to those of its images."""
PLAIN = "engine=plain"
LOWER_BOUND_SHARE, SPEEDUP, TARGET_BATCH = 0.5, 6.0, 24
"""Targets, for batches of at least `TARGET_BATCH`: lower bound / time, and ratio of reports per second to `PLAIN`."""
SENTENCES = [
    "Heart size is normal and the mediastinal contours are unremarkable.",
    "There is a small left pleural effusion with adjacent atelectasis.",
    "No pneumothorax is seen, and the right lung is clear.",
]


class Timing(NamedTuple):
    """Number of studies, their seconds, and how many of them were generated together."""

    studies: int
    seconds: float
    batch_size: int


GenerateFunction = Callable[[Sequence[GenerationRequest]], int]
"""Generates responses and returns how many are generated together."""


def measure(case: str, setup: Setup) -> Iterator[Measurement]:
    """Generate with the options of a case, and yield speed and memory."""
    options = parse_case(case)
    gc.collect()
    reset_peak_memory(setup.device)
    model, processor = make_model(setup)
    if options["engine"] == "encoder":
        yield from _measure_encoder(model, int(options["batch"]), setup)
        return
    rates = measure_peak_rates(setup)
    batch = int(options.get("batch", 1))
    # Plain generation takes a few seconds per study.
    studies = 2 if setup.is_tiny else 3
    timed = studies if options["engine"] == "plain" else batch
    images = write_images(setup.folder, IMAGES * (batch + timed), model.config.vision_config.image_size)
    requests = make_requests(processor, images, setup)
    runner, close = _start(options, model, processor, setup)
    timing = _time(runner, requests[:batch], requests[batch:], setup)
    peak = peak_memory(setup.device)
    close()
    prompt = len(processor.encode_example(requests[0].example))
    lower_bound = sum(lower_bound_seconds(model, rates, prompt, requests[0].max_new_tokens, timing.batch_size))
    rate = timing.studies / timing.seconds
    has_target = batch >= TARGET_BATCH
    yield Measurement("reports per second", rate, "reports/s")
    yield Measurement("seconds per report", timing.seconds / timing.studies, "s")
    yield Measurement("generated together", timing.batch_size)
    yield Measurement("tokens of a prompt", prompt)
    yield Measurement("lower bound of seconds per report", lower_bound, "s")
    yield Measurement("lower bound / time", lower_bound * rate, at_least=LOWER_BOUND_SHARE if has_target else None)
    if options["engine"] != "plain":
        yield _speedup(rate, SPEEDUP if has_target else None, setup)
    if peak is not None:
        yield Measurement("peak memory", peak / GIB, "GiB")


def _speedup(rate: float, target: float | None, setup: Setup) -> Measurement:
    name, plain = "ratio to one study at a time", setup.results.value(("generate", PLAIN), "reports per second")
    if plain is None:
        return Measurement(name, None, reason=f"'{PLAIN}' has not been measured")
    return Measurement(name, rate / plain, at_least=target)


def make_model(setup: Setup) -> tuple[MairaForConditionalGeneration, MairaProcessor]:
    """Make a model with random weights that never ends a response, and its processor.

    One number of every hidden state stays 1 through all layers, and the head maps it to a very low score of the end
    token; this works in every engine, since it depends on the weights only.
    """
    tokenizer = train_tokenizer(SENTENCES, 400)
    config = make_config(setup, image_token=tokenizer.convert_tokens_to_ids(IMAGE))
    model = random_model(config, setup.device, compute_dtype(setup.device)).eval()
    language: Any = model.model.language_model
    with torch.no_grad():
        language.embed_tokens.weight[:, 0] = 1
        for layer in language.layers:
            layer.self_attn.o_proj.weight[0] = 0
            layer.mlp.down_proj.weight[0] = 0
        end = model.lm_head.weight[config.text_config.eos_token_id]
        end.zero_()
        end[0] = -1e4
    images = MairaImageProcessor(size=config.vision_config.image_size)
    return model, MairaProcessor(images, tokenizer, image_seq_length=config.image_seq_length)


def write_images(folder: Path, count: int, size: int) -> list[Path]:
    """Write square images of gray noise."""
    rng = np.random.default_rng(0)
    paths = [folder / f"{number}.png" for number in range(count)]
    for path in paths:
        Image.fromarray(rng.integers(0, 256, (size, size), np.uint8)).save(path, compress_level=1)
    return paths


def make_requests(processor: MairaProcessor, images: Sequence[Path], setup: Setup) -> list[GenerationRequest]:
    """Make requests for grounded reports with three images each."""
    length, limit = (TINY_TEXT_TOKENS, TINY_NEW_TOKENS) if setup.is_tiny else (TEXT_TOKENS, NEW_TOKENS)

    def prompt(sentences: int) -> Messages:
        prior = " ".join(SENTENCES[number % len(SENTENCES)] for number in range(sentences))
        return build_messages("grounded", Context(has_lateral=True, has_prior=True, prior_report=prior))

    def text_tokens(sentences: int) -> int:
        return (
            len(processor.encode_prompt(processor.render(prompt(sentences)), IMAGES))
            - IMAGES * processor.image_seq_length
        )

    sentences = 1
    while text_tokens(sentences) < length:
        sentences += 1
    messages = prompt(sentences)
    return [
        GenerationRequest(
            Example(f"study-{start}", "grounded", messages, tuple(images[start : start + IMAGES])), "report", limit
        )
        for start in range(0, len(images), IMAGES)
    ]


def _start(
    options: Mapping[str, str], model: MairaForConditionalGeneration, processor: MairaProcessor, setup: Setup
) -> tuple[GenerateFunction, Callable[[], None]]:
    """Return a function that generates, and one that ends its engine; vLLM gets the weights as files."""
    if options["engine"] == "plain":
        return _plain_runner(model, processor), lambda: None
    # Image files of noise cannot be chest radiographs.
    engine_options = EngineOptions(batch_size=int(options["batch"]), image_check="off")
    engine: Any
    if options["engine"] == "transformers":
        engine = TransformersEngine.from_model(
            model, processor, engine_options.model_copy(update={"cache": options["cache"]})
        )
    else:
        from maira.generate.vllm_engine import VLLMEngine

        checkpoint = setup.folder / "checkpoint"
        model.save_pretrained(checkpoint)
        processor.save_pretrained(checkpoint)
        # vLLM needs the memory; only the shapes are used later.
        model.to("meta")
        reset_peak_memory(setup.device)
        update = {"engine": "vllm", "language_model": setup.folder / "llama"}
        engine = VLLMEngine(checkpoint, engine_options.model_copy(update=update))
    return _engine_runner(engine), engine.close


def _plain_runner(model: Any, processor: Any) -> GenerateFunction:
    def run(requests: Sequence[GenerationRequest]) -> int:
        for request in requests:
            inputs = processor([request.example.images], [processor.render(request.example.messages)]).to(model.device)
            with torch.inference_mode():
                ids = model.generate(**inputs, max_new_tokens=request.max_new_tokens, do_sample=False)
            if (count := ids.shape[1] - inputs["input_ids"].shape[1]) != request.max_new_tokens:
                raise ValueError(f"plain generation ended after {count} of {request.max_new_tokens} tokens")
        return 1

    return run


def _engine_runner(engine: Any) -> GenerateFunction:
    def run(requests: Sequence[GenerationRequest]) -> int:
        responses = [response for _, response in engine.generate(requests)]
        if failed := next((response for response in responses if not isinstance(response, Response)), None):
            raise ValueError(f"no response: {failed.reason}")
        if ended := sum(not response.cut_off for response in responses):
            raise ValueError(f"{ended} of {len(responses)} responses ended before the token limit")
        # Those that are generated together have the same time.
        return max(Counter(response.seconds for response in responses).values())

    return run


def _time(
    run: GenerateFunction, warm_up: Sequence[GenerationRequest], timed: Sequence[GenerationRequest], setup: Setup
) -> Timing:
    """Time generation after a warm-up with other requests."""
    run(warm_up)
    if setup.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(setup.device)
    started = time.perf_counter()
    batch_size = run(timed)
    return Timing(len(timed), time.perf_counter() - started, batch_size)


def lower_bound_seconds(
    model: Any, rates: PeakRates, prompt: int, new_tokens: int, batch_size: int
) -> tuple[float, float]:
    """Return lower bounds of the seconds per report for the prompt and for the response.

    Counts two operations per weight and token, and those of attention; each step reads the keys and values of all
    earlier tokens, and all weights of layers and head. The first token comes with the prompt.

    Args:
        model: model whose weights are counted.
        rates: peak rates of the machine.
        prompt: tokens of a prompt, including those of the images.
        new_tokens: tokens of a response.
        batch_size: responses generated together.
    """
    config, vision = model.config.text_config, model.config.vision_config
    patches = (vision.image_size // vision.patch_size) ** 2 + 1
    layers = sum(parameter.numel() for parameter in model.model.language_model.layers.parameters())
    head = model.lm_head.weight.numel()
    encoder = sum(parameter.numel() for parameter in model.model.vision_tower.parameters())
    adapter = sum(parameter.numel() for parameter in model.model.multi_modal_projector.parameters())
    image = 2 * (encoder * patches + adapter * model.config.image_seq_length)
    image += 4 * vision.num_hidden_layers * vision.hidden_size * patches**2
    # A token attends to those before it: half of all pairs.
    text = 2 * layers * prompt + 2 * head + 2 * config.num_hidden_layers * config.hidden_size * prompt**2
    reading = (IMAGES * image + text) / rates.operations
    itemsize = model.dtype.itemsize
    head_size = config.hidden_size // config.num_attention_heads
    cache = 2 * config.num_hidden_layers * config.num_key_value_heads * head_size * itemsize
    step = (layers + head) * itemsize / batch_size + cache * (prompt + new_tokens / 2)
    return reading, (new_tokens - 1) * step / rates.bytes


def _measure_encoder(model: MairaForConditionalGeneration, batch: int, setup: Setup) -> Iterator[Measurement]:
    """Yield images per second of the encoder, and of reading and preparing image files in one process."""
    vision, device = model.config.vision_config, setup.device
    pixels = torch.randn(batch, 1, vision.image_size, vision.image_size, device=device, dtype=compute_dtype(device))
    with torch.inference_mode():
        seconds = best_seconds(lambda: model.encode_patches(pixels), device, repeats=5)
        image_seconds = best_seconds(lambda: model.project(model.encode_patches(pixels)), device, repeats=5)
    yield Measurement("encoded images per second", batch / seconds, "images/s")
    yield Measurement("encoded and projected images per second", batch / image_seconds, "images/s")
    prepare = MairaImageProcessor(size=vision.image_size)
    paths = write_images(setup.folder, batch, vision.image_size)
    started = time.perf_counter()
    for path in paths:
        prepare([path])
    yield Measurement("prepared images per second", batch / (time.perf_counter() - started), "images/s")
    if (peak := peak_memory(device)) is not None:
        yield Measurement("peak memory", peak / GIB, "GiB")
