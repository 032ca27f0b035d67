"""Samples as tokens, and the packing of samples into rows of a bounded number of tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from maira.model.prompts import NEW_TOKENS, Task
from maira.runtime.processes import copy_to_device
from maira.train.config.run_config import ALL_TASKS, TASKS, GrpoConfig, JudgeTask
from radfact.errors import InputError

_COLUMNS = ("source", "number", "task", "phrase", "images", "prompt", "answer")
SAMPLE_LENGTHS = np.dtype([*zip(_COLUMNS, ("<u2", "<u4", "u1", "<u2", "u1", "<u4", "<u4"), strict=True)])
"""One training sample: the index of its source in the configuration, of its study in the source, of its task in
`ALL_TASKS` and of its phrase in the study (0 for other tasks); its number of images, and the tokens of its prompt
(image tokens included) and answer."""


class StepTotals(NamedTuple):
    """Divisors of the losses of one optimizer step, over all processes."""

    answer_tokens: int
    samples: int


@dataclass(frozen=True)
class PolicyTargets:
    """What the policy gradient needs of sampled tokens, those of one response or of all responses of a row."""

    advantages: Tensor  # (answer tokens,) float32, of the response that each token belongs to
    log_probs: Tensor  # (answer tokens,) float32, when a token was sampled; NaN where that is by the current weights
    engine_log_probs: Tensor  # (answer tokens,) float32, in the inference engine; NaN if there is none or if unknown
    choices: Tensor  # (answer tokens,), row of `Grammar.allowed` of the tokens that were allowed
    banned: Tensor  # (n, 2), indices of answer tokens with token ids that are forbidden in addition to `choices`

    @classmethod
    def cat(cls, parts: Sequence[PolicyTargets]) -> PolicyTargets:
        counts = np.cumsum([0, *(len(part.choices) for part in parts)])
        offsets = [torch.tensor([int(count), 0]) for count in counts[:-1]]
        shifted = [replace(part, banned=part.banned + offset) for part, offset in zip(parts, offsets, strict=True)]
        return cls(*(torch.cat(columns) for columns in zip(*(vars(part).values() for part in shifted), strict=True)))

    def to(self, device: torch.device) -> PolicyTargets:
        return PolicyTargets(*(copy_to_device(value, device) for value in vars(self).values()))


@dataclass(frozen=True)
class Preference:
    """The rejected answer of a preference pair."""

    rejected_ids: list[int]  # tokens of the prompt and the rejected answer
    # Of the chosen and the rejected answer under the reference model; None before they are computed.
    reference_log_probs: tuple[float, float] | None


@dataclass(frozen=True)
class EncodedSample:
    """A sample as model inputs."""

    sample_id: str
    task: Task | JudgeTask
    input_ids: list[int]  # tokens of prompt and answer, of a preference pair the chosen one
    prompt_tokens: int  # number of prompt tokens among them
    images: npt.NDArray[np.float32]  # (images, size, size), preprocessed, in the order of their placeholders
    coverage: npt.NDArray[np.float32] | None = None  # (patches, kinds), see `patch_coverage`
    policy: PolicyTargets | None = None  # of a sampled answer; None for an answer of the data
    preference: Preference | None = None

    @property
    def answers(self) -> list[EncodedSample]:
        """The sample and, for a preference pair, a copy with the rejected answer."""
        if self.preference is None:
            return [self]
        return [self, replace(self, input_ids=self.preference.rejected_ids)]


class SampleDataset(Protocol):
    """A map-style dataset: samples by their row in a table."""

    table: npt.NDArray[Any]  # (samples,) of `SAMPLE_LENGTHS`
    pad_id: int

    def sample_id(self, row: int) -> str:
        """Return the name of a sample."""

    def location(self, row: int) -> str:
        """Return where a sample is read from, for messages about a sample whose name cannot be read."""

    def blank(self) -> EncodedSample:
        """Return a sample without an answer, which fills a row whose samples cannot be read."""

    def encode(self, row: int) -> EncodedSample:
        """Return the tokens of a sample, and load its images."""


@dataclass(frozen=True)
class PackedBatch:
    """Samples concatenated in one row, the inputs of one forward pass, and the totals of its optimizer step."""

    input_ids: Tensor  # (1, tokens)
    position_ids: Tensor  # (1, tokens), from 0 in each sample
    # (samples + 1,) int32, first token of each sample, then the end of the last one. Tokens beyond it are padding,
    # which attention treats as one more sample.
    starts: Tensor
    used_tokens: int  # tokens without padding
    longest: int  # tokens of the longest sample (padding included as one)
    answers: Tensor  # (answer tokens,), positions whose next token belongs to an answer
    targets: Tensor  # (answer tokens,), that next token
    answer_samples: Tensor  # (answer tokens,), index of the sample that each token belongs to
    pixel_values: Tensor  # (images, 1, size, size); the model expands them to three equal channels
    frontal_rows: Tensor  # (samples,), index of each sample's current frontal image
    coverage: Tensor | None  # (samples, patches, kinds); None without the auxiliary loss
    sample_ids: tuple[str, ...]  # these and `tasks` without padding
    tasks: tuple[Task | JudgeTask, ...]
    totals: StepTotals
    policy: PolicyTargets | None = None  # of sampled answers; None for answers of the data
    # (samples,) float32, of each answer under the reference model, for rows of preference pairs, where chosen and
    # rejected answers alternate; None for other rows.
    reference_log_probs: Tensor | None = None

    def to(self, device: torch.device) -> PackedBatch:
        tensors = {name: value for name, value in vars(self).items() if isinstance(value, Tensor)}
        moved: dict[str, Any] = {name: copy_to_device(value, device) for name, value in tensors.items()}
        return replace(self, **moved, policy=None if self.policy is None else self.policy.to(device))


def prompt_table(table: npt.NDArray[Any], config: GrpoConfig, window: int) -> npt.NDArray[Any]:
    """Return a table of samples with the limits of the responses as lengths of the answers."""
    limits = np.array([config.max_new_tokens or NEW_TOKENS[task] for task in TASKS])
    limited = np.array(table)
    # A prompt that fills the window is refused as a sample that does.
    limited["answer"] = np.clip(window - table["prompt"].astype(np.int64), 1, limits[table["task"]])
    return limited


def check_lengths(
    table: npt.NDArray[Any], rows: npt.NDArray[np.int64], sample_id: Callable[[int], str], limit: int, field: str
) -> None:
    """Refuse samples of more tokens than a row (field `token_budget`) or the context window (`model`) has."""
    lengths = table["prompt"][rows].astype(np.int64) + table["answer"][rows]
    if (most := int(lengths.max(initial=0))) > limit:
        row = int(rows[lengths.argmax()])
        task = ALL_TASKS[table["task"][row]]
        place, option = "the context window", "max_position_embeddings"
        if field == "token_budget":
            place, option = "a row", field
        found = f"found {most} tokens in sample '{sample_id(row)}' (task {task})"
        message = f"expected samples of at most {limit} tokens, the length of {place}; {found}"
        raise InputError(f"{message}; increase {option}, or exclude the sample", field=field)


def pack(lengths: Sequence[int], budget: int, world_size: int = 1) -> list[list[int]]:
    """Distribute samples over k * world_size rows with loads as even as possible, for the smallest k found greedily."""
    # The longest sample goes first, into the emptiest row; if it does not fit, into the fullest row with space for it.
    # Rows are sorted by load, so that those that the processes run at the same time have about the same length.
    if max(lengths, default=0) > budget:
        raise InputError(f"a sample of {max(lengths)} tokens does not fit in {budget}", field="token_budget")
    order = sorted(range(len(lengths)), key=lambda i: (-lengths[i], i))
    rows = max(1, -(-sum(lengths) // (budget * world_size))) * world_size
    while True:
        if rows > len(lengths):
            filled = f"{rows} rows of up to {budget} tokens, {rows // world_size} for each of {world_size} processes"
            hint = f"use a multiple of {world_size} or a larger token_budget"
            raise InputError(f"{len(lengths)} samples do not fill {filled}; {hint}", field="global_batch")
        bins = _fill(order, lengths, budget, rows, 1) or _fill(order, lengths, budget, rows, -1)
        if bins is not None:
            return sorted(bins, key=lambda row: (-sum(lengths[i] for i in row), row[0]))
        rows += world_size


def _fill(order: Sequence[int], lengths: Sequence[int], budget: int, rows: int, sign: int) -> list[list[int]] | None:
    """Put each sample into the emptiest (1) or fullest (-1) row with space for it; None if there is no such row."""
    loads = [0] * rows
    bins: list[list[int]] = [[] for _ in range(rows)]
    for index in order:
        open_rows = [row for row in range(rows) if loads[row] + lengths[index] <= budget]
        if not open_rows:
            return None
        row = min(open_rows, key=lambda r: (sign * loads[r], r))
        bins[row].append(index)
        loads[row] += lengths[index]
    for empty in (samples for samples in bins if not samples):
        # Every process needs a row; the row with the most samples has at least two.
        empty.append(max(bins, key=len).pop())
    return bins


def collate(samples: Sequence[EncodedSample], totals: StepTotals, pad_id: int, multiple: int = 1) -> PackedBatch:
    """Concatenate samples to the tensors of one row; a preference pair becomes two samples."""
    encoded = [answer for sample in samples for answer in sample.answers]
    lengths = np.array([len(sample.input_ids) for sample in encoded])
    starts = np.concatenate(([0], lengths.cumsum()))
    used = int(starts[-1])
    padding = -used % multiple
    ids = np.full(used + padding, pad_id, np.int64)
    positions = np.arange(used + padding)
    answers, owners = [], []
    for number, (sample, start, end) in enumerate(zip(encoded, starts[:-1], starts[1:], strict=True)):
        ids[start:end] = sample.input_ids
        positions[start:end] -= start
        # The last token of the prompt predicts the first of the answer.
        answers.append(np.arange(start + sample.prompt_tokens - 1, end - 1))
        owners.append(np.full(len(answers[-1]), number))
    positions[used:] -= used
    predicting = np.concatenate(answers)
    images = np.array([len(sample.images) for sample in encoded])
    coverages = [sample.coverage for sample in encoded if sample.coverage is not None]
    policies = [sample.policy for sample in encoded if sample.policy is not None]
    preferences = [sample.preference for sample in samples if sample.preference is not None]
    references = [p.reference_log_probs for p in preferences if p.reference_log_probs is not None]
    return PackedBatch(
        input_ids=torch.from_numpy(ids)[None],
        position_ids=torch.from_numpy(positions)[None],
        starts=torch.from_numpy(starts.astype(np.int32)),
        used_tokens=used,
        longest=max(int(lengths.max()), padding),
        answers=torch.from_numpy(predicting),
        targets=torch.from_numpy(ids[predicting + 1]),
        answer_samples=torch.from_numpy(np.concatenate(owners)),
        pixel_values=torch.from_numpy(np.concatenate([sample.images for sample in encoded]))[:, None],
        frontal_rows=torch.from_numpy(images.cumsum() - images),
        coverage=torch.from_numpy(np.stack(coverages)) if coverages else None,
        sample_ids=tuple(sample.sample_id for sample in encoded),
        tasks=tuple(sample.task for sample in encoded),
        totals=totals,
        policy=PolicyTargets.cat(policies) if policies else None,
        reference_log_probs=torch.tensor(references).flatten() if references else None,
    )
