import math
import os
import random
import re
import shlex
import shutil
import signal
from collections.abc import Callable
from contextvars import Context
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from draft_files import read_rows
from error_checks import raises, raises_code
from safetensors import SafetensorError
from tiny_runs import CASES, Command, metrics, quiet, said, train_config, values, write_damaged

from maira.data.manifest import read_manifest
from maira.model.checkpoint import fingerprint
from maira.model.modeling import MairaForConditionalGeneration
from maira.model.processor import MairaProcessor
from maira.train.config.run_folder import read_record
from maira.train.loop import Trainer
from maira.train.loss import Losses, MairaLossModel
from maira.train.report_training import train
from radfact.errors import ErrorCode, RunError
from radfact.io.jsonl import read_json
from radfact.io.outputs import Output, lock_output


@pytest.fixture(scope="module")
def finished(phantoms: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that was never interrupted."""
    out = tmp_path_factory.mktemp("run")
    train(train_config(phantoms, out), quiet())
    return out


class Interrupted(BaseException):
    """As KeyboardInterrupt: nothing in the loop catches it."""


def interrupt_at(monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    """Let a run end before so many steps and one are done."""
    plain = Trainer._compute_gradient

    def gradient(run: Trainer, *arguments: Any) -> Any:
        if run.step == step:
            raise Interrupted
        return plain(run, *arguments)

    monkeypatch.setattr(Trainer, "_compute_gradient", gradient)


Weights = dict[str, torch.Tensor]


def weights(out: Path) -> Weights:
    state: Weights = MairaForConditionalGeneration.from_pretrained(out / "checkpoint").state_dict()
    return state


def is_same(ours: Weights, theirs: Weights) -> bool:
    """Whether all weights are the same, bit for bit."""
    return ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_a_run_logs_every_step_and_writes_a_loadable_checkpoint(finished: Path) -> None:
    rows = metrics(finished)
    assert [row["step"] for row in rows] == list(range(1, 9))
    assert {"loss", "answer", "patches", "lr", "grad_norm"} <= rows[0].keys()
    assert rows[-1]["answer"] < rows[0]["answer"] - 0.3
    model = MairaForConditionalGeneration.from_pretrained(finished / "checkpoint")
    processor = MairaProcessor.from_pretrained(finished / "checkpoint")
    assert model.config.image_seq_length == processor.image_seq_length == 16
    assert len(processor.tokenizer) == model.config.text_config.vocab_size
    assert not [name for name in weights(finished) if "patch_head" in name]


@pytest.mark.parametrize("step", [2, 7])
def test_a_resumed_run_equals_an_uninterrupted_one(
    step: int, phantoms: Path, finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupt_at(monkeypatch, step)
    with pytest.raises(Interrupted):
        train(train_config(phantoms, tmp_path), quiet())
    assert len(metrics(tmp_path)) == step
    monkeypatch.undo()
    train(train_config(phantoms, tmp_path), quiet())
    assert metrics(tmp_path) == metrics(finished)
    assert is_same(weights(tmp_path), weights(finished))


@pytest.mark.slow
def test_a_run_killed_anywhere_resumes_with_equal_losses(phantoms: Path, tmp_path: Path) -> None:
    steps = 40
    changes: dict[str, Any] = {"passes": 4 * steps, "save_every": 2}
    complete, out = tmp_path / "whole", tmp_path / "out"
    uninterrupted = Command(tmp_path / "1", **values(phantoms, complete, **changes))
    chosen = random.randrange(3, steps // 2)
    moments: list[Callable[[], bool]] = [
        lambda: bool(list((out / "states").glob("*.writing"))),
        lambda: (out / "metrics.jsonl").exists() and f'"step": {chosen},' in (out / "metrics.jsonl").read_text("utf-8"),
    ]
    for number, moment in enumerate(moments):
        command = Command(tmp_path / f"killed-{number}", **values(phantoms, out, **changes))
        command.when(moment, lambda process: process.kill())
        assert command.end() == [-signal.SIGKILL], command.said
    last = Command(tmp_path / "2", **values(phantoms, out, **changes))
    assert last.end() == [0], last.said
    assert "Resuming" in last.said
    assert uninterrupted.end() == [0], uninterrupted.said
    assert metrics(out) == metrics(complete), f"killed at step {chosen}"
    assert is_same(weights(out), weights(complete))


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_termination_signal_saves_the_state(number: signal.Signals, phantoms: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    command = Command(tmp_path / "said", **values(phantoms, out, passes=40_000, save_every=10_000))
    command.when(lambda: (out / "metrics.jsonl").exists(), lambda process: os.kill(process.pid or 0, number))
    assert command.end() == [1]
    (state,) = (out / "states").iterdir()
    step = read_record(state)["step"]
    assert f"terminated at step {step} of 10000; the state of step {step} is saved" in command.said
    assert "[interrupted]" in command.said
    assert not [word for word in ("Traceback", "Exception", "KeyboardInterrupt") if word in command.said]


def test_a_refused_start_reads_nothing_of_the_folder(phantoms: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with lock_output(out, Output("folder", content="training")):
        with raises("out: locked"):
            # In a context without locks, as in another process.
            Context().run(train, train_config(phantoms, out, model=tmp_path / "gone"), quiet())
        assert {path.name for path in out.iterdir()} == {".lock", ".output.json"}


def test_another_checkpoint_of_the_same_name_is_refused(phantoms: Path, tmp_path: Path) -> None:
    base = train(train_config(phantoms, tmp_path / "base", passes=4), quiet())
    changes = {"model": base, "trained": ["adapter"], "patch_loss": 0.0}
    finished = train(train_config(phantoms, tmp_path / "out", passes=4, **changes), quiet())
    before = fingerprint(finished)
    shutil.rmtree(base)
    train(train_config(phantoms, tmp_path / "base", passes=8), quiet())
    for passes in (4, 8):
        with raises("model: mismatch"):
            train(train_config(phantoms, tmp_path / "out", passes=passes, **changes), quiet())
    assert fingerprint(finished) == before


def diverge(monkeypatch: pytest.MonkeyPatch, *rows: int) -> list[tuple[str, ...]]:
    """Make the loss of some packed rows NaN; the list returned gets the samples of each row."""
    plain = MairaLossModel.forward
    packed_samples: list[tuple[str, ...]] = []

    def forward(model: MairaLossModel, batch: Any) -> Losses:
        losses = plain(model, batch)
        packed_samples.append(batch.sample_ids)
        return losses._replace(answer=losses.answer * math.nan) if len(packed_samples) in rows else losses

    monkeypatch.setattr(MairaLossModel, "forward", forward)
    return packed_samples


@pytest.mark.parametrize(("every", "good"), [(3, 3), (2, 2), (4, 0)])
def test_a_run_resumes_after_a_non_finite_loss_by_the_printed_command(
    every: int, good: int, run_maira: Any, phantoms: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved = range(every, 5, every)
    out, config = tmp_path / "out", tmp_path / "run config.yaml"
    config.write_text(yaml.safe_dump(values(phantoms, out, save_every=every)))
    packed_samples = diverge(monkeypatch, 5)
    code, _, error = run_maira("train", config, "learning_rate=4e-3", "token_budget=4096")
    assert (code, f"the state of step {saved[-1]} is saved" in error) == (1, True)
    assert re.search(r"the loss is nan, .* at step 5; its samples are listed in .*faults\.jsonl, and the state", error)
    (fault,) = read_rows(out / "faults.jsonl")
    assert (fault["action"], fault["sample_ids"]) == ("stop", sorted(packed_samples[-1]))
    assert sorted(state.name for state in (out / "states").iterdir()) == [f"step-00000{step}" for step in saved]
    assert not (out / "checkpoint").exists()
    # The state that leads to the loss is for the same settings; others start before it.
    message, _, command = error.removesuffix(" [run-failed]\n").rpartition("lower learning rate: ")
    assert f"from the state of step {good}" in message or (not good and "To start again with" in message)
    code, printed, _ = run_maira(*shlex.split(command)[1:])
    assert (code, shlex.split(command)[-1]) == (0, "learning_rate=0.002")
    changes = [{"step": good, "settings": {"learning_rate": [0.004, 0.002]}}] if good else []
    assert ("learning_rate 0.004 -> 0.002" in printed) == bool(good)
    assert read_json(out / "checkpoint" / "training.json")["changes"] == changes
    assert read_record(out / "states" / "step-000008")["changes"] == changes
    assert [row["step"] for row in metrics(out)] == list(range(1, 9))


@pytest.mark.slow
def test_an_unreadable_sample_is_skipped_and_packing_does_not_matter(phantoms: Path, tmp_path: Path) -> None:
    manifest = write_damaged(phantoms, tmp_path, 7)
    changes: dict[str, Any] = {"tasks": {"findings": 1}, "passes": 12, "faults": {"unreadable": "skip"}}
    console = quiet()
    # Its tokens fill a row of 490 tokens, which is left without any sample.
    for budget in (4096, 490):
        train(train_config(manifest, tmp_path / str(budget), token_budget=budget, **changes), console)
    for ours, theirs in zip(metrics(tmp_path / "4096"), metrics(tmp_path / "490"), strict=True):
        for name in ("loss", "patches"):
            assert ours[name] == pytest.approx(theirs[name], abs=1e-4)
        assert ours["grad_norm"] == pytest.approx(theirs["grad_norm"], rel=1e-3)
    (fault,) = read_rows(tmp_path / "4096" / "faults.jsonl")
    assert (fault["fault"], fault["sample_ids"]) == ("unreadable", [read_manifest(phantoms)[7].sample_id])
    assert said(console).count("1 of 4 samples of step ") == 2
    with raises("7.png: file-unreadable"):
        train(train_config(manifest, tmp_path / "stops", **(changes | {"faults": {}})), quiet())


@pytest.mark.slow
def test_a_skipped_step_changes_nothing(phantoms: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    snapshots: dict[int, list[torch.Tensor]] = {}
    plain = Trainer._compute_gradient

    def gradient(run: Trainer, *arguments: Any) -> Any:
        states = [value for state in run.optimizer.state.values() for value in state.values()]
        snapshots[run.step] = [tensor.detach().clone() for tensor in (*run.model.training.parameters(), *states)]
        return plain(run, *arguments)

    monkeypatch.setattr(Trainer, "_compute_gradient", gradient)
    diverge(monkeypatch, 2)
    skipping = {"token_budget": 4096, "faults": {"not_finite": "skip"}, "passes": 16}
    train(train_config(phantoms, tmp_path, **skipping), quiet())
    assert all(map(torch.equal, snapshots[1], snapshots[2]))
    assert not all(map(torch.equal, snapshots[2], snapshots[3]))
    assert [row["step"] for row in metrics(tmp_path)] == [1, 3, 4]


@pytest.mark.parametrize(("changes", "error", "names"), CASES["other runs"])
def test_the_states_of_another_run_are_refused(
    changes: dict[str, Any], error: str, names: str, phantoms: Path, finished: Path, tmp_path: Path
) -> None:
    shutil.copytree(finished / "states", tmp_path / "out" / "states")
    with raises(error) as caught:
        train(train_config(phantoms, tmp_path / "out", **changes), quiet(), overwrite=True)
    assert names in str(caught.value)


@pytest.mark.slow
def test_the_folder_of_other_studies_is_refused(phantoms: Path, tmp_path: Path) -> None:
    train(train_config(write_damaged(phantoms, tmp_path), tmp_path / "out", passes=4), quiet())
    manifest = write_damaged(phantoms, tmp_path, count=-1)
    with raises("train: mismatch"):
        train(train_config(manifest, tmp_path / "out", passes=8), quiet())


@pytest.mark.parametrize(("function", "message", "written"), CASES["full disks"])
def test_a_full_disk_leaves_the_checkpoint_or_the_last_state(
    function: str, message: str, written: list[str], phantoms: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: object, path: Path, **__: object) -> None:
        (path / "model.safetensors" if path.is_dir() else path).write_bytes(b"half")
        raise SafetensorError("I/O error: No space left on device (os error 28)")

    monkeypatch.setattr(function, full)
    with pytest.raises(RunError, match=message):
        train(train_config(phantoms, tmp_path, passes=4), quiet())
    assert [path.name for path in tmp_path.glob("*checkpoint*")] == written
    assert not written or weights(tmp_path)


def test_a_checkpoint_is_trained_further_with_a_frozen_encoder(finished: Path, phantoms: Path, tmp_path: Path) -> None:
    changes = {"model": finished / "checkpoint", "trained": ["adapter", "language_model"], "patch_loss": 0}
    train(train_config(phantoms, tmp_path, passes=8, **changes), quiet())
    assert metrics(tmp_path)[0]["loss"] < metrics(finished)[0]["answer"] - 0.3
    before, after = weights(finished), weights(tmp_path)
    changed = {".".join(name.split(".")[:2]) for name in before if not torch.equal(before[name], after[name])}
    assert changed == {"model.multi_modal_projector", "model.language_model", "lm_head.weight"}
    # A state holds the trained weights only.
    (small,), (large,) = (out.glob("states/step-00000[28]/rank-*") for out in (tmp_path, finished))
    assert small.stat().st_size < large.stat().st_size


@pytest.mark.parametrize(("changes", "message", "code"), CASES["inconsistent runs"])
def test_an_inconsistent_config_is_refused_and_creates_no_folder(
    changes: dict[str, Any], message: str, code: str, phantoms: Path, tmp_path: Path
) -> None:
    if isinstance(model := changes.get("model"), dict):
        fresh = values(phantoms, tmp_path)["model"]
        changes = {"model": fresh | {part: fresh[part] | changed for part, changed in model.items()}}
    with raises_code(ErrorCode(code), message):
        train(train_config(phantoms, tmp_path / "out", **changes), quiet())
    assert not (tmp_path / "out").exists()
