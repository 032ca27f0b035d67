"""Errors and rewording by a language model: the papers' words, and answers as models give them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from radfact.errors import Failure
from radfact.llm import mock_client
from radfact.meta.datasets.report_table import SiteReport
from radfact.meta.injection.llm_editor import (
    Source,
    draw_categories,
    inject_by_model,
    modify_by_model,
    read_candidate,
    read_modified,
    read_verdict,
)
from radfact.meta.injection.perturb import ModelPerturber
from radfact.meta.injection.records import Injected
from radfact.meta.injection.style import ModelStyler
from radfact.metrics.llm_metric import load_prompt

SEEDS = Path(__file__).resolve().parents[2].parent / "shared" / "seeds"
PAPERS = {
    "inject_a": "003_abf792c1c1f4ab9d.txt",
    "inject_b": "003_abf792c1c1f4ab9d.txt",
    "plausible": "003_abf792c1c1f4ab9d.txt",
    "modify": "000_e6b0ddc06faf3acd.txt",
    "rephrase": "000_e6b0ddc06faf3acd.txt",
    "standardise": "002_99692e40ec0969ef.txt",
    "perturb": "002_99692e40ec0969ef.txt",
}
REPORT = "The heart is normal. Lungs are clear."
CHANGED = "The heart is normal. There is a left effusion."


def letters(text: str) -> str:
    return re.sub(r"[^0-9A-Za-z]", "", re.sub(r"<[^<>]*>", "", text)).lower()


@pytest.mark.skipif(not SEEDS.exists(), reason="the papers' texts are not here")
@pytest.mark.parametrize(("prompt", "paper"), PAPERS.items())
def test_every_line_is_the_papers(prompt: str, paper: str) -> None:
    text = re.sub(r"<\|.*?\|>|\n\d+\s+Preprint. Under review.", "", (SEEDS / paper).read_text(encoding="utf-8"))
    # Numbers of code lines and marks of the scan stand between the lines of a listing.
    text = re.sub(r"(?m)^\d+\t|<tt>|</?pre>|\$\{\\tt X\}\$|\{\\tt X\}", lambda m: "X" if "X" in m[0] else "", text)
    printed = letters(text)
    lines = [re.sub(r"\{\w+\}", "", line) for line in load_prompt(prompt, "radfact.meta.injection").splitlines()]
    missing = [line for line in lines if letters(line) not in printed]
    allowed = {"Introduce errors related to . The errors should"}
    assert [line for line in missing if not any(line.startswith(start) for start in allowed)] == []


def answer(modified: str = CHANGED, changes: int = 1) -> str:
    entry = {
        "sentence_index": 1,
        "original": "Lungs are clear.",
        "modified": "There is a left effusion.",
        "explanation": "x",
    }
    return json.dumps({"modified_report": modified, "changes_detail": [entry] * changes})


def test_a_plausible_error_is_taken_at_once() -> None:
    asked: list[str] = []

    def model(text: str) -> str:
        asked.append(text)
        return '{"plausible": true, "reason": "ok"}' if "Modifications:" in text else answer()

    (made,) = inject_by_model(mock_client(model), [Source("s", REPORT)], "a", 1)
    assert isinstance(made, Injected)
    assert (made.candidate, made.sample_id, made.by) == (CHANGED, "s_a1", "mock:model")
    assert (made.changes[0].original, made.changes[0].modified) == ("Lungs are clear.", "There is a left effusion.")
    assert len(asked) == 2
    assert "Number of errors to inject: 1" in asked[0]
    assert "Imaging modality: X-ray" in asked[1]
    assert "Body region: chest" in asked[1]


def test_what_is_not_plausible_is_asked_for_up_to_five_times() -> None:
    asked: list[str] = []

    def model(text: str) -> str:
        asked.append(text)
        return '{"plausible": false, "reason": "no such anatomy"}' if "Modifications:" in text else answer()

    (made,) = inject_by_model(mock_client(model), [Source("s", REPORT)], "b", 1)
    assert made == Failure("no plausible error in 5 tries")
    asking = [text for text in asked if "Modifications:" not in text]
    assert len(asking) == 5
    assert "no such anatomy" in asking[1]


def test_only_the_reports_that_need_it_are_asked_again() -> None:
    verdicts = {"good": 0, "bad": 0}

    def model(text: str) -> str:
        if "Modifications:" not in text:
            return (
                answer(f"{'Bad' if 'bad' in text else 'Good'} heart. There is a left effusion.")
                if "not plausible" not in text
                else answer("Bad heart, changed. There is a left effusion.")
            )
        key = "bad" if "Bad" in text else "good"
        verdicts[key] += 1
        return json.dumps({"plausible": key == "good" or verdicts[key] == 2, "reason": "odd"})

    sources = [Source("1", "A good one. Lungs are clear."), Source("2", "A bad one. Lungs are clear.")]
    made = inject_by_model(mock_client(model), sources, "a", 1)
    assert all(isinstance(one, Injected) for one in made)
    assert verdicts == {"good": 1, "bad": 2}


def test_a_wrong_number_of_changes_is_repaired_and_else_a_failure() -> None:
    (made,) = inject_by_model(mock_client(lambda _: answer(changes=2)), [Source("s", REPORT)], "a", 1)
    assert isinstance(made, Failure)
    assert "must list 1" in made.reason


@pytest.mark.parametrize(
    "text",
    [
        answer(),
        f"Here it is:\n```json\n{answer()}\n```\nHope this helps!",
        answer().replace("_", " "),
        f"<think>I will add one {{...}}</think>{answer()}",
        answer()[:-1] + ",}",
    ],
)
def test_answers_as_models_write_them_are_read(text: str) -> None:
    assert read_modified(text, REPORT, "a", 1).report == CHANGED


@pytest.mark.parametrize(
    "text",
    ["", "I cannot do that.", answer(REPORT), answer(""), answer()[:60], '{"modified_report": 3}', "[1, 2]",
     answer(changes=0), '{"modified_report": "x", "changes_detail": ["y"]}'],
)  # fmt: skip
def test_an_answer_that_cannot_be_used_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        read_modified(text, REPORT, "a", 1)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [(answer().replace("Lungs are clear.", "Lungs are hazy."), "'Lungs are hazy.' is not in the report"),
     (answer().replace('"modified": "There is', '"modified": "There was'),
      "There was a left effusion.' is not in modified"),
     (answer("X."), "is not in modified_report"), (answer("the heart is normal; lungs are clear"), "as it was")],
)  # fmt: skip
def test_sentences_that_are_in_neither_report_are_refused(wrong: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        read_modified(wrong, REPORT, "a", 1)


@pytest.mark.parametrize("nothing", ["", "None", "(none)", "[new sentence]", "N/A"])
def test_an_added_sentence_has_no_original(nothing: str) -> None:
    (change,) = read_modified(answer().replace("Lungs are clear.", nothing), REPORT, "a", 1).changes
    assert (change.original, change.modified) == (None, "There is a left effusion.")


def test_a_deleted_sentence_has_no_text() -> None:
    entry = '{"original": "Lungs are clear.", "modified": ""}'
    text = f'{{"modified_report": "The heart is normal.", "changes_detail": [{entry}]}}'
    (change,) = read_modified(text, REPORT, "b", 1).changes
    assert (change.original, change.modified) == ("Lungs are clear.", None)


@pytest.mark.parametrize(
    ("text", "plausible"),
    [('{"plausible": true, "reason": "ok"}', True), ("```json\n{'plausible': False}\n```", False),
     ('{"plausible": "yes"}', True)],
)  # fmt: skip
def test_verdicts_are_read(text: str, plausible: bool) -> None:
    assert read_verdict(text).plausible is plausible


@pytest.mark.parametrize("text", ["true", '{"plausible": "perhaps"}', "{}"])
def test_a_verdict_that_says_neither_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="plausible"):
        read_verdict(text)


@pytest.mark.parametrize("category", ["c", "d", "e", "f"])
def test_the_paper_tells_how_to_make_two_kinds(category: str) -> None:
    with pytest.raises(ValueError, match=category):
        inject_by_model(mock_client(str), [], category, 1)  # type: ignore[arg-type]


def test_kinds_are_named_and_none_asks_for_other_words() -> None:
    asked: dict[str, str] = {}

    def model(text: str) -> str:
        asked["reworded" if "slightly rephrased" in text else "errors"] = text
        return "[Candidate]: The heart is large."

    sources = [Source("1", REPORT), Source("2", REPORT)]
    first, second = modify_by_model(mock_client(model), sources, [("a", "d"), ()])
    assert isinstance(first, Injected)
    assert isinstance(second, Injected)
    assert (first.candidate, first.counts["a"], first.counts["d"], second.changes) == ("The heart is large.", 1, 1, ())
    kinds = "False report of a finding in the candidate, Misassessment of the severity of a finding"
    assert f"Introduce errors related to {kinds}." in asked["errors"]
    assert REPORT in asked["reworded"]


def test_combinations_are_drawn_by_seed_and_report() -> None:
    drawn = [draw_categories(str(i), seed=1) for i in range(60)]
    assert drawn == [draw_categories(str(i), seed=1) for i in range(60)]
    assert {len(one) for one in drawn} == {0, 1, 2, 3}
    assert {letter for one in drawn for letter in one} == set("abcdef")


@pytest.mark.parametrize(
    "text",
    [f"[Candidate]: {CHANGED}", f"**[Candidate]:** {CHANGED}", f"<think>Candidate: x</think>Candidate: {CHANGED}",
     f"Sure! Here it is:\n\n[Candidate]:\n{CHANGED}\n\n[Explanation]: I added an effusion.",
     f"[Candidate]: {CHANGED}\n\nLet me know if you need more."],
)  # fmt: skip
def test_a_candidate_is_what_follows_its_name(text: str) -> None:
    assert read_candidate(text, REPORT, changed=True) == CHANGED


@pytest.mark.parametrize(
    "text",
    [CHANGED, "[Candidate]:", "[Candidate]: I'm sorry, but I can't assist with that.", "[Candidate]: Clear.",
     "[Candidate]: The liver is fatty and the spleen is large.", "I'm sorry, but I can't assist with that request.",
     f"[Candidate]: {REPORT}"],
)  # fmt: skip
def test_what_is_no_candidate_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        read_candidate(text, REPORT, changed=True)


def test_a_report_in_other_words_may_stay_as_it_is() -> None:
    assert read_candidate(f"[Candidate]: {REPORT}", REPORT) == REPORT


def test_a_refusal_gets_no_labels() -> None:
    client = mock_client(lambda _: "I'm sorry, but I can't assist with putting errors into reports.")
    (made,) = modify_by_model(client, [Source("s", REPORT)], [("a",)])
    assert isinstance(made, Failure)


def test_a_refusal_is_neither_standardised_nor_perturbed() -> None:
    client = mock_client(lambda _: "I'm sorry, but I can't assist with that.")
    assert isinstance(ModelStyler(client).standardise([REPORT])[0], Failure)
    assert isinstance(ModelPerturber(client).perturb([SiteReport("1", "s", REPORT)])[0], Failure)


def test_a_report_without_errors_is_not_perturbed() -> None:
    (made,) = ModelPerturber(mock_client(lambda _: REPORT)).perturb([SiteReport("1", "s", REPORT)])
    assert isinstance(made, Failure)
    assert "as it was" in made.reason


def test_the_styler_sends_the_papers_prompt_and_keeps_failures() -> None:
    styler = ModelStyler(
        mock_client(lambda text: "" if "bad" in text or "cannot be used" in text else f"**Findings:** {text}")
    )
    good, bad = styler.standardise(["fine", "bad"])
    assert good == "Findings: fine"
    assert isinstance(bad, Failure)
