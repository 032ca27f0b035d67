"""The page opened from disk in a real browser."""

from __future__ import annotations

from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import pytest
from accessibility import serious_violations
from PIL import Image
from results_folder import HOSTILE, ring, sentence, write_folder, write_image, write_manifest

from radfact.io.jsonl import write_json, write_jsonl
from radfact.pages.meta_page import Section, Table
from radfact.pages.meta_page import write_page as write_meta_page
from radfact.pages.page import write_page

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator, Page

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("page")
    write_image(root / "frontal.png", 400, 200)
    write_image(root / "lateral.png", 100, 200)
    images = {"frontal": "frontal.png", "lateral": "lateral.png", "prior_frontal": "lost.png"}
    manifest = write_manifest(root / "manifest.jsonl", {"sample_id": "good", **images, "indication": "Cough."})
    write_jsonl(root / "drafts.jsonl", [{"sample_id": "radiograph", "report": [{"text": "Apical cap."}]}])
    return write_page(write_folder(root / "results"), manifest=manifest, unscored=root / "drafts.jsonl")


def card(page: Page, sample_id: str = "good") -> Locator:
    return page.locator(f"article[data-sample='{sample_id}']")


def drawn(page: Page, sample_id: str = "good") -> list[str]:
    return sorted(card(page, sample_id).locator(".box-viewer-label").all_text_contents())


def cards(page: Page) -> list[str | None]:
    return [item.get_attribute("data-sample") for item in page.locator("#study-list article").all()]


def test_all_boxes_are_drawn_at_first(page: Page) -> None:
    assert drawn(page) == ["C1", "C2", "R1", "R2"]


def test_hovering_a_sentence_draws_its_boxes_and_those_of_its_evidence_only(page: Page) -> None:
    card(page).get_by_text("Nodule in the left mid zone.").hover()
    assert drawn(page) == ["C1", "R2"]


def test_hovering_marks_the_evidence_in_the_other_report(page: Page) -> None:
    card(page).get_by_text("Right-sided effusion.").hover()
    assert card(page).locator(".is-evidence .number").all_text_contents() == ["C2"]


def test_leaving_a_sentence_draws_all_boxes_again(page: Page) -> None:
    card(page).get_by_text("Nodule in the left mid zone.").hover()
    page.mouse.move(1, 1)
    assert drawn(page) == ["C1", "C2", "R1", "R2"]


def test_a_sentence_without_boxes_draws_none(page: Page) -> None:
    card(page).get_by_text("Trachea central.").hover()
    assert drawn(page) == []


def test_the_keyboard_does_what_the_pointer_does(page: Page) -> None:
    card(page).locator(".sentence button").first.focus()
    page.keyboard.press("Tab")
    assert drawn(page) == ["C2", "R1"]


def test_a_selected_sentence_stays_until_escape(page: Page) -> None:
    button = card(page).get_by_role("button", name="C1 Nodule")
    button.press("Enter")
    button.blur()
    assert drawn(page) == ["C1", "R2"]
    button.press("Escape")
    button.blur()
    assert drawn(page) == ["C1", "C2", "R1", "R2"]


def test_a_click_on_a_box_selects_its_sentence(page: Page) -> None:
    card(page).locator(".box-viewer-box[data-id=candidate-1]").dispatch_event("click")
    assert card(page).locator("[aria-pressed=true] .number").all_text_contents() == ["C2"]


def test_a_box_is_drawn_at_its_relative_position(page: Page) -> None:
    image = picture(page, "Candidate").locator(".box-viewer-image").bounding_box()
    box = card(page).locator(".box-viewer-box[data-id=candidate-0]").bounding_box()
    assert image is not None
    assert box is not None
    assert image["width"] / image["height"] == pytest.approx(2, abs=0.01)
    shares = [
        (box["x"] - image["x"]) / image["width"],
        (box["y"] - image["y"]) / image["height"],
        box["width"] / image["width"],
        box["height"] / image["height"],
    ]
    assert shares == pytest.approx([0.5, 0.25, 0.25, 0.5], abs=0.005)


def picture(page: Page, side: str, sample_id: str = "good") -> Locator:
    return card(page, sample_id).locator(".picture").filter(has_text=f"{side} boxes")


def test_each_report_has_its_boxes_on_its_own_copy_of_the_image(page: Page) -> None:
    labels = [
        picture(page, side).locator(".box-viewer-label").all_text_contents() for side in ("Candidate", "Reference")
    ]
    assert [sorted(names) for names in labels] == [["C1", "C2"], ["R1", "R2"]]
    left, right = (picture(page, side).bounding_box() for side in ("Candidate", "Reference"))
    assert left is not None
    assert right is not None
    assert left["y"] == right["y"]
    assert left["x"] + left["width"] < right["x"]


def test_a_sentence_has_the_color_of_its_boxes_and_its_evidence(page: Page) -> None:
    def color(box: str) -> str:
        element = card(page).locator(".box-viewer-box").filter(has_text=box)
        return str(element.evaluate("node => getComputedStyle(node).borderTopColor"))

    number = card(page).locator(".number").filter(has_text="C1")
    background = number.evaluate("node => getComputedStyle(node).backgroundColor")
    assert background == color("C1") == color("R2")
    assert color("C2") == color("R1") != background


def test_the_larger_image_has_toggles_for_the_boxes_of_each_report(page: Page) -> None:
    card(page).get_by_role("button", name="Frontal of good: enlarge").click()
    labels = page.locator("dialog .box-viewer-label")
    assert sorted(labels.all_text_contents()) == ["C1", "C2", "R1", "R2"]
    page.get_by_label("Reference boxes").uncheck()
    assert sorted(labels.all_text_contents()) == ["C1", "C2"]


def test_the_larger_image_has_zoom_and_window_by_wheel_and_keys(page: Page) -> None:
    card(page).get_by_role("button", name="Frontal of good: enlarge").click()
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
    assert cards(page) == ["good"]
    assert card(page).locator("[aria-pressed=true] .number").all_text_contents() == ["C2"]
    assert drawn(page) == ["C2", "R1"]
    page.get_by_role("button", name="Study good").click()
    assert cards(page) == ["bad", "good", "failed"]
    page.go_back()
    assert cards(page) == ["good"]
    card(page).get_by_role("link", name="good").click()
    assert page.url == f"{report.as_uri()}#study=good"


@pytest.mark.parametrize(
    ("overlap", "shown"),
    [(0.62, "✓ boxes: 62% inside"), (0.498, "✗ boxes: 49.8% inside"), (0.5, "✗ boxes: 50% inside")],
)
def test_the_share_that_the_score_compares_is_shown(
    browser: Browser, tmp_path: Path, overlap: float, shown: str
) -> None:
    from radfact.api import evaluate
    from radfact.records import Box, Pair, Sentence

    own = Box(x_min=0, y_min=0, x_max=1, y_max=1)
    other = Box(x_min=0, y_min=0, x_max=overlap, y_max=1)
    reports = [[Sentence(text="Left effusion.", boxes=(box,))] for box in (own, other)]
    # A hundredth of a pixel of the 224-pixel grid would change the shares.
    options = {"compat": "exact"} if overlap != 0.5 else {}
    evaluate([Pair("a", *reports)], "radfact", judge="offline", bootstrap=0, out=tmp_path, **options)
    page = browser.new_page()
    page.goto((tmp_path / "report.html").as_uri())
    assert page.locator(".report.candidate .spatial").inner_text().startswith(shown)
    assert page.locator(".report.reference .spatial").inner_text().startswith("✓ boxes: 100% inside")
    page.close()


def test_studies_are_filtered_by_their_inputs(page: Page) -> None:
    page.get_by_role("combobox", name="Inputs").select_option(label="With lateral (1)")
    assert cards(page) == ["good"]
    page.get_by_role("combobox", name="Inputs").select_option(label="Without lateral (0)")
    assert cards(page) == []


@pytest.mark.parametrize("width", [1400, 1024, 420])
def test_a_long_id_does_not_cover_the_controls_of_the_larger_image(page: Page, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 900})
    card(page).get_by_role("button", name="Frontal of good: enlarge").click()
    dialog = page.locator("dialog")
    controls = [dialog.get_by_role("button", name="Close"), *dialog.locator("form label").all()]
    sizes = [(control.bounding_box() or {}).get("height") for control in controls]
    page.evaluate("document.getElementById('large-title').textContent = `1.2.${'3'.repeat(60)} · Frontal`")
    assert [(control.bounding_box() or {}).get("height") for control in controls] == sizes
    title = page.locator("#large-title").bounding_box()
    sides = page.locator("#large-sides").bounding_box()
    assert title is not None
    assert sides is not None
    assert sides["x"] - title["x"] - title["width"] >= 10 or sides["y"] >= title["y"] + title["height"]


def test_inputs_show_present_and_missing_sections(page: Page) -> None:
    inputs = card(page).get_by_role("region", name="Inputs of good")
    assert inputs.locator("dd").all_text_contents() == ["Cough.", "technique, comparison, prior report"]
    assert inputs.locator("dt").all_text_contents() == ["Indication", "Not given"]


def test_the_frontal_among_the_inputs_has_no_boxes(page: Page) -> None:
    card(page).get_by_role("button", name="Frontal: enlarge", exact=True).click()
    assert page.locator("dialog").get_by_role("img").get_attribute("alt") == "Frontal radiograph of good"
    assert page.locator("dialog .box-viewer-label").count() == 0
    assert not page.get_by_label("Reference boxes").is_visible()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_has_no_serious_accessibility_violations(page: Page, scheme: Literal["light", "dark"]) -> None:
    page.emulate_media(color_scheme=scheme)
    card(page).get_by_text("Nodule in the left mid zone.").click()
    assert serious_violations(page) == []


def test_the_worst_study_comes_first_and_those_without_a_value_last(page: Page) -> None:
    assert cards(page) == ["bad", "good", "failed"]


def test_input_order_can_be_selected(page: Page) -> None:
    page.get_by_label("Order").select_option(label="Input order")
    assert cards(page) == ["good", "bad", "failed"]


def test_best_first_can_be_selected(page: Page) -> None:
    page.get_by_label("Order").select_option(label="Logical F1, best first")
    assert cards(page) == ["good", "bad", "failed"]


def test_the_filter_shows_studies_with_every_word(page: Page) -> None:
    page.get_by_role("searchbox").fill("cough NODULE")
    assert cards(page) == ["good"]
    assert page.get_by_role("status").text_content() == "1 of 3 studies"


def test_markup_in_a_report_is_shown_as_text(page: Page) -> None:
    assert card(page, "bad").get_by_text(HOSTILE, exact=True).is_visible()
    assert page.title() == "RadFact results: results"


def test_bidirectional_controls_are_escaped(browser: Browser, tmp_path: Path) -> None:
    write_folder(tmp_path)
    rows = [sentence("good", "candidate", 0, "No \u202enodule.")]
    write_jsonl(tmp_path / "sentences.jsonl", rows)
    page = browser.new_page()
    page.goto(write_page(tmp_path).as_uri())
    assert card(page).get_by_text("No [U+202E]nodule.", exact=True).is_visible()
    page.close()


def test_run_details_have_the_width_of_the_page_and_whole_numbers(browser: Browser, tmp_path: Path) -> None:
    write_folder(tmp_path)
    name = "judge measured on the labeled judgments of this package in very many words of accuracy"
    write_json(tmp_path / "run.json", {name: {name: 0.98512}})
    page = browser.new_page(viewport={"width": 1440, "height": 900})
    page.goto(write_page(tmp_path).as_uri())
    page.get_by_text("Run details").click()
    lines = """node => {
      const range = document.createRange();
      range.selectNodeContents(node);
      return range.getClientRects().length;
    }"""
    assert page.locator(".run-details dd").evaluate(lines) == 1
    assert page.locator(".run-details").evaluate("node => node.offsetWidth") > 1200
    page.close()


def test_the_reason_is_shown_on_demand(page: Page) -> None:
    why = card(page).get_by_text("nothing said of the trachea")
    assert not why.is_visible()
    card(page).get_by_text("Why", exact=True).click()
    assert why.is_visible()


def test_a_thumbnail_opens_larger_and_closes(page: Page) -> None:
    dialog = page.locator("dialog")
    card(page).get_by_role("button", name="Lateral: enlarge").click()
    assert dialog.get_by_role("img").get_attribute("alt") == "Lateral radiograph of good"
    page.keyboard.press("Escape")
    assert not dialog.is_visible()


def test_a_missing_image_is_reported_in_its_place(page: Page) -> None:
    assert card(page).get_by_text("Prior frontal: lost.png: no such image").is_visible()


def test_a_draft_without_reference_shows_no_verdict(page: Page) -> None:
    unscored = page.locator("#unscored")
    assert unscored.get_by_text("Apical cap.").is_visible()
    assert unscored.locator(".verdict").count() == 0
    assert cards(page).count("radiograph") == 0


@pytest.mark.parametrize("width", [1400, 800, 420])
def test_the_page_never_scrolls_sideways(page: Page, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 900})
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_a_scrollable_table_shows_its_hidden_side(browser: Browser, tmp_path: Path) -> None:
    table = Table(["figure", *(f"column {number}" for number in range(9))], [["one", *map(str, range(9))]])
    write_meta_page(tmp_path / "wide.html", "Wide", [], [Section("Wide", [table])])
    page = browser.new_page(viewport={"width": 400, "height": 700}, color_scheme="light")
    page.goto((tmp_path / "wide.html").as_uri())
    panel = page.locator(".panel")

    def shaded() -> list[bool]:
        """Whether the left and the right edge are, in the padding above the table."""
        picture = Image.open(BytesIO(panel.screenshot())).convert("L")
        return [int(str(picture.getpixel((x, 12)))) < 240 for x in (3, picture.width - 4)]

    assert shaded() == [False, True]
    panel.evaluate("node => node.scrollTo(200, 0)")
    assert shaded() == [True, True]
    panel.evaluate("node => node.scrollTo(node.scrollWidth, 0)")
    assert shaded() == [True, False]
    page.set_viewport_size({"width": 1400, "height": 700})
    assert shaded() == [False, False]
    page.close()


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twenty studies with logical F1 of 0.00, 0.05 ... 0.95, the fourth with a mask in both of its encodings."""
    folder = tmp_path_factory.mktemp("many")
    names = [f"s{number:02d}" for number in range(20)]
    write_json(folder / "scores.json", {"scores": {"logical_f1": {"point": 0.475}}, "judge": "tester"})
    write_jsonl(
        folder / "samples.jsonl",
        [{"sample_id": name, "logical_f1": number / 20} for number, name in enumerate(names)],
    )
    # The same runs as in `ring`, compressed by pycocotools 2.0.
    compressed = {"size": [8, 8], "counts": "b044MN020N023>"}
    write_jsonl(
        folder / "sentences.jsonl",
        [
            sentence("s03", "candidate", 0, "Mass.", masks=[ring()], spatial="not_entailed"),
            sentence("s03", "reference", 0, "Lesion.", masks=[compressed], status="entailment", evidence=[0]),
        ],
    )
    return write_page(folder)


@pytest.fixture
def many_page(browser: Browser, many: Path) -> Iterator[Page]:
    context = browser.new_context(viewport={"width": 1400, "height": 900}, offline=True)
    page = context.new_page()
    page.goto(many.as_uri())
    yield page
    context.close()


def test_prior_boxes_are_drawn_on_the_prior_image(browser: Browser, tmp_path: Path) -> None:
    write_image(tmp_path / "prior.png", 100, 100)
    manifest = write_manifest(tmp_path / "manifest.jsonl", {"sample_id": "a", "prior_frontal": "prior.png"})
    write_json(tmp_path / "scores.json", {"scores": {}, "judge": "tester"})
    write_jsonl(tmp_path / "samples.jsonl", [{"sample_id": "a"}])
    corner = {"x_min": 0, "y_min": 0, "x_max": 0.5, "y_max": 0.5}
    write_jsonl(tmp_path / "sentences.jsonl", [sentence("a", "reference", 0, "Unchanged.", prior_boxes=[corner])])
    page = browser.new_page()
    page.goto(write_page(tmp_path, manifest=manifest).as_uri())
    page.get_by_role("button", name="Prior frontal: enlarge").click()
    assert page.locator("dialog .box-viewer-label").all_text_contents() == ["R1"]
    assert drawn(page, "a") == []
    page.close()


@pytest.mark.parametrize("side", ["candidate", "reference"])
def test_a_mask_is_drawn_where_its_pixels_are(many_page: Page, side: str) -> None:
    mask = card(many_page, "s03").locator(f".box-viewer-box.mask.{side}")
    style = mask.evaluate("node => [node.style.left, node.style.top, node.style.width, node.style.height]")
    assert style == ["25%", "25%", "50%", "50%"]
    # Around four cells a side, then around the hole of two, the other way round.
    assert mask.locator(".outline").get_attribute("d") == "M0 0 4 0 4 4 0 4 zM2 1 1 1 1 3 3 3 3 1 z"


def test_hovering_a_mask_marks_its_sentence_except_in_its_hole(many_page: Page) -> None:
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
    many_page.get_by_role("button", name="0.2 to 0.25: 1 study", exact=True).click()
    assert cards(many_page) == ["s04"]
    many_page.get_by_title("List all studies again").click()
    assert many_page.get_by_role("status").text_content() == "20 of 20 studies"


def test_arrow_keys_move_between_bars(many_page: Page) -> None:
    many_page.get_by_role("button", name="0 to 0.05: 1 study", exact=True).focus()
    many_page.keyboard.press("ArrowRight")
    many_page.keyboard.press("Enter")
    assert cards(many_page) == ["s01"]


def test_every_study_is_in_one_bar(many_page: Page) -> None:
    names = [bar.get_attribute("aria-label") or "" for bar in many_page.locator(".bin").all()]
    assert [name.split(": ")[1] for name in names] == ["1 study"] * 20


def test_few_studies_have_no_histogram(page: Page) -> None:
    assert not page.locator("#spread").is_visible()


def test_studies_with_a_missed_sentence_can_be_selected(page: Page) -> None:
    page.get_by_role("combobox", name="Show").select_option(label="With a reference sentence that is missed (1)")
    assert cards(page) == ["bad"]


def test_excluded_studies_can_be_selected(page: Page) -> None:
    page.get_by_role("combobox", name="Show").select_option(label="Excluded from the scores (1)")
    assert cards(page) == ["failed"]


@pytest.fixture(scope="module")
def long_report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three hundred studies of two sentences each."""
    folder = tmp_path_factory.mktemp("long")
    names = [f"s{number:03d}" for number in range(300)]
    write_json(folder / "scores.json", {"scores": {}, "judge": "tester"})
    write_jsonl(folder / "samples.jsonl", [{"sample_id": name} for name in names])
    write_jsonl(
        folder / "sentences.jsonl",
        [sentence(name, side, 0, f"Finding of {name}.") for name in names for side in ("candidate", "reference")],
    )
    return write_page(folder)


@pytest.fixture
def long_page(browser: Browser, long_report: Path) -> Iterator[Page]:
    page = browser.new_page(viewport={"width": 1400, "height": 900})
    page.goto(long_report.as_uri())
    yield page
    page.close()


def test_only_studies_near_the_viewport_are_rendered(long_page: Page) -> None:
    places = long_page.locator("#study-list .place")
    assert places.count() == 300
    places.last.scroll_into_view_if_needed()
    card(long_page, "s299").get_by_text("Finding of s299.").first.wait_for()
    assert long_page.locator("#study-list article").count() < 60


def test_a_focused_card_stays_rendered(long_page: Page) -> None:
    card(long_page, "s000").get_by_role("button", name="C1 Finding").click()
    places = long_page.locator("#study-list .place")
    for number in (100, 200, 299):
        places.nth(number).scroll_into_view_if_needed()
        card(long_page, f"s{number:03d}").wait_for()
    assert card(long_page, "s000").locator("[aria-pressed=true]").count() == 1
    assert card(long_page, "s001").count() == 0


def test_printing_renders_every_study(long_page: Page) -> None:
    # Counted in the same task, as the browser prints: the page later removes cards far from the viewport.
    count = "document.querySelectorAll('#study-list article').length"
    assert long_page.evaluate(f"() => {{ window.dispatchEvent(new Event('beforeprint')); return {count}; }}") == 300


@pytest.fixture
def metrics_page(browser: Browser, tmp_path: Path) -> Iterator[Page]:
    """A page of two metrics of which neither is RadFact."""
    from radfact.api import evaluate
    from radfact.records import Pair

    texts = {"a": "Clear lungs.", "b": "Clear lungs and heart.", "c": HOSTILE, "d": "Clear as day today."}
    evaluate([Pair(key, text, "Clear lungs.") for key, text in texts.items()], ["rouge_l", "bleu_1"], out=tmp_path)
    page = browser.new_page(viewport={"width": 1200, "height": 900})
    complaints: list[str] = []
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.goto((tmp_path / "report.html").as_uri())
    yield page
    page.close()
    assert complaints == []


def test_an_empty_report_is_worst_and_a_neutral_score_has_no_worst(browser: Browser, tmp_path: Path) -> None:
    from radfact.api import evaluate
    from radfact.records import Pair

    candidates = {"good": "The heart is large.", "empty": "", "bad": "Right effusion.", "none": ""}
    pairs = [Pair(key, text, "The heart is large.") for key, text in candidates.items()]
    evaluate(pairs, ["radfact", "lateral_mentions"], judge="offline", bootstrap=0, out=tmp_path)
    page = browser.new_page()
    page.goto((tmp_path / "report.html").as_uri())
    assert cards(page) == ["empty", "none", "bad", "good"]
    options = page.get_by_label("Order").locator("option").all_inner_texts()
    assert [option for option in options if option.startswith("Lateral mentions,")] == [
        "Lateral mentions, greatest first"
    ]
    page.get_by_label("Order").select_option(label="Logical F1, best first")
    assert cards(page) == ["good", "bad", "empty", "none"]
    page.close()


def test_the_table_of_all_scores_can_be_sorted(metrics_page: Page) -> None:
    metrics_page.get_by_text("Table of all scores").click()
    head = metrics_page.locator(".frame thead button", has_text="ROUGE-L")
    names = metrics_page.locator(".frame tbody th")
    head.click()
    assert names.all_inner_texts() == ["c", "d", "b", "a"]
    head.click()
    assert names.all_inner_texts()[0] == "a"


def test_a_point_of_the_scatter_plot_opens_its_study(metrics_page: Page) -> None:
    points = metrics_page.locator(".scatter circle")
    assert points.count() == 4
    # The best study of both scores is at the far corner, the worst at the origin.
    far, origin = points.nth(0).bounding_box(), points.nth(2).bounding_box()
    assert far is not None
    assert origin is not None
    assert far["x"] > origin["x"]
    assert far["y"] < origin["y"]
    points.nth(3).click()
    assert metrics_page.url.endswith("report.html#study=d")
    assert cards(metrics_page) == ["d"]


def test_reports_without_verdicts_are_shown_as_text(metrics_page: Page) -> None:
    shown = metrics_page.locator("article[data-sample='c']")
    assert HOSTILE in shown.inner_text()
    assert shown.locator(".verdict").count() == 0
