"""Training examples of judges: prompts about pairs of reports with their answers, and the file that holds them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from maira.judge.pairing import ReportPair
from maira.train.config.run_config import JudgeTask
from radfact.judges.prompt import Example
from radfact.llm import Message
from radfact.records import Record, Text

ItemT = TypeVar("ItemT")
LabelT = TypeVar("LabelT")
TeacherT = TypeVar("TeacherT")
Split = Literal["train", "validation", "heldout"]


class ChatMessage(Record):
    role: Literal["system", "user", "assistant"]
    content: str


class ChatSample(Record):
    """A line of `samples.jsonl`: a prompt of a judge, whose last message is the user's, and the expected answer."""

    sample_id: Text
    task: JudgeTask
    messages: tuple[ChatMessage, ...]
    answer: Text
    split: Split = "train"
    source: Mapping[str, Any] = {}


@dataclass(frozen=True, slots=True)
class TrainingExample:
    """A prompt about a pair of reports with its answer, and what the answer says: a judgment or a score."""

    paired: ReportPair
    name: str
    messages: Sequence[Message]
    answer: str
    teacher: str
    label: Example | float

    def to_sample(self, task: JudgeTask, split: Split) -> ChatSample:
        source = {"teacher": self.teacher, "pairing": self.paired.pairing, "reference": self.paired.source_id}
        if self.paired.injected is not None:
            source["errors"] = ",".join(change.category for change in self.paired.injected.changes)
        messages = tuple(ChatMessage.model_validate({"role": role, "content": text}) for role, text in self.messages)
        return ChatSample(
            sample_id=self.name, task=task, messages=messages, answer=self.answer, split=split, source=source
        )


Labeled = tuple[list[TrainingExample], dict[str, str]]
"""Training examples, and the reasons why some prompts have no answer by name."""


def label_in_turn(
    items: Mapping[str, ItemT],
    teachers: Mapping[str, TeacherT],
    label: Callable[[TeacherT, Sequence[ItemT]], Sequence[LabelT | str | None]],
    make: Callable[[str, ItemT, str, LabelT], TrainingExample],
) -> Labeled:
    """Make the examples of items by name; each teacher labels those without a label or a reason why there is none."""
    labels: dict[str, tuple[str, LabelT | str | None]] = dict.fromkeys(items, ("", None))
    for teacher_name, teacher in teachers.items():
        names = [name for name, (_, known) in labels.items() if known is None or isinstance(known, str)]
        for name, new in zip(names, label(teacher, [items[name] for name in names]), strict=True):
            labels[name] = (teacher_name, new or labels[name][1])
    examples: list[TrainingExample] = []
    failures: dict[str, str] = {}
    for name, (teacher_name, known) in labels.items():
        if isinstance(known, str):
            failures[name] = known
        elif known is not None:
            try:
                examples.append(make(name, items[name], teacher_name, known))
            except ValueError as error:
                failures[name] = f"the teacher's answer cannot be formatted: {error}"
    return examples, failures
