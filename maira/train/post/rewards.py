"""The reward of sampled reports: scores of the report, less penalties for its length and format."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from maira.train.config.run_config import RewardConfig
from maira.train.validation import parse_draft
from radfact.errors import InputError
from radfact.records import Pair, Report, narrative
from radfact.rewards import load_reward


class SampleReward(NamedTuple):
    """The reward of a report (None if a score is missing), the scores by name, and the words of the report."""

    total: float | None
    scores: Mapping[str, float | None]
    words: int


class ReportReward:
    """Computes the rewards of drafts."""

    def __init__(self, config: RewardConfig) -> None:
        self._config = config
        options: dict[str, Any] = dict(config.options)
        if isinstance(options.get("cache"), str):
            options["cache"] = Path(options["cache"])
        try:
            self._reward = load_reward(*config.scores, weights=[*config.scores.values()], **options)
        except InputError as error:
            field = "scores" if error.field in (None, "metrics", "weights") else f"options.{error.field}"
            raise InputError(error.message, code=error.code, file=error.file, field=field) from None
        self.names = self._reward.names

    def __call__(self, drafts: Sequence[Mapping[str, Any]], references: Sequence[Report]) -> list[SampleReward]:
        """Score drafts, of which `report` and `irregularities` are read, against their references."""
        pairs = [
            Pair(str(index), parse_draft(draft["report"]), reference)
            for index, (draft, reference) in enumerate(zip(drafts, references, strict=True))
        ]
        rewards = []
        for draft, pair, reward in zip(drafts, pairs, self._reward(pairs), strict=True):
            words = len(narrative(pair.candidate).split())
            total = reward.total
            if total is not None:
                total -= self._config.length_penalty * excess_length(words, len(narrative(pair.reference).split()))
                total -= self._config.format_penalty * bool(draft["irregularities"])
            rewards.append(SampleReward(total, reward.scores, words))
        return rewards


def excess_length(words: int, reference_words: int) -> float:
    """Return the excess length of a report: 0 up to 1.5 times the words of its reference, then linear to 1 at twice."""
    # A cost for every extra word would rank reports that the scores do not distinguish.
    return min(1.0, max(0.0, 2 * words / max(1, reference_words) - 3))
