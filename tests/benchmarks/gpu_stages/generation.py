"""Stage `generate`: reports per second of a random model with the shape of MAIRA-2.

Every prompt has three images and, on average, about as many tokens as a real one with a prior report. Every response
continues to the token limit, constrained by the grammar of grounded reports. "engine=plain" follows the model card of
the release: the processor, then `generate`, one study at a time without constraints. All read image files that differ
for every study. The first batch, which compiles and allocates, is measured apart from the second.

The lower bound of the time per report is the arithmetic of encoder, adapter and prompts at the rate of a large matrix
product, plus reading all weights and the cache for every token at the rate of a large copy. Both rates are measured.
"""

import gc
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from PIL import Image

from gpu_stages import models
from gpu_stages.models import synchronized_time
from gpu_stages.results import Measurement, Setup, parse_case
from maira.generate.engine import EngineOptions, GenerationRequest, Response
from maira.generate.transformers_engine import TransformersEngine
from maira.model.image_processor import MairaImageProcessor
from maira.model.modeling import MairaForConditionalGeneration as Model
from maira.model.processor import MairaProcessor
from maira.model.prompts import build_messages
from maira.model.task_examples import Example
from maira.model.tokens import IMAGE
from maira.train.components import train_tokenizer

IMAGES = 3
NEW_TOKENS, TINY_NEW_TOKENS = 150, 8
PRIOR_SENTENCES = 9
"""Average number of sentences of a prior report, with which a prompt has about 4,360 tokens."""
PLAIN = ("generate", "engine=plain")
LOWER_BOUND_SHARE, SPEEDUP, TARGET_BATCH = 0.5, 6.0, 24
"""Targets, for batches of at least `TARGET_BATCH`: lower bound / time, and ratio of reports per second to `PLAIN`."""
SENTENCES = [
    "Heart size is normal and the mediastinal contours are unremarkable.",
    "There is a small left pleural effusion with adjacent atelectasis.",
    "No pneumothorax is seen, and the right lung is clear.",
]


def measure(case: str, setup: Setup) -> Iterator[Measurement]:
    """Generate with the options of a case, and yield the seconds of each phase, speed and memory."""
    options = parse_case(case)
    gc.collect()
    models.reset_peak_memory(setup.device)
    started = synchronized_time(setup.device)
    model, processor = make_model(setup)
    yield Measurement("seconds to build", synchronized_time(setup.device) - started, "s")
    rates, batch = models.measure_peak_rates(setup), int(options.get("batch", 1))
    # Plain generation takes a few seconds per study.
    count = batch if batch > 1 else 2
    requests = make_requests(write_images(setup.folder, IMAGES * 2 * count, processor), setup)
    engine = None if options["engine"] == "plain" else _start(options, model, processor, setup)
    models.reset_peak_memory(setup.device)
    prompts: list[float] = []
    for name, part in (("first", requests[:count]), ("second", requests[count:])):
        started = synchronized_time(setup.device)
        with _timed_prefill(engine, prompts, setup):
            _generate(engine, part) if engine else _generate_plainly(model, processor, part)
        seconds = synchronized_time(setup.device) - started
        yield Measurement(f"seconds per report, {name} batch", seconds / count, "s")
    if prompts:
        yield Measurement("seconds per report, prompts and images on the device", prompts[-1] / count, "s")
        yield Measurement("seconds per report, responses and reading of images", (seconds - prompts[-1]) / count, "s")
    lengths = [len(processor.encode_example(request.example)) for request in requests[count:]]
    yield Measurement("tokens of a prompt, on average", float(np.mean(lengths)))
    lower_bound = sum(lower_bound_seconds(model, rates, lengths, requests[0].max_new_tokens, batch))
    has_target = batch >= TARGET_BATCH
    yield Measurement("lower bound of seconds per report", lower_bound, "s")
    least = LOWER_BOUND_SHARE if has_target else None
    yield Measurement("lower bound / time", lower_bound * count / seconds, at_least=least)
    yield Measurement("reports per second", count / seconds, "reports/s")
    if ("generate", case) != PLAIN:
        ratio = ("ratio to one study at a time", count / seconds, PLAIN, "reports per second")
        yield setup.results.ratio(*ratio, SPEEDUP if has_target else None)
    yield from models.measure_memory(setup.device)
    if isinstance(engine, TransformersEngine):
        few = [replace(request, max_new_tokens=2) for request in requests[:count]]
        _, fused = models.profile_kernels(lambda: list(engine.generate(few)), setup.device)
        yield Measurement("attention kernels", "; ".join(fused) or "none with the name of a fused attention")
    if engine:
        engine.close()


def _timed_prefill(engine: Any, seconds: list[float], setup: Setup) -> Any:
    """Return a context in which the seconds of each prefill of transformers' engine are appended to a list."""
    if not isinstance(engine, TransformersEngine):
        return patch.dict({})
    prefill = engine._prefill

    def timed(*arguments: Any) -> Any:
        started = synchronized_time(setup.device)
        cache = prefill(*arguments)
        seconds.append(synchronized_time(setup.device) - started)
        return cache

    return patch.object(engine, "_prefill", timed)


def make_model(setup: Setup) -> tuple[Model, MairaProcessor]:
    """Make a model with random weights that never ends a response, and its processor.

    One number of every hidden state stays 1 through all layers, and the head maps it to a very low score of the end
    token; this works in every engine, since it depends on the weights only.
    """
    tokenizer = train_tokenizer(SENTENCES, 400)
    config = models.make_config(setup, image_token=tokenizer.convert_tokens_to_ids(IMAGE))
    model = models.random_model(config, setup.device).eval()
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


def write_images(folder: Path, count: int, processor: MairaProcessor) -> list[Path]:
    """Write square images of gray noise."""
    rng, size = np.random.default_rng(0), processor.image_processor.size
    paths = [folder / f"{number}.png" for number in range(count)]
    for path in paths:
        Image.fromarray(rng.integers(0, 256, (size, size), np.uint8)).save(path, compress_level=1)
    return paths


def make_requests(images: Sequence[Path], setup: Setup) -> list[GenerationRequest]:
    """Make requests for grounded reports with three images each, and prior reports of different lengths."""
    rng, requests = np.random.default_rng(2), []
    for start in range(0, len(images), IMAGES):
        sentences = 2 if setup.is_tiny else round(PRIOR_SENTENCES * rng.uniform(2 / 3, 4 / 3))
        prior = " ".join(SENTENCES[number % len(SENTENCES)] for number in range(sentences))
        messages = build_messages("grounded", has_lateral=True, has_prior=True, prior_report=prior)
        example = Example(f"study-{start}", "grounded", messages, tuple(images[start : start + IMAGES]))
        limit = TINY_NEW_TOKENS if setup.is_tiny else NEW_TOKENS
        requests.append(GenerationRequest(example, "report", limit))
    return requests


def _start(options: Mapping[str, str], model: Model, processor: MairaProcessor, setup: Setup) -> Any:
    """Start an engine; vLLM gets the weights as files."""
    # Image files of noise cannot be chest radiographs.
    engine_options = EngineOptions(batch_size=int(options["batch"]), image_check="off")
    if options["engine"] == "transformers":
        engine_options = engine_options.model_copy(update={"cache": options["cache"]})
        return TransformersEngine.from_model(model, processor, engine_options)
    from maira.generate.vllm_engine import VLLMEngine

    checkpoint = setup.folder / "checkpoint"
    model.save_pretrained(checkpoint)
    processor.save_pretrained(checkpoint)
    # vLLM needs the memory; only the shapes are used later.
    model.to("meta")
    update = {"engine": "vllm", "language_model": setup.folder / "llama"}
    return VLLMEngine(checkpoint, engine_options.model_copy(update=update))


@torch.inference_mode()
def _generate_plainly(model: Any, processor: Any, requests: Sequence[GenerationRequest]) -> None:
    for request in requests:
        inputs = processor([request.example.images], [processor.render(request.example.messages)]).to(model.device)
        ids = model.generate(**inputs, max_new_tokens=request.max_new_tokens, do_sample=False)
        if (count := ids.shape[1] - inputs["input_ids"].shape[1]) != request.max_new_tokens:
            raise ValueError(f"plain generation ended after {count} of {request.max_new_tokens} tokens")


def _generate(engine: Any, requests: Sequence[GenerationRequest]) -> None:
    responses = [response for _, response in engine.generate(requests)]
    if failed := next((response for response in responses if not isinstance(response, Response)), None):
        raise ValueError(f"no response: {failed.reason}")
    if ended := sum(not response.cut_off for response in responses):
        raise ValueError(f"{ended} of {len(responses)} responses ended before the token limit")


def lower_bound_seconds(
    model: Any, rates: models.PeakRates, lengths: Sequence[int], new_tokens: int, batch_size: int
) -> tuple[float, float]:
    """Return lower bounds of the seconds per report for the prompt and for the response.

    Counts two operations per weight and token, and those of attention; each step reads the keys and values of all
    earlier tokens, and all weights of layers and head. The first token comes with the prompt.
    """
    config, vision = model.config.text_config, model.config.vision_config
    patches = (vision.image_size // vision.patch_size) ** 2 + 1
    parts = model.model.language_model.layers, model.model.vision_tower, model.model.multi_modal_projector
    layers, encoder, adapter = (sum(parameter.numel() for parameter in part.parameters()) for part in parts)
    head = model.lm_head.weight.numel()
    image = 2 * (encoder * patches + adapter * model.config.image_seq_length)
    image += 4 * vision.num_hidden_layers * vision.hidden_size * patches**2
    # A token attends to those before it: half of all pairs.
    prompt, squared = float(np.mean(lengths)), float(np.mean(np.square(lengths)))
    text = 2 * layers * prompt + 2 * head + 2 * config.num_hidden_layers * config.hidden_size * squared
    reading = (IMAGES * image + text) / rates.operations
    itemsize = model.dtype.itemsize
    head_size = config.hidden_size // config.num_attention_heads
    cache = 2 * config.num_hidden_layers * config.num_key_value_heads * head_size * itemsize
    step = (layers + head) * itemsize / batch_size + cache * (prompt + new_tokens / 2)
    return reading, (new_tokens - 1) * step / rates.bytes
