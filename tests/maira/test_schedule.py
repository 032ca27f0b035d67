from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from maira.train.config.run_config import TrainConfig
from maira.train.data.packing import SAMPLE_LENGTHS, TASKS
from maira.train.data.schedule import DataSchedule
from radfact.errors import InputError


def train_config(**changes: Any) -> TrainConfig:
    values: dict[str, Any] = {"model": "m", "train": "manifest.jsonl", "out": "out", "epochs": 2, "global_batch": 8}
    return TrainConfig.model_validate(values | {"token_budget": 100} | changes)


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
    if answers < batch:
        return
    plan = DataSchedule(table(answers), train_config(seed=seed, global_batch=batch))
    order = plan.order(epoch)
    assert sorted(order) == list(range(answers))
    assert plan.samples_per_epoch == answers
    np.testing.assert_array_equal(
        order, DataSchedule(table(answers), train_config(seed=seed, global_batch=batch)).order(epoch)
    )
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


def test_sources_have_their_own_shares() -> None:
    rows = np.concatenate([table(40), table(40, source=1)])
    sources = [{"manifest": "a.jsonl"}, {"manifest": "b.jsonl", "tasks": {"findings": 2}}]
    order = DataSchedule(rows, train_config(train=sources, tasks={"findings": 1, "phrase": 1})).order(0)
    counts = Counter((int(rows[item]["source"]), TASKS[rows[item]["task"]]) for item in order)
    available = Counter((int(row["source"]), TASKS[row["task"]]) for row in rows)
    shares = {(0, "findings"): 1, (0, "phrase"): 1, (1, "findings"): 2}
    assert counts == {which: available[which] * times for which, times in shares.items()}


@pytest.mark.parametrize(
    ("changes", "steps"),
    [({"epochs": 2}, 12), ({"epochs": 0.5}, 3), ({"epochs": 0.01}, 1), ({"epochs": None, "passes": 100}, 12)],
)
def test_run_length_is_in_epochs_or_samples(changes: dict[str, Any], steps: int) -> None:
    schedule = DataSchedule(table(50), train_config(**changes))
    assert (schedule.steps, schedule.steps_per_epoch) == (steps, 6)


def test_too_few_answers_for_one_step_are_refused() -> None:
    with pytest.raises(InputError, match=r"^train: .* 7 .* 8"):
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
    if fits:
        schedule.check(str, world)
    else:
        with pytest.raises(InputError, match=r"^global_batch: "):
            schedule.check(str, world)
