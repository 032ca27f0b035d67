"""Errors and rewriting by a language model: the papers' prompts, and responses as models write them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from radfact.errors import Failure
from radfact.llm import mock_client
from radfact.meta.datasets.reports import SiteReport
from radfact.meta.injection.llm_editor import (
    ModelInjector,
    ModelStyler,
    SourceReport,
    draw_categories,
    inject_mixed_with_model,
    inject_with_model,
    parse_candidate,
    parse_modified_report,
    parse_plausibility,
)
from radfact.meta.injection.records import InjectedReport
from radfact.metrics.llm.llm_metric import load_prompt

SEEDS = Path(__file__).resolve().parents[2].parent / "shared" / "seeds"
PAPERS = {
    "inject_a": "003_abf792c1c1f4ab9d.txt",
    "inject_b": "003_abf792c1c1f4ab9d.txt",
    "plausible": "003_abf792c1c1f4ab9d.txt",
    "modify": "000_e6b0ddc06faf3acd.txt",
    "rephrase": "000_e6b0ddc06faf3acd.txt",
    "standardize": "002_99692e40ec0969ef.txt",
    "perturb": "002_99692e40ec0969ef.txt",
}
REPORT = "The heart is normal. Lungs are clear."
CHANGED = "The heart is normal. There is a left effusion."
REFUSAL = "I'm sorry, but I can't assist with that."


def letters(text: str) -> str:
    return re.sub(r"[^0-9A-Za-z]", "", re.sub(r"<[^<>]*>", "", text)).lower()


@pytest.mark.skipif(not SEEDS.exists(), reason="the papers' texts are not available")
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


def response(modified: str = CHANGED, changes: int = 1) -> str:
    entry = {
        "sentence_index": 1,
        "original": "Lungs are clear.",
        "modified": "There is a left effusion.",
        "explanation": "x",
    }
    return json.dumps({"modified_report": modified, "changes_detail": [entry] * changes})


class Model:
    """Injects an error and returns a fixed verdict on its plausibility."""

    def __init__(self, verdict: str) -> None:
        self.verdict, self.queries = verdict, list[str]()

    def __call__(self, text: str) -> str:
        self.queries.append(text)
        return self.verdict if "Modifications:" in text else response()


def test_a_plausible_error_is_accepted() -> None:
    model = Model('{"plausible": true, "reason": "ok"}')
    (candidate,) = inject_with_model(mock_client(model), [SourceReport("s", REPORT)], "a", 1)
    assert isinstance(candidate, InjectedReport)
    assert (candidate.candidate, candidate.sample_id, candidate.by) == (CHANGED, "s_a1", "mock:model")
    (change,) = candidate.changes
    assert (change.original, change.modified) == ("Lungs are clear.", "There is a left effusion.")
    injection, check = model.queries
    assert "Number of errors to inject: 1" in injection
    assert "Imaging modality: X-ray" in check
    assert "Body region: chest" in check


def test_implausible_errors_are_requested_up_to_five_times() -> None:
    model = Model('{"plausible": false, "reason": "no such anatomy"}')
    (candidate,) = inject_with_model(mock_client(model), [SourceReport("s", REPORT)], "b", 1)
    assert isinstance(candidate, Failure)
    injections = [text for text in model.queries if "Modifications:" not in text]
    assert len(injections) == 5
    assert "no such anatomy" in injections[1]


def test_only_reports_with_implausible_errors_are_requested_again() -> None:
    verdicts = {"good": 0, "bad": 0}

    def model(text: str) -> str:
        if "Modifications:" not in text:
            return (
                response(f"{'Bad' if 'bad' in text else 'Good'} heart. There is a left effusion.")
                if "not plausible" not in text
                else response("Bad heart, changed. There is a left effusion.")
            )
        key = "bad" if "Bad" in text else "good"
        verdicts[key] += 1
        return json.dumps({"plausible": key == "good" or verdicts[key] == 2, "reason": "odd"})

    sources = [SourceReport("1", "A good one. Lungs are clear."), SourceReport("2", "A bad one. Lungs are clear.")]
    candidates = inject_with_model(mock_client(model), sources, "a", 1)
    assert all(isinstance(candidate, InjectedReport) for candidate in candidates)
    assert verdicts == {"good": 1, "bad": 2}


def test_a_wrong_number_of_changes_is_a_failure() -> None:
    client = mock_client(lambda _: response(changes=2))
    (candidate,) = inject_with_model(client, [SourceReport("s", REPORT)], "a", 1)
    assert isinstance(candidate, Failure)
    assert "must list 1" in candidate.reason


@pytest.mark.parametrize(
    "text",
    [
        response(),
        f"Here it is:\n```json\n{response()}\n```\nHope this helps!",
        response().replace("_", " "),
        f"<think>I will add one {{...}}</think>{response()}",
        response()[:-1] + ",}",
    ],
)
def test_modified_reports_are_parsed(text: str) -> None:
    assert parse_modified_report(text, REPORT, "a", 1).report == CHANGED


@pytest.mark.parametrize(
    "text",
    ["", "I cannot do that.", response(REPORT), response(""), response()[:60], '{"modified_report": 3}', "[1, 2]",
     response(changes=0), '{"modified_report": "x", "changes_detail": ["y"]}',
     # sentences that are in neither report
     response().replace("Lungs are clear.", "Lungs are hazy."),
     response().replace('"modified": "There is', '"modified": "There was'),
     response("X."), response("the heart is normal; lungs are clear")],
)  # fmt: skip
def test_unusable_modified_reports_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        parse_modified_report(text, REPORT, "a", 1)


@pytest.mark.parametrize("nothing", ["", "None", "(none)", "[new sentence]", "N/A"])
def test_an_added_sentence_has_no_original(nothing: str) -> None:
    (change,) = parse_modified_report(response().replace("Lungs are clear.", nothing), REPORT, "a", 1).changes
    assert (change.original, change.modified) == (None, "There is a left effusion.")


def test_a_removed_sentence_has_no_text() -> None:
    entry = '{"original": "Lungs are clear.", "modified": ""}'
    text = f'{{"modified_report": "The heart is normal.", "changes_detail": [{entry}]}}'
    (change,) = parse_modified_report(text, REPORT, "b", 1).changes
    assert (change.original, change.modified) == ("Lungs are clear.", None)


@pytest.mark.parametrize(
    ("text", "plausible"),
    [('{"plausible": true, "reason": "ok"}', True), ("```json\n{'plausible': False}\n```", False),
     ('{"plausible": "yes"}', True)],
)  # fmt: skip
def test_plausibility_is_parsed(text: str, plausible: bool) -> None:
    assert parse_plausibility(text).plausible is plausible


@pytest.mark.parametrize("text", ["true", '{"plausible": "perhaps"}', "{}"])
def test_a_check_without_a_verdict_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="plausible"):
        parse_plausibility(text)


@pytest.mark.parametrize("category", ["c", "d", "e", "f"])
def test_a_category_without_instructions_is_refused(category: str) -> None:
    with pytest.raises(ValueError, match=category):
        inject_with_model(mock_client(str), [], category, 1)  # type: ignore[arg-type]


def test_several_categories_are_named_and_none_requests_a_paraphrase() -> None:
    queries: dict[str, str] = {}

    def model(text: str) -> str:
        queries["reworded" if "slightly rephrased" in text else "errors"] = text
        return "[Candidate]: The heart is large."

    sources = [SourceReport("1", REPORT), SourceReport("2", REPORT)]
    first, second = inject_mixed_with_model(mock_client(model), sources, [("a", "d"), ()])
    assert isinstance(first, InjectedReport)
    assert isinstance(second, InjectedReport)
    assert (first.candidate, first.counts["a"], first.counts["d"], second.changes) == ("The heart is large.", 1, 1, ())
    categories = "False report of a finding in the candidate, Misassessment of the severity of a finding"
    assert f"Introduce errors related to {categories}." in queries["errors"]
    assert REPORT in queries["reworded"]


def test_categories_are_drawn_by_seed_and_report() -> None:
    drawn = [draw_categories(str(i), seed=1) for i in range(60)]
    assert drawn == [draw_categories(str(i), seed=1) for i in range(60)]
    assert {len(categories) for categories in drawn} == {0, 1, 2, 3}
    assert {letter for categories in drawn for letter in categories} == set("abcdef")


@pytest.mark.parametrize(
    "text",
    [f"[Candidate]: {CHANGED}", f"**[Candidate]:** {CHANGED}", f"<think>Candidate: x</think>Candidate: {CHANGED}",
     f"Sure! Here it is:\n\n[Candidate]:\n{CHANGED}\n\n[Explanation]: I added an effusion.",
     f"[Candidate]: {CHANGED}\n\nLet me know if you need more."],
)  # fmt: skip
def test_candidates_are_parsed(text: str) -> None:
    assert parse_candidate(text, REPORT, changed=True) == CHANGED


@pytest.mark.parametrize(
    "text",
    [CHANGED, "[Candidate]:", f"[Candidate]: {REFUSAL}", "[Candidate]: Clear.", REFUSAL, f"[Candidate]: {REPORT}",
     "[Candidate]: The liver is fatty and the spleen is large."],
)  # fmt: skip
def test_a_response_without_a_candidate_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        parse_candidate(text, REPORT, changed=True)


def test_a_paraphrase_may_equal_the_report() -> None:
    assert parse_candidate(f"[Candidate]: {REPORT}", REPORT) == REPORT


def test_a_refusal_is_a_failure() -> None:
    client = mock_client(REFUSAL)
    assert isinstance(inject_mixed_with_model(client, [SourceReport("s", REPORT)], [("a",)])[0], Failure)
    assert isinstance(ModelStyler(client).standardize([REPORT])[0], Failure)
    assert isinstance(ModelInjector(client).inject_reports([SiteReport("1", "s", REPORT)])[0], Failure)


def test_an_unchanged_report_is_a_failure() -> None:
    (candidate,) = ModelInjector(mock_client(REPORT)).inject_reports([SiteReport("1", "s", REPORT)])
    assert isinstance(candidate, Failure)
    assert "as it was" in candidate.reason


def test_one_failed_report_does_not_affect_the_others() -> None:
    client = mock_client(lambda text: "" if "bad" in text or "cannot be used" in text else f"**Findings:** {text}")
    good, bad = ModelStyler(client).standardize(["fine", "bad"])
    assert good == "Findings: fine"
    assert isinstance(bad, Failure)
