"""The record of a checkpoint's training, from which its model card is written: `training.json` in its folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from maira.train.config.run_config import BaseTrainConfig
from maira.train.data.packing import ALL_TASKS
from radfact.io.hub import snapshot_name
from radfact.machine import project_version
from radfact.records import Record

RECORD_FILE = "training.json"


class ModelRecord(Record):
    """The model that a run started from.

    Attributes:
        name, commit: repository and commit on the Hub; None for a folder.
        fingerprint: of its files; None for random weights.
    """

    name: str | None = None
    commit: str | None = None
    fingerprint: str | None = None


class SourceRecord(Record):
    """One source of the training data.

    Attributes:
        sha256: of the manifest or file; None if it is not known, as for shards.
        studies: studies, or conversations of a judge, with at least one sample.
        samples: number of samples by task; with preferences, number of pairs.
        preferences_sha256: SHA-256 of the file of preferences; None without preferences.
    """

    sha256: str | None = None
    preferences_sha256: str | None = None
    studies: int
    samples: dict[str, int]


class TrainingRecord(Record):
    """`training.json`.

    Attributes:
        software: version of this package.
        config: the run config, with defaults.
        model: model of the start.
        data: the sources of the training data, in the order of the run config.
        steps: optimizer steps done.
    """

    software: str
    config: dict[str, Any]
    model: ModelRecord
    data: tuple[SourceRecord, ...]
    steps: int


def make_record(config: BaseTrainConfig, origin: dict[str, Any], rows: npt.NDArray[Any], steps: int) -> TrainingRecord:
    """Make the record of a run."""
    name, commit = (snapshot_name(config.model) if isinstance(config.model, Path) else None) or (None, None)
    unknown = [None] * len(config.train)
    data = []
    for index, (key, preferences) in enumerate(
        zip(origin.get("train") or unknown, origin.get("preferences") or unknown, strict=True)
    ):
        own = rows[rows["source"] == index]
        tasks, counts = np.unique(own["task"], return_counts=True)
        data.append(
            SourceRecord(
                sha256=key if isinstance(key, str) else None,
                preferences_sha256=preferences,
                studies=len(np.unique(own["number"])),
                samples={str(ALL_TASKS[task]): int(count) for task, count in zip(tasks, counts, strict=True)},
            )
        )
    return TrainingRecord(
        software=project_version(),
        config=config.model_dump(mode="json"),
        model=ModelRecord(name=name, commit=commit, fingerprint=origin["model"]),
        data=tuple(data),
        steps=steps,
    )
