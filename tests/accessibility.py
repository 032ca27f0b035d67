"""Accessibility of a page in the browser, checked by axe."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Page


def serious_violations(
    page: Page, *, rules: list[str] | None = None, skipped: tuple[str, ...] = ()
) -> list[tuple[str, str, str]]:
    """Return (rule, element, what to fix) of each serious violation that axe finds; skip the test without axe."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe is not installed").Axe()
    # Other results would cost more time than the violations.
    options: dict[str, object] = {
        "resultTypes": ["violations"],
        "rules": {rule: {"enabled": False} for rule in skipped},
        **({} if rules is None else {"runOnly": rules}),
    }
    # Scripts that follow the size of the page run with the next frame.
    page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
    return [
        (violation["id"], node["html"], node["failureSummary"])
        for violation in axe.run(page, options=options).response["violations"]
        if violation["impact"] in ("serious", "critical")
        for node in violation["nodes"]
    ]


def check_accessibility(page: Page, *widths: int) -> None:
    """Check a page in both themes, and that it fits into windows of these widths."""
    page.emulate_media(color_scheme="light")
    assert serious_violations(page) == []
    # The other theme changes only colors.
    page.emulate_media(color_scheme="dark")
    assert serious_violations(page, rules=["color-contrast"]) == []
    for width in widths:
        page.set_viewport_size({"width": width, "height": 768})
        assert page.evaluate("document.documentElement.scrollWidth") <= width
