"""Greedy generation with transformers, in batches of samples of like length."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import LogitsProcessorList

from data.manifest import Failure
from data.study import Study
from maira.examples import Example, make_example
from maira.generate.constraints import GrammarProcessor, NarrativeGuard
from maira.generate.drafts import DraftFolder, fingerprint, make_draft, settings_of
from maira.grammar import Grammar, Vocabulary
from maira.model import MairaForConditionalGeneration
from maira.processor import MairaProcessor
from maira.prompts import NEW_TOKENS, Preset, Task
from radfact.errors import InputError, RunFailed


@dataclass(frozen=True)
class Answer:
    """What the model wrote.

    Attributes:
        text: without control tokens.
        cut_off: it stopped at the limit of tokens and not at an end of the model's own.
    """

    text: str
    cut_off: bool


class Engine:
    """A checkpoint ready to generate.

    Args:
        checkpoint: folder with the model and its processor.
        device: where to run; None takes the accelerator if there is one.
        free: let the model write what it likes: no grammar, no repetition guard (the released behaviour).

    Raises:
        InputError: the folder is no checkpoint of ours, or its tokenizer lacks the format's tokens.
    """

    def __init__(self, checkpoint: Path, device: str | None = None, *, free: bool = False) -> None:
        self.name = f"{checkpoint.resolve().name}@{fingerprint(checkpoint)}"
        self.device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        dtype = torch.bfloat16 if self.device.type == "cuda" else torch.float32
        self.model: Any = MairaForConditionalGeneration.from_pretrained(checkpoint, dtype=dtype).to(self.device).eval()
        self.processor: Any = MairaProcessor.from_pretrained(checkpoint)
        self.free = free
        ends = self.model.generation_config.eos_token_id or []
        self.vocabulary = Vocabulary.of(self.processor.tokenizer, ends if isinstance(ends, list) else [ends])
        self.grammar = Grammar(self.vocabulary)

    @torch.inference_mode()
    def generate(self, examples: Sequence[Example], max_new_tokens: int) -> list[Answer]:
        """The model's answer to each example; all are of one task.

        Raises:
            InputError: an image cannot be read.
        """
        inputs = self.processor([e.images for e in examples], [e.prompt for e in examples]).to(self.device)
        tokenizer = self.processor.tokenizer
        grammar, constraints = None, []
        if not self.free and examples[0].task != "findings":
            constraints = [grammar := GrammarProcessor(self.grammar, max_new_tokens)]
        elif not self.free:
            constraints = [NarrativeGuard(self.vocabulary, tokenizer)]
        ids = self.model.generate(
            **inputs, max_new_tokens=max_new_tokens, do_sample=False, logits_processor=LogitsProcessorList(constraints)
        )
        ids = ids[:, inputs["input_ids"].shape[1] :]
        cut_off = [self.vocabulary.ends.isdisjoint(row) for row in ids.tolist()]
        if grammar is not None:
            cut_off = [cut or limited for cut, limited in zip(cut_off, grammar.cut_off, strict=True)]
        texts = tokenizer.batch_decode(ids, skip_special_tokens=True)
        return [Answer(text.strip(), cut) for text, cut in zip(texts, cut_off, strict=True)]


def generate_drafts(
    studies: Sequence[Study],
    checkpoint: Path,
    out: Path,
    *,
    task: Task,
    preset: Preset = "release",
    batch_size: int = 8,
    max_new_tokens: int | None = None,
    free: bool = False,
    on_progress: Callable[[int, int], None] | None = None,
) -> tuple[int, list[Failure]]:
    """Draft a report for every study, going on where an earlier run of the same settings stopped.

    Args:
        studies: the test set.
        checkpoint: folder with the model.
        out: drafts file (JSON Lines) to write, in the order of `studies`.
        task: "findings" or "grounded".
        preset: wording of the prompt.
        batch_size: studies at a time.
        max_new_tokens: most tokens of an answer; None takes the task's (specification, "Grounded output").
        free: neither the grammar nor the repetition guard, which is the released behaviour.
        on_progress: called with (studies done, studies in all).

    Returns:
        How many drafts there are, and what was left out and why.

    Raises:
        InputError: the checkpoint or `out` cannot be used.
        RunFailed: not one study could be drafted.
    """
    limit = max_new_tokens or NEW_TOKENS[task]
    settings = settings_of(checkpoint, task=task, preset=preset, max_new_tokens=limit, free=free)
    folder = DraftFolder(out, settings)
    examples, failures = _examples([s for s in studies if s.sample_id not in folder.drafts], task, preset)
    done = len(folder.drafts)
    report = on_progress or _unwatched
    report(done, len(studies))
    if examples:
        engine = Engine(checkpoint, free=free)
        for batch in _batches(examples, batch_size):
            drafts, failed = _draft_batch(engine, batch, limit)
            folder.add(drafts)
            failures += failed
            done += len(batch)
            report(done, len(studies))
    if not folder.drafts:
        reason = failures[0].reason if failures else "there are no studies"
        raise RunFailed(f"no study could be drafted; the first: {reason}")
    folder.finish([study.sample_id for study in studies], failures)
    return len(folder.drafts), failures


def _unwatched(*_: int) -> None:
    """Progress that nobody looks at."""


def _examples(studies: Sequence[Study], task: Task, preset: Preset) -> tuple[list[Example], list[Failure]]:
    examples, failures = [], []
    for study in studies:
        try:
            example = make_example(study, task, preset=preset)
            if missing := next((image for image in example.images if not image.is_file()), None):
                raise InputError("no such file", file=missing)
            examples.append(example)
        except InputError as error:
            failures.append(Failure(sample_id=study.sample_id, stage="read", reason=str(error)))
    return examples, failures


def _batches(examples: Sequence[Example], size: int) -> Iterator[list[Example]]:
    """Samples of like length together, the longest first, so that a run that does not fit in memory fails at once."""
    ordered = sorted(examples, key=lambda e: (len(e.images), len(e.prompt)), reverse=True)
    for start in range(0, len(ordered), size):
        yield list(ordered[start : start + size])


def _draft_batch(engine: Engine, batch: list[Example], limit: int) -> tuple[list[dict[str, Any]], list[Failure]]:
    """Drafts of a batch; where one image cannot be read, the others are drafted one by one."""
    started = time.perf_counter()
    try:
        answers = engine.generate(batch, limit)
    except InputError as error:
        if len(batch) == 1:
            return [], [Failure(sample_id=batch[0].sample_id, stage="generate", reason=str(error))]
        parts = [_draft_batch(engine, [example], limit) for example in batch]
        return [d for drafts, _ in parts for d in drafts], [f for _, failed in parts for f in failed]
    share = (time.perf_counter() - started) / len(batch)
    drafts = [
        make_draft(example, answer.text, engine.name, share, cut_off=answer.cut_off, cut_loops=not engine.free)
        for example, answer in zip(batch, answers, strict=True)
    ]
    return drafts, []
