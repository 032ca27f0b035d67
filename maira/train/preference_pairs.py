"""Make preference pairs from the drafts of each study by their rewards."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from maira.data.study import Study
from maira.generate.drafts import without_references
from maira.model.prompts import Preset, Task
from maira.model.task_examples import Example, Input, UnusedInputWarning, drop_inputs, make_example
from maira.train.generation import keep_task_report
from maira.train.rewards import ReportReward
from radfact.errors import ErrorCode, InputError, list_some
from radfact.io.jsonl import read_jsonl
from radfact.io.pairs import read_drafts
from radfact.records import Report


@dataclass(frozen=True, slots=True)
class PreferencePairs:
    """Preference pairs of drafts.

    Attributes:
        rows: lines of `preferences.jsonl`, with `sample_id`, `prompt`, `chosen`, `rejected`, `images`, `chosen_reward`
            and `rejected_reward`.
        skipped: number of studies without a pair, by reason.
        chosen: number of chosen drafts by file.
    """

    rows: list[dict[str, Any]] = field(default_factory=list)
    skipped: Counter[str] = field(default_factory=Counter)
    chosen: Counter[Path] = field(default_factory=Counter)


class _Draft(NamedTuple):
    """A draft of a study, its file, and the irregularities of its form."""

    file: Path
    report: Report
    irregularities: Sequence[Any]


def make_preferences(
    files: Sequence[Path],
    studies: Mapping[str, Study],
    reward: ReportReward,
    margin: float,
    *,
    preset: Preset = "release",
    drop: Sequence[Input] = (),
) -> PreferencePairs:
    """Pair the draft of each study that has the highest reward with the one that has the lowest.

    Args:
        files: drafts, at least two files.
        studies: studies with their reports, by `sample_id`.
        reward: reward of a draft.
        margin: minimum difference between the two rewards of a pair; equal rewards make no pair.
        preset: wording of the prompts.
        drop: inputs to omit from the prompts.

    Raises:
        InputError: a file is invalid, or a draft has no study.
        RunError: a metric fails.
    """
    drafts: dict[str, list[_Draft]] = {}
    for file in files:
        for sample_id, draft in _read_file(file, studies).items():
            drafts.setdefault(sample_id, []).append(draft)
    pairs = PreferencePairs()
    groups: list[tuple[Study, Task, list[_Draft]]] = []
    for sample_id, study in studies.items():
        own = drafts.get(sample_id, [])
        tasks: set[Task] = {"findings" if isinstance(draft.report, str) else "grounded" for draft in own}
        if len(own) < 2:
            pairs.skipped["fewer than two drafts"] += 1
        elif len(tasks) > 1:
            pairs.skipped["drafts of different tasks"] += 1
        elif not _reference(study, task := tasks.pop()):
            pairs.skipped["no reference report"] += 1
        else:
            groups.append((study, task, own))
    rewards = iter(
        reward(
            [{"report": draft.report, "irregularities": draft.irregularities} for *_, own in groups for draft in own],
            [_reference(study, task) for study, task, own in groups for _ in own],
        )
    )
    for study, task, own in groups:
        totals = [next(rewards).total for _ in own]
        scored = [(total, draft) for total, draft in zip(totals, own, strict=True) if total is not None]
        if len(scored) < 2:
            pairs.skipped["fewer than two scored drafts"] += 1
            continue
        # Among equal rewards, take the first and the last draft, so that `best` and `worst` differ.
        best, worst = max(scored, key=lambda item: item[0]), min(scored[::-1], key=lambda item: item[0])
        try:
            chosen, rejected = (_example(study, task, draft.report, preset, drop) for _, draft in (best, worst))
        except InputError:
            pairs.skipped["a draft that the model's format cannot represent"] += 1
            continue
        if chosen.target == rejected.target:
            pairs.skipped["identical reports"] += 1
        elif best[0] - worst[0] < margin or best[0] == worst[0]:
            pairs.skipped["reward difference below the margin"] += 1
        else:
            pairs.chosen[best[1].file] += 1
            pairs.rows.append(
                {
                    "sample_id": study.sample_id,
                    "prompt": chosen.prompt,
                    "chosen": chosen.target,
                    "rejected": rejected.target,
                    "images": [str(path) for path in chosen.images],
                    "chosen_reward": best[0],
                    "rejected_reward": worst[0],
                }
            )
    return pairs


def _read_file(file: Path, studies: Mapping[str, Study]) -> dict[str, _Draft]:
    reports = read_drafts(file)
    if unknown := [sample_id for sample_id in reports if sample_id not in studies]:
        raise InputError(
            f"expected drafts of studies of the manifest, found {len(unknown)} others ({list_some(unknown)})",
            code=ErrorCode.MISMATCH,
            file=file,
            field="sample_id",
        )
    irregularities = {str(row["sample_id"]): row.get("irregularities") or () for _, row in read_jsonl(file)}
    return {sample_id: _Draft(file, report, irregularities[sample_id]) for sample_id, report in reports.items()}


def _reference(study: Study, task: Task) -> Report:
    study = keep_task_report(study, task)
    return study.grounded_findings or study.findings or ""


def _example(study: Study, task: Task, report: Report, preset: Preset, drop: Sequence[Input]) -> Example:
    """Make the prompt of a study with a report as its target.

    Raises:
        InputError: the report cannot be written in the model's format.
    """
    name = "findings" if task == "findings" else "grounded_findings"
    shown = without_references(drop_inputs(study, drop)).model_copy(update={name: report})
    with warnings.catch_warnings(action="ignore", category=UnusedInputWarning):
        example = make_example(shown, task, preset=preset)
    if not (example.target or "").strip():
        raise InputError("expected a report with text, found none")
    return example
