"""Indicators of reward hacking: report length, normal statements, repetition and number of boxes."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from maira.model.parser import split_sentences
from radfact.errors import InputError
from radfact.reader.polarity import read_polarity
from radfact.records import Pair, Report, Sentence, narrative
from radfact.rewards import load_reward

_SCORES = ("findings", "rouge_l")
"""Scores in addition to those of RadFact, as far as their packages are installed."""
_SENTENCE_STATISTICS = ("words", "normal_sentence_share", "repeated_sentence_share", "boxes_per_sentence")
NAMES = tuple(f"drafts/{name}" for name in (*_SCORES, *_SENTENCE_STATISTICS))
"""Names of the values in the metrics of a run."""


def monitor_drafts(pairs: Sequence[Pair]) -> dict[str, float | None]:
    """Return the mean of each value over a round of drafts, None without one."""
    columns: dict[str, list[float | None]] = {}
    for name in _SCORES:
        columns[name] = []
        with suppress(InputError):  # a package is missing: the value stays unknown
            columns[name] = [reward.total for reward in load_reward(name)(pairs)]
    columns |= sentence_statistics([pair.candidate for pair in pairs])
    known = {name: [value for value in column if value is not None] for name, column in columns.items()}
    return {f"drafts/{name}": float(np.mean(column)) if column else None for name, column in known.items()}


def sentence_statistics(reports: Sequence[Report]) -> dict[str, list[Any]]:
    """Return the words of each report, and three values of each sentence.

    They are whether it only denies findings or states normality, whether it repeats an earlier one of its report, and
    its number of boxes.
    """
    columns: dict[str, list[Any]] = {name: [] for name in _SENTENCE_STATISTICS}
    for report in reports:
        columns["words"].append(len(narrative(report).split()))
        sentences = [Sentence(text=text) for text in split_sentences(report)] if isinstance(report, str) else report
        earlier: set[str] = set()
        for sentence in sentences:
            columns["normal_sentence_share"].append(read_polarity(sentence.text) == "negative")
            columns["repeated_sentence_share"].append(sentence.text in earlier)
            columns["boxes_per_sentence"].append(len(sentence.boxes or ()))
            earlier.add(sentence.text)
    return columns
