"""What a judge learns: questions about pairs of reports with their answers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from maira.judge.pairing import ReportPair
from maira.judge.samples import ChatMessage
from radfact.judges.prompt import Example
from radfact.llm import Message


@dataclass(frozen=True, slots=True)
class TrainingExample:
    """A question as messages and the answer to it.

    Attributes:
        paired: the reports it is about.
        name: of the question, unique among all.
        messages, answer: as they are trained on.
        teacher: who has answered.
        labeled: the judgement itself, for an entailment question.
        score: the figure of the pair, for the others.
    """

    paired: ReportPair
    name: str
    messages: tuple[ChatMessage, ...]
    answer: str
    teacher: str
    labeled: Example | None = None
    score: float | None = None


@dataclass(slots=True)
class ExampleSet:
    """All that teachers said, and why they said nothing of some questions."""

    taught: list[TrainingExample] = field(default_factory=list)
    failures: dict[str, str] = field(default_factory=dict)


def chat_messages(messages: Iterable[Message]) -> tuple[ChatMessage, ...]:
    """Messages of a call as those of a sample."""
    return tuple(ChatMessage.model_validate({"role": role, "content": content}) for role, content in messages)
