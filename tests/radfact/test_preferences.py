"""Preferred candidates: by score, by a direct query, and compared with experts."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest

from radfact.llm import mock_client
from radfact.meta.agreement.preferences import evaluate_judge
from radfact.meta.datasets.preferences import PreferenceSet
from radfact.metrics.llm.llm_metric import load_prompt
from radfact.records import Pair
from radfact.statistics.rater_agreement import Preference, accuracy_by_confidence, prefer_lower, preference_accuracy

PAPER = Path(__file__).resolve().parents[2].parent / "shared" / "seeds" / "000_e6b0ddc06faf3acd.txt"


@pytest.mark.skipif(not PAPER.exists(), reason="the paper's text is not available")
def test_every_line_of_the_prompt_is_the_papers() -> None:
    paper = re.sub(r"\W", "", PAPER.read_text(encoding="utf-8"))
    lines = [line for line in load_prompt("preference").splitlines() if not line.startswith("{")]
    assert [line for line in lines if re.sub(r"\W", "", line) not in paper] == []


def test_the_lower_score_is_preferred() -> None:
    first, second = [0.5, 0.5, 0.5, math.nan], [0.4, 0.6, 0.5, 0.1]
    assert prefer_lower(first, second) == ["second", "first", "equal", None]
    # Differences by rounding are none.
    assert prefer_lower([0.1 + 0.2, 1 / 3, 300.0], [0.3, 0.3333333333333337, 1.0]) == ["equal", "equal", "second"]


def test_a_model_is_queried_with_both_candidates() -> None:
    queries: list[str] = []

    def respond(text: str) -> str:
        queries.append(text)
        return "Assistant 1 is worse than Assistant 2"

    first = [Pair("1_1", "The {second}.", "The reference."), Pair("2_1", "A", "B")]
    second = [Pair("1_2", "The other.", "The reference."), Pair("2_2", "A", "B")]
    preferences = PreferenceSet(first, second, ["second", None], [5.0, 5.0])
    accuracies, failures = evaluate_judge(mock_client(respond), preferences, replicates=0, seed=1)
    assert (accuracies[5.0].value, accuracies[5.0].n, failures) == (1.0, 1, [])
    (query,) = queries  # no query without an expert preference
    assert "[Reference Report]\nThe reference.\n\n[Assistant 1]\nThe {second}.\n\n[Assistant 2]\nThe other.\n" in query


def test_accuracy_excludes_pairs_without_a_preference_and_counts_ties_as_not_met() -> None:
    expert: list[Preference | None] = ["first", "second", "first", None, "second"]
    preferred: list[Preference | None] = ["first", "equal", "second", "first", None]
    accuracy = preference_accuracy(expert, preferred)
    assert (accuracy.n, accuracy.value, accuracy.ties) == (3, pytest.approx(1 / 3), pytest.approx(1 / 3))
    assert 0 <= (accuracy.low or 0) <= 1 / 3 <= (accuracy.high or 0) <= 1
    assert preference_accuracy([None], ["first"]).value is None
    choices: list[Preference | None] = ["second", "first", "second", "first"]
    table = accuracy_by_confidence(["first", "first", "second", None], choices, [2, 5, 9, 10])
    assert {level: (accuracy.value, accuracy.n) for level, accuracy in table.items()} == {
        2: (pytest.approx(2 / 3), 3),
        5: (1.0, 2),
        9: (1.0, 1),
    }
