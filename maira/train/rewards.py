"""The reward of sampled reports: scores of the report, less penalties for its length and format."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from maira.generate.response_file import Row
from maira.train.config.run_config import RewardConfig
from maira.train.generation import parse_draft
from radfact.errors import InputError
from radfact.records import Pair, Report, narrative
from radfact.rewards import load_reward


class SampleReward(NamedTuple):
    """The reward of a report.

    Attributes:
        total: the reward; None if a score is missing.
        scores: the scores by name; None for a missing one.
        words: number of words of the report.
    """

    total: float | None
    scores: dict[str, float | None]
    words: int


class ReportReward:
    """Computes the rewards of drafts.

    Args:
        config: options of the reward.
        scores_field: field of the scores in errors.
        options_field: field of the options in errors.

    Raises:
        InputError: a score is unknown or has no sample-level values, or a model or weights that it needs are missing.
    """

    def __init__(
        self,
        config: RewardConfig,
        *,
        scores_field: str = "grpo.reward.scores",
        options_field: str = "grpo.reward.options",
    ) -> None:
        self._config = config
        options: dict[str, Any] = dict(config.options)
        if isinstance(options.get("cache"), str):
            options["cache"] = Path(options["cache"])
        try:
            self._reward = load_reward(*config.scores, weights=[*config.scores.values()], **options)
        except InputError as error:
            is_score = error.field in (None, "metrics", "weights")
            field = scores_field if is_score else f"{options_field}.{error.field}"
            raise InputError(error.message, code=error.code, file=error.file, field=field) from None
        self.names = self._reward.names

    def __call__(self, drafts: Sequence[Row], references: Sequence[Report]) -> list[SampleReward]:
        """Score drafts.

        Args:
            drafts: rows of drafts, with their irregularities.
            references: reference report of each study.

        Raises:
            RunError: a metric fails.
        """
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
    """Return the excess length of a report: 0 up to 1.5 times the words of its reference, then linear to 1 at twice.

    Reports of the same findings differ in length. A cost for every extra word would rank reports that the scores do not
    distinguish, and the model may learn the shortest wording.

    Args:
        words: number of words of the report.
        reference_words: number of words of the reference.
    """
    return min(1.0, max(0.0, 2 * words / max(1, reference_words) - 3))
