"""What is reviewed: drafts with their studies, their images and RadFact's verdicts."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
import pytest
from error_checks import raises
from PIL import Image
from review_files import REFERENCE, REPORT, write_set

from maira.review.images import LONGEST_SIDE, as_png, describe_images
from maira.review.studies import ReviewSet, read_review_drafts, read_review_set
from radfact.io.jsonl import write_jsonl


def read_one(folder: Path, **study: Any) -> ReviewSet:
    return read_review_set(*write_set(folder, {"one": REPORT}, {"one": study}))


def test_studies_follow_draft_order(tmp_path: Path) -> None:
    drafts, manifest = write_set(tmp_path, {"two": REPORT, "one": [], "six": REPORT})
    review = read_review_set(drafts, manifest)
    assert [study.sample_id for study in review.studies] == ["two", "one", "six"]
    assert [len(draft.sentences) for draft in review.drafts] == [2, 0, 2]


def test_a_narrative_is_split_into_sentences(tmp_path: Path) -> None:
    drafts, _ = write_set(tmp_path, {"one": "Heart size is normal. No effusion, Dr. Smith notes."})
    (draft,) = read_review_drafts(drafts)
    assert draft.is_narrative
    assert [sentence.text for sentence in draft.sentences] == ["Heart size is normal", "No effusion, Dr. Smith notes"]


def test_the_reference_is_grounded_if_available(tmp_path: Path) -> None:
    grounded = read_one(tmp_path, findings="Clear lungs.")
    assert [sentence.text for sentence in grounded.reference(1)] == [REFERENCE[0]["text"]]
    narrative = read_one(tmp_path, grounded_findings=None, findings="Clear lungs. Normal heart.")
    assert [sentence.text for sentence in narrative.reference(1)] == ["Clear lungs", "Normal heart"]
    assert read_one(tmp_path, grounded_findings=None).reference(1) == []


def test_a_draft_without_its_study_is_refused(tmp_path: Path) -> None:
    drafts, manifest = write_set(tmp_path, {"one": REPORT})
    write_jsonl(drafts, [{"sample_id": "six", "report": REPORT}])
    with raises("drafts.jsonl: mismatch"):
        read_review_set(drafts, manifest)


def test_a_study_without_a_frontal_image_is_refused(tmp_path: Path) -> None:
    drafts, manifest = write_set(tmp_path, {"one": REPORT}, {"one": {"frontal": None}})
    with raises("drafts.jsonl: mismatch"):
        read_review_set(drafts, manifest)


def test_an_empty_drafts_file_is_refused(tmp_path: Path) -> None:
    with raises("drafts.jsonl: empty-input"):
        read_review_set(*write_set(tmp_path, {}))


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


def test_results_of_other_drafts_are_refused(tmp_path: Path) -> None:
    drafts, manifest = write_set(tmp_path, {"one": REPORT})
    write_jsonl(tmp_path / "sentences.jsonl", [verdict(0, "Another sentence.")])
    with raises("sentences.jsonl: mismatch"):
        read_review_set(drafts, manifest, results=tmp_path)


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
    assert describe_images(review, 1)["frontal"] == {"message": "the image is outside the manifest's folder"}


def test_images_outside_the_folder_are_counted_and_can_be_allowed(tmp_path: Path, outside: Path) -> None:
    drafts, manifest = write_set(tmp_path, {"one": REPORT}, {"one": {"frontal": str(outside)}})
    assert read_review_set(drafts, manifest).images_outside() == 1
    review = read_review_set(drafts, manifest, image_folders=[outside.parent])
    assert review.images_outside() == 0
    assert review.image(1, "frontal") == outside.resolve()


def test_image_sizes_are_those_of_the_original(tmp_path: Path) -> None:
    assert describe_images(read_one(tmp_path, lateral="lost.png"), 1) == {
        "frontal": {"url": "/images/1/frontal", "width": 40, "height": 20},
        "lateral": {"message": "no such image"},
        "prior_frontal": None,
    }


def test_an_oversized_image_is_refused_by_its_header(tmp_path: Path) -> None:
    review = read_one(tmp_path)
    png = bytearray((tmp_path / "radiograph.png").read_bytes())
    header = png[12:16] + (60_000).to_bytes(4, "big") * 2 + png[24:29]
    (tmp_path / "radiograph.png").write_bytes(
        bytes(png[:12]) + header + crc32(header).to_bytes(4, "big") + bytes(png[33:])
    )
    assert describe_images(review, 1)["frontal"] == {"message": "more pixels than a radiograph has"}


def test_images_are_served_as_8_bit_gray_at_screen_size(tmp_path: Path) -> None:
    Image.fromarray(np.full((30, 4096), 40_000, np.uint16)).save(tmp_path / "deep.png")
    for full, width in ((False, LONGEST_SIDE), (True, 4096)):
        with Image.open(BytesIO(as_png(tmp_path / "deep.png", full=full))) as shown:
            assert (shown.format, shown.mode, shown.width) == ("PNG", "L", width)


def test_8_bit_values_are_kept_and_16_bit_values_are_stretched(tmp_path: Path) -> None:
    for depth, values in ((np.uint8, [10, 20, 30]), (np.uint16, [1000, 2000, 3000])):
        Image.fromarray(np.array([values], depth)).save(tmp_path / f"{depth.__name__}.png")
    shown = [np.asarray(Image.open(BytesIO(as_png(tmp_path / f"uint{bits}.png", full=True)))) for bits in (8, 16)]
    assert shown[0].tolist() == [[10, 20, 30]]
    assert shown[1].tolist() == [[0, 128, 255]]
