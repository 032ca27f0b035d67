"""Whole reviews and campaigns in a real browser: nothing of them is ever lost, and their times are recorded."""

from __future__ import annotations

import csv
import signal
from collections.abc import Iterator
from contextlib import closing
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urljoin, urlsplit

import pytest
from accessibility import serious_violations
from long_values import DATA
from review_desk import (
    SCREENS,
    Running,
    at_study,
    drag,
    fits_screen,
    on_radiograph,
    open_campaign,
    press,
    row,
    saved,
    served,
    serving,
    unsaved,
    visiting,
    watching,
)
from review_files import CASES, SENTENCES, change, change_times, finish, start_server, write_review_set
from waiting import wait_until

from maira.review.changes import readable
from maira.review.security import COORDINATOR
from maira.review.store import Store
from maira.review.times import StoredEvent, study_times

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page, Route


pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """One server for all tests; each test is a separate reader."""
    with served(write_review_set(tmp_path_factory.mktemp("review"), 2)) as server:
        yield server


def test_a_review_by_mouse_is_exported_as_stored(page: Page, running: Running) -> None:
    """One edit with a moved box, one deletion and one addition, assessed; only texts are typed."""
    go_on, next_opens = page.locator("#advance"), page.get_by_label("Then open the next")
    for number in (1, 2):
        at_study(page, number)
        page.set_viewport_size(SCREENS[number % 2])
        fits_screen(page)
        go_on.click()
        row(page, 0).locator(".sentence-text").click()
        drag(page, on_radiograph(page, 0.2, 0.4), on_radiograph(page, 0.3, 0.5))
        row(page, 0).get_by_role("button", name="Edit this sentence").click()
        page.get_by_label("Text of sentence 1").fill("The heart size is mildly enlarged.")
        page.get_by_role("button", name="Save").click()
        row(page, 1).locator(".sentence-text").click()
        row(page, 1).get_by_role("button", name="Delete this sentence").click()
        page.get_by_role("button", name="Add a finding").click()
        page.get_by_label("Text of the missing finding").fill("Nipple shadow.")
        fits_screen(page)
        page.get_by_role("button", name="Save").click()
        go_on.click()
        page.locator("#reference-sentences button").first.click()
        page.get_by_label("Comment on the study").fill("Rotated.")
        fits_screen(page)
        go_on.click()
        choices = ((0, "1 Minor", "Wrong finding"), (1, "1 Minor", "Other"), (3, "0 No", "Missing finding"))
        for place, severity, kind in choices:
            row(page, place).get_by_text(severity).click()
            row(page, place).get_by_label("Error type", exact=True).select_option(label=kind)
        next_opens.set_checked(number == 1)
        fits_screen(page)
        go_on.click()
        saved(page)
    assert page.locator("#progress-text").inner_text() == "2 of 2 studies finished"
    text = page.request.get(f"{running.url}export/corrections.csv?reader={running.reader}").body().decode("utf-8-sig")
    rows = list(csv.DictReader(StringIO(text)))
    assert [[row["kind"], row["severity"], row["error_type"]] for row in rows[:3]] == DATA["three corrections"]
    assert {row["study_comment"] for row in rows} == {"Rotated."}
    assert running.sentence(0).boxes[0] == pytest.approx((0.2, 0.3, 0.4, 0.7), abs=0.01)


def test_a_review_by_keyboard_alone(browser: Browser, tmp_path: Path) -> None:
    # Without other readers, the dialog has only the field of the name.
    with served(write_review_set(tmp_path, 2)) as running, watching(browser, running.link) as page:
        page.locator("dialog[open]").wait_for()
        press(page, *running.reader, "Enter")
        for number in (1, 2):
            at_study(page, number)
            page.set_viewport_size(SCREENS[number % 2])
            press(page, "]", "j", "e", "ControlOrMeta+a", *"The heart is enlarged.")
            # From the text to its box: the box takes the focus as the next stop but the tools of the sentence.
            press(page, "Enter", "m", "Tab", "ArrowRight", "ArrowRight", "Shift+ArrowDown", "j", "d", "a")
            press(page, *"Bifid rib.", "Enter", "b", "Enter", "]", "c", *"Seen.", "Control+Enter", "Escape", "]")
            # Finishing leads to each correction without a severity.
            press(page, "f", "2", "f", "1", "t", "ArrowDown", "Escape", "f", "0")
            # The reader is asked once for missing error types.
            press(page, "f", "f")
            saved(page)
            state = running.state(number)
            assert (state.done, state.comment) == (True, "Seen.")
            edited, deleted, _, added = state.sentences
            assert (edited.text, edited.severity) == ("The heart is enlarged.", 2)
            assert edited.boxes == ((0.12, 0.2, 0.32, 0.61),)
            assert (deleted.deleted, deleted.severity, deleted.error_type) == (True, 1, "OMISSION")
            assert (added.text, added.severity, len(added.boxes)) == ("Bifid rib.", 0, 1)
            press(page, "u")


def test_typed_text_survives_a_reload_and_every_change_is_undone_and_redone(page: Page, running: Running) -> None:
    press(page, "]", "j", "e", *" But large.")
    unsaved(page)
    page.reload()
    at_study(page, 1)
    field = page.get_by_label("Text of sentence 1")
    assert field.input_value() == f"{SENTENCES[0]} But large."
    assert not running.sentence(0).is_edited
    field.press("Enter")
    saved(page)
    assert running.sentence(0).text == f"{SENTENCES[0]} But large."
    page.reload()
    at_study(page, 1)
    assert page.locator(".sentence-form").count() == 0
    press(page, "j", "1", "b", "Enter", "j", "d", "a", *"More.", "Enter")
    saved(page)
    after = running.state()
    assert len(after.corrections) == 3
    for _ in range(6):
        press(page, "Control+z")
    page.locator("#undo:disabled").wait_for()
    saved(page)
    assert (running.state().step, running.state().corrections) == (1, ())
    for _ in range(6):
        press(page, "Control+Shift+z")
    page.locator("#redo:disabled").wait_for()
    saved(page)
    assert running.state() == after


def test_saved_is_shown_only_after_the_response_of_the_server(page: Page, running: Running) -> None:
    statuses: list[tuple[str, int, bool]] = []

    def look_before_it_is_sent(route: Route) -> None:
        shown = page.locator("#saved").inner_text(), row(page, 0).locator("del").count()
        statuses.append((*shown, running.sentence(0).deleted))
        route.continue_()

    page.route("**/changes", look_before_it_is_sent)
    press(page, "j", "d")
    saved(page)
    assert statuses == [("Saving …", 1, False)]
    assert running.sentence(0).deleted


def test_a_study_opens_when_the_server_returns(page: Page) -> None:
    page.clock.install()
    alert = page.locator("#alert", has_text="Study 2 cannot be opened: no connection to the server.")
    page.get_by_label("Comment on the study").fill("Rotated.")
    press(page, "Control+Enter")
    saved(page)
    page.route("**/api/studies/2?*", lambda route: route.abort())
    page.locator("#following-study").click()
    alert.wait_for()
    assert page.get_by_label("Comment on the study").input_value() == "Rotated."
    page.unroute("**/api/studies/2?*")
    page.clock.run_for(2000)
    alert.wait_for(state="hidden")
    page.locator("#following-study").click()
    at_study(page, 2)
    assert page.get_by_label("Comment on the study").input_value() == ""
    page.route("**/api/studies/2?*", lambda route: route.abort())
    page.reload()
    alert.wait_for()
    page.unroute("**/api/studies/2?*")
    page.clock.run_for(2000)
    at_study(page, 2)


def test_a_change_with_a_lost_response_is_applied_once(page: Page, running: Running) -> None:
    lost: list[str] = []

    def lose_the_answer(route: Route) -> None:
        route.fetch()
        lost.append(route.request.post_data or "")
        route.abort()

    page.route("**/changes", lose_the_answer, times=1)
    press(page, "a", *"Bifid rib.", "Enter")
    saved(page)
    assert lost
    assert [sentence.text for sentence in running.state().sentences] == [*SENTENCES, "Bifid rib."]


def test_unsent_changes_survive_the_browser(page: Page, running: Running) -> None:
    page.route("**/changes", lambda route: route.abort())
    press(page, "j", "d")
    page.get_by_text("No connection to the server").wait_for()
    again = page.context.new_page()
    page.close(run_before_unload=False)
    again.goto(f"{running.url}#1")
    again.get_by_role("button", name=running.reader, exact=True).click()
    at_study(again, 1)
    saved(again)
    assert running.sentence(0).deleted


def test_changes_of_another_window_are_shown_and_own_text_is_returned(page: Page, running: Running) -> None:
    second_page = page.context.new_page()
    second_page.goto(f"{running.url}#1")
    second_page.locator("dialog[open]").wait_for()
    # Who has been here before is the first choice.
    press(second_page, "Enter")
    at_study(second_page, 1)
    row(second_page, 0).locator(".sentence-text").dblclick()
    press(page, "j", "j", "d")
    saved(page)
    field = second_page.get_by_label("Text of sentence 1")
    field.fill("The heart is large.")
    field.press("Enter")
    second_page.get_by_text("The study was changed in another window. Not saved (study 1): an edit.").wait_for()
    assert row(second_page, 1).locator("del").count() == 1
    assert field.input_value() == "The heart is large."
    field.press("Enter")
    saved(second_page)
    assert (running.sentence(0).text, running.sentence(1).deleted) == ("The heart is large.", True)


HOSTILE = "<img src=x onerror=\"document.title='taken'\">No effusion.</textarea><script>document.title='taken'</script>"


def test_markup_in_drafts_is_shown_as_text(browser: Browser, tmp_path: Path) -> None:
    folder = write_review_set(tmp_path, texts=[HOSTILE, "Clear."])
    with served(folder) as running, visiting(browser, running) as page:
        assert page.get_by_text(HOSTILE, exact=True).is_visible()
        press(page, "j", "e")
        assert page.get_by_label("Text of sentence 1").input_value() == HOSTILE
        press(page, *" &amp;", "Enter")
        saved(page)
        assert page.locator(".words ins").inner_text() == "&amp;"
        assert page.title().startswith("1 ·")


def test_killing_the_server_during_a_review_loses_nothing(browser: Browser, tmp_path: Path) -> None:
    folder = write_review_set(tmp_path)
    process, address, _ = start_server(folder)
    running = Running(urljoin(address, "/"), folder)
    try:
        with visiting(browser, running) as page:
            press(page, "j", "d")
            saved(page)
            process.send_signal(signal.SIGKILL)
            process.communicate()
            press(page, "j", "d", "a", *"Bifid rib.", "Enter")
            page.get_by_text("2 changes not saved; stored in this browser and sent again").wait_for()
            assert page.locator("#saved").inner_text() == "Not saved"
            assert page.locator("#undo").is_disabled()
            process, *_ = start_server(folder, "--port", str(urlsplit(address).port))
            saved(page)
            assert not page.locator("#trouble").is_visible()
    finally:
        process.kill()
        process.communicate()
    state = running.state()
    assert [sentence.deleted for sentence in state.sentences] == [True, True, False, False]
    assert state.sentences[3].text == "Bifid rib."


def elsewhere(browser: Browser, running: Running, *keys: str) -> None:
    """Change study 1 by keys on another machine."""
    with visiting(browser, running) as page:
        press(page, *keys)
        saved(page)


COMMENT = "Comment on this correction"
FINDING = "Text of the missing finding"
REFUSED = {"error": "this cannot be taken"}


def hold(page: Page, **answer: Any) -> None:
    """Keep the next change on its way until `let_go`; then it gets an answer, or else the server's."""

    def wait(route: Route) -> None:
        page.locator("html[data-let-go]").wait_for()
        route.fulfill(**answer) if answer else route.continue_()

    # A page repeats a request without a response after a time that a busy machine may need.
    page.evaluate("() => { AbortSignal.timeout = () => new AbortController().signal; }")
    page.route("**/changes", wait, times=1)


def let_go(page: Page) -> None:
    page.evaluate("() => { document.documentElement.dataset.letGo = ''; }")


def refuse(page: Page, what: str = "") -> None:
    let_go(page)
    page.locator("#alert", has_text=f"This cannot be taken. Not saved (study 1): {what}").wait_for()


def test_a_pending_comment_prevents_finishing(browser: Browser, page: Page, running: Running) -> None:
    hold(page, status=400, json=REFUSED)
    press(page, "j", "d", "2")
    comment = row(page, 0).get_by_label(COMMENT)
    comment.fill("Old radiograph.")
    comment.press("Enter")
    row(page, 1).locator(".sentence-text").click()
    refuse(page, "a deletion, implications, comment on this correction.")
    waiting, place = page.locator("#unsaved"), "Sentence 1, comment on this correction"
    waiting.get_by_text(f"{place} (correct the sentence to continue): Old radiograph.").wait_for()
    assert not comment.is_visible()
    unsaved(page)
    # What another machine does is shown nevertheless.
    elsewhere(browser, running, "]", "]", "]")
    page.evaluate("() => window.dispatchEvent(new Event('focus'))")
    page.get_by_role("button", name="Finish study").click()
    page.locator("#message", has_text="Some text is not saved: continue or discard it.").wait_for()
    press(page, "k", "d", "2")
    assert not waiting.is_visible()
    assert comment.input_value() == "Old radiograph."
    unsaved(page)
    press(page, "f", "f")
    page.get_by_text("This study is finished.").wait_for()
    saved(page)
    assert running.state().done
    assert (running.sentence(0).answers["comment"], running.sentence(0).severity) == ("Old radiograph.", 2)


TYPED = "jked 012 atc[]fnpul/bhvgmx+=-wizsr?"


def test_typed_letters_run_no_shortcut(browser: Browser, page: Page, running: Running) -> None:
    """With nothing to edit, while an answer redraws the page, and after the field was removed under the cursor."""
    page.keyboard.type(f"e{TYPED}")
    assert page.locator(".sentence.selected, form:visible").count() == 0
    hold(page)
    row(page, 1).locator(".sentence-text").click()
    press(page, "d")
    # A second click does not deselect, and a held key is not typed.
    for _ in range(2):
        row(page, 0).locator(".sentence-text").click()
    for _ in range(3):
        page.keyboard.down("e")
    page.keyboard.up("e")
    press(page, "ControlOrMeta+a")
    page.keyboard.type(TYPED)
    let_go(page)
    unsaved(page)
    page.keyboard.type(TYPED)
    # Enter and Escape of an input method end neither the text nor the form.
    for key in ("Enter", "Escape"):
        page.get_by_label("Text of sentence 1").dispatch_event("keydown", {"key": key, "isComposing": True})
    press(page, "Enter")
    saved(page)
    edited, deleted, last = running.state().sentences
    assert (edited.text, deleted.deleted, last.is_correction) == (TYPED * 2, True, False)
    page.evaluate("() => delete document.documentElement.dataset.letGo")
    hold(page)
    press(page, "j", "d", "j", "e", *"Large")
    elsewhere(browser, running, "j", "j", "j", "d")
    before = running.state()
    let_go(page)
    page.locator("#unsaved", has_text=f"(restore the sentence to continue): {SENTENCES[2]}Large").wait_for()
    page.keyboard.type(TYPED)
    assert running.state() == before
    assert page.locator("#saved").inner_text() == "Not saved yet"


@pytest.mark.parametrize(("is_sent", "remotely"), [(False, "Nodule."), (True, None)])
def test_an_edit_of_a_finding_that_the_server_lacks_becomes_an_addition(
    browser: Browser, page: Page, running: Running, is_sent: bool, remotely: str | None
) -> None:
    """Another machine has added one under its id, or has removed it."""
    if not is_sent:
        hold(page)
    press(page, "a", *"Bifid rib.", "Enter")
    if is_sent:
        saved(page)
    press(page, "e", "End", *" Left.")
    elsewhere(browser, running, *(("a", *remotely, "Enter") if remotely else ("Control+z",)))
    if is_sent:
        press(page, "Enter")
    else:
        let_go(page)
    field = page.get_by_label(FINDING)
    field.wait_for()
    assert field.input_value() == "Bifid rib. Left."
    field.press("Enter")
    saved(page)
    added = [*([remotely] if remotely else []), "Bifid rib. Left."]
    assert [sentence.text for sentence in running.state().sentences] == [*SENTENCES, *added]


def test_all_texts_of_refused_changes_are_returned(page: Page, running: Running) -> None:
    hold(page, status=400, json=REFUSED)
    press(page, "j", "e", "ControlOrMeta+a", *"The heart is large.", "Enter", "a", *"Bifid rib.", "Enter")
    row(page, 3).get_by_label(COMMENT).fill("Left.")
    press(page, "Enter", "Escape", "a", *"Nipple shadow.", "Enter", "c", *"Rotated.", "Control+Enter", "Escape")
    refuse(page)
    page.reload()
    at_study(page, 1)
    unsaved(page)
    assert page.get_by_label("Comment on the study").input_value() == "Rotated."
    assert page.get_by_label("Text of sentence 1").input_value() == "The heart is large."
    press(page, "Enter")
    restored = []
    for _ in range(2):
        page.get_by_role("button", name="Continue: Missing finding").first.click()
        restored.append(page.get_by_label(FINDING).input_value())
        press(page, "Enter")
    assert sorted(restored) == ["Bifid rib.", "Nipple shadow."]
    # The comment of a finding follows it.
    comment = row(page, 3 + restored.index("Bifid rib.")).get_by_label(COMMENT)
    assert comment.input_value() == "Left."
    comment.press("Control+Enter")
    page.get_by_label("Comment on the study").press("Control+Enter")
    saved(page)
    state = running.state()
    assert state.comment == "Rotated."
    assert [sentence.text for sentence in state.sentences] == ["The heart is large.", *SENTENCES[1:], *restored]
    page.reload()
    at_study(page, 1)
    assert page.locator(".sentence-form").count() == 0


@pytest.mark.parametrize("case", CASES["pending texts"])
def test_a_text_that_another_machine_leaves_no_place_for_stays_pending(
    browser: Browser, page: Page, running: Running, case: list[Any]
) -> None:
    keys, remotely, text, button, label = case
    pending = page.locator("#unsaved", has_text=f"{text}: Large heart.")
    press(page, *keys, *"Large heart.")
    elsewhere(browser, running, *remotely)
    before = running.state()
    press(page, "Control+Enter")
    pending.wait_for()
    page.reload()
    at_study(page, 1)
    pending.wait_for()
    unsaved(page)
    assert running.state() == before
    page.get_by_role("button", name=button).click()
    field = page.get_by_label(label)
    field.wait_for()
    assert field.input_value() == "Large heart."
    field.press("Control+Enter")
    saved(page)
    assert "Large heart." in (running.sentence(0).text, running.state().comment)


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


def test_page_and_server_normalize_texts_alike(page: Page) -> None:
    # Half a pair of surrogates is no text that a browser's own tools could be handed.
    letters = [chr(number) for number in range(0x10000) if not 0xD800 <= number < 0xE000]
    texts = [f"{letter}a{letter}b{letter}" for letter in letters]
    texts += ["a\rb", "a\r\nb", "a\r\r\nb", "\u202ea\u202c \ufeff"]
    assert page.evaluate(DATA["typable texts"], texts) == [readable(text).strip() for text in texts]
    assert [readable(text).strip() for text in texts[-4:]] == ["a\nb", "a\nb", "a\n\nb", "a"]


def recorded(running: Running, kind: str, count: int = 1) -> list[StoredEvent]:
    """Wait until the database has events of a kind, and return all."""
    events: list[StoredEvent] = []

    def have_arrived() -> bool:
        with closing(Store(running.folder / "review.sqlite")) as store:
            events[:] = store.events(running.reader)
        return sum(event.kind == kind for event in events) >= count

    wait_until(have_arrived, lambda: str([event.kind for event in events]))
    return events


def test_a_reading_is_timed_from_opening_to_finishing(browser: Browser, running: Running) -> None:
    with visiting(browser, running) as page:
        press(page, "]", "]", "]", "f")
        saved(page)
        page.goto(f"{running.url}#2")
        at_study(page, 2)
    events = recorded(running, "close")
    kinds = [(event.kind, event.study) for event in events if event.kind not in ("active", "blur", "focus", "hide")]
    assert (kinds[:2], kinds[-1]) == ([("open", 1), ("finish", 1)], ("close", 2))
    assert ("open", 2) in kinds
    own = [event.sequence for event in events if event.session == events[0].session]
    assert own == list(range(len(own)))
    with closing(Store(running.folder / "review.sqlite")) as store:
        [first, second] = study_times(events, change_times(store, running.reader)).values()
    assert (first.reason, second.finished, second.opened is None) == ("", None, False)
    assert 0 < first.active_seconds <= first.total_seconds


def test_events_without_a_connection_are_sent_later(page: Page, running: Running) -> None:
    [session] = {event.session for event in recorded(running, "open")}
    page.route("**/api/times", lambda route: route.abort())
    press(page, "]", "]", "]", "f")
    saved(page)
    unsent = "Object.keys(localStorage).filter((key) => key.includes(':time:')).length"
    assert page.evaluate(unsent) > 0
    assert "finish" not in [event.kind for event in recorded(running, "open")]
    page.unroute("**/api/times")
    page.evaluate("window.dispatchEvent(new Event('online'))")
    recorded(running, "finish")
    page.wait_for_function(f"() => !{unsent}")
    # An event of an earlier page, which has ended; it happened a minute ago.
    before = page.evaluate(DATA["earlier event"], running.reader)
    page.reload()
    at_study(page, 1)
    events = recorded(running, "open", 3)
    [earlier] = [event for event in events if event.session not in (session, events[-1].session)]
    # Its age when it was sent is at most what has passed by now, however slow the machine is.
    assert -1000 < earlier.sent - earlier.clock - 60_000 < page.evaluate("Date.now()") - before + 1000


@pytest.fixture
def campaign(tmp_path: Path) -> Iterator[tuple[Store, dict[str, str]]]:
    """The database and the links of a campaign that is served; both readers disagree on study 1."""
    write_review_set(tmp_path)
    path = tmp_path / "campaign.yaml"
    path.write_text(CASES["campaign of two readers"])
    store, app, tokens = open_campaign(path)
    with closing(store), serving(app) as url:
        change(store, "delete", 1, "Ada", sentence="d0")
        change(store, "assess", 1, "Ada", sentence="d0", severity=2, error_type="OVERSPECIFIC")
        for reader, right in (("Ada", 0.35), ("Bo", 0.4)):
            change(store, "boxes", 1, reader, sentence="d1", boxes=[[0.1, 0.2, right, 0.6]])
            finish(store, 1, reader)
        yield store, {name: f"{url}?token={token}" for name, token in tokens.items()}


def test_the_coordinator_decides_a_disagreement_by_keyboard_and_changes_readers(
    campaign: tuple[Store, dict[str, str]], browser: Browser
) -> None:
    store, links = campaign
    with watching(browser, links[COORDINATOR]) as page:
        page.get_by_label("Show").select_option("not decided")
        page.get_by_role("link", name="1 disagreement, not decided").focus()
        press(page, "Enter")
        page.locator("#radiograph[aria-busy=false]").wait_for()
        readings = page.locator(".readings").first.locator("dt, dd").all_inner_texts()
        assert readings == ["Ada", "Deleted, significant implications.", "Too specific", "Bo", "No correction."]
        # The draft's box, and those of each reader who changed it.
        labels = page.locator("#radiograph .box-viewer-label").all_text_contents()
        assert sorted(labels) == ["1", "2 Ada", "2 Bo"]
        second = page.locator(".readings").nth(1).locator("dd").all_inner_texts()
        assert second == ["Boxes changed, no implications."] * 2
        page.get_by_text("Reference report").click()
        page.get_by_text("The heart is mildly enlarged.").wait_for()
        assert serious_violations(page) == []
        page.get_by_label("no correction").focus()
        press(page, "ArrowRight", "ArrowRight")
        page.get_by_label("Reason").fill("Seen on the lateral.")
        page.get_by_role("button", name="Save the decision").press("Enter")
        page.locator("#study-count", has_text="0 of 3 studies").wait_for()
        assert store.campaign is not None
        (_, decision) = store.campaign.decisions[1]
        assert (decision.severities, decision.comment) == ({"d0": 1}, "Seen on the lateral.")
        page.locator("#progress-text", has_text="2 of 6 readings finished").wait_for()
        assert serious_violations(page) == []
        page.get_by_label("New reader").fill("Cy")
        press(page, "Enter")
        page.get_by_role("row", name="Cy 0 of 3").wait_for()
        page.get_by_role("button", name="Rename Bo").click()
        page.get_by_label("New name").fill("Bo Berg")
        assert serious_violations(page) == []
        press(page, "Enter")
        page.get_by_role("row", name="Bo Berg 1 of 3").wait_for()
        page.get_by_role("button", name="Exclude Cy").click()
        page.get_by_placeholder("Reason").fill("No time.")
        press(page, "Enter")
        page.get_by_role("row", name="excluded: No time.").wait_for()
        page.get_by_role("button", name="Pause", exact=True).first.click()
        page.locator("#state", has_text="Paused").wait_for()
        assert store.readers() == ["Ada", "Bo Berg", "Cy"]
        assert store.counted_readers() == ["Ada", "Bo Berg"]
        assert page.locator("#history li").count() == 7


def test_a_reader_reads_the_instructions_and_is_told_of_a_pause(
    campaign: tuple[Store, dict[str, str]], browser: Browser
) -> None:
    store, links = campaign
    with watching(browser, links["Ada"]) as page:
        page.locator("#instructions-dialog", has_text="Read all.").wait_for()
        assert serious_violations(page) == []
        press(page, "Escape")
        page.locator("#radiograph[aria-busy=false]").wait_for()
        with watching(browser, links[COORDINATOR]) as coordinator:
            coordinator.get_by_role("button", name="Pause", exact=True).first.click()
            coordinator.locator("#state", has_text="Paused").wait_for()
            press(page, "j", "d")
            page.locator("#trouble", has_text="The coordinator has paused the campaign. 1 change not saved").wait_for()
            coordinator.get_by_role("button", name="Resume", exact=True).first.click()
        saved(page)
        page.get_by_role("button", name="Instructions").click()
        page.locator("#instructions-dialog[open]").wait_for()
    assert sum(review.version for review in store.reviews("Ada")) > 0
