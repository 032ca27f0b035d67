"""Training examples of judges: prompts about pairs of reports with their answers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from maira.judge.pairing import ReportPair
from maira.judge.samples import ChatMessage
from radfact.judges.prompt import Example
from radfact.llm import Message


@dataclass(frozen=True, slots=True)
class TrainingExample:
    """A prompt about a pair of reports, with its answer.

    Attributes:
        paired: the pair.
        name: unique name.
        messages: the prompt.
        answer: of the assistant.
        teacher: source of the answer.
        labeled: the judgment, for entailment.
        score: the score of the pair, for other tasks.
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
    """Training examples, and the reasons why some prompts have no answer."""

    examples: list[TrainingExample] = field(default_factory=list)
    failures: dict[str, str] = field(default_factory=dict)


def chat_messages(messages: Iterable[Message]) -> tuple[ChatMessage, ...]:
    """Convert messages of a chat request to those of a sample."""
    return tuple(ChatMessage.model_validate({"role": role, "content": content}) for role, content in messages)
