"""Time until the review shows the next study: milliseconds to the whole image at screen resolution.

    python tests/benchmarks/bench_review.py --studies 2000

The images are of 2,500 x 3,000 pixels and 12 bits, as uncompressed DICOM or PNG of 16 bits, with their model's input of
518 pixels; every study has its own files (hard links to a few images). The browser has 1,920 x 1,080 pixels. Paging:
`pause` waits two seconds on each study, `at once` continues as soon as the image is shown, `burst` shows six studies,
150 ms on each, and waits for the last one. No image is cached at the start; the operating system may have cached the
files.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image

from maira.data.manifest import write_manifest
from maira.data.study import Original, Study
from radfact.io.jsonl import write_jsonl
from radfact.records import Sentence

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

SIZE = (3000, 2500)
IMAGES = 8
BURST = 6
_WAIT = """
async (keys) => {
  const place = document.querySelector("#study-place");
  const root = document.querySelector("#radiograph");
  const from = Number.parseInt(place.textContent, 10);
  const start = performance.now();
  for (let key = 0; key < keys; key += 1) {
    location.hash = String(from + key + 1);
    if (key + 1 < keys) await new Promise((done) => setTimeout(done, 150));
  }
  const last = performance.now();
  const frame = () => new Promise((done) => requestAnimationFrame(done));
  while (Number.parseInt(place.textContent, 10) !== from + keys || root.getAttribute("aria-busy") !== "false") {
    if (performance.now() - start > 60000) throw new Error("not shown");
    await frame();
  }
  await frame();
  await frame();
  return performance.now() - last;
}
"""


def write_studies(folder: Path, studies: int, suffix: str) -> None:
    """Write drafts and a manifest of studies with three originals each."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "data"))
    from dicom_files import write_dicom

    rng = np.random.default_rng(0)
    y, x = np.mgrid[: SIZE[0], : SIZE[1]]
    for number in range(IMAGES):
        smooth = (np.sin(x / (200 + 10 * number)) * np.cos(y / 400) + 1) * 1500
        pixels = (smooth + rng.normal(0, 20, SIZE)).clip(0, 4095).astype(np.uint16)
        if suffix == "dcm":
            write_dicom(folder / f"{number}.dcm", pixels, stored=12)
        else:
            Image.fromarray(pixels).save(folder / f"{number}.png")
        Image.fromarray((pixels >> 4).astype(np.uint8)).resize((518, 518)).save(folder / f"small-{number}.png")
    rows = []
    for number in range(studies):
        study: dict[str, Path] = {}
        originals = {}
        for index, kind in enumerate(("frontal", "lateral", "prior_frontal")):
            source = (number * 3 + index) % IMAGES
            original = folder / f"{number}-{kind}.{suffix}"
            study[kind] = folder / f"{number}-{kind}-small.png"
            os.link(folder / f"{source}.{suffix}", original)
            os.link(folder / f"small-{source}.png", study[kind])
            originals[kind] = Original(path=original)
        rows.append(
            Study.model_validate({"sample_id": f"s{number}", **study, "findings": "Clear.", "originals": originals})
        )
    write_manifest(folder / "manifest.jsonl", rows)
    draft = [Sentence(text="The lungs are clear.").model_dump(mode="json", exclude_none=True)]
    write_jsonl(folder / "drafts.jsonl", ({"sample_id": row.sample_id, "report": draft} for row in rows))


@contextmanager
def start_review(folder: Path) -> Iterator[str]:
    """Start the review server, and yield its link."""
    with tempfile.TemporaryDirectory() as scratch:
        arguments = [str(folder / "drafts.jsonl"), "--manifest", str(folder / "manifest.jsonl"), "--no-browser"]
        process = subprocess.Popen(
            [sys.executable, "-m", "maira", "review", *arguments, "--port", "0", "--db", f"{scratch}/review.sqlite"],
            env={**os.environ, "COLUMNS": "400"},
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        try:
            link = next(match for line in process.stdout if (match := re.search(r"http://\S+", line)))
            yield link[0]
        finally:
            process.terminate()
            process.wait()


@contextmanager
def open_study(browser: Browser, link: str, number: int) -> Iterator[Page]:
    """Open a study in a new browser context without a cache."""
    context = browser.new_context(viewport={"width": 1920, "height": 1080})
    page = context.new_page()
    page.goto(link)
    address = link.partition("?")[0]
    page.wait_for_url(address)
    page.goto(f"{address}#{number}")
    page.locator("dialog[open] input").first.fill("Ada")
    page.get_by_role("button", name="Start").click()
    page.locator("#radiograph[aria-busy=false]").wait_for()
    yield page
    context.close()


def measure(page: Page, mode: str, count: int) -> list[float]:
    """Return the milliseconds of each study, or of each burst."""
    times = []
    for _ in range(count):
        if mode == "pause":
            page.wait_for_timeout(2000)
        times.append(page.evaluate(_WAIT, BURST if mode == "burst" else 1))
    return times


def print_row(name: str, values: Sequence[float]) -> None:
    """Print median, 95th percentile and maximum."""
    ordered = sorted(values)
    high = ordered[min(len(ordered) - 1, round(0.95 * len(ordered)))]
    print(f"{name:40} {statistics.median(values):7.0f} {high:7.0f} {ordered[-1]:7.0f}", flush=True)


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--studies", type=int, default=2000)
    parser.add_argument("--format", choices=("dcm", "png"), default="dcm")
    parser.add_argument("--count", type=int, default=12, help="studies per mode; bursts are a quarter")
    arguments = parser.parse_args()
    from playwright.sync_api import sync_playwright

    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        write_studies(folder, arguments.studies, arguments.format)
        link = stack.enter_context(start_review(folder))
        chromium = shutil.which("chromium") or shutil.which("chromium-browser")
        browser = stack.enter_context(sync_playwright()).chromium.launch(
            executable_path=chromium, args=["--headless=new", "--no-sandbox", "--disable-gpu"]
        )
        first = 1
        print(f"{arguments.studies} studies, {arguments.format}, load average {os.getloadavg()[0]:.1f}")
        print(f"{'milliseconds to the first full view':40}  median     p95     max")
        for mode in ("pause", "at once", "burst"):
            count = arguments.count if mode != "burst" else max(1, arguments.count // 4)
            with open_study(browser, link, first) as page:
                print_row(mode, measure(page, mode, count))
            first += count * (BURST if mode == "burst" else 1) + 5
        browser.close()


if __name__ == "__main__":
    main()
