"""Throughput of a model of the 7B shape: an engine with batches, compared with plain `generate` on one study at a time.

    python tests/benchmarks/generate.py
    python tests/benchmarks/generate.py --studies 96 --batch 24 --cache static
    python tests/benchmarks/generate.py --engine vllm --batch 24

The model has random weights, created on its device (bfloat16 on an accelerator; vLLM needs them as files, in a
temporary folder). Every prompt has three images and about as many tokens as a real one with a prior report; every
response continues to the limit, constrained by the grammar of grounded reports. "plain generate" follows the model
card of the release: the processor, then `generate`, without constraints. Both read image files that differ for every
study, and both are warmed up first.

The lower bound of the time per report is the arithmetic of encoder, adapter and prompts at the rate of a large matrix
product, plus reading all weights and the cache for every token at the rate of a large copy; both rates are measured
here. Without an accelerator a small shape runs instead, which tests the script and shows the effect of batches on that
machine, but says nothing about a GPU.
"""

from __future__ import annotations

import argparse
import platform
import resource
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from PIL import Image
from rich.console import Console
from rich.table import Table

from maira.generate.engine import GenerationRequest, Response
from maira.generate.options import EngineOptions
from maira.generate.transformers_engine import TransformersEngine
from maira.model.config import RAD_DINO, VICUNA_7B, MairaConfig
from maira.model.modeling import MairaForConditionalGeneration
from maira.model.processor import MairaImageProcessor, MairaProcessor
from maira.model.prompts import Context, build_prompt
from maira.model.task_examples import Example
from maira.model.tokens import IMAGE
from maira.train.data.tokenizer import train_tokenizer

IMAGES = 3
SENTENCES = [
    "Heart size is normal and the mediastinal contours are unremarkable.",
    "There is a small left pleural effusion with adjacent atelectasis.",
    "No pneumothorax is seen, and the right lung is clear.",
]
SMALL_ENCODER = {"image_size": 224, "hidden_size": 192, "num_hidden_layers": 4, "num_attention_heads": 3}
SMALL_MODEL = {
    "hidden_size": 512,
    "intermediate_size": 1376,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
}


@dataclass(frozen=True)
class Measurement:
    """Number of studies, seconds, batch size, and peak memory in bytes."""

    studies: int
    seconds: float
    batch_size: int
    peak: int

    @property
    def rate(self) -> float:
        """Reports per second."""
        return self.studies / self.seconds


@dataclass(frozen=True)
class PeakRates:
    """Measured peak rates of the machine: operations per second in a matrix product, bytes per second in a copy."""

    operations: float
    bytes: float


def configuration(arguments: argparse.Namespace, tokenizer: Any) -> MairaConfig:
    """Return the configuration of the 7B model or of the small one, changed by the options."""
    encoder, text = dict(RAD_DINO), dict(VICUNA_7B)
    if arguments.shape == "small":
        encoder, text = encoder | SMALL_ENCODER, text | SMALL_MODEL
    changed = {
        "num_hidden_layers": arguments.layers,
        "hidden_size": arguments.width,
        "intermediate_size": arguments.mlp,
    }
    text |= {name: value for name, value in changed.items() if value is not None}
    if arguments.image_size is not None:
        encoder["image_size"] = arguments.image_size
    return MairaConfig(
        vision_config=encoder, text_config=text, image_token_index=tokenizer.convert_tokens_to_ids(IMAGE)
    )


def random_model(config: MairaConfig, device: torch.device) -> MairaForConditionalGeneration:
    """Make a model with random weights that never ends a response.

    One number of every hidden state stays 1 through all layers, and the head maps it to a very low score of the end
    token; this works in every engine, since it depends on the weights only.
    """
    torch.manual_seed(0)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32 if device.type == "cpu" else torch.bfloat16)
    try:
        with device:
            model: MairaForConditionalGeneration = MairaForConditionalGeneration(config).eval()
    finally:
        torch.set_default_dtype(before)
    language: Any = model.language_model
    with torch.no_grad():
        language.model.embed_tokens.weight[:, 0] = 1
        for layer in language.model.layers:
            layer.self_attn.o_proj.weight[0] = 0
            layer.mlp.down_proj.weight[0] = 0
        end = language.lm_head.weight[config.text_config.eos_token_id]
        end.zero_()
        end[0] = -1e4
    return model


def write_images(folder: Path, count: int, size: int) -> list[Path]:
    """Write square images of gray noise."""
    draw = np.random.default_rng(0)
    paths = [folder / f"{number}.png" for number in range(count)]
    for path in paths:
        Image.fromarray(draw.integers(0, 256, (size, size), np.uint8)).save(path)
    return paths


def make_requests(
    arguments: argparse.Namespace, processor: MairaProcessor, images: Sequence[Path]
) -> list[GenerationRequest]:
    """Make requests for grounded reports with three images and prompts of `text_tokens` in addition to the images."""

    def prompt(sentences: int) -> str:
        prior = " ".join(SENTENCES[number % len(SENTENCES)] for number in range(sentences))
        return build_prompt("grounded", Context(has_lateral=True, has_prior=True, prior_report=prior))

    def text_tokens(sentences: int) -> int:
        length = len(processor.encode_prompt(prompt(sentences), IMAGES))
        return length - IMAGES * processor.image_seq_length

    sentences = 1
    while text_tokens(sentences) < arguments.text_tokens:
        sentences += 1
    text = prompt(sentences)
    return [
        GenerationRequest(
            Example(f"study-{study}", "grounded", text, tuple(images[IMAGES * study : IMAGES * (study + 1)])),
            "report",
            arguments.new_tokens,
        )
        for study in range(len(images) // IMAGES)
    ]


def best_seconds(work: Callable[[], Any], device: torch.device, repeats: int = 10) -> float:
    """Return the seconds of the fastest of several runs, after a warm-up."""
    seconds = []
    for _ in range(repeats + 1):
        wait_for(device)
        started = time.perf_counter()
        work()
        wait_for(device)
        seconds.append(time.perf_counter() - started)
    return min(seconds[1:])


def wait_for(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def measure_peak_rates(device: torch.device, dtype: torch.dtype) -> PeakRates:
    """Measure a square matrix product of random numbers, and a copy, whose bytes count as read and as written."""
    side, elements = (8192, 1 << 30) if device.type == "cuda" else (2048, 1 << 26)
    left, right = (torch.randn(side, side, device=device, dtype=dtype) for _ in range(2))
    product = torch.empty_like(left)
    operations = 2 * side**3 / best_seconds(lambda: torch.matmul(left, right, out=product), device)
    source = torch.ones(elements, device=device, dtype=dtype)
    target = torch.empty_like(source)
    copied = 2 * source.nbytes / best_seconds(lambda: target.copy_(source), device)
    return PeakRates(operations, copied)


def minimum_seconds(model: Any, rates: PeakRates, prompt: int, new_tokens: int, batch_size: int) -> tuple[float, float]:
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
    layers = sum(parameter.numel() for parameter in model.language_model.model.layers.parameters())
    head = model.language_model.lm_head.weight.numel()
    encoder = sum(parameter.numel() for parameter in model.vision_tower.parameters())
    adapter = sum(parameter.numel() for parameter in model.multi_modal_projector.parameters())
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


def measure(
    work: Callable[[Sequence[GenerationRequest]], int],
    warm: Sequence[GenerationRequest],
    timed: Sequence[GenerationRequest],
) -> Measurement:
    """Time a function on requests after a warm-up on others; it returns its batch size."""
    work(warm)
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    started = time.perf_counter()
    batch_size = work(timed)
    return Measurement(len(timed), time.perf_counter() - started, batch_size, peak_memory())


def peak_memory() -> int:
    """Return the peak memory in bytes, of the GPU since the last reset or of this process."""
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def plain_runner(model: Any, processor: Any) -> Callable[[Sequence[GenerationRequest]], int]:
    """Return a function that generates one study at a time, as in the model card of the release."""

    def work(requests: Sequence[GenerationRequest]) -> int:
        for request in requests:
            inputs = processor([request.example.images], [request.example.prompt]).to(model.device)
            with torch.inference_mode():
                ids = model.generate(**inputs, max_new_tokens=request.max_new_tokens, do_sample=False)
            if (count := ids.shape[1] - inputs["input_ids"].shape[1]) != request.max_new_tokens:
                raise SystemExit(f"plain generate ended after {count} of {request.max_new_tokens} tokens")
        return 1

    return work


def engine_runner(engine: Any, batch: int | None) -> Callable[[Sequence[GenerationRequest]], int]:
    """Return a function that runs an engine; equal times of a batch tell its size if the engine chooses it."""

    def work(requests: Sequence[GenerationRequest]) -> int:
        responses = [response for _, response in engine.generate(requests)]
        if failed := next((response for response in responses if not isinstance(response, Response)), None):
            raise SystemExit(f"no response: {failed.reason}")
        if short := sum(not response.cut_off for response in responses):
            print(f"{short} of {len(responses)} responses ended before the limit")
        return batch or max(Counter(response.seconds for response in responses).values())

    return work


def start_engine(arguments: argparse.Namespace, model: Any, processor: Any, folder: Path) -> Any:
    """Start the engine with the model; vLLM gets its weights as files."""
    if arguments.engine == "transformers":
        options = EngineOptions(batch_size=arguments.batch, cache=arguments.cache)
        return TransformersEngine.from_model(model, processor, options)
    from maira.generate.vllm_engine import VLLMEngine

    checkpoint = folder / "checkpoint"
    model.save_pretrained(checkpoint)
    processor.save_pretrained(checkpoint)
    # vLLM needs the memory; the shapes are used later.
    model.to("meta")
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    options = EngineOptions(engine="vllm", batch_size=arguments.batch, language_model=folder / "llama")
    return VLLMEngine(checkpoint, options)


def print_setup(model: Any, rates: PeakRates, prompt: int, new_tokens: int) -> None:
    """Print the machine and the model."""
    is_gpu = model.device.type == "cuda"
    size = sum(parameter.numel() for parameter in model.parameters())
    print(torch.cuda.get_device_name() if is_gpu else f"CPU, {torch.get_num_threads()} threads")
    print(f"Python {platform.python_version()}, torch {torch.__version__}, transformers {transformers.__version__}")
    print(f"{size / 1e9:.3f} B parameters in {model.dtype}, prompts of {prompt} tokens, {new_tokens} new ones")
    print(f"peak rates: {rates.operations / 1e9:,.0f} GFLOP/s, {rates.bytes / 1e9:,.1f} GB/s")


def print_table(rows: dict[str, Measurement], bounds: dict[str, tuple[float, float]], title: str) -> None:
    """Print the measurements and the lower bounds at their batch sizes."""
    table = Table(title=title, title_justify="left")
    table.add_column("")
    for heading in ("batch", "studies", "seconds", "reports/s", "of plain", "minimum, s/report", "of peak rate"):
        table.add_column(heading, justify="right")
    table.add_column("peak GiB", justify="right")
    plain = rows["plain generate"]
    for name, row in rows.items():
        prompt, response = bounds[name]
        minimum = prompt + response
        table.add_row(
            name,
            str(row.batch_size),
            str(row.studies),
            f"{row.seconds:.2f}",
            f"{row.rate:.3f}",
            f"{row.rate / plain.rate:.2f} x",
            f"{prompt:.4f} + {response:.4f}",
            f"{row.rate * minimum:.1%}",
            f"{row.peak / (1 << 30):.2f}",
        )
    Console(width=130).print(table)


def options() -> argparse.Namespace:
    """Parse the command line; defaults depend on the accelerator."""
    has_gpu = torch.cuda.is_available()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--studies", type=int, help="studies for the engine (default: four batches, or 96; 16 on a CPU)"
    )
    parser.add_argument("--plain-studies", type=int, default=4, help="studies for plain generate")
    parser.add_argument("--batch", type=int, help="batch size (default: as memory allows)")
    parser.add_argument("--new-tokens", type=int, default=150 if has_gpu else 32)
    parser.add_argument(
        "--text-tokens", type=int, default=253, help="least tokens of a prompt in addition to its images"
    )
    parser.add_argument("--engine", choices=("transformers", "vllm"), default="transformers")
    parser.add_argument("--cache", choices=("dynamic", "static"), default="dynamic")
    parser.add_argument("--shape", choices=("7b", "small"), default="7b" if has_gpu else "small")
    parser.add_argument("--layers", type=int, help="of the language model, instead of the shape's")
    parser.add_argument("--width", type=int, help="of the language model; a multiple of twice its heads")
    parser.add_argument("--mlp", type=int, help="width of the language model's MLP")
    parser.add_argument("--image-size", type=int, help="pixels of a side; a multiple of 14")
    arguments = parser.parse_args()
    if arguments.engine == "vllm" and arguments.batch is None:
        parser.error("--engine vllm needs --batch, on which the lower bound depends")
    if arguments.studies is None:
        arguments.studies = 4 * arguments.batch if arguments.batch else (96 if has_gpu else 16)
    return arguments


def main() -> None:
    """Measure and print."""
    arguments = options()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    tokenizer = train_tokenizer(SENTENCES, 400)
    config = configuration(arguments, tokenizer)
    side = config.vision_config.image_size
    processor = MairaProcessor(MairaImageProcessor(size=side), tokenizer, image_seq_length=config.image_seq_length)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        warm_up = arguments.batch or 2
        images = write_images(folder, IMAGES * (arguments.studies + warm_up), side)
        requests = make_requests(arguments, processor, images)
        prompt = len(processor.encode_prompt(requests[0].example.prompt, IMAGES))
        model = random_model(config, device)
        rates = measure_peak_rates(device, model.dtype)
        print_setup(model, rates, prompt, arguments.new_tokens)
        plain = plain_runner(model, processor)
        rows = {"plain generate": measure(plain, requests[:1], requests[1 : 1 + arguments.plain_studies])}
        engine = start_engine(arguments, model, processor, folder)
        work = engine_runner(engine, arguments.batch)
        name = f"{arguments.engine}" + (f", {arguments.cache} cache" if arguments.engine == "transformers" else "")
        rows[name] = measure(work, requests[:warm_up], requests[warm_up:])
        engine.close()
        bounds = {
            name: minimum_seconds(model, rates, prompt, arguments.new_tokens, row.batch_size)
            for name, row in rows.items()
        }
        print_table(rows, bounds, "Studies with three images; minimum at the same batch size")


if __name__ == "__main__":
    main()
