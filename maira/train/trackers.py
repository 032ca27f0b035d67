"""Trackers of metrics: TensorBoard and Weights & Biases.

accelerate's wrappers do not support a run that resumes from an earlier step (`purge_step`, the id of a run).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from typing import Any

from maira.train.config.run_config import BaseTrainConfig
from radfact.errors import ErrorCode, InputError
from radfact.io.jsonl import read_text

WANDB_PROJECT = "maira"
"""Default of the environment variable WANDB_PROJECT."""


class TensorBoard:
    """Event files in `tensorboard/` of the run's folder."""

    def __init__(self, config: BaseTrainConfig, first_step: int) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise _missing("tensorboard", "tensorboard") from None
        writer: Any = SummaryWriter
        self._writer = writer(str(config.out / "tensorboard"), purge_step=first_step + 1 if first_step else None)

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Write the metrics of a step."""
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        """Write everything and close."""
        self._writer.close()


class Wandb:
    """A run of Weights & Biases, the same one after resumption; its id is saved in the run's folder.

    Its environment variables (`WANDB_MODE=offline`, `WANDB_PROJECT`, `WANDB_ENTITY`, ...) apply. Metrics are plotted
    over `step`, which is one of them, since its own step counter could not go back to a saved state.
    """

    def __init__(self, config: BaseTrainConfig, first_step: int) -> None:
        try:
            import wandb
        except ImportError:
            raise _missing("wandb", "maira-radfact[wandb]") from None
        library: Any = wandb
        id_file = config.out / "wandb-id.txt"
        run_id = read_text(id_file).strip() if first_step and id_file.exists() else None
        config.out.mkdir(parents=True, exist_ok=True)
        try:
            self._run = library.init(
                project=os.environ.get("WANDB_PROJECT", WANDB_PROJECT),
                name=config.out.name,
                dir=str(config.out),
                id=run_id,
                resume="allow" if run_id else None,
                config=config.model_dump(mode="json"),
            )
        except library.Error as error:
            # Without a key, say, where no user can type one.
            message = (
                f"wandb does not start: {' '.join(str(error).split())}; run `wandb login`, or set WANDB_MODE=offline"
            )
            raise InputError(message, code=ErrorCode.MISSING_REQUIREMENT, field="trackers") from None
        id_file.write_text(f"{self._run.id}\n", encoding="utf-8")
        self._run.define_metric("*", step_metric="step")

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Write the metrics of a step."""
        self._run.log({"step": step, **metrics})

    def close(self) -> None:
        """Write everything and close."""
        self._run.finish()


Tracker = TensorBoard | Wandb
_TRACKERS: dict[str, Callable[[BaseTrainConfig, int], Tracker]] = {"tensorboard": TensorBoard, "wandb": Wandb}


def start_trackers(config: BaseTrainConfig, first_step: int) -> dict[str, Tracker]:
    """Start the trackers of a run that resumes from a step, and return them by name."""
    return {name: _TRACKERS[name](config, first_step) for name in tracker_names(config)}


def tracker_names(config: BaseTrainConfig) -> list[str]:
    """Return the names of the trackers, without default ones whose package is not installed."""
    names: list[str] = list(dict.fromkeys(config.trackers))
    if "trackers" not in config.model_fields_set:
        names = [name for name in names if find_spec(name)]
    return names


def metric_targets(config: BaseTrainConfig) -> list[str]:
    """Return where the metrics of a run are written, for a message."""
    targets = {
        "tensorboard": f"TensorBoard: {config.out / 'tensorboard'}",
        "wandb": f"Weights & Biases: project {os.environ.get('WANDB_PROJECT', WANDB_PROJECT)}",
    }
    return [str(config.out / "metrics.jsonl"), *(targets[name] for name in tracker_names(config))]


def _missing(package: str, install: str) -> InputError:
    message = f"{package} is not installed: pip install '{install}', or remove it from trackers"
    return InputError(message, code=ErrorCode.MISSING_REQUIREMENT, field="trackers")
