"""Files of the ReXrank leaderboard, and its published scores among own ones."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from radfact.errors import ErrorCode, InputError
from radfact.io.jsonl import read_json, write_json, write_jsonl
from radfact.io.pairs import read_candidates_and_references, read_pairs
from radfact.io.rexrank import findings_of
from radfact.records import PatientContext

Run = Callable[..., tuple[int, str, str]]

STUDIES: dict[str, dict[str, Any]] = {
    "s1": {
        "image_path": ["s1/0.png"],
        "section_findings": "Lungs are clear.",
        "section_impression": "Normal.",
        "context": "<context>Age:67.Gender:M.Indication: Cough. Comparison: None.</context>",
        "subject_id": 7,
        "split": "test",
        "model_prediction": "Findings:The lungs are clear.Impression:No acute process.",
    },
    "s2": {
        "section_findings": None,
        "section_impression": "Small effusion.",
        "context": "Age:50-60.Indication:nanComparison: none",
        "subject_id": 7,
        "split": "test",
        "model_prediction": "Effusion.",
    },
}


@pytest.fixture
def predictions(tmp_path: Path) -> Path:
    write_json(tmp_path / "predictions.json", STUDIES)
    return tmp_path / "predictions.json"


def test_findings_are_compared_without_headings(predictions: Path) -> None:
    pairs = read_pairs(predictions)
    (pair,) = pairs
    assert (pair.sample_id, pair.candidate, pair.reference) == ("s1", "The lungs are clear.", "Lungs are clear.")
    assert pair.context == PatientContext(67, "Cough", "None")
    assert pair.cluster == "7"
    assert (pairs.read, pairs.skipped, pairs.without_reference, pairs.files) == (2, 1, ("s2",), (predictions,))


def test_reports_are_compared_with_headings(predictions: Path) -> None:
    first, second = read_pairs(predictions, section="report", cluster="none")
    assert first.candidate == STUDIES["s1"]["model_prediction"]
    assert first.reference == "Findings: Lungs are clear. Impression: Normal."
    assert second.reference == "Impression: Small effusion."
    # A range is no age.
    assert second.context == PatientContext(None, None, "none")


@pytest.mark.parametrize(
    ("report", "findings"),
    [
        ("Clear lungs.", "Clear lungs."),
        ("FINDINGS: Clear.\nIMPRESSION: Normal.", "Clear."),
        ("Impression: Normal.", ""),
        ("Findings suggest edema. Impression: Edema.", "Findings suggest edema."),
        ("Other findings: old fracture.", "Other findings: old fracture."),
    ],
)
def test_findings_end_at_the_impression(report: str, findings: str) -> None:
    assert findings_of(report) == findings


def test_a_file_without_predictions_has_the_references_of_drafts(tmp_path: Path, predictions: Path) -> None:
    test_set = {key: {k: v for k, v in study.items() if k != "model_prediction"} for key, study in STUDIES.items()}
    write_json(tmp_path / "test.json", test_set)
    write_jsonl(tmp_path / "drafts.jsonl", [{"sample_id": "s1", "report": "Clear lungs."}])
    (pair,) = read_candidates_and_references(tmp_path / "drafts.jsonl", tmp_path / "test.json")
    assert (pair.candidate, pair.reference) == ("Clear lungs.", "Lungs are clear.")
    drafts = (tmp_path / "drafts.jsonl", tmp_path / "test.json")
    (pair,) = read_candidates_and_references(*drafts, section="report", missing="skip")
    assert pair.reference == "Findings: Lungs are clear. Impression: Normal."
    (pair,) = read_candidates_and_references(predictions, tmp_path / "test.json")
    assert pair.candidate == "The lungs are clear."


def test_other_files_have_no_sections(tmp_path: Path) -> None:
    (tmp_path / "pairs.csv").write_text("example_id,prediction,target\n1,Clear.,Clear.\n")
    with pytest.raises(InputError) as error:
        read_pairs(tmp_path / "pairs.csv", section="report")
    assert (error.value.code, error.value.field) == (ErrorCode.CONFLICTING_OPTIONS, "section")


def test_an_export_holds_the_scored_reports_and_can_be_read(run_radfact: Run, predictions: Path) -> None:
    options = ["--metrics", "lateral_mentions", "--section", "report", "--out", "r"]
    assert run_radfact("evaluate", predictions.name, *options)[0] == 0
    code, out, _ = run_radfact("export", "r", "--format", "rexrank")
    assert (code, "r/rexrank_predictions.json" in out) == (0, True)
    assert read_json("r/rexrank_predictions.json") == STUDIES
    write_json(predictions, {**STUDIES, "s1": {**STUDIES["s1"], "model_prediction": "Other."}})
    code, _, err = run_radfact("export", "r", "--format", "rexrank", "--overwrite")
    assert (code, "[mismatch]" in err) == (2, True)
    assert read_json("r/rexrank_predictions.json") == STUDIES


def test_pairs_of_another_layout_are_exported(run_radfact: Run) -> None:
    Path("pairs.csv").write_text("example_id,prediction,target,age\n1,Clear lungs.,Normal lungs.,67\n")
    run_radfact("evaluate", "pairs.csv", "--metrics", "lateral_mentions", "--out", "r")
    assert run_radfact("export", "r", "--format", "rexrank", "--out", "x.json")[0] == 0
    expected = {"section_findings": "Normal lungs.", "context": "Age: 67", "model_prediction": "Clear lungs."}
    assert read_json("x.json") == {"1": expected}
    assert read_pairs("x.json")[0].context.age == 67
