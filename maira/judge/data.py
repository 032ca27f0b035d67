"""Training data of judges: pairs of reports, a teacher's answers, and what is held out."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from maira.judge.pairing import PAIRINGS, Paired, Pairing, is_held_out, make_pairs
from maira.judge.samples import ChatSample, Split, write_samples
from maira.judge.teachers import Lesson, Taught, check_pairs, held_out_judgements, teach_entailment, teach_scores
from maira.train.items import JudgeTask
from radfact.entailment import load_judge
from radfact.entailment.llm import judge_prompt
from radfact.errors import InputError
from radfact.jsonl import open_atomic, write_json
from radfact.report import narrative
from radfact.sentences import load_splitter

INJECTED = "injected"
"""The teacher that is the errors themselves, put in by rules."""


@dataclass(frozen=True, slots=True)
class Teacher:
    """Who says what is right.

    Attributes:
        name: a judge's as in `radfact.entailment.load_judge`, or `injected`.
        base_url, arguments, concurrency: of a model.
        cache: folder of a model's answers.
    """

    name: str
    base_url: str | None = None
    arguments: Mapping[str, Any] | None = None
    concurrency: int | None = None
    cache: Path | None = None


@dataclass(frozen=True, slots=True)
class Written:
    """What was written: samples by split, why some questions have no answer, and the file of what is held out."""

    samples: Mapping[Split, int]
    failures: Mapping[str, str]
    held_out: Path


def make_judge_data(
    reports: Mapping[str, str],
    task: JudgeTask,
    teacher: Teacher,
    out: Path,
    *,
    pairings: Sequence[Pairing] | None = None,
    drafts: Mapping[str, str] | None = None,
    few_shots: Path | None = None,
    held_out: float = 0.1,
    count: int | None = None,
    seed: int = 42,
) -> Written:
    """Pair reports, have a teacher answer, and write `samples.jsonl`, what is held out, and `about.json`.

    What is held out is a share of the references with all their pairs: for entailment `heldout.json`, which
    `radfact judge-check` reads, for scores `heldout.csv`, which `radfact meta agreement` reads.

    Args:
        reports: references by name.
        task: what the judge will be asked.
        teacher: who says what is right.
        out: folder.
        pairings: kinds of pairs; None for all that there is something for.
        drafts: a model's candidates by the reference's name.
        few_shots: worked examples that an entailment judge will be shown; None for the default ones, `none` for none.
        held_out: share of the references.
        count: most pairs.
        seed: of all that is drawn.

    Raises:
        InputError: the teacher does not fit the task, or there is nothing to pair.
        RunFailed: the teacher cannot be reached, or nothing is left to train on.
    """
    by_errors = teacher.name == INJECTED
    usual: list[Pairing] = ["permuted"] if by_errors else [one for one in PAIRINGS if one != "drafted" or drafts]
    pairs = make_pairs(reports, pairings or usual, drafts=drafts, seed=seed, count=count)
    check_pairs(pairs, by_errors)
    lesson = _teach(pairs, task, teacher, few_shots)
    if not lesson.taught:
        why = next(iter(lesson.failures.values()), "no question follows from the pairs")
        raise InputError(f"the teacher has answered nothing: {why}", field="teacher")
    samples = [_sample(one, task, teacher, is_held_out(one.paired.source_id, held_out, seed)) for one in lesson.taught]
    write_samples(out / "samples.jsonl", samples)
    aside = [one for one, sample in zip(lesson.taught, samples, strict=True) if sample.split == "heldout"]
    path = _write_held_out(aside, task, out)
    splits: Counter[Split] = Counter(sample.split for sample in samples)
    about = {
        "task": task,
        "teacher": teacher.name,
        "reports": len(reports),
        "pairs": dict(Counter(one.pairing for one in pairs)),
        "samples": dict(splits),
        "failures": len(lesson.failures),
        "few_shots": None if task != "entailment" else str(few_shots or "default"),
        "seed": seed,
        "held_out": held_out,
    }
    write_json(out / "about.json", about)
    return Written(splits, lesson.failures, path)


def _teach(pairs: Sequence[Paired], task: JudgeTask, teacher: Teacher, few_shots: Path | None) -> Lesson:
    by_errors = teacher.name == INJECTED
    if task == "entailment":
        options: dict[str, Any] = {}
        if teacher.name not in (INJECTED, "offline") and not teacher.name.startswith("python:"):
            options = {"base_url": teacher.base_url, "concurrency": teacher.concurrency, "cache": teacher.cache}
        judge = None if by_errors else load_judge(teacher.name, judge_args=teacher.arguments, **options)
        return teach_entailment(pairs, judge_prompt(few_shots), load_splitter("offline"), judge)
    if few_shots is not None:
        raise InputError(
            f"worked examples are shown to entailment judges; leave this out for {task}", field="few_shots"
        )
    if by_errors:
        return teach_scores(pairs, task, None)
    if teacher.name == "offline":
        raise InputError(
            f"the offline judge gives no {task} answers; use {INJECTED} or PROVIDER:MODEL", field="teacher"
        )
    from radfact.llm import connect, split_model_args

    client = connect(
        teacher.name,
        base_url=teacher.base_url,
        parameters={"temperature": 0, "max_tokens": 2048, **split_model_args(teacher.arguments)},
        concurrency=teacher.concurrency,
        cache=teacher.cache,
    )
    try:
        return teach_scores(pairs, task, client)
    finally:
        client.close()


def _sample(one: Taught, task: JudgeTask, teacher: Teacher, is_aside: bool) -> ChatSample:
    source = {"teacher": teacher.name, "pairing": one.paired.pairing, "reference": one.paired.source_id}
    if one.paired.injected is not None:
        source["errors"] = ",".join(change.category for change in one.paired.injected.changes)
    return ChatSample(
        sample_id=one.name,
        task=task,
        messages=one.messages,
        answer=one.answer,
        split="heldout" if is_aside else "train",
        source=source,
    )


def _write_held_out(taught: Sequence[Taught], task: JudgeTask, out: Path) -> Path:
    if task == "entailment":
        path = out / "heldout.json"
        write_json(path, held_out_judgements(taught))
        return path
    path = out / "heldout.csv"
    with open_atomic(path) as handle:
        table = csv.writer(handle, lineterminator="\n")
        table.writerow(["id", "reference", "candidate", "expert"])
        for one in taught:
            pair = one.paired.pair
            table.writerow([pair.sample_id, narrative(pair.reference), narrative(pair.candidate), one.score])
    return path
