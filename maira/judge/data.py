"""Training data of judges: pairs of reports that teachers label, split in training and held-out data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from maira.judge.pairing import PAIRINGS, SENTENCE_PAIRINGS, Pairing, is_held_out, make_pairs
from maira.judge.samples import Labeled, Split, TrainingExample
from maira.judge.scores import make_rating_examples, make_score_examples
from maira.judge.verdicts import balance, held_out_judgments, make_entailment_examples
from maira.train.config.run_config import JudgeTask
from radfact.errors import ErrorCode, InputError
from radfact.io.csv_tables import write_csv
from radfact.io.jsonl import write_json, write_jsonl
from radfact.io.outputs import replace_files
from radfact.judges import load_splitter
from radfact.judges.llm_judge import judge_prompt
from radfact.judges.options import JudgeOptions
from radfact.llm import ChatClient, Message
from radfact.meta.datasets.layouts import Layout, read_ratings
from radfact.meta.datasets.ratings import Better
from radfact.metrics.llm.green import compute_counts, count_scores
from radfact.metrics.llm.responses.assessment import parse_assessment
from radfact.records import narrative

INJECTED = "injected"
"""Teacher whose labels are the errors that rules have injected."""
_PARAMETERS = {"temperature": 0, "max_tokens": 2048}
_RATE_EVAL_TRAIN = "rate_train.csv"


@dataclass(frozen=True, slots=True)
class JudgeDataSummary:
    """Number of samples by split, why prompts have no answer by name, and the file of the held-out data."""

    samples: Mapping[Split, int]
    failures: Mapping[str, str]
    held_out: Path


def make_judge_data(
    reports: Mapping[str, str],
    task: JudgeTask,
    teachers: Sequence[JudgeOptions],
    out: Path,
    *,
    cache: Path | None = None,
    pairings: Sequence[Pairing] = (),
    drafts: Mapping[str, str] | None = None,
    few_shots: Path | None = None,
    balanced: bool = False,
    held_out: float = 0.1,
    validation: float = 0.0,
    seed: int = 42,
    count: int | None = None,
) -> JudgeDataSummary:
    """Pair reports, let teachers label them, and write `samples.jsonl`, the held-out data and `about.json`."""
    by_name = {str(teacher.judge): teacher for teacher in teachers}
    names = list(by_name)
    _check_options(task, teachers, few_shots, balanced)
    pairs = make_pairs(reports, pairings or _usual_pairings(task, names, drafts), drafts=drafts, seed=seed, count=count)
    if names == [INJECTED] and all(paired.injected is None for paired in pairs):
        message = "no pair has injected errors; the pairing 'permuted' makes such pairs"
        raise InputError(message, code=ErrorCode.EMPTY_INPUT, field="pairings")
    about: dict[str, Any] = {"teachers": names, "reports": len(reports)}
    if task == "entailment":
        judges = {name: None if name == INJECTED else teacher.load(cache) for name, teacher in by_name.items()}
        labeled = make_entailment_examples(pairs, judge_prompt(few_shots), load_splitter("offline"), judges)
        about |= {"few_shots": str(few_shots or "default"), "balanced": balanced}
    else:
        with ExitStack() as stack:
            clients: dict[str, ChatClient | None] = dict.fromkeys(names)
            for name, teacher in by_name.items():
                if name != INJECTED:
                    clients[name] = stack.enter_context(closing(teacher.load_client(_PARAMETERS, cache)))
            labeled = make_score_examples(pairs, task, clients)
    return _write(labeled, task, about, out, held_out, validation, seed, balanced=balanced)


def make_rated_data(
    path: Path,
    layout: Layout,
    out: Path,
    *,
    scale: tuple[float, float] | None = None,
    better: Better | None = None,
    target: str | None = None,
    held_out: float = 0.1,
    validation: float = 0.0,
    seed: int = 42,
) -> JudgeDataSummary:
    """Make the data of a VERT scorer from experts' ratings; of RaTE-Eval, its training set (VERT, section 4.1.4)."""
    file = path / _RATE_EVAL_TRAIN if layout == "rate-eval" and path.is_dir() else path
    ratings = read_ratings(file, layout, better=better, target=target)
    labeled, limits = make_rating_examples(ratings, layout, scale, file)
    about = {"ratings": layout, "target": ratings.target, "scale": limits}
    return _write(labeled, "vert", about, out, held_out, validation, seed)


def _check_options(task: JudgeTask, teachers: Sequence[JudgeOptions], few_shots: Path | None, balanced: bool) -> None:
    names = [str(teacher.judge) for teacher in teachers]
    if not names or len(set(names)) < len(names):
        message = f"expected different teachers, found {', '.join(names) or 'none'}"
        raise InputError(message, code=ErrorCode.INVALID_OPTION, field="teacher")
    injected = [teacher for teacher in teachers if teacher.judge == INJECTED]
    if any(teacher.base_url or teacher.judge_args or teacher.concurrency for teacher in injected):
        message = f"options of a model belong to the last teacher, which is {INJECTED}"
        raise InputError(message, code=ErrorCode.CONFLICTING_OPTIONS, field="teacher")
    entailment_only = {
        "few_shots": (few_shots is not None, "worked examples are shown to entailment judges; leave this out for"),
        "balanced": (balanced, "verdicts are balanced, not scores; leave this out for"),
        "teacher": ("offline" in names, f"use {INJECTED} or PROVIDER:MODEL; the offline judge gives no answers for"),
    }
    for field, (is_set, reason) in entailment_only.items():
        if is_set and task != "entailment":
            raise InputError(f"{reason} {task}", field=field)


def _usual_pairings(task: JudgeTask, names: Sequence[str], drafts: Mapping[str, str] | None) -> list[Pairing]:
    if names == [INJECTED]:
        return ["permuted"]
    impossible = {*SENTENCE_PAIRINGS, "drafted" if not drafts else None, "reworded" if task != "entailment" else None}
    return [pairing for pairing in PAIRINGS if pairing not in impossible]


def _write(
    labeled: Labeled,
    task: JudgeTask,
    about: Mapping[str, Any],
    out: Path,
    held_out: float,
    validation: float,
    seed: int,
    *,
    balanced: bool = False,
) -> JudgeDataSummary:
    """Split and write the examples; other splits exclude prompts that also occur in training: they test nothing."""
    examples, failures = labeled
    if not examples:
        reason = next(iter(failures.values()), "the pairs give no prompt")
        raise InputError(f"no training examples: {reason}", code=ErrorCode.EMPTY_INPUT)
    splits: dict[Split, list[TrainingExample]] = {"train": [], "validation": [], "heldout": []}
    limits: dict[Split, float] = {"heldout": held_out, "validation": held_out + validation}
    for example in examples:
        matches = (name for name, limit in limits.items() if is_held_out(example.paired.source_id, limit, seed))
        splits[next(matches, "train")].append(example)
    prompts = set[Message]()
    for split, drawn in splits.items():
        splits[split] = [example for example in drawn if example.messages[-1] not in prompts]
        prompts |= {example.messages[-1] for example in drawn}
    if balanced:
        # Copies may fill the held-out split, from which nothing is learned.
        splits = {split: balance(drawn, seed, few_copies=split == "train") for split, drawn in splits.items()}
        if not splits["train"]:
            expected = "expected examples that are not entailed, and entailed ones that are not copies, found none"
            hint = f"the pairing 'reworded' makes some, which a teacher after {INJECTED} has to label"
            raise InputError(f"{expected}; {hint}", code=ErrorCode.EMPTY_INPUT, field="balanced")
    samples = [example.to_sample(task, split) for split, drawn in splits.items() for example in drawn]
    sizes: Counter[Split] = Counter(sample.split for sample in samples)
    examples = [example for drawn in splits.values() for example in drawn]
    pairings = {example.paired.pair.sample_id: example.paired.pairing for example in examples}
    counts = {
        "pairs": Counter(pairings.values()),
        "by": Counter(example.teacher for example in examples),
        "answers": dict(Counter(_kind(example) for example in examples).most_common()),
        "samples": sizes,
        "failures": len(failures),
    }
    shares = {"held_out": held_out, "validation": validation}
    with replace_files(out) as new:
        write_jsonl(new / "samples.jsonl", (sample.model_dump() for sample in samples))
        name = _write_held_out(splits["heldout"], task, new)
        write_json(new / "about.json", {"task": task, **about, **counts, **shares, "seed": seed})
    return JudgeDataSummary(sizes, failures, out / name)


def _kind(example: TrainingExample) -> str:
    return f"{example.label:.1f}" if isinstance(example.label, float) else example.label.label


def _write_held_out(examples: Sequence[TrainingExample], task: JudgeTask, out: Path) -> str:
    if task == "entailment":
        write_json(out / "heldout.json", held_out_judgments(examples))
        return "heldout.json"
    columns, rows = ["id", "reference", "candidate", "expert"], list[list[Any]]()
    for example in examples:
        pair = example.paired.pair
        rows.append([pair.sample_id, narrative(pair.reference), narrative(pair.candidate), example.label])
        if task == "green":
            rows[-1] += [*compute_counts("green", parse_assessment(example.answer)).values(), example.answer]
    if task == "green":
        columns += [*count_scores("green"), "answer"]
    write_csv(out / "heldout.csv", columns, rows)
    return "heldout.csv"
