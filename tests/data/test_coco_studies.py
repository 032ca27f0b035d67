"""Studies of a COCO file: detections, captions, and both."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from error_checks import raises
from PIL import Image

from maira.data.dicom.convert import radiograph_to_png
from maira.data.sources.coco import read_coco_studies

IMAGES = [
    {"id": 1, "file_name": "a/1.png", "width": 200, "height": 100},
    {"id": 2, "file_name": "a/2.png", "width": 200, "height": 100},
]


def _write(folder: Path, annotations: list[dict[str, Any]], images: list[dict[str, Any]] = IMAGES) -> Path:
    path = folder / "coco.json"
    categories = [{"id": 5, "name": "Nodule"}]
    path.write_text(json.dumps({"images": images, "annotations": annotations, "categories": categories}))
    return path


def test_detections_are_grounded_findings_and_phrases(tmp_path: Path) -> None:
    boxes = [[20, 10, 40, 20], [100, 50, 20, 10]]
    archive = read_coco_studies(
        _write(tmp_path, [{"image_id": 1, "category_id": 5, "bbox": box} for box in boxes]), tmp_path / "radiographs"
    )
    first, second = archive.studies
    assert first.grounded_findings is not None
    assert [(s.text, len(s.boxes or ())) for s in first.grounded_findings] == [("Nodule", 2)]
    assert first.phrases == first.grounded_findings
    assert first.radiographs[0].path == tmp_path / "radiographs/a/1.png"
    assert (second.findings, second.grounded_findings, second.phrases) == (None, None, None)


@pytest.mark.parametrize("box", [[0, 0, 10, 10], None])
def test_captions_are_a_grounded_report_with_a_box_and_else_a_narrative(tmp_path: Path, box: list[int] | None) -> None:
    annotations = [{"image_id": 1, "caption": "A mass."} | ({"bbox": box} if box else {})]
    annotations += [{"image_id": 1, "caption": "No effusion."}]
    first = read_coco_studies(_write(tmp_path, annotations)).studies[0]
    assert [s.text for s in first.grounded_findings or ()] == (["A mass.", "No effusion."] if box else [])
    assert [s.text for s in first.phrases or ()] == (["A mass."] if box else [])
    assert first.findings == (None if box else "A mass. No effusion.")


@pytest.mark.parametrize(
    "annotation",
    [
        {"image_id": 1, "category_id": 5, "bbox": [0, 0, 10]},
        {"image_id": 1, "category_id": 5, "bbox": [0, 0, 900, 10]},
        {"image_id": 1, "category_id": 9},
    ],
)
def test_an_invalid_annotation_excludes_its_study(tmp_path: Path, annotation: dict[str, Any]) -> None:
    good = [{"image_id": image, "category_id": 5, "bbox": [0, 0, 10, 10]} for image in (1, 2)]
    archive = read_coco_studies(_write(tmp_path, [good[0], annotation, good[1]]))
    assert [s.study_id for s in archive.studies] == ["2"]
    (failure,) = archive.failures
    assert (failure.source, failure.stage) == ("1", "read")
    assert "annotations[1]" in failure.reason


def test_a_radiograph_of_another_size_than_its_boxes_is_not_converted(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    Image.fromarray(np.arange(5000, dtype=np.uint8).reshape(50, 100)).save(tmp_path / "a/1.png")
    radiograph = read_coco_studies(_write(tmp_path, [])).studies[0].radiographs[0]
    with raises("1.png: mismatch"):
        radiograph_to_png(radiograph, tmp_path / "out.png", 32)
