"""The file of a judge's training data: conversations with the expected answer, its source and its split."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

from maira.train.data.packing import JudgeTask
from radfact.io.jsonl import write_jsonl
from radfact.records import Record, Text, validate_model

Split = Literal["train", "heldout"]


class ChatMessage(Record):
    """One message of a conversation."""

    role: Literal["system", "user", "assistant"]
    content: str


class ChatSample(Record):
    """A prompt of a judge and the expected answer.

    Attributes:
        sample_id: unique in its file.
        task: of the judge.
        messages: the prompt; the last message is the user's.
        answer: expected answer.
        split: train, or held out.
        source: the teacher, the reports, and how they were paired.
    """

    sample_id: Text
    task: JudgeTask
    messages: tuple[ChatMessage, ...]
    answer: Text
    split: Split = "train"
    source: Mapping[str, Any] = {}


def write_samples(path: Path, samples: Iterable[ChatSample]) -> int:
    """Write samples as JSON Lines atomically and return their number.

    Args:
        path: of the file.
        samples: to write.
    """
    return write_jsonl(path, (sample.model_dump() for sample in samples))


def parse_sample(row: Mapping[str, Any], path: Path, line: int) -> ChatSample:
    """Validate a line of the file.

    Args:
        row: object of the line.
        path: of the file.
        line: from 1.

    Raises:
        InputError: the line is not a valid sample.
    """
    return validate_model(ChatSample, row, file=path, line=line)
