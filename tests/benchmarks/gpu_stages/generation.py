"""Stage `generate`: reports per second of a random model with the shape of MAIRA-2.

Every prompt has three images, or one to three with "images=mixed", and with three about as many tokens as a real one
with a prior report; their lengths differ. Every response continues to the token limit, constrained by the grammar of
grounded reports. With "generations=N", N responses to each prompt are sampled, as GRPO does. "engine=plain" follows the
model card of the release: the processor, then `generate`, one study at a time without constraints. All read image files
that differ for every study. The first batch, which compiles and allocates, is measured apart from the second.

The lower bound of the time per report is the arithmetic of encoder, adapter and prompts at the rate of a large matrix
product, plus reading all weights and the cache for every token at the rate of a large copy. Both rates are measured.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from PIL import Image
from torch._dynamo.utils import counters

from gpu_stages import models
from gpu_stages.models import synchronized_time
from gpu_stages.results import Measurement, Setup, parse_case
from maira.generate.engine import EngineOptions, GenerationRequest, Response, Sampling
from maira.generate.transformers_engine import TransformersEngine
from maira.model.image_processor import MairaImageProcessor
from maira.model.modeling import MairaForConditionalGeneration as Model
from maira.model.processor import MairaProcessor
from maira.model.prompts import build_messages
from maira.model.task_examples import Example
from maira.model.tokens import IMAGE
from maira.train.components import train_tokenizer
from maira.train.cost.flops import make_generation

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
    started = synchronized_time(setup.device)
    model, processor = make_model(setup)
    yield Measurement("seconds to build", synchronized_time(setup.device) - started, "s")
    rates, batch = models.measure_peak_rates(setup), int(options.get("batch", 1))
    # Plain generation takes a few seconds per study.
    count = max(batch, 2)
    requests = make_requests(options, processor, 2 * count, setup)
    engine = None if options["engine"] == "plain" else _start(options, model, processor, setup)
    models.reset_peak_memory(setup.device)
    for name, part in (("first", requests[:count]), ("second", requests[count:])):
        phases, graphs = defaultdict[str, float](float), counters["stats"]["unique_graphs"]
        started = synchronized_time(setup.device)
        with _timed(engine, phases, setup.device):
            _generate(engine, part) if engine else _generate_plainly(model, processor, part)
        seconds = synchronized_time(setup.device) - started
        yield Measurement(f"seconds per report, {name} batch", seconds / count, "s")
        yield Measurement(f"compiled graphs, {name} batch", counters["stats"]["unique_graphs"] - graphs)
    for phase, total in {**phases, "all the rest": seconds - sum(phases.values())}.items():
        yield Measurement(f"seconds per report, {phase}", total / count, "s")
    lengths = [len(processor.encode_example(request.example)) for request in requests[count:]]
    for name, value in (("shortest", min(lengths)), ("average", float(np.mean(lengths))), ("longest", max(lengths))):
        yield Measurement(f"tokens of a prompt, {name}", value)
    lower_bound = lower_bound_seconds(model, rates, requests[count:], lengths, batch)
    has_target = batch >= TARGET_BATCH
    yield Measurement("lower bound of seconds per report", lower_bound, "s")
    share = lower_bound * count / seconds
    yield Measurement("lower bound / time", share, at_least=LOWER_BOUND_SHARE if has_target else None)
    yield Measurement("reports per second", count / seconds, "reports/s")
    if ("generate", case) != PLAIN:
        ratio = ("ratio to one study at a time", count / seconds, PLAIN, "reports per second")
        yield setup.results.ratio(*ratio, SPEEDUP if has_target else None)
    yield from models.measure_memory(setup.device)
    if isinstance(engine, TransformersEngine):
        few = [replace(request, max_new_tokens=2) for request in requests[:count]]
        _, fused = models.profile_kernels(lambda: list(engine.generate(few)), setup.device)
        yield Measurement("attention kernels", fused)
    if engine:
        engine.close()


def _timed(engine: Any, seconds: dict[str, float], device: torch.device) -> ExitStack:
    """Return a context in which the seconds of the phases of transformers' engine are added up."""
    stack = ExitStack()

    def wrap(phase: str, owner: Any, name: str) -> None:
        function = getattr(owner, name)

        def call(*arguments: Any) -> Any:
            started = synchronized_time(device)
            result = function(*arguments)
            seconds[phase] += synchronized_time(device) - started
            return result

        stack.enter_context(patch.object(owner, name, call))

    if isinstance(engine, TransformersEngine):
        wrap("images through the encoder", engine.model, "encode_patches")
        wrap("prompts, with the adapter", engine, "_prefill")
    return stack


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


def make_requests(options: Mapping[str, str], processor: MairaProcessor, count: int, setup: Setup) -> list[Any]:
    """Make requests for grounded reports, with images of gray noise and prior reports of different lengths."""
    rng, size = np.random.default_rng(0), processor.image_processor.size
    group, limit = int(options.get("generations", 1)), TINY_NEW_TOKENS if setup.is_tiny else NEW_TOKENS
    requests = []
    for number in range(count // group):
        shown = number % IMAGES + 1 if "images" in options else IMAGES
        images = [setup.folder / f"{number}-{image}.png" for image in range(shown)]
        for path in images:
            Image.fromarray(rng.integers(0, 256, (size, size), np.uint8)).save(path, compress_level=1)
        sentences = rng.integers(1, 2 * (2 if setup.is_tiny else PRIOR_SENTENCES))
        prior = " ".join(SENTENCES[index % len(SENTENCES)] for index in range(sentences))
        inputs: Any = {"has_lateral": len(images) > 1, "has_prior": len(images) > 2, "prior_report": prior}
        example = Example(f"study-{number}", "grounded", build_messages("grounded", **inputs), tuple(images))
        request = GenerationRequest(example, "report", limit)
        requests += [replace(request, sampling=Sampling(1.0, n) if group > 1 else None) for n in range(group)]
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
    model: Any, rates: models.PeakRates, requests: Sequence[GenerationRequest], lengths: Sequence[int], batch_size: int
) -> float:
    """Return the lower bound of the seconds per report; `lengths` are those of the prompts.

    Equal prompts count once. The first token comes with the prompt.
    """
    generation = make_generation(model.config, rates.operations, rates.bytes, model.dtype.itemsize)
    images = sum(len(request.example.images) for request in requests)
    distinct = len({request.example.sample_id for request in requests}) / len(requests)
    steps = float(np.mean(lengths)) + np.arange(1, requests[0].max_new_tokens)
    decoding = generation.decoding_seconds(batch_size, steps) / batch_size
    return distinct * generation.prompt_seconds(lengths, images) / len(requests) + decoding
