"""Phrases to locate, from tables, JSON Lines and manifests."""

import json
from pathlib import Path

import pytest

from maira.data.manifest import read_manifest
from maira.grounding.phrases import Phrase, manifest_phrases, read_phrases
from radfact.errors import ErrorCode, InputError
from radfact.records import Box, Sentence


def test_csv_and_json_lines_are_equivalent(tmp_path: Path) -> None:
    (tmp_path / "p.csv").write_text('sample_id,phrase\na,"Mass, left"\nb,Effusion\n\na,Nodule\n')
    rows = [("a", "Mass, left"), ("b", "Effusion"), ("a", "Nodule")]
    (tmp_path / "p.jsonl").write_text("".join(json.dumps({"sample_id": s, "text": t}) + "\n" for s, t in rows))
    expected = [
        Phrase("a", 0, Sentence(text="Mass, left")),
        Phrase("b", 0, Sentence(text="Effusion")),
        Phrase("a", 1, Sentence(text="Nodule")),
    ]
    assert read_phrases(tmp_path / "p.csv", ["a", "b"]) == expected
    assert read_phrases(tmp_path / "p.jsonl", ["a", "b"]) == expected


def test_json_lines_have_boxes(tmp_path: Path) -> None:
    row = {"sample_id": "a", "phrase": "Mass", "boxes": [{"x_min": 0.1, "y_min": 0.2, "x_max": 0.3, "y_max": 0.4}]}
    (tmp_path / "p.jsonl").write_text(json.dumps(row))
    (phrase,) = read_phrases(tmp_path / "p.jsonl", ["a"])
    assert phrase.sentence.boxes == (Box(x_min=0.1, y_min=0.2, x_max=0.3, y_max=0.4),)


@pytest.mark.parametrize(
    ("name", "text", "code", "line", "field"),
    [
        ("p.csv", "sample_id,phrase\nstudy-1,Mass\nstudy_2,Mass\n", ErrorCode.UNKNOWN_NAME, 3, "sample_id"),
        ("p.csv", "sample_id,phrase\nstudy-1,  \n", ErrorCode.INVALID_VALUE, 2, "phrase"),
        ("p.csv", "sample_id,finding\nstudy-1,Mass\n", ErrorCode.INVALID_FORMAT, 1, None),
        ("p.csv", "sample_id,phrase,boxes\nstudy-1,Mass,\n", ErrorCode.INVALID_FORMAT, 1, None),
        ("p.csv", "", ErrorCode.INVALID_FORMAT, 1, None),
        ("p.csv", "sample_id;phrase\nstudy-1;Mass\n", None, 1, None),
        ("p.txt", "sample_id,phrase\nstudy-1,Mass\n", ErrorCode.INVALID_FORMAT, None, None),
        ("p.csv", "sample_id,phrase\nstudy-1,Mass, left\n", None, 2, None),
        ("p.csv", "sample_id,phrase\nstudy-1,Mass\nstudy-2,Mass\nstudy-1,Mass\n", ErrorCode.DUPLICATE, 4, "phrase"),
        ("p.csv", "sample_id,phrase\n", ErrorCode.EMPTY_INPUT, None, None),
        ("p.jsonl", '{"phrase": "Mass"}', ErrorCode.MISSING_FIELD, 1, "sample_id"),
        ("p.jsonl", '{"sample_id": [], "text": "a"}', ErrorCode.INVALID_VALUE, 1, "sample_id"),
        ("p.jsonl", '{"sample_id": "study-1"}', ErrorCode.MISSING_FIELD, 1, "phrase"),
        ("p.jsonl", '{"sample_id": "study-1", "phrase": "a", "text": "a"}', ErrorCode.DUPLICATE, 1, "phrase"),
        ("p.jsonl", '{"sample_id": "study-1", "text": null}', ErrorCode.INVALID_VALUE, 1, "text"),
        ("p.jsonl", '{"sample_id": "study-1", "text": "a", "box": []}', None, 1, "box"),
        ("p.jsonl", '{"sample_id": "study-1", "text": "a", "boxes": [{"x_min": 2}]}', None, 1, "boxes[0].x_min"),
    ],
)
def test_unusable_phrases_are_errors_with_their_line(
    tmp_path: Path, name: str, text: str, code: ErrorCode | None, line: int | None, field: str | None
) -> None:
    """None as the code leaves it to the readers of tables and records."""
    (tmp_path / name).write_text(text)
    with pytest.raises(InputError) as caught:
        read_phrases(tmp_path / name, ["study-1", "study-2"])
    error = caught.value
    assert (error.file, error.line, error.field) == (tmp_path / name, line, field)
    assert error.code is code or code is None


def test_phrases_follow_manifest_order(phantoms: Path) -> None:
    studies = read_manifest(phantoms)
    assert [(p.sample_id, p.index, p.sentence) for p in manifest_phrases(studies)] == [
        (study.sample_id, index, sentence) for study in studies for index, sentence in enumerate(study.phrases or [])
    ]
