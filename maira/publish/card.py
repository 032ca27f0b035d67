"""The model card of a checkpoint: `README.md` with its metadata, from what is known about its run."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from huggingface_hub import EvalResult, ModelCard, ModelCardData

from maira.model.checkpoint import StoredTensor, fingerprint, read_headers
from maira.model.config import MairaConfig
from maira.publish.scores import TestScores
from maira.train.record import RECORD_FILE, SourceRecord, TrainingRecord
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
class CardOptions:
    """What the author of a model states about it; nothing of it is in the files.

    Attributes:
        license: identifier of the license, as in the Hub's list; None if it is not known.
        base_models: models that this one was trained from, by their names on the Hub.
        datasets: data sets that it was trained on, by their names on the Hub.
    """

    license: str | None = None
    base_models: Sequence[str] = ()
    datasets: Sequence[str] = ()


@dataclass(frozen=True)
class CheckpointFacts:
    """What the files of a checkpoint say.

    Attributes:
        folder: of the checkpoint.
        is_judge: whether it is a judge instead of a model of reports.
        fingerprint: of its files.
        tensors: its weights.
        training: record of its run; None if there is none.
        sources: number of samples by the data set that the manifest of a source names; None where the manifest is not
            here any more or has changed.
    """

    folder: Path
    is_judge: bool
    fingerprint: str
    tensors: list[StoredTensor]
    training: TrainingRecord | None = None
    sources: Sequence[Counter[str] | None] = field(default_factory=tuple)


def read_checkpoint(folder: Path) -> CheckpointFacts:
    """Read what the files of a checkpoint say."""
    if not (folder / "config.json").is_file():
        inner = folder / "checkpoint"
        hint = f"; did you mean {inner}?" if (inner / "config.json").is_file() else ""
        message = f"expected a checkpoint, found no config.json{hint}"
        raise InputError(message, code=ErrorCode.FILE_NOT_FOUND, file=folder)
    config = read_json(folder / "config.json")
    kind = config.get("model_type") if isinstance(config, dict) else None
    tensors = read_headers(folder)
    record = folder / RECORD_FILE
    training = validate_model(TrainingRecord, read_json(record), file=record) if record.is_file() else None
    return CheckpointFacts(
        folder,
        kind != MairaConfig.model_type,
        fingerprint(folder),
        tensors,
        training,
        [_data_sets(path, source) for path, source in _source_files(training)] if training else (),
    )


def _source_files(training: TrainingRecord) -> Iterator[tuple[Path | None, SourceRecord]]:
    for source, record in zip(training.config.get("train") or [], training.data, strict=False):
        manifest = source.get("manifest")
        yield (Path(manifest) if manifest else None), record


def _data_sets(manifest: Path | None, record: SourceRecord) -> Counter[str] | None:
    """Count the samples of an unchanged manifest by their data set."""
    if manifest is None or not manifest.is_file() or file_sha256(manifest) != record.sha256:
        return None
    return Counter(str(row.get("source") or UNKNOWN) for _, row in read_jsonl(manifest))


def make_card(
    repository: str,
    facts: CheckpointFacts,
    tests: Sequence[TestScores] = (),
    options: CardOptions | None = None,
) -> ModelCard:
    """Make the model card of a checkpoint. It has no path of this machine, no sample and no text of a report.

    Returns:
        The card, with its metadata as YAML in front.
    """
    options = options or CardOptions()
    data = ModelCardData(
        language="en",
        license=options.license or UNKNOWN,
        library_name="transformers" if facts.is_judge else "maira-radfact",
        pipeline_tag="text-generation" if facts.is_judge else "image-text-to-text",
        tags=["radiology", "chest-x-ray", *(["judge"] if facts.is_judge else ["report-generation", "grounding"])],
        base_model=_base_models(facts, options) or None,
        datasets=list(options.datasets) or None,
        model_name=repository.partition("/")[2],
        eval_results=list(_eval_results(facts, tests)) or None,
    )
    sections = (
        _head(repository, facts),
        _use(repository, facts),
        _scores(tests),
        _data(facts, options),
        _training(facts, options),
        _limits(facts),
        _license(options),
    )
    return ModelCard(f"---\n{data.to_yaml()}\n---\n\n" + "\n\n".join(sections) + "\n")


def _base_models(facts: CheckpointFacts, options: CardOptions) -> list[str]:
    known = facts.training.model.name if facts.training else None
    return list(options.base_models) or ([known] if known else [])


def _eval_results(facts: CheckpointFacts, tests: Sequence[TestScores]) -> Iterator[EvalResult]:
    task = "text-generation" if facts.is_judge else "image-text-to-text"
    for test in tests:
        for score in test.scores:
            interval = None if score.low is None else [round(score.low, 4), round(float(score.high or 0), 4)]
            arguments = {"interval_95": interval, "n": score.n, "judge": score.judge}
            yield EvalResult(
                task_type=task,
                dataset_type=test.name or UNKNOWN,
                dataset_name=test.name or UNKNOWN,
                metric_type=score.name,
                metric_name=score.name,
                metric_value=round(score.value, 4),
                metric_args={key: value for key, value in arguments.items() if value is not None},
            )


def _head(repository: str, facts: CheckpointFacts) -> str:
    parameters = sum(math.prod(tensor.shape) for tensor in facts.tensors)
    types = ", ".join(sorted({tensor.dtype for tensor in facts.tensors}))
    what = (
        "A language model that judges radiology reports, for `radfact` and vLLM."
        if facts.is_judge
        else "A MAIRA-2 style model that writes grounded reports of chest X-rays."
    )
    return (
        f"# {repository.partition('/')[2]}\n\n{what} {parameters:,} parameters ({types}), fingerprint "
        f"`{facts.fingerprint}`.\n\n**Research software. It is not a medical device, and nothing that it writes is a "
        "diagnosis or replaces one.**"
    )


def _use(repository: str, facts: CheckpointFacts) -> str:
    if facts.is_judge:
        code = f"radfact score pairs.json --judge vllm:{repository} --out results"
        return f"## Use\n\n```sh\n{code}\n```"
    python = (
        "import maira  # the package maira-radfact with the extra [model]\n"
        "from transformers import AutoModelForImageTextToText, AutoProcessor\n\n"
        f'model = AutoModelForImageTextToText.from_pretrained("{repository}")\n'
        f'processor = AutoProcessor.from_pretrained("{repository}")'
    )
    command = f"maira generate --checkpoint {repository} --manifest manifest.jsonl --out drafts.jsonl"
    return (
        f"## Use\n\n```python\n{python}\n```\n\n```sh\n{command}\n```\n\nThe repository holds no code: "
        "`trust_remote_code` is not needed."
    )


def _scores(tests: Sequence[TestScores]) -> str:
    if not tests:
        return "## Scores\n\nUnknown: no scores were given."
    parts = ["## Scores"]
    for test in tests:
        rows = [
            (
                f"`{score.name}`" + (f" ({score.unit})" if score.unit else ""),
                f"{score.value:.3f}",
                score.interval,
                score.n,
            )
            for score in test.scores
        ]
        parts.append(f"Test set: {test.name or UNKNOWN}.")
        parts.append(_table(("score", "value", "95% interval", "n"), rows))
        parts.append(" ".join(test.notes))
    return "\n\n".join(parts)


def _data(facts: CheckpointFacts, options: CardOptions) -> str:
    named = f"On the Hub: {', '.join(options.datasets)}." if options.datasets else ""
    if facts.training is None:
        return "\n\n".join(
            filter(None, ("## Training data", named, f"Unknown: the checkpoint has no `{RECORD_FILE}`."))
        )
    rows = []
    for index, record in enumerate(facts.training.data):
        source = facts.training.config["train"][index]
        data_sets = facts.sources[index] if index < len(facts.sources) else None
        rows.append(
            (
                index + 1,
                ", ".join(f"{name} ({count:,})" for name, count in data_sets.most_common()) if data_sets else UNKNOWN,
                source.get("split") or "all",
                f"{record.studies:,}",
                ", ".join(f"{task} {count:,}" for task, count in record.samples.items()),
                f"`{record.sha256[:16]}`" if record.sha256 else UNKNOWN,
            )
        )
    items = "conversations" if facts.is_judge else "studies"
    table = _table(("source", "data set (samples in the file)", "split", items, "samples by task", "SHA-256"), rows)
    note = f"Checksums are the first 16 digits of those of the {'files' if facts.is_judge else 'manifests'}."
    return "\n\n".join(filter(None, ("## Training data", named, table, note)))


def _training(facts: CheckpointFacts, options: CardOptions) -> str:
    training = facts.training
    if training is None:
        return f"## Training\n\nUnknown: the checkpoint has no `{RECORD_FILE}`."
    start = training.model
    names = ", ".join(_base_models(facts, options))
    if start.fingerprint is None:
        begin = "The training started from random weights."
    else:
        commit = f", commit `{start.commit}`" if start.commit else ""
        begin = (
            f"The training started from {names or 'a model whose name is unknown'} (fingerprint "
            f"`{start.fingerprint}`{commit})."
        )
    settings = yaml.safe_dump(_published(training.config), sort_keys=False, allow_unicode=True)
    return (
        f"## Training\n\n{begin} {training.steps:,} optimizer steps, with maira-radfact {training.software}. Sources "
        f"are numbered as above.\n\n```yaml\n{settings}```"
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


def _limits(facts: CheckpointFacts) -> str:
    limits = [
        "- Scores measure agreement with reference reports or labels, which may be wrong or incomplete.",
        "- Intervals do not generalize to other hospitals, scanners or patients.",
        "- Performance by sex, age, ethnicity or scanner is unknown.",
    ]
    known = [data_sets for data_sets in facts.sources if data_sets]
    if facts.sources and len(known) == len(facts.sources) and all(set(names) == {PHANTOM} for names in known):
        limits.insert(0, "- It was trained on phantoms (synthetic radiographs) only, and has never seen a patient.")
    if facts.is_judge:
        limits.append("- Its scores are not comparable with those of another judge.")
    return "## Limits\n\n" + "\n".join(limits)


def _license(options: CardOptions) -> str:
    unknown = (
        "Unknown: no license was given. The licenses of the initial model and of the data may restrict the use of the "
        "model."
    )
    return f"## License\n\n{options.license or unknown}"


def _table(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines)
