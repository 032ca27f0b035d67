"""The record of a checkpoint's training, from which its model card is written: `training.json` in its folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from maira.train.config.run_config import ALL_TASKS, BaseTrainConfig
from radfact.io.hub import snapshot_name
from radfact.machine import project_version
from radfact.records import Record

RECORD_FILE = "training.json"


class ModelRecord(Record):
    """The model that a run started from."""

    name: str | None = None  # repository on the Hub; None for a folder
    commit: str | None = None
    fingerprint: str | None = None  # of its files; None for random weights


class SourceRecord(Record):
    """One source of the training data."""

    sha256: str | None = None  # of the manifest or file; None if it is not known, as for shards
    preferences_sha256: str | None = None
    studies: int  # studies, or conversations of a judge, with at least one sample
    samples: dict[str, int]  # number of samples by task; with preferences, number of pairs


class TrainingRecord(Record):
    """`training.json`."""

    software: str  # version of this package
    config: dict[str, Any]  # the run config, with defaults
    model: ModelRecord
    data: tuple[SourceRecord, ...]  # in the order of the run config
    steps: int  # optimizer steps done
    changes: tuple[dict[str, Any], ...] = ()  # with which the run resumed: `step`, and `settings` [old, new] by name


def make_record(config: BaseTrainConfig, origin: dict[str, Any], rows: npt.NDArray[Any], steps: int) -> TrainingRecord:
    name, commit = (snapshot_name(config.model) if isinstance(config.model, Path) else None) or (None, None)
    data = []
    for index in range(len(config.train)):
        sha256, preferences = (origin[name][index] if origin.get(name) else None for name in ("train", "preferences"))
        own = rows[rows["source"] == index]
        tasks, counts = np.unique(own["task"], return_counts=True)
        samples = {str(ALL_TASKS[task]): int(count) for task, count in zip(tasks, counts, strict=True)}
        known, studies = sha256 if isinstance(sha256, str) else None, len(np.unique(own["number"]))
        data.append(SourceRecord(sha256=known, preferences_sha256=preferences, studies=studies, samples=samples))
    model = ModelRecord(name=name, commit=commit, fingerprint=origin["model"])
    settings = config.model_dump(mode="json")
    return TrainingRecord(software=project_version(), config=settings, model=model, data=tuple(data), steps=steps)
