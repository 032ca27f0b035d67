from __future__ import annotations

import random
import resource
import shutil
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from error_checks import raises
from tiny_runs import train_config
from torch import nn

import maira.train.checkpointing as module
from maira.train.checkpointing import CheckpointManager, check_same_run, read_record, resume_fields
from maira.train.parallel import DistributedContext
from radfact.errors import InputError, RunError
from radfact.io.jsonl import read_json, write_json

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
def states(out: Path, keep: int = 2) -> Iterator[tuple[CheckpointManager, list[str]]]:
    messages: list[str] = []
    with closing(CheckpointManager(out, keep, ALONE, messages.append)) as manager:
        yield manager, messages


def test_a_resumed_run_equals_an_uninterrupted_one(tmp_path: Path) -> None:
    ours, theirs = Trained(0), Trained(1)
    theirs.model[0].load_state_dict(ours.model[0].state_dict())
    with states(tmp_path) as (manager, _):
        manager.save(1, ours.model, ours.optimizer, {})
        # The state is that of now, not of when it is written.
        for _ in range(3):
            ours.learn()
        numbers = random.random(), np.random.rand(), torch.rand(1)
        assert manager.finish()
        manager.load(manager.find()[0], theirs.model, theirs.optimizer)
    for _ in range(3):
        theirs.learn()
    assert (random.random(), np.random.rand(), torch.rand(1)) == numbers
    for name, weight in ours.model.state_dict().items():
        assert torch.equal(theirs.model.state_dict()[name], weight)


def test_only_the_last_states_remain(tmp_path: Path) -> None:
    trained = Trained(0)
    with states(tmp_path, keep=2) as (manager, _):
        for step in (5, 10, 15):
            manager.save(step, trained.model, trained.optimizer, {})
        manager.finish()
        assert [state.name for state in manager.find()] == ["step-000015", "step-000010"]
    assert sorted(path.name for path in (tmp_path / "states").iterdir()) == ["step-000010", "step-000015"]


@pytest.mark.parametrize("damage", ["cut", "missing", "no record", "half a record"])
def test_a_damaged_state_is_skipped_with_a_message(damage: str, tmp_path: Path) -> None:
    trained = Trained(0)
    with states(tmp_path) as (manager, messages):
        for step in (5, 10):
            manager.save(step, trained.model, trained.optimizer, {})
        manager.finish()
        last = tmp_path / "states" / "step-000010"
        tensors, record = last / "__0_0.distcp", last / "state.json"
        if damage == "cut":
            tensors.write_bytes(tensors.read_bytes()[:-100])
        elif damage == "half a record":
            record.write_text(record.read_text(encoding="utf-8")[:20], encoding="utf-8")
        else:
            (tensors if damage == "missing" else record).unlink()
        assert [state.name for state in manager.find()] == ["step-000005"]
    assert messages == [f"{last} is damaged and ignored"]


def test_an_unreadable_state_is_a_one_line_error(tmp_path: Path) -> None:
    trained = Trained(0)
    with states(tmp_path) as (manager, _):
        manager.save(5, trained.model, trained.optimizer, {})
        manager.finish()
        tensors = tmp_path / "states" / "step-000005" / "__0_0.distcp"
        tensors.write_bytes(b"x" * tensors.stat().st_size)
        with pytest.raises(RunError, match=r"step-000005: ") as failed:
            manager.load(manager.find()[0], trained.model, trained.optimizer)
    assert "\n" not in str(failed.value)


def test_a_changed_byte_is_detected(tmp_path: Path) -> None:
    trained = Trained(0)
    with states(tmp_path) as (manager, _):
        manager.save(5, trained.model, trained.optimizer, {})
        manager.finish()
        tensors = tmp_path / "states" / "step-000005" / "__0_0.distcp"
        weight, content = trained.model.state_dict()["1.weight"].numpy().tobytes(), tensors.read_bytes()
        assert weight in content
        tensors.write_bytes(content.replace(weight, bytes([weight[0] ^ 1]) + weight[1:]))
        with pytest.raises(RunError, match=r"step-000005: __0_0\.distcp has changed since it was saved"):
            manager.load(manager.find()[0], trained.model, trained.optimizer)


def test_a_state_of_another_version_is_not_reported_as_damaged(tmp_path: Path) -> None:
    trained = Trained(0)
    with states(tmp_path) as (manager, messages):
        manager.save(5, trained.model, trained.optimizer, {})
        manager.finish()
        record = read_json(tmp_path / "states" / "step-000005" / "state.json")
        del record["sizes"]
        write_json(tmp_path / "states" / "step-000005" / "state.json", record | {"format": 99, "version": "9.0"})
        (state,) = manager.find()
        with raises("step-000005: unsupported-version"):
            read_record(state)
    assert messages == []


def test_a_state_without_a_format_number_has_format_1(tmp_path: Path) -> None:
    trained = Trained(0)
    with states(tmp_path) as (manager, messages):
        for step in (5, 10):
            manager.save(step, trained.model, trained.optimizer, {"origin": {}})
        manager.finish()
        for state in manager.find():
            record = read_json(state / "state.json")
            write_json(state / "state.json", {k: v for k, v in record.items() if k not in ("format", "version")})
        # Damage is known in them as in others.
        (manager.find()[0] / "__0_0.distcp").unlink()
        (state,) = manager.find()
        manager.load(state, trained.model, trained.optimizer)
        assert manager.last == 5
    assert messages == [f"{tmp_path / 'states' / 'step-000010'} is damaged and ignored"]


def test_an_unnumbered_state_without_the_fields_of_format_1_is_refused(tmp_path: Path) -> None:
    trained = Trained(0)
    with states(tmp_path) as (manager, _):
        manager.save(5, trained.model, trained.optimizer, {})
        manager.finish()
        record = read_json(tmp_path / "states" / "step-000005" / "state.json")
        write_json(tmp_path / "states" / "step-000005" / "state.json", {"step": 5, "sizes": record["sizes"]})
        (state,) = manager.find()
        with raises("step-000005: unsupported-version"):
            read_record(state)


def test_a_run_with_only_damaged_states_does_not_restart(tmp_path: Path) -> None:
    trained = Trained(0)
    with states(tmp_path) as (manager, _):
        manager.save(5, trained.model, trained.optimizer, {})
        manager.finish()
        (tmp_path / "states" / "step-000005" / "__0_0.distcp").unlink()
        with raises("states: file-unreadable"):
            manager.find()


def test_leftovers_of_an_interrupted_save_are_removed(tmp_path: Path) -> None:
    trained = Trained(0)
    with states(tmp_path) as (manager, messages):
        manager.save(5, trained.model, trained.optimizer, {})
        manager.finish()
        shutil.copytree(tmp_path / "states" / "step-000005", tmp_path / "states" / "step-000007.writing")
        assert [state.name for state in manager.find()] == ["step-000005"]
    assert [path.name for path in (tmp_path / "states").iterdir()] == ["step-000005"]
    assert messages == []


def test_a_failed_save_keeps_the_previous_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, checkpoint_id: Path, **__: object) -> None:
        checkpoint_id.mkdir()
        (checkpoint_id / "__0_0.distcp").write_bytes(b"half")
        try:
            raise OSError(28, "No space left on device")
        except OSError:
            raise RuntimeError("[enforce fail at inline_container.cc:664] . unexpected pos 64 vs 0")  # noqa: B904

    trained = Trained(0)
    with states(tmp_path) as (manager, messages):
        manager.save(5, trained.model, trained.optimizer, {})
        manager.finish()
        monkeypatch.setattr(module.state_dict_saver, "save", full)
        manager.save(10, trained.model, trained.optimizer, {})
        assert not manager.finish()
        assert manager.last == 5
        assert [path.name for path in (tmp_path / "states").iterdir()] == ["step-000005"]
        monkeypatch.undo()
        manager.save(15, trained.model, trained.optimizer, {})
        assert manager.finish()
    (line,) = messages
    assert line.startswith("the state of step 10 could not be saved, the run continues: ")
    assert "states: no space left on device (1.04e-07 GB are to be written, " in line


def test_a_failed_save_reports_the_system_error(tmp_path: Path) -> None:
    trained = Trained(0)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    with states(tmp_path) as (manager, messages):
        resource.setrlimit(resource.RLIMIT_FSIZE, (500, before[1]))
        try:
            manager.save(5, trained.model, trained.optimizer, {})
            assert not manager.finish()
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert messages == ["the state of step 5 could not be saved, the run continues: File too large"]
    assert not list((tmp_path / "states").iterdir())


def test_irrelevant_config_changes_are_accepted(tmp_path: Path) -> None:
    record = {"recipe": resume_fields(train_config(tmp_path / "m", tmp_path))}
    changed = train_config(
        tmp_path / "m", tmp_path / "moved", passes=64, token_budget=4096, save_every=1, keep=9, workers=3
    )
    check_same_run(tmp_path / "step-000001", record, changed)


def test_a_state_of_another_config_is_refused_with_the_differences(tmp_path: Path) -> None:
    record = {"recipe": resume_fields(train_config(tmp_path / "m", tmp_path))}
    changed = train_config(tmp_path / "m", tmp_path, global_batch=8, learning_rate=1e-3)
    with pytest.raises(InputError, match=r"^out: .* global_batch, learning_rate \(step-000001\)"):
        check_same_run(tmp_path / "step-000001", record, changed)
