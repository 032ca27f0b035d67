import json
import math
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from draft_files import read_rows
from error_checks import raises
from rich.console import Console
from tiny_runs import CASES, minimal_config, quiet, said
from torch import Tensor

import maira.train.logging as logs
from maira.model.config import MairaConfig
from maira.runtime.processes import DistributedContext
from maira.train.config.check import check_packages
from maira.train.config.run_config import TrainConfig
from maira.train.cost.flops import make_rates
from maira.train.data.packing import EncodedSample, StepTotals, collate
from maira.train.logging import MetricsLogger

ALONE = DistributedContext(0, 1, torch.device("cpu"))


class TwoAlike(DistributedContext):
    """A process of two that count the same."""

    def sum(self, values: Tensor) -> Tensor:
        return values * 2


class Clock:
    """A clock that is advanced by the test."""

    def __init__(self) -> None:
        self.now = 100.0

    def perf_counter(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    stopped_clock = Clock()
    monkeypatch.setattr(logs, "time", stopped_clock)
    return stopped_clock


StartLog = Callable[..., MetricsLogger]


@pytest.fixture
def start_log(tmp_path: Path, config: MairaConfig) -> StartLog:
    """Return a function that starts the log of a run of 100 steps in the temporary folder."""

    def start(
        step: int = 0, context: DistributedContext = ALONE, console: Console | None = None, **changes: Any
    ) -> MetricsLogger:
        values = {"model": "m", "train": "m.jsonl", "out": tmp_path, "passes": 12800, "trackers": [], "log_every": 1}
        log = MetricsLogger(TrainConfig.model_validate(values | changes), config, context, console or quiet(), 100)
        log.start(step)
        return log

    return start


def rows_of(folder: Path) -> list[dict[str, Any]]:
    return read_rows(folder / "metrics.jsonl")


def test_a_line_has_mean_losses_and_the_learning_rate(start_log: StartLog, tmp_path: Path) -> None:
    log = start_log(log_every=2)
    for step, loss in enumerate([4.0, 2.0, 1.0], start=1):
        log.log_step(step, 0, {"loss": loss}, lr=step / 10, grad_norm=1.0)
    # The loss of the third step is a part of the state.
    resumed = start_log(3, log_every=2)
    resumed.load_state_dict(json.loads(json.dumps(log.state_dict())))
    resumed.log_step(4, 0, {"loss": 0.5}, lr=0.4)
    assert [(row["step"], row["loss"], row["lr"]) for row in rows_of(tmp_path)] == [(2, 3.0, 0.2), (4, 0.75, 0.4)]


def test_values_keep_float32_precision_and_are_null_if_not_finite(start_log: StartLog, tmp_path: Path) -> None:
    start_log().log_step(1, 0, {"loss": 1.2345678, "answer": math.nan}, grad_norm=math.inf)
    (row,) = rows_of(tmp_path)
    assert torch.tensor(row["loss"]) == torch.tensor(1.2345678)
    assert (row["answer"], row["grad_norm"]) == (None, None)


@pytest.mark.parametrize("size", [1, 2])
def test_rates_are_of_all_processes_without_padding_and_pauses(
    size: int, start_log: StartLog, tmp_path: Path, config: MairaConfig, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = []
    context = ALONE if size == 1 else TwoAlike(0, 2, torch.device("cpu"))
    for peak in (None, 1e9):
        monkeypatch.setattr(logs, "_peak", lambda _, peak=peak: peak)
        log = start_log(context=context, out=tmp_path / str(peak))
        # A row of two samples with three answer tokens in all, and one image.
        first = EncodedSample("first", "grounded", [0] * 300, 297, np.zeros((1, 32, 32), np.float32))
        second = EncodedSample("second", "grounded", [0] * 100, 100, np.zeros((0, 32, 32), np.float32))
        log.count_row(collate([first, second], StepTotals(3, 2), 0, multiple=512), waited=0.5)
        clock.now += 2.0
        with log.pause():
            clock.now += 60.0
        log.log_step(1, 0, {"loss": 1.0})
        rows += rows_of(tmp_path / str(peak))
    on_cpu, row = rows
    assert (row["tokens_per_second"], row["samples_per_second"]) == (200.0 * size, 1.0 * size)
    # The wait and the operations are a device's.
    assert (row["data_wait"], row["seconds"]) == (0.25, 62.0)
    expected = sum(make_rates(config, minimal_config().trains).of([300, 100], 1, 3).values()) / 2e12
    assert row["tflops_per_device"] == pytest.approx(expected, rel=1e-8)
    assert row["mfu"] == pytest.approx(row["tflops_per_device"] * 1e12 / 1e9)
    assert "mfu" not in on_cpu


def test_remaining_time_uses_the_pace_since_resuming(start_log: StartLog, tmp_path: Path, clock: Clock) -> None:
    console = quiet()
    log = start_log(50, console=console, log_every=10)
    log.load_state_dict({"losses": {}, "count": 0, "seconds": 1e6})
    for step in range(51, 61):
        clock.now += 6.0
        log.log_step(step, 0, {"loss": 1.0})
    assert "4.0 min left" in said(console)
    assert rows_of(tmp_path)[0]["seconds"] == 1e6 + 60


def test_a_resumed_run_drops_later_and_truncated_lines(start_log: StartLog, tmp_path: Path) -> None:
    log = start_log()
    for step in (1, 2, 3):
        log.log_step(step, 0, {"loss": 1.0})
    log.log_validation(3, {"loss/all": 1.0})
    with (tmp_path / "metrics.jsonl").open("a", encoding="utf-8") as handle:
        handle.write('{"step": 2, "lo')
    start_log(2).log_step(3, 0, {"loss": 5.0})
    assert [(row["step"], row["loss"]) for row in rows_of(tmp_path)] == [(1, 1.0), (2, 1.0), (3, 5.0)]


def test_other_processes_write_nothing(start_log: StartLog, tmp_path: Path) -> None:
    console = quiet()
    log = start_log(0, TwoAlike(1, 2, torch.device("cpu")), console, trackers=["tensorboard"])
    log.log_step(1, 0, {"loss": 1.0})
    log.log_validation(1, {"loss/all": 1.0})
    log.close()
    assert said(console) == ""
    assert list(tmp_path.iterdir()) == []


def test_tensorboard_drops_repeated_steps(start_log: StartLog, tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    first = start_log(trackers=["tensorboard"])
    for step in (1, 2, 3):
        first.log_step(step, 0, {"loss": float(step)})
    first.close()
    second = start_log(2, trackers=["tensorboard"])
    second.log_step(3, 0, {"loss": 30.0})
    second.log_validation(3, {"drafts/logical_f1": 0.5, "drafts/spatial_f1": None})
    second.close()
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert [(event.step, event.value) for event in events.Scalars("train/loss")] == [(1, 1.0), (2, 2.0), (3, 30.0)]
    assert [event.value for event in events.Scalars("drafts/logical_f1")] == [0.5]
    assert "drafts/spatial_f1" not in events.Tags()["scalars"]


def test_a_failing_tracker_is_reported_once_and_the_run_continues(
    start_log: StartLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(step: int, _: object) -> None:
        raise ConnectionError(f"no route\nfrom step {step}")

    # A tracker that failed is not asked again, not even to close.
    monkeypatch.setitem(logs._STARTS, "wandb", lambda *_: logs.Tracker(fail, pytest.fail))
    console = quiet()
    log = start_log(console=console, trackers=["wandb"])
    for step in (1, 2):
        log.log_step(step, 0, {"loss": 1.0})
    log.close()
    assert said(console).count("wandb is disabled: no route from step 1\n") == 1
    assert [row["step"] for row in rows_of(tmp_path)] == [1, 2]


def test_unwritten_lines_are_retried(start_log: StartLog, tmp_path: Path) -> None:
    console = quiet()
    log = start_log(console=console)
    blocked = tmp_path / "metrics.jsonl"
    blocked.mkdir()
    log.log_step(1, 0, {"loss": 1.0})
    log.log_step(2, 0, {"loss": 1.0})
    blocked.rmdir()
    log.log_step(3, 0, {"loss": 1.0})
    assert said(console).count("metrics.jsonl cannot be written") == 1
    assert [row["step"] for row in rows_of(tmp_path)] == [1, 2, 3]


@pytest.mark.parametrize(("field", "changes"), CASES["missing packages"])
def test_missing_packages_are_an_error(field: str, changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("maira.train.config.check.find_spec", lambda _: None)
    with raises(f"{field}: missing-requirement"):
        check_packages(minimal_config(**changes))


class FakeWandb(SimpleNamespace):
    """The part of the library that is used."""

    class Error(Exception):
        """As the library's."""

    def __init__(self) -> None:
        super().__init__()
        self.started: list[dict[str, Any]] = []
        self.logged: list[dict[str, Any]] = []

    def init(self, **options: Any) -> Any:
        self.started.append(options)
        run_id = options["id"] or f"run{len(self.started)}"
        return SimpleNamespace(id=run_id, define_metric=lambda *_, **__: None, log=self.logged.append, finish=None)


@pytest.fixture
def wandb(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeWandb:
    fake, netrc = FakeWandb(), tmp_path / "netrc"
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.setenv("NETRC", str(netrc))
    netrc.write_text("machine api.wandb.ai login user password secret\n", encoding="utf-8")
    netrc.chmod(0o600)
    monkeypatch.setitem(sys.modules, "wandb", fake)
    return fake


@pytest.mark.parametrize("step", [0, 7])
def test_a_resumed_training_resumes_its_wandb_run(step: int, wandb: FakeWandb, start_log: StartLog) -> None:
    start_log(trackers=["wandb"])
    start_log(step, trackers=["wandb"]).log_step(step + 1, 0, {"loss": 2.0})
    assert [options["id"] for options in wandb.started] == [None, "run1" if step else None]
    assert (wandb.logged[0]["step"], wandb.logged[0]["train/loss"]) == (step + 1, 2.0)


def test_wandb_without_a_key_is_an_error_at_the_start(wandb: FakeWandb, start_log: StartLog, tmp_path: Path) -> None:
    (tmp_path / "netrc").unlink()
    with raises("trackers: missing-requirement"):
        start_log(trackers=["wandb"])
    assert wandb.started == []
