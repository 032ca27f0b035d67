"""Which samples a step takes, and how they share rows."""

from collections import Counter
from contextlib import nullcontext
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tiny_runs import CASES, minimal_config

from maira.model.prompts import Task
from maira.train.config.run_config import TASKS, TrainConfig
from maira.train.data.packing import SAMPLE_LENGTHS, EncodedSample, StepTotals, collate, pack
from maira.train.data.schedule import DataSchedule
from radfact.errors import InputError


def train_config(**changes: Any) -> TrainConfig:
    return minimal_config(**{"passes": None, "epochs": 2, "global_batch": 8, "token_budget": 100} | changes)


def table(answers: int, source: int = 0, longest: int = 100) -> npt.NDArray[Any]:
    """Answers of all tasks and lengths."""
    rng = np.random.default_rng(answers)
    rows = np.zeros(answers, SAMPLE_LENGTHS)
    rows["source"], rows["number"] = source, np.arange(answers)
    rows["task"] = rng.integers(0, len(TASKS), answers)
    rows["answer"] = rng.integers(1, 6, answers)
    rows["prompt"] = rng.integers(1, longest - 5, answers)
    return rows


plans = st.tuples(st.integers(8, 90), st.integers(0, 99), st.integers(1, 4).map(lambda n: n * 4))


@settings(max_examples=60, deadline=None)
@given(plans, st.integers(0, 5))
def test_an_epoch_has_every_answer_once_in_a_seeded_order(schedule: tuple[int, int, int], epoch: int) -> None:
    answers, seed, batch = schedule
    assume(answers >= batch)
    plan = DataSchedule(table(answers), train_config(seed=seed, global_batch=batch))
    order = plan.order(epoch)
    assert sorted(order) == list(range(answers))
    assert plan.samples_per_epoch == answers
    again = DataSchedule(table(answers), train_config(seed=seed, global_batch=batch))
    np.testing.assert_array_equal(order, again.order(epoch))
    steps = range(epoch * plan.steps_per_epoch, (epoch + 1) * plan.steps_per_epoch)
    items = np.concatenate([plan.step_samples(step) for step in steps])
    np.testing.assert_array_equal(items, order[: len(items)])
    assert answers - len(items) < batch


@settings(max_examples=60, deadline=None)
@given(st.integers(24, 90), st.integers(0, 20), st.sampled_from([1, 2, 3, 4, 6, 8]))
def test_processes_share_samples_in_equal_numbers_of_rows(answers: int, step: int, world: int) -> None:
    schedule = DataSchedule(table(answers), train_config(global_batch=24))
    ranks = [schedule.rows(step, rank, world) for rank in range(world)]
    assert len({len(rows) for rows in ranks}) == 1
    dealt = [item for rows in ranks for row in rows for item in row]
    assert sorted(dealt) == sorted(schedule.step_samples(step))
    assert all(schedule.lengths[row].sum() <= 100 for rows in ranks for row in rows)
    assert schedule.totals(step) == (schedule.table["answer"][dealt].sum(), 24)


@pytest.mark.parametrize("share", [0.25, 0.5, 1.0, 1.5, 3.0])
def test_tasks_are_sampled_by_their_share(share: float) -> None:
    rows = table(60)
    rows["task"] = 1
    schedule = DataSchedule(rows, train_config(tasks={"grounded": share}))
    times = Counter(schedule.order(0).tolist())
    assert schedule.samples_per_epoch == len(schedule.order(0)) == 60 * share
    assert {times[item] for item in range(60)} <= {int(share), int(np.ceil(share))}
    # Fractions are drawn anew each epoch.
    assert set().union(*(schedule.order(epoch).tolist() for epoch in range(40))) == set(range(60))


@pytest.mark.parametrize(("tasks", "own", "available", "used"), CASES["parts of an epoch"])
def test_sources_have_their_own_shares_and_one_task_is_used_whole(
    tasks: dict[str, float], own: dict[str, float] | None, available: dict[str, int], used: dict[str, int]
) -> None:
    rows = np.concatenate([table(count, source=1) for count in available.values()])
    rows["task"] = np.repeat([TASKS.index(task) for task in available], list(available.values()))
    sources = [{"manifest": "a.jsonl"}, {"manifest": "b.jsonl", "tasks": own}]
    schedule = DataSchedule(rows, train_config(train=sources, tasks=tasks, global_batch=1))
    assert Counter(TASKS[rows[item]["task"]] for item in schedule.order(0)) == used
    assert schedule.samples_per_epoch == sum(used.values())


@pytest.mark.parametrize(("changes", "steps"), CASES["lengths of runs"])
def test_run_length_is_in_epochs_or_samples(changes: dict[str, Any], steps: int) -> None:
    schedule = DataSchedule(table(50), train_config(**changes))
    assert (schedule.steps, schedule.steps_per_epoch) == (steps, 6)


def test_too_few_answers_for_one_step_are_refused() -> None:
    with pytest.raises(InputError, match=r"^train: .* 7 .* 8; set global_batch=7"):
        DataSchedule(table(7), train_config())


def test_too_long_samples_are_named_before_the_first_step() -> None:
    rows = table(50)
    rows["prompt"][31], rows["task"][31] = 120, 1
    schedule = DataSchedule(rows, train_config())
    with pytest.raises(InputError, match=r"^token_budget: .* 12\d tokens in sample 'study 31' \(task grounded\)"):
        schedule.check(lambda row: f"study {row}")
    # A sample that is not used may be too long.
    DataSchedule(rows, train_config(tasks={"findings": 1, "phrase": 1, "grounded": 0})).check(str)


@pytest.mark.parametrize(("batch", "world", "fits"), [(9, 2, False), (10, 2, True), (8, 16, False), (9, 3, True)])
def test_processes_without_a_sample_are_refused_before_the_first_step(batch: int, world: int, fits: bool) -> None:
    rows = table(50)
    rows["prompt"], rows["answer"] = 90, 5
    schedule = DataSchedule(rows, train_config(global_batch=batch))
    with nullcontext() if fits else pytest.raises(InputError, match=r"^global_batch: "):
        schedule.check(str, world)


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
    assert [sum(lengths[i] for i in row) for row in pack(lengths, 10, 3)] == [10, 10, 10]


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
    np.testing.assert_array_equal(batch.coverage.numpy(), [one.coverage for one in samples])


@pytest.mark.parametrize(("multiple", "tokens", "longest"), [(1, 22, 9), (22, 22, 9), (64, 64, 42)])
def test_rows_are_padded_to_the_multiple(samples: Any, multiple: int, tokens: int, longest: int) -> None:
    batch = collate(samples, TOTALS, pad_id=0, multiple=multiple)
    assert (batch.input_ids.shape[1], batch.longest) == (tokens, longest)
