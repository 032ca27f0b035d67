"""The offline splitter: what it divides, what it removes, and that no stated finding is lost."""

import difflib
import json
import re
import tarfile
from collections.abc import Iterable, Iterator
from html import unescape
from pathlib import Path

import pytest
from call_counts import count_calls
from hypothesis import given
from hypothesis import strategies as st

from radfact.judges import EntailmentQuery, Splitter, load_splitter, split_narrative
from radfact.judges.offline import OfflineJudge, count_unread
from radfact.judges.offline_splitter import OfflineSplitter, _split_sentence, explain_split
from radfact.reader import segmentation
from radfact.reader.facts import parse_sentence, parse_text
from radfact.reader.ontology_file import default_ontology
from radfact.reader.segmentation import segment_sentences

DATA = Path(__file__).resolve().parents[2].parent / "shared" / "data"
REPORTS = DATA / "openi" / "NLMCXR_reports.tgz"
PUBLISHED = DATA / "radfact" / "report_to_phrases_few_shot_examples.json"
findings = st.sampled_from(
    ["effusion", "consolidation", "a small nodule", "pneumothorax", "left atelectasis", "cardiomegaly", "edema"]
)
things = findings | st.sampled_from(["widgetosis", "gadgetal lines", "a XXXX"])
AGREEING = {"is", "are", "was", "were", "has", "have", "show", "shows", "no"}
LOOPS = {
    "absent": ("No ", "effusion in the left lung of {} mm", ", "),
    "present": ("", "there is a small left effusion of {} mm", " and "),
    "states": ("", "the heart is normal and the lungs have a nodule of {} mm", ", "),
    "attached": ("The lungs are clear", " without effusion with a nodule of {} mm", ""),
}


def test_the_splitter_follows_the_protocol_of_splitters() -> None:
    splitter = OfflineSplitter()
    assert isinstance(splitter, Splitter)
    assert splitter.split(["No nodule or mass.", ""]) == [["No nodule.", "No mass."], []]
    assert not any(splitter.usage().values())
    described = json.loads(json.dumps(splitter.describe()))
    assert described["ontology_sha256"] == default_ontology().sha256
    assert "not comparable" in described["note"]


def stated(texts: Iterable[str]) -> set[tuple[str, bool]]:
    """Certain findings of the ontology; low volumes count as technique (MAIRA-2, listing 1)."""
    findings = default_ontology().findings
    facts = (fact for text in texts for fact in parse_sentence(text).facts)
    stated = {(fact.concept, fact.present) for fact in facts if fact.concept in findings and not fact.doubt}
    for name, node in findings.items():
        if node.exhaustive and stated.issuperset((part, False) for part in node.exhaustive):
            stated.add((name, False))
    return {fact for fact in stated if fact[0] != "low_lung_volumes"}


def listed(members: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    some = st.lists(members, min_size=1, max_size=4)
    return some.map(lambda names: " and ".join(filter(None, [", ".join(names[:-1]), names[-1]])))


def narratives_of(members: st.SearchStrategy[str]) -> st.SearchStrategy[list[str]]:
    patterns = ["There is {}", "No {}", "There is no evidence of {}", "{} in the right lung", "The lungs show {}"]
    patterns += ["{} are seen", "Stable {} with a port", "Lungs: {}"]
    clauses = st.builds(lambda pattern, items: str(pattern).format(items), st.sampled_from(patterns), listed(members))
    joints = st.sampled_from([" with ", ", ", " and ", " without ", "; ", ". ", ", but "])
    return st.lists(st.builds("{}{}{}.".format, clauses, joints, clauses), min_size=1, max_size=3)


@given(narratives_of(findings))
def test_no_stated_finding_is_lost(sentences: list[str]) -> None:
    before = stated(re.split(r"(?<=\.)\s+", " ".join(sentences)))
    assert stated(split_narrative(" ".join(sentences))) >= before


@given(narratives_of(things))
def test_splitting_is_idempotent(sentences: list[str]) -> None:
    once = split_narrative(" ".join(sentences))
    assert [part for sentence in once for part in split_narrative(sentence)] == once


@given(narratives_of(things))
def test_every_word_comes_from_the_sentence(sentences: list[str]) -> None:
    for division in explain_split(" ".join(sentences)):
        words = set(re.findall(r"\w+", " ".join(division.new).lower()))
        assert words <= set(re.findall(r"\w+", division.orig.lower())) | AGREEING


@given(st.permutations(["cardiomegaly", "edema", "pneumothorax", "widgetosis"]))
def test_reading_order_is_kept(members: list[str]) -> None:
    listed = f"No {', '.join(members[:-1])}, or {members[-1]}."
    assert split_narrative(listed) == [f"No {member}." for member in members]


@given(st.text(max_size=200))
def test_any_text_is_split_into_sentences_with_words(text: str) -> None:
    assert all(re.search(r"\w", sentence) for sentence in split_narrative(text))


@pytest.mark.skipif(not PUBLISHED.exists(), reason="the published splitting examples are not here")
def test_decisions_agree_with_the_published_examples() -> None:
    """The nine published examples (46 sentences): as many parts in nine of ten, and nearly the same words."""
    examples = json.loads(PUBLISHED.read_text(encoding="utf-8"))
    sentences = [sentence for example in examples for sentence in example["parsed_report"]["sentence_list"]]
    agreed, similar = 0, list[float]()
    for sentence in sentences:
        pair = [text for text in sentence["new"] if text], split_narrative(sentence["orig"])
        if len(pair[0]) == len(pair[1]):
            agreed += 1
            for texts in zip(*pair, strict=True):
                words = [re.findall(r"[\w.]+", text.lower().rstrip(".")) for text in texts]
                similar.append(difflib.SequenceMatcher(None, *words).ratio())
    assert agreed / len(sentences) >= 0.9
    assert sum(similar) / len(similar) >= 0.95


def open_i(count: int) -> Iterator[str]:
    """The findings sections among the first reports of the archive."""
    with tarfile.open(REPORTS) as archive:
        for member in [m for m in archive.getmembers() if m.name.endswith(".xml")][:count]:
            handle = archive.extractfile(member)
            assert handle is not None
            section = re.search(r'<AbstractText Label="FINDINGS">([^<]+)<', handle.read().decode("utf-8"))
            if section is not None:
                yield unescape(section[1])


@pytest.mark.skipif(not REPORTS.exists(), reason="the Open-i reports are not here")
@pytest.mark.slow
def test_open_i_reports_keep_their_findings() -> None:
    """Of the findings stated in real reports at most one in a hundred goes (with recommendations, interpretation)."""
    divisions = [division for text in open_i(500) for division in explain_split(text)]
    before = [stated([division.orig]) for division in divisions]
    lost = [found - stated(division.new) for found, division in zip(before, divisions, strict=True)]
    assert sum(map(len, before)) > 1500
    assert sum(map(len, lost)) <= sum(map(len, before)) // 100


@pytest.mark.skipif(not REPORTS.exists(), reason="the Open-i reports are not here")
def test_splitting_open_i_sentences_is_idempotent() -> None:
    sentences = {sentence for text in open_i(500) for sentence in split_narrative(text)}
    assert [sentence for sentence in sentences if split_narrative(sentence) != [sentence]] == []


def looping_sentence(loop: str, items: int) -> str:
    lead, item, joint = LOOPS[loop]
    return lead + joint.join(item.format(number) for number in range(items)) + "."


def calls_to_split(text: str) -> int:
    parse_sentence.cache_clear()
    parse_text.cache_clear()
    _split_sentence.cache_clear()
    default_ontology()  # read once
    return count_calls(lambda: explain_split(text))


@pytest.mark.parametrize("loop", LOOPS)
def test_the_work_on_a_sentence_is_linear_in_its_length(loop: str) -> None:
    short, long = (looping_sentence(loop, items) for items in (20, 60))
    assert len(split_narrative(long)) >= 60
    # 3 to 4 if the work is linear (the first words have less context), 9 if it is quadratic.
    assert calls_to_split(long) < 6 * calls_to_split(short)


@pytest.mark.parametrize("loop", LOOPS)
def test_a_sentence_beyond_the_longest_is_kept_whole_and_not_read(loop: str) -> None:
    sentence = looping_sentence(loop, 5000)
    assert calls_to_split(sentence) < calls_to_split(looping_sentence(loop, 20))
    assert split_narrative(sentence) == [sentence[:1].upper() + sentence[1:]]
    assert not parse_sentence(sentence).facts
    verdict = OfflineJudge().judge_one(EntailmentQuery((sentence, "Small left effusion."), sentence))
    assert verdict.status == "not_entailment"
    assert count_unread([verdict.why]) == 1


@pytest.mark.parametrize("unit", [".", "\n", "Dr. ", "at 3 p.m. ", "A. ", "opacity of\n", "opacity\n"])
def test_the_work_of_segmentation_is_linear_in_the_length_of_a_text(unit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    lengths: list[int] = []
    is_abbreviation = segmentation._is_abbreviation

    def record(*texts: str) -> bool:
        lengths.append(sum(map(len, texts)))
        return is_abbreviation(*texts)

    monkeypatch.setattr(segmentation, "_is_abbreviation", record)

    def segment(count: int) -> int:
        """Return the number of calls and of the characters that are copied to recognize abbreviations."""
        lengths.clear()
        return count_calls(lambda: list(segment_sentences(unit * count))) + sum(lengths)

    # 8 if the work is linear, 64 if it is quadratic.
    assert segment(4_000) < 24 * segment(500)


@pytest.mark.parametrize("text", ["given " + "x" * 500, "Effusion" + "; it has increased" * 200])
def test_repeated_words_take_no_exponential_time_or_deep_recursion(text: str) -> None:
    assert calls_to_split(text) < 100_000


def test_interpretations_can_be_kept() -> None:
    narrative = "Left base opacity, which may represent pneumonia. Two views."
    splitter = load_splitter("offline", splitter_args={"keep_interpretations": "true"})
    assert splitter.split([narrative]) == [["Left base opacity, which may represent pneumonia."]]
    assert splitter.describe()["keep_interpretations"]
    assert load_splitter("offline").split([narrative]) == [["Left base opacity."]]
