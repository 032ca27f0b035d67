"""Stage `machine`, random models with the shape of MAIRA-2, and functions to measure time and memory."""

import copy
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch.profiler import ProfilerActivity, profile

from gpu_stages.results import Measurement, Setup
from maira.model.config import RAD_DINO, VICUNA_7B, MairaConfig
from maira.model.modeling import MODULES, MairaForConditionalGeneration, Part, modules_of

GIB = 1 << 30
FUSED = ("flash", "fmha", "cudnn_generated")
"""Parts of the names of fused attention kernels."""
TINY_ENCODER = {"image_size": 56, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
TINY_MODEL = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "vocab_size": 1000}
TINY_MODEL |= {"num_attention_heads": 4, "num_key_value_heads": 4}


def make_config(setup: Setup, layers: int | None = None, image_token: int | None = None) -> MairaConfig:
    """Return the configuration of MAIRA-2, or of a tiny model, with all layers and its image token unless given."""
    encoder, language_model = dict(RAD_DINO), dict(VICUNA_7B)
    if setup.is_tiny:
        encoder, language_model = encoder | TINY_ENCODER, language_model | TINY_MODEL
    if layers is not None:
        language_model["num_hidden_layers"] = layers
    if image_token is None:
        image_token = language_model["vocab_size"] - 3
    return MairaConfig(vision_config=encoder, text_config=language_model, image_token_index=image_token)


def random_model(
    config: MairaConfig, device: torch.device, dtype_of: Callable[[Part], torch.dtype] | None = None
) -> MairaForConditionalGeneration:
    """Make a model with random weights of the dtype of their part, that of `compute_dtype` if not given."""
    torch.manual_seed(0)
    with torch.device("meta"):
        model = MairaForConditionalGeneration(copy.deepcopy(config))
    for part in MODULES:
        for module in modules_of(model, part):
            module.to(dtype_of(part) if dtype_of else compute_dtype(device))
    model.to_empty(device=device)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim > 1:
                parameter.normal_(0, 0.02)
            else:
                # Norms and scales stay near 1, as after training.
                parameter.fill_(0.0 if name.endswith("bias") else 1.0)
    rotary: Any = model.model.language_model.rotary_emb
    fresh = type(rotary)(config.text_config)
    rotary.inv_freq, rotary.original_inv_freq = fresh.inv_freq.to(device), fresh.inv_freq.to(device)
    return model


def compute_dtype(device: torch.device) -> torch.dtype:
    """Return bfloat16 on a GPU, float32 on a CPU."""
    return torch.bfloat16 if device.type == "cuda" else torch.float32


def synchronized_time(device: torch.device) -> float:
    """Return seconds, once the device has finished its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def best_seconds(work: Callable[[], Any], device: torch.device, repeats: int = 10) -> float:
    """Return the seconds of the fastest of several runs, after a warm-up."""
    work()
    seconds = []
    for _ in range(repeats):
        started = synchronized_time(device)
        work()
        seconds.append(synchronized_time(device) - started)
    return min(seconds)


def reset_peak_memory(device: torch.device) -> None:
    """Free cached memory and reset the peak."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)


def measure_memory(device: torch.device) -> Iterator[Measurement]:
    """Yield the peaks of allocated and of reserved memory since `reset_peak_memory`."""
    if device.type != "cuda":
        yield Measurement("peak memory", None, reason="measured on GPUs only")
        return
    yield Measurement("peak memory", torch.cuda.max_memory_allocated(device) / GIB, "GiB")
    yield Measurement("peak reserved memory", torch.cuda.max_memory_reserved(device) / GIB, "GiB")


class PeakRates(NamedTuple):
    """Measured rates: operations per second of a matrix product, and bytes per second that a copy reads and writes."""

    operations: float
    bytes: float


def measure_peak_rates(setup: Setup) -> PeakRates:
    """Measure a square matrix product of random numbers, and a copy, whose bytes count as read and as written."""
    side, elements = (8192, 1 << 30) if setup.device.type == "cuda" else (512, 1 << 22)
    device, dtype = setup.device, compute_dtype(setup.device)
    left, right = (torch.randn(side, side, device=device, dtype=dtype) for _ in range(2))
    product = torch.empty_like(left)
    operations = 2 * side**3 / best_seconds(lambda: torch.matmul(left, right, out=product), device)
    source = torch.ones(elements, device=device, dtype=dtype)
    target = torch.empty_like(source)
    return PeakRates(operations, 2 * source.nbytes / best_seconds(lambda: target.copy_(source), device))


def measure(_case: str, setup: Setup) -> Iterator[Measurement]:
    """Yield the rates of the machine, and the version of cuDNN, which selects attention kernels."""
    rates = measure_peak_rates(setup)
    yield Measurement("matrix product", rates.operations / 1e12, "TFLOP/s")
    yield Measurement("copy", rates.bytes / 1e9, "GB/s")
    yield Measurement("cuDNN", str(torch.backends.cudnn.version()))


def profile_kernels(work: Callable[[], Any], device: torch.device) -> tuple[dict[str, float], str]:
    """Return the share of each kernel in the time of a function, the largest first, and those of fused attention."""
    is_gpu = device.type == "cuda"
    with profile(activities=[ProfilerActivity.CUDA if is_gpu else ProfilerActivity.CPU]) as recorded:
        work()
        synchronized_time(device)
    attribute = "self_device_time_total" if is_gpu else "self_cpu_time_total"
    times = {event.key: getattr(event, attribute) for event in recorded.key_averages()}
    total = sum(times.values())
    shares = {kernel: times[kernel] / total for kernel in sorted(times, key=lambda key: -times[key]) if times[kernel]}
    fused = "; ".join(kernel[:120] for kernel in shares if any(part in kernel.lower() for part in FUSED))
    return shares, fused or "none with the name of a fused attention"
