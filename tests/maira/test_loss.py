"""Losses of packed rows, and attention within their samples: those of the samples by themselves."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from packed_rows import KINDS, alone, gradients, make_sample, pack, trainable
from torch import Tensor
from torch.nn import functional as F
from transformers.masking_utils import create_causal_mask

from maira.model.config import MairaConfig
from maira.train import attention
from maira.train.data.packing import StepTotals
from maira.train.data.schedule import EncodedRow, collate_row
from maira.train.loss import MairaLossModel
from radfact.errors import InputError


@pytest.fixture(scope="module")
def training(config: MairaConfig) -> MairaLossModel:
    """A model whose parts are all trained, four heads that share two of keys, with a patch loss."""
    model = trainable(config, num_attention_heads=4, num_key_value_heads=2)
    return MairaLossModel(model, KINDS, patch_weight=0.5)


@settings(deadline=None, max_examples=12)
@given(st.lists(st.tuples(st.integers(1, 3), st.integers(1, 30)), min_size=2, max_size=4), st.integers(0, 20))
def test_packed_losses_and_gradients_equal_unpacked_ones(
    training: MairaLossModel, config: MairaConfig, sizes: list[tuple[int, int]], padding: int
) -> None:
    samples = [make_sample(config, n, words, answer=2 + 5 * i, seed=i) for i, (n, words) in enumerate(sizes)]
    batch = pack(samples, padding)
    losses = training(batch)
    losses.total(batch.totals, 0.5).backward()
    packed, answers, covers = gradients(training), list[float](), list[float]()
    for sample in samples:
        answer, patches = alone(training, sample)
        (answer / batch.totals.answer_tokens + 0.5 * patches / batch.totals.samples).backward()
        answers.append(answer.item())
        covers.append(patches.item())
    assert losses.per_sample.tolist() == pytest.approx(answers, abs=1e-5, rel=1e-6)
    assert [losses.answer.item(), losses.patches.item()] == pytest.approx([sum(answers), sum(covers)], rel=1e-6)
    assert losses.tokens.tolist() == [len(sample.input_ids) - sample.prompt_tokens for sample in samples]
    for name, gradient in gradients(training).items():
        torch.testing.assert_close(packed.pop(name), gradient, atol=1e-5, rtol=1e-5, msg=name)
    assert not packed


def test_an_empty_row_has_zero_loss_and_gradients(training: MairaLossModel, config: MairaConfig) -> None:
    """As a process has it where a step has fewer readable samples than processes."""
    totals, sample = StepTotals(10, 2), make_sample(config, 1, 3, 2, seed=0)
    blank = replace(sample, input_ids=sample.input_ids[: sample.prompt_tokens])
    dataset: Any = SimpleNamespace(blank=lambda: blank, pad_id=0)
    loss = training(collate_row(EncodedRow([], []), totals, dataset)).total(totals, 0.5)
    loss.backward()
    computed = gradients(training)
    assert loss.item() == 0
    assert computed
    assert all(not gradient.any() for gradient in computed.values())


WITHOUT_SHARED_HEADS = frozenset({"scale", "window_size"})
"""Keyword arguments of the kernel of torch 2.11."""


def by_definition(query: Tensor, key: Tensor, value: Tensor, *row: Any, **options: Any) -> Tensor:
    """What torch documents of `varlen_attn`, one sequence after the other: (tokens, heads, width)."""
    cu_seq_q, cu_seq_k, max_q, max_k = row
    enable_gqa = options.pop("enable_gqa", False)
    causal = options.pop("window_size", (-1, -1)) == (-1, 0)
    assert options.keys() <= {"scale"}
    assert cu_seq_q.dtype == cu_seq_k.dtype == torch.int32
    assert (cu_seq_q[0], cu_seq_q[-1]) == (0, len(query))
    assert max_q == max_k == int(cu_seq_q.diff().max())
    assert query.dtype == key.dtype == value.dtype
    assert enable_gqa or query.shape[1] == key.shape[1]
    outs = []
    for start, end in zip(cu_seq_q[:-1].tolist(), cu_seq_q[1:].tolist(), strict=True):
        q, k, v = (states[start:end].transpose(0, 1)[None] for states in (query, key, value))
        out = F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=enable_gqa, **options)
        outs.append(out[0].transpose(0, 1))
    return torch.cat(outs)


@pytest.mark.parametrize("options", [attention._VARLEN_OPTIONS, WITHOUT_SHARED_HEADS], ids=["here", "torch 2.11"])
@pytest.mark.parametrize("padding", [0, 40])
def test_kernels_give_equal_losses(
    config: MairaConfig, monkeypatch: pytest.MonkeyPatch, options: frozenset[str], padding: int
) -> None:
    """With the kernel that needs a GPU played by its definition; heads of keys are shared."""
    monkeypatch.setattr(attention, "varlen_attn", by_definition)
    monkeypatch.setattr(attention, "_VARLEN_OPTIONS", options)
    model = trainable(config, num_attention_heads=4, num_key_value_heads=2)
    row = pack([make_sample(config, n, 5, 3 * n, seed=n) for n in (2, 1, 3)], padding)
    models = (MairaLossModel(model, KINDS, 0.0, kernel) for kernel in (attention.SAMPLES, attention.VARLEN))
    losses = [training(row).per_sample.tolist() for training in models]
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)


def test_packed_rows_need_no_mask(config: MairaConfig) -> None:
    """It would have the square of the row's length."""
    attention.register_kernels()
    model = trainable(config)
    attention.set_kernel(model, attention.SAMPLES)
    positions = torch.cat([torch.arange(40), torch.arange(24)])[None]
    options: dict[str, Any] = {"attention_mask": None, "past_key_values": None, "position_ids": positions}
    language_model = model.model.language_model
    assert create_causal_mask(config=language_model.config, inputs_embeds=torch.zeros(1, 64, 32), **options) is None


def test_generation_matches_the_attention_of_transformers(config: MairaConfig) -> None:
    """Two prompts of different length, padded on the left, continued by a model in training."""
    model = trainable(config).eval()
    prompts = [make_sample(config, 1, words, 2, seed=words).input_ids for words in (3, 9)]
    longest = max(map(len, prompts))
    ids = torch.tensor([[0] * (longest - len(prompt)) + prompt for prompt in prompts])
    pixels = torch.from_numpy(np.random.default_rng(0).normal(size=(2, 3, 32, 32)).astype(np.float32))
    inputs: dict[str, Any] = {
        "input_ids": ids,
        "attention_mask": (torch.arange(longest) >= torch.tensor([[longest - len(p)] for p in prompts])).long(),
        "pixel_values": pixels,
        "max_new_tokens": 8,
        "do_sample": False,
    }
    before = model.generate(**inputs).tolist()
    attention.set_kernel(model, attention.SAMPLES)
    assert model.generate(**inputs).tolist() == before


def test_a_cpu_has_the_kernel_that_needs_no_gpu() -> None:
    assert attention.select_kernel("auto", torch.device("cpu"), torch.bfloat16) == attention.SAMPLES
    with pytest.raises(InputError, match="needs a GPU"):
        attention.select_kernel("varlen", torch.device("cpu"), torch.bfloat16)
