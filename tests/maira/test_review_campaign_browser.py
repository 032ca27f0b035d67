"""A campaign in the browser: the coordinator's page, and what a reader sees of it."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import uvicorn
from review_desk import launched
from review_files import change, finish, write_review_set

from maira.review.app import make_app
from maira.review.campaign import read_campaign
from maira.review.coordinator import CampaignFile
from maira.review.security import COORDINATOR, link_tokens
from maira.review.store import Store
from maira.review.studies import read_campaign_set

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with launched() as browser:
        yield browser


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[Store, str]]:
    """The database and the address of a campaign that is served; both readers disagree on study 1."""
    write_review_set(tmp_path)
    path = tmp_path / "campaign.yaml"
    path.write_text(
        "manifest: manifest.jsonl\narms: {model: drafts.jsonl}\nreaders: [Ada, Bo]\ninstructions: Read all."
    )
    settings = read_campaign(path)
    review_set = read_campaign_set(settings)
    with (
        closing(Store(tmp_path / "review.sqlite", review_set.drafts, settings=settings)) as store,
        socket.create_server(("127.0.0.1", 0)) as listener,
    ):
        change(store, "delete", 1, "Ada", sentence="d0")
        change(store, "assess", 1, "Ada", sentence="d0", severity=2)
        for reader, right in (("Ada", 0.35), ("Bo", 0.4)):
            change(store, "boxes", 1, reader, sentence="d1", boxes=[[0.1, 0.2, right, 0.6]])
            finish(store, 1, reader)
        tokens = link_tokens(store.token(), store.reader_keys(), has_coordinator=True)
        app = make_app(review_set, store, tokens, campaign=CampaignFile(path, (), store.token()))
        config = uvicorn.Config(app, log_level="critical", lifespan="off", ws="none", timeout_graceful_shutdown=1)
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield store, f"http://127.0.0.1:{listener.getsockname()[1]}/"
        finally:
            server.should_exit = True
            thread.join()


@contextmanager
def visiting(browser: Browser, store: Store, url: str, name: str) -> Iterator[Page]:
    """Open a link; errors of the page fail the test."""
    context = browser.new_context(viewport={"width": 1366, "height": 768})
    context.set_default_timeout(10_000)
    page = context.new_page()
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    try:
        token = link_tokens(store.token(), ["Ada", "Bo"], has_coordinator=True)[name]
        page.goto(f"{url}?token={token}")
        page.wait_for_url(lambda address: "token" not in address)
        yield page
    finally:
        context.close()
    assert errors == []


def violations(page: Page) -> list[tuple[str, str]]:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe is not installed").Axe()
    found = axe.run(page).response["violations"]
    return [(item["id"], node["html"]) for item in found for node in item["nodes"]]


def test_the_coordinator_follows_and_changes_a_campaign(served: tuple[Store, str], browser: Browser) -> None:
    store, url = served
    with visiting(browser, store, url, COORDINATOR) as page:
        page.locator("#progress-text", has_text="2 of 6 readings finished").wait_for()
        assert violations(page) == []
        page.get_by_label("New reader").fill("Cy")
        page.keyboard.press("Enter")
        page.get_by_role("row", name="Cy 0 of 3").wait_for()
        page.get_by_role("button", name="Rename Bo").click()
        page.get_by_label("New name").fill("Bo Berg")
        assert violations(page) == []
        page.keyboard.press("Enter")
        page.get_by_role("row", name="Bo Berg 1 of 3").wait_for()
        page.get_by_role("button", name="Exclude Cy").click()
        page.get_by_placeholder("Reason").fill("No time.")
        page.keyboard.press("Enter")
        page.get_by_role("row", name="excluded: No time.").wait_for()
        page.get_by_role("button", name="Pause", exact=True).first.click()
        page.locator("#state", has_text="Paused").wait_for()
        assert store.readers() == ["Ada", "Bo Berg", "Cy"]
        assert store.counted_readers() == ["Ada", "Bo Berg"]
        assert page.locator("#history li").count() == 6


def test_the_coordinator_decides_a_disagreement_by_keyboard(served: tuple[Store, str], browser: Browser) -> None:
    store, url = served
    with visiting(browser, store, url, COORDINATOR) as page:
        page.get_by_label("Show").select_option("undecided")
        page.get_by_role("link", name="1 disagreement, not decided").focus()
        page.keyboard.press("Enter")
        page.locator("#radiograph[aria-busy=false]").wait_for()
        readings = page.locator(".readings").first.locator("dt, dd").all_inner_texts()
        assert readings == ["Ada", "Deleted, significant implications.", "Bo", "No correction."]
        # The draft's box, and those of each reader who changed it.
        labels = page.locator("#radiograph .box-viewer-label").all_text_contents()
        assert sorted(labels) == ["1", "2 Ada", "2 Bo"]
        second = page.locator(".readings").nth(1).locator("dd").all_inner_texts()
        assert second == ["Boxes changed, no implications."] * 2
        page.get_by_text("Reference report").click()
        page.get_by_text("The heart is mildly enlarged.").wait_for()
        assert violations(page) == []
        page.get_by_label("no correction").focus()
        page.keyboard.press("ArrowRight")
        page.keyboard.press("ArrowRight")
        page.get_by_label("Reason").fill("Seen on the lateral.")
        page.get_by_role("button", name="Save the decision").press("Enter")
        page.locator("#study-count", has_text="0 of 3 studies").wait_for()
        assert store.campaign is not None
        (_, decision) = store.campaign.decisions[1]
        assert (decision.severities, decision.comment) == ({"d0": 1}, "Seen on the lateral.")


def test_a_reader_reads_the_instructions_and_is_told_of_a_pause(served: tuple[Store, str], browser: Browser) -> None:
    store, url = served
    with visiting(browser, store, url, "Ada") as page:
        page.locator("#instructions-dialog", has_text="Read all.").wait_for()
        assert violations(page) == []
        page.keyboard.press("Escape")
        page.locator("#radiograph[aria-busy=false]").wait_for()
        with visiting(browser, store, url, COORDINATOR) as coordinator:
            coordinator.get_by_role("button", name="Pause", exact=True).first.click()
            coordinator.locator("#state", has_text="Paused").wait_for()
            page.keyboard.press("j")
            page.keyboard.press("d")
            page.locator("#trouble", has_text="The coordinator has paused the campaign. 1 change not saved").wait_for()
            coordinator.get_by_role("button", name="Resume", exact=True).first.click()
        page.locator("#saved.saved", has_text="✓ Saved").wait_for()
        page.get_by_role("button", name="Instructions").click()
        page.locator("#instructions-dialog[open]").wait_for()
    assert sum(review.version for review in store.reviews("Ada")) > 0
