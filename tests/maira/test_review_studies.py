"""What is reviewed: drafts with their studies, counterparts in the reference, images and RadFact's verdicts."""

from io import BytesIO
from pathlib import Path
from typing import Any
from zipfile import ZipFile
from zlib import crc32

import numpy as np
import pytest
from dicom_files import write_dicom
from error_checks import raises
from long_values import DATA
from PIL import Image
from review_files import CASES, REFERENCE, REPORT, write_set

from maira.data.archive import Radiograph
from maira.review.counterparts import find_counterparts
from maira.review.images import Pyramid, describe_study, load_pyramid, thumbnail
from maira.review.studies import ReviewSet, read_review_drafts, read_review_set
from radfact.io.jsonl import write_jsonl


def read_one(folder: Path, **study: Any) -> ReviewSet:
    return read_review_set(*write_set(folder, {"one": REPORT}, {"one": study}))


def test_a_narrative_is_split_into_sentences(tmp_path: Path) -> None:
    drafts, _ = write_set(tmp_path, {"one": "Heart size is normal. No effusion, Dr. Smith notes."})
    (draft,) = read_review_drafts(drafts)
    texts = [sentence.text for sentence in draft.sentences]
    assert (draft.is_narrative, texts) == (True, ["Heart size is normal", "No effusion, Dr. Smith notes"])


def test_the_reference_is_grounded_if_available(tmp_path: Path) -> None:
    grounded = read_one(tmp_path, findings="Clear lungs.")
    assert [sentence.text for sentence in grounded.reference(1)] == [REFERENCE[0]["text"]]
    narrative = read_one(tmp_path, grounded_findings=None, findings="Clear lungs. Normal heart.")
    assert [sentence.text for sentence in narrative.reference(1)] == ["Clear lungs", "Normal heart"]
    assert read_one(tmp_path, grounded_findings=None).reference(1) == []


def verdict(index: int, text: str, **fields: Any) -> dict[str, Any]:
    return {"sample_id": "one", "side": "candidate", "index": index, "text": text, **fields}


def test_verdicts_belong_to_equal_sentences_only(tmp_path: Path) -> None:
    drafts, manifest = write_set(tmp_path, {"one": REPORT, "two": REPORT})
    texts = [str(sentence["text"]) for sentence in REPORT]
    rows = [verdict(index, text, status="entailment", evidence=None, why=None) for index, text in enumerate(texts)]
    unrelated = {**verdict(0, "Another sentence."), "sample_id": "two"}
    write_jsonl(tmp_path / "sentences.jsonl", [*rows[::-1], unrelated, {**rows[0], "side": "reference"}])
    review = read_review_set(drafts, manifest, results=tmp_path)
    assert review.verdicts is not None
    assert {key: [item.index for item in verdicts] for key, verdicts in review.verdicts.items()} == {"one": [0, 1]}
    assert review.unjudged == 1


def test_drafts_of_other_studies_and_results_of_other_drafts_are_refused(tmp_path: Path) -> None:
    drafts, manifest = write_set(tmp_path, {"one": REPORT})
    write_jsonl(tmp_path / "sentences.jsonl", [verdict(0, "Another sentence.")])
    with raises("sentences.jsonl: mismatch"):
        read_review_set(drafts, manifest, results=tmp_path)
    write_jsonl(drafts, [{"sample_id": "six", "report": REPORT}])
    with raises("drafts.jsonl: mismatch"):
        read_review_set(drafts, manifest)


@pytest.fixture
def outside(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("outside")
    write_set(folder, {})
    return folder / "radiograph.png"


@pytest.mark.parametrize("way", ["absolute", "upwards", "link"])
def test_images_outside_the_manifest_folder_are_hidden(tmp_path: Path, outside: Path, way: str) -> None:
    (tmp_path / "link.png").symlink_to(outside)
    upwards = Path("/".join([".."] * len(tmp_path.parts))) / outside.relative_to("/")
    named = {"absolute": outside, "upwards": upwards, "link": Path("link.png")}
    review = read_one(tmp_path, frontal=str(named[way]))
    assert describe_study(review, 1)["images"]["frontal"] == {"message": "the image is outside the manifest's folder"}


def test_an_original_is_shown_where_it_is_allowed(tmp_path: Path, outside: Path) -> None:
    with ZipFile(outside.parent / "originals.zip", "w") as archive:
        archive.write(outside, "deep/one.png")
    original = {"path": str(outside.parent / "originals.zip"), "member": "deep/one.png", "is_inverted": True}
    drafts, manifest = write_set(tmp_path, {"one": REPORT}, {"one": {"originals": {"frontal": original}}})
    hidden = read_review_set(drafts, manifest)
    assert hidden.images_outside() == 1
    assert describe_study(hidden, 1)["images"]["frontal"]["is_original"] is False
    review = read_review_set(drafts, manifest, image_folders=[outside.parent])
    shown = review.image(1, "frontal")
    assert shown is not None
    assert shown[1]
    assert load_pyramid(shown[0]).info["is_inverted"]


def test_missing_images_are_stated(tmp_path: Path) -> None:
    assert describe_study(read_one(tmp_path, lateral="lost.png"), 1)["images"] == DATA["described images"]


def test_an_oversized_image_is_refused_by_its_header(tmp_path: Path) -> None:
    read_one(tmp_path)
    png = bytearray((tmp_path / "radiograph.png").read_bytes())
    header = png[12:16] + (60_000).to_bytes(4, "big") * 2 + png[24:29]
    changed = bytes(png[:12]) + header + crc32(header).to_bytes(4, "big") + bytes(png[33:])
    (tmp_path / "radiograph.png").write_bytes(changed)
    with raises("radiograph.png: invalid-value"):
        pyramid(tmp_path / "radiograph.png")


def pyramid(path: Path) -> Pyramid:
    return load_pyramid(Radiograph("frontal", path, "frontal"))


def output_values(pyramid: Pyramid) -> list[list[float]]:
    values = pyramid.levels[0] * pyramid.info["scale"] + pyramid.info["offset"]
    return [[float(value) for value in row] for row in values]


@pytest.mark.parametrize("depth", [np.uint8, np.uint16])
def test_values_are_those_of_the_file(tmp_path: Path, depth: type[np.unsignedinteger]) -> None:
    scale = np.iinfo(depth).max // 5
    values = np.arange(6, dtype=depth).reshape(2, 3) * depth(scale)
    Image.fromarray(values).save(tmp_path / "values.png")
    assert output_values(pyramid(tmp_path / "values.png")) == values.tolist()


def test_levels_halve_the_resolution(tmp_path: Path) -> None:
    values = np.random.default_rng(0).integers(0, 4096, (601, 1202), np.uint16)
    Image.fromarray(values).save(tmp_path / "deep.png")
    levels = pyramid(tmp_path / "deep.png")
    assert [level.shape for level in levels.levels] == [(601, 1202), (300, 601), (150, 300)]
    means = values[:600, :].reshape(300, 2, 601, 2).mean((1, 3))
    assert np.abs(levels.levels[1] + levels.info["offset"] - means).max() <= 0.5
    assert [levels.level(longest)[1] for longest in (1, 300, 301, 601, 602, 5000)] == [4, 4, 2, 2, 1, 1]


def test_a_dicom_file_is_shown_in_its_own_values_and_windows(tmp_path: Path) -> None:
    values = np.array([[-32768, -100, 0], [100, 200, 32767]], np.int16)
    windows = {"WindowCenter": [40, 50], "WindowWidth": [400, 0], "WindowCenterWidthExplanation": ["NORMAL", "NONE"]}
    rescaled = {"RescaleSlope": -2, "RescaleIntercept": 10, "PhotometricInterpretation": "MONOCHROME1"}
    write_dicom(tmp_path / "one.dcm", values, **windows, **rescaled, PixelSpacing=[0.2, 0.1])
    shown = pyramid(tmp_path / "one.dcm")
    assert output_values(shown) == (values.astype(int) * -2 + 10).tolist()
    # Low output values are bright; pixels are twice as high as wide.
    assert (shown.info["is_inverted"], shown.info["width"], shown.info["height"]) == (True, 3, 4)
    assert shown.info["windows"][:2] == DATA["windows"]


def test_padding_does_not_widen_the_values(tmp_path: Path) -> None:
    values = np.array([[65535, 65535, 300], [100, 200, 65535]], np.uint16)
    write_dicom(tmp_path / "one.dcm", values, PixelPaddingValue=65535)
    assert output_values(pyramid(tmp_path / "one.dcm")) == [[100, 100, 300], [100, 200, 100]]


def test_a_thumbnail_has_256_pixels_and_the_first_window(tmp_path: Path) -> None:
    values = np.repeat(np.repeat(np.array([[100, 200], [300, 400]], np.uint16), 400, 0), 300, 1)
    write_dicom(tmp_path / "one.dcm", values, WindowCenter=200, WindowWidth=200)
    with Image.open(BytesIO(thumbnail(pyramid(tmp_path / "one.dcm")))) as image:
        assert image.size == (192, 256)
        assert [image.getpixel(place) for place in ((9, 9), (150, 9), (9, 200), (150, 200))] == [0, 128, 255, 255]


@pytest.mark.parametrize(("text", "boxes", "places"), CASES["counterparts"])
def test_counterparts_are_about_the_same_subject(text: str, boxes: list[object], places: list[int]) -> None:
    assert find_counterparts([(text, boxes)], CASES["reference"]) == [places]
