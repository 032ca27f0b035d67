"""Which of two candidates is preferred, by a figure or by a model that is asked, and how often experts agree."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from radfact.errors import Failure
from radfact.llm import ChatClient, ChatRequest
from radfact.llm.response_text import strip_reasoning
from radfact.metrics.llm_metric import fill_prompt, load_prompt
from radfact.statistics.bootstrap import round_noise

Preference = Literal["first", "second", "equal"]

_SAID: Mapping[str, Preference] = {"better than": "first", "worse than": "second", "equal to": "equal"}
_LABEL = re.compile(r"\bassistant 1 is (better than|worse than|equal to) assistant 2\b")
_TURNED = re.compile(r"\bassistant 2 is (better than|worse than|equal to) assistant 1\b")
_LETTERS_ONLY = re.compile(r"[\W_]")
_AROUND = re.compile(
    r"(?:label|final|answer|verdict|conclusion|decision|judge?ment|preference|result|output|overall|last|line|in|the|my|"
    r"is|so|thus|hence|therefore| )*"
)
"""What may stand beside the label in its line; any other word may turn it."""
_OTHER: Mapping[Preference, Preference] = {"first": "second", "second": "first", "equal": "equal"}


@dataclass(frozen=True, slots=True)
class Rivals:
    """Two candidates for one reference."""

    reference: str
    first: str
    second: str


def preferences_by_score(
    first: Sequence[float], second: Sequence[float], *, direction: Literal["higher", "lower"]
) -> list[Preference | None]:
    """The candidate with the better score, "equal" where they have the same but for rounding; None where one has none.

    Args:
        first: scores of the first candidates, NaN = not scored.
        second: of the second ones, of the same references.
        direction: which way is better: higher for GREEN, lower for a number of errors.
    """
    sign = 1 if direction == "higher" else -1
    chosen: list[Preference | None] = []
    values = round_noise([*first, *second]).tolist()
    for one, other in zip(values[: len(first)], values[len(first) :], strict=True):
        gap = sign * (one - other)
        chosen.append(None if math.isnan(gap) else "first" if gap > 0 else "second" if gap < 0 else "equal")
    return chosen


def ask_preferences(client: ChatClient, rivals: Sequence[Rivals]) -> list[Preference | Failure]:
    """Ask a model directly which candidate is better (paper 000, appendix A.3).

    Raises:
        RunError: the server refuses the key or the model, or cannot be reached.
    """
    prompt = load_prompt("preference")
    texts = (fill_prompt(prompt, reference=one.reference, first=one.first, second=one.second) for one in rivals)
    return client.complete_all([ChatRequest((("user", text),), read_preference) for text in texts])


def read_preference(text: str) -> Preference:
    """The label that the last line of an answer is, as the prompt asks; what is weighed before it is no label.

    Raises:
        ValueError: the last line is no label, or says more than one.
    """
    lines = [_LETTERS_ONLY.sub(" ", line) for line in strip_reasoning(text).splitlines()]
    last = " ".join(next((line for line in reversed(lines) if line.strip()), "").lower().split())
    said = {_SAID[found] for found in _LABEL.findall(last)} | {_OTHER[_SAID[found]] for found in _TURNED.findall(last)}
    if len(said) == 1 and _AROUND.fullmatch(_TURNED.sub("", _LABEL.sub("", last))):
        return said.pop()
    raise ValueError('expected a last line such as "Assistant 1 is better than Assistant 2"')


@dataclass(frozen=True, slots=True)
class Accuracy:
    """A share of expert preferences that were met, with a 95 % bootstrap interval; None where there is no pair.

    `ties` is the share of "equal", which meets none.
    """

    value: float | None
    low: float | None
    high: float | None
    n: int
    ties: float | None


def agreed(first_expert: Sequence[Preference], second_expert: Sequence[Preference]) -> list[Preference | None]:
    """What two experts prefer; None where they differ or have none: such pairs are left out (3.4.2)."""
    pairs = zip(first_expert, second_expert, strict=True)
    return [one if one == other and one != "equal" else None for one, other in pairs]


def preference_accuracy(
    expert: Sequence[Preference | None],
    preferred: Sequence[Preference | Failure | None],
    *,
    replicates: int = 1000,
    seed: int = 42,
) -> Accuracy:
    """How often the preferred candidate is the experts' (paper 000, section 4.3.2 and table 6).

    "Equal" meets no expert preference. Pairs without an expert's preference, and those that were not scored, are out.

    Args:
        expert: as `agreed` gives them.
        preferred: by a figure or a model.
        replicates: of the bootstrap.
        seed: of the bootstrap.
    """
    pairs = [
        (wanted, found)
        for wanted, found in zip(expert, preferred, strict=True)
        if wanted is not None and found is not None and not isinstance(found, Failure)
    ]
    if not pairs:
        return Accuracy(None, None, None, 0, None)
    met = [wanted == found for wanted, found in pairs]
    ties = sum(found == "equal" for _, found in pairs) / len(pairs)
    drawn = np.random.default_rng(seed).choice(np.array(met, dtype=np.float64), (replicates, len(met))).mean(axis=1)
    low, high = np.quantile(drawn, (0.025, 0.975)).tolist()
    return Accuracy(sum(met) / len(met), low, high, len(met), ties)


def accuracy_by_confidence(
    expert: Sequence[Preference | None],
    preferred: Sequence[Preference | Failure | None],
    confidence: Sequence[float],
    *,
    replicates: int = 1000,
    seed: int = 42,
) -> dict[float, Accuracy]:
    """`preference_accuracy` among the pairs of at least each confidence that occurs (paper 000, figure 6).

    Args:
        expert: as `agreed` gives them.
        preferred: by a figure or a model.
        confidence: of the experts, on their scale of 1 to 10.
        replicates: of the bootstrap.
        seed: of the bootstrap.
    """
    rows = list(zip(expert, preferred, confidence, strict=True))
    table = {}
    for level in sorted({sure for wanted, _, sure in rows if wanted is not None}):
        kept = [(wanted, found) for wanted, found, sure in rows if sure >= level]
        table[level] = preference_accuracy(
            [wanted for wanted, _ in kept], [found for _, found in kept], replicates=replicates, seed=seed
        )
    return table
