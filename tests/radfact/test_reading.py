"""What the offline judge and splitter read: the cases of `reading.yaml`, and what does not fit its tables."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from radfact.judges import EntailmentQuery, Verdict, split_narrative
from radfact.judges.offline import OfflineJudge
from radfact.judges.offline_splitter import explain_split
from radfact.judges.protocol import RemovedText, locate_removed
from radfact.reader import tokens
from radfact.reader.facts import Fact, parse_sentence

CASES: dict[str, dict[str, list[Any]]] = yaml.safe_load(Path(__file__).with_name("reading.yaml").read_text("utf-8"))
JUDGE = OfflineJudge()


def cases(table: str) -> list[Any]:
    return [
        pytest.param(*case, id=f"{group}: {i}") for group, rows in CASES[table].items() for i, case in enumerate(rows)
    ]


def judge(*premises: str, hypothesis: str) -> Verdict:
    return JUDGE.judge_one(EntailmentQuery(premises, hypothesis))


def facts(sentence: str) -> dict[str, Fact]:
    return {fact.concept: fact for fact in parse_sentence(sentence).facts}


READERS: dict[str, Callable[..., Any]] = {
    "splits": split_narrative,
    "facts": lambda sentence: {concept: fact.present for concept, fact in facts(sentence).items()},
    "places": lambda sentence, concept: sorted(map(list, facts(sentence)[concept].places), key=str),
    "details": lambda sentence, concept, field: sorted(getattr(facts(sentence)[concept], field)),
    "positions": lambda narrative: [
        narrative[text.start : text.end] for text in locate_removed(narrative, explain_split(narrative))
    ],
}


@pytest.mark.parametrize(
    ("table", "case"),
    [pytest.param(table, case.values, id=f"{table}-{case.id}") for table in READERS for case in cases(table)],
)
def test_texts_are_read(table: str, case: Sequence[Any]) -> None:
    *arguments, expected = case
    assert READERS[table](*arguments) == expected


@pytest.mark.parametrize(("premise", "entailed", "not_entailed"), cases("entailment"))
def test_entailment(premise: str, entailed: list[str], not_entailed: list[str]) -> None:
    status = {hypothesis: judge(premise, hypothesis=hypothesis).status for hypothesis in [*entailed, *not_entailed]}
    assert status == {**dict.fromkeys(entailed, "entailment"), **dict.fromkeys(not_entailed, "not_entailment")}


@pytest.mark.parametrize(("premises", "hypothesis", "relation", "evidence"), cases("relations"))
def test_relations(premises: list[str], hypothesis: str, relation: str | None, evidence: list[int]) -> None:
    verdict = judge(*premises, hypothesis=hypothesis)
    assert (verdict.status == "entailment") == (relation == "entailment")
    assert relation is None or verdict.relation == relation
    assert list(verdict.evidence) == evidence
    assert ("which contradicts" in (verdict.why or "")) == (relation == "contradiction")


@pytest.mark.parametrize(("sentence", "concept", "doubt"), cases("doubts"))
def test_doubts(sentence: str, concept: str, doubt: str) -> None:
    assert facts(sentence)[concept].doubt == getattr(tokens, doubt)


def test_an_unchanged_structure_keeps_its_change() -> None:
    changes = {concept: "unchanged" in fact.change for concept, fact in facts("Stable heart size, new mass.").items()}
    assert changes == {"heart": True, "mass": False}
    assert "unchanged" in facts("As compared to the previous radiograph, there is no relevant change.")["chest"].change


def test_each_side_has_its_own_degree() -> None:
    found = parse_sentence("Large right and small left pleural effusions.").facts
    assert {(fact.places, max(fact.severity)) for fact in found} == {((("right", None),), 4), ((("left", None),), 2)}


def test_alternatives_form_one_group_unless_each_is_possible() -> None:
    assert len(parse_sentence("Scarring or atelectasis.").groups) == 1
    assert len(parse_sentence("This may represent scarring or atelectasis.").groups) == 2


def test_unparsed_words_are_named() -> None:
    parsed = parse_sentence("Wotsits in the gubbins of the left lung, 6th rib nodule.")
    assert parsed.unread_words == {"wotsit"}
    assert parsed.required_words == {"gubbin", "6"}


@pytest.mark.parametrize(("premise", "hypothesis", "why"), cases("reasons"))
def test_reasons(premise: str, hypothesis: str, why: str) -> None:
    assert (judge(premise, hypothesis=hypothesis).why or "").endswith(why)


@pytest.mark.parametrize(("narrative", "kept", "removed", "reason"), cases("removed"))
def test_removed_text(narrative: str, kept: str, removed: str, reason: str) -> None:
    split = explain_split(narrative)
    assert " ".join(single for sentence in split for single in sentence.new) == kept
    assert [text for sentence in split for text in sentence.removed] == [RemovedText(removed, reason)]
    assert ". ".join(sentence.orig for sentence in split) == narrative.rstrip(".")
