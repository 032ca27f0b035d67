"""The command radfact split: sentences to read, edit and score, and what was removed."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from radfact.errors import ExitCode, Failure
from radfact.io.jsonl import read_json, read_jsonl
from radfact.judges.offline_splitter import OfflineSplitter

Run = Callable[..., tuple[int, str, str]]

PAIRS = """example_id,prediction,target,patient_id
a,"Small effusion on the left. Possible pneumonia.","The heart is enlarged. Repeat film is recommended.",p1
b,,"Clear lungs.",p2
"""


@pytest.fixture
def split(run_radfact: Run, tmp_path: Path) -> Callable[..., tuple[int, str, str]]:
    def run(name: str, text: str, out: str) -> tuple[int, str, str]:
        (tmp_path / name).write_text(text)
        return run_radfact("split", name, "--judge", "offline", "--out", out)

    return run


def _texts(sentences: list[dict[str, str]]) -> list[str]:
    return [sentence["text"] for sentence in sentences]


def test_pairs_become_sentences_that_can_be_scored_and_a_list_of_removed_parts(
    split: Run, run_radfact: Run, tmp_path: Path
) -> None:
    code, out, _ = split("pairs.csv", PAIRS, "sentences.json")
    assert (code, "2 of 2 samples, 3 sentences, 2 parts removed" in out) == (0, True)
    first, second = read_json(tmp_path / "sentences.json")
    assert _texts(first["prediction"] + first["target"]) == ["Small effusion on the left.", "The heart is enlarged."]
    assert (second["prediction"], second["patient_id"]) == ([], "p2")
    rows = [row for _, row in read_jsonl(tmp_path / "sentences.removed.jsonl")]
    assert [(row["sample_id"], row["field"], row["reason"]) for row in rows] == [
        ("a", "prediction", "speculation"),
        ("a", "target", "recommendation"),
    ]
    narrative = "Small effusion on the left. Possible pneumonia."
    assert "Possible pneumonia" in narrative[rows[0]["start"] : rows[0]["end"]]
    scores = []
    for name in ("sentences.json", "pairs.csv"):
        assert run_radfact("score", name, "--judge", "offline", "--out", f"of-{name}")[0] == 0
        scores.append(read_json(tmp_path / f"of-{name}" / "scores.json")["scores"])
    assert scores[0] == scores[1]


def test_drafts_and_references_keep_their_fields(split: Run, tmp_path: Path) -> None:
    sentences = [{"text": "Old rib fracture."}]
    rows: list[dict[str, Any]] = [
        {"sample_id": "draft", "report": "No effusion or pneumothorax.", "model": "m"},
        {"sample_id": "split before", "report": sentences},
        {"sample_id": "reference", "findings": "Clear lungs.", "frontal": "a.png"},
        {"sample_id": "grounded", "findings": "Narrative.", "grounded_findings": sentences},
    ]
    assert split("rows.jsonl", "".join(json.dumps(row) + "\n" for row in rows), "out.jsonl")[0] == 0
    draft, before, reference, grounded = (row for _, row in read_jsonl(tmp_path / "out.jsonl"))
    assert (_texts(draft["report"]), draft["model"]) == (["No effusion.", "No pneumothorax."], "m")
    assert (before, grounded) == (rows[1], rows[3])
    assert (_texts(reference["grounded_findings"]), reference["findings"]) == (["Clear lungs."], "Clear lungs.")


def test_a_failed_narrative_is_excluded_and_named(split: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    explain = OfflineSplitter.explain

    def fail_once(self: OfflineSplitter, narratives: list[str]) -> list[object]:
        return [Failure("no valid response") if "Clear" in text else explain(self, [text])[0] for text in narratives]

    monkeypatch.setattr(OfflineSplitter, "explain", fail_once)
    code, out, _ = split("pairs.csv", PAIRS, "sentences.json")
    assert (code, "b: no valid response" in out) == (ExitCode.INCOMPLETE, True)
    assert [row["example_id"] for row in read_json(tmp_path / "sentences.json")] == ["a"]


@pytest.mark.parametrize(("name", "code"), [("pairs.csv", "[invalid-option]"), ("pairs.txt", "[invalid-format]")])
def test_files_of_another_layout_are_refused(split: Run, tmp_path: Path, name: str, code: str) -> None:
    status, _, error = split(name, PAIRS, "out.jsonl")
    assert (status, error.strip().endswith(code)) == (ExitCode.INVALID_INPUT, True)
    assert not (tmp_path / "out.jsonl").exists()
