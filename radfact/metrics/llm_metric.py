"""What the metrics that ask a language model have in common: one question a pair, NaN where no answer can be used."""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import resources
from typing import Any, ClassVar, Generic, TypeVar

from radfact.errors import Failure
from radfact.io.pairs import Pair
from radfact.llm import ChatClient, ChatRequest
from radfact.metrics.protocol import Scored
from radfact.records import narrative
from radfact.statistics.bootstrap import Direction

AnswerT = TypeVar("AnswerT")

_SLOT = re.compile(r"\{(\w+)\}")


@cache
def load_prompt(name: str, package: str = "radfact.metrics") -> str:
    """A prompt of a package, to the last character as it is sent but for its slots."""
    return (resources.files(package) / "prompts" / f"{name}.txt").read_text(encoding="utf-8")


def fill(template: str, **slots: str) -> str:
    """A prompt with its slots `{name}` filled; braces in what fills them, and all other braces, stay as they are."""
    return _SLOT.sub(lambda match: slots.get(match[1], match[0]), template)


class AskedMetric(ABC, Generic[AnswerT]):
    """A metric that asks a chat model one question a pair of reports, and reads all its figures from the answer.

    A report is shown whole, a grounded one as its sentences joined by spaces.
    """

    name: ClassVar[str]
    figures: ClassVar[Mapping[str, Direction]]
    parameters: ClassVar[Mapping[str, Any]]
    """Sampling parameters that the client should be made with, where the user names no others."""

    def __init__(self, client: ChatClient) -> None:
        """Take the client of the model that is asked."""
        self.client = client

    @abstractmethod
    def question(self, candidate: str, reference: str) -> ChatRequest[AnswerT]:
        """What is asked about a pair."""

    @abstractmethod
    def read(self, answer: AnswerT) -> Mapping[str, float]:
        """The figures of a pair, by name."""

    @abstractmethod
    def detail(self, answer: AnswerT) -> Mapping[str, Any]:
        """What the model said of a pair, as JSON values for a person to read."""

    def assess(self, pairs: Sequence[Pair]) -> list[AnswerT | Failure]:
        """The model's answers in the order of the pairs.

        Raises:
            RunError: the server refuses the key or the model, cannot be reached, or refuses every question.
        """
        return self.client.complete_all(
            [self.question(narrative(one.candidate), narrative(one.reference)) for one in pairs]
        )

    def score(self, pairs: Sequence[Pair]) -> Scored:
        """All figures of every pair; NaN and the reason where the model gave no answer that can be used.

        Raises:
            RunError: as `assess`.
        """
        before = self.client.usage_counter.as_dict()
        answers = self.assess(pairs)
        usage = {name: count - before[name] for name, count in self.client.usage_counter.as_dict().items()}
        rows = [{} if isinstance(answer, Failure) else self.read(answer) for answer in answers]
        return Scored(
            {figure: [row.get(figure, math.nan) for row in rows] for figure in self.figures},
            details=[{} if isinstance(answer, Failure) else self.detail(answer) for answer in answers],
            failures={place: answer.reason for place, answer in enumerate(answers) if isinstance(answer, Failure)},
            usage=usage,
        )
