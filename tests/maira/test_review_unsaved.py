"""What becomes of words whose change is not taken, and of answers that overtake one another, in a real browser."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
from review_desk import Running, at_study, drag, launched, on_radiograph, press, row, saved, served, unsaved, visiting
from review_files import SENTENCES, write_review_set

from maira.review.changes import readable

if TYPE_CHECKING:
    from pathlib import Path

    from playwright.sync_api import Browser, Page, Route

pytestmark = pytest.mark.browser

COMMENT = "Comment on this correction"
FINDING = "Text of the missing finding"
REFUSED = {"error": "this cannot be taken"}


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with launched() as browser:
        yield browser


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    with served(write_review_set(tmp_path)) as running:
        yield running


@pytest.fixture
def page(browser: Browser, running: Running) -> Iterator[Page]:
    with visiting(browser, running) as page:
        yield page


def hold(page: Page, **answer: Any) -> None:
    """Keep the next change on its way until `let_go`; then it gets an answer, or else the server's."""

    def wait(route: Route) -> None:
        page.locator("html[data-let-go]").wait_for()
        if answer:
            route.fulfill(**answer)
        else:
            route.continue_()

    page.route("**/changes", wait, times=1)


def let_go(page: Page) -> None:
    page.evaluate("() => { document.documentElement.dataset.letGo = ''; }")


def refuse(page: Page, what: str = "") -> None:
    let_go(page)
    page.locator("#alert", has_text=f"This cannot be taken. Not saved (study 1): {what}").wait_for()


def test_a_comment_on_a_correction_stays_until_it_is_saved(page: Page, running: Running) -> None:
    press(page, "j", "d", "2")
    saved(page)
    hold(page, status=400, json=REFUSED)
    comment = row(page, 0).get_by_label(COMMENT)
    comment.fill("Old radiograph.")
    press(page, "Enter")
    row(page, 1).locator(".sentence-text").click()
    refuse(page, "the comment on a correction.")
    assert comment.is_visible()
    assert comment.input_value() == "Old radiograph."
    unsaved(page)
    page.reload()
    at_study(page, 1)
    assert comment.is_visible()
    assert comment.input_value() == "Old radiograph."
    unsaved(page)
    comment.press("Enter")
    saved(page)
    assert running.sentence(0).assessment.comment == "Old radiograph."
    assert running.sentence(0).assessment.severity == 2
    page.reload()
    at_study(page, 1)
    assert not comment.is_visible()
    assert page.locator("#saved").inner_text() == ""


def test_text_typed_after_a_refused_comment_stays(page: Page, running: Running) -> None:
    press(page, "j", "d")
    saved(page)
    hold(page, status=400, json=REFUSED)
    comment = row(page, 0).get_by_label(COMMENT)
    comment.fill("Old radiograph.")
    press(page, "Enter", "End")
    page.keyboard.type(" Rotated.")
    refuse(page)
    assert comment.input_value() == "Old radiograph. Rotated."
    comment.press("Enter")
    saved(page)
    assert running.sentence(0).assessment.comment == "Old radiograph. Rotated."


def test_a_pending_comment_prevents_finishing(browser: Browser, page: Page, running: Running) -> None:
    hold(page, status=400, json=REFUSED)
    press(page, "j", "d", "2")
    comment = row(page, 0).get_by_label(COMMENT)
    comment.fill("Old radiograph.")
    press(page, "Enter")
    row(page, 1).locator(".sentence-text").click()
    refuse(page)
    waiting = page.locator("#unsaved")
    waiting.get_by_text("Sentence 1, comment (correct the sentence to continue): Old radiograph.").wait_for()
    assert not comment.is_visible()
    unsaved(page)
    # What another machine does is shown nevertheless.
    with visiting(browser, running) as second_page:
        press(second_page, "]", "]", "]")
        saved(second_page)
    page.evaluate("() => window.dispatchEvent(new Event('focus'))")
    page.get_by_role("button", name="Finish study").click()
    page.locator("#remaining", has_text="Some text is not saved: continue or discard it.").wait_for()
    press(page, "k", "d", "2")
    assert not waiting.is_visible()
    assert comment.input_value() == "Old radiograph."
    unsaved(page)
    press(page, "f", "f")
    page.get_by_text("This study is finished.").wait_for()
    saved(page)
    assert running.state().done
    assert running.sentence(0).assessment.comment == "Old radiograph."


def test_pending_text_can_be_discarded(page: Page) -> None:
    hold(page, status=400, json=REFUSED)
    press(page, "j", "d")
    row(page, 0).get_by_label(COMMENT).fill("Old radiograph.")
    press(page, "Enter", "Escape")
    refuse(page)
    page.get_by_role("button", name="Discard: Sentence 1, comment").click()
    assert not page.locator("#unsaved").is_visible()
    assert page.locator("#saved").inner_text() != "Not saved yet"
    press(page, "j", "d")
    saved(page)
    assert row(page, 0).get_by_label(COMMENT).input_value() == ""


def test_a_refused_edit_returns_to_its_reopened_form(page: Page, running: Running) -> None:
    hold(page, status=400, json=REFUSED)
    press(page, "j", "e", "ControlOrMeta+a")
    page.keyboard.type("The heart is large.")
    press(page, "Enter", "e")
    refuse(page)
    assert page.get_by_label("Text of sentence 1").input_value() == "The heart is large."
    press(page, "Enter")
    saved(page)
    assert running.sentence(0).text == "The heart is large."


def test_an_edited_finding_does_not_overwrite_one_of_the_same_id(
    browser: Browser, page: Page, running: Running
) -> None:
    hold(page)
    press(page, "a")
    page.keyboard.type("Bifid rib.")
    press(page, "Enter", "e", "End")
    page.keyboard.type(" Left.")
    with visiting(browser, running) as second_page:
        press(second_page, "a")
        second_page.keyboard.type("Nodule.")
        press(second_page, "Enter")
        saved(second_page)
    let_go(page)
    field = page.get_by_label(FINDING)
    field.wait_for()
    assert field.input_value() == "Bifid rib. Left."
    field.press("Enter")
    saved(page)
    assert [sentence.text for sentence in running.state().sentences] == [*SENTENCES, "Nodule.", "Bifid rib. Left."]


def test_a_custom_type_stays_and_a_refused_severity_is_reset(page: Page, running: Running) -> None:
    press(page, "j", "d")
    saved(page)
    hold(page, status=400, json=REFUSED)
    press(page, "2")
    row(page, 0).get_by_label("Error type", exact=True).select_option(label="Another type …")
    page.locator("input[type=text]:focus").wait_for()
    page.keyboard.type("WRONG RADIOGRAPH")
    press(page, "Enter")
    refuse(page, "a severity, a type of error.")
    assert not row(page, 0).get_by_role("radio", name="2 Significant").is_checked()
    own = row(page, 0).get_by_label("Custom error type")
    assert own.input_value() == "WRONG RADIOGRAPH"
    unsaved(page)
    own.press("Enter")
    saved(page)
    assert running.sentence(0).assessment.error_type == "WRONG RADIOGRAPH"
    assert running.sentence(0).assessment.severity is None


def test_all_texts_of_refused_changes_are_returned(page: Page, running: Running) -> None:
    hold(page, status=400, json=REFUSED)
    press(page, "j", "e", "ControlOrMeta+a")
    page.keyboard.type("The heart is large.")
    press(page, "Enter", "a")
    page.keyboard.type("Bifid rib.")
    press(page, "Enter")
    row(page, 3).get_by_label(COMMENT).fill("Left.")
    press(page, "Enter", "Escape", "a")
    page.keyboard.type("Nipple shadow.")
    press(page, "Enter", "c")
    page.keyboard.type("Rotated.")
    press(page, "Control+Enter", "Escape")
    refuse(page)
    assert page.get_by_label("Comment on the study").input_value() == "Rotated."
    assert page.get_by_label("Text of sentence 1").input_value() == "The heart is large."
    press(page, "Enter")
    restored = []
    for _ in range(2):
        restored.append(page.get_by_label(FINDING).input_value())
        press(page, "Enter")
    assert sorted(restored) == ["Bifid rib.", "Nipple shadow."]
    comment = row(page, 3 + restored.index("Bifid rib.")).get_by_label(COMMENT)
    assert comment.input_value() == "Left."
    unsaved(page)
    comment.press("Enter")
    page.get_by_label("Comment on the study").press("Control+Enter")
    saved(page)
    state = running.state()
    assert state.comment == "Rotated."
    assert [sentence.text for sentence in state.sentences] == ["The heart is large.", *SENTENCES[1:], *restored]
    assert {sentence.assessment.comment for sentence in state.sentences if sentence.text == "Bifid rib."} == {"Left."}
    page.reload()
    at_study(page, 1)
    assert page.locator(".sentence-form").count() == 0


def test_a_refused_finding_returns_to_its_open_form(page: Page, running: Running) -> None:
    hold(page, status=400, json=REFUSED)
    press(page, "a")
    page.keyboard.type("Bifid rib.")
    press(page, "Enter", "e", "End")
    page.keyboard.type(" Left.")
    refuse(page)
    field = page.get_by_label(FINDING)
    assert field.input_value() == "Bifid rib. Left."
    field.press("Enter")
    saved(page)
    assert [sentence.text for sentence in running.state().sentences] == [*SENTENCES, "Bifid rib. Left."]


def test_an_edit_of_a_remotely_deleted_sentence_stays_pending(browser: Browser, page: Page, running: Running) -> None:
    edited = "The heart is large."
    press(page, "]", "j", "e", "ControlOrMeta+a")
    page.keyboard.type(edited)
    with visiting(browser, running) as second_page:
        press(second_page, "j", "d")
        saved(second_page)
    press(page, "Enter")
    page.locator(
        "#alert", has_text="an edit. Sentence 1 is deleted; your text is restored when you restore the sentence."
    ).wait_for()
    assert running.sentence(0).deleted
    page.reload()
    at_study(page, 1)
    page.locator("#unsaved", has_text=f"Sentence 1, text (restore the sentence to continue): {edited}").wait_for()
    unsaved(page)
    # Taken back like any other change, the deletion makes room for the text as well.
    press(page, "Control+z")
    field = page.get_by_label("Text of sentence 1")
    field.wait_for()
    assert field.input_value() == edited
    field.press("Enter")
    saved(page)
    assert running.sentence(0).text == edited


def test_a_comment_on_a_remotely_finished_study_stays_pending(browser: Browser, page: Page, running: Running) -> None:
    press(page, "c")
    page.keyboard.type("Rotated.")
    with visiting(browser, running) as second_page:
        press(second_page, "]", "]", "]", "f")
        saved(second_page)
    press(page, "Control+Enter")
    page.locator("#alert", has_text="The study is finished; your text is restored when you reopen it.").wait_for()
    comment = page.get_by_label("Comment on the study")
    assert comment.input_value() == ""
    unsaved(page)
    page.get_by_role("button", name="Reopen").click()
    assert comment.input_value() == "Rotated."
    comment.press("Control+Enter")
    saved(page)
    assert running.state().comment == "Rotated."


def test_an_edit_of_a_remotely_removed_finding_becomes_an_addition(
    browser: Browser, page: Page, running: Running
) -> None:
    press(page, "a")
    page.keyboard.type("Bifid rib.")
    press(page, "Enter")
    saved(page)
    press(page, "e", "End")
    page.keyboard.type(" Left.")
    with visiting(browser, running) as second_page:
        press(second_page, "Control+z")
        saved(second_page)
    press(page, "Enter")
    field = page.get_by_label(FINDING)
    field.wait_for()
    assert field.input_value() == "Bifid rib. Left."
    field.press("Enter")
    saved(page)
    assert [sentence.text for sentence in running.state().sentences] == [*SENTENCES, "Bifid rib. Left."]


def test_a_refused_undo_is_not_repeated(page: Page, running: Running) -> None:
    press(page, "j", "d", "j", "d", "j", "d")
    saved(page)
    hold(page, status=400, json=REFUSED)
    press(page, "Control+z", "Control+z")
    refuse(page)
    press(page, "Control+z")
    page.locator("#redo:enabled").wait_for()
    saved(page)
    assert [sentence.deleted for sentence in running.state().sentences] == [True, True, False]


def test_an_outdated_response_is_not_shown(page: Page, running: Running) -> None:
    """A study as it was before a change arrives after the answer to the change."""
    hold(page)
    press(page, "j", "d")
    page.locator("#following-study").click()
    at_study(page, 2)

    def come_late(route: Route) -> None:
        before = route.fetch()
        let_go(page)
        saved(page)
        route.fulfill(response=before)

    page.route("**/api/studies/1?*", come_late)
    page.locator("#previous-study").click()
    at_study(page, 1)
    assert row(page, 0).locator("del").count() == 1
    press(page, "j", "j", "d")
    saved(page)
    assert not page.locator("#alert").is_visible()
    assert [sentence.deleted for sentence in running.state().sentences] == [True, True, False]


def test_a_change_without_its_response_is_shown_once(page: Page, running: Running) -> None:
    with page.expect_event("requestfinished", lambda request: "/api/studies/1?" in request.url):
        page.route("**/changes", lambda route: page.reload() if route.fetch() else None, times=1)
        press(page, "a")
        page.keyboard.type("Bifid rib.")
        press(page, "Enter")
    hold(page)
    at_study(page, 1)
    assert page.locator("#sentences > li").count() == 4
    press(page, "j", "d")
    let_go(page)
    saved(page)
    assert not page.locator("#alert").is_visible()
    assert running.sentence(0).deleted
    assert len(running.state().sentences) == 4


def test_finishing_errors_do_not_carry_over_to_the_next_study(page: Page) -> None:
    press(page, "f")
    assert page.locator("#remaining").inner_text() == "A study is finished in step 4."
    page.locator("#following-study").click()
    at_study(page, 2)
    assert page.locator("#remaining").inner_text() == ""


def test_a_dragged_box_stays_with_its_sentence(page: Page, running: Running) -> None:
    press(page, "j")
    page.mouse.move(*on_radiograph(page, 0.2, 0.4))
    page.mouse.down()
    page.mouse.move(*on_radiograph(page, 0.3, 0.4))
    page.mouse.move(*on_radiograph(page, 0.4, 0.4))
    press(page, "j")
    page.mouse.move(*on_radiograph(page, 0.5, 0.4))
    page.mouse.up()
    saved(page)
    assert running.sentence(0).boxes[0] == pytest.approx((0.3, 0.2, 0.5, 0.6), abs=0.01)
    assert running.sentence(1).boxes == ()


def test_a_press_on_the_radiograph_leaves_no_listener(page: Page) -> None:
    session = page.context.new_cdp_session(page)

    def listeners() -> int:
        window = session.send("Runtime.evaluate", {"expression": "window"})["result"]["objectId"]
        restored = session.send("DOMDebugger.getEventListeners", {"objectId": window})["listeners"]
        # Those that capture are the test's own tool's.
        return sum(
            listener["type"] in ("pointerup", "pointercancel") and not listener["useCapture"] for listener in restored
        )

    before = listeners()
    for _ in range(3):
        drag(page, on_radiograph(page, 0.6, 0.9), on_radiograph(page, 0.7, 0.9))
    assert listeners() == before


def test_keys_do_nothing_without_an_open_study(browser: Browser, running: Running) -> None:
    with visiting(browser, running) as page:
        page.route(re.compile(r"/api/studies/\d"), lambda route: route.fulfill(status=503, json=REFUSED))
        page.reload()
        page.locator("#alert", has_text="Study 1 cannot be opened").wait_for()
        keys = "jkeda012tc][fpbhvmx+-wir"
        press(page, *keys, "Control+z", "Control+y", "Escape", "Delete", "n", "l")
        page.locator("#study-list").wait_for()
        press(page, "?")
        page.locator("#help-dialog[open]").wait_for()


def test_an_abandoned_name_is_not_used(page: Page) -> None:
    def leave_first(route: Route) -> None:
        press(page, "Escape")
        route.continue_()

    page.route("**/api/readers", leave_first)
    page.locator("#reader").click()
    page.locator("#reader-name").fill("Bo")
    with page.expect_response("**/api/readers"):
        press(page, "Enter")
    page.reload()
    at_study(page, 1)
    assert page.locator("#reader").inner_text() == "Ada"


def test_page_and_server_normalize_texts_alike(page: Page) -> None:
    # Half a pair of surrogates is no text that a browser's own tools could be handed.
    letters = [chr(number) for number in range(0x10000) if not 0xD800 <= number < 0xE000]
    texts = [
        *(f"{letter}a{letter}b{letter}" for letter in letters),
        "a\rb",
        "a\r\nb",
        "a\r\r\nb",
        "\u202ea\u202c \ufeff",
    ]
    read = """async (texts) => {
        const { typable } = await import("/static/typing.js");
        return texts.map((text) => typable(text).trim());
    }"""
    assert page.evaluate(read, texts) == [readable(text).strip() for text in texts]
    assert [readable(text).strip() for text in texts[-4:]] == ["a\nb", "a\nb", "a\n\nb", "a"]
