"""Findings on the results page, in a real browser."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from accessibility import check_accessibility
from results_folder import HOSTILE, cards

from radfact import Box, Pair, Sentence, evaluate

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

pytestmark = pytest.mark.browser

BOX = Box(x_min=0.1, y_min=0.5, x_max=0.4, y_max=0.9)
FAR = Box(x_min=0.6, y_min=0.5, x_max=0.9, y_max=0.9)


def grounded(sentences: dict[str, Box | None]) -> list[Sentence]:
    return [Sentence(text=text, boxes=box and (box,)) for text, box in sentences.items()]


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three studies: an effusion elsewhere and an invented nodule, an omitted pneumothorax, and no error."""
    folder = tmp_path_factory.mktemp("findings")
    texts = {
        "side": (
            grounded({"Heart is normal.": None, "Right effusion.": BOX, "Nodule.": None}),
            grounded({"Left effusion.": FAR, "Heart is normal.": None}),
        ),
        "omitted": (grounded({"Cardiomegaly.": None}), grounded({"Cardiomegaly.": None, "Pneumothorax.": BOX})),
        "right": (grounded({f"Effusion {HOSTILE}.": None}), grounded({"Effusion.": None, "No pneumothorax.": None})),
    }
    evaluate([Pair(key, *reports) for key, reports in texts.items()], "findings", bootstrap=0, out=folder)
    return folder / "report.html"


def rows(page: Page, sample_id: str) -> Locator:
    return page.locator(f"article[data-sample='{sample_id}'] .finding-list tbody tr")


def test_studies_are_filtered_by_finding_significance_and_verdict(page: Page) -> None:
    names = ("Finding", "Significance", "Verdict")
    finding, tier, verdict = (page.get_by_role("combobox", name=name) for name in names)
    finding.select_option(label="Pleural effusion (2)")
    assert sorted(cards(page)) == ["right", "side"]
    verdict.select_option(label="Attribute error: region (1)")
    assert cards(page) == ["side"]
    # Only the finding that fits is marked.
    assert rows(page, "side").count() == 2
    assert page.locator("tr.chosen").all_inner_texts() == [rows(page, "side").first.inner_text()]
    verdict.select_option(label="Omitted (1)")
    # The omitted finding is another one.
    assert cards(page) == []
    finding.select_option(label="All")
    assert cards(page) == ["omitted"]
    tier.select_option(label="Urgent (1)")
    verdict.select_option(label="Any error (2)")
    assert cards(page) == ["omitted"]
    assert page.locator("#shown").text_content() == "1 of 3 studies"


def test_a_finding_of_the_table_lists_its_studies(page: Page) -> None:
    page.get_by_text("How many studies have each finding right").click()
    page.get_by_role("combobox", name="Verdict").select_option(label="Correct (2)")
    page.get_by_role("button", name="Pneumothorax").first.press("Enter")
    assert cards(page) == ["omitted"]


def test_a_focused_finding_marks_its_match_and_draws_the_boxes_of_both_sentences(page: Page) -> None:
    side = page.locator("article[data-sample='side']")
    button = rows(page, "side").first.get_by_role("button").first
    assert button.inner_text().split() == ["pleural", "effusion", "on", "the", "right", "C2"]
    button.focus()
    assert side.locator(".is-evidence .number").all_inner_texts() == ["C2"]
    assert side.locator("td .is-evidence").all_inner_texts() == ["pleural effusion on the left\nR1"]
    assert side.locator(".box-viewer-label").all_inner_texts() == ["C2"]


def test_findings_are_accessible_words_that_fit(page: Page) -> None:
    page.get_by_role("combobox", name="Verdict").select_option("error")
    assert rows(page, "omitted").first.locator(".tag").all_inner_texts() == ["✗ omitted", "urgent"]
    assert rows(page, "side").nth(0).locator(".tag").all_inner_texts() == [
        "≠ attribute error: misplaced box",
        "actionable",
    ]
    assert rows(page, "side").nth(1).locator(".tag").all_inner_texts() == ["✗ unsupported", "actionable"]
    check_accessibility(page)
    page.get_by_role("combobox", name="Verdict").select_option("")
    assert HOSTILE in page.locator("article[data-sample='right']").inner_text()
    check_accessibility(page, 1400, 800, 400)
