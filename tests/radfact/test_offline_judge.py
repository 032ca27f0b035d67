"""The offline judge: labeled judgments, invariants of entailment, and its accuracy on the published examples."""

import re
from collections.abc import Callable
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from radfact.io.jsonl import read_json
from radfact.judges import EntailmentQuery, Judge, Verdict, default_splitter, load_judge
from radfact.judges.check import check_judge, load_labeled_queries
from radfact.judges.offline import MEASURED, OfflineJudge
from radfact.reader.entailment_rules import EntailmentChecker
from radfact.reader.facts import Fact, parse_sentence, parse_text
from radfact.reader.ontology_file import DEFAULT_PATH, default_ontology
from radfact.reader.reasons import describe_fact

PUBLISHED = Path(__file__).resolve().parents[2].parent / "shared" / "data" / "radfact" / "nli_few_shot_examples.json"
JUDGMENTS: dict[str, list[Any]] = yaml.safe_load(Path(__file__).with_name("judgements.yaml").read_text("utf-8"))
DATA: dict[str, Any] = yaml.safe_load(DEFAULT_PATH.read_text("utf-8"))
JUDGE = OfflineJudge()

findings = st.sampled_from(
    [
        "pleural effusion", "consolidation", "nodule", "mass", "pneumothorax", "cardiomegaly", "atelectasis",
        "pulmonary oedema", "rib fracture", "central venous catheter", "endotracheal tube", "nasogastric tube",
        "pacemaker", "hyperinflation", "elevated hemidiaphragm", "hiatal hernia", "increased interstitial markings",
        "emphysema",
    ]
)  # fmt: skip
sides = st.sampled_from(["", "left ", "right ", "bilateral "])
degrees = st.sampled_from(["", "tiny ", "small ", "moderate ", "severe "])
changes = st.sampled_from(["", "new ", "unchanged ", "worsening ", "improved "])
statements = st.builds(lambda c, d, s, f: f"{c}{d}{s}{f}.".capitalize(), changes, degrees, sides, findings)


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
        ("the labeled judgments of this package", None, (40, 44), 2),
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


GERMAN = "Das Herz ist normal groß. Kein Pleuraerguss. Die Lunge ist frei belüftet. Unauffälliges Mediastinum."


def test_reports_in_another_language_get_a_warning(run_radfact: Callable[..., tuple[int, str, str]]) -> None:
    def run(text: str) -> tuple[str, dict[str, Any]]:
        Path("pairs.csv").write_text(f"example_id,prediction,target\n1,{text},{text}\n", encoding="utf-8")
        code, out, _ = run_radfact("score", "pairs.csv", "--judge", "offline", "--bootstrap", "0", "--out", "out")
        assert code == 0
        return " ".join(out.split()), read_json(Path("out/scores.json"))

    output, scores = run(GERMAN)
    assert "8 of 8 sentences name no known finding" in output
    assert scores["counts"]["unread_sentences"] == 8
    output, _ = run("The heart is large. No pleural effusion. Kein Erguss.")
    assert "name no known finding" not in output
