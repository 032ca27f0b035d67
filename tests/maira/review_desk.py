"""A review as a reader meets it: its server, and a browser's page on it."""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import uvicorn
from long_values import DATA
from starlette.types import ASGIApp
from waiting import PATIENCE

from maira.review.app import make_app
from maira.review.campaign import read_campaign
from maira.review.changes import ReviewedSentence, State
from maira.review.coordinator import CampaignFile
from maira.review.security import link_tokens
from maira.review.store import Store
from maira.review.studies import read_campaign_set, read_review_set

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page, ViewportSize


@dataclass
class Running:
    """A review that is served, and the reader of a test."""

    url: str
    folder: Path
    reader: str = "Ada"

    @property
    def link(self) -> str:
        """The address that signs a browser in."""
        with closing(Store(self.folder / "review.sqlite")) as store:
            return f"{self.url}?token={store.token()}"

    def state(self, number: int = 1) -> State:
        """Read the database on disk through a separate connection."""
        with closing(Store(self.folder / "review.sqlite")) as store:
            return store.review(self.reader, number).state

    def sentence(self, place: int) -> ReviewedSentence:
        return self.state().sentences[place]


@contextmanager
def served(folder: Path, results: Path | None = None) -> Iterator[Running]:
    """Serve the set of a folder in a thread of this process."""
    review_set = read_review_set(folder / "drafts.jsonl", folder / "manifest.jsonl", results=results)
    with (
        closing(Store(folder / "review.sqlite", review_set.drafts)) as store,
        serving(make_app(review_set, store, link_tokens(store.token(), ()))) as url,
    ):
        yield Running(url, folder)


ADDRESS, TOKEN = "http://127.0.0.1:8471", "a-token-of-more-than-twenty-letters"


def open_campaign(path: Path) -> tuple[Store, ASGIApp, dict[str, str]]:
    """The database of a campaign beside its file, its application and the tokens of its links."""
    settings = read_campaign(path)
    review_set = read_campaign_set(settings)
    store = Store(path.with_name("review.sqlite"), review_set.drafts, settings=settings)
    tokens = link_tokens(TOKEN, store.reader_keys(), has_coordinator=True)
    app = make_app(review_set, store, tokens, campaign=CampaignFile(path, (), TOKEN))
    return store, app, tokens


@contextmanager
def serving(app: ASGIApp) -> Iterator[str]:
    """Serve an application in a thread, and yield its address."""
    config = uvicorn.Config(app, log_level="critical", lifespan="off", ws="none", timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}/"
        finally:
            server.should_exit = True
            thread.join()


@contextmanager
def watching(browser: Browser, link: str, **options: Any) -> Iterator[Page]:
    """Open a link in a separate browser context; errors of the page fail the test that caused them."""
    context = browser.new_context(**{"viewport": {"width": 1440, "height": 900}, **options})
    context.set_default_timeout(PATIENCE * 1000)
    page = context.new_page()
    complaints: list[str] = []
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    try:
        page.goto(link)
        page.wait_for_url(lambda address: "token" not in address)
        yield page
    finally:
        context.close()
    # The browser itself reports requests that fail, and some tests make them fail.
    assert [words for words in complaints if "Failed to load resource" not in words] == []


@contextmanager
def visiting(browser: Browser, running: Running, **options: Any) -> Iterator[Page]:
    """Open the first study as the reader."""
    with watching(browser, running.link, **options) as page:
        page.goto(f"{running.url}#1")
        page.locator("#reader-name").fill(running.reader)
        page.get_by_role("button", name="Start").click()
        at_study(page, 1)
        yield page


SCREENS: tuple[ViewportSize, ...] = ({"width": 1366, "height": 768}, {"width": 1920, "height": 1080})
"""The screens that a review must fit on."""

_OUTSIDE = DATA["controls outside"]


def fits_screen(page: Page) -> None:
    """Check that the page does not scroll as a whole, and that every control outside of scrolling lists is visible."""
    size = page.viewport_size
    assert size is not None
    extent = page.evaluate("[document.documentElement.scrollWidth, document.documentElement.scrollHeight]")
    assert extent == [size["width"], size["height"]]
    assert page.evaluate(_OUTSIDE) == []
    assert page.locator("#report-body").evaluate("list => list.scrollWidth <= list.clientWidth")


def at_study(page: Page, number: int) -> None:
    page.locator("#study-name", has_text=re.compile(rf"^{number} of ")).wait_for()
    row(page, 0).wait_for()
    page.locator("#radiograph[aria-busy=false]").wait_for()


def saved(page: Page) -> None:
    """Wait until the page says that all is saved."""
    page.locator("#saved.saved", has_text="✓ Saved").wait_for()


def unsaved(page: Page) -> None:
    """Wait until the page reports unsaved text; it reports changes in transit before that."""
    page.locator("#saved", has_text="Not saved yet").wait_for()


def press(page: Page, *keys: str) -> None:
    for key in keys:
        page.keyboard.press(key)


def row(page: Page, place: int) -> Any:
    """The row of a sentence, from 0."""
    return page.locator("#sentences > li").nth(place)


def drag(page: Page, start: tuple[float, float], end: tuple[float, float], button: Any = "left") -> None:
    page.mouse.move(*start)
    page.mouse.down(button=button)
    page.mouse.move((start[0] + end[0]) / 2, (start[1] + end[1]) / 2)
    page.mouse.move(*end)
    page.mouse.up(button=button)


def on_radiograph(page: Page, x: float, y: float) -> tuple[float, float]:
    """A place of the radiograph (shares) in pixels of the page."""
    frame = page.locator("#radiograph .box-viewer-frame").bounding_box()
    assert frame is not None
    return frame["x"] + x * frame["width"], frame["y"] + y * frame["height"]
