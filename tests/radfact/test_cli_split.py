"""The command radfact split: sentences to read, edit and score, and what was removed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from radfact.errors import ExitCode, Failure
from radfact.io.jsonl import read_jsonl
from radfact.judges.offline_splitter import OfflineSplitter

Run = Callable[..., tuple[int, str, str]]

PAIRS = """example_id,prediction,target,patient_id
a,"Small effusion on the left. Possible pneumonia.","The heart is enlarged. Repeat film is recommended.",p1
b,,"Clear lungs.",p2
"""


@pytest.fixture
def run(run_radfact: Run) -> Run:
    return run_radfact


def _texts(sentences: list[dict[str, str]]) -> list[str]:
    return [sentence["text"] for sentence in sentences]


def test_pairs_become_sentences_that_can_be_scored(run: Run, tmp_path: Path) -> None:
    (tmp_path / "pairs.csv").write_text(PAIRS)
    code, out, _ = run("split", "pairs.csv", "--judge", "offline", "--out", "sentences.json")
    assert code == 0
    assert "2 of 2 samples, 3 sentences, 2 parts removed" in out
    first, second = json.loads((tmp_path / "sentences.json").read_text())
    assert (_texts(first["prediction"]), _texts(first["target"])) == (
        ["Small effusion on the left."],
        ["The heart is enlarged."],
    )
    assert (second["prediction"], second["patient_id"]) == ([], "p2")
    assert run("score", "sentences.json", "--judge", "offline", "--out", "split")[0] == 0
    assert run("score", "pairs.csv", "--judge", "offline", "--out", "narrative")[0] == 0
    split, narrative = (json.loads((tmp_path / name / "scores.json").read_text()) for name in ("split", "narrative"))
    assert split["scores"] == narrative["scores"]


def test_removed_parts_are_listed_with_reason_and_position(run: Run, tmp_path: Path) -> None:
    (tmp_path / "pairs.csv").write_text(PAIRS)
    run("split", "pairs.csv", "--judge", "offline", "--out", "sentences.json")
    rows = [row for _, row in read_jsonl(tmp_path / "sentences.removed.jsonl")]
    assert [(row["sample_id"], row["field"], row["reason"]) for row in rows] == [
        ("a", "prediction", "speculation"),
        ("a", "target", "recommendation"),
    ]
    narrative = "Small effusion on the left. Possible pneumonia."
    assert "Possible pneumonia" in narrative[rows[0]["start"] : rows[0]["end"]]


def test_drafts_and_references_keep_their_fields(run: Run, tmp_path: Path) -> None:
    sentences = [{"text": "Old rib fracture."}]
    rows = [
        {"sample_id": "draft", "report": "No effusion or pneumothorax.", "model": "m"},
        {"sample_id": "split before", "report": sentences},
        {"sample_id": "reference", "findings": "Clear lungs.", "frontal": "a.png"},
        {"sample_id": "grounded", "findings": "Narrative.", "grounded_findings": sentences},
    ]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert run("split", "rows.jsonl", "--judge", "offline", "--out", "out.jsonl")[0] == 0
    draft, before, reference, grounded = (row for _, row in read_jsonl(tmp_path / "out.jsonl"))
    assert _texts(draft["report"]) == ["No effusion.", "No pneumothorax."]
    assert draft["model"] == "m"
    assert (before, grounded) == (rows[1], rows[3])
    assert _texts(reference["grounded_findings"]) == ["Clear lungs."]
    assert reference["findings"] == "Clear lungs."


def test_a_failed_narrative_is_excluded_and_named(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    explain = OfflineSplitter.explain

    def fail_once(self: OfflineSplitter, narratives: list[str]) -> list[object]:
        return [Failure("no valid response") if "Clear" in text else explain(self, [text])[0] for text in narratives]

    monkeypatch.setattr(OfflineSplitter, "explain", fail_once)
    (tmp_path / "pairs.csv").write_text(PAIRS)
    code, out, _ = run("split", "pairs.csv", "--judge", "offline", "--out", "sentences.json")
    assert code == ExitCode.INCOMPLETE
    assert "b: no valid response" in out
    assert [row["example_id"] for row in json.loads((tmp_path / "sentences.json").read_text())] == ["a"]


@pytest.mark.parametrize(
    ("name", "out", "code"),
    [("pairs.csv", "out.jsonl", "[invalid-option]"), ("pairs.txt", "out.jsonl", "[invalid-format]")],
)
def test_files_of_another_layout_are_refused(run: Run, tmp_path: Path, name: str, out: str, code: str) -> None:
    (tmp_path / name).write_text(PAIRS)
    status, _, error = run("split", name, "--judge", "offline", "--out", out)
    assert status == ExitCode.INVALID_INPUT
    assert error.strip().endswith(code)
    assert not (tmp_path / out).exists()
