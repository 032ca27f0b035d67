"""The model card of a checkpoint: `README.md` with its metadata, from what is known about its run."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

import yaml
from huggingface_hub import EvalResult, ModelCard, ModelCardData
from jinja2 import Environment, StrictUndefined

from maira.model.checkpoint import StoredTensor, fingerprint, read_headers
from maira.model.config import MairaConfig
from maira.publish.scores import TestScores
from maira.train.record import RECORD_FILE, TrainingRecord
from radfact.errors import ErrorCode, InputError
from radfact.io.download import file_sha256
from radfact.io.jsonl import read_json, read_jsonl
from radfact.records import validate_model

PHANTOM = "phantom"
"""`source` of synthetic studies in a manifest."""
UNKNOWN = "unknown"
_PATHS = ("manifest", "shards", "file")
_UNPUBLISHED = ("out", "trackers", "workers", "model", "keep", "save_every", "log_every")
"""Fields of a run config that are paths or do not change the model."""


@dataclass(frozen=True)
class CheckpointFacts:
    """What the files of a checkpoint say.

    Attributes:
        folder: of the checkpoint.
        is_judge: whether it is a judge instead of a model of reports.
        fingerprint: of its files.
        tensors: its weights.
        training: record of its run; None if there is none.
        sources: number of samples by the data set that the manifest of a source names; empty where the manifest is not
            here any more or has changed.
    """

    folder: Path
    is_judge: bool
    fingerprint: str
    tensors: list[StoredTensor]
    training: TrainingRecord | None = None
    sources: Sequence[Counter[str]] = field(default_factory=tuple)

    @property
    def parameters(self) -> int:
        """Number of parameters."""
        return sum(math.prod(tensor.shape) for tensor in self.tensors)

    @property
    def types(self) -> str:
        """Types of the weights."""
        return ", ".join(sorted({tensor.dtype for tensor in self.tensors}))

    @property
    def has_phantoms_only(self) -> bool:
        """Whether all sources are known to hold synthetic studies only."""
        return bool(self.sources) and all(set(names) == {PHANTOM} for names in self.sources)


def read_checkpoint(folder: Path) -> CheckpointFacts:
    """Read what the files of a checkpoint say."""
    if not (folder / "config.json").is_file():
        inner = folder / "checkpoint"
        hint = f"; did you mean {inner}?" if (inner / "config.json").is_file() else ""
        message = f"expected a checkpoint, found no config.json{hint}"
        raise InputError(message, code=ErrorCode.FILE_NOT_FOUND, file=folder)
    config = read_json(folder / "config.json")
    kind = config.get("model_type") if isinstance(config, dict) else None
    record = folder / RECORD_FILE
    training = validate_model(TrainingRecord, read_json(record), file=record) if record.is_file() else None
    sources = list(_data_sets(training)) if training else ()
    is_judge = kind != MairaConfig.model_type
    return CheckpointFacts(folder, is_judge, fingerprint(folder), read_headers(folder), training, sources)


def _data_sets(training: TrainingRecord) -> Iterator[Counter[str]]:
    """Count the samples of each source by their data set; nothing where its manifest is gone or has changed."""
    for source, record in zip(training.config.get("train") or (), training.data, strict=False):
        manifest = Path(source.get("manifest") or "")
        is_known = manifest.is_file() and file_sha256(manifest) == record.sha256
        yield Counter(str(row.get("source") or UNKNOWN) for _, row in (read_jsonl(manifest) if is_known else ()))


def make_card(
    repository: str,
    facts: CheckpointFacts,
    tests: Sequence[TestScores] = (),
    *,
    license: str | None = None,
    base_models: Sequence[str] = (),
    datasets: Sequence[str] = (),
) -> ModelCard:
    """Make the model card of a checkpoint. It has no path of this machine, no sample and no text of a report.

    `license`, `base_models` and `datasets`, by their names on the Hub, are what the author states: they are in no file.
    """
    training, name = facts.training, repository.partition("/")[2]
    if not base_models and training and training.model.name:
        base_models = [training.model.name]
    task = "text-generation" if facts.is_judge else "image-text-to-text"
    metadata = ModelCardData(
        language="en",
        license=license or UNKNOWN,
        library_name="transformers" if facts.is_judge else "maira-radfact",
        pipeline_tag=task,
        tags=["radiology", "chest-x-ray", *(["judge"] if facts.is_judge else ["report-generation", "grounding"])],
        base_model=list(base_models) or None,
        datasets=list(datasets) or None,
        model_name=name,
        eval_results=[result for test in tests for result in _eval_results(task, test)] or None,
    )
    settings = _published(training.config) if training else None
    environment = Environment(
        undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True
    )
    template = environment.from_string((resources.files("maira.publish") / "card.md.jinja").read_text("utf-8"))
    text = template.render(
        metadata=metadata.to_yaml(),
        name=name,
        repository=repository,
        facts=facts,
        training=training,
        tests=tests,
        license=license,
        base_models=base_models,
        datasets=datasets,
        settings=yaml.safe_dump(settings, sort_keys=False, allow_unicode=True),
    )
    return ModelCard(text)


def _eval_results(task: str, test: TestScores) -> Iterator[EvalResult]:
    for name, score in test.scores.items():
        interval = None if score.low is None else [round(score.low, 4), round(float(score.high or 0), 4)]
        arguments = {"interval_95": interval, "n": score.n, "judge": test.judges.get(name)}
        yield EvalResult(
            task_type=task,
            dataset_type=test.name or UNKNOWN,
            dataset_name=test.name or UNKNOWN,
            metric_type=name,
            metric_name=name,
            metric_value=round(float(score.point or 0), 4),
            metric_args={key: value for key, value in arguments.items() if value is not None},
        )


def _published(config: dict[str, Any]) -> dict[str, Any]:
    """Return a run config without the paths of the machine."""
    values = {key: value for key, value in config.items() if key not in _UNPUBLISHED}
    if isinstance(model := config.get("model"), dict):
        values = {"model": model, **values}
    values["train"] = _numbered(config.get("train") or [])
    if isinstance(validation := config.get("validation"), dict):
        values["validation"] = {**validation, "sources": _numbered(validation.get("sources") or [])}
    return values


def _numbered(sources: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        {"source": number, **{key: value for key, value in source.items() if key not in _PATHS}}
        for number, source in enumerate(sources, start=1)
    ]
