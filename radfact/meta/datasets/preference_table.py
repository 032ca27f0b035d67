"""Two candidates and what experts prefer, from a plain table (paper 000, section 3.4.2)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from radfact.errors import Failure, InputError, check_unique_id
from radfact.io.csv_tables import read_csv
from radfact.llm import ChatClient
from radfact.meta.agreement.analysis import Figures
from radfact.meta.agreement.preferences import (
    Accuracy,
    Preference,
    Rivals,
    accuracy_by_confidence,
    ask_preferences,
    preferences_by_score,
)
from radfact.meta.datasets.cells import need_columns, read_id, read_number
from radfact.records import Pair, narrative

_WORDS: dict[str, Preference] = {
    **dict.fromkeys(("first", "1", "a", "better"), "first"),
    **dict.fromkeys(("second", "2", "b", "worse"), "second"),
    **dict.fromkeys(("equal", "0", "tie", "same"), "equal"),
}


@dataclass(frozen=True, slots=True)
class Preferences:
    """Pairs of candidates (the first ones, then the second ones), what all experts of a row prefer, how surely.

    `expert` is None where the experts differ or prefer none: such rows are left out.
    """

    first: Sequence[Pair]
    second: Sequence[Pair]
    expert: Sequence[Preference | None]
    confidence: Sequence[float]

    @property
    def pairs(self) -> list[Pair]:
        """All candidates with their references."""
        return [*self.first, *self.second]


def read_preferences(path: Path) -> Preferences:
    """Read a CSV with `id`, `reference`, `candidate_1`, `candidate_2`, `confidence` and columns `expert...`.

    An expert's cell is first, second or equal; `confidence` is one number a row, such as the mean of the experts'.

    Raises:
        InputError: naming file, line and field.
    """
    columns, rows = read_csv(path)
    need_columns(path, columns, ("id", "reference", "candidate_1", "candidate_2", "confidence"))
    experts = [name for name in columns if name.startswith("expert")]
    if not experts:
        raise InputError("no column whose name begins with 'expert'", file=path, line=1)
    first, second, expert, confidence = [], [], [], []
    seen = dict[str, int]()
    for line, row in rows:
        key = read_id(row["id"], path, line, "id")
        check_unique_id(seen, key, line, file=path, field="id")
        said = {_preference(row[name], path, line, name) for name in experts if row[name].strip()}
        agreed = said.pop() if len(said) == 1 else None
        first.append(Pair(f"{key}_1", row["candidate_1"].strip(), row["reference"].strip()))
        second.append(Pair(f"{key}_2", row["candidate_2"].strip(), row["reference"].strip()))
        expert.append(None if agreed == "equal" else agreed)
        sure = row["confidence"]
        confidence.append(read_number(sure, path, line, "confidence"))
        if math.isnan(confidence[-1]):
            raise InputError(f"expected a number, found '{sure}'", file=path, line=line, field="confidence")
    return Preferences(first, second, expert, confidence)


def accuracies(
    preferences: Preferences, figures: Figures, *, replicates: int, seed: int
) -> dict[str, dict[float, Accuracy]]:
    """How often each figure prefers what the experts prefer, by least confidence (paper 000, figure 6).

    A figure that is the same for both candidates wherever the experts prefer one has no value.

    Args:
        preferences: of the experts.
        figures: of `preferences.pairs`.
        replicates: of the bootstrap; 0 for no intervals.
        seed: of the bootstrap.
    """
    half = len(preferences.first)
    found = {}
    for name in figures.values:
        worse = figures.worse(name)
        if worse is None:
            continue
        preferred = preferences_by_score(worse[:half], worse[half:], direction="lower")
        found[name] = _by_confidence(preferences, preferred, replicates=replicates, seed=seed)
    return found


@dataclass(frozen=True, slots=True)
class Asked:
    """How often a model that is asked directly prefers what the experts do, and why it did not answer, by place."""

    levels: Mapping[float, Accuracy]
    failures: Mapping[int, str]


def ask_directly(client: ChatClient, preferences: Preferences, *, replicates: int, seed: int) -> Asked:
    """Ask a model which candidate is better, where the experts prefer one (paper 000, appendix A.3, table 6).

    A model that calls all of them equal has no value.

    Args:
        client: of the model.
        preferences: of the experts; a row in which they prefer none is not asked about.
        replicates: of the bootstrap; 0 for no intervals.
        seed: of the bootstrap.

    Raises:
        RunError: the server refuses the key or the model, or cannot be reached.
    """
    places = [place for place, expert in enumerate(preferences.expert) if expert is not None]
    rivals = [
        Rivals(*(narrative(text) for text in (first.reference, first.candidate, second.candidate)))
        for first, second in ((preferences.first[place], preferences.second[place]) for place in places)
    ]
    preferred: list[Preference | Failure | None] = [None] * len(preferences.expert)
    for place, answer in zip(places, ask_preferences(client, rivals), strict=True):
        preferred[place] = answer
    failures = {place: one.reason for place, one in enumerate(preferred) if isinstance(one, Failure)}
    return Asked(_by_confidence(preferences, preferred, replicates=replicates, seed=seed), failures)


def _by_confidence(
    preferences: Preferences, preferred: Sequence[Preference | Failure | None], *, replicates: int, seed: int
) -> dict[float, Accuracy]:
    levels = accuracy_by_confidence(
        preferences.expert, preferred, preferences.confidence, replicates=max(replicates, 1), seed=seed
    )
    if all(one.ties in (None, 1) for one in levels.values()):
        # Who never prefers any has no preference that could meet another.
        return {level: replace(one, value=None, low=None, high=None) for level, one in levels.items()}
    # One replicate is no interval.
    return {level: one if replicates else replace(one, low=None, high=None) for level, one in levels.items()}


def _preference(said: str, path: Path, line: int, field: str) -> Preference:
    preference = _WORDS.get(said.strip().lower())
    if preference is None:
        raise InputError(f"expected first, second or equal, found '{said}'", file=path, line=line, field=field)
    return preference
