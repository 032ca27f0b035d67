"""Saved states of a run, and the detector of its faults."""

import math
import os
import pickle
import resource
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from error_checks import raises
from hypothesis import given
from hypothesis import strategies as st
from safetensors import SafetensorError
from safetensors.torch import load_file
from tiny_runs import CASES, train_config
from torch import nn
from waiting import PATIENCE

import maira.train.checkpointing as module
from maira.runtime.processes import DistributedContext
from maira.train.anomalies import WARMUP, WINDOW, AnomalyDetector
from maira.train.checkpointing import CheckpointManager
from maira.train.config.run_config import AnomalyConfig
from maira.train.config.run_folder import changed_settings, resume_fields
from maira.train.data.schedule import SkippedSample
from radfact.errors import RunError
from radfact.io.jsonl import write_json

TENSORS = "rank-00000.safetensors"
ALONE = DistributedContext(0, 1, torch.device("cpu"))


class Trained:
    """A small model with an optimizer that has states."""

    def __init__(self, seed: int) -> None:
        torch.manual_seed(seed)
        self.model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2))
        self.model[0].requires_grad_(False)
        self.optimizer = torch.optim.AdamW(self.model[1].parameters(), lr=0.1)
        self.learn()

    def learn(self) -> None:
        self.model(torch.rand(4, 3)).square().sum().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()


@contextmanager
def states(out: Path, *steps: int) -> Iterator[tuple[CheckpointManager, Trained, list[str]]]:
    """A manager that has saved some steps of a model, and its messages."""
    messages, trained = list[str](), Trained(0)
    with closing(CheckpointManager(out, 2, ALONE, messages.append)) as manager:
        for step in steps:
            manager.save(step, trained.model, trained.optimizer, {})
        manager.finish()
        yield manager, trained, messages


def test_a_resumed_run_equals_an_uninterrupted_one(tmp_path: Path) -> None:
    theirs = Trained(1)
    with states(tmp_path) as (manager, ours, _):
        theirs.model[0].load_state_dict(ours.model[0].state_dict())
        manager.save(1, ours.model, ours.optimizer, {})
        # The state is that of now, not of when it is written.
        for _ in range(3):
            ours.learn()
        number = torch.rand(1)
        assert manager.finish()
        manager.load(manager.find()[0], theirs.model, theirs.optimizer)
    for _ in range(3):
        theirs.learn()
    assert torch.rand(1) == number
    for name, weight in ours.model.state_dict().items():
        assert torch.equal(theirs.model.state_dict()[name], weight)


def test_a_state_waits_once_for_a_gpu_and_reuses_pinned_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With tensors of the CPU in place of those of a GPU."""
    calls, is_released = Counter[str](), threading.Event()
    empty, copy = torch.empty, torch.Tensor.copy_

    def allocate(*size: Any, pin_memory: bool = False, **options: Any) -> torch.Tensor:
        calls["pinned"] += pin_memory
        return empty(*size, **options)

    def overwrite(target: torch.Tensor, source: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
        calls["waits"] += not non_blocking
        return copy(target, source)

    with states(tmp_path) as (manager, trained, _):
        manager.context, write = DistributedContext(0, 1, torch.device("cuda")), manager._write
        monkeypatch.setattr(manager, "_write", lambda *args: is_released.wait(PATIENCE) and write(*args))
        monkeypatch.setattr(torch.cuda, "synchronize", lambda: calls.update(["waits"]))
        # The second state is copied when the first one is written.
        threading.Timer(0.5, is_released.set).start()
        first = deepcopy(trained.model.state_dict())
        for step in (1, 2):
            with monkeypatch.context() as patch:
                patch.setattr(torch, "empty", allocate)
                patch.setattr(torch.Tensor, "copy_", overwrite)
                manager.save(step, trained.model, trained.optimizer, {})
            assert calls["waits"] == step
            trained.learn()
        assert manager.finish()
        manager.load(tmp_path / "states" / "step-000001", trained.model, trained.optimizer)
        assert calls["pinned"] == len(load_file(tmp_path / "states" / "step-000002" / TENSORS))
    assert all(torch.equal(weight, first[name]) for name, weight in trained.model.state_dict().items())


def test_only_the_last_states_remain(tmp_path: Path) -> None:
    with states(tmp_path, 5, 10, 15) as (manager, _, _):
        # Of a save that was interrupted.
        (tmp_path / "states" / "step-000020.writing").mkdir()
        assert [state.name for state in manager.find()] == ["step-000015", "step-000010"]
    assert sorted(path.name for path in (tmp_path / "states").iterdir()) == ["step-000010", "step-000015"]


@pytest.mark.parametrize("damage", ["cut", "missing", "header", "no record", "half a record"])
def test_a_damaged_state_is_skipped_with_a_message(damage: str, tmp_path: Path) -> None:
    with states(tmp_path, 5, 10) as (manager, trained, messages):
        last = tmp_path / "states" / "step-000010"
        tensors, record = last / TENSORS, last / "state.json"
        if damage == "cut":
            tensors.write_bytes(tensors.read_bytes()[:-100])
        elif damage == "header":
            tensors.write_bytes(b"x" * tensors.stat().st_size)
        elif damage == "half a record":
            record.write_text(record.read_text(encoding="utf-8")[:20], encoding="utf-8")
        else:
            (tensors if damage == "missing" else record).unlink()
        resumed = manager.resume(trained.model, trained.optimizer, lambda *_: True)
        assert resumed is not None
        assert resumed["step"] == manager.last == 5
        (line,) = messages
        assert line.startswith(str(last))
        assert "\n" not in line
        (tmp_path / "states" / "step-000005" / TENSORS).unlink()
        with raises("states: file-unreadable"):
            manager.resume(trained.model, trained.optimizer, lambda *_: True)


class Command:
    """Runs a command when it is unpickled."""

    def __reduce__(self) -> Any:
        return os.system, ("touch ran-by-a-state",)


@pytest.mark.parametrize("dump", [pickle.dump, torch.save])
def test_reading_a_state_runs_no_code(dump: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with states(tmp_path, 5) as (manager, trained, _):
        state = manager.find()[0]
        with (state / TENSORS).open("wb") as handle:
            dump(Command(), handle)
        with pytest.raises(RunError, match=r"step-000005: ") as failed:
            manager.load(state, trained.model, trained.optimizer)
    assert "\n" not in str(failed.value)
    assert not (tmp_path / "ran-by-a-state").exists()


def test_a_state_of_another_model_is_a_one_line_error(tmp_path: Path) -> None:
    with states(tmp_path, 5) as (manager, trained, _):
        trained.model[1] = nn.Linear(3, 4)
        trained.optimizer = torch.optim.AdamW(trained.model[1].parameters(), lr=0.1)
        with pytest.raises(RunError, match=r"step-000005: .*: model\.1\.weight: expected 12 numbers, found 6"):
            manager.load(manager.find()[0], trained.model, trained.optimizer)


def test_a_state_of_another_version_is_not_reported_as_damaged(tmp_path: Path) -> None:
    with states(tmp_path, 5) as (manager, trained, messages):
        write_json(tmp_path / "states" / "step-000005" / "state.json", {"format": 99, "version": "9.0"})
        with raises("step-000005: unsupported-version"):
            manager.resume(trained.model, trained.optimizer, lambda *_: True)
    assert messages == []


def test_a_failed_save_is_reported_and_keeps_the_last_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_tensors: object, file: Path, **_: object) -> None:
        file.write_bytes(b"half")
        raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")

    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    with states(tmp_path, 5) as (manager, trained, messages):
        with monkeypatch.context() as patch:
            patch.setattr(module, "save_file", full)
            manager.save(10, trained.model, trained.optimizer, {})
            assert not manager.finish()
        resource.setrlimit(resource.RLIMIT_FSIZE, (500, before[1]))
        try:
            manager.save(12, trained.model, trained.optimizer, {})
            assert not manager.finish()
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        assert manager.last == 5
        assert [path.name for path in (tmp_path / "states").iterdir()] == ["step-000005"]
        manager.save(15, trained.model, trained.optimizer, {})
        assert manager.finish()
    message, limited = messages
    assert f"step 10 could not be saved, the run continues: {tmp_path / 'states'}: No space left on device (" in message
    assert message.endswith("GB are free)")
    assert limited == "the state of step 12 could not be saved, the run continues: File too large"


@pytest.mark.parametrize(("before", "after", "expected"), CASES["resumed settings"])
def test_a_state_is_resumed_with_some_other_settings(
    before: dict[str, Any], after: dict[str, Any], expected: dict[str, Any] | list[str], tmp_path: Path
) -> None:
    old, new = (train_config(tmp_path / "m", tmp_path, **changes) for changes in (before, before | after))
    record = {"recipe": resume_fields(old), "faults": old.faults.model_dump(mode="json")}
    if isinstance(expected, dict):
        assert changed_settings(new, record, "") == expected
    else:
        with raises("out: output-conflict") as caught:
            changed_settings(new, record, "")
        assert f"another {', '.join(expected)} (" in str(caught.value)


@pytest.mark.parametrize(("loss", "norm"), [(math.nan, 1.0), (math.inf, 1.0), (1.0, math.nan), (1.0, math.inf)])
def test_non_finite_losses_and_norms_are_anomalies(loss: float, norm: float) -> None:
    assert AnomalyDetector(AnomalyConfig()).check(loss, norm) == "not_finite"


@given(st.lists(st.floats(0.1, 10), min_size=WARMUP, max_size=2 * WINDOW), st.floats(1.5, 5))
def test_a_spike_is_a_norm_above_a_multiple_of_the_recent_mean(past: list[float], times: float) -> None:
    detector = AnomalyDetector(AnomalyConfig(spike=100))
    assert detector.check(1.0, 1.0) is None
    assert detector.check(1.0, 1e9) is None  # the first steps are never spikes
    detector = AnomalyDetector(AnomalyConfig(spike=100))
    for norm in past:
        assert detector.check(1.0, norm) is None
    mean = sum(past[-WINDOW:]) / len(past[-WINDOW:])
    for factor, expected in ((1.01, "spike"), (0.99, None)):
        resumed = AnomalyDetector(AnomalyConfig(spike=times))
        resumed.load_state_dict(detector.state_dict())
        assert resumed.check(1.0, mean * times * factor) == expected
        if expected:  # an anomaly does not enter the mean
            assert resumed.mean_norm == pytest.approx(mean)


def test_a_run_ends_when_too_many_steps_are_skipped_in_a_row() -> None:
    detector = AnomalyDetector(AnomalyConfig(not_finite="skip", most_skipped=2))
    actions = []
    for loss in (math.nan, math.nan, 1.0, math.nan, math.nan, math.nan):
        if kind := detector.check(loss, 1.0):
            actions.append(detector.record_step(kind, 1, loss, 1.0, [])["action"])
    assert actions == ["skip"] * 4 + ["stop"]


def test_too_many_distinct_unreadable_samples_end_a_run() -> None:
    config = AnomalyConfig(unreadable="skip", most_unreadable=2)
    detector, actions = AnomalyDetector(config), []
    for name in ("a", "b", "a", "b", "c"):
        actions.append(detector.record_skipped(1, [SkippedSample(name, 3, "cut")], "training", of=4)["action"])
        saved = detector.state_dict()
        detector = AnomalyDetector(config)
        detector.load_state_dict(saved)
    assert actions == ["skip"] * 4 + ["stop"]
