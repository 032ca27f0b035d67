"""The offline splitter: what it splits, what it removes, and that no stated finding is lost."""

from __future__ import annotations

import re
import tarfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from radfact.entailment.facts import parse
from radfact.entailment.ontology import default_ontology
from radfact.sentences import split_narrative

REPORTS = Path(__file__).resolve().parents[2].parent / "shared" / "data" / "openi" / "NLMCXR_reports.tgz"


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("No pneumothorax or pleural effusion.", ["No pneumothorax.", "No pleural effusion."]),
        (
            "No nodule, effusion, or pneumothorax is seen.",
            ["No nodule is seen.", "No effusion is seen.", "No pneumothorax is seen."],
        ),
        (
            "The cardiac size and pulmonary vessels are normal.",
            ["The cardiac size is normal.", "The pulmonary vessels are normal."],
        ),
        ("Lungs are clear and well expanded.", ["Lungs are clear.", "Lungs are well expanded."]),
        ("Lungs are hyperinflated without consolidation.", ["Lungs are hyperinflated.", "No consolidation."]),
        (
            "There is severe cardiomegaly and a small right effusion.",
            ["There is severe cardiomegaly.", "There is a small right effusion."],
        ),
        (
            "Atelectasis and effusion at the left base have increased.",
            ["Atelectasis at the left base has increased.", "Effusion at the left base has increased."],
        ),
        ("The heart is large, but the lungs are clear.", ["The heart is large.", "The lungs are clear."]),
        ("A nodule of 1.2 cm in the left upper lobe.", ["A nodule of 1.2 cm in the left upper lobe."]),
        ("1. Heart normal. 2. No effusion.", ["Heart normal.", "No effusion."]),
        ("- Heart normal\n- No effusion", ["Heart normal.", "No effusion."]),
        ("Heart normal per Dr. Smith. No effusion.", ["Heart normal per Dr. Smith.", "No effusion."]),
        ("Lungs: Clear.", ["Lungs: Clear."]),
        ("Lungs and pleura: No effusion.", ["No effusion."]),
        ("Left basal scarring or atelectasis.", ["Left basal scarring or atelectasis."]),
        ("", []),
        (" . ", []),
    ],
)
def test_splitting(text: str, sentences: list[str]) -> None:
    assert split_narrative(text) == sentences


@pytest.mark.parametrize(
    "removed",
    [
        "PA and lateral views of the chest were obtained.",
        "Portable supine radiograph.",
        "Recommend CT of the chest to exclude a nodule.",
        "Follow-up radiograph is advised.",
        "Comparison is made with the film of last week.",
        "This may represent pneumonia.",
        "Lung volumes are low.",
    ],
)
def test_what_is_no_finding_is_removed(removed: str) -> None:
    assert split_narrative(f"The heart is enlarged. {removed}") == ["The heart is enlarged."]


def test_interpretation_is_cut_from_what_it_interprets() -> None:
    assert split_narrative("Left basal opacity, which may represent pneumonia.") == ["Left basal opacity."]


@pytest.mark.parametrize("text", ["The left effusion has increased.", "Unchanged cardiomegaly.", "New right nodule."])
def test_change_is_kept(text: str) -> None:
    assert split_narrative(text) == [text]


def test_an_uncertain_finding_is_no_speculation() -> None:
    assert split_narrative("Possible small left effusion.") == ["Possible small left effusion."]


def stated(texts: list[str]) -> set[tuple[str, bool]]:
    """Certain findings of the ontology; low volumes count as technique (paper 004, listing 1)."""
    known = default_ontology().findings.keys() - {"low_lung_volumes"}
    facts = (fact for text in texts for fact in parse(text).facts)
    return {(fact.concept, fact.present) for fact in facts if fact.concept in known and not fact.possible}


findings = st.sampled_from(
    ["effusion", "consolidation", "a small nodule", "pneumothorax", "left atelectasis", "cardiomegaly", "edema"]
)
lists = st.lists(findings, min_size=1, max_size=4).map(lambda f: " and ".join(filter(None, [", ".join(f[:-1]), f[-1]])))
clauses = st.builds(
    lambda pattern, items: pattern.format(items),
    st.sampled_from(
        ["There is {}", "No {}", "There is no evidence of {}", "{} in the right lung", "The lungs show {}"]
    ),
    lists,
)
narratives = st.lists(
    st.builds("{}{}{}.".format, clauses, st.sampled_from([" with ", ", ", " and ", " without ", "; ", ". "]), clauses),
    min_size=1,
    max_size=3,
)


@given(narratives)
def test_no_stated_finding_is_lost(sentences: list[str]) -> None:
    assert stated(split_narrative(" ".join(sentences))) >= stated(sentences)


@given(narratives)
def test_splitting_what_is_split_changes_nothing(sentences: list[str]) -> None:
    once = split_narrative(" ".join(sentences))
    assert [part for sentence in once for part in split_narrative(sentence)] == once


@given(st.text(max_size=200))
def test_any_text_is_split_into_sentences_with_words(text: str) -> None:
    assert all(re.search(r"\w", sentence) for sentence in split_narrative(text))


@pytest.mark.skipif(not REPORTS.exists(), reason="the Open-i reports are not here")
def test_open_i_reports_keep_their_findings() -> None:
    """In 300 real reports at most one stated finding in a hundred goes (recommendations, interpretation)."""
    total = lost = 0
    with tarfile.open(REPORTS) as archive:
        for member in [m for m in archive.getmembers() if m.name.endswith(".xml")][:300]:
            handle = archive.extractfile(member)
            assert handle is not None
            found = re.search(r'<AbstractText Label="FINDINGS">([^<]+)<', handle.read().decode("utf-8"))
            if found is None:
                continue
            before = stated(re.split(r"(?<=\.)\s+", found[1]))
            total += len(before)
            lost += len(before - stated(split_narrative(found[1])))
    assert total > 1000
    assert lost <= total // 33
