"""Whole reviews in a real browser, and that nothing of them is ever lost."""

from __future__ import annotations

import csv
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from review_desk import (
    SCREENS,
    Running,
    at_study,
    drag,
    fits_screen,
    launched,
    on_radiograph,
    press,
    row,
    saved,
    served,
    set_screen,
    sign_in,
    unsaved,
    visiting,
)
from review_files import SENTENCES, write_review_set

from maira.review.store import Store
from radfact.io.pairs import read_drafts

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page, Route


pytestmark = pytest.mark.browser


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


def exported(page: Page, running: Running) -> list[dict[str, str]]:
    text = page.request.get(f"{running.url}export/corrections.csv?reader=Ada").body().decode("utf-8-sig")
    return list(csv.DictReader(StringIO(text)))


def expected_rows(running: Running) -> list[dict[str, str]]:
    """The rows that a table of corrections must have, from the database alone."""
    rows = []
    with closing(Store(running.folder / "review.sqlite")) as store:
        for draft, review in zip(store.drafts, store.reviews("Ada"), strict=True):
            for place, sentence in enumerate(review.state.sentences, 1):
                if not sentence.is_correction:
                    continue
                rows.append(
                    {
                        "sample_id": draft.sample_id,
                        "sentence": str(place),
                        "kind": "addition" if sentence.is_added else "deletion" if sentence.deleted else "edit",
                        "draft_text": sentence.draft_text or "",
                        "corrected_text": "" if sentence.deleted else sentence.text,
                        "error_type": sentence.assessment.error_type or "",
                        "severity": str(sentence.assessment.severity),
                        "comment": sentence.assessment.comment,
                    }
                )
    return rows


def reviewed_by_mouse(page: Page, *, last: bool) -> None:
    """One edit with a moved box, one deletion and one addition, assessed; only texts are typed."""
    go_on = page.locator("#advance")
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
    for place, (severity, kind) in {
        0: ("1 Minor", "MISCLASSIFICATION"),
        1: ("1 Minor", "OTHER"),
        3: ("0 No", "OMISSION"),
    }.items():
        row(page, place).get_by_text(severity).click()
        row(page, place).get_by_label("Error type", exact=True).select_option(kind)
    fits_screen(page)
    go_on.click()
    saved(page)
    if not last:
        go_on.click()


def test_a_review_by_mouse_is_exported_as_stored(page: Page, running: Running) -> None:
    for number in (1, 2, 3):
        at_study(page, number)
        set_screen(page, SCREENS[number % 2])
        reviewed_by_mouse(page, last=number == 3)
    assert page.locator("#progress-text").inner_text() == "3 of 3 studies finished"
    rows = exported(page, running)
    expected = expected_rows(running)
    assert [{name: row[name] for name in expected[0]} for row in rows] == expected
    assert [(row["kind"], row["severity"], row["error_type"]) for row in rows[:3]] == [
        ("edit", "1", "MISCLASSIFICATION"),
        ("deletion", "1", "OTHER"),
        ("addition", "0", "OMISSION"),
    ]
    assert {row["study_comment"] for row in rows} == {"Rotated."}
    assert running.sentence(0).boxes[0] == pytest.approx((0.2, 0.3, 0.4, 0.7), abs=0.01)


def test_corrected_reports_are_drafts(page: Page, running: Running, tmp_path: Path) -> None:
    reviewed_by_mouse(page, last=True)
    body = page.request.get(f"{running.url}export/drafts.jsonl?reader=Ada").body()
    (tmp_path / "corrected.jsonl").write_bytes(body)
    reports = read_drafts(tmp_path / "corrected.jsonl")
    assert [getattr(sentence, "text", sentence) for sentence in reports["s1"]] == [
        "The heart size is mildly enlarged.",
        "No pleural effusion.",
        "Nipple shadow.",
    ]


def test_a_review_by_keyboard_alone(browser: Browser, running: Running) -> None:
    context = browser.new_context()
    page = context.new_page()
    set_screen(page, SCREENS[0])
    sign_in(page, running)
    page.locator("dialog[open]").wait_for()
    page.keyboard.type("Ada")
    press(page, "Enter")
    for number in (1, 2, 3):
        at_study(page, number)
        set_screen(page, SCREENS[number % 2])
        press(page, "]", "j", "e", "ControlOrMeta+a")
        page.keyboard.type("The heart is enlarged.")
        # From the text to its box: the box takes the focus as the next stop but the tools of the sentence.
        press(page, "Enter", "m", "Tab")
        press(page, "ArrowRight", "ArrowRight", "Shift+ArrowDown")
        press(page, "j", "d", "a")
        page.keyboard.type("Bifid rib.")
        press(page, "Enter", "b", "Enter", "]", "c")
        page.keyboard.type("Seen.")
        press(page, "Control+Enter", "Escape", "]")
        # Finishing leads to each correction without a severity.
        press(page, "f", "2", "f", "1", "t", "ArrowDown", "Escape", "f", "0")
        # The reader is asked once for missing error types.
        press(page, "f", "f")
        saved(page)
        state = running.state(number=number)
        assert state.done
        assert state.comment == "Seen."
        edited, deleted, _, added = state.sentences
        assert (edited.text, edited.assessment.severity) == ("The heart is enlarged.", 2)
        assert edited.boxes == ((0.12, 0.2, 0.32, 0.61),)
        assert (deleted.deleted, deleted.assessment.severity, deleted.assessment.error_type) == (True, 1, "OMISSION")
        assert (added.text, added.assessment.severity, len(added.boxes)) == ("Bifid rib.", 0, 1)
        press(page, "u")
    context.close()


def test_typed_text_survives_a_reload(page: Page, running: Running) -> None:
    press(page, "j", "e")
    page.keyboard.type(" But large.")
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


@pytest.mark.parametrize(
    ("key", "label"),
    [("a", "Text of the missing finding"), ("c", "Comment on the study")],
)
def test_typed_findings_and_comments_survive_a_reload(page: Page, key: str, label: str) -> None:
    press(page, key)
    page.keyboard.type("Rotated radiograph")
    unsaved(page)
    page.reload()
    at_study(page, 1)
    assert page.get_by_label(label).input_value() == "Rotated radiograph"


def test_escape_cancels_an_edit(page: Page, running: Running) -> None:
    press(page, "j", "e")
    page.keyboard.type(" Wrong.")
    press(page, "Escape", "j", "d")
    saved(page)
    assert running.sentence(0).text == SENTENCES[0]
    assert running.sentence(1).deleted


def test_every_change_can_be_undone_and_redone(page: Page, running: Running) -> None:
    before = running.state().sentences if page.locator("#sentences li").count() else ()
    press(page, "]", "j", "e")
    page.keyboard.type(" So.")
    press(page, "Enter", "1", "b", "Enter", "j", "d", "a")
    page.keyboard.type("More.")
    press(page, "Enter")
    saved(page)
    after = running.state()
    assert len(after.corrections) == 3
    for _ in range(6):
        press(page, "Control+z")
    page.locator("#undo:disabled").wait_for()
    saved(page)
    assert running.state().sentences == before
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


def test_changes_are_sent_when_a_lost_connection_returns(page: Page, running: Running) -> None:
    page.route("**/changes", lambda route: route.abort())
    press(page, "j", "d", "j", "d")
    page.get_by_text("2 changes not saved; stored in this browser and sent again").wait_for()
    assert page.locator("#saved").inner_text() == "Not saved"
    assert page.locator("#undo").is_disabled()
    page.unroute("**/changes")
    saved(page)
    assert not page.locator("#trouble").is_visible()
    assert [sentence.deleted for sentence in running.state().sentences] == [True, True, False]


def test_server_errors_are_shown(page: Page) -> None:
    reason = {"error": "the database cannot be used now; nothing of this was saved"}
    page.route("**/changes", lambda route: route.fulfill(status=503, json=reason))
    press(page, "j", "d")
    page.get_by_text("The database cannot be used now; nothing of this was saved. 1 change not saved").wait_for()
    page.route("**/api/readers", lambda route: route.fulfill(status=503, json=reason))
    page.locator("#reader").click()
    page.locator("#reader-name").fill("Bo")
    page.get_by_role("button", name="Start").click()
    page.locator("#reader-error", has_text="The database cannot be used now").wait_for()


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


def test_a_change_with_a_lost_response_is_applied_once(page: Page, running: Running) -> None:
    lost: list[str] = []

    def lose_the_answer(route: Route) -> None:
        if lost:
            route.continue_()
            return
        route.fetch()
        lost.append(route.request.post_data or "")
        route.abort()

    page.route("**/changes", lose_the_answer)
    press(page, "a")
    page.keyboard.type("Bifid rib.")
    press(page, "Enter")
    saved(page)
    assert lost
    assert [sentence.text for sentence in running.state().sentences] == [*SENTENCES, "Bifid rib."]


def test_unsent_changes_survive_the_browser(page: Page, running: Running) -> None:
    page.route("**/changes", lambda route: route.abort())
    press(page, "j", "d")
    page.get_by_text("No connection to the server").wait_for()
    page.unroute("**/changes")
    again = page.context.new_page()
    page.close(run_before_unload=False)
    again.goto(f"{running.url}#1")
    again.get_by_role("button", name="Ada").click()
    at_study(again, 1)
    saved(again)
    assert running.sentence(0).deleted


@pytest.fixture
def second_page(page: Page, running: Running) -> Page:
    """A second window of the same reader in the same browser."""
    second_page = page.context.new_page()
    second_page.goto(f"{running.url}#1")
    second_page.locator("dialog[open]").wait_for()
    # Who has been here before is the first choice.
    press(second_page, "Enter")
    at_study(second_page, 1)
    return second_page


def test_another_window_follows_immediately(page: Page, second_page: Page, running: Running) -> None:
    press(page, "j", "j", "d")
    saved(page)
    row(second_page, 1).locator("del").wait_for()
    press(second_page, "j", "d")
    saved(second_page)
    assert [sentence.deleted for sentence in running.state().sentences] == [True, True, False]


def test_changes_of_another_window_are_shown_and_own_text_is_returned(
    page: Page, second_page: Page, running: Running
) -> None:
    row(second_page, 0).locator(".sentence-text").dblclick()
    press(page, "j", "j", "d")
    saved(page)
    second_page.get_by_label("Text of sentence 1").fill("The heart is large.")
    second_page.keyboard.press("Enter")
    second_page.get_by_text("The study was changed in another window. Not saved (study 1): an edit.").wait_for()
    assert row(second_page, 1).locator("del").count() == 1
    assert second_page.get_by_label("Text of sentence 1").input_value() == "The heart is large."
    second_page.keyboard.press("Enter")
    saved(second_page)
    assert running.sentence(0).text == "The heart is large."
    assert running.sentence(1).deleted


def test_readers_have_separate_corrections(browser: Browser, page: Page, running: Running) -> None:
    with visiting(browser, running, reader="Bo") as second_page:
        press(page, "j", "d")
        press(second_page, "j", "j", "d")
        saved(page)
        saved(second_page)
        second_page.reload()
        at_study(second_page, 1)
        assert [row(second_page, place).locator("del").count() for place in range(3)] == [0, 1, 0]
    assert [sentence.deleted for sentence in running.state("Ada").sentences] == [True, False, False]
    assert [sentence.deleted for sentence in running.state("Bo").sentences] == [False, True, False]


HOSTILE = "<img src=x onerror=\"document.title='taken'\">No effusion.</textarea><script>document.title='taken'</script>"


def test_markup_in_drafts_is_shown_as_text(browser: Browser, tmp_path: Path) -> None:
    folder = write_review_set(tmp_path, texts=[HOSTILE, "Clear."])
    with served(folder) as running, visiting(browser, running) as page:
        assert page.get_by_text(HOSTILE, exact=True).is_visible()
        press(page, "j", "e")
        assert page.get_by_label("Text of sentence 1").input_value() == HOSTILE
        page.keyboard.type(" &amp;")
        press(page, "Enter")
        saved(page)
        assert page.locator(".words ins").inner_text() == "&amp;"
        assert page.title().startswith("1 ·")


def test_untypable_texts_are_readable_and_editable(browser: Browser, tmp_path: Path) -> None:
    folder = write_review_set(tmp_path, texts=["No\x00 nodule \u202eseen.", f"Long {'and long ' * 600}end."])
    with served(folder) as running, visiting(browser, running) as page:
        assert row(page, 0).locator(".words").inner_text().endswith("nodule [U+202E]seen.")
        press(page, "j", "e")
        assert page.get_by_label("Text of sentence 1").input_value() == "No nodule seen."
        page.keyboard.type(" Clear.")
        press(page, "Enter", "j", "e", "ControlOrMeta+End", "Backspace", "Enter")
        saved(page)
        assert not page.locator("#alert").is_visible()
        assert running.sentence(0).text == "No nodule seen. Clear."
        assert running.sentence(1).text.endswith("and long end")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def start_server(folder: Path, port: int) -> subprocess.Popen[bytes]:
    """The command itself, so that it can be killed."""
    command = [sys.executable, "-m", "maira", "review", "drafts.jsonl", "--manifest", "manifest.jsonl", "--no-browser"]
    root = str(Path(__file__).parents[2])
    environment = {**os.environ, "PYTHONPATH": root, "PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen(
        [*command, "--port", str(port)], cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    assert process.stdout is not None
    # The server listens before it prints its address; requests wait until then.
    assert any(b"http://" in line for line in process.stdout)
    return process


def test_killing_the_server_during_a_review_loses_nothing(browser: Browser, tmp_path: Path) -> None:
    folder = write_review_set(tmp_path)
    port = free_port()
    process = start_server(folder, port)
    running = Running(f"http://127.0.0.1:{port}/", folder)
    try:
        with visiting(browser, running) as page:
            press(page, "j", "d")
            saved(page)
            process.send_signal(signal.SIGKILL)
            process.communicate()
            press(page, "j", "d", "a")
            page.keyboard.type("Bifid rib.")
            press(page, "Enter")
            page.get_by_text("2 changes not saved").wait_for()
            process = start_server(folder, port)
            saved(page)
    finally:
        process.kill()
        process.communicate()
    state = running.state()
    assert [sentence.deleted for sentence in state.sentences] == [True, True, False, False]
    assert state.sentences[3].text == "Bifid rib."
