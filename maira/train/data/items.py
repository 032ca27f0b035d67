"""What the rooms of training hand to each other: items of an epoch, samples as tokens, packed rows."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
from torch import Tensor, device

from maira.model.prompts import Task

LENGTHS = np.dtype(
    [
        ("source", "<u2"),
        ("number", "<u4"),
        ("task", "u1"),
        ("phrase", "<u2"),
        ("images", "u1"),
        ("prompt", "<u4"),
        ("answer", "<u4"),
    ]
)
"""One answer that can be trained on: the place of its source in the recipe, of its study in the source, of its task in
`ALL_TASKS`, of its phrase in the study (0 for other tasks); its images, and the tokens of prompt (image tokens counted)
and answer."""
TASKS: tuple[Task, ...] = ("findings", "grounded", "phrase")
JudgeTask = Literal["entailment", "green", "vert"]
"""What a language model answers as a judge of reports."""
ALL_TASKS: tuple[Task | JudgeTask, ...] = (*TASKS, "entailment", "green", "vert")
"""As tables number them."""


class Samples(Protocol):
    """What is learnt from: samples by their places in a table.

    Attributes:
        table: (answers,) of `LENGTHS`.
    """

    table: npt.NDArray[Any]

    @property
    def pad_id(self) -> int:
        """The token of padding."""

    def sample_id(self, row: int) -> str:
        """Name of the sample of an answer."""

    def place(self, row: int) -> str:
        """Where the sample of an answer is read from, for messages about one whose name cannot be read."""

    def blank(self) -> Encoded:
        """A sample that nothing is asked about: it stands for a row of which no sample can be read."""

    def encode(self, row: int) -> Encoded:
        """An answer with its prompt as tokens, and what goes with it.

        Raises:
            InputError: it cannot be read, or is not as it was when the table was made.
        """


class Totals(NamedTuple):
    """What the losses of one optimiser step are divided by, over all processes."""

    answer_tokens: int
    samples: int


@dataclass(frozen=True)
class Encoded:
    """A sample as the model takes it.

    Attributes:
        input_ids: prompt and answer.
        prompt_tokens: how many of them are the prompt's.
        images: prepared images, (images, size, size) float32, in the order of their placeholders.
        coverage: (patches, kinds), share of each patch of the frontal that each labelled kind covers; None without.
    """

    sample_id: str
    task: Task | JudgeTask
    input_ids: list[int]
    prompt_tokens: int
    images: npt.NDArray[np.float32]
    coverage: npt.NDArray[np.float32] | None = None


@dataclass(frozen=True)
class PackedBatch:
    """Samples one behind the other in one row: the tensors of one pass.

    Attributes:
        input_ids: (1, tokens).
        position_ids: (1, tokens), from 0 in each sample.
        starts: (samples + 1,) int32, where each sample begins, and where the last one ends. Tokens beyond are padding,
            which makes a last sample of its own where there is any.
        longest: tokens of the longest sample (padding counted as one).
        answers: (answer tokens,), the positions whose next token is an answer's.
        targets: (answer tokens,), that next token.
        answer_samples: (answer tokens,), which sample each belongs to.
        pixel_values: (images, 1, size, size); the model sees three equal channels.
        frontal_rows: (samples,), which image is each sample's current frontal.
        coverage: (samples, patches, kinds); None without the auxiliary loss.
        sample_ids, tasks: of each sample, padding left out.
        totals: of the optimiser step that the row is a part of.
    """

    input_ids: Tensor
    position_ids: Tensor
    starts: Tensor
    longest: int
    answers: Tensor
    targets: Tensor
    answer_samples: Tensor
    pixel_values: Tensor
    frontal_rows: Tensor
    coverage: Tensor | None
    sample_ids: tuple[str, ...]
    tasks: tuple[Task | JudgeTask, ...]
    totals: Totals

    def to(self, where: device) -> PackedBatch:
        """The same batch with its tensors on a device."""
        moved: dict[str, Any] = {
            name: value.to(where, non_blocking=True) for name, value in vars(self).items() if isinstance(value, Tensor)
        }
        return replace(self, **moved)
