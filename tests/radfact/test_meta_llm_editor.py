"""Errors and rewriting by a language model with the papers' prompts."""

from __future__ import annotations

import json
import re
from pathlib import Path
from unittest.mock import Mock

import pytest

from radfact.errors import Failure
from radfact.llm import mock_client
from radfact.meta.datasets.reports import SiteReport
from radfact.meta.injection.llm_editor import (
    ModelEditor,
    draw_categories,
    inject_mixed_with_model,
    inject_with_model,
)
from radfact.meta.injection.records import InjectedReport
from radfact.metrics.llm.llm_metric import load_prompt

SEEDS = Path(__file__).resolve().parents[2].parent / "shared" / "seeds"
PAPERS = {
    "003_abf792c1c1f4ab9d.txt": ("inject_a", "inject_b", "plausible"),
    "000_e6b0ddc06faf3acd.txt": ("modify", "rephrase", "preference"),
    "002_99692e40ec0969ef.txt": ("standardize", "perturb"),
}
REPORT = "The heart is normal. Lungs are clear."
SOURCE = SiteReport("s", "", REPORT)
ABOUT = {"modality": "X-ray", "region": "chest"}
CHANGED = "The heart is normal. There is a left effusion."
REFUSAL = "I'm sorry, but I can't assist with that."


def letters(text: str) -> str:
    return re.sub(r"[^0-9A-Za-z]", "", re.sub(r"<[^<>]*>", "", text)).lower()


@pytest.mark.skipif(not SEEDS.exists(), reason="the papers' texts are not available")
@pytest.mark.parametrize(("paper", "prompt"), [(paper, name) for paper, names in PAPERS.items() for name in names])
def test_every_line_is_the_papers(paper: str, prompt: str) -> None:
    text = re.sub(r"<\|.*?\|>|\n\d+\s+Preprint. Under review.", "", (SEEDS / paper).read_text(encoding="utf-8"))
    # Numbers of code lines and marks of the scan stand between the lines of a listing.
    text = re.sub(r"(?m)^\d+\t|<tt>|</?pre>|\$\{\\tt X\}\$|\{\\tt X\}", lambda m: "X" if "X" in m[0] else "", text)
    printed = letters(text)
    template = load_prompt(prompt) if prompt == "preference" else load_prompt(prompt, "radfact.meta.injection")
    lines = [re.sub(r"\{\w+\}", "", line) for line in template.splitlines()]
    missing = [line for line in lines if letters(line) not in printed]
    assert [line for line in missing if not line.startswith("Introduce errors related to . The errors should")] == []


def response(modified: str = CHANGED) -> str:
    change = {"sentence_index": 1, "original": "Lungs are clear.", "modified": "There is a left effusion."}
    return json.dumps({"modified_report": modified, "changes_detail": [change | {"explanation": "x"}]})


def test_a_plausible_error_is_accepted() -> None:
    model = Mock(side_effect=[response(), '{"plausible": true, "reason": "ok"}'])
    (candidate,) = inject_with_model(mock_client(lambda text: str(model(text))), [SOURCE], "a", 1, **ABOUT)
    assert isinstance(candidate, InjectedReport)
    assert (candidate.candidate, candidate.sample_id, candidate.by) == (CHANGED, "s_a1", "mock:model")
    (change,) = candidate.changes
    assert (change.original, change.modified) == ("Lungs are clear.", "There is a left effusion.")
    injection, check = (call.args[0] for call in model.call_args_list)
    assert "Number of errors to inject: 1" in injection
    assert "Imaging modality: X-ray\nBody region: chest" in check


def test_implausible_errors_are_requested_up_to_five_times() -> None:
    injections: list[str] = []

    def model(text: str) -> str:
        if "Modifications:" in text:
            return '{"plausible": false, "reason": "no such anatomy"}'
        injections.append(text)
        return response()

    (candidate,) = inject_with_model(mock_client(model), [SOURCE], "b", 1, **ABOUT)
    assert isinstance(candidate, Failure)
    assert (len(injections), "no such anatomy" in injections[1]) == (5, True)


def test_only_reports_with_implausible_errors_are_requested_again() -> None:
    verdicts = {"good": 0, "bad": 0}

    def model(text: str) -> str:
        if "not plausible" in text:
            return response("Bad heart, changed. There is a left effusion.")
        if "Modifications:" not in text:
            return response(f"{'Bad' if 'bad' in text else 'Good'} heart. There is a left effusion.")
        key = "bad" if "Bad" in text else "good"
        verdicts[key] += 1
        return json.dumps({"plausible": key == "good" or verdicts[key] == 2, "reason": "odd"})

    sources = [SiteReport(key, "", f"A {key} one. Lungs are clear.") for key in ("good", "bad")]
    candidates = inject_with_model(mock_client(model), sources, "a", 1, **ABOUT)
    assert all(isinstance(candidate, InjectedReport) for candidate in candidates)
    assert verdicts == {"good": 1, "bad": 2}


def test_a_category_without_instructions_is_refused() -> None:
    with pytest.raises(ValueError, match="'c'"):
        inject_with_model(mock_client(str), [], "c", 1, **ABOUT)


def test_several_categories_are_named_and_none_requests_a_paraphrase() -> None:
    queries: dict[str, str] = {}

    def model(text: str) -> str:
        queries["reworded" if "slightly rephrased" in text else "errors"] = text
        return "[Candidate]: The heart is large."

    sources = [SOURCE, SiteReport("2", "", REPORT)]
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


@pytest.mark.parametrize("text", [REFUSAL, REPORT])
def test_a_refusal_or_a_report_without_errors_is_a_failure(text: str) -> None:
    assert isinstance(inject_mixed_with_model(mock_client(text), [SOURCE], [("a",)])[0], Failure)
    assert isinstance(ModelEditor(mock_client(text), "perturb").edit([SOURCE])[0], Failure)


def test_one_failed_report_does_not_affect_the_others() -> None:
    client = mock_client(lambda text: "" if "bad" in text or "cannot be used" in text else f"**Findings:** {text}")
    good, bad = ModelEditor(client, "standardize").edit([SiteReport(text, "x", text) for text in ("fine", "bad")])
    assert isinstance(good, InjectedReport)
    assert (good.candidate, good.site) == ("Findings: fine", "x")
    assert isinstance(bad, Failure)
