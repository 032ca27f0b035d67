from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from maira.model.prompts import Task
from maira.train.data.packing import EncodedSample, StepTotals, collate, pack

BUDGET = 60
TOTALS = StepTotals(7, 3)


@st.composite
def steps(draw: st.DrawFn) -> tuple[list[int], int]:
    """Lengths of the samples of a step, and the processes that share it: as many samples as a multiple of them."""
    world = draw(st.integers(1, 5))
    count = world * draw(st.integers(1, 8))
    return draw(st.lists(st.integers(1, BUDGET), min_size=count, max_size=count)), world


@settings(max_examples=200, deadline=None)
@given(steps())
def test_every_sample_is_in_one_row_within_its_length(step: tuple[list[int], int]) -> None:
    lengths, world = step
    rows = pack(lengths, BUDGET, world)
    assert sorted(i for row in rows for i in row) == list(range(len(lengths)))
    assert all(row and sum(lengths[i] for i in row) <= BUDGET for row in rows)
    assert len(rows) % world == 0
    assert rows == pack(lengths, BUDGET, world)


def fewest(lengths: list[int]) -> int:
    """Rows that the best packing takes, by trying all."""
    best = {0: (0, BUDGET)}
    for subset in range(1, 1 << len(lengths)):
        tries = []
        for i, length in enumerate(lengths):
            if subset >> i & 1:
                rows, load = best[subset ^ (1 << i)]
                tries.append((rows, load + length) if load + length <= BUDGET else (rows + 1, length))
        best[subset] = min(tries)
    return best[(1 << len(lengths)) - 1][0]


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(1, BUDGET), min_size=1, max_size=8))
def test_the_number_of_rows_is_near_the_optimum(lengths: list[int]) -> None:
    assert len(pack(lengths, BUDGET)) - fewest(lengths) in (0, 1)


def test_a_perfect_packing_is_found() -> None:
    # The row with the least so far has no room for the last sample here; another has.
    lengths = [6, 5, 5, 4, 4, 3, 3]
    assert len(pack(lengths, 10, 3)) == 3
    assert sorted(sum(lengths[i] for i in row) for row in pack(lengths, 10, 3)) == [10, 10, 10]


def test_loads_are_balanced() -> None:
    lengths = np.random.default_rng(0).integers(1400, 4600, 128).tolist()
    loads = [sum(lengths[i] for i in row) for row in pack(lengths, 16384, 8)]
    assert min(loads) > 0.9 * max(loads)
    assert loads == sorted(loads, reverse=True)


def sample(name: str, prompt: int, answer: int, images: int, task: Task = "grounded") -> EncodedSample:
    rng = np.random.default_rng(prompt * 100 + answer)
    ids = rng.integers(3, 90, prompt + answer).tolist()
    pixels = rng.random((images, 8, 8), np.float32)
    return EncodedSample(name, task, ids, prompt, pixels, rng.random((4, 2), np.float32))


@pytest.fixture
def samples() -> list[EncodedSample]:
    return [sample("a", 5, 3, 2), sample("b", 4, 1, 1, "phrase"), sample("c", 7, 2, 3, "findings")]


def test_packed_samples_have_their_own_positions(samples: list[EncodedSample]) -> None:
    batch = collate(samples, TOTALS, pad_id=0, multiple=8)
    assert batch.input_ids.shape == batch.position_ids.shape == (1, 24)
    assert batch.starts.tolist() == [0, 8, 13, 22]
    assert batch.starts.dtype == torch.int32
    for one, start, end in zip(samples, batch.starts[:-1], batch.starts[1:], strict=True):
        assert batch.input_ids[0, start:end].tolist() == one.input_ids
        assert batch.position_ids[0, start:end].tolist() == list(range(len(one.input_ids)))
    assert batch.input_ids[0, 22:].tolist() == [0, 0]
    assert batch.position_ids[0, 22:].tolist() == [0, 1]
    assert (batch.sample_ids, batch.tasks) == (("a", "b", "c"), ("grounded", "phrase", "findings"))
    assert batch.totals == TOTALS
    # Answer tokens are predicted from the previous token.
    assert batch.answers.tolist() == [4, 5, 6, 11, 19, 20]
    assert batch.targets.tolist() == [t for one in samples for t in one.input_ids[one.prompt_tokens :]]
    assert batch.answer_samples.tolist() == [0, 0, 0, 1, 2, 2]


def test_each_image_is_packed_once_and_frontals_are_marked(samples: list[EncodedSample]) -> None:
    batch = collate(samples, TOTALS, pad_id=0)
    assert batch.pixel_values.shape == (6, 1, 8, 8)
    assert batch.frontal_rows.tolist() == [0, 2, 3]
    for one, row in zip(samples, batch.frontal_rows, strict=True):
        np.testing.assert_array_equal(batch.pixel_values[row : row + len(one.images), 0].numpy(), one.images)
    assert batch.coverage is not None
    np.testing.assert_array_equal(
        batch.coverage.numpy(), np.stack([one.coverage for one in samples if one.coverage is not None])
    )


@pytest.mark.parametrize(("multiple", "tokens", "longest"), [(1, 22, 9), (22, 22, 9), (64, 64, 42)])
def test_rows_are_padded_to_the_multiple(
    samples: list[EncodedSample], multiple: int, tokens: int, longest: int
) -> None:
    batch = collate(samples, TOTALS, pad_id=0, multiple=multiple)
    assert (batch.input_ids.shape[1], batch.longest) == (tokens, longest)
