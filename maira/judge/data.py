"""Training data of judges: pairs of reports that teachers label, split in training and held-out data."""

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
from radfact.errors import ErrorCode, InputError
from radfact.io.jsonl import open_atomic, write_json
from radfact.io.outputs import replace_files
from radfact.judges import load_judge, load_splitter
from radfact.judges.llm_judge import judge_prompt
from radfact.judges.protocol import Judge
from radfact.llm import ChatClient, load_chat_client, parse_model_args
from radfact.meta.datasets.layouts import Layout, read_ratings
from radfact.meta.datasets.ratings import Better
from radfact.records import narrative

INJECTED = "injected"
"""Teacher whose labels are the errors that rules have injected."""
_OFFLINE = "offline"


@dataclass(frozen=True, slots=True)
class Teacher:
    """A source of labels.

    Attributes:
        name: of a judge as in `radfact.judges.load_judge`, or `injected`.
        base_url, arguments, concurrency, max_invalid: of a model.
        cache: folder of a model's cached responses.
    """

    name: str
    base_url: str | None = None
    arguments: Mapping[str, Any] | None = None
    concurrency: int | None = None
    cache: Path | None = None
    max_invalid: int | None = None


@dataclass(frozen=True, slots=True)
class HoldOut:
    """The share of references that are held out with all their pairs, and the seed of the draw.

    Held-out prompts that also occur in training, about similar reports, test nothing and are excluded.
    """

    share: float = 0.1
    seed: int = 42

    def __contains__(self, example: TrainingExample) -> bool:
        """Return whether an example is held out."""
        return is_held_out(example.paired.source_id, self.share, self.seed)


@dataclass(frozen=True, slots=True)
class JudgeDataSummary:
    """What was written.

    Attributes:
        samples: number of samples by split.
        failures: reasons why prompts have no answer, by name.
        held_out: file of the held-out data, empty if there is none.
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
    hold_out: HoldOut = HoldOut(),
    count: int | None = None,
) -> JudgeDataSummary:
    """Pair reports, let teachers label them, and write `samples.jsonl`, the held-out data and `about.json`.

    The held-out data is `heldout.json` for entailment, which `radfact judge-check` reads, and `heldout.csv` for
    scores, which `radfact meta agreement` reads.

    Args:
        reports: references by name.
        task: of the judge.
        teachers: sources of labels; each labels the items without a label so far.
        out: folder.
        pairings: kinds of pairs; None for all that are possible.
        drafts: a model's candidates by the reference's name.
        few_shots: worked examples that an entailment judge will be shown; None for the default ones, `none` for none.
        balanced: draw as many entailed examples as others in both splits, with few copies in training
            (`verdicts.balance`).
        hold_out: share to hold out; its seed is used for all random choices.
        count: maximum number of pairs.

    Raises:
        InputError: a teacher does not fit the task, or there is nothing to pair or to label.
        RunError: a teacher cannot be reached.
    """
    _check_options(task, teachers, few_shots, balanced)
    names = [teacher.name for teacher in teachers]
    chosen = pairings or _usual_pairings(task, names, drafts)
    pairs = make_pairs(reports, chosen, drafts=drafts, seed=hold_out.seed, count=count)
    if names == [INJECTED] and all(paired.injected is None for paired in pairs):
        raise InputError(
            "no pair has injected errors; the pairing 'permuted' makes such pairs",
            code=ErrorCode.EMPTY_INPUT,
            field="pairings",
        )
    if task == "entailment":
        example_set = _label_entailment(pairs, teachers, few_shots)
    else:
        example_set = _label_scores(pairs, task, teachers)
    splits = _split(example_set, hold_out)
    if balanced:
        splits = _balanced(splits, hold_out.seed)
    shown = {"few_shots": str(few_shots or "default"), "balanced": balanced} if task == "entailment" else {}
    return _write(
        splits, example_set.failures, task, out, hold_out, {"teachers": names, "reports": len(reports), **shown}
    )


def make_rated_data(
    path: Path,
    layout: Layout,
    out: Path,
    *,
    scale: tuple[float, float] | None = None,
    better: Better | None = None,
    target: str | None = None,
    hold_out: HoldOut = HoldOut(),
) -> JudgeDataSummary:
    """Make the data of a VERT scorer from experts' ratings, with the files of `make_judge_data`.

    Source: VERT, section 4.1.4.

    Args:
        path: file or folder of the ratings; of a folder with RaTE-Eval its training set is used.
        layout: of the ratings.
        out: folder to write.
        scale: the lowest and highest rating; None for those of RaTE-Eval, 0 to 5.
        better: whether lower or higher ratings are better; None for the layout's direction.
        target: see `radfact.meta.datasets.layouts.read_ratings`.
        hold_out: share to hold out.

    Raises:
        InputError: the ratings cannot be read, or are outside of the scale.
    """
    file = training_file(path, layout)
    ratings = read_ratings(file, layout, better=better, target=target)
    limits = find_scale(layout, scale)
    example_set = make_rating_examples(ratings, limits, file)
    about = {"ratings": layout, "target": ratings.target, "scale": limits}
    return _write(_split(example_set, hold_out), example_set.failures, "vert", out, hold_out, about)


def _check_options(task: JudgeTask, teachers: Sequence[Teacher], few_shots: Path | None, balanced: bool) -> None:
    names = [teacher.name for teacher in teachers]
    if not names or len(set(names)) < len(names):
        raise InputError(
            f"expected different teachers, found {', '.join(names) or 'none'}",
            code=ErrorCode.INVALID_OPTION,
            field="teacher",
        )
    if any(
        teacher.name == INJECTED and (teacher.base_url or teacher.arguments or teacher.concurrency)
        for teacher in teachers
    ):
        raise InputError(
            f"options of a model belong to the last teacher, which is {INJECTED}",
            code=ErrorCode.CONFLICTING_OPTIONS,
            field="teacher",
        )
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
    impossible = {"drafted" if not drafts else None, "reworded" if task != "entailment" else None}
    return [pairing for pairing in PAIRINGS if pairing not in impossible]


def _label_entailment(pairs: Sequence[ReportPair], teachers: Sequence[Teacher], few_shots: Path | None) -> ExampleSet:
    judges: dict[str, Judge | None] = {}
    for teacher in teachers:
        judges[teacher.name] = None
        if teacher.name != INJECTED:
            judges[teacher.name] = load_judge(
                teacher.name,
                base_url=teacher.base_url,
                judge_args=teacher.arguments,
                concurrency=teacher.concurrency,
                max_invalid=teacher.max_invalid,
                cache=teacher.cache,
            )
    return make_entailment_examples(pairs, judge_prompt(few_shots), load_splitter("offline"), judges)


def _label_scores(pairs: Sequence[ReportPair], task: ScoreTask, teachers: Sequence[Teacher]) -> ExampleSet:
    with ExitStack() as stack:
        clients: dict[str, ChatClient | None] = {}
        for teacher in teachers:
            if teacher.name == INJECTED:
                clients[teacher.name] = None
                continue
            client = load_chat_client(
                teacher.name,
                base_url=teacher.base_url,
                parameters={"temperature": 0, "max_tokens": 2048, **parse_model_args(teacher.arguments)},
                concurrency=teacher.concurrency,
                max_invalid=teacher.max_invalid,
                cache=teacher.cache,
            )
            stack.callback(client.close)
            clients[teacher.name] = client
        return make_score_examples(pairs, task, clients)


def _split(example_set: ExampleSet, hold_out: HoldOut) -> dict[Split, list[TrainingExample]]:
    """Return both splits; held-out prompts that also occur in training are excluded."""
    if not example_set.examples:
        reason = next(iter(example_set.failures.values()), "the pairs give no prompt")
        raise InputError(f"no training examples: {reason}", code=ErrorCode.EMPTY_INPUT)
    train = [example for example in example_set.examples if example not in hold_out]
    prompts = {example.messages[-1].content for example in train}
    held_out = [e for e in example_set.examples if e in hold_out and e.messages[-1].content not in prompts]
    return {"train": train, "heldout": held_out}


def _balanced(splits: Mapping[Split, Sequence[TrainingExample]], seed: int) -> dict[Split, list[TrainingExample]]:
    """Balance both splits; copies may fill the held-out one, from which nothing is learned."""
    drawn: dict[Split, list[TrainingExample]] = {
        split: balance(examples, seed, few_copies=split == "train") for split, examples in splits.items()
    }
    if not drawn["train"]:
        raise InputError(
            "expected examples that are not entailed, and entailed ones that are not copies, found none; the pairing "
            f"'reworded' makes some, which a teacher after {INJECTED} has to label",
            code=ErrorCode.EMPTY_INPUT,
            field="balanced",
        )
    return drawn


def _write(
    splits: Mapping[Split, Sequence[TrainingExample]],
    failures: Mapping[str, str],
    task: JudgeTask,
    out: Path,
    hold_out: HoldOut,
    about: Mapping[str, Any],
) -> JudgeDataSummary:
    samples = [_sample(example, task, split) for split, examples in splits.items() for example in examples]
    sizes: Counter[Split] = Counter(sample.split for sample in samples)
    examples = [example for split in splits.values() for example in split]
    counts = {
        "pairs": dict(
            Counter({example.paired.pair.sample_id: example.paired.pairing for example in examples}.values())
        ),
        "by": dict(Counter(example.teacher for example in examples)),
        "answers": dict(Counter(_kind(example) for example in examples).most_common()),
        "samples": dict(sizes),
        "failures": len(failures),
    }
    record = {"task": task, **about, **counts, "held_out": hold_out.share, "seed": hold_out.seed}
    with replace_files(out) as new:
        write_samples(new / "samples.jsonl", samples)
        held_out = _write_held_out(splits["heldout"], task, new)
        write_json(new / "about.json", record)
    return JudgeDataSummary(sizes, failures, out / held_out.name)


def _kind(example: TrainingExample) -> str:
    return example.labeled.label if example.labeled is not None else f"{example.score:.1f}"


def _sample(example: TrainingExample, task: JudgeTask, split: Split) -> ChatSample:
    source = {"teacher": example.teacher, "pairing": example.paired.pairing, "reference": example.paired.source_id}
    if example.paired.injected is not None:
        source["errors"] = ",".join(change.category for change in example.paired.injected.changes)
    return ChatSample(
        sample_id=example.name,
        task=task,
        messages=example.messages,
        answer=example.answer,
        split=split,
        source=source,
    )


def _write_held_out(examples: Sequence[TrainingExample], task: JudgeTask, out: Path) -> Path:
    if task == "entailment":
        path = out / "heldout.json"
        write_json(path, held_out_judgments(examples))
        return path
    path = out / "heldout.csv"
    with open_atomic(path) as handle:
        table = csv.writer(handle, lineterminator="\n")
        table.writerow(["id", "reference", "candidate", "expert"])
        for example in examples:
            pair = example.paired.pair
            table.writerow([pair.sample_id, narrative(pair.reference), narrative(pair.candidate), example.score])
    return path
