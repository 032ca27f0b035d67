"""The page opened from disk in a real browser."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from accessibility import check_accessibility, serious_violations
from PIL import Image
from results_folder import HOSTILE, ROWS, await_script, cards, sentence, write_folder, write_image, write_manifest

from radfact import Box, Pair, Sentence, evaluate
from radfact.io.jsonl import write_json, write_jsonl
from radfact.pages.meta_page import Section, Table
from radfact.pages.meta_page import write_page as write_meta_page
from radfact.pages.page import write_page
from radfact.results.schema import VERSION

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

OpenPage = Callable[..., "Page"]

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("page")
    write_image(root / "frontal.png", 400, 200)
    write_image(root / "lateral.png", 100, 200)
    images = {"frontal": "frontal.png", "lateral": "lateral.png", "prior_frontal": "lost.png"}
    manifest = write_manifest(root / "manifest.jsonl", {"sample_id": "good", **images, "indication": "Cough."})
    write_jsonl(root / "drafts.jsonl", [{"sample_id": "radiograph", "report": [{"text": "Apical cap."}]}])
    folder = write_folder(root / "results")
    rows = (folder / "sentences.jsonl").read_text("utf-8").replace("Aorta ", "Aorta \u202e")
    (folder / "sentences.jsonl").write_text(rows, "utf-8")
    return write_page(folder, manifest=manifest, unscored=root / "drafts.jsonl")


def card(page: Page, sample_id: str = "good") -> Locator:
    return page.locator(f"article[data-sample='{sample_id}']")


def drawn(page: Page, sample_id: str = "good") -> list[str]:
    return sorted(card(page, sample_id).locator(".box-viewer-label").all_text_contents())


def picture(page: Page, side: str, sample_id: str = "good") -> Locator:
    return card(page, sample_id).locator(".picture").filter(has_text=f"{side} boxes")


def test_a_sentence_draws_its_boxes_and_those_of_its_evidence(page: Page) -> None:
    # Each report has its boxes on its own copy of the image.
    for side, names in (("Candidate", ["C1", "C2"]), ("Reference", ["R1", "R2"])):
        assert sorted(picture(page, side).locator(".box-viewer-label").all_text_contents()) == names
    for text, boxes, evidence in ROWS["drawn boxes"]:
        card(page).get_by_text(text).hover()
        assert drawn(page) == boxes
        assert card(page).locator(".is-evidence .number").all_text_contents() == evidence
        page.mouse.move(1, 1)
        assert drawn(page) == ["C1", "C2", "R1", "R2"]
        # The keyboard does what the pointer does.
        button = card(page).get_by_role("button", name=text)
        button.focus()
        assert drawn(page) == boxes
        button.blur()


def test_a_selected_sentence_stays_until_escape(page: Page) -> None:
    button = card(page).get_by_role("button", name="C1 Nodule")
    button.press("Enter")
    button.blur()
    assert drawn(page) == ["C1", "R2"]
    button.press("Escape")
    button.blur()
    assert drawn(page) == ["C1", "C2", "R1", "R2"]
    card(page).locator(".box-viewer-box[data-id=candidate-1]").dispatch_event("click")
    assert card(page).locator("[aria-pressed=true] .number").all_text_contents() == ["C2"]


def test_a_sentence_has_the_color_of_its_boxes_and_its_evidence(page: Page) -> None:
    def color(box: str) -> str:
        element = card(page).locator(".box-viewer-box").filter(has_text=box)
        return str(element.evaluate("node => getComputedStyle(node).borderTopColor"))

    number = card(page).locator(".number").filter(has_text="C1")
    background = number.evaluate("node => getComputedStyle(node).backgroundColor")
    assert background == color("C1") == color("R2")
    assert color("C2") == color("R1") != background


def test_the_larger_image_has_boxes_of_each_report_zoom_and_window(page: Page) -> None:
    card(page).get_by_role("button", name="Frontal of good: enlarge").click()
    labels = page.locator("dialog .box-viewer-label")
    assert sorted(labels.all_text_contents()) == ["C1", "C2", "R1", "R2"]
    page.get_by_label("Reference boxes").uncheck()
    assert sorted(labels.all_text_contents()) == ["C1", "C2"]
    page.locator("#large-view").focus()
    zoom, image = page.get_by_label("Zoom", exact=True), page.locator("dialog .box-viewer-image")
    page.keyboard.press("+")
    assert zoom.text_content() == "125 %"
    page.locator("#large-view").hover()
    page.mouse.wheel(0, -300)
    page.locator("#zoom", has_not_text="125 %").wait_for()
    left = image.evaluate("node => node.getBoundingClientRect().left")
    page.keyboard.press("ArrowLeft")
    assert image.evaluate("node => node.getBoundingClientRect().left") > left
    page.keyboard.press("w")
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("i")
    slope = page.locator("#window-filter feFuncR").get_attribute("slope")
    assert float(slope or 0) == pytest.approx(-255 / 254)
    assert image.evaluate("node => getComputedStyle(node).filter").startswith("url")
    page.keyboard.press("r")
    assert zoom.text_content() == "100 %"
    assert page.get_by_role("button", name="Invert").get_attribute("aria-pressed") == "false"
    assert image.evaluate("node => getComputedStyle(node).filter") == "none"


def test_the_address_names_the_study_and_the_selected_sentence(page: Page, report: Path) -> None:
    card(page).get_by_role("button", name="C2 Small").click()
    assert page.url == f"{report.as_uri()}#study=good&sentence=candidate-1"
    # What a colleague sees at this address.
    page.goto("about:blank")
    page.goto(f"{report.as_uri()}#study=good&sentence=candidate-1")
    await_script(page)
    assert cards(page) == ["good"]
    assert card(page).locator("[aria-pressed=true] .number").all_text_contents() == ["C2"]
    assert drawn(page) == ["C2", "R1"]
    page.get_by_role("button", name="Study good").click()
    assert cards(page) == ["bad", "good", "failed"]
    page.go_back()
    assert cards(page) == ["good"]
    card(page).get_by_role("link", name="good").click()
    assert page.url == f"{report.as_uri()}#study=good"


def test_the_share_that_the_score_compares_is_shown(open_page: OpenPage, tmp_path: Path) -> None:
    shown = {0.62: "✓ box in place: 62%", 0.5: "✗ misplaced box: 50%", 0.498: "✗ misplaced box: 49.6%"}
    pairs = []
    for overlap in shown:
        own, other = (Box(x_min=0, y_min=0, x_max=x_max, y_max=1) for x_max in (1, overlap))
        pairs.append(Pair(str(overlap), *([Sentence(text="Left effusion.", boxes=(box,))] for box in (own, other))))
    evaluate(pairs, "radfact", judge="offline", bootstrap=0, out=tmp_path)
    page = open_page((tmp_path / "report.html").as_uri())
    for overlap, begin in shown.items():
        study = card(page, str(overlap))
        assert study.locator(".report.candidate .spatial").inner_text() == f"{begin} inside"
        assert study.locator(".report.reference .spatial").inner_text() == "✓ box in place: 100% inside"


@pytest.mark.parametrize("width", [1400, 420])
def test_a_long_id_does_not_cover_the_controls_of_the_larger_image(page: Page, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 900})
    card(page).get_by_role("button", name="Frontal of good: enlarge").click()
    page.evaluate("document.getElementById('large-title').textContent = `1.2.${'3'.repeat(60)} · Frontal`")
    title, sides = (page.locator(name).bounding_box() for name in ("#large-title", "#large-sides"))
    assert title is not None
    assert sides is not None
    assert sides["x"] - title["x"] - title["width"] >= 10 or sides["y"] >= title["y"] + title["height"]


def test_inputs_of_the_model_are_shown(page: Page) -> None:
    inputs = card(page).get_by_role("region", name="Inputs of good")
    assert inputs.locator("dd").all_text_contents() == ["Cough.", "technique, comparison, prior report"]
    assert inputs.locator("dt").all_text_contents() == ["Indication", "Not given"]
    assert card(page).get_by_text("Prior frontal: lost.png: no such image").is_visible()
    for kind in ("Lateral", "Frontal"):
        card(page).get_by_role("button", name=f"{kind}: enlarge", exact=True).click()
        assert page.locator("dialog").get_by_role("img").get_attribute("alt") == f"{kind} radiograph of good"
        assert page.locator("dialog .box-viewer-label").count() == 0
        assert not page.get_by_label("Reference boxes").is_visible()
        page.keyboard.press("Escape")
        assert not page.locator("dialog").is_visible()


def test_the_page_is_accessible_and_fits_every_window(page: Page) -> None:
    card(page).get_by_text("Nodule in the left mid zone.").click()
    check_accessibility(page, 1400, 800, 420)


def test_studies_are_ordered_selected_and_filtered(page: Page) -> None:
    # The worst first, and those without a value last.
    assert cards(page) == ["bad", "good", "failed"]
    order, kind = page.get_by_label("Order"), page.get_by_role("combobox", name="Show")
    for label in ("Input order", "Logical F1, best first"):
        order.select_option(label=label)
        assert cards(page) == ["good", "bad", "failed"]
    for label, names in (
        ("With a reference sentence that is missed (1)", ["bad"]),
        ("Excluded from the scores (1)", ["failed"]),
    ):
        kind.select_option(label=label)
        assert cards(page) == names
    kind.select_option("all")
    page.get_by_role("combobox", name="Inputs").select_option(label="Without lateral (0)")
    assert cards(page) == []
    page.get_by_role("combobox", name="Inputs").select_option(label="With lateral (1)")
    assert cards(page) == ["good"]
    page.get_by_role("combobox", name="Inputs").select_option("")
    page.get_by_role("searchbox").fill("cough NODULE")
    assert cards(page) == ["good"]
    assert page.get_by_role("status").text_content() == "1 of 3 studies"
    assert not page.locator("#spread").is_visible()


def test_texts_are_shown_as_they_are_and_reasons_of_errors_are_open(page: Page) -> None:
    assert card(page, "bad").get_by_text(HOSTILE, exact=True).is_visible()
    assert page.title() == "RadFact results: results"
    assert card(page, "failed").get_by_text("Aorta [U+202E]unfolded.", exact=True).is_visible()
    assert card(page).get_by_text("nothing said of the trachea").is_visible()
    # The judge does not tell contradicted from neutral sentences.
    assert card(page).locator(".status").all_inner_texts()[2] == "✗ not supported"
    # A draft without a reference has no verdict.
    assert page.locator("#unscored").get_by_text("Apical cap.").is_visible()
    assert page.locator("#unscored .verdict").count() == 0


def test_the_first_study_is_near_the_top_and_only_tables_scroll_sideways(open_page: OpenPage, tmp_path: Path) -> None:
    pairs = [Pair(f"s{number}", "Left effusion. Nodule.", "Right effusion. No mass.") for number in range(20)]
    metrics = ["radfact", "findings", "bleu", "rouge_l", "lateral_mentions"]
    evaluate(pairs, metrics, judge="offline", bootstrap=9, out=tmp_path)
    page = open_page((tmp_path / "report.html").as_uri())
    page.set_viewport_size({"width": 1366, "height": 768})
    assert page.locator("#study-list article").first.evaluate("node => node.getBoundingClientRect().top") <= 1150
    contents = page.get_by_role("navigation", name="Contents").get_by_role("link")
    assert contents.all_inner_texts() == ["Scores", "Findings", "Studies"]
    contents.last.click()
    assert contents.first.evaluate("node => node.getBoundingClientRect().top") > 0
    page.evaluate("document.querySelectorAll('details').forEach((node) => { node.open = true; })")
    page.set_viewport_size({"width": 390, "height": 844})
    scrolled = page.locator("main *").evaluate_all(
        "nodes => nodes.filter((n) => n.scrollWidth > n.clientWidth && getComputedStyle(n).overflowX === 'auto')"
        ".flatMap((n) => [...n.children].map((child) => child.tagName))"
    )
    assert scrolled == ["TABLE"] * 3
    assert serious_violations(page) == []


def test_a_scrollable_table_shows_its_hidden_side(open_page: OpenPage, tmp_path: Path) -> None:
    table = Table(["figure", *(f"column {number}" for number in range(9))], [["one", *map(str, range(9))]])
    write_meta_page(tmp_path / "wide.html", "Wide", [], [Section("Wide", [table])])
    page = open_page((tmp_path / "wide.html").as_uri())
    page.set_viewport_size({"width": 400, "height": 700})
    page.emulate_media(color_scheme="light")
    panel = page.locator(".panel")
    for scroll, shaded in (("0", [False, True]), ("200", [True, True]), ("node.scrollWidth", [True, False])):
        panel.evaluate(f"node => node.scrollTo({scroll}, 0)")
        picture = Image.open(BytesIO(panel.screenshot())).convert("L")
        # The left and the right edge, in the padding above the table.
        assert [int(str(picture.getpixel((x, 12)))) < 240 for x in (3, picture.width - 4)] == shaded


def write_set(
    folder: Path, scores: Mapping[str, float | None], sentences: list[dict[str, Any]], manifest: Path | None = None
) -> Path:
    record = {"radfact": {"scores": ["logical_f1"]}}
    scores_file = {"version": VERSION, "scores": {"logical_f1": {"point": 0.475}}, "judge": "x", "metrics": record}
    write_json(folder / "scores.json", scores_file)
    write_jsonl(folder / "samples.jsonl", [{"sample_id": name, "logical_f1": value} for name, value in scores.items()])
    write_jsonl(folder / "sentences.jsonl", sentences)
    return write_page(folder, manifest=manifest)


@pytest.fixture
def many_page(open_page: OpenPage, tmp_path: Path) -> Page:
    """Twenty studies with logical F1 of 0.00, 0.05 ... 0.95, the fourth with a mask in both of its encodings."""
    # The square of rows and columns 2 to 5 without its four pixels in the middle; compressed by pycocotools 2.0.
    ring = {"size": [8, 8], "counts": [18, 4, 4, 1, 2, 1, 4, 1, 2, 1, 4, 4, 18]}
    compressed = {"size": [8, 8], "counts": "b044MN020N023>"}
    sentences = [
        sentence("s03", "candidate", 0, "Mass.", masks=[ring], spatial="not_entailed"),
        sentence("s03", "reference", 0, "Lesion.", masks=[compressed], status="entailment", evidence=[0]),
    ]
    page = write_set(tmp_path, {f"s{number:02d}": number / 20 for number in range(20)}, sentences)
    return open_page(page.as_uri())


def test_prior_boxes_are_drawn_on_the_prior_image(open_page: OpenPage, tmp_path: Path) -> None:
    write_image(tmp_path / "prior.png", 100, 100)
    manifest = write_manifest(tmp_path / "manifest.jsonl", {"sample_id": "a", "prior_frontal": "prior.png"})
    corner = {"x_min": 0, "y_min": 0, "x_max": 0.5, "y_max": 0.5}
    sentences = [sentence("a", "reference", 0, "Unchanged.", prior_boxes=[corner])]
    page = open_page(write_set(tmp_path, {"a": None}, sentences, manifest=manifest).as_uri())
    page.get_by_role("button", name="Prior frontal: enlarge").click()
    assert page.locator("dialog .box-viewer-label").all_text_contents() == ["R1"]
    assert drawn(page, "a") == []


def test_a_mask_is_drawn_where_its_pixels_are_and_has_a_hole(many_page: Page) -> None:
    for side in ("candidate", "reference"):
        mask = card(many_page, "s03").locator(f".box-viewer-box.mask.{side}")
        style = mask.evaluate("node => [node.style.left, node.style.top, node.style.width, node.style.height]")
        assert style == ["25%", "25%", "50%", "50%"]
    frame = picture(many_page, "Candidate", "s03").locator(".box-viewer-frame")
    frame.scroll_into_view_if_needed()
    around = frame.bounding_box()
    assert around is not None
    active = card(many_page, "s03").locator(".sentence.active")
    middle = around["x"] + around["width"] / 2
    many_page.mouse.move(middle, around["y"] + around["height"] * 0.31)
    assert active.count() == 1
    many_page.mouse.move(middle, around["y"] + around["height"] / 2)
    assert active.count() == 0


def test_a_selected_bar_of_a_histogram_lists_its_studies(many_page: Page) -> None:
    many_page.get_by_text("Distribution across studies").click()
    names = [bar.get_attribute("aria-label") or "" for bar in many_page.locator(".bin").all()]
    assert [name.split(": ")[1] for name in names] == ["1 study"] * 20
    many_page.get_by_role("button", name="0.2 to 0.25: 1 study", exact=True).click()
    assert cards(many_page) == ["s04"]
    many_page.get_by_title("List all studies again").click()
    assert many_page.get_by_role("status").text_content() == "20 of 20 studies"
    many_page.get_by_role("button", name="0 to 0.05: 1 study", exact=True).focus()
    many_page.keyboard.press("ArrowRight")
    many_page.keyboard.press("Enter")
    assert cards(many_page) == ["s01"]


def test_only_studies_near_the_viewport_or_in_use_are_rendered(open_page: OpenPage, tmp_path: Path) -> None:
    names = [f"s{number:03d}" for number in range(300)]
    sides = ("candidate", "reference")
    sentences = [sentence(name, side, 0, f"Finding of {name}.") for name in names for side in sides]
    page = open_page(write_set(tmp_path, dict.fromkeys(names), sentences).as_uri())
    card(page, "s000").get_by_role("button", name="C1 Finding").click()
    places = page.locator("#study-list .place")
    assert places.count() == 300
    for number in (100, 200, 299):
        places.nth(number).scroll_into_view_if_needed()
        card(page, f"s{number:03d}").wait_for()
    assert page.locator("#study-list article").count() < 60
    assert card(page, "s000").locator("[aria-pressed=true]").count() == 1
    assert card(page, "s001").count() == 0
    # Printing renders every study; counted in the same task, since the page later removes cards far from the viewport.
    count = "document.querySelectorAll('#study-list article').length"
    assert page.evaluate(f"() => {{ window.dispatchEvent(new Event('beforeprint')); return {count}; }}") == 300


def test_an_empty_report_is_worst_and_a_neutral_score_has_no_worst(open_page: OpenPage, tmp_path: Path) -> None:
    candidates = {"good": "The heart is large.", "empty": "", "bad": "Right effusion.", "none": ""}
    pairs = [Pair(key, text, "The heart is large.") for key, text in candidates.items()]
    evaluate(pairs, ["radfact", "lateral_mentions"], judge="offline", bootstrap=0, out=tmp_path)
    page = open_page((tmp_path / "report.html").as_uri())
    assert cards(page) == ["empty", "none", "bad", "good"]
    options = page.get_by_label("Order").locator("option").all_inner_texts()
    assert [text for text in options if text.startswith("Lateral mentions,")] == ["Lateral mentions, greatest first"]
    page.get_by_label("Order").select_option(label="Logical F1, best first")
    assert cards(page) == ["good", "bad", "empty", "none"]


def test_scores_of_two_metrics_are_in_a_table(open_page: OpenPage, tmp_path: Path) -> None:
    texts = {"a": "Clear lungs.", "b": "Clear lungs and heart.", "c": HOSTILE, "d": "Clear as day today."}
    evaluate([Pair(key, text, "Clear lungs.") for key, text in texts.items()], ["rouge_l", "bleu_1"], out=tmp_path)
    page = open_page((tmp_path / "report.html").as_uri())
    shown = card(page, "c")
    assert HOSTILE in shown.inner_text()
    # Neither metric is RadFact, so there are no verdicts.
    assert shown.locator(".verdict").count() == 0
    page.get_by_text("Scores of the studies as a table").click()
    names = page.locator(".frame tbody th")
    for expected in (["c", "d", "b", "a"], ["a", "b", "d", "c"]):
        page.locator(".frame thead button", has_text="ROUGE-L").click()
        assert names.all_inner_texts() == expected
    names.nth(2).get_by_role("link").click()
    page.wait_for_url("**/report.html#study=d")
    page.get_by_text("1 of 4 studies").wait_for()
    assert cards(page) == ["d"]
