"""What a splitter removes: its position in the narrative, its rows in a results folder, and how the page shows it."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from error_checks import raises
from hypothesis import given
from hypothesis import strategies as st
from results_folder import HOSTILE, ROWS, await_script

from radfact.api import RadFact
from radfact.errors import Failure
from radfact.io.jsonl import read_jsonl, write_jsonl
from radfact.judges import Splitter
from radfact.judges.offline import OfflineJudge
from radfact.judges.offline_splitter import OfflineSplitter, explain_split
from radfact.judges.protocol import RemovedText, SplitSentence, locate_removed
from radfact.pages.page import write_page
from radfact.results.writer import write_results

if TYPE_CHECKING:
    from playwright.sync_api import Page

REWRITTEN = [SplitSentence("Two radiographs", ()), SplitSentence("No effusion", ("No effusion.",))]
"""Quotes a sentence in other words, as a language model may."""


@given(st.lists(st.sampled_from(ROWS["sentences of removed text"]), max_size=8).map(" ".join))
def test_every_part_that_the_rules_remove_has_a_position_of_its_own(narrative: str) -> None:
    end = 0
    for removed in sorted(locate_removed(narrative, explain_split(narrative)), key=lambda text: text.start or 0):
        assert removed.start is not None
        assert end <= removed.start
        words, expected = (re.findall(r"\w+", text) for text in (narrative[removed.start : removed.end], removed.text))
        assert words == expected
        end = removed.end or 0


def test_text_that_was_rewritten_or_that_occurs_twice_without_its_sentence_has_no_position() -> None:
    assert [text.start for text in locate_removed("Two views. No effusion.", REWRITTEN)] == [None]
    removed = (RemovedText("possible pneumonia"),)
    narrative = "Left opacity, possible pneumonia. Right opacity, possible pneumonia."
    [text] = locate_removed(narrative, [SplitSentence("Opacity", ("Opacity.",), removed)])
    assert text.start is None
    kept = SplitSentence("Left opacity, possible pneumonia", ("Left opacity.",))
    [text] = locate_removed(narrative, [kept, SplitSentence("Right opacity, possible pneumonia", ("...",), removed)])
    assert text.start == narrative.rindex("possible")


class RewritingSplitter(OfflineSplitter):
    def explain(self, narratives: Any) -> list[list[SplitSentence] | Failure]:
        return [REWRITTEN for _ in narratives]


def results(folder: Path, candidate: str, splitter: Splitter | None = None) -> Path:
    result = RadFact(judge=OfflineJudge(), splitter=splitter, bootstrap=0).score([candidate], ["No effusion."])
    write_results(result, folder, {})
    return folder


def test_results_list_and_count_what_the_splitter_removed(tmp_path: Path) -> None:
    candidate = "No effusion. Two views of the chest. CT is recommended."
    folder = results(tmp_path, candidate)
    [[_, sample]] = read_jsonl(folder / "samples.jsonl")
    assert (sample["candidate_sentences_removed"], sample["logical_precision"]) == (2, 1.0)
    rows = [row for _, row in read_jsonl(folder / "removed.jsonl")]
    assert [[row["side"], row["text"], row["reason"]] for row in rows] == ROWS["removed"]
    narratives = {row["side"]: row["text"] for _, row in read_jsonl(folder / "narratives.jsonl")}
    assert narratives == {"candidate": candidate, "reference": "No effusion."}
    assert [candidate[row["start"] : row["end"]] for row in rows] == ["Two views of the chest.", "CT is recommended."]


@pytest.mark.parametrize(("positions", "place"), ROWS["refused positions"])
def test_positions_outside_of_the_narrative_or_of_another_part_are_refused(
    tmp_path: Path, positions: list[tuple[int, int | None]], place: str
) -> None:
    folder = results(tmp_path, "PA view. No effusion.")
    [[_, row]] = read_jsonl(folder / "removed.jsonl")
    write_jsonl(folder / "removed.jsonl", [{**row, "start": start, "end": end} for start, end in positions])
    with raises(place):
        write_page(folder)


@pytest.mark.browser
def test_removed_text_is_struck_through_or_listed(open_page: Callable[..., Page], tmp_path: Path) -> None:
    candidate = f"No effusion. \U0001f600 PA view. {HOSTILE}. CT is recommended."
    page = open_page(write_page(results(tmp_path / "rules", candidate)).as_uri())
    narrative = page.locator(".report.candidate .narrative")
    assert narrative.locator("del").all_text_contents() == ["PA view.", "CT is recommended."]
    shown = candidate.replace("view.", "view. [removed: technique]") + " [removed: recommendation]"
    assert narrative.text_content() == shown
    assert page.title() != "taken"
    assert page.locator(".report.reference .narrative").count() == 0
    page.goto(write_page(results(tmp_path / "rewritten", "Two views. No effusion.", RewritingSplitter())).as_uri())
    await_script(page)
    assert narrative.text_content() == "Two views. No effusion."
    assert page.locator(".report.candidate .removed li").all_text_contents() == ["Two radiographs [removed]"]
