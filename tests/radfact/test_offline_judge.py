"""The offline judge: labelled judgements, invariants of entailment, and its accuracy on the published examples."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from radfact.entailment import Judge, Question, Verdict, load_judge
from radfact.entailment.facts import parse
from radfact.entailment.llm import load_few_shots
from radfact.entailment.offline import OfflineJudge
from radfact.entailment.ontology import default_ontology
from radfact.errors import InputError

PUBLISHED = Path(__file__).resolve().parents[2].parent / "shared" / "data" / "radfact" / "nli_few_shot_examples.json"
JUDGEMENTS: dict[str, list[Any]] = yaml.safe_load(Path(__file__).with_name("judgements.yaml").read_text("utf-8"))
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
    return JUDGE.answer(Question(tuple(premises), hypothesis))


@pytest.mark.parametrize(
    ("premises", "hypothesis", "evidence"),
    [pytest.param(*case, id=f"{group}-{i}") for group, cases in JUDGEMENTS.items() for i, case in enumerate(cases)],
)
def test_labelled_judgements(premises: list[str], hypothesis: str, evidence: list[int]) -> None:
    verdict = judge(premises, hypothesis)
    assert (verdict.status, list(verdict.evidence)) == ("entailment" if evidence else "not_entailment", evidence), (
        verdict.why
    )


@given(statements)
def test_a_sentence_entails_itself(sentence: str) -> None:
    assert judge([sentence], sentence).evidence == (0,)


@given(statements, findings)
def test_what_is_present_is_not_absent(sentence: str, finding: str) -> None:
    assert judge([sentence], f"No {finding}.").status == "not_entailment"


@given(statements, statements, st.lists(statements, max_size=3))
def test_more_premises_never_take_an_entailment_away(premise: str, hypothesis: str, more: list[str]) -> None:
    if judge([premise], hypothesis).status == "entailment":
        assert judge([premise, *more], hypothesis).status == "entailment"


@given(st.lists(statements, max_size=4), statements)
def test_an_entailment_has_evidence_among_the_premises(premises: list[str], hypothesis: str) -> None:
    verdict = judge(premises, hypothesis)
    assert (verdict.status == "entailment") == bool(verdict.evidence)
    assert set(verdict.evidence) <= set(range(len(premises)))


@given(st.lists(st.text(max_size=60), max_size=3), st.text(max_size=60))
def test_any_text_gets_a_verdict_with_its_reason(premises: list[str], hypothesis: str) -> None:
    assert judge(premises, hypothesis).why


@given(findings, st.sampled_from(["left", "right"]))
def test_the_other_side_is_never_entailed(finding: str, side: str) -> None:
    concept = parse(f"{finding}.").facts[0].concept
    if default_ontology().findings[concept].midline:
        return
    other = "right" if side == "left" else "left"
    assert judge([f"{other} {finding}."], f"{side} {finding}.").status == "not_entailment"


def test_the_reason_names_rule_and_terms() -> None:
    assert judge(["Small left effusion."], "Left pleural effusion.").why == "pleural effusion (left): same finding"
    assert judge(["Left nodule."], "Left lung opacity.").why == "opacity (left): follows from nodule"
    assert "contradicted by cardiomegaly" in (judge(["Cardiomegaly."], "Heart size is normal.").why or "")


def test_a_sentence_without_known_findings_says_so() -> None:
    assert "no known finding" in (judge(["Nipple rings."], "Nipple rings.").why or "")


@pytest.mark.skipif(not PUBLISHED.exists(), reason="the published few-shot file is not here")
def test_accuracy_on_the_published_examples() -> None:
    """66 of 67 (98.5 %): the one missed calls an infiltrate an interstitial marking."""
    shots = load_few_shots(PUBLISHED)
    right = sum(judge(list(shot.reference), shot.phrase).status == shot.status for shot in shots)
    assert right / len(shots) >= 0.98


def test_two_thousand_judgements_take_less_than_a_second_of_processor_time() -> None:
    questions = [Question(tuple(p), h) for cases in JUDGEMENTS.values() for p, h, _ in cases]
    questions = (questions * (2000 // len(questions) + 1))[:2000]
    start = time.process_time()
    JUDGE.judge(questions)
    assert time.process_time() - start < 1.0


def test_it_follows_the_protocol_of_judges() -> None:
    offline = load_judge("offline")
    assert isinstance(offline, Judge)
    described = offline.describe()
    assert (described["name"], described["ontology_sha256"]) == ("offline", default_ontology().sha256)
    assert "not comparable with RadFact-Llama3" in described["note"]
    assert set(offline.account()) >= {"calls", "tokens_in", "tokens_out", "repairs", "failures", "cached"}


def test_it_takes_no_server() -> None:
    with pytest.raises(InputError, match="asks no server"):
        load_judge("offline", base_url="http://localhost:8000/v1")


def test_it_imports_no_language_model_package() -> None:
    code = (
        "import sys; from radfact.entailment import load_judge, Question;"
        "load_judge('offline').judge([Question(('No nodule.',), 'No nodule.')]);"
        "print(sorted({'langchain_core', 'langchain_openai', 'openai', 'torch', 'transformers'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
