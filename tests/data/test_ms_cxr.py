"""MS-CXR: a miniature of the release as CSV and as JSON, on images of MIMIC-CXR."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from error_checks import raises
from record_files import touch, write_csv

from maira.data.archive import Archive, ArchiveStudy
from maira.data.sources.ms_cxr import hold_out, read_ms_cxr
from radfact.errors import InputError

COLUMNS = ("dicom_id", "category_name", "label_text", "path", *"xywh", "image_width", "image_height", "split")
Row = dict[str, Any]


def row(image: str, study: str, category: str, phrase: str, box: list[int], split: str) -> Row:
    """Return a row of the CSV file; every image is 2000 wide and 1000 high."""
    patient = study.partition("/")[0]
    path = f"files/{patient[:3]}/{study}/{image}.jpg"
    values = image, category, phrase, path, *box, 2000, 1000, split
    return dict(zip(COLUMNS, values, strict=True))


ROWS = [
    row("a1", "p10000032/s50414267", "Pneumonia", "Bibasilar opacities", [200, 500, 400, 250], "train"),
    row("a1", "p10000032/s50414267", "Pneumonia", "Bibasilar opacities", [1000, 500, 500, 250], "train"),
    row("a1", "p10000032/s50414267", "Edema", "Mild edema", [0, 0, 2000, 1000], "train"),
    row("b1", "p11000011/s51029426", "Pneumothorax", "Large right\n pneumothorax", [100, 100, 400, 800], "val"),
    row("c1", "p12000022/s52000000", "Edema", "Bibasilar opacities", [100, 100, 400, 800], "test"),
    row("c2", "p12000022/s52000000", "Edema", "Bibasilar opacities", [300, 100, 400, 800], "test"),
]


def coco(rows: list[Row]) -> dict[str, Any]:
    names = list(dict.fromkeys(row["dicom_id"] for row in rows))
    kinds = list(dict.fromkeys(row["category_name"] for row in rows))
    paths = {row["dicom_id"]: row["path"] for row in rows}
    return {
        "categories": [{"id": number, "name": kind} for number, kind in enumerate(kinds, start=1)],
        "images": [
            {"id": i, "file_name": f"{name}.jpg", "path": paths[name], "width": 2000, "height": 1000}
            for i, name in enumerate(names)
        ],
        "annotations": [
            {"image_id": names.index(row["dicom_id"]), "category_id": kinds.index(row["category_name"]) + 1}
            | {"label_text": row["label_text"], "bbox": [row[side] for side in "xywh"], "split": row["split"]}
            for row in rows
        ],
    }


def write(root: Path, rows: list[Row], suffix: str = "csv", version: str = "1.1.0") -> Path:
    path = root / f"MS_CXR_Local_Alignment_v{version}.{suffix}"
    if suffix == "csv":
        # Release 0.1, whose files have the version 1.0.0, has no split.
        columns = COLUMNS if version == "1.1.0" else COLUMNS[:-1]
        return write_csv(path, columns, ({column: row[column] for column in columns} for row in rows))
    path.write_text(json.dumps(coco(rows)))
    return path


@pytest.fixture
def images(tmp_path: Path) -> Path:
    touch(tmp_path / "mimic-cxr-jpg" / row["path"] for row in ROWS)
    return tmp_path / "mimic-cxr-jpg"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "ms-cxr").mkdir()
    return tmp_path / "ms-cxr"


def boxes(study: ArchiveStudy) -> dict[str, list[tuple[float, float, float, float]]]:
    return {phrase.text: [box.as_tuple() for box in phrase.boxes or ()] for phrase in study.phrases or ()}


both_formats = pytest.mark.parametrize("suffix", ["csv", "json"])


@both_formats
def test_an_image_is_a_study_with_its_phrases_and_their_boxes(suffix: str, root: Path, images: Path) -> None:
    write(root, [*ROWS, ROWS[0]], suffix)
    archive = read_ms_cxr(root, images)
    first = archive.studies[0]
    assert (archive.source, archive.failures) == ("ms-cxr", [])
    assert (first.study_id, first.patient_id) == ("a1", "10000032")
    assert [(radiograph.key, radiograph.path, radiograph.view) for radiograph in first.radiographs] == [
        ("a1", images / "files/p10/p10000032/s50414267/a1.jpg", "frontal")
    ]
    assert boxes(first) == {
        "Bibasilar opacities": [(0.1, 0.5, 0.3, 0.75), (0.5, 0.5, 0.75, 0.75)],
        "Mild edema": [(0.0, 0.0, 1.0, 1.0)],
    }
    splits = {study.study_id: study.split for study in archive.studies}
    assert splits == {"a1": "train", "b1": "validate", "c1": "test", "c2": "test"}


def test_csv_and_json_are_equivalent_and_the_latest_version_is_read(root: Path, images: Path) -> None:
    by_name = [read_ms_cxr(write(root, ROWS, suffix), images) for suffix in ("csv", "json")]
    write(root, ROWS[:1], version="1.0.0")
    assert by_name[0] == by_name[1] == read_ms_cxr(root, images)


def test_images_of_the_dicom_release_are_used_and_missing_ones_listed(root: Path, images: Path) -> None:
    write(root, ROWS)
    for path in images.rglob("*.jpg"):
        path.rename(path.with_suffix(".dcm"))
    (images / ROWS[3]["path"]).with_suffix(".dcm").unlink()
    archive = read_ms_cxr(root, images)
    assert [(failure.source, failure.stage) for failure in archive.failures] == [("b1", "read")]
    assert [study.radiographs[0].path.name for study in archive.studies] == ["a1.dcm", "c1.dcm", "c2.dcm"]


@both_formats
@pytest.mark.parametrize("box", [[2000, 0, 10, 10], [0, 0, 0, 10], [10, 10, -5, 10]])
def test_a_box_is_clipped_and_an_empty_one_listed(suffix: str, box: list[int], root: Path, images: Path) -> None:
    faulty = [ROWS[2] | dict(zip("xywh", sides, strict=True)) for sides in ([-10, 500, 3000, 501], box)]
    write(root, faulty, suffix)
    archive = read_ms_cxr(root, images)
    assert boxes(archive.studies[0]) == {"Mild edema": [(0.0, 0.5, 1.0, 1.0)]}
    (failure,) = archive.failures
    assert failure.source == "a1"
    assert "outside the image" in failure.reason


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("path", "p10000032.jpg"),
        ("path", "files/p10/p10000032/s50414267/other.jpg"),
        ("split", "dev"),
        ("split", "test"),
        ("label_text", ""),
        ("x", "many"),
        ("h", "nan"),
        ("image_width", "0"),
    ],
)
def test_an_invalid_cell_is_an_error(column: str, value: str, root: Path, images: Path) -> None:
    path = write(root, [ROWS[0], ROWS[1] | {column: value}])
    with pytest.raises(InputError) as caught:
        read_ms_cxr(root, images)
    assert (caught.value.file, caught.value.line, caught.value.field) == (path, 3, column)


@pytest.mark.parametrize(
    ("entry", "change", "field"),
    [
        ("annotations", {"image_id": 77}, "annotations[1].image_id"),
        ("annotations", {"category_id": 77}, "annotations[1].category_id"),
        ("annotations", {"bbox": [1, 2, 3]}, "annotations[1].bbox[3]"),
        ("annotations", {"label_text": ["Edema"]}, "annotations[1].label_text"),
        ("annotations", {"split": 1}, "annotations[1].split"),
        ("categories", {"name": 3}, "categories[1].name"),
        ("images", {"path": ""}, "annotations[3].path"),
        ("images", {"path": None}, "images[1].path"),
    ],
)
def test_an_invalid_entry_is_an_error(entry: str, change: dict[str, Any], field: str, root: Path, images: Path) -> None:
    document = coco(ROWS)
    document[entry][1] |= change
    path = root / "MS_CXR_Local_Alignment_v1.1.0.json"
    path.write_text(json.dumps(document))
    with pytest.raises(InputError) as caught:
        read_ms_cxr(root, images)
    assert (caught.value.file, caught.value.field) == (path, field)


@both_formats
def test_ms_cxr_test_patients_are_held_out_of_training(suffix: str, root: Path) -> None:
    # Patient a is in MS-CXR's training fold, b in its validation fold, c in its test fold, d in none.
    patients = {"a": "10000032", "b": "11000011", "b2": "11000011", "c": "12000022", "d": "13000033", "unknown": None}
    studies = [ArchiveStudy(name, patient, split="train") for name, patient in patients.items()]
    write(root, ROWS, suffix)
    held_out = hold_out(Archive("mimic-cxr", studies), root)
    assert [study.study_id for study in held_out.studies] == ["a", "d", "unknown"]
    assert [(failure.source, failure.reason.rpartition("in MS-CXR's ")[2]) for failure in held_out.failures] == [
        ("b", "validate fold"),
        ("b2", "validate fold"),
        ("c", "test fold"),
    ]


def test_release_0_1_cannot_hold_out_patients(root: Path) -> None:
    write(root, ROWS, version="1.0.0")
    with raises("MS_CXR_Local_Alignment_v1.0.0.csv: split: missing-field"):
        hold_out(Archive("mimic-cxr", []), root)
