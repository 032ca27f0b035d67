"""Preferred candidates: by score, by a direct query, and compared with experts."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from radfact.llm import mock_client
from radfact.meta.agreement.preferences import evaluate_judge, parse_preference
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


LABELS: dict[str, Preference] = {
    "Assistant 1 is better than Assistant 2": "first",
    "The first is closer.\n\nAssistant 1 is worse than Assistant 2.": "second",
    'Both fit.\n**"Assistant 1 is equal to Assistant 2"**\n': "equal",
    "Assistant 1 is better than Assistant 2 on length, but:\nassistant 1 is worse than assistant 2": "second",
    "Assistant 2 is better than Assistant 1": "second",
    "Final answer:\n\n```\nAssistant 1 is equal to Assistant 2\n```\n---\n": "equal",
    "<think>Assistant 1 is worse than Assistant 2</think>\nLabel: Assistant 1 is better than Assistant 2": "first",
}


@pytest.mark.parametrize("text", LABELS)
def test_labels_are_parsed(text: str) -> None:
    assert parse_preference(text) == LABELS[text]


@pytest.mark.parametrize(
    "text",
    [
        "I prefer the first report.",
        "I cannot compare patients' reports.",
        "Assistant 1 is better than Assistant 2 or Assistant 1 is equal to Assistant 2",
        "Assistant 1 is better than Assistant 2 at effusion.\n\nOverall: equal",
        "It is unclear whether Assistant 1 is better than Assistant 2.",
        "I would not say that assistant 1 is worse than assistant 2",
        "Assistant 1 is better than Assistant 2\nLet me know if you need more.",
        "Assistant 1 is better than Assistant 2 at effusion.",
        "",
    ],
)
def test_a_response_without_a_label_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="last line"):
        parse_preference(text)


@settings(deadline=None, max_examples=80)
@given(
    st.lists(st.sampled_from(list(LABELS)) | st.text("ab 12.\n", max_size=20), max_size=3),
    st.sampled_from(["better", "worse"]),
)
def test_only_the_last_line_is_the_label(before: list[str], how: str) -> None:
    label = f"Assistant 1 is {how} than Assistant 2"
    assert parse_preference("\n".join([*before, label])) == ("first" if how == "better" else "second")
    with pytest.raises(ValueError, match="last line"):
        parse_preference("\n".join([*before, label, "Both miss the effusion."]))


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
    assert accuracy.low is not None
    assert accuracy.high is not None
    assert 0 <= accuracy.low <= 1 / 3 <= accuracy.high <= 1
    assert preference_accuracy([None], ["first"]).value is None


def test_accuracy_by_minimum_confidence() -> None:
    expert: list[Preference | None] = ["first", "first", "second", None]
    preferred: list[Preference | None] = ["second", "first", "second", "first"]
    table = accuracy_by_confidence(expert, preferred, [2, 5, 9, 10])
    assert {level: (accuracy.value, accuracy.n) for level, accuracy in table.items()} == {
        2: (pytest.approx(2 / 3), 3),
        5: (1.0, 2),
        9: (1.0, 1),
    }
