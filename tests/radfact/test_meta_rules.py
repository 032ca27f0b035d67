"""Errors injected by rules: labels match the changed facts, and all other text is unchanged."""

from __future__ import annotations

from itertools import pairwise
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from radfact.error_categories import CategoryLetter
from radfact.meta.injection.records import InjectedReport, ReportSentences, parse_facts
from radfact.meta.injection.rules import FINDINGS, RuleInjector
from radfact.reader.ontology_file import default_ontology
from radfact.reader.vocabulary import is_plural

LETTERS: tuple[CategoryLetter, ...] = get_args(CategoryLetter)
SENTENCES = (
    "The heart is normal in size.",
    "No pneumothorax.",
    "There is no pleural effusion or pneumothorax.",
    "Lungs are clear.",
    "There is a small left pleural effusion.",
    "Moderate right lower lobe consolidation.",
    "Stable cardiomegaly.",
    "A calcified granuloma is again seen in the right upper lobe.",
    "There is a small right apical pneumothorax, unchanged from the prior study.",
    "Mild degenerative changes of the spine.",
    "Compared to the prior study, the left effusion has increased.",
    "ETT tip 4.5 cm above the carina.",
    "Cholecystectomy clips overlie the right upper quadrant.",
    "XXXX examination.",
)
UNCHANGED, INCREASED = "unchanged from the prior examination", "increased since the prior examination"
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
    if letter == "a":
        assert {concept for concept, present in after if present} - {concept for concept, present in before if present}
    elif letter == "b":
        assert {concept for concept, present in before if present} - {concept for concept, present in after if present}
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
    ("letter", "sentence", "candidates"),
    [
        ("c", "There is a Left effusion.", {"There is a Right effusion."}),
        ("c", "Opacity in the upper lobe.", {"Opacity in the lower lobe."}),
        ("d", "There is a small effusion.", {"There is a large effusion."}),
        ("d", "Mild cardiomegaly.", {"Severe cardiomegaly."}),
        ("e", "Small left effusion.", {f"Small left effusion, {text}." for text in (UNCHANGED, INCREASED)}),
        (
            "e",
            "Lungs are well expanded and clear bilaterally.",
            {f"Lungs are well expanded and clear bilaterally, {UNCHANGED}."},
        ),
        ("e", "Heart size normal with mild scoliosis.", {f"Heart size normal with mild scoliosis, {UNCHANGED}."}),
        ("e", "There is a right chest tube.", {f"There is a right chest tube, {UNCHANGED}."}),
        ("f", "Stable cardiomegaly.", {"Cardiomegaly."}),
        ("f", "There is an unchanged left effusion.", {"There is a left effusion."}),
        ("f", "Right nodule, unchanged from prior examinations.", {"Right nodule."}),
        ("f", "Heart size is enlarged but stable.", {"Heart size is enlarged."}),
        ("f", "Left nodule, grossly unchanged.", {"Left nodule."}),
        ("f", "A left upper lobe granuloma appears unchanged.", {"A left upper lobe granuloma is present."}),
        ("f", "Stable appearance of scarring at the left base.", {"Scarring at the left base."}),
        ("f", "Again seen are bibasal opacities.", {"There are bibasal opacities."}),
        ("f", "Relatively stable mild scoliosis.", {"Mild scoliosis."}),
        ("f", "Normal and stable heart size.", {"Normal heart size."}),
        ("f", "Increased retrosternal airspace.", set()),
        ("f", "Comparison shows this opacity to have decreased.", set()),
        ("c", "Consolidation in the right middle lobe.", {"Consolidation in the right upper lobe."}),
        ("c", "Scarring in the left lingula.", set()),
        ("c", "Opacity in the lower lobe of a large lung.", {"Opacity in the upper lobe of a large lung."}),
        ("c", "There is a lower lobe opacity.", {"There is an upper lobe opacity."}),
        ("c", "Small left basal effusion.", {"Small right basal effusion."}),
        ("c", "Costophrenic blunting persists in both lower lobes.", set()),
        ("c", "Opacity at the base of the mediastinum.", set()),
        ("c", "Density in the lower mediastinum due to hiatal hernia and opacity.", set()),
        ("c", "Basilar atelectasis in the lingula.", set()),
        ("c", "Biapical pleural-peripheral scarring.", set()),
        ("c", "Rotated apical lordotic projection with scarring.", set()),
        ("c", "Cholecystectomy clips in the right upper quadrant.", set()),
        ("d", "Minimal right effusion.", {"Marked right effusion."}),
        ("d", "Interstitial opacities are mildly prominent.", {"Interstitial opacities are markedly prominent."}),
        ("d", "Mild to moderate cardiomegaly.", {"Severe cardiomegaly."}),
        ("d", "There is a moderate sized hiatal hernia.", {"There is a small sized hiatal hernia."}),
        ("d", "There is a small 5 mm nodule in the lung.", set()),
        ("d", "Low lung volumes without large pleural effusion.", set()),
        ("d", "Air in loops of small and large bowel with scoliosis.", set()),
        ("e", "Small calcified granuloma.", {f"Small calcified granuloma, {UNCHANGED}."}),
        ("e", "There is mild eventration.", {f"There is mild eventration, {UNCHANGED}."}),
        ("e", "Mediastinal contours are stable and normal.", set()),
        ("f", "Note is made of an unchanged hiatal hernia.", {"Note is made of a hiatal hernia."}),
        ("f", "Once again noted is the right effusion.", {"There is right effusion."}),
        ("f", "Stable cardiomegaly and mediastinal contour.", set()),
        ("f", "Improved aeration of the left base since the prior exam.", set()),
        ("f", "Stable lucency in the right clavicle dating back to 2010.", set()),
        ("f", "Bone density is decreased.", set()),
        ("a", "No pneumothorax.", {f"{text}" for text in FINDINGS["pneumothorax"]}),
        ("a", "No large pleural effusion.", set()),
        ("a", "The lungs are hypoinflated without focal consolidation.", set()),
    ],
)
def test_errors_by_category(letter: CategoryLetter, sentence: str, candidates: set[str]) -> None:
    modified = {
        change.modified
        for seed in range(30)
        if (made := RuleInjector(seed=seed).inject("x", sentence, letter, 1))
        for change in made.changes
        if change.original
    }
    assert modified == candidates


@pytest.mark.parametrize(
    ("letter", "report"),
    [
        ("b", "Lungs are clear. No effusion."),
        ("b", "Both lungs are expanded. The mediastinum is stable. Heart size is at the upper limits of normal."),
        ("b", "There is stable cardiomegaly and mediastinal contour. Lungs are clear."),
        ("b", "There are low lung volumes. Lung volumes are low."),
        ("c", "No left effusion. Bilateral opacities."),
        ("c", "There is a right pleural effusion greater than left."),
        ("c", "Diffuse right-sided opacity with consolidation in the right lung."),
        ("c", "Opacities in the upper and lower lobes."),
        ("d", "Left effusion. No small nodule."),
        ("e", "Stable cardiomegaly."),
        ("f", "Left effusion. Heart size is stable."),
        ("a", ""),
        ("a", "Kein Pneumothorax. Das Herz ist normal groß. Kein Erguss."),
        ("a", "No pneumothorax. Corazón de tamaño normal."),
    ],
)
def test_a_report_without_an_opportunity_has_no_candidate(letter: CategoryLetter, report: str) -> None:
    assert RuleInjector().inject("x", report, letter, 1) is None


def test_an_unreadable_report_gets_no_mixed_errors() -> None:
    report = "Kein Pneumothorax. Das Herz ist normal groß. Kein Erguss."
    made = RuleInjector().inject_mixed("x", report, 3)
    assert (made.candidate, made.changes) == (report, ())


def test_abbreviations_in_denials_are_capitalized() -> None:
    report = "There is a right PICC. Lungs are clear."
    made = [RuleInjector(seed=seed).inject("x", report, "b", 1) for seed in range(20)]
    denials = {candidate.changes[0].modified for candidate in made if candidate}
    assert denials == {"No PICC.", None}


def test_added_findings_match_their_names_in_the_ontology() -> None:
    ontology = default_ontology()
    for finding, texts in FINDINGS.items():
        assert finding in ontology.findings
        for text in texts:
            assert any(f.present and ontology.is_a(f.concept, finding) for f in parse_facts(text)), text


def test_findings_that_another_sentence_denies_are_not_added() -> None:
    for seed in range(20):
        made = RuleInjector(seed=seed).inject("x", "No pneumothorax. The pleura shows no pneumothorax.", "a", 3)
        assert made is not None
        assert "apical pneumothorax" not in made.candidate


def test_a_finding_on_the_other_side_does_not_replace_a_normal_lung() -> None:
    report = "Left lung is clear. Small right effusion."
    candidates = [RuleInjector(seed=seed).inject("x", report, "a", 3) for seed in range(20)]
    changes = [change for candidate in candidates if candidate for change in candidate.changes]
    replacements = {change.modified for change in changes if change.original == "Left lung is clear"}
    assert replacements
    assert all("right" not in (text or "").lower() for text in replacements)


def test_a_borderline_heart_is_not_denied() -> None:
    report = "The heart is borderline enlarged. Lungs are clear."
    candidates = [RuleInjector(seed=seed).inject("x", report, "b", 1) for seed in range(20)]
    assert {candidate.changes[0].modified for candidate in candidates if candidate} == {None}


def test_a_finding_that_another_sentence_states_is_not_denied() -> None:
    report = "A nodule is present in the left lower lobe. Another nodule is present in the right upper lobe."
    candidates = [RuleInjector(seed=seed).inject("x", report, "b", 1) for seed in range(20)]
    assert {candidate.changes[0].modified for candidate in candidates if candidate} == {None}


def test_mixed_errors_change_a_sentence_once() -> None:
    report = " ".join(SENTENCES)
    made = RuleInjector(seed=2).inject_mixed("x", report, 5)
    assert len(made.changes) == 5
    originals = [change.original for change in made.changes if change.original]
    assert len(originals) == len(set(originals))
    assert sum(made.counts.values()) == 5


def test_labels_are_counts_by_category() -> None:
    made = RuleInjector().inject("x", "There is a small left effusion. Mild cardiomegaly.", "d", 2)
    assert isinstance(made, InjectedReport)
    assert made.counts == {"a": 0, "b": 0, "c": 0, "d": 2, "e": 0, "f": 0}


@pytest.mark.parametrize(
    ("phrase", "plural"), [("central emboli", True), ("prominent hili", True), ("free gas", False)]
)
def test_latin_plurals(phrase: str, plural: bool) -> None:
    assert is_plural(phrase.split()) is plural
