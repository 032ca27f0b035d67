"""A model's corrections compared with a radiologist's: shares, severities, categories and settings of the paper."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from radfact.errors import Failure
from radfact.llm import mock_client
from radfact.meta.agreement.corrections import (
    change_agreement,
    corrected_pairs,
    corrected_text,
    corrected_text_pairs,
    detect_categories,
    line_changes,
    paraphrase,
    shuffle_lines,
)
from radfact.metrics.llm.fineradscore import split_lines
from radfact.metrics.llm.responses.corrections import Correction, Corrections
from radfact.records import Pair
from radfact.statistics.rater_agreement import Share, rater_severity_errors, severity_errors

LINES = ("Nodule.", "Edema.", "Effusion.", "Clear.")
EXPERT = Corrections(
    LINES, (Correction(1, None, 3), Correction(2, "No effusion.", 2), Correction(None, "Fracture.", 2))
)
MODEL = Corrections(
    LINES, (Correction(1, "No edema.", 3, "", ("a",)), Correction(2, "No effusion.", 1, "", ("d", "a")))
)
NOTHING = Corrections(LINES)


def test_line_and_report_level_agreement() -> None:
    assert line_changes(EXPERT) == ["no_change", "delete", "rewrite", "no_change"]
    # Left alone: 2 + 4 lines, all left; deleted: rewritten instead; inserted in one report, and missed there.
    assert change_agreement([EXPERT, NOTHING], [MODEL, NOTHING]) == {
        "no_change": Share(1.0, 6),
        "delete": Share(0.0, 1),
        "rewrite": Share(1.0, 1),
        "insert": Share(0.0, 1),
        "no_insert": Share(1.0, 1),
    }
    assert change_agreement([NOTHING], [EXPERT])["no_change"] == Share(0.5, 4)
    assert change_agreement([NOTHING], [EXPERT])["delete"] == Share(None, 0)
    with pytest.raises(ValueError, match="lines"):
        change_agreement([NOTHING], [Corrections(("Nodule.",))])


def test_corrected_text_is_one_text_per_report() -> None:
    assert corrected_text(EXPERT) == "No effusion. Fracture."
    assert corrected_text_pairs([EXPERT, NOTHING], [MODEL, NOTHING]) == [
        Pair("0", "No edema. No effusion.", "No effusion. Fracture.")
    ]


def test_corrected_pairs_have_corrected_candidates() -> None:
    pair = Pair("one", " ".join(LINES), "Nodule. No effusion. Clear. Fracture.")
    assert corrected_pairs([pair], [EXPERT]) == [Pair("one", "Nodule. No effusion. Clear. Fracture.", pair.reference)]


def test_severities() -> None:
    errors = severity_errors([0, 3, 4, 1], [0, 4, 2, 1])
    assert (errors.mean_absolute, errors.shares, errors.n) == (0.75, {-2: 0.25, 0: 0.5, 1: 0.25}, 4)
    with pytest.raises(ValueError, match="no severities"):
        severity_errors([], [])


def test_a_random_rater_is_compared_with_all_others() -> None:
    # If 4 is chosen of (2, 2, 4), the errors are 2 and 2; otherwise 0 and 2.
    assert {rater_severity_errors([(2, 2, 4)], seed=seed).mean_absolute for seed in range(20)} == {1.0, 2.0}
    assert rater_severity_errors([(3,), (1, 2)]).n == 1
    with pytest.raises(ValueError, match="no severities"):
        rater_severity_errors([(3,)])


def test_categories_are_detected_per_report() -> None:
    table = detect_categories([{"a": 2}, {"b": 1}], [MODEL, MODEL])
    assert table["a"].precision == Share(0.5, 2)
    assert table["a"].recall == Share(1.0, 1)
    assert table["b"].precision == Share(None, 0)
    assert table["b"].recall == Share(0.0, 1)


@given(st.lists(st.sampled_from(["Edema.", "Nodule.", "Clear lungs."]), max_size=5).map(" ".join), st.integers(0, 9))
def test_a_shuffled_report_has_the_same_lines_in_another_order(report: str, seed: int) -> None:
    shuffled = shuffle_lines(report, seed=seed)
    lines = split_lines(report)
    assert sorted(split_lines(shuffled)) == sorted(lines)
    assert (shuffled != report) == (len(set(lines)) > 1)
    assert shuffle_lines(report, seed=seed) == shuffled


def test_paraphrases() -> None:
    client = mock_client(lambda text: "```\nThe heart is big.\n```" if "Cardiomegaly" in text else "No.")
    assert paraphrase(client, ["Cardiomegaly."]) == ["The heart is big."]
    (refusal,) = paraphrase(mock_client("I'm sorry, but I can't assist with that."), ["Cardiomegaly."])
    assert isinstance(refusal, Failure)
