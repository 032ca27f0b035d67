"""Where figures go beside the console and `metrics.jsonl`: TensorBoard, Weights & Biases.

Both are spoken to directly: accelerate's wrappers need its state, and know nothing of a run that goes on from an
earlier step (TensorBoard's `purge_step`, the id of a run of Weights & Biases).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from netrc import NetrcParseError, netrc
from typing import Any, Protocol
from urllib.parse import urlsplit

from maira.train.config.run_config import BaseTrainConfig
from radfact.errors import InputError
from radfact.io.jsonl import read_text

WANDB_PROJECT = "maira"
"""Unless WANDB_PROJECT in the environment says otherwise."""


class Tracker(Protocol):
    """One place for figures."""

    def write(self, step: int, figures: Mapping[str, float]) -> None:
        """Take the figures of a step."""

    def close(self) -> None:
        """Have everything written."""


class TensorBoard:
    """Event files in `tensorboard/` of the run's folder.

    Args:
        config: its folder counts.
        first_step: where the run goes on; what was written of later steps is dropped.

    Raises:
        InputError: TensorBoard is not installed.
    """

    def __init__(self, config: BaseTrainConfig, first_step: int) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise InputError(_missing("tensorboard", "tensorboard"), field="trackers") from None
        writer: Any = SummaryWriter
        self._writer = writer(str(config.out / "tensorboard"), purge_step=first_step + 1 if first_step else None)

    def write(self, step: int, figures: Mapping[str, float]) -> None:
        """Take the figures of a step."""
        for name, value in figures.items():
            self._writer.add_scalar(name if "/" in name else f"train/{name}", value, step)

    def close(self) -> None:
        """Have everything written."""
        self._writer.close()


class Wandb:
    """A run of Weights & Biases, the same one when the training goes on; its id is kept in the run's folder.

    `WANDB_MODE=offline`, `WANDB_PROJECT`, `WANDB_ENTITY` and whatever else its documentation names count as ever.
    Figures are drawn over `step`, which is one of them: its own count of steps could not go back to a saved state.

    Args:
        config: whole, it is the configuration of the run.
        first_step: where the run goes on; 0 starts another one.

    Raises:
        InputError: the package is not installed, there is no key, or the service refuses.
    """

    def __init__(self, config: BaseTrainConfig, first_step: int) -> None:
        try:
            import wandb
        except ImportError:
            raise InputError(_missing("wandb", "maira-radfact[wandb]"), field="trackers") from None
        library: Any = wandb
        # Asked for here, since the library would wait for somebody to type one.
        if os.environ.get("WANDB_MODE", "online") == "online" and not _has_key():
            raise InputError(
                "wandb has no key: say `wandb login`, set WANDB_API_KEY, or WANDB_MODE=offline", field="trackers"
            )
        kept = config.out / "wandb-id.txt"
        known = read_text(kept).strip() if first_step and kept.exists() else None
        config.out.mkdir(parents=True, exist_ok=True)
        try:
            self._run = library.init(
                project=os.environ.get("WANDB_PROJECT", WANDB_PROJECT),
                name=config.out.name,
                dir=str(config.out),
                id=known,
                resume="allow" if known else None,
                config=config.model_dump(mode="json"),
            )
        except library.Error as error:
            raise InputError(f"wandb does not start: {' '.join(str(error).split())}", field="trackers") from None
        kept.write_text(f"{self._run.id}\n", encoding="utf-8")
        self._run.define_metric("*", step_metric="step")

    def write(self, step: int, figures: Mapping[str, float]) -> None:
        """Take the figures of a step."""
        named = {name if "/" in name else f"train/{name}": value for name, value in figures.items()}
        self._run.log({"step": step, **named})

    def close(self) -> None:
        """Have everything written."""
        self._run.finish()


_TRACKERS: dict[str, Callable[[BaseTrainConfig, int], Tracker]] = {"tensorboard": TensorBoard, "wandb": Wandb}


def start_trackers(config: BaseTrainConfig, first_step: int) -> dict[str, Tracker]:
    """The trackers of a recipe by name.

    Raises:
        InputError: one cannot be started; what is missing is named.
    """
    return {name: _TRACKERS[name](config, first_step) for name in wanted(config)}


def wanted(config: BaseTrainConfig) -> list[str]:
    """The trackers of a recipe; one that it does not name itself is left out where its package is not installed."""
    names: list[str] = list(dict.fromkeys(config.trackers))
    if "trackers" not in config.model_fields_set:
        names = [name for name in names if find_spec(name)]
    return names


def places(config: BaseTrainConfig) -> list[str]:
    """Where the figures of a run are to be found, in words."""
    where = {
        "tensorboard": f"TensorBoard: {config.out / 'tensorboard'}",
        "wandb": f"Weights & Biases: project {os.environ.get('WANDB_PROJECT', WANDB_PROJECT)}",
    }
    return [str(config.out / "metrics.jsonl"), *(where[name] for name in wanted(config))]


def _has_key() -> bool:
    """Whether Weights & Biases will find credentials: in the environment, or in the file that `wandb login` writes."""
    if os.environ.keys() & {"WANDB_API_KEY", "WANDB_IDENTITY_TOKEN_FILE"}:
        return True
    host = urlsplit(os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai")).netloc
    try:
        return netrc(os.environ.get("NETRC")).authenticators(host) is not None
    except (OSError, NetrcParseError):
        return False


def _missing(package: str, install: str) -> str:
    return f"{package} is not installed: pip install '{install}', or leave it out of trackers"
