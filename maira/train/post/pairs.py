"""Make preference pairs from the drafts of each study by their rewards."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from maira.data.study import IMAGE_COLUMNS, Study
from maira.model.prompts import Task
from maira.model.task_examples import make_example
from maira.train.post.rewards import ReportReward
from radfact.errors import ErrorCode, InputError, list_some
from radfact.io.jsonl import read_jsonl
from radfact.io.pairs import read_drafts
from radfact.records import Report


class PreferencePairs(NamedTuple):
    """Lines of `preferences.jsonl`, studies without a pair by reason, and the number of chosen drafts by file."""

    rows: list[dict[str, Any]]
    skipped: Counter[str]
    chosen: Counter[Path]


_Draft = dict[str, Any]
"""A draft of a study: its `file`, `report`, and the `irregularities` of its form."""


def make_preferences(
    files: Sequence[Path], studies: Mapping[str, Study], reward: ReportReward, margin: float
) -> PreferencePairs:
    """Pair the drafts of each study with the highest and the lowest reward, which differ by at least the margin."""
    drafts: dict[str, list[_Draft]] = {}
    for file in files:
        for sample_id, draft in _read_file(file, studies).items():
            drafts.setdefault(sample_id, []).append(draft)
    pairs = PreferencePairs([], Counter(), Counter())
    groups: list[tuple[Study, Task, list[_Draft]]] = []
    for sample_id, study in studies.items():
        own = drafts.get(sample_id, [])
        tasks: set[Task] = {"findings" if isinstance(draft["report"], str) else "grounded" for draft in own}
        if len(own) < 2:
            pairs.skipped["fewer than two drafts"] += 1
        elif len(tasks) > 1:
            pairs.skipped["drafts of different tasks"] += 1
        elif not _reference(study, task := tasks.pop()):
            pairs.skipped["no reference report"] += 1
        else:
            groups.append((study, task, own))
    references = [_reference(study, task) for study, task, own in groups for _ in own]
    rewards = iter(reward([draft for *_, own in groups for draft in own], references))
    for study, task, own in groups:
        totals = [next(rewards).total for _ in own]
        scored = [(total, draft) for total, draft in zip(totals, own, strict=True) if total is not None]
        if len(scored) < 2:
            pairs.skipped["fewer than two scored drafts"] += 1
            continue
        # Among equal rewards, take the first and the last draft, so that `best` and `worst` differ.
        best, worst = max(scored, key=lambda item: item[0]), min(scored[::-1], key=lambda item: item[0])
        try:
            chosen, rejected = (_target(study, task, draft["report"]) for _, draft in (best, worst))
        except InputError:
            pairs.skipped["a draft that the model's format cannot represent"] += 1
            continue
        if chosen == rejected:
            pairs.skipped["identical reports"] += 1
        elif best[0] - worst[0] < margin or best[0] == worst[0]:
            pairs.skipped["reward difference below the margin"] += 1
        else:
            pairs.chosen[best[1]["file"]] += 1
            images = [str(path) for name in IMAGE_COLUMNS if (path := getattr(study, name)) is not None]
            reports = {"chosen": chosen, "rejected": rejected, "images": images}
            values = {"chosen_reward": best[0], "rejected_reward": worst[0]}
            pairs.rows.append({"sample_id": study.sample_id, "task": task, **reports, **values})
    return pairs


def _read_file(file: Path, studies: Mapping[str, Study]) -> dict[str, _Draft]:
    reports = read_drafts(file)
    if unknown := [sample_id for sample_id in reports if sample_id not in studies]:
        message = f"expected drafts of studies of the manifest, found {len(unknown)} others ({list_some(unknown)})"
        raise InputError(message, code=ErrorCode.MISMATCH, file=file, field="sample_id")
    return {
        sample_id: {"file": file, "report": reports[sample_id], "irregularities": row.get("irregularities") or ()}
        for _, row in read_jsonl(file)
        if (sample_id := str(row["sample_id"])) in reports
    }


def _reference(study: Study, task: Task) -> Report:
    return (study.findings if task == "findings" else study.grounded_findings) or ""


def _target(study: Study, task: Task, report: Report) -> str:
    """Return a report in the model's format; InputError if that is not possible."""
    name = "findings" if task == "findings" else "grounded_findings"
    # Only the frontal, whose crop has the boxes: other inputs of the prompt do not matter.
    shown = Study(sample_id=study.sample_id, frontal=study.frontal).model_copy(update={name: report})
    target = make_example(shown, task).target or ""
    if not target.strip():
        raise InputError("expected a report with text, found none")
    return target
