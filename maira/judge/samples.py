"""What judges learn from: conversations with the answer that is wanted, where it comes from, and its split."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

from maira.train.data.packing import JudgeTask
from radfact.io.jsonl import write_jsonl
from radfact.records import Record, Text, validated

Split = Literal["train", "heldout"]


class ChatMessage(Record):
    """One message of a conversation."""

    role: Literal["system", "user", "assistant"]
    content: str


class ChatSample(Record):
    """A question as a judge is asked it, and the answer that it should give.

    Attributes:
        sample_id: unique in its file.
        task: what is answered.
        messages: all that the judge is shown; the last one is the user's.
        answer: what it should say.
        split: train, or held out.
        source: where it comes from: the teacher, the reports, how they were paired.
    """

    sample_id: Text
    task: JudgeTask
    messages: tuple[ChatMessage, ...]
    answer: Text
    split: Split = "train"
    source: Mapping[str, Any] = {}


def write_samples(path: Path, samples: Iterable[ChatSample]) -> int:
    """Write JSON Lines, whole or not at all, and return how many there were."""
    return write_jsonl(path, (sample.model_dump() for sample in samples))


def parse_sample(row: Mapping[str, Any], path: Path, line: int) -> ChatSample:
    """A line of the file, checked.

    Raises:
        InputError: naming file, line and field.
    """
    return validated(ChatSample, row, file=path, line=line)
