"""Estimated memory and operations against what torch tracks and counts while a small model is trained."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from tiny_runs import CASES, minimal_config
from torch.distributed._tools.mem_tracker import MemTracker
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from maira.model.config import VICUNA_7B, MairaConfig
from maira.model.modeling import MODULES, MairaForConditionalGeneration, modules_of
from maira.train.components import set_trainable, weight_dtype
from maira.train.config.run_config import MairaLoraOptions, TrainConfig
from maira.train.cost.flops import make_rates
from maira.train.cost.memory import build_shapes, estimate_memory
from maira.train.data.packing import EncodedSample, StepTotals, collate
from maira.train.loss import MairaLossModel
from maira.train.parallel import make_optimizer, prepare_blocks

SAMPLES, IMAGES, ANSWERS = (220, 150, 130), 4, 40
IMAGE = 300
VISION = {"image_size": 56, "patch_size": 7, "hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
TEXT = VICUNA_7B | {"vocab_size": 400, "hidden_size": 96, "intermediate_size": 256, "num_hidden_layers": 2}
TEXT |= {"num_attention_heads": 4, "num_key_value_heads": 4}
FLOPS_VISION = VISION | {"image_size": 28, "hidden_size": 32, "num_hidden_layers": 2}
FLOPS_TEXT = TEXT | {"vocab_size": 120, "hidden_size": 48, "num_hidden_layers": 3, "num_key_value_heads": 2}
FLOPS_TEXT["intermediate_size"] = 80
ALL = ["encoder", "adapter", "language_model"]


def make_config() -> MairaConfig:
    return MairaConfig(vision_config=VISION, text_config=TEXT, image_token_index=IMAGE)


def tracked(train_config: TrainConfig, rows: int) -> int:
    """Bytes of tensors at the fullest moment of a step of so many rows, after one that made the optimizer's states."""
    torch.manual_seed(0)
    maira = MairaForConditionalGeneration(make_config())
    for part in MODULES:
        for module in modules_of(maira, part):
            module.to(weight_dtype(train_config, part))
    set_trainable(maira, train_config)
    model = MairaLossModel(maira, kinds=0, patch_weight=0.0).train()
    prepare_blocks(model, train_config)
    optimizer = make_optimizer(model, train_config)
    samples = []
    for tokens, images, answers in zip(SAMPLES, (2, 1, 1), (15, 13, 12), strict=True):
        ids = [IMAGE] * (64 * images) + [7] * (tokens - 64 * images)
        radiographs = np.zeros((images, 56, 56), np.float32)
        samples.append(EncodedSample("s", "findings", ids, tokens - answers, radiographs))
    batch = collate(samples, StepTotals(40, 3), pad_id=0)
    tracker: Any = MemTracker()

    def step() -> None:
        for _ in range(rows):
            with torch.autocast("cpu", torch.bfloat16, enabled=train_config.precision == "bf16"):
                losses = model(batch)
            losses.total(batch.totals, 0.0).backward()
            tracker.reset_mod_stats()
        optimizer.step()
        optimizer.zero_grad()

    step()
    tracker.track_external(model, optimizer)
    for parameter in model.parameters():
        if not parameter.requires_grad:
            # The tracker wants to hook itself to every weight's gradient.
            handle = SimpleNamespace(remove=lambda: None)
            tracker._param_to_grad_hook_handles[parameter] = (handle, handle)
    with tracker:
        step()
    return int(tracker.get_tracker_snapshot("peak")[torch.device("cpu")]["Total"])


FULL = {"trained": ["adapter", "language_model"]}
LORA = FULL | {"lora": {"rank": 8}}
PARTS = {"full": FULL, "with encoder": {"trained": ALL}, "adapter": {"trained": ["adapter"]}, "lora": LORA}


@pytest.mark.parametrize(
    ("checkpointing", "precision", "rows"), [("none", "bf16", 2), ("selective", "bf16", 2), ("full", "no", 1)]
)
@pytest.mark.parametrize("part", PARTS)
@pytest.mark.slow
def test_the_estimated_peak_is_within_10_percent(part: str, checkpointing: str, precision: str, rows: int) -> None:
    train_config = minimal_config(**PARTS[part], activation_checkpointing=checkpointing, precision=precision)
    model = build_shapes(make_config(), train_config)
    parts = estimate_memory(model, train_config, SAMPLES, IMAGES, ANSWERS, accumulates=rows > 1)
    assert sum(parts.values()) == pytest.approx(tracked(train_config, rows), rel=0.1)


def counted(model: MairaForConditionalGeneration, images: int, text: int, answers: int) -> int:
    """What torch counts in a pass, forward and backward, of one sample: images, and text that ends with an answer."""
    config = model.config
    ids = torch.tensor([config.image_token_index] * (images * config.image_seq_length) + [1] * text)
    pixels = torch.randn(images, 3, config.vision_config.image_size, config.vision_config.image_size)
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        places = torch.arange(len(ids) - answers - 1, len(ids) - 1)
        logits = model(input_ids=ids[None], pixel_values=pixels, use_cache=False, logits_to_keep=places).logits[0]
        torch.nn.functional.cross_entropy(logits, torch.full((answers,), 5)).backward()
    return int(counter.get_total_flops())


@pytest.mark.parametrize(("values", "stem"), CASES["operations"])
def test_operation_counts_match_torch(values: dict[str, Any], stem: str) -> None:
    train_config = minimal_config(**values)
    vision = FLOPS_VISION | {"frozen": "encoder" not in train_config.trained, "stem": stem}
    if stem == "conv":
        vision |= {"image_size": 64, "patch_size": 16, "hidden_size": 64}
    config = MairaConfig(vision_config=vision, text_config=FLOPS_TEXT, image_token_index=100, image_merge=2)
    images, text, answers = 2, 13, 6
    # Of tokens ** 2 pairs, all of which eager attention computes, a causal mask leaves tokens * (tokens + 1) / 2.
    tokens = images * config.image_seq_length + text
    flops = make_rates(config, train_config.trains, train_config.lora).of([tokens], images, answers)
    masked = flops["attention"] * (tokens - 1) / (tokens + 1)
    model = MairaForConditionalGeneration(config)
    model.set_attn_implementation("eager")
    set_trainable(model, train_config)
    assert sum(flops.values()) + masked == pytest.approx(counted(model, images, text, answers), rel=1e-9)


def test_attention_cost_is_per_sample_of_a_row() -> None:
    rates = make_rates(MairaConfig(), minimal_config().trains)
    single, double = rates.of([3000], 2, 100), rates.of([1500, 1500], 2, 100)
    assert double["attention"] == pytest.approx(single["attention"] / 2, rel=1e-3)
    assert double["language_model"] == single["language_model"]


def test_trained_token_rows_cost_part_of_the_head_and_all_block_gradients() -> None:
    lora = {"targets": ["down_proj"], "rank": 4}
    without, beside = (
        make_rates(MairaConfig(), ["language_model"], MairaLoraOptions.model_validate(lora | {"added_tokens": rows}))
        for rows in (False, True)
    )
    text = MairaConfig().text_config
    assert beside.answer - without.answer == 2 * text.hidden_size * 204
    first_block = beside.token - without.token
    assert first_block == 2 * (4 * text.hidden_size**2 + 3 * text.hidden_size * text.intermediate_size + 4 * 11008)
