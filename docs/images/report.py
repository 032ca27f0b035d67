"""The README's picture of the page: `make demo`, then `python docs/images/report.py demo/results/report.html`."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from playwright.sync_api import sync_playwright

with sync_playwright() as playwright:
    browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
    # So high that the card is on the screen with all that is above it, and no toolbar sticks to the top of it.
    page = browser.new_page(viewport={"width": 1440, "height": 2600})
    page.goto(Path(sys.argv[1]).resolve().as_uri())
    card = page.locator("#study-list article").first
    for image in card.locator("img").all():
        image.evaluate("node => node.decode()")
    card.screenshot(path=Path(__file__).with_suffix(".png"))
    browser.close()
