"""Preferred candidates: by score, by a direct query, and compared with experts."""

import math
from pathlib import Path
from typing import Any

import pytest
from chat_server import Reply, last
from meta_run import Serve, run_meta, write_table

from radfact.io.jsonl import read_json
from radfact.meta.agreement.preferences import WrongPreference, evaluate_scores, find_wrong_preferences
from radfact.meta.datasets.preferences import PreferenceSet, read_preferences
from radfact.meta.scores import ScoreColumns
from radfact.records import Pair
from radfact.statistics.rater_agreement import Preference, prefer_lower, preference_accuracy

HEADER = ["id", "reference", "candidate_1", "candidate_2", "confidence", "expert_a"]


def test_the_lower_score_is_preferred() -> None:
    first, second = [0.5, 0.5, 0.5, math.nan], [0.4, 0.6, 0.5, 0.1]
    assert prefer_lower(first, second) == ["second", "first", "equal", None]
    # Differences by rounding are none.
    assert prefer_lower([0.1 + 0.2, 1 / 3, 300.0], [0.3, 0.3333333333333337, 1.0]) == ["equal", "equal", "second"]


def test_accuracy_excludes_pairs_without_a_preference_and_counts_ties_as_not_met() -> None:
    expert: list[Preference | None] = ["first", "second", "first", None, "second"]
    preferred: list[Preference | None] = ["first", "equal", "second", "first", None]
    accuracy = preference_accuracy(expert, preferred)
    assert (accuracy.n, accuracy.value, accuracy.ties) == (3, pytest.approx(1 / 3), pytest.approx(1 / 3))
    assert 0 <= (accuracy.low or 0) <= 1 / 3 <= (accuracy.high or 0) <= 1
    assert preference_accuracy([None], ["first"]).value is None


def test_preferences_by_scores(tmp_path: Path) -> None:
    cells = [("good", "bad", 9, "first", "first"), ("bad", "good", 5, "second", "2"), ("x", "y", 5, "first", "second")]
    cells += [("x", "y", 1, "equal", "equal"), ("worse", "fine", 2, "second", "")]
    rows = [[str(number), "r", *row] for number, row in enumerate(cells, 1)]
    preferences = read_preferences(write_table(tmp_path / "p.csv", [*HEADER, "expert_b"], rows))
    assert preferences.expert == ["first", "second", None, None, "second"]
    # The second score differs only where the experts prefer none.
    values = {"ec": [0, 3, 0, 0, 1, 2, 1, 0, 0, 1], "b": [1, 1, 0, 1, 1, 1, 1, 2, 0, 1]}
    table = evaluate_scores(preferences, ScoreColumns(values, dict.fromkeys(values, "lower")), replicates=10, seed=1)
    assert {level: one.value for level, one in table["ec"].items()} == {2.0: pytest.approx(2 / 3), 5.0: 1.0, 9.0: 1.0}
    assert {(one.value, one.low, one.ties) for one in table["b"].values()} == {(None, None, 1.0)}


def test_a_majority_of_the_experts_may_decide(tmp_path: Path) -> None:
    labels = [("first", "first", "first"), ("second", "first", "second"), ("first", "equal", "first")]
    # Half of the labels, two ties, no label, and three different labels decide nothing.
    labels += [("first", "second", ""), ("equal", "equal", "first"), ("", "", ""), ("first", "second", "equal")]
    header = ["id", "reference", "candidate_1", "candidate_2", "expert_a", "expert_b", "expert_c"]
    path = write_table(tmp_path / "p.csv", header, [[key, "r", "x", "y", *row] for key, row in enumerate(labels)])
    unanimous, majority = read_preferences(path), read_preferences(path, consensus="majority")
    assert unanimous.expert == ["first", *[None] * 6]
    assert majority.expert == ["first", "second", "first", *[None] * 4]
    assert unanimous.notes[0].startswith("6 of 7 rows are excluded (without a label: 1; the experts differ: 5)")
    assert unanimous.notes[1].startswith("A majority decides 2 of the excluded rows")
    # Without the column, no row is surer than another.
    assert majority.confidence == [0.0] * 7
    assert majority.notes[1].startswith("The file has no confidence")


def test_wrong_preferences_are_listed_by_confidence() -> None:
    pairs = [[Pair(f"{row}_{number}", "c", "r") for row in "abcd"] for number in (1, 2)]
    preferences = PreferenceSet(*pairs, ["first", "second", "first", None], [3.0, 5.0, 9.0, 9.0])
    scores = ScoreColumns({"f1": [0.1, 0.5, 0.9, 0.0, 0.2, 0.5, 0.1, 1.0]}, {"f1": "higher"})
    assert find_wrong_preferences(preferences, scores) == [
        WrongPreference("f1", "b", 5.0, "second", "equal", 0.5, 0.5),
        WrongPreference("f1", "a", 3.0, "first", "second", 0.1, 0.2),
    ]


def write_rows(tmp_path: Path, rows: list[list[Any]]) -> tuple[object, ...]:
    """Return the arguments of `radfact meta` for the rows."""
    path = write_table(tmp_path / "p.csv", HEADER, rows)
    return ("agreement", path, "--layout", "preferences", "--out", tmp_path / "out")


def test_ties_are_shown_and_a_score_with_ties_only_has_no_accuracy(tmp_path: Path) -> None:
    texts = [("No mass.", "Mass."), ("Mass.", "Edema."), ("Mass.", "No mass.")]
    rows = [[str(row), "No effusion.", *pair, 5 + row // 2, "second"] for row, pair in enumerate(texts)]
    more = ("--metrics", "bleu_1,logical_recall", "--judge", "offline", "--bootstrap", 20)
    console = run_meta(*write_rows(tmp_path, rows), *more)
    table = read_json(tmp_path / "out/agreement.json")["preferences"]
    # The experts prefer the second of each pair: BLEU-1 the first one, neither, the second one. None denies effusion.
    assert [table["bleu_1"]["5"][name] for name in ("value", "ties", "n")] == pytest.approx([1 / 3, 1 / 3, 3])
    assert [table["logical_recall"]["5"][name] for name in ("value", "ties", "low", "n")] == [None, 1.0, None, 3]
    assert "Without accuracy and in no plot: logical_recall (" in console
    page = (tmp_path / "out/agreement.html").read_text()
    assert "Without accuracy and in no plot: Logical recall (" in page
    assert "0 of 3 rows are excluded" in page
    assert (tmp_path / "out/preferences.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.usefixtures("without_plots")
@pytest.mark.parametrize(
    ("label", "accuracies", "exit_code"),
    [
        ("better than", {"3": (0.5, 0.0, 2), "7": (1.0, 0.0, 1)}, 0),
        ("equal to", {"3": (None, 1.0, 2), "7": (None, 1.0, 1)}, 0),
        # No label for the first row.
        (None, {"3": (0.0, 0.0, 1), "7": (None, None, 0)}, 3),
    ],
)
def test_a_judge_is_queried_for_preferences(
    label: str | None, accuracies: dict[str, Any], exit_code: int, tmp_path: Path, serve: Serve
) -> None:
    def reply(body: dict[str, Any], _: int) -> Reply:
        has_label = label or "C" in last(body).split()
        return 200, {}, f"Assistant 1 is {label or 'better than'} Assistant 2" if has_label else "Both are fine."

    rows = [
        ["1", "A", "{second}", "B", 7, "first"],
        ["2", "A", "C", "A", 3, "second"],
        ["3", "A", "A", "A", 9, "equal"],
    ]
    server = serve(reply)
    model = ("--ask", "--judge", "openai:m", "--base-url", server.base_url, "--bootstrap", 0)
    console = run_meta(*write_rows(tmp_path, rows), *model, exit_code=exit_code)
    levels = read_json(tmp_path / "out/agreement.json")["preferences"]["openai:m (direct query)"]
    assert {level: (one["value"], one["ties"], one["n"]) for level, one in levels.items()} == accuracies
    assert ("1 direct queries failed" in console) == (exit_code == 3)
    # No query without an expert preference, and no placeholder in a text is filled.
    texts = {last(request) for request in server.requests}
    assert len(server.requests) == 2 or label is None
    candidates = "[Reference Report]\nA\n\n[Assistant 1]\n{second}\n\n[Assistant 2]\nB\n"
    assert any(candidates in text for text in texts)
    assert not any("[Assistant 1]\nA\n" in text for text in texts)
