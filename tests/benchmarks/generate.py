"""Reports per second of a model of the 7B shape: ours in batches, against one study at a time with plain `generate`.

    python tests/benchmarks/generate.py
    python tests/benchmarks/generate.py --studies 96 --batch 24 --cache static
    python tests/benchmarks/generate.py --engine vllm --batch 24

The model has random weights, made where it runs (bfloat16 on an accelerator; vLLM alone needs them as files, in a
temporary folder). Every prompt shows three images and holds about as many tokens as a real one with a prior report;
every answer goes on to the limit, held to the grammar of grounded reports. Plain is what the model card of the release
does: the processor, then `generate`, without our constraints. Both begin with image files that differ for every study,
and both are warmed up first.

The floor is what no batch of that size can be faster than: the arithmetic of encoder, adapter and prompts at the rate
of a large matrix product, and reading all weights and the cache for every token at the rate of a large copy; both rates
are measured here. Without an accelerator a small shape runs instead, which tells whether the script works and what
batches are worth on that machine, and nothing about a GPU.
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
class Measured:
    """Studies answered in some seconds, so many at a time, and the most memory that was taken, bytes."""

    studies: int
    seconds: float
    at_a_time: int
    peak: int

    @property
    def rate(self) -> float:
        """Reports a second."""
        return self.studies / self.seconds


@dataclass(frozen=True)
class Ceilings:
    """What the machine does at best: operations a second in a matrix product, bytes a second in a copy."""

    operations: float
    bytes: float


def configuration(given: argparse.Namespace, tokenizer: Any) -> MairaConfig:
    """The 7B model, or the small one, with what the options change."""
    encoder, text = dict(RAD_DINO), dict(VICUNA_7B)
    if given.shape == "small":
        encoder, text = encoder | SMALL_ENCODER, text | SMALL_MODEL
    changed = {"num_hidden_layers": given.layers, "hidden_size": given.width, "intermediate_size": given.mlp}
    text |= {name: value for name, value in changed.items() if value is not None}
    if given.image_size is not None:
        encoder["image_size"] = given.image_size
    return MairaConfig(
        vision_config=encoder, text_config=text, image_token_index=tokenizer.convert_tokens_to_ids(IMAGE)
    )


def random_model(config: MairaConfig, device: torch.device) -> MairaForConditionalGeneration:
    """Random weights that never end an answer, made on the device.

    One number of every hidden state is kept at 1 through all layers, and the head answers it with a score for the end
    that no other token's comes near; so it also holds for engines that know nothing but the weights.
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
    """Square radiographs of grey noise."""
    draw = np.random.default_rng(0)
    paths = [folder / f"{number}.png" for number in range(count)]
    for path in paths:
        Image.fromarray(draw.integers(0, 256, (size, size), np.uint8)).save(path)
    return paths


def make_requests(
    given: argparse.Namespace, processor: MairaProcessor, images: Sequence[Path]
) -> list[GenerationRequest]:
    """Requests for grounded reports with three images each, prompts of `text_tokens` beside those of the images."""

    def prompt(sentences: int) -> str:
        prior = " ".join(SENTENCES[number % len(SENTENCES)] for number in range(sentences))
        return build_prompt("grounded", Context(has_lateral=True, has_prior=True, prior_report=prior))

    def text_tokens(sentences: int) -> int:
        length = len(processor.encode_prompt(prompt(sentences), IMAGES))
        return length - IMAGES * processor.image_seq_length

    sentences = 1
    while text_tokens(sentences) < given.text_tokens:
        sentences += 1
    text = prompt(sentences)
    return [
        GenerationRequest(
            Example(f"study-{study}", "grounded", text, tuple(images[IMAGES * study : IMAGES * (study + 1)])),
            "report",
            given.new_tokens,
        )
        for study in range(len(images) // IMAGES)
    ]


def best_seconds(work: Callable[[], Any], device: torch.device, repeats: int = 10) -> float:
    """Seconds of the fastest of some runs, after one to warm up."""
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


def measure_ceilings(device: torch.device, dtype: torch.dtype) -> Ceilings:
    """By a square matrix product of random numbers, and a copy, whose bytes count as read and as written."""
    side, elements = (8192, 1 << 30) if device.type == "cuda" else (2048, 1 << 26)
    left, right = (torch.randn(side, side, device=device, dtype=dtype) for _ in range(2))
    product = torch.empty_like(left)
    operations = 2 * side**3 / best_seconds(lambda: torch.matmul(left, right, out=product), device)
    source = torch.ones(elements, device=device, dtype=dtype)
    target = torch.empty_like(source)
    copied = 2 * source.nbytes / best_seconds(lambda: target.copy_(source), device)
    return Ceilings(operations, copied)


def floor_seconds(model: Any, ceilings: Ceilings, prompt: int, new_tokens: int, at_a_time: int) -> tuple[float, float]:
    """Least seconds a report for reading its prompt, and for writing its answer in a batch of that size.

    As in the specification's "Costs": two operations a weight and token, and those of attention; keys and values of all
    tokens before, and all weights of layers and head, read once a step. The first token comes with the prompt.

    Args:
        model: whose weights are counted.
        ceilings: of the machine.
        prompt: tokens, those of the images included.
        new_tokens: of an answer.
        at_a_time: answers written together.
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
    reading = (IMAGES * image + text) / ceilings.operations
    itemsize = model.dtype.itemsize
    head_size = config.hidden_size // config.num_attention_heads
    kept = 2 * config.num_hidden_layers * config.num_key_value_heads * head_size * itemsize
    step = (layers + head) * itemsize / at_a_time + kept * (prompt + new_tokens / 2)
    return reading, (new_tokens - 1) * step / ceilings.bytes


def measure(
    work: Callable[[Sequence[GenerationRequest]], int],
    warm: Sequence[GenerationRequest],
    timed: Sequence[GenerationRequest],
) -> Measured:
    """Time work on some requests, after it was done on others; it says how many it took at a time."""
    work(warm)
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    started = time.perf_counter()
    at_a_time = work(timed)
    return Measured(len(timed), time.perf_counter() - started, at_a_time, peak_memory())


def peak_memory() -> int:
    """Of the GPU since it was last reset, or of this process since its start, bytes."""
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def plainly(model: Any, processor: Any) -> Callable[[Sequence[GenerationRequest]], int]:
    """One study at a time, as the release's model card does it."""

    def work(requests: Sequence[GenerationRequest]) -> int:
        for request in requests:
            inputs = processor([request.example.images], [request.example.prompt]).to(model.device)
            with torch.inference_mode():
                written = model.generate(**inputs, max_new_tokens=request.max_new_tokens, do_sample=False)
            if (count := written.shape[1] - inputs["input_ids"].shape[1]) != request.max_new_tokens:
                raise SystemExit(f"plain generate ended after {count} of {request.max_new_tokens} tokens")
        return 1

    return work


def in_batches(engine: Any, batch: int | None) -> Callable[[Sequence[GenerationRequest]], int]:
    """Ours; where the engine chooses how many at a time, equal shares of a batch's seconds tell how many it took."""

    def work(requests: Sequence[GenerationRequest]) -> int:
        answers = [answer for _, answer in engine.generate(requests)]
        if unanswered := next((answer for answer in answers if not isinstance(answer, Response)), None):
            raise SystemExit(f"not answered: {unanswered.reason}")
        if short := sum(isinstance(answer, Response) and not answer.cut_off for answer in answers):
            print(f"{short} of {len(answers)} answers ended before the limit")
        return batch or max(Counter(answer.seconds for answer in answers).values())

    return work


def start_ours(given: argparse.Namespace, model: Any, processor: Any, folder: Path) -> Any:
    """The engine with the model, whose weights become files for vLLM alone."""
    if given.engine == "transformers":
        options = EngineOptions(batch_size=given.batch, cache=given.cache)
        return TransformersEngine.from_model(model, processor, options)
    from maira.generate.vllm_engine import VLLMEngine

    checkpoint = folder / "checkpoint"
    model.save_pretrained(checkpoint)
    processor.save_pretrained(checkpoint)
    # Its memory is vLLM's from here on; the shapes are still wanted.
    model.to("meta")
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    options = EngineOptions(engine="vllm", batch_size=given.batch, language_model=folder / "llama")
    return VLLMEngine(checkpoint, options)


def introduce(model: Any, ceilings: Ceilings, prompt: int, new_tokens: int) -> None:
    """What is measured, and on what."""
    is_gpu = model.device.type == "cuda"
    size = sum(parameter.numel() for parameter in model.parameters())
    print(torch.cuda.get_device_name() if is_gpu else f"CPU, {torch.get_num_threads()} threads")
    print(f"Python {platform.python_version()}, torch {torch.__version__}, transformers {transformers.__version__}")
    print(f"{size / 1e9:.3f} B parameters in {model.dtype}, prompts of {prompt} tokens, {new_tokens} new ones")
    print(f"ceilings: {ceilings.operations / 1e9:,.0f} GFLOP/s, {ceilings.bytes / 1e9:,.1f} GB/s")


def show(rows: dict[str, Measured], floors: dict[str, tuple[float, float]], title: str) -> None:
    """A table of what was measured, beside the floor of its batch size."""
    table = Table(title=title, title_justify="left")
    table.add_column("")
    for heading in ("at a time", "studies", "seconds", "reports/s", "of plain", "floor, s a report", "of floor's rate"):
        table.add_column(heading, justify="right")
    table.add_column("peak GiB", justify="right")
    plain = rows["plain generate"]
    for name, row in rows.items():
        reading, writing = floors[name]
        floor = reading + writing
        table.add_row(
            name,
            str(row.at_a_time),
            str(row.studies),
            f"{row.seconds:.2f}",
            f"{row.rate:.3f}",
            f"{row.rate / plain.rate:.2f} x",
            f"{reading:.4f} + {writing:.4f}",
            f"{row.rate * floor:.1%}",
            f"{row.peak / (1 << 30):.2f}",
        )
    Console(width=130).print(table)


def options() -> argparse.Namespace:
    """Of the command line; what is not given depends on whether there is an accelerator."""
    has_gpu = torch.cuda.is_available()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--studies", type=int, help="answered by ours (default: four batches, or 96; 16 on a CPU)")
    parser.add_argument("--plain-studies", type=int, default=4, help="answered by plain generate")
    parser.add_argument("--batch", type=int, help="most studies at a time (default: as memory allows)")
    parser.add_argument("--new-tokens", type=int, default=150 if has_gpu else 32)
    parser.add_argument("--text-tokens", type=int, default=253, help="of a prompt beside its images, at least")
    parser.add_argument("--engine", choices=("transformers", "vllm"), default="transformers")
    parser.add_argument("--cache", choices=("dynamic", "static"), default="dynamic")
    parser.add_argument("--shape", choices=("7b", "small"), default="7b" if has_gpu else "small")
    parser.add_argument("--layers", type=int, help="of the language model, instead of the shape's")
    parser.add_argument("--width", type=int, help="of the language model; a multiple of twice its heads")
    parser.add_argument("--mlp", type=int, help="width of the language model's MLP")
    parser.add_argument("--image-size", type=int, help="pixels of a side; a multiple of 14")
    given = parser.parse_args()
    if given.engine == "vllm" and given.batch is None:
        parser.error("--engine vllm needs --batch: the floor depends on how many are answered at a time")
    if given.studies is None:
        given.studies = 4 * given.batch if given.batch else (96 if has_gpu else 16)
    return given


def main() -> None:
    """Measure and print."""
    given = options()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    tokenizer = train_tokenizer(SENTENCES, 400)
    config = configuration(given, tokenizer)
    side = config.vision_config.image_size
    processor = MairaProcessor(MairaImageProcessor(size=side), tokenizer, image_seq_length=config.image_seq_length)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        warm_up = given.batch or 2
        images = write_images(folder, IMAGES * (given.studies + warm_up), side)
        requests = make_requests(given, processor, images)
        prompt = len(processor.encode_prompt(requests[0].example.prompt, IMAGES))
        model = random_model(config, device)
        ceilings = measure_ceilings(device, model.dtype)
        introduce(model, ceilings, prompt, given.new_tokens)
        plain = plainly(model, processor)
        rows = {"plain generate": measure(plain, requests[:1], requests[1 : 1 + given.plain_studies])}
        engine = start_ours(given, model, processor, folder)
        work = in_batches(engine, given.batch)
        ours = f"ours, {given.engine}" + (f", {given.cache} cache" if given.engine == "transformers" else "")
        rows[ours] = measure(work, requests[:warm_up], requests[warm_up:])
        engine.close()
        floors = {
            name: floor_seconds(model, ceilings, prompt, given.new_tokens, row.at_a_time) for name, row in rows.items()
        }
        show(rows, floors, "Three-image studies; the floor is of that many at a time")


if __name__ == "__main__":
    main()
