"""A model's corrections compared with a radiologist's: shares, severities, categories and settings of the paper."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from radfact.errors import Failure
from radfact.llm import mock_client
from radfact.meta.agreement.corrections import (
    CorrectedReport,
    change_agreement,
    corrected_text,
    corrected_text_pairs,
    line_changes,
    paraphrase,
    shuffle_lines,
)
from radfact.meta.datasets.ratings import RatedReport
from radfact.metrics.llm.fineradscore import split_lines
from radfact.metrics.llm.responses.corrections import Correction, Corrections
from radfact.records import Pair
from radfact.statistics.rater_agreement import Mean, SeverityErrors, rater_severity_errors, severity_errors

LINES = ("Nodule.", "Edema.", "Effusion.", "Clear.")
EXPERT = Corrections(
    LINES, (Correction(1, None, 3), Correction(2, "No effusion.", 2), Correction(None, "Fracture.", 2))
)
MODEL = Corrections(
    LINES, (Correction(1, "No edema.", 3, "", ("a",)), Correction(2, "No effusion.", 1, "", ("d", "a")))
)
NOTHING = Corrections(LINES)


def report(expert: Corrections, model: Corrections) -> CorrectedReport:
    pair = Pair("1", "c", "r")
    return CorrectedReport(RatedReport(pair, {}), pair, model, expert)


def test_line_and_report_level_agreement() -> None:
    assert line_changes(EXPERT) == ["no_change", "delete", "rewrite", "no_change"]
    # Left alone: 2 + 4 lines, all left; deleted: rewritten instead; inserted in one report, and missed there.
    assert change_agreement([report(EXPERT, MODEL), report(NOTHING, NOTHING)]) == {
        "no_change": Mean(1.0, 6),
        "delete": Mean(0.0, 1),
        "rewrite": Mean(1.0, 1),
        "insert": Mean(0.0, 1),
        "no_insert": Mean(1.0, 1),
    }
    assert change_agreement([report(NOTHING, EXPERT)])["no_change"] == Mean(0.5, 4)
    assert change_agreement([report(NOTHING, EXPERT)])["delete"] == Mean(None, 0)


def test_corrected_text_is_one_text_per_report() -> None:
    assert corrected_text(EXPERT) == "No effusion. Fracture."
    pairs = corrected_text_pairs([report(EXPERT, MODEL), report(NOTHING, NOTHING)])
    assert pairs == [Pair("0", "No edema. No effusion.", "No effusion. Fracture.")]


def test_severities() -> None:
    assert severity_errors([0, 3, 4, 1], [0, 4, 2, 1]) == SeverityErrors(0.75, {-2: 0.25, 0: 0.5, 1: 0.25}, 4)
    assert severity_errors([], []) is None
    # A random rater is compared with all others: if 4 is chosen of (2, 2, 4), the errors are 2 and 2; else 0 and 2.
    errors = [rater_severity_errors([(2, 2, 4), (3,)], seed=seed) for seed in range(20)]
    assert {error and (error.mean_absolute, error.n) for error in errors} == {(1.0, 2), (2.0, 2)}
    assert rater_severity_errors([(3,)]) is None


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
