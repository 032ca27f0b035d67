"""The explorer of results folders in a real browser."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from shutil import copyfile
from typing import TYPE_CHECKING

import pytest
from accessibility import check_accessibility
from results_folder import EXPLORER, HOSTILE, TOKEN, cards, serve_explorer, write_runs

from radfact import Pair, evaluate

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

pytestmark = pytest.mark.browser

PAIR = "compare?baseline=runs%2Ffirst&system=runs%2Fsecond"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Two runs that can be compared, one of narratives without images or boxes, and an unfinished one."""
    runs = write_runs(tmp_path_factory.mktemp("explorer"))
    narratives = {"clear": f"Lungs are clear. {HOSTILE}", "empty": ""}
    pairs = [Pair(key, text, "The lungs are clear.") for key, text in narratives.items()]
    evaluate(pairs, ["radfact", "rouge_l"], judge="offline", bootstrap=0, out=runs / "narratives")
    (runs / "unfinished").mkdir()
    for name in ("run.json", "samples.jsonl"):
        copyfile(runs / "first" / name, runs / "unfinished" / name)
    with serve_explorer(runs) as address:
        yield address


@pytest.fixture
def page(open_page: Callable[..., Page], served: str) -> Page:
    page = open_page(f"{served}/?token={TOKEN}", offline=False)
    assert page.url == f"{served}/"
    return page


def card(page: Page, sample_id: str) -> Locator:
    return page.locator(f"article[data-sample='{sample_id}']:not(.loading)")


def test_two_runs_of_the_list_are_compared(page: Page, served: str) -> None:
    rows = page.locator(".runs tbody tr")
    assert rows.locator("th").all_inner_texts() == ["runs/first", "runs/narratives", "runs/second", "runs/unfinished"]
    assert "no scores.json" in rows.nth(3).inner_text()
    page.get_by_label("runs/first: baseline").check()
    page.get_by_label("runs/second: system").check()
    page.get_by_role("button", name="Compare").click()
    assert page.url == f"{served}/{PAIR}"
    assert page.get_by_text("3 studies are in both runs; 1 is only in runs/first.").is_visible()
    page.locator("#pair-scores table").first.wait_for()
    scores = page.locator("#pair-scores tbody").first.locator("th").all_inner_texts()
    assert scores == ["Logical F1 ↑", "Findings ↑"]
    # The empty draft first, and then the other loss.
    assert cards(page) == ["empty", "effusion", "clear"]


def test_the_scores_of_the_list_are_chosen(page: Page, served: str) -> None:
    headings = page.locator(".runs thead th")
    assert headings.all_inner_texts()[6:] == [
        *("Logical F1 ↑", "Grounding F1 ↑", "Spatial F1 ↑", "Findings ↑", "Findings F1 ↑", "ROUGE-L ↑")
    ]
    page.get_by_text("Scores: 6 of").click()
    for name in ("Grounding F1 ↑", "Spatial F1 ↑", "Findings ↑", "Findings F1 ↑", "ROUGE-L ↑"):
        page.get_by_label(name, exact=True).uncheck()
    page.get_by_label("Logical recall ↑", exact=True).check()
    page.get_by_role("button", name="Show").click()
    assert page.url == f"{served}/?scores=logical_f1&scores=logical_recall"
    page.goto(f"{served}/?scores=logical_recall,logical_f1,other")
    assert headings.all_inner_texts()[6:] == ["Logical F1 ↑", "Logical recall ↑"]


def test_a_compared_study_has_both_drafts_and_their_overlaps(page: Page, served: str) -> None:
    page.goto(f"{served}/{PAIR}")
    study = card(page, "effusion")
    study.wait_for()
    assert study.locator(".report h4").all_inner_texts() == ["first", "second", "Reference"]
    reference = study.locator(".report.reference .sentence").first.locator(".verdict")
    assert [" ".join(line.split()) for line in reference.all_inner_texts()] == EXPLORER["verdicts of a reference"]
    assert study.locator(".picture .box-viewer-label").all_inner_texts() == ["B1", "C1", "R1"]
    study.get_by_role("button", name="C2 Cardiomegaly.").hover()
    assert study.locator(".picture .box-viewer-label").count() == 0
    study.get_by_role("button", name="Frontal of effusion: enlarge").click()
    dialog = page.locator("dialog")
    page.get_by_label("first boxes").uncheck()
    assert sorted(dialog.locator(".box-viewer-label").all_inner_texts()) == ["C1", "R1"]


def test_studies_of_two_runs_are_filtered(page: Page, served: str) -> None:
    page.goto(f"{served}/{PAIR}")
    for name, label, expected in EXPLORER["filters"]:
        select = page.get_by_role("combobox", name=name)
        select.select_option(label=label)
        assert cards(page) == [expected]
        select.select_option(index=0)
    page.get_by_role("searchbox").fill("cardiomegaly")
    page.get_by_text("1 of 3 studies").wait_for()
    assert cards(page) == ["effusion"]


def test_a_sentence_of_a_comparison_has_an_address(page: Page, served: str) -> None:
    page.goto(f"{served}/{PAIR}#study=effusion&sentence=baseline-0")
    card(page, "effusion").wait_for()
    assert cards(page) == ["effusion"]
    assert page.locator("[aria-pressed=true] .number").all_inner_texts() == ["B1"]
    assert card(page, "effusion").locator(".is-evidence .number").all_inner_texts() == ["R1"]


def test_a_run_is_shown_as_on_its_page(page: Page, served: str) -> None:
    page.get_by_role("link", name="runs/second").click()
    assert page.url == f"{served}/run/runs/second"
    assert page.locator(".cards").is_visible()
    study = card(page, "effusion")
    study.wait_for()
    assert study.locator(".report.candidate .spatial").first.inner_text().startswith("✗ misplaced box: 49% inside")
    page.get_by_role("button", name="Compare").click()
    assert page.url == f"{served}/compare?system=runs%2Fsecond&baseline=runs%2Ffirst"


def test_narratives_and_empty_drafts_are_shown_as_text(page: Page, served: str) -> None:
    page.goto(f"{served}/run/runs/narratives")
    card(page, "clear").wait_for()
    assert HOSTILE in card(page, "clear").inner_text()
    assert card(page, "empty").get_by_text("No candidate sentences.").is_visible()
    assert page.locator("article .picture").count() == 0
    page.goto(f"{served}/compare?baseline=runs/narratives&system=runs/second")
    page.get_by_text("2 studies are in both runs; 1 is only in runs/second.").wait_for()
    separate = page.locator("article article[data-sample='empty']")
    separate.first.wait_for()
    # Each card is of one run, which the heading above names.
    headings = page.locator("article[data-sample='empty']").first.locator("h4").all_inner_texts()
    assert headings == ["narratives", "Candidate", "Reference", "second", "Candidate", "Reference", "Findings"]


@pytest.mark.parametrize("path", ["", PAIR])
def test_the_explorer_has_no_serious_accessibility_violations(page: Page, served: str, path: str) -> None:
    page.goto(f"{served}/{path}")
    if path:
        page.locator("#pair-scores table").first.wait_for()
        card(page, "effusion").wait_for()
    check_accessibility(page, 420, 800, 1366)
    # Nor is the table of a wide window scrolled.
    assert page.evaluate("[...document.querySelectorAll('.panel')].every(item => item.scrollWidth <= item.clientWidth)")
