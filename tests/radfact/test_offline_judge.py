"""The offline judge: labeled judgments, invariants, accuracy, its ontology, and what it reads (`reading.yaml`)."""

import copy
import json
import re
from collections.abc import Callable, Sequence
from functools import reduce
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import yaml
from error_checks import raises
from hypothesis import given
from hypothesis import strategies as st

from radfact.findings.offline import OfflineFindingExtractor
from radfact.io.jsonl import read_json
from radfact.judges import EntailmentQuery, Judge, Verdict, default_splitter, load_judge, split_narrative
from radfact.judges.check import check_judge, load_labeled_queries
from radfact.judges.offline import MEASURED, OfflineJudge
from radfact.judges.offline_splitter import explain_split
from radfact.judges.protocol import RemovedText, locate_removed
from radfact.reader import tokens
from radfact.reader.entailment_rules import EntailmentChecker
from radfact.reader.facts import Fact, parse_sentence, parse_text
from radfact.reader.ontology_file import DEFAULT_PATH, default_ontology, load_ontology
from radfact.reader.reasons import describe_fact

PUBLISHED = Path(__file__).resolve().parents[2].parent / "shared" / "data" / "radfact" / "nli_few_shot_examples.json"
JUDGMENTS: dict[str, list[Any]] = yaml.safe_load(Path(__file__).with_name("judgements.yaml").read_text("utf-8"))
DATA: dict[str, Any] = yaml.safe_load(DEFAULT_PATH.read_text("utf-8"))
JUDGE = OfflineJudge()

FINDINGS = (
    "pleural effusion, consolidation, nodule, mass, pneumothorax, cardiomegaly, atelectasis, pulmonary oedema, "
    "rib fracture, central venous catheter, endotracheal tube, nasogastric tube, pacemaker, hyperinflation, "
    "elevated hemidiaphragm, hiatal hernia, increased interstitial markings, emphysema"
)
findings = st.sampled_from(FINDINGS.split(", "))
sides = st.sampled_from(["", "left ", "right ", "bilateral "])
degrees = st.sampled_from(["", "tiny ", "small ", "moderate ", "severe "])
changes = st.sampled_from(["", "new ", "unchanged ", "worsening ", "improved "])
statements = st.builds(lambda c, d, s, f: f"{c}{d}{s}{f}.".capitalize(), changes, degrees, sides, findings)
GERMAN = "Das Herz ist normal groß. Kein Pleuraerguss. Die Lunge ist frei belüftet. Unauffälliges Mediastinum."
CASES: dict[str, dict[str, list[Any]]] = yaml.safe_load(Path(__file__).with_name("reading.yaml").read_text("utf-8"))
INVALID: list[list[Any]] = yaml.safe_load(Path(__file__).with_name("invalid_ontology.yaml").read_text("utf-8"))


def judge(premises: list[str], hypothesis: str) -> Verdict:
    return JUDGE.judge_one(EntailmentQuery(tuple(premises), hypothesis))


@pytest.mark.parametrize(
    ("premises", "hypothesis", "evidence"),
    [pytest.param(*case, id=f"{group}-{i}") for group, cases in JUDGMENTS.items() for i, case in enumerate(cases)],
)
def test_labeled_judgments(premises: list[str], hypothesis: str, evidence: list[int]) -> None:
    verdict = judge(premises, hypothesis)
    assert verdict.status == ("entailment" if evidence else "not_entailment"), verdict.why
    assert not evidence or list(verdict.evidence) == evidence


@given(statements)
def test_a_sentence_entails_itself_whatever_its_case_and_punctuation(sentence: str) -> None:
    assert judge([sentence], sentence).evidence == (0,)
    assert judge([sentence.upper()], sentence.rstrip(".")).status == "entailment"


@given(statements, findings, st.sampled_from(["possible ", "probable "]))
def test_a_finding_is_neither_absent_nor_certain_if_it_is_possible(sentence: str, finding: str, doubt: str) -> None:
    assert judge([sentence], f"No {finding}.").status == "not_entailment"
    assert judge([f"{doubt}{sentence}"], sentence).status == "not_entailment"
    assert judge([f"No {finding}."], sentence).status == "not_entailment" or finding not in sentence.lower()


@given(statements, statements, st.lists(statements, max_size=3))
def test_additional_premises_keep_an_entailment(premise: str, hypothesis: str, more: list[str]) -> None:
    if judge([premise], hypothesis).status == "entailment":
        assert judge([premise, *more], hypothesis).status == "entailment"


@given(st.lists(statements, max_size=4), statements)
def test_an_entailment_has_evidence_among_the_premises(premises: list[str], hypothesis: str) -> None:
    verdict = judge(premises, hypothesis)
    assert (verdict.relation == "neutral") != bool(verdict.evidence)
    assert set(verdict.evidence) <= set(range(len(premises)))


@given(st.lists(st.text(max_size=60), max_size=3), st.text(max_size=60))
def test_any_text_has_a_verdict_and_a_reason(premises: list[str], hypothesis: str) -> None:
    assert judge(premises, hypothesis).why


@given(findings, st.sampled_from(["left", "right"]))
def test_the_other_side_is_never_entailed(finding: str, side: str) -> None:
    node = default_ontology().findings[parse_sentence(f"{finding}.").facts[0].concept]
    if node.midline:
        return
    other = "right" if side == "left" else "left"
    assert judge([f"{other} {finding}."], f"{side} {finding}.").status == "not_entailment"


def test_no_reason_has_an_id_of_the_ontology() -> None:
    ontology = default_ontology()
    ids = {name for name in ontology.terms if "_" in name}
    places = tuple((side, zone) for side in ("left", "each", None) for zone in (None, *ontology.zone_wholes))
    details, changes = frozenset(ontology.implications), frozenset(DATA["change"])
    degrees = [frozenset(levels) for size in range(5) for levels in combinations(range(5), size)]
    checker = EntailmentChecker(ontology)
    for number, finding in enumerate(ontology.findings):
        # Each finding has an eighth of the degrees and of the exceptions, which all have a turn.
        claims = [Fact(finding, present=True, severity=degree) for degree in (frozenset(), *degrees[number % 8 :: 8])]
        claims += [
            Fact(finding, present, places, frozenset({2}), changes, details, (3.5,)) for present in (True, False)
        ]
        others = [*ontology.findings][number % 8 :: 8]
        claims += [Fact(finding, False, exceptions=frozenset({other, "*"})) for other in others]
        reasons = [describe_fact(claim, ontology) for claim in claims]
        premises: list[Any] = [(frozenset({index}), claim) for index, claim in enumerate([claims[0], *claims[-2:]])]
        reasons += [checker.check(claim, premises[:n])[1] for claim in claims[:12] for n in (0, 1, 2, 3)]
        assert not [reason for reason in reasons if re.search(r"_|'|degree \d|level \d", reason)]
        assert not ids.intersection(word for reason in reasons for word in reason.split())


@pytest.mark.parametrize(
    ("name", "path", "contradictions", "wrong"),
    [
        pytest.param(
            *("the 67 published few-shot examples (version 5 was tuned on them)", PUBLISHED, (13, 16), 1),
            marks=pytest.mark.skipif(not PUBLISHED.exists(), reason="the published few-shot file is not here"),
        ),
        ("the labeled judgments of this package", None, (40, 44), 0),
    ],
)
def test_the_documented_accuracy_is_the_measured_accuracy(
    name: str, path: Path | None, contradictions: tuple[int, int], wrong: int
) -> None:
    measured = check_judge(JUDGE, load_labeled_queries(path))
    stated = MEASURED[name]
    assert (measured.n, round(measured.accuracy, 3), round(measured.f1 or 0, 3)) == tuple(stated.values())
    assert f"{measured.accuracy:.1%} on {name}" in JUDGE.describe()["note"]
    assert stated["accuracy"] >= 0.97
    outcomes = measured.relations["contradiction"]
    assert (outcomes["contradiction"], sum(outcomes.values())) == contradictions
    assert sum(measured.relations[label].get("contradiction", 0) for label in ("neutral", "entailment")) == wrong


def test_a_sentence_is_parsed_once() -> None:
    queries = [EntailmentQuery(tuple(p), h) for cases in JUDGMENTS.values() for p, h, _ in cases]
    parse_sentence.cache_clear()
    parse_text.cache_clear()
    JUDGE.judge(queries * 2)
    sentences = {sentence for query in queries for sentence in (*query.premises, query.hypothesis)}
    assert parse_text.cache_info().misses <= len(sentences)


def test_words_can_be_added_to_a_copy_of_the_ontology(tmp_path: Path) -> None:
    copy = tmp_path / "ontology.yaml"
    copy.write_text(DEFAULT_PATH.read_text("utf-8").replace("names: [cavity, ", "names: [cavity, wotsit, "), "utf-8")
    query = EntailmentQuery(("There is a wotsit in the right upper lobe.",), "Cavity in the right lung.")
    assert JUDGE.judge_one(query).status == "not_entailment"
    judge = load_judge("offline", judge_args={"ontology": str(copy)})
    assert isinstance(judge, Judge)
    [verdict] = judge.judge([query])
    assert isinstance(verdict, Verdict)
    assert verdict.status == "entailment"
    described = judge.describe()
    assert default_splitter(judge).describe()["ontology_sha256"] == described["ontology_sha256"]
    assert described["ontology_sha256"] != default_ontology().sha256
    assert "not comparable with RadFact-Llama3" in described["note"]
    assert not any(load_judge("offline").usage().values())


def test_reports_in_another_language_get_a_warning(run_radfact: Callable[..., tuple[int, str, str]]) -> None:
    def run(text: str) -> tuple[str, dict[str, Any]]:
        Path("pairs.csv").write_text(f"example_id,prediction,target\n1,{text},{text}\n", encoding="utf-8")
        code, out, _ = run_radfact("score", "pairs.csv", "--judge", "offline", "--bootstrap", "0", "--out", "out")
        assert code == 0
        return " ".join(out.split()), read_json(Path("out/scores.json"))

    output, scores = run(GERMAN)
    assert "8 of 8 sentences without a known finding" in output
    assert scores["counts"]["unread_sentences"] == 8
    output, _ = run("The heart is large. No pleural effusion. Kein Erguss.")
    assert "without a known finding" not in output
    output, scores = run("heart normal lungs clear no effusion")
    assert "1 of 1 narratives have no sentence marks" in output
    assert scores["counts"]["narratives_without_marks"] == 1


def cases(table: str) -> list[Any]:
    return [
        pytest.param(*case, id=f"{group}: {i}") for group, rows in CASES[table].items() for i, case in enumerate(rows)
    ]


def facts(sentence: str) -> dict[str, Fact]:
    return {fact.concept: fact for fact in parse_sentence(sentence).facts}


def state(sentence: str, concept: str) -> str:
    """Present, uncertain or absent, whatever is stated most firmly; unsaid without a statement."""
    found = [fact for fact in parse_sentence(sentence).facts if default_ontology().is_a(fact.concept, concept)]
    states = {
        "absent" if not fact.present else "uncertain" if fact.doubt > tokens.CONCLUDED else "present" for fact in found
    }
    return next((name for name in ("present", "uncertain", "absent") if name in states), "unsaid")


READERS: dict[str, Callable[..., Any]] = {
    "splits": split_narrative,
    "states": state,
    "layouts": lambda report, *texts: [t for t in texts if judge(split_narrative(report), t).relation == "entailment"],
    "groups": lambda sentence: len(parse_sentence(sentence).groups),
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
    status = {hypothesis: judge([premise], hypothesis).status for hypothesis in [*entailed, *not_entailed]}
    assert status == {**dict.fromkeys(entailed, "entailment"), **dict.fromkeys(not_entailed, "not_entailment")}


def test_no_doubtful_sentence_entails_its_denial() -> None:
    ontology = default_ontology()
    wrong = []
    for sentence, concept, reading in (row for rows in CASES["states"].values() for row in rows):
        denial, extraction = f"No {ontology.terms[concept]}.", OfflineFindingExtractor().extract([sentence])[0]
        denied = {fact.concept for fact in extraction if fact.status == "absent"} if reading == "uncertain" else set()
        verdicts = [judge([sentence], denial), judge(split_narrative(sentence), denial), judge([denial], sentence)]
        if reading != "absent" and (concept in denied or any(verdict.status == "entailment" for verdict in verdicts)):
            wrong.append(sentence)
    assert wrong == []


@pytest.mark.parametrize(("premises", "hypothesis", "relation", "evidence"), cases("relations"))
def test_relations(premises: list[str], hypothesis: str, relation: str | None, evidence: list[int]) -> None:
    verdict = judge(premises, hypothesis)
    assert (verdict.status == "entailment") == (relation == "entailment")
    assert relation is None or verdict.relation == relation
    assert list(verdict.evidence) == evidence
    assert ("which contradicts" in (verdict.why or "")) == (relation == "contradiction")


@pytest.mark.parametrize(("sentence", "concept", "doubt"), cases("doubts"))
def test_doubts(sentence: str, concept: str, doubt: str) -> None:
    assert facts(sentence)[concept].doubt == getattr(tokens, doubt)


def test_unparsed_words_are_named() -> None:
    parsed = parse_sentence("Wotsits in the gubbins of the left lung, 6th rib nodule.")
    assert parsed.unread_words == {"wotsit"}
    assert parsed.required_words == {"gubbin", "6"}


@pytest.mark.parametrize(("premise", "hypothesis", "why"), cases("reasons"))
def test_reasons(premise: str, hypothesis: str, why: str) -> None:
    assert (judge([premise], hypothesis).why or "").endswith(why)


@pytest.mark.parametrize(("narrative", "kept", "removed", "reason"), cases("removed"))
def test_removed_text(narrative: str, kept: str, removed: str, reason: str) -> None:
    split = explain_split(narrative)
    assert " ".join(single for sentence in split for single in sentence.new) == kept
    assert [text for sentence in split for text in sentence.removed] == [RemovedText(removed, reason)]
    assert ". ".join(sentence.orig for sentence in split) == narrative.rstrip(".")


def test_every_name_means_its_finding() -> None:
    ontology = default_ontology()
    wrong = [
        (finding, name)
        for finding, node in DATA["findings"].items()
        for name in node.get("names", [])
        if not any(ontology.is_a(fact.concept, finding) for fact in parse_sentence(f"There is {name}.").facts)
    ]
    assert wrong == []


@pytest.mark.parametrize(("edited", "error", "value"), [(edited, error, value) for edited, error, *value in INVALID])
def test_a_wrong_field_is_named(tmp_path: Path, edited: list[Any], error: str, value: list[Any]) -> None:
    data = copy.deepcopy(DATA)
    *path, key = edited
    node = reduce(lambda node, key: node[key], path, data)
    if value:
        [node[key]] = value
    else:
        del node[key]
    file = tmp_path / "ontology.yaml"
    file.write_text(json.dumps(data))  # Written faster than as YAML, of which it is a part.
    with raises(f"ontology.yaml: {error}"):
        load_ontology(file)
