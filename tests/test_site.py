"""The documentation site: it builds without a warning, and works in the browser for everyone."""

from __future__ import annotations

import re
import shutil
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import version as installed_version
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from accessibility import serious_violations
from command_tree import COMMANDS

from docs.add_version import add_version

pytest.importorskip("sphinx_copybutton", reason="needs the extra docs")

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

DOCS = Path(__file__).resolve().parents[1] / "docs"
NOTEBOOKS = DOCS.with_name("notebooks")
VERSION = installed_version("maira-radfact")
OTHER = "0.0.1"
COLORED = {"index.html", "review.html", "tutorials/draft.html", "notebooks/post_train_on_phantoms.html"}
"""Pages that together have almost all colors. To check contrasts takes ten times as long as all other rules."""


def _build(source: Path, out: Path) -> int:
    from sphinx.cmd.build import main

    return main(["--fail-on-warning", "--keep-going", "--quiet", "--builder", "html", str(source), str(out)])


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `make docs` writes."""
    folder = tmp_path_factory.mktemp("site") / "build"
    assert _build(DOCS, folder) == 0
    return folder


@pytest.fixture(scope="module")
def address(build: Path) -> Iterator[str]:
    """The address of a site with two versions, of which the other lacks a page."""
    site = build.with_name("site")
    for version in (OTHER, VERSION):
        add_version(site, build, version)
    (site / OTHER / "judges.html").unlink()
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(SimpleHTTPRequestHandler, directory=str(site))) as server:
        threading.Thread(target=server.serve_forever).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    context = browser.new_context(viewport={"width": 1366, "height": 768})
    yield context.new_page()
    context.close()


@pytest.mark.slow
def test_the_site_describes_every_command_and_loads_nothing_from_elsewhere(build: Path) -> None:
    for program in ("radfact", "maira"):
        page = (build / f"commands-{program}.html").read_text("utf-8")
        headings = {re.sub("<.*?>", "", match).rstrip("¶") for match in re.findall("<h2>(.*?)</h2>", page)}
        assert {words for words in COMMANDS if words.startswith(f"{program} ")} <= {*headings}
    assert "--judge" in re.sub("<.*?>", "", (build / "commands-radfact.html").read_text("utf-8"))
    for path in build.rglob("*.html"):
        text = path.read_text("utf-8")
        assert re.findall(r'<(?:script|img|iframe)[^>]* src="https?:|<link[^>]* href="https?:', text) == [], path.name


@pytest.mark.slow
def test_notebooks_have_their_figures_with_a_description(build: Path) -> None:
    notebooks = sorted(NOTEBOOKS.glob("*.ipynb"))
    pages = [(build / "notebooks" / path.with_suffix(".html").name).read_text("utf-8") for path in notebooks]
    descriptions = [text for page in pages for text in re.findall(r'<img[^>]* alt="([^"]*)" src="../_images', page)]
    assert len(descriptions) == sum(path.read_text("utf-8").count('"image/png":') for path in notebooks) > 0
    assert all(" " in text for text in descriptions), "metadata.mystnb.image.alt of the cell"


def test_broken_links_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.syspath_prepend(DOCS)
    source = tmp_path / "docs"
    source.mkdir()
    shutil.copy(DOCS / "conf.py", source)
    for name in ("_static", "_templates"):
        shutil.copytree(DOCS / name, source / name)
    (source / "score.md").write_text("# Score\n\n## A part\n")
    links = "[there](score.md#a-part) [gone](gone.md) [gone](score.md#no-such-part) [gone](#nowhere)"
    (source / "index.md").write_text(f"# Index\n\n{links}\n\n```{{toctree}}\nscore\n```\n")
    assert _build(source, tmp_path / "site") != 0
    shown = capsys.readouterr().err
    assert [name in shown for name in ("gone.md", "no-such-part", "nowhere", "a-part")] == [True, True, True, False]


@pytest.mark.slow
@pytest.mark.browser
def test_a_version_is_selected_from_the_list(page: Page, address: str, build: Path) -> None:
    page.goto(address)
    page.wait_for_url(f"{address}/{VERSION}/")
    page.goto(f"{address}/{VERSION}/score.html")
    versions = page.get_by_label("Version")
    versions.locator("option").nth(1).wait_for(state="attached")
    assert versions.locator("option").all_inner_texts() == [VERSION, OTHER]
    versions.select_option(OTHER)
    page.wait_for_url(f"{address}/{OTHER}/score.html")
    # A page that the other version lacks.
    page.goto(f"{address}/{VERSION}/judges.html")
    versions.locator("option").nth(1).wait_for(state="attached")
    versions.select_option(OTHER)
    page.wait_for_url(f"{address}/{OTHER}/")
    # From disk, a build knows no other version.
    page.goto((build / "score.html").as_uri())
    assert versions.locator("option").all_inner_texts() == [VERSION]


@pytest.mark.slow
@pytest.mark.browser
@pytest.mark.parametrize(("words", "link"), [("read_pairs", "api.html"), ("LaTeX table", "recipes.html")])
def test_search_works_from_disk(words: str, link: str, page: Page, build: Path) -> None:
    page.goto((build / "index.html").as_uri())
    page.get_by_placeholder("Search").fill(words)
    page.get_by_placeholder("Search").press("Enter")
    page.locator(f"#search-results a[href*='{link}']").first.wait_for()


@pytest.mark.slow
@pytest.mark.browser
def test_blocks_that_are_run_say_so_and_a_button_copies_them_without_prompts(page: Page, build: Path) -> None:
    page.goto((build / "tutorials/score.html").as_uri())
    assert page.locator(".highlight-output button").count() == 0
    field = page.get_by_placeholder("Search")
    for block, prompt in zip(page.locator(".highlight-sh").all(), ("$ ", ">>> "), strict=True):
        assert "runs" in block.evaluate("block => getComputedStyle(block, '::before').content")
        command = block.locator("pre").inner_text().splitlines()[0]
        block.locator("pre").evaluate("(pre, prompt) => pre.prepend(prompt)", prompt)
        block.get_by_role("button", name="Copy").click()
        field.clear()
        field.press("Control+V")
        assert field.input_value() == command


@pytest.mark.slow
@pytest.mark.browser
def test_no_page_has_serious_accessibility_violations(page: Page, address: str, build: Path) -> None:
    serious: dict[tuple[str, object], list[tuple[str, str, str]]] = {}
    names = [str(path.relative_to(build)) for path in sorted(build.rglob("*.html"))]
    assert len(names) > 30
    for name in names:
        page.goto(f"{address}/{VERSION}/{name}")
        for width in (420, 1366):
            page.set_viewport_size({"width": width, "height": 768})
            assert page.evaluate("document.documentElement.scrollWidth") <= width, name
            # A wide page has the navigation beside it, which is the same on all pages, and fewer regions that scroll.
            if width == 420 or name in COLORED:
                serious[name, width] = serious_violations(page, skipped=("color-contrast",))
        for theme in ("light", "dark") if name in COLORED else ():
            page.emulate_media(color_scheme=theme)
            serious[name, theme] = serious_violations(page, rules=["color-contrast"])
    assert {name for name, kind in serious if kind == "dark"} == COLORED
    assert {key: violations for key, violations in serious.items() if violations} == {}
