"""The model card of a checkpoint: `README.md` with its metadata, from what is known about its run."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

import yaml
from huggingface_hub import EvalResult, ModelCard, ModelCardData
from jinja2 import Environment, StrictUndefined
from pydantic import BaseModel

from maira.model.checkpoint import StoredTensor, fingerprint, read_headers
from maira.model.config import MairaConfig
from maira.train.record import RECORD_FILE, TrainingRecord
from radfact.errors import ErrorCode, InputError
from radfact.io.download import file_sha256
from radfact.io.jsonl import read_json, read_jsonl
from radfact.judges.check import confusion_accuracy
from radfact.records import validate_model
from radfact.results.reader import read_run, read_scores
from radfact.results.schema import RADFACT, ScoreRecord, describe_models, metric_of_scores
from radfact.statistics.bootstrap import wilson_interval

PHANTOM = "phantom"
"""`source` of synthetic studies in a manifest."""
UNKNOWN = "unknown"
_UNVERIFIED = "it is not verified that these scores belong to this model"
_UNPUBLISHED = {
    *("manifest", "shards", "file", "preferences", "out", "trackers", "workers", "keep", "save_every", "log_every"),
}
"""Fields of a run config that are paths or do not change the model."""


@dataclass(frozen=True)
class CheckpointFacts:
    """What the files of a checkpoint say; `sources` counts samples by data set, where their manifest is still here."""

    folder: Path
    is_judge: bool
    fingerprint: str
    tensors: list[StoredTensor]
    training: TrainingRecord | None = None
    sources: Sequence[Counter[str]] = ()

    @property
    def parameters(self) -> int:
        return sum(math.prod(tensor.shape) for tensor in self.tensors)

    @property
    def types(self) -> str:
        return ", ".join(sorted({tensor.dtype for tensor in self.tensors}))

    @property
    def has_phantoms_only(self) -> bool:
        """Whether all sources are known to hold synthetic studies only."""
        return bool(self.sources) and all(set(names) == {PHANTOM} for names in self.sources)


def read_checkpoint(folder: Path) -> CheckpointFacts:
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


@dataclass(frozen=True)
class TestScores:
    """Scores with a value on one test set, notes on them, and their judges or language models."""

    __test__ = False  # pytest collects classes with this beginning

    name: str | None
    scores: Mapping[str, ScoreRecord]
    notes: Sequence[str]
    judges: Mapping[str, str] = field(default_factory=dict)


def read_test_scores(text: str, fingerprint: str) -> TestScores:
    """Read the scores of a model, from [NAME=]PATH."""
    name, _, path = text.rpartition("=")
    source = Path(path)
    if source.is_file():
        return _read_check(name or None, source)
    scores, run = read_scores(source), read_run(source)
    models = run.input.models
    if others := [model for model in models if model.rpartition("@")[2] != fingerprint]:
        message = f"expected scores of the checkpoint with the fingerprint {fingerprint}, found those of {others[0]}"
        raise InputError(message, code=ErrorCode.MISMATCH, file=source, field="models")
    judges = {metric: _without_paths(judge) for metric, judge in describe_models(scores).items()}
    metrics = metric_of_scores(scores)
    known = {label: score for label, score in scores.scores.items() if score.point is not None}
    counts = scores.counts
    notes = [f"{counts.get('scored', 'unknown')} of {counts.get('samples', 'unknown')} samples are scored."]
    by = scores.resampling.by if scores.resampling else None
    units = "samples" if by is None else f"groups of samples with the same `{by}`"
    notes.append(f"Intervals are 95% bootstrap intervals over {units if scores.resampling else 'unknown units'}.")
    if not models:
        notes.append(f"The drafts do not name their model, so {_UNVERIFIED}.")
    if empty := [label for label in scores.scores if label not in known]:
        notes.append(f"Scores without a value: {', '.join(f'`{label}`' for label in empty)}.")
    notes += [f"`{metric}` is computed with `{judge}`." for metric, judge in judges.items()]
    notes += [f"`{metric}` was not computed." for metric in scores.unavailable]
    readers = {label: judges[metric] for label in known if (metric := metrics.get(label, RADFACT)) in judges}
    return TestScores(name or None, known, notes, readers)


class _JudgeCheck(BaseModel):
    """The file of `radfact judge-check`."""

    n: int
    confusion: dict[str, dict[str, int]]
    precision: float | None
    recall: float | None
    f1: float | None
    evidence_f1: float | None
    failures: int | None = None


def _read_check(name: str | None, file: Path) -> TestScores:
    check = validate_model(_JudgeCheck, read_json(file), file=file)
    scores = {}
    if (accuracy := confusion_accuracy(check.confusion)) is not None:
        low, high = wilson_interval(round(accuracy * check.n), check.n) or (None, None)
        scores["accuracy"] = ScoreRecord(point=accuracy, low=low, high=high, n=check.n)
    for label in ("precision", "recall", "f1", "evidence_f1"):
        if (point := getattr(check, label)) is not None:
            scores[label] = ScoreRecord(point=point, n=check.n)
    failures = "unknown" if check.failures is None else check.failures
    notes = (
        f"{check.n} labeled judgments, {failures} without a valid verdict.",
        "The interval of the accuracy is a 95% Wilson interval, which assumes independent judgments.",
        f"The file does not identify the judge's weights, so {_UNVERIFIED}.",
    )
    return TestScores(name, scores, notes)


def _without_paths(name: str) -> str:
    """Return the name of a judge without the folders of its path on this machine."""
    kind, colon, rest = name.partition(":")
    return f"{kind}:{Path(rest).name}" if colon and kind == "vllm" else name


def make_card(
    repository: str,
    facts: CheckpointFacts,
    tests: Sequence[TestScores] = (),
    *,
    license: str | None = None,
    base_models: Sequence[str] = (),
    datasets: Sequence[str] = (),
) -> ModelCard:
    """Make the model card of a checkpoint, without paths and samples; its license and names are the author's words."""
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
    settings = {}
    if training:
        model = training.config.get("model")  # the architecture of random weights, or else a path
        own = {key: item for key, item in training.config.items() if key != "model"}
        settings = _published({"model": model, **own} if isinstance(model, dict) else own)
    jinja = Environment(undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True)
    template = jinja.from_string((resources.files("maira.publish") / "card.md.jinja").read_text("utf-8"))
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


def _published(value: Any) -> Any:
    """Return settings without the paths of the machine; sources have numbers instead."""
    if isinstance(value, list):
        return [
            {"source": number, **_published(item)} if isinstance(item, dict) else item
            for number, item in enumerate(value, start=1)
        ]
    if not isinstance(value, dict):
        return value
    return {key: _published(item) for key, item in value.items() if key not in _UNPUBLISHED and not _has_path(item)}


def _has_path(value: Any) -> bool:
    """Whether a value names a place on this machine, such as vllm:/home/me/judge."""
    return isinstance(value, str) and Path(value.rpartition(":")[2]).is_absolute()
