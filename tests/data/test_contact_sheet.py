"""The contact sheet as a reader meets it: opened from disk in a real browser."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from error_checks import raises
from results_folder import HOSTILE, page_data, write_image

from maira.data.contact_sheet import write_contact_sheet
from maira.data.manifest import write_manifest
from maira.data.study import Study
from radfact.records import Box, Sentence

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

OpenPage = Callable[..., "Page"]

pytestmark = pytest.mark.browser

FULL = yaml.safe_load(Path(__file__).with_name("manifest.yaml").read_text(encoding="utf-8"))["shown"]
CORNER = Box(x_min=0, y_min=0, x_max=0.5, y_max=0.5)


def _study(sample_id: str, **fields: Any) -> Study:
    return Study.model_validate({"sample_id": sample_id, "frontal": Path("frontal.png"), **fields})


def _folder(root: Path) -> Path:
    for name, width, height in (("frontal", 400, 200), ("lateral", 100, 200), ("prior", 100, 100)):
        write_image(root / f"{name}.png", width, height)
    hostile = _study(HOSTILE, findings=HOSTILE, lateral=Path("lost.png"))
    write_manifest(root / "manifest.jsonl", [Study.model_validate(FULL), hostile, _study("bare")])
    return root / "manifest.jsonl"


@pytest.fixture(scope="module")
def sheet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("sheet")
    write_contact_sheet(_folder(root), root / "sheet.html")
    return root / "sheet.html"


@pytest.fixture
def page(open_page: OpenPage, sheet: Path) -> Page:
    return open_page(sheet.as_uri())


def card(page: Page, sample_id: str = "full") -> Locator:
    return page.locator(f"article[data-sample='{sample_id}']")


def drawn_boxes(page: Page, kind: str = "frontal") -> list[str]:
    return sorted(card(page).locator(f"[data-kind={kind}] .box-viewer-label").all_text_contents())


def test_boxes_are_those_of_the_checked_groups_and_the_pointed_sentence(page: Page) -> None:
    drawn = {kind: drawn_boxes(page, kind) for kind in ("frontal", "prior_frontal", "lateral")}
    assert drawn == {"frontal": ["F1", "F3", "P1"], "prior_frontal": ["F1"], "lateral": []}
    card(page).get_by_text("the effusion", exact=True).hover()
    assert (drawn_boxes(page), drawn_boxes(page, "prior_frontal")) == (["P1"], [])
    page.get_by_role("checkbox", name="Phrases").uncheck()
    page.get_by_role("checkbox", name="Labels").check()
    assert drawn_boxes(page) == ["F1", "F3", "L1", "L1"]
    # The dashed box lies on the solid one that is the same.
    assert card(page).locator("[data-kind=frontal] .box-viewer-label").all_text_contents()[-2:] == ["L1", "F1"]


def test_boxes_are_drawn_at_their_position(page: Page) -> None:
    frontal = card(page).locator("[data-kind=frontal] .box-viewer-image")
    frontal.evaluate("node => node.decode()")
    box = card(page).locator("[data-kind=frontal] .box-viewer-box[data-id=findings-0]")
    sides = """node => {
        const { x, y, width, height } = node.getBoundingClientRect()
        return [x, y, width, height]
    }"""
    x, y, width, height = frontal.evaluate(sides)
    left, top, box_width, box_height = box.evaluate(sides)
    assert width / height == pytest.approx(2, abs=0.01)
    shares = [(left - x) / width, (top - y) / height, box_width / width, box_height / height]
    assert shares == pytest.approx([0.5, 0.25, 0.25, 0.5], abs=0.005)


def test_hostile_text_missing_images_and_the_filter(page: Page) -> None:
    assert page.locator("article").nth(1).locator(".prose").text_content() == HOSTILE
    assert page.title().startswith("Contact sheet: ")
    assert page.get_by_text("lost.png: no such image").is_visible()
    page.get_by_role("searchbox").fill("COUGH archive")
    assert page.locator("article").count() == 1
    assert page.get_by_role("status").text_content() == "1 of 3 samples"
    assert page.locator(".judge").text_content() == "All samples of the manifest."


def test_two_thousand_samples_stay_usable_with_images_in_files(open_page: OpenPage, tmp_path: Path) -> None:
    root = tmp_path / "many #1"
    root.mkdir()
    _folder(root)
    box = (CORNER,)
    studies = [_study(f"s{n}", grounded_findings=[Sentence(text=f"Finding {n}.", boxes=box)]) for n in range(2000)]
    write_manifest(root / "manifest.jsonl", studies)
    write_contact_sheet(root / "manifest.jsonl", root / "sheet.html", count=None)
    assert len(list((root / "sheet_images").iterdir())) == 1
    page = open_page((root / "sheet.html").as_uri())
    image = page.locator(".box-viewer-image").first
    image.evaluate("node => node.decode()")
    assert image.evaluate("node => node.naturalWidth") == 400
    page.get_by_role("searchbox").fill("finding 1999.")
    assert page.get_by_role("status").text_content() == "1 of 2000 samples"


def _shown(manifest: Path, out: Path, **options: Any) -> list[str]:
    write_contact_sheet(manifest, out, **options)
    return [study["sample_id"] for study in page_data(out)["studies"]]


def test_samples_are_drawn_by_seed_or_named_and_only_they_must_be_valid(tmp_path: Path) -> None:
    forty, out = tmp_path / "manifest.jsonl", tmp_path / "out.html"
    write_manifest(forty, [_study(f"s{n}") for n in range(40)])
    with raises("manifest.jsonl: sample_id: unknown-name"):
        write_contact_sheet(forty, out, sample_ids=["s3", "s99"])
    assert not out.exists()
    draws = [_shown(forty, out, count=10, seed=seed) for seed in (1, 1, 2)]
    assert len(draws[0]) == 10
    assert draws[0] == draws[1] != draws[2]
    with forty.open("a") as handle:
        handle.write('{"sample_id": "broken", "labels": "none"}\n')
    assert _shown(forty, out, sample_ids=["s7", "s3"]) == ["s3", "s7"]
