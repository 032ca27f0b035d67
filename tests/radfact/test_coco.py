import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pycocotools import mask as coco

from radfact.errors import InputError
from radfact.io.coco import decode_mask, read_coco
from radfact.io.pairs import read_candidates_and_references, read_pairs
from radfact.records import Box, Sentence

IMAGES = [{"id": 1, "width": 200, "height": 100, "file_name": "a.png"}, {"id": 2, "width": 100, "height": 100}]
CATEGORIES = [{"id": 7, "name": "Nodule"}, {"id": 8, "name": "Effusion"}]
SQUARE = [10, 10, 30, 10, 30, 40, 10, 40]


def dataset(*annotations: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {"images": IMAGES, "annotations": list(annotations), "categories": CATEGORIES} | changes


def on_first(**fields: Any) -> dict[str, Any]:
    return {"image_id": 1, "category_id": 7} | fields


def document(path: Path, value: Any) -> Path:
    path.write_text(json.dumps(value))
    return path


def only(tmp_path: Path, *annotations: dict[str, Any]) -> Sentence:
    """The one sentence of the first image."""
    (sentence,) = read_coco(document(tmp_path / "coco.json", dataset(*annotations)))["1"]
    return sentence


def box(*corners: float) -> Box:
    return Box(**dict(zip(("x_min", "y_min", "x_max", "y_max"), corners, strict=True)))


@pytest.mark.parametrize(
    ("annotations", "expected"),
    [
        ([on_first(bbox=[20, 10, 60, 40])], Sentence(text="Nodule", boxes=(box(0.1, 0.1, 0.4, 0.5),))),
        # Annotations of a category are one sentence.
        (
            [on_first(bbox=[0, 0, 20, 20]), on_first(bbox=[100, 0, 20, 20])],
            Sentence(text="Nodule", boxes=(box(0, 0, 0.1, 0.2), box(0.5, 0, 0.6, 0.2))),
        ),
        # Detectors round beyond the image.
        ([on_first(bbox=[-0.4, 0, 200.8, 100.5])], Sentence(text="Nodule", boxes=(box(0, 0, 1, 1),))),
        ([on_first(segmentation=[], bbox=[0, 0, 20, 10])], Sentence(text="Nodule", boxes=(box(0, 0, 0.1, 0.1),))),
        ([on_first(caption=" Calcified nodule. ")], Sentence(text="Calcified nodule.")),
    ],
)
def test_an_annotation_becomes_a_sentence_with_boxes(
    annotations: list[dict[str, Any]], expected: Sentence, tmp_path: Path
) -> None:
    assert only(tmp_path, *annotations) == expected
    assert read_coco(tmp_path / "coco.json")["2"] == []


def test_polygons_become_a_mask_and_override_the_bbox(tmp_path: Path) -> None:
    sentence = only(tmp_path, on_first(segmentation=[SQUARE], bbox=[0, 0, 200, 100]))
    assert sentence.boxes is None
    assert sentence.masks is not None
    expected = np.zeros((100, 200), dtype=bool)
    expected[10:40, 10:30] = True
    assert (decode_mask(sentence.masks[0]) == expected).all()


@pytest.mark.parametrize("packed", [True, False])
def test_run_lengths_become_a_mask(packed: bool, tmp_path: Path) -> None:
    pixels = np.zeros((100, 200), dtype=np.uint8)
    pixels[:, :50] = 1
    counts = coco.encode(np.asfortranarray(pixels))["counts"].decode() if packed else [0, 5000, 15000]
    sentence = only(tmp_path, on_first(segmentation={"size": [100, 200], "counts": counts}))
    assert sentence.masks is not None
    assert (decode_mask(sentence.masks[0]) == pixels).all()


def test_an_image_may_name_its_sample(tmp_path: Path) -> None:
    images = [IMAGES[0] | {"sample_id": "study-a"}]
    reports = read_coco(document(tmp_path / "coco.json", dataset(on_first(), images=images)))
    assert reports == {"study-a": [Sentence(text="Nodule")]}


def test_detections_take_sizes_and_names_from_the_references(tmp_path: Path) -> None:
    references = document(tmp_path / "gt.json", dataset(on_first(bbox=[0, 0, 100, 100])))
    results = document(tmp_path / "dt.json", [on_first(bbox=[0, 0, 50, 100], score=0.9)])
    first, second = read_candidates_and_references(results, references)
    half, whole = (0.0, 0.0, 0.25, 1.0), (0.0, 0.0, 0.5, 1.0)
    assert [sentence.boxes[0].as_tuple() for sentence in (*first.candidate, *first.reference)] == [half, whole]
    assert (second.sample_id, second.candidate, second.reference) == ("2", [], [])


def test_candidates_are_paired_with_a_dataset(tmp_path: Path) -> None:
    drafts = tmp_path / "drafts.jsonl"
    drafts.write_text('{"sample_id": "1", "report": [{"text": "Nodule."}]}\n{"sample_id": "2", "report": []}\n')
    references = document(tmp_path / "gt.json", dataset(on_first(bbox=[0, 0, 9, 9])))
    pairs = read_candidates_and_references(drafts, references)
    assert [(len(pair.candidate), len(pair.reference)) for pair in pairs] == [(1, 1), (0, 0)]


def test_a_dataset_given_as_pairs_is_refused_with_a_hint(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="COCO files are given as --candidates and --references"):
        read_pairs(document(tmp_path / "gt.json", dataset()))
