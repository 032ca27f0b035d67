"""Splitting the findings of a manifest into sentences, with a map from narratives to sentences."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from error_checks import raises
from typer.testing import CliRunner, Result

from maira.cli.main import app
from maira.data.manifest import Failure as LeftOut
from maira.data.manifest import read_failures, read_manifest, write_failures, write_manifest
from maira.data.sentences import split_findings
from maira.data.study import Study
from radfact.errors import Failure
from radfact.judges import SplitSentence
from radfact.judges.offline_splitter import OfflineSplitter
from radfact.records import Box, Sentence

LISTING_2 = (
    "Chest x-rays were taken in the upright and lateral positions. Diffuse peribronchovascular opacities are observed "
    "throughout the lungs. No lobar consolidation, effusion, or pneumothorax is detected."
)


class Failing(OfflineSplitter):
    """Splits every narrative except those that contain "failure", and counts its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []

    def explain(self, narratives: Sequence[str]) -> list[list[SplitSentence] | Failure]:
        self.asked += narratives
        return [
            Failure("no valid answer") if "failure" in text else [SplitSentence(text, tuple(text.split("; ")))]
            for text in narratives
        ]


def study(sample_id: str, findings: str | None, **fields: Any) -> Study:
    return Study(**{"sample_id": sample_id, "frontal": Path("/images/a.png"), "findings": findings} | fields)


def texts(sentences: Sequence[Sentence] | None) -> list[str]:
    return [sentence.text for sentence in sentences or ()]


def test_listing_2_is_split_and_mapped() -> None:
    result = split_findings([study("a", LISTING_2)], OfflineSplitter())
    assert texts(result.studies[0].grounded_findings) == [
        "Diffuse peribronchovascular opacities are observed throughout the lungs.",
        "No lobar consolidation is detected.",
        "No effusion is detected.",
        "No pneumothorax is detected.",
    ]
    assert [len(sentence.new) for sentence in result.splits["a"]] == [0, 1, 3]
    assert list(result.counts.values()) == [1, 3, 4, 1, 1, len(LISTING_2.split()), 8 + 5 + 4 + 4]


def test_two_samples_of_one_study_are_split_once() -> None:
    splitter = Failing()
    result = split_findings([study("a", "One; two"), study("b", "One; two")], splitter)
    assert splitter.asked == ["One; two"]
    assert [texts(one.grounded_findings) for one in result.studies] == [["One", "two"]] * 2
    assert result.counts["reports"] == 1


def test_unsplittable_reports_are_listed_with_a_reason() -> None:
    result = split_findings([study("a", None), study("b", "A failure"), study("c", "One")], Failing())
    assert [one.sample_id for one in result.studies] == ["c"]
    assert [(f.sample_id, f.reason) for f in result.failures] == [
        ("a", "no findings section"),
        ("b", "no valid answer"),
    ]


def test_annotated_sentences_are_kept() -> None:
    box = Box(x_min=0, y_min=0, x_max=1, y_max=1)
    grounded = study("a", "One; two", grounded_findings=[Sentence(text="Kept.", boxes=(box,))])
    result = split_findings([grounded], Failing())
    assert (result.studies, result.unchanged) == ([grounded], 1)


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_the_command_writes_manifest_map_statistics_and_failures(tmp_path: Path) -> None:
    write_manifest(tmp_path / "manifest.jsonl", [study("a", LISTING_2), study("b", None)])
    write_failures(tmp_path / "failures.jsonl", [LeftOut(source="radiograph.dcm", stage="convert", reason="damaged")])
    out = tmp_path / "sentences.jsonl"
    options = ("--judge", "offline", "--compare", "offline", "--out", out)
    result = run("sentences", tmp_path / "manifest.jsonl", *options)
    assert result.exit_code == 3, result.output
    [made] = read_manifest(out)
    assert made.grounded_findings is not None
    rows = [json.loads(line) for line in (tmp_path / "sentences.map.jsonl").read_text().splitlines()]
    assert [sentence for row in rows for sentence in row["new"]] == texts(made.grounded_findings)
    record = json.loads((tmp_path / "sentences.changes.json").read_text())
    assert record["changes"]["removed"] == 1
    assert record["scores"]["logical_precision"]["point"] == 1.0
    # Failures of the preparation are still listed.
    assert [f.source for f in read_failures(tmp_path / "failures.jsonl")] == ["radiograph.dcm", "sentences.jsonl"]


@pytest.mark.parametrize("words", [["sentences", "--judge", "offline"], ["annotate", "export"]])
def test_an_empty_manifest_is_refused(words: list[str], tmp_path: Path) -> None:
    (tmp_path / "manifest.jsonl").write_text("")
    with raises("manifest.jsonl: empty-input"):
        CliRunner().invoke(app, [*words, f"{tmp_path}/manifest.jsonl", "--out", "out"], catch_exceptions=False)


def test_annotated_sentences_become_a_grounded_manifest(tmp_path: Path) -> None:
    folder = tmp_path / "set"
    manifest, phrases = folder / "manifest.jsonl", folder / "phrases.jsonl"
    images = folder / "images"
    write_manifest(
        manifest, [study("a", "Left effusion.", frontal=images / "a.png"), study("b", None, frontal=images / "b.png")]
    )
    assert run("sentences", manifest, "--judge", "offline", "--as", "phrases", "--out", phrases).exit_code == 3
    assert run("annotate", "export", phrases, "--out", tmp_path / "tasks").exit_code == 0
    tasks = json.loads((tmp_path / "tasks" / "tasks.json").read_text())
    assert tasks[0]["data"]["image"] == "/data/local-files/?d=set/images/a.png"
    [phrase] = tasks[0]["data"]["phrases"]
    choices = (("quality", "No issue", "image"), ("label_0", "A. Finding", "phrase_0"))
    results: list[dict[str, Any]] = [
        {"from_name": name, "to_name": to, "type": "choices", "value": {"choices": [value]}}
        for name, value, to in choices
    ]
    box = {"x": 10, "y": 20, "width": 30, "height": 40, "rotation": 0, "rectanglelabels": [phrase["value"]]}
    results.append({"from_name": "box", "to_name": "image", "type": "rectanglelabels", "value": box})
    annotations = [{"completed_by": who, "result": results} for who in (1, 2)]
    (tmp_path / "export.json").write_text(json.dumps([tasks[0] | {"annotations": annotations}]))
    out = tmp_path / "grounded" / "manifest.jsonl"
    imported = ("annotate", "import", tmp_path / "export.json", "--manifest", phrases, "--out", out)
    result = run(*imported)
    assert result.exit_code == 3
    assert "2 annotators (1, 2)" in result.output
    result = run(*imported, "--combine", "union", "--overwrite")
    assert result.exit_code == 0, result.output
    [made] = read_manifest(out)
    assert made.grounded_findings is not None
    assert made.grounded_findings[0].boxes is not None
    assert made.grounded_findings[0].boxes[0].as_tuple() == pytest.approx((0.1, 0.2, 0.4, 0.6))
    [pair] = json.loads((out.parent / "manifest.agreement.json").read_text())["pairs"]
    assert pair["mean_iou"] == pytest.approx(1)
    assert len((out.parent / "manifest.annotations.jsonl").read_text().splitlines()) == 2
    assert not (out.parent / "failures.jsonl").exists()
