"""Errors injected by rules: labels match the changed facts, and all other text is unchanged."""

from itertools import pairwise
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from radfact.error_categories import CategoryLetter
from radfact.meta.injection.records import ReportSentences, parse_facts
from radfact.meta.injection.rules import RuleInjector
from radfact.meta.injection.word_tables import tables
from radfact.reader.ontology_file import default_ontology
from radfact.reader.vocabulary import is_plural

LETTERS: tuple[CategoryLetter, ...] = get_args(CategoryLetter)
CASES: dict[str, Any] = yaml.safe_load(Path(__file__).with_name("injected_errors.yaml").read_text("utf-8"))
SENTENCES = CASES["sentences"]
REPORTS = st.lists(st.sampled_from(SENTENCES), min_size=1, max_size=7, unique=True).map(" ".join)


def facts(text: str | None) -> list[tuple[str, bool]]:
    return sorted((fact.concept, fact.present) for fact in parse_facts(text or ""))


@settings(deadline=None, max_examples=60)
@given(REPORTS, st.sampled_from(LETTERS), st.integers(1, 3))
def test_a_candidate_has_its_errors_only(report: str, letter: CategoryLetter, count: int) -> None:
    made = RuleInjector(seed=1).inject("x", report, letter, count)
    if made is None:
        return
    assert len(made.changes) == count
    assert {change.category for change in made.changes} == {letter}
    assert made.candidate != made.reference == report
    changed = {change.original for change in made.changes if change.original}
    for sentence in ReportSentences.of(report).sentences:
        assert sentence in changed or f"{sentence}." in made.candidate
    for change in made.changes:
        assert (change.modified or "") in made.candidate
        _check_label(change.category, change.original, change.modified)


def _check_label(letter: CategoryLetter, original: str | None, modified: str | None) -> None:
    before, after = facts(original), facts(modified)
    if letter in "ab":
        stated = [{concept for concept, present in facts if present} for facts in (before, after)]
        assert stated[1] - stated[0] if letter == "a" else stated[0] - stated[1]
    else:
        assert before == after
        property_name = {"c": "places", "d": "severity", "e": "change", "f": "change"}[letter]
        values = [[getattr(f, property_name) for f in parse_facts(text or "")] for text in (original, modified)]
        assert values[0] != values[1]


@settings(deadline=None, max_examples=40)
@given(REPORTS, st.sampled_from(LETTERS))
def test_fewer_errors_are_among_more(report: str, letter: CategoryLetter) -> None:
    injector = RuleInjector(seed=3)
    candidates = [made for k in (1, 2, 3) if (made := injector.inject("x", report, letter, k))]
    for fewer, more in pairwise(candidates):
        assert more.changes[: len(fewer.changes)] == fewer.changes


def test_candidates_depend_on_seed_and_report_only() -> None:
    report = " ".join(SENTENCES)
    first = RuleInjector(seed=5).inject("x", report, "c", 2)
    other = RuleInjector(seed=5)
    other.inject("y", report, "a", 3)
    assert other.inject("x", report, "c", 2) == first
    assert RuleInjector(seed=6).inject("x", report, "a", 3) != RuleInjector(seed=5).inject("x", report, "a", 3)


@pytest.mark.parametrize(
    ("letter", "report", "changed"),
    [(letter, report, texts) for letter, rows in CASES["changes"].items() for report, texts in rows],
)
def test_errors_by_category(letter: CategoryLetter, report: str, changed: list[str | None]) -> None:
    made = [RuleInjector(seed=seed).inject("x", report, letter, 1) for seed in range(60)]
    changes = [change for candidate in made if candidate for change in candidate.changes]
    assert {change.modified for change in changes if change.original} == set(changed)


@pytest.mark.parametrize(
    ("letter", "report"), [(letter, text) for letter, texts in CASES["none"].items() for text in texts]
)
def test_a_report_without_an_opportunity_has_no_candidate(letter: CategoryLetter, report: str) -> None:
    assert RuleInjector().inject("x", report, letter, 1) is None


def test_an_unreadable_report_gets_no_mixed_errors() -> None:
    report = "Kein Pneumothorax. Das Herz ist normal groß. Kein Erguss."
    made = RuleInjector().inject_mixed("x", report, 3)
    assert (made.candidate, made.changes) == (report, ())


def test_added_findings_match_their_names_in_the_ontology() -> None:
    ontology = default_ontology()
    for finding, texts in tables()["findings"].items():
        assert finding in ontology.findings
        for text in texts:
            assert any(f.present and ontology.is_a(f.concept, finding) for f in parse_facts(text)), text


def test_findings_that_another_sentence_denies_are_not_added() -> None:
    for seed in range(20):
        made = RuleInjector(seed=seed).inject("x", "No pneumothorax. The pleura shows no pneumothorax.", "a", 3)
        assert made is not None
        assert "apical pneumothorax" not in made.candidate


def test_mixed_errors_change_a_sentence_once() -> None:
    report = " ".join(SENTENCES)
    made = RuleInjector(seed=2).inject_mixed("x", report, 5)
    assert len(made.changes) == 5
    originals = [change.original for change in made.changes if change.original]
    assert len(originals) == len(set(originals))
    assert sum(made.counts.values()) == 5


def test_latin_plurals() -> None:
    plurals = {phrase: is_plural(phrase.split()) for phrase in ("central emboli", "prominent hili", "free gas")}
    assert plurals == {"central emboli": True, "prominent hili": True, "free gas": False}
