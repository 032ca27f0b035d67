from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from error_checks import raises

from maira.data.archive import Archive, ArchiveStudy
from maira.data.sources.ms_cxr import hold_out, read_ms_cxr
from radfact.errors import InputError

COLUMNS = [
    "dicom_id",
    "category_name",
    "label_text",
    "path",
    "x",
    "y",
    "w",
    "h",
    "image_width",
    "image_height",
    "split",
]

# (image, patient, study, category, phrase, [x, y, w, h], split); every image is 2000 wide and 1000 high.
Row = tuple[str, str, str, str, str, list[int], str]
ROWS: list[Row] = [
    ("a1", "10000032", "50414267", "Pneumonia", "Bibasilar opacities", [200, 500, 400, 250], "train"),
    ("a1", "10000032", "50414267", "Pneumonia", "Bibasilar opacities", [1000, 500, 500, 250], "train"),
    ("a1", "10000032", "50414267", "Edema", "Mild edema", [0, 0, 2000, 1000], "train"),
    ("b1", "11000011", "51029426", "Pneumothorax", "Large right\n pneumothorax", [100, 100, 400, 800], "val"),
    ("c1", "12000022", "52000000", "Edema", "Bibasilar opacities", [100, 100, 400, 800], "test"),
    ("c2", "12000022", "52000000", "Edema", "Bibasilar opacities", [300, 100, 400, 800], "test"),
]


def image_path(row: Row) -> str:
    dicom, patient, study, *_ = row
    return f"files/p{patient[:2]}/p{patient}/s{study}/{dicom}.jpg"


def write_csv(folder: Path, rows: list[Row], version: str = "1.1.0") -> None:
    """As release 1.1.0 has it; the one of 0.1 has no split."""
    columns = COLUMNS if version == "1.1.0" else COLUMNS[:-1]
    with (folder / f"MS_CXR_Local_Alignment_v{version}.csv").open("w", newline="") as handle:
        writer = csv.writer(handle)
        writer.writerow(columns)
        for row in rows:
            cells = [row[0], row[3], row[4], image_path(row), *row[5], 2000, 1000, row[6]]
            writer.writerow(cells[: len(columns)])


def coco(rows: list[Row], version: str = "1.1.0") -> dict[str, Any]:
    names = list(dict.fromkeys(row[0] for row in rows))
    kinds = list(dict.fromkeys(row[3] for row in rows))
    paths = {row[0]: image_path(row) for row in rows}
    return {
        "info": {"version": version},
        "categories": [{"id": number, "name": kind} for number, kind in enumerate(kinds, start=1)],
        "images": [
            {"id": i, "file_name": f"{name}.jpg", "path": paths[name], "width": 2000, "height": 1000}
            for i, name in enumerate(names)
        ],
        "annotations": [
            {"id": i, "image_id": names.index(row[0]), "category_id": kinds.index(row[3]) + 1}
            | {"label_text": row[4], "bbox": row[5]}
            | ({"split": row[6]} if version == "1.1.0" else {})
            for i, row in enumerate(rows)
        ],
    }


def write_json(folder: Path, rows: list[Row], version: str = "1.1.0") -> None:
    (folder / f"MS_CXR_Local_Alignment_v{version}.json").write_text(json.dumps(coco(rows, version)))


@pytest.fixture
def images(tmp_path: Path) -> Path:
    folder = tmp_path / "mimic-cxr-jpg"
    for row in ROWS:
        path = folder / image_path(row)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"never opened")
    return folder


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "ms-cxr"
    folder.mkdir()
    return folder


def boxes(study: ArchiveStudy) -> dict[str, list[tuple[float, float, float, float]]]:
    return {phrase.text: [box.as_tuple() for box in phrase.boxes or ()] for phrase in study.phrases or ()}


Writer = Callable[[Path, list[Row], str], None]
both_formats = pytest.mark.parametrize("write", [write_csv, write_json])


@both_formats
def test_an_image_is_a_study_with_its_phrases_and_their_boxes(write: Writer, root: Path, images: Path) -> None:
    write(root, ROWS, "1.1.0")
    archive = read_ms_cxr(root, images)
    first = archive.studies[0]
    assert (archive.source, archive.failures) == ("ms-cxr", [])
    assert (first.study_id, first.patient_id, first.split) == ("a1", "10000032", "train")
    assert [(radiograph.key, radiograph.path, radiograph.view) for radiograph in first.radiographs] == [
        ("a1", images / "files/p10/p10000032/s50414267/a1.jpg", "frontal")
    ]
    assert boxes(first) == {
        "Bibasilar opacities": [(0.1, 0.5, 0.3, 0.75), (0.5, 0.5, 0.75, 0.75)],
        "Mild edema": [(0.0, 0.0, 1.0, 1.0)],
    }


def test_csv_and_json_are_equivalent(root: Path, images: Path) -> None:
    write_csv(root, ROWS)
    write_json(root, ROWS)
    by_name = [read_ms_cxr(root / f"MS_CXR_Local_Alignment_v1.1.0.{suffix}", images) for suffix in ("csv", "json")]
    assert by_name[0] == by_name[1] == read_ms_cxr(root, images)


def test_the_latest_version_is_taken(root: Path, images: Path) -> None:
    write_csv(root, ROWS[:1], "1.0.0")
    write_json(root, ROWS)
    assert len(read_ms_cxr(root, images).studies) == 4


def test_images_of_the_dicom_release_are_used(root: Path, images: Path) -> None:
    write_csv(root, ROWS)
    for path in images.rglob("*.jpg"):
        path.rename(path.with_suffix(".dcm"))
    archive = read_ms_cxr(root, images)
    assert archive.failures == []
    assert {radiograph.path.suffix for study in archive.studies for radiograph in study.radiographs} == {".dcm"}


def test_a_missing_image_is_listed(root: Path, images: Path) -> None:
    write_csv(root, ROWS)
    (images / image_path(ROWS[3])).unlink()
    archive = read_ms_cxr(root, images)
    assert [study.study_id for study in archive.studies] == ["a1", "c1", "c2"]
    assert [(failure.source, failure.stage) for failure in archive.failures] == [("b1", "read")]


@both_formats
def test_a_box_beyond_the_border_is_clipped(write: Writer, root: Path, images: Path) -> None:
    write(root, [("a1", "10000032", "50414267", "Edema", "Edema", [-10, 500, 3000, 501], "test")], "1.1.0")
    assert boxes(read_ms_cxr(root, images).studies[0]) == {"Edema": [(0.0, 0.5, 1.0, 1.0)]}


@both_formats
@pytest.mark.parametrize("box", [[2000, 0, 10, 10], [0, 0, 0, 10], [10, 10, -5, 10]])
def test_an_empty_box_is_listed(write: Writer, box: list[int], root: Path, images: Path) -> None:
    write(root, [*ROWS, ("a1", "10000032", "50414267", "Edema", "Mild edema", box, "train")], "1.1.0")
    archive = read_ms_cxr(root, images)
    assert boxes(archive.studies[0])["Mild edema"] == [(0.0, 0.0, 1.0, 1.0)]
    (failure,) = archive.failures
    assert failure.source == "a1"
    assert "outside the image" in failure.reason


@both_formats
def test_duplicate_rows_are_one_box(write: Writer, root: Path, images: Path) -> None:
    write(root, [*ROWS, ROWS[0]], "1.1.0")
    assert len(boxes(read_ms_cxr(root, images).studies[0])["Bibasilar opacities"]) == 2


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("path", "p10000032.jpg"),
        ("path", "files/p10/p10000032/s50414267/other.jpg"),
        ("split", "dev"),
        ("label_text", ""),
        ("category_name", ""),
        ("x", "many"),
        ("h", "nan"),
        ("image_width", "0"),
    ],
)
def test_an_invalid_cell_is_an_error(column: str, value: str, root: Path, images: Path) -> None:
    write_csv(root, ROWS)
    path = root / "MS_CXR_Local_Alignment_v1.1.0.csv"
    with path.open(newline="") as handle:
        rows = list(csv.reader(handle))
    rows[2][COLUMNS.index(column)] = value
    with path.open("w", newline="") as handle:
        csv.writer(handle).writerows(rows)
    with pytest.raises(InputError) as caught:
        read_ms_cxr(root, images)
    assert (caught.value.file, caught.value.line, caught.value.field) == (path, 3, column)


@pytest.mark.parametrize(
    ("entry", "change", "field"),
    [
        ("annotations", {"image_id": 77}, "annotations[1].image_id"),
        ("annotations", {"image_id": []}, "annotations[1].image_id"),
        ("annotations", {"category_id": 77}, "annotations[1].category_id"),
        ("annotations", {"bbox": [1, 2, 3]}, "annotations[1].bbox[3]"),
        ("annotations", {"bbox": [1, 2, 3, None]}, "annotations[1].bbox[3]"),
        ("annotations", {"label_text": " "}, "annotations[1].label_text"),
        ("annotations", {"label_text": None}, "annotations[1].label_text"),
        ("annotations", {"label_text": ["Edema"]}, "annotations[1].label_text"),
        ("annotations", {"split": 1}, "annotations[1].split"),
        ("categories", {"name": 3}, "categories[1].name"),
        ("images", {"path": ""}, "annotations[3].path"),
        ("images", {"path": None}, "images[1].path"),
        ("images", {"file_name": 7}, "images[1].file_name"),
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


def test_an_image_in_two_splits_is_an_error(root: Path, images: Path) -> None:
    write_csv(root, [ROWS[0], (*ROWS[1][:6], "test")])
    with pytest.raises(InputError) as caught:
        read_ms_cxr(root, images)
    assert (caught.value.line, caught.value.field) == (3, "split")


# Patient a is in MS-CXR's training fold, b in its validation fold, c in its test fold, d in none.
MIMIC = Archive(
    "mimic-cxr",
    [
        ArchiveStudy("a-train", "10000032", split="train"),
        ArchiveStudy("b-train", "11000011", split="train"),
        ArchiveStudy("51029426", "11000011", split="train"),
        ArchiveStudy("c-train", "12000022", split="train"),
        ArchiveStudy("d-train", "13000033", split="train"),
        ArchiveStudy("unknown", None, split="train"),
    ],
)


@both_formats
def test_ms_cxr_test_patients_are_held_out_of_training(write: Writer, root: Path) -> None:
    write(root, ROWS, "1.1.0")
    held_out = hold_out(MIMIC, root)
    assert [study.study_id for study in held_out.studies] == ["a-train", "d-train", "unknown"]
    assert [(failure.source, failure.reason) for failure in held_out.failures] == [
        ("b-train", "held out of training: its patient is in MS-CXR's validate fold"),
        ("51029426", "held out of training: its patient is in MS-CXR's validate fold"),
        ("c-train", "held out of training: its patient is in MS-CXR's test fold"),
    ]


def test_release_0_1_cannot_hold_out_patients(root: Path) -> None:
    write_csv(root, ROWS, "1.0.0")
    with raises("MS_CXR_Local_Alignment_v1.0.0.csv: split: missing-field"):
        hold_out(MIMIC, root)


@both_formats
def test_splits_have_our_names(write: Writer, root: Path, images: Path) -> None:
    write(root, ROWS, "1.1.0")
    splits = {study.study_id: study.split for study in read_ms_cxr(root, images).studies}
    assert splits == {"a1": "train", "b1": "validate", "c1": "test", "c2": "test"}
