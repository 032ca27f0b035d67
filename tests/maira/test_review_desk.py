"""The page of a review in a real browser: images, boxes, steps, the list of studies, and who can use it."""

from __future__ import annotations

from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from accessibility import serious_violations
from long_values import DATA
from PIL import Image
from review_desk import Running, at_study, drag, on_radiograph, press, row, saved, served, visiting
from review_files import CASES, box, write_review_set, write_set, write_verdicts

if TYPE_CHECKING:
    from playwright.sync_api import Browser, FloatRect, Locator, Page, Route

pytestmark = pytest.mark.browser

MANY = 120
BARE = 119


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """One server for all tests; each test is a separate reader."""
    folder = write_review_set(tmp_path_factory.mktemp("review"), MANY, bare=BARE)
    Image.new("L", (4000, 3000), 120).save(folder / "prior.png")
    with served(folder, write_verdicts(folder)) as server:
        yield server


def labels(page: Page) -> list[str]:
    return sorted(page.locator("#radiograph .box-viewer-label").all_text_contents())


def gray_at(page: Page, x: float) -> int:
    """How bright the radiograph is shown at this share of its width."""
    place = on_radiograph(page, x, 0.9)
    clip = {"x": place[0], "y": place[1], "width": 4, "height": 4}
    with Image.open(BytesIO(page.screenshot(clip=clip))) as shown:  # type: ignore[arg-type]
        value = shown.convert("L").getpixel((1, 1))
    assert isinstance(value, int)
    return value


def bounds(locator: Locator) -> FloatRect:
    found = locator.bounding_box()
    assert found is not None
    return found


def frame_width(page: Page) -> float:
    return on_radiograph(page, 1, 0)[0] - on_radiograph(page, 0, 0)[0]


def test_the_inputs_are_shown_and_missing_ones_are_stated(page: Page) -> None:
    assert page.locator("#context dd").all_inner_texts()[:3] == ["Cough.", "PA and lateral.", "Last year."]
    page.locator("#context summary").click()
    assert page.get_by_text("Clear.").is_visible()
    assert page.locator(".thumb .caption").all_inner_texts() == ["Lateral", "Prior frontal"]
    page.goto(page.url.replace("#1", f"#{BARE}"))
    page.get_by_text("The draft has no sentence.").wait_for()
    press(page, "]", "]")
    page.get_by_text("No reference report is shown. Leave a comment.").wait_for()


def test_the_wheel_zooms_at_the_pointer_and_reset_fits_the_image(page: Page) -> None:
    fitted = frame_width(page)
    place = on_radiograph(page, 0.25, 0.5)
    page.mouse.move(*place)
    page.mouse.wheel(0, -600)
    assert frame_width(page) > 2 * fitted
    # Pointer positions are whole pixels, and zooming enlarges the rounding error.
    assert on_radiograph(page, 0.25, 0.5) == pytest.approx(place, abs=2)
    drag(page, place, (place[0] + 50, place[1]))
    assert on_radiograph(page, 0.25, 0.5)[0] == pytest.approx(place[0] + 50, abs=2)
    page.get_by_role("button", name="Reset", exact=True).click()
    assert frame_width(page) == pytest.approx(fitted)


def painted(page: Page) -> None:
    """Wait until what was changed is painted."""
    page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")


def test_inverting_window_and_level_follow_keys_a_right_drag_and_numbers(page: Page) -> None:
    # All values, from 0 to 200, are shown from black to white.
    for grays in ([0, 255], [255, 0]):
        painted(page)
        assert [gray_at(page, 0.05), gray_at(page, 0.95)] == grays
        press(page, "i")
    start = on_radiograph(page, 0.5, 0.5)
    drag(page, start, (start[0] + 102, start[1] + 51), button="right")
    painted(page)
    width, level = (float(page.locator(name).input_value()) for name in ("#window-width", "#window-level"))
    # One pixel is a 255th of all values across, and half of that down.
    assert (width, level) == (280, 120)
    assert page.locator("#window-preset").input_value() == ""
    # 200 lies 80 above the middle of a window of 280 values.
    assert gray_at(page, 0.95) == pytest.approx(255 * (0.5 + 80 / 280), abs=2)
    page.get_by_label("Window width").fill("400")
    page.get_by_label("Level of the window").fill("100")
    press(page, "Escape")
    painted(page)
    assert gray_at(page, 0.95) == pytest.approx(255 * 0.75, abs=2)
    page.locator("#window-preset").select_option(label="All values")
    painted(page)
    assert gray_at(page, 0.95) == 255


def test_a_click_swaps_lateral_and_frontal_image(page: Page) -> None:
    page.get_by_role("button", name="Lateral: show large").click()
    page.locator("#radiograph[aria-label='Lateral radiograph of study 1'][aria-busy=false]").wait_for()
    assert page.locator("#radiograph .radiograph-caption").inner_text() == "200 × 300, 8 bit · the model’s input"
    assert page.locator(".thumb .caption").all_inner_texts() == ["Frontal", "Prior frontal"]
    width = "all => Promise.all(all.map((i) => i.decode().then(() => i.naturalWidth)))"
    assert page.locator(".thumb img").evaluate_all(width) == [256, 256]
    # Boxes belong to the frontal image.
    assert labels(page) == []
    row(page, 0).locator(".sentence-text").click()
    assert page.locator(".thumb .caption").all_inner_texts() == ["Lateral", "Prior frontal"]
    assert labels(page) == ["1"]


def test_a_zoomed_image_is_loaded_in_full_resolution(page: Page) -> None:
    urls: list[str] = []
    page.on("response", lambda answer: urls.append(answer.url))
    page.get_by_role("button", name="Prior frontal: show large").click()
    page.locator("#radiograph[aria-label^=Prior][aria-busy=false]").wait_for()
    with page.expect_response("**/images/1/prior_frontal?longest=4096"):
        press(page, "+", "+", "+", "+", "+", "+")
    assert next(url for url in urls if "/images/1/prior" in url).endswith("=1024")


def test_images_side_by_side_have_a_linked_zoom_and_own_windows(page: Page) -> None:
    press(page, "s")
    panes = page.locator(".radiograph:visible")
    # The pixels begin where the boxes do.
    shown = panes.evaluate_all("all => all.map(({ dataset, firstChild }) => [dataset.kind, firstChild.offsetLeft])")
    assert shown == [["Frontal", 0], ["Lateral", 0], ["Prior frontal", 0]]
    assert page.locator(".thumb").count() == 0
    page.locator(".radiograph[aria-busy=true]").first.wait_for(state="detached")
    page.mouse.move(*on_radiograph(page, 0.5, 0.5))
    page.mouse.wheel(0, -400)
    zoom = "all => all.map((pane) => pane.querySelector('.box-viewer-frame').offsetWidth / pane.clientWidth)"
    assert min(panes.evaluate_all(zoom)) > 1
    panes.nth(1).focus()
    press(page, "i")
    assert page.locator("#invert").get_attribute("aria-pressed") == "true"
    press(page, "m", "-")
    page.locator("#radiograph").focus()
    assert page.locator("#invert").get_attribute("aria-pressed") == "false"
    assert labels(page) == ["1"]
    page.reload()
    at_study(page, 1)
    assert panes.count() == 3


def test_the_magnifier_follows_the_pointer(page: Page) -> None:
    lens = page.locator("#radiograph .radiograph-lens")
    page.mouse.move(*on_radiograph(page, 0.3, 0.5))
    press(page, "z")
    place = on_radiograph(page, 0.95, 0.5)
    page.mouse.move(*place)
    painted(page)
    around = bounds(lens)
    assert around["x"] + around["width"] / 2 == pytest.approx(place[0], abs=2)
    middle = "lens => lens.getContext('2d').getImageData(lens.width / 2, lens.height / 2, 1, 1).data[0]"
    assert lens.evaluate(middle) == 255
    press(page, "z")
    assert not lens.is_visible()


def test_images_are_fetched_ahead_and_their_loading_and_failing_is_stated(page: Page) -> None:
    with page.expect_response("**/images/6/frontal?*"), page.expect_response("**/images/7/frontal?*"):
        page.evaluate("location.hash = '#5'")
    at_study(page, 5)
    page.route("**/images/6/frontal?*", lambda route: route.abort())
    press(page, "n")
    at_study(page, 6)
    assert page.locator("#radiograph .radiograph-caption").inner_text().startswith("400 × 300")
    page.route("**/images/33/frontal?*", lambda route: route.fulfill(status=400, json={"error": "damaged"}))
    held: list[Route] = []
    # Also the request ahead of time.
    page.route("**/images/34/frontal?*", lambda route: held.append(route))
    page.evaluate("location.hash = '#33'")
    page.get_by_text("The image cannot be loaded: damaged").wait_for()
    page.evaluate("location.hash = '#34'")
    page.locator("#radiograph[aria-busy=true]", has_text="Loading …").wait_for()
    for route in held:
        route.continue_()
    page.locator("#radiograph[aria-busy=false]").wait_for()


def test_a_sentence_shows_its_boxes_and_a_box_its_sentence(page: Page) -> None:
    boxes = page.locator(".edit-box")
    assert boxes.count() == 0
    # Selecting a sentence brings its boxes into view.
    page.mouse.move(*on_radiograph(page, 0.95, 0.95))
    page.mouse.wheel(0, -900)
    press(page, "j")
    view, shown = bounds(page.locator("#radiograph")), bounds(boxes)
    for start, size in (("x", "width"), ("y", "height")):
        assert view[start] - 1 <= shown[start]
        assert shown[start] + shown[size] <= view[start] + view[size] + 1
    page.get_by_role("button", name="Reset", exact=True).click()
    row(page, 1).locator(".sentence-text").click()
    assert boxes.count() == 0
    page.mouse.click(*on_radiograph(page, 0.2, 0.4))
    assert row(page, 0).get_attribute("class") == "sentence selected"
    assert boxes.count() == 1
    # A click that moves by some pixels changes nothing.
    for place in ((0.2, 0.4), (0.3, 0.6)):
        start = on_radiograph(page, *place)
        drag(page, start, (start[0] + 2, start[1] + 1))
    assert page.locator("#undo").is_disabled()
    assert page.locator(".mark", has_text="boxes changed").count() == 0
    page.reload()
    at_study(page, 1)
    row(page, 0).locator(".sentence-text").click()
    assert boxes.count() == 1
    page.get_by_role("heading", name="Draft", exact=True).click()
    assert boxes.count() == 0


def test_a_box_can_be_resized_drawn_and_removed(page: Page, running: Running) -> None:
    press(page, "j")
    drag(page, on_radiograph(page, 0.3, 0.6), on_radiograph(page, 0.5, 0.7))
    saved(page)
    assert running.sentence(0).boxes[0] == pytest.approx((0.1, 0.2, 0.5, 0.7), abs=0.01)
    press(page, "j")
    row(page, 1).get_by_role("button", name="Add a box").click()
    drag(page, on_radiograph(page, 0.6, 0.5), on_radiograph(page, 0.8, 0.9))
    saved(page)
    assert running.sentence(1).boxes[0] == pytest.approx((0.6, 0.5, 0.8, 0.9), abs=0.01)
    press(page, "Delete")
    row(page, 1).locator(".mark").wait_for(state="detached")
    saved(page)
    assert (running.sentence(1).boxes, running.sentence(1).deleted) == ((), False)


def test_a_box_added_and_removed_by_mouse_leaves_no_correction(browser: Browser, tmp_path: Path) -> None:
    # Not a multiple of the precision that boxes are saved with.
    drafted = [{"text": "Nodule.", "boxes": [box(1 / 3, 0.2, 2 / 3, 0.6)]}]
    write_set(tmp_path, {"s1": drafted})
    with served(tmp_path) as running, visiting(browser, running) as page:
        changed = page.locator(".mark", has_text="boxes changed")
        press(page, "j")
        page.get_by_role("button", name="Add a box").click()
        drag(page, on_radiograph(page, 0.1, 0.1), on_radiograph(page, 0.2, 0.3))
        changed.wait_for()
        page.locator(".edit-box").nth(1).locator(".remove-box").click()
        changed.wait_for(state="detached")
        # Back to less than half a pixel of the original, which is 40 pixels wide.
        start, end = on_radiograph(page, 0.5, 0.4), on_radiograph(page, 0.7, 0.4)
        drag(page, start, end)
        changed.wait_for()
        drag(page, end, (start[0] + 2, start[1]))
        changed.wait_for(state="detached")
        saved(page)
        assert running.state().corrections == ()


def test_moving_a_box_by_keys_is_one_announced_change(page: Page, running: Running) -> None:
    # The keys are one change once they have rested for a moment; how long that is seen depends on the machine.
    page.evaluate(DATA["record what is said"])
    press(page, "j", "m", "Tab", "ArrowRight", "ArrowDown", "Shift+ArrowRight", "Alt+ArrowUp")
    assert page.locator("#announcer").inner_text().strip() == "left 11, top 21, right 32, bottom 61 percent"
    saved(page)
    assert page.evaluate("() => window.said")[0] == "Not saved yet"
    assert running.sentence(0).boxes == ((0.11, 0.208, 0.32, 0.608),)
    press(page, "Control+z")
    page.locator("#undo:disabled").wait_for()
    saved(page)
    assert running.sentence(0).boxes == ((0.1, 0.2, 0.3, 0.6),)
    press(page, "Escape")
    assert row(page, 0).locator(".sentence-text").evaluate("button => button === document.activeElement")
    assert row(page, 0).get_attribute("class") == "sentence selected"


def test_effects_of_keys_are_announced(page: Page) -> None:
    for keys, announced in CASES["announced keys"]:
        press(page, *keys)
        page.locator("#announcer", has_text=announced).wait_for(state="attached")
        saved(page)
        number = int(page.url.partition("#")[2]) + 1
        press(page, "Escape", "n")
        at_study(page, number)


def test_exports_are_of_the_reader_and_the_menu_closes(page: Page, running: Running) -> None:
    menu, links = page.locator("#export"), page.locator("#exports a")
    menu.click()
    hrefs = links.evaluate_all("links => links.map((link) => link.pathname + link.search)")
    files = ("corrections.csv", "drafts.jsonl", "summary.json")
    assert hrefs == [f"/export/{name}?reader={running.reader}" for name in files]
    press(page, "Tab", "Escape")
    assert not links.first.is_visible()
    # A download leaves the menu open.
    menu.click()
    press(page, "n")
    at_study(page, 2)


def test_a_narrow_window_wraps_the_bar_and_a_long_id_is_shortened(page: Page) -> None:
    # As of a whole data set, an id of MIMIC-CXR and a long name.
    words = DATA["long words"]
    bar = page.locator(".bar")
    before = bar.bounding_box()
    page.locator("#study-id").evaluate("node => { node.textContent = '9'.repeat(300); }")
    assert bar.bounding_box() == before
    assert bar.evaluate("bar => bar.scrollWidth <= bar.clientWidth")
    for key, text in words.items():
        page.locator(f"#{key}").evaluate("(node, text) => { node.textContent = text; }", text)
    press(page, "l", "j", "d")
    # 1280 x 1024 at a zoom of 400 %, a telephone, 1280 x 800 at zooms of 200 % and 133 %, and three screens.
    for width, height in ((320, 256), (360, 740), (640, 400), (960, 600), (1024, 768), (1280, 800), (1366, 768)):
        page.set_viewport_size({"width": width, "height": height})
        # The image is fitted to the window in the next frame, which moves what is below it.
        painted(page)
        assert page.evaluate(DATA["overlapping controls"]) == []
        assert page.evaluate("document.documentElement.scrollWidth") == width
        places = ("#radiograph", ".radiograph-tools", "#report")
        radiograph, tools, report = (bounds(page.locator(name)) for name in places)
        assert min(radiograph["width"], radiograph["height"]) > 150
        # Beside it or above it.
        for one in (radiograph, tools):
            assert one["x"] + one["width"] <= report["x"] or one["y"] + one["height"] <= report["y"]
        assert page.locator("#report").evaluate("report => report.scrollWidth <= report.clientWidth")
        page.locator("#export").click()
        assert bounds(page.locator(".menu-list"))["x"] >= 0
        press(page, "Escape")


def test_a_phone_shows_all_of_each_step_with_large_targets(browser: Browser, running: Running) -> None:
    phone = {"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True}
    with visiting(browser, running, **phone) as page:
        page.locator("#context dd").first.evaluate("(node, text) => { node.textContent = text; }", "Cough. " * 40)
        for _ in range(4):
            row(page, 0).locator(".sentence-text").tap()
            assert page.evaluate("document.documentElement.scrollWidth") == 390
            assert page.evaluate(DATA["unusable controls"]) == []
            page.locator("#advance").tap()
        check_accessibility(page)
        page.locator("#toggle-studies").tap()
        page.locator("#study-2").tap()
        at_study(page, 2)
        assert not page.locator("#studies").is_visible()


def test_a_custom_error_type_can_be_added(page: Page, running: Running) -> None:
    press(page, "j", "d")
    row(page, 0).get_by_label("Error type", exact=True).select_option(label="Another type …")
    press(page, *"WRONG PATIENT", "Enter")
    saved(page)
    assert running.sentence(0).error_type == "WRONG PATIENT"
    chosen = row(page, 0).get_by_label("Error type", exact=True)
    assert chosen.input_value() == "WRONG PATIENT"
    assert chosen.evaluate("select => select === document.activeElement")
    for keys in (["Escape"], ["x", "Escape"]):
        chosen.select_option(label="Another type …")
        press(page, *keys)
        assert chosen.input_value() == "WRONG PATIENT"


def test_sentences_are_linked_on_demand_without_revealing_verdicts(page: Page) -> None:
    counterparts = page.locator(".sentence.counterpart")
    press(page, "]", "g")
    assert page.locator("#message").inner_text() == "Sentences are linked to the reference report from step 3 on."
    press(page, "]", "j")
    page.locator("#reference-sentences li").first.wait_for()
    assert counterparts.count() == 0
    press(page, "g")
    counterparts.get_by_text("The heart is mildly enlarged.").wait_for()
    # By the subject: the verdict names no evidence for this sentence, and the other way round.
    assert counterparts.count() == 1
    page.locator("#reference-sentences button").nth(1).click()
    page.locator("#sentences .counterpart", has_text="No pleural effusion.").wait_for()
    press(page, "v", "j", "j")
    page.locator("#reference-sentences .counterpart", has_text="No effusion.").wait_for()
    press(page, "g")
    assert counterparts.count() == 0


def test_verdicts_are_hidden_until_requested_from_step_three_on(page: Page) -> None:
    verdict = page.get_by_text("not entailed by the reference")
    tick = page.get_by_label("RadFact’s verdicts")
    press(page, "v")
    assert not tick.is_checked()
    press(page, "]", "]")
    page.locator("#reference-sentences li").first.wait_for()
    assert not verdict.is_visible()
    tick.check()
    assert verdict.is_visible()
    # It is of the draft's sentence, whatever becomes of it.
    press(page, "j", "e", *" Or not.", "Enter")
    assert row(page, 0).locator(".verdict").inner_text().startswith("the draft’s sentence:")
    press(page, "[")
    assert not verdict.is_visible()
    assert tick.is_checked()
    press(page, "]", "v")
    assert not verdict.is_visible()


def test_an_edited_sentence_shows_its_changes(page: Page) -> None:
    press(page, "j", "e", "ControlOrMeta+a", *"The heart size is enlarged.", "Enter")
    words = row(page, 0).locator(".words")
    assert words.locator("del").all_inner_texts() == ["normal."]
    assert words.locator("ins").all_inner_texts() == ["enlarged."]
    heard = "Sentence 1, edited, 1 box: The heart size is enlarged."
    assert page.get_by_role("button", name=heard, exact=True).is_visible()
    press(page, "d")
    heard = "Sentence 1, deleted, edited, 1 box: The heart size is enlarged."
    assert page.get_by_role("button", name=heard, exact=True).is_visible()


def test_the_list_reaches_the_last_study_and_is_filtered_by_words_and_progress(page: Page) -> None:
    press(page, "j", "d")
    saved(page)
    press(page, "l")
    page.locator("#study-1").wait_for()
    assert page.locator("#study-count").inner_text() == "120 studies"
    press(page, "Home", "End", "Enter")
    at_study(page, 120)
    press(page, "/", *"s11")
    assert page.locator("#study-count").inner_text() == "11 of 120 studies"
    press(page, "Escape", "j")
    assert page.get_by_label("Filter").input_value() == "s11"
    assert row(page, 0).get_attribute("class") == "sentence selected"
    press(page, "/", "Enter", "ArrowDown", "Enter")
    at_study(page, 110)
    page.get_by_label("Filter").fill("")
    page.locator("#study-kind").select_option(label="with corrections")
    assert page.locator(".study-row:visible").all_inner_texts() == ["◐\n1\ns1\nstep 1 · 1 ✎"]
    assert page.locator(".row-state:visible").get_attribute("title") == "1 correction"


def test_single_keys_can_be_switched_off(page: Page) -> None:
    press(page, "?")
    page.get_by_label("Enable single-key shortcuts").uncheck()
    press(page, "Escape", "l", "j")
    assert not page.locator("#studies").is_visible()
    assert page.locator(".sentence.selected").count() == 0


def check_accessibility(page: Page) -> None:
    # Colors are all that another theme changes.
    for theme, rules in (("Light", ["color-contrast"]), ("Dark", None)):
        page.evaluate(f"document.documentElement.dataset.theme = '{theme.lower()}'")
        assert serious_violations(page, rules=rules) == []
    assert page.get_by_role("heading", level=1).count() == 1


def test_axe_finds_nothing_serious(page: Page) -> None:
    page.get_by_role("button", name="Light", exact=True).click()
    assert page.locator("html").get_attribute("data-theme") == "light"
    press(page, "j", "e", *" More.", "Enter", "j", "d", "a", *"Bifid rib.", "Enter", "l", "]")
    saved(page)
    check_accessibility(page)
    press(page, "]")
    page.locator("#reference-sentences li").first.wait_for()
    page.get_by_label("RadFact’s verdicts").check()
    check_accessibility(page)
    press(page, "]", "k")
    page.locator("#definitions summary").click()
    for keys in ([], ["a"], ["Escape", "?"]):
        press(page, *keys)
        check_accessibility(page)
