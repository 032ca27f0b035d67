"""Training data of judges: what teachers say of pairs of reports, and what is held out."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from maira.judge.experts import find_scale, make_rating_examples, training_file
from maira.judge.pairing import PAIRINGS, Pairing, ReportPair, is_held_out, make_pairs
from maira.judge.samples import ChatSample, Split, write_samples
from maira.judge.scores import ScoreTask, make_score_examples
from maira.judge.training_examples import ExampleSet, TrainingExample
from maira.judge.verdicts import balance, held_out_judgments, make_entailment_examples
from maira.train.data.packing import JudgeTask
from radfact.errors import InputError
from radfact.io.jsonl import open_atomic, write_json
from radfact.judges import load_judge, load_splitter
from radfact.judges.llm_judge import judge_prompt
from radfact.judges.protocol import Judge
from radfact.llm import ChatClient, load_chat_client, parse_model_args
from radfact.meta.datasets.layouts import Layout, read_ratings
from radfact.meta.datasets.ratings import Better
from radfact.records import narrative

INJECTED = "injected"
"""The teacher that is the errors themselves, put in by rules."""
_OFFLINE = "offline"


@dataclass(frozen=True, slots=True)
class Teacher:
    """Who says what is right.

    Attributes:
        name: a judge's as in `radfact.judges.load_judge`, or `injected`.
        base_url, arguments, concurrency: of a model.
        cache: folder of a model's answers.
    """

    name: str
    base_url: str | None = None
    arguments: Mapping[str, Any] | None = None
    concurrency: int | None = None
    cache: Path | None = None


@dataclass(frozen=True, slots=True)
class HoldOut:
    """What is held out: a share of the references with all their pairs, drawn by a seed.

    A question about them that is asked in training too, of reports that are much alike, checks nothing and is left out.
    """

    share: float = 0.1
    seed: int = 42

    def __contains__(self, one: TrainingExample) -> bool:
        """Whether a question is held out."""
        return is_held_out(one.paired.source_id, self.share, self.seed)


@dataclass(frozen=True, slots=True)
class JudgeDataSummary:
    """What was written: samples by split, why some questions have no answer, and the file of what is held out.

    `held_out` has nothing in it where there are no samples of that split.
    """

    samples: Mapping[Split, int]
    failures: Mapping[str, str]
    held_out: Path


def make_judge_data(
    reports: Mapping[str, str],
    task: JudgeTask,
    teachers: Sequence[Teacher],
    out: Path,
    *,
    pairings: Sequence[Pairing] | None = None,
    drafts: Mapping[str, str] | None = None,
    few_shots: Path | None = None,
    balanced: bool = False,
    aside: HoldOut = HoldOut(),
    count: int | None = None,
) -> JudgeDataSummary:
    """Pair reports, have teachers answer, and write `samples.jsonl`, what is held out, and `about.json`.

    What is held out is for entailment `heldout.json`, which `radfact judge-check` reads, for scores `heldout.csv`,
    which `radfact meta agreement` reads.

    Args:
        reports: references by name.
        task: what the judge will be asked.
        teachers: who says what is right, each of what those before it have no answer to.
        out: folder.
        pairings: kinds of pairs; None for all that there is something for.
        drafts: a model's candidates by the reference's name.
        few_shots: worked examples that an entailment judge will be shown; None for the default ones, `none` for none.
        balanced: draw as many entailed questions as others, on both sides, few of those to train on copies of a
            sentence (`verdicts.balance`).
        aside: what is held out; its seed is that of all that is drawn.
        count: most pairs.

    Raises:
        InputError: a teacher does not fit the task, or there is nothing to pair, or to learn.
        RunError: a teacher cannot be reached.
    """
    _check_options(task, teachers, few_shots, balanced)
    names = [one.name for one in teachers]
    chosen = pairings or _usual_pairings(task, names, drafts)
    pairs = make_pairs(reports, chosen, drafts=drafts, seed=aside.seed, count=count)
    if names == [INJECTED] and all(one.injected is None for one in pairs):
        raise InputError("no pair has errors that were put in: the pairing 'permuted' makes such", field="pairings")
    if task == "entailment":
        lesson = _teach_entailment(pairs, teachers, few_shots)
    else:
        lesson = _teach_scores(pairs, task, teachers)
    sides = _part(lesson, aside)
    if balanced:
        sides = _balanced(sides, aside.seed)
    shown = {"few_shots": str(few_shots or "default"), "balanced": balanced} if task == "entailment" else {}
    return _write(sides, lesson.failures, task, out, aside, {"teachers": names, "reports": len(reports), **shown})


def make_rated_data(
    path: Path,
    layout: Layout,
    out: Path,
    *,
    scale: tuple[float, float] | None = None,
    better: Better | None = None,
    target: str | None = None,
    aside: HoldOut = HoldOut(),
) -> JudgeDataSummary:
    """The data of a VERT scorer from experts' ratings, written as by `make_judge_data` (paper 003, section 4.1.4).

    Args:
        path, layout, better, target: as in `radfact.meta.datasets.layouts.read_ratings`; of a folder with RaTE-Eval its training
            set.
        out: folder.
        scale: the least and the greatest rating; None takes that of RaTE-Eval, 0 to 5.
        aside: what is held out.

    Raises:
        InputError: the ratings cannot be read, or lie outside the scale.
    """
    file = training_file(path, layout)
    ratings = read_ratings(file, layout, better=better, target=target)
    limits = find_scale(layout, scale)
    lesson = make_rating_examples(ratings, limits, file)
    about = {"ratings": layout, "target": ratings.target, "scale": limits}
    return _write(_part(lesson, aside), lesson.failures, "vert", out, aside, about)


def _check_options(task: JudgeTask, teachers: Sequence[Teacher], few_shots: Path | None, balanced: bool) -> None:
    names = [one.name for one in teachers]
    if not names or len(set(names)) < len(names):
        raise InputError(f"expected teachers, each once, found {', '.join(names) or 'none'}", field="teacher")
    if any(one.name == INJECTED and (one.base_url or one.arguments or one.concurrency) for one in teachers):
        raise InputError(f"what goes with a model stands by the last teacher, which is {INJECTED}", field="teacher")
    if task == "entailment":
        return
    if few_shots is not None:
        raise InputError(
            f"worked examples are shown to entailment judges; leave this out for {task}", field="few_shots"
        )
    if balanced:
        raise InputError(f"verdicts are balanced, not scores; leave this out for {task}", field="balanced")
    if _OFFLINE in names:
        raise InputError(
            f"the offline judge gives no {task} answers; use {INJECTED} or PROVIDER:MODEL", field="teacher"
        )


def _usual_pairings(task: JudgeTask, names: Sequence[str], drafts: Mapping[str, str] | None) -> list[Pairing]:
    if names == [INJECTED]:
        return ["permuted"]
    skipped = {"drafted" if not drafts else None, "reworded" if task != "entailment" else None}
    return [one for one in PAIRINGS if one not in skipped]


def _teach_entailment(pairs: Sequence[ReportPair], teachers: Sequence[Teacher], few_shots: Path | None) -> ExampleSet:
    judges: dict[str, Judge | None] = {}
    for one in teachers:
        judges[one.name] = None
        if one.name != INJECTED:
            judges[one.name] = load_judge(
                one.name,
                base_url=one.base_url,
                judge_args=one.arguments,
                concurrency=one.concurrency,
                cache=one.cache,
            )
    return make_entailment_examples(pairs, judge_prompt(few_shots), load_splitter("offline"), judges)


def _teach_scores(pairs: Sequence[ReportPair], task: ScoreTask, teachers: Sequence[Teacher]) -> ExampleSet:
    with ExitStack() as stack:
        clients: dict[str, ChatClient | None] = {}
        for one in teachers:
            if one.name == INJECTED:
                clients[one.name] = None
                continue
            client = load_chat_client(
                one.name,
                base_url=one.base_url,
                parameters={"temperature": 0, "max_tokens": 2048, **parse_model_args(one.arguments)},
                concurrency=one.concurrency,
                cache=one.cache,
            )
            stack.callback(client.close)
            clients[one.name] = client
        return make_score_examples(pairs, task, clients)


def _part(lesson: ExampleSet, aside: HoldOut) -> dict[Split, list[TrainingExample]]:
    """Both sides; of what is held out without the questions that are asked in training too, of reports much alike."""
    if not lesson.taught:
        why = next(iter(lesson.failures.values()), "no question follows from the pairs")
        raise InputError(f"there is nothing to learn: {why}")
    train = [one for one in lesson.taught if one not in aside]
    asked = {one.messages[-1].content for one in train}
    held = [one for one in lesson.taught if one in aside and one.messages[-1].content not in asked]
    return {"train": train, "heldout": held}


def _balanced(sides: Mapping[Split, Sequence[TrainingExample]], seed: int) -> dict[Split, list[TrainingExample]]:
    """Both sides half entailed; a judge that is checked learns nothing from copies, so that they may fill that side."""
    drawn: dict[Split, list[TrainingExample]] = {
        split: balance(taught, seed, few_copies=split == "train") for split, taught in sides.items()
    }
    if not drawn["train"]:
        raise InputError(
            "leaves nothing to train on: it wants questions that are not entailed, and entailed ones that are no copy "
            f"of a sentence: the pairing 'reworded' makes some, and a teacher behind {INJECTED} has to answer them",
            field="balanced",
        )
    return drawn


def _write(
    sides: Mapping[Split, Sequence[TrainingExample]],
    failures: Mapping[str, str],
    task: JudgeTask,
    out: Path,
    aside: HoldOut,
    about: Mapping[str, Any],
) -> JudgeDataSummary:
    samples = [_sample(one, task, split) for split, taught in sides.items() for one in taught]
    write_samples(out / "samples.jsonl", samples)
    path = _write_held_out(sides["heldout"], task, out)
    splits: Counter[Split] = Counter(sample.split for sample in samples)
    taught = [one for side in sides.values() for one in side]
    counts = {
        "pairs": dict(Counter({one.paired.pair.sample_id: one.paired.pairing for one in taught}.values())),
        "by": dict(Counter(one.teacher for one in taught)),
        "answers": dict(Counter(_kind(one) for one in taught).most_common()),
        "samples": dict(splits),
        "failures": len(failures),
    }
    write_json(out / "about.json", {"task": task, **about, **counts, "held_out": aside.share, "seed": aside.seed})
    return JudgeDataSummary(splits, failures, path)


def _kind(one: TrainingExample) -> str:
    return one.labeled.label if one.labeled is not None else f"{one.score:.1f}"


def _sample(one: TrainingExample, task: JudgeTask, split: Split) -> ChatSample:
    source = {"teacher": one.teacher, "pairing": one.paired.pairing, "reference": one.paired.source_id}
    if one.paired.injected is not None:
        source["errors"] = ",".join(change.category for change in one.paired.injected.changes)
    return ChatSample(
        sample_id=one.name,
        task=task,
        messages=one.messages,
        answer=one.answer,
        split=split,
        source=source,
    )


def _write_held_out(taught: Sequence[TrainingExample], task: JudgeTask, out: Path) -> Path:
    if task == "entailment":
        path = out / "heldout.json"
        write_json(path, held_out_judgments(taught))
        return path
    path = out / "heldout.csv"
    with open_atomic(path) as handle:
        table = csv.writer(handle, lineterminator="\n")
        table.writerow(["id", "reference", "candidate", "expert"])
        for one in taught:
            pair = one.paired.pair
            table.writerow([pair.sample_id, narrative(pair.reference), narrative(pair.candidate), one.score])
    return path
