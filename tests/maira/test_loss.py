"""Losses of packed rows: those of the samples by themselves."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from packed_rows import KINDS, alone, gradients, make_sample, pack, trainable

from maira.model.config import MairaConfig
from maira.train.data.packing import EncodedSample, StepTotals
from maira.train.data.schedule import EncodedRow, collate_row
from maira.train.loss import MairaLossModel


@pytest.fixture(scope="module")
def training(config: MairaConfig) -> MairaLossModel:
    """A model whose parts are all trained, four heads that share two of keys, with a patch loss."""
    model = trainable(config, num_attention_heads=4, num_key_value_heads=2)
    return MairaLossModel(model, KINDS, patch_weight=0.5)


def samples_of(config: MairaConfig, images: tuple[int, ...]) -> list[EncodedSample]:
    """Samples of different lengths."""
    return [make_sample(config, n, words=3 + 7 * i, answer=2 + 5 * i, seed=i) for i, n in enumerate(images)]


@pytest.mark.parametrize("images", [(2, 2), (3, 3), (1, 3, 2, 1)], ids=str)
def test_packed_losses_and_gradients_equal_unpacked_ones(
    training: MairaLossModel, config: MairaConfig, images: tuple[int, ...]
) -> None:
    samples = samples_of(config, images)
    batch = pack(samples, padding=9)
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


@settings(deadline=None, max_examples=15)
@given(st.lists(st.integers(1, 3), min_size=2, max_size=4), st.data())
def test_packed_samples_are_isolated(
    training: MairaLossModel, config: MairaConfig, images: list[int], data: st.DataObject
) -> None:
    samples = samples_of(config, tuple(images))
    changed = data.draw(st.integers(0, len(images) - 1))
    others = list(samples)
    others[changed] = make_sample(config, data.draw(st.integers(1, 3)), data.draw(st.integers(1, 30)), 4, seed=99)
    with torch.no_grad():
        before = training(pack(samples)).per_sample
        after = training(pack(others, padding=data.draw(st.integers(0, 20)))).per_sample
    rest = [i for i in range(len(images)) if i != changed]
    assert after[rest].tolist() == pytest.approx(before[rest].tolist(), abs=1e-6, rel=1e-6)
    assert after[changed] != before[changed]


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
