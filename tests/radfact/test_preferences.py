"""Which candidate is preferred: by score, by asking, and against experts."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from chat_server import ChatServer, last
from hypothesis import given, settings
from hypothesis import strategies as st

from radfact.errors import Failure
from radfact.llm import load_chat_client
from radfact.meta.agreement.preferences import (
    Preference,
    Rivals,
    accuracy_by_confidence,
    agreed,
    ask_preferences,
    preference_accuracy,
    preferences_by_score,
    read_preference,
)
from radfact.metrics.llm_metric import load_prompt

PAPER = Path(__file__).resolve().parents[2].parent / "shared" / "seeds" / "000_e6b0ddc06faf3acd.txt"


@pytest.mark.skipif(not PAPER.exists(), reason="the paper's text is not here")
def test_every_line_of_the_prompt_is_the_papers() -> None:
    paper = re.sub(r"\W", "", PAPER.read_text(encoding="utf-8"))
    lines = [line for line in load_prompt("preference").splitlines() if not line.startswith("{")]
    assert [line for line in lines if re.sub(r"\W", "", line) not in paper] == []


def test_the_better_score_is_preferred() -> None:
    first, second = [0.5, 0.5, 0.5, math.nan], [0.4, 0.6, 0.5, 0.1]
    assert preferences_by_score(first, second, direction="higher") == ["first", "second", "equal", None]
    assert preferences_by_score(first, second, direction="lower") == ["second", "first", "equal", None]


def test_rounding_is_no_preference() -> None:
    first, second = [0.1 + 0.2, 1 / 3, 300.0], [0.3, 0.3333333333333337, 1.0]
    assert preferences_by_score(first, second, direction="higher") == ["equal", "equal", "first"]


LABELS: dict[str, Preference] = {
    "Assistant 1 is better than Assistant 2": "first",
    "The first is closer.\n\nAssistant 1 is worse than Assistant 2.": "second",
    'Both fit.\n**"Assistant 1 is equal to Assistant 2"**\n': "equal",
    "Assistant 1 is better than Assistant 2 on length, but:\nassistant 1 is worse than assistant 2": "second",
    "Assistant 2 is better than Assistant 1": "second",
    "Final answer:\n\n```\nAssistant 1 is equal to Assistant 2\n```\n---\n": "equal",
    "<think>Assistant 1 is worse than Assistant 2</think>\nLabel: Assistant 1 is better than Assistant 2": "first",
}


@pytest.mark.parametrize("answer", LABELS)
def test_labels_as_they_are_written(answer: str) -> None:
    assert read_preference(answer) == LABELS[answer]


@pytest.mark.parametrize(
    "answer",
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
def test_no_label_is_no_preference(answer: str) -> None:
    with pytest.raises(ValueError, match="last line"):
        read_preference(answer)


@settings(deadline=None, max_examples=80)
@given(
    st.lists(st.sampled_from(list(LABELS)) | st.text("ab 12.\n", max_size=20), max_size=3),
    st.sampled_from(["better", "worse"]),
)
def test_only_the_last_line_is_the_label(before: list[str], how: str) -> None:
    label = f"Assistant 1 is {how} than Assistant 2"
    assert read_preference("\n".join([*before, label])) == ("first" if how == "better" else "second")
    with pytest.raises(ValueError, match="last line"):
        read_preference("\n".join([*before, label, "Both miss the effusion."]))


def test_a_model_is_asked_with_both_candidates(serve: Callable[..., ChatServer]) -> None:
    server = serve(lambda *_: (200, {}, "Assistant 1 is worse than Assistant 2"))
    choice = Rivals("The reference.", "The {second}.", "The other.")
    assert ask_preferences(load_chat_client("openai:m", base_url=server.base_url), [choice]) == ["second"]
    assert "[Reference Report]\nThe reference.\n\n[Assistant 1]\nThe {second}.\n\n[Assistant 2]\nThe other.\n" in last(
        server.requests[0]
    )


def test_experts_who_differ_have_no_preference() -> None:
    assert agreed(["first", "first", "equal"], ["first", "second", "equal"]) == ["first", None, None]


def test_accuracy_leaves_out_what_has_no_preference_and_counts_ties_as_wrong() -> None:
    expert: list[Preference | None] = ["first", "second", "first", None, "second", "first"]
    found: list[Preference | Failure | None] = ["first", "equal", "second", "first", None, Failure("no answer")]
    accuracy = preference_accuracy(expert, found)
    assert accuracy.n == 3
    assert accuracy.value == pytest.approx(1 / 3)
    assert accuracy.ties == pytest.approx(1 / 3)
    assert accuracy.low is not None
    assert accuracy.high is not None
    assert 0 <= accuracy.low <= 1 / 3 <= accuracy.high <= 1
    assert preference_accuracy([None], ["first"]).value is None


def test_accuracy_at_least_as_confident() -> None:
    expert: list[Preference | None] = ["first", "first", "second", None]
    found: list[Preference | Failure | None] = ["second", "first", "second", "first"]
    table = accuracy_by_confidence(expert, found, [2, 5, 9, 10])
    assert {level: (one.value, one.n) for level, one in table.items()} == {
        2: (pytest.approx(2 / 3), 3),
        5: (1.0, 2),
        9: (1.0, 1),
    }
