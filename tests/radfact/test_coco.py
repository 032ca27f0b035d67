"""Regions of COCO files. What their other annotations become is in `readable_reports.yaml`."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pycocotools import mask as coco

from radfact.errors import InputError
from radfact.io.coco import decode_mask, read_coco
from radfact.io.pairs import read_pairs

DATASET = {"images": [{"id": 1, "width": 200, "height": 100}], "categories": [{"id": 7, "name": "Nodule"}]}
PIXELS = np.zeros((100, 200), dtype=np.uint8)
PIXELS[10:40, 10:30] = 1
PACKED = coco.encode(np.asfortranarray(PIXELS))["counts"].decode()


@pytest.mark.parametrize(
    "segmentation",
    [
        [[10, 10, 30, 10, 30, 40, 10, 40]],
        {"size": [100, 200], "counts": PACKED},
        {"size": [100, 200], "counts": [1010, 30, *[70, 30] * 19, 17060]},
    ],
    ids=["polygons", "packed runs", "runs"],
)
def test_a_segmentation_becomes_a_mask_and_overrides_the_bbox(segmentation: Any, tmp_path: Path) -> None:
    annotation = {"image_id": 1, "category_id": 7, "segmentation": segmentation, "bbox": [0, 0, 200, 100]}
    (tmp_path / "coco.json").write_text(json.dumps(DATASET | {"annotations": [annotation]}))
    (sentence,) = read_coco(tmp_path / "coco.json")["1"]
    assert sentence.boxes is None
    assert sentence.masks is not None
    assert (decode_mask(sentence.masks[0]) == PIXELS).all()


def test_a_dataset_given_as_pairs_is_refused_with_a_hint(tmp_path: Path) -> None:
    (tmp_path / "gt.json").write_text(json.dumps(DATASET))
    with pytest.raises(InputError, match="COCO files are given as --candidates and --references"):
        read_pairs(tmp_path / "gt.json")
