"""Sentences read into facts: what a sentence claims, and of which finding each word speaks."""

from __future__ import annotations

import pytest

from radfact.reader.facts import Fact, parse_sentence
from radfact.reader.tokens import CERTAIN, CONCLUDED, POSSIBLE, PROBABLE


def facts(sentence: str) -> dict[str, Fact]:
    return {fact.concept: fact for fact in parse_sentence(sentence).facts}


@pytest.mark.parametrize(
    ("sentence", "present"),
    [
        ("No effusion or pneumothorax.", {"pleural_effusion": False, "pneumothorax": False}),
        ("Neither effusion nor pneumothorax is seen.", {"pleural_effusion": False, "pneumothorax": False}),
        ("No pneumothorax, stable cardiomegaly.", {"pneumothorax": False, "cardiomegaly": True}),
        ("No pneumothorax with small effusion.", {"pneumothorax": False, "pleural_effusion": True}),
        ("The lungs are clear of consolidation.", {"consolidation": False}),
        ("The heart is not enlarged and is of normal size.", {"cardiomegaly": False}),
        ("No opacity concerning for pneumonia.", {"pneumonia": False}),
        ("The tip of the endotracheal tube is not seen.", {"endotracheal_tube": True}),
        ("The endotracheal tube should be withdrawn.", {"endotracheal_tube": True}),
        ("The patient has been extubated.", {"endotracheal_tube": False}),
        ("Bones show no acute abnormality.", {"acute_osseous_abnormality": False}),
    ],
)
def test_presence(sentence: str, present: dict[str, bool]) -> None:
    assert {concept: fact.present for concept, fact in facts(sentence).items()} == present


@pytest.mark.parametrize(
    ("sentence", "concept", "doubt"),
    [
        ("Left basal pneumonia.", "pneumonia", CERTAIN),
        ("Opacity consistent with pneumonia.", "pneumonia", CONCLUDED),
        ("Opacity likely due to atelectasis.", "atelectasis", PROBABLE),
        ("Opacity likely due to atelectasis.", "opacity", CERTAIN),
        ("Opacity, which may represent pneumonia.", "pneumonia", POSSIBLE),
        ("A small effusion cannot be excluded.", "pleural_effusion", POSSIBLE),
        ("A new opacity, and infection should be considered.", "opacity", CERTAIN),
        ("Pleural effusion, if any, is small.", "pleural_effusion", POSSIBLE),
    ],
)
def test_possibility(sentence: str, concept: str, doubt: int) -> None:
    assert facts(sentence)[concept].doubt == doubt


@pytest.mark.parametrize(
    ("sentence", "concept", "places"),
    [
        ("Opacities in the lung bases likely reflect atelectasis.", "opacity", {("each", "lower")}),
        ("Opacities in the lung bases likely reflect atelectasis.", "atelectasis", {("each", "lower")}),
        ("Left basilar atelectasis and effusion.", "pleural_effusion", {("left", "lower")}),
        ("Small left effusion with adjacent atelectasis.", "atelectasis", {("left", None)}),
        ("Right upper and lower lobe opacities.", "opacity", {("right", "upper"), ("right", "lower")}),
        ("The patient is rotated to the left. There is a nodule.", "nodule", set()),
        ("Complete collapse of the right upper lobe.", "collapse", {("right", "upper")}),
    ],
)
def test_locations(sentence: str, concept: str, places: set[tuple[str | None, str | None]]) -> None:
    assert set(facts(sentence)[concept].places) == places


def test_each_side_has_its_own_degree() -> None:
    found = parse_sentence("Large right and small left pleural effusions.").facts
    assert {(fact.places, max(fact.severity)) for fact in found} == {((("right", None),), 4), ((("left", None),), 2)}


@pytest.mark.parametrize("sentence", ["Slightly worse pulmonary edema.", "Pulmonary edema has improved markedly."])
def test_the_degree_of_a_change_is_not_that_of_the_finding(sentence: str) -> None:
    assert facts(sentence)["edema"].severity == frozenset()


@pytest.mark.parametrize(
    ("sentence", "concept"),
    [
        ("Fracture of the left sixth and seventh ribs.", "rib_fracture"),
        ("Fluid in the left pleural space.", "pleural_effusion"),
        ("Calcified nodule.", "granuloma"),
        ("Atelectasis, linear, at the left base.", "linear_atelectasis"),
        ("Right internal jugular central venous line.", "jugular_catheter"),
    ],
)
def test_a_general_name_is_replaced_by_the_specific_one(sentence: str, concept: str) -> None:
    assert set(facts(sentence)) == {concept}


def test_exceptions_of_a_normal_statement() -> None:
    assert facts("Lungs are clear except for atelectasis.")["parenchymal_abnormality"].exceptions == {"atelectasis"}


def test_a_whole_study_is_unchanged() -> None:
    assert "unchanged" in facts("As compared to the previous radiograph, there is no relevant change.")["chest"].change


def test_alternatives_form_one_group_unless_each_is_possible() -> None:
    assert len(parse_sentence("Scarring or atelectasis.").groups) == 1
    assert len(parse_sentence("This may represent scarring or atelectasis.").groups) == 2


def test_unparsed_words_are_named() -> None:
    parsed = parse_sentence("Wotsits in the gubbins of the left lung, 6th rib nodule.")
    assert parsed.unread_words == {"wotsit"}
    assert parsed.required_words == {"gubbin", "6"}
