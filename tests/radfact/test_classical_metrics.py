"""The classical metrics have the values of the libraries and settings that the papers use."""

import math
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from metric_files import fixed_metric, write_wordnet

from radfact.api import evaluate
from radfact.errors import ErrorCode, Failure, InputError
from radfact.languages import normalize_characters
from radfact.llm import ChatClient, MockChatModel, mock_client
from radfact.metrics.classical import chexbert, ptb, radgraph
from radfact.metrics.classical.bleu import Bleu
from radfact.metrics.classical.chexbert import CLASSES, FIVE, CheXbert, RrgCheXbert
from radfact.metrics.classical.lateral_mentions import mentions_lateral
from radfact.metrics.classical.meteor import Meteor
from radfact.metrics.classical.radcliq import V0, V1, InverseRadCliQ, RadCliQ, Regression
from radfact.metrics.classical.radgraph import Graph, RadGraph
from radfact.metrics.llm.comparison_mentions import ComparisonMentions
from radfact.records import CHEST_XRAY, Pair, Sentence, TextPair

CASES: dict[str, Any] = yaml.safe_load(Path(__file__).with_name("metric_values.yaml").read_text("utf-8"))

words = st.lists(st.sampled_from(["the", "heart", "is", "large", "no", "effusion", "."]), max_size=12).map(" ".join)
GRAPHS: dict[str, Graph] = {
    name: {
        "entities": {
            str(number): {"tokens": text, "label": f"{kind}::definitely present", "relations": relations}
            for number, (text, kind, relations) in entities.items()
        }
    }
    for name, entities in CASES["graphs"].items()
}


def pair(candidate: str, reference: str, sample_id: str = "1") -> TextPair:
    return TextPair(sample_id, candidate, reference)


@pytest.fixture(scope="module")
def wordnet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_wordnet(tmp_path_factory.mktemp("wordnet"))


@pytest.mark.parametrize(
    ("name", "candidate", "reference", "expected"),
    [(name, *case) for name, cases in CASES["scores"].items() for case in cases],
)
def test_a_pair_has_known_scores(name: str, candidate: str, reference: str, expected: float, wordnet: Path) -> None:
    score, _, variant = name.partition(".")
    options = {"compat": variant or (), "weights": {"wordnet": wordnet}, "bootstrap": 0}
    pairs = [Pair("1", candidate, reference), Pair("2", "Clear.", "Clear.")]
    value, _ = evaluate(pairs, score, **options).values[name]
    # The documentation of NLTK has four digits.
    assert value == pytest.approx(expected, rel=1e-6, abs=5e-5 if score == "meteor" else 0, nan_ok=True)


def test_copies_are_compared_in_plain_characters_and_kept_as_they_are(wordnet: Path) -> None:
    pairs = [Pair(str(index), copied, plain) for index, (plain, copied) in enumerate(CASES["equal_texts"])]
    result = evaluate([*pairs, Pair("empty", "...", "")], ["rouge_l", "bleu_2", "meteor"], weights={"wordnet": wordnet})
    for name, most in (("rouge_l", 1.0), ("bleu_2", 100.0)):
        assert {result.scores[name], *result.values[name][:-1]} == {most}
    assert [normalize_characters(pair.candidate) for pair in pairs] == [pair.reference for pair in pairs]
    assert [normalize_characters(other) == plain for plain, other in CASES["unequal_texts"]] == [False] * 5
    plain = "Left-sided pneumothorax. The heart is diffusely enlarged. No effusion."
    copy = "Left-\nsided pneumo\u00adthorax.\u00a0The heart is di\ufb00usely en\u200blarged. No effu-\nsion."
    read = evaluate([Pair("1", copy, plain), Pair("2", plain, copy)], ["radfact", "findings"], judge="offline").scores
    assert [read[name] for name in ("logical_f1", "findings", "findings_f1")] == [1.0] * 3
    assert [run.result.failures for run in result.runs.values()] == [{len(pairs): "both reports are empty"}] * 3


@pytest.mark.parametrize(("text", "tokens"), CASES["tokens"])
def test_tokens_are_those_of_the_penn_treebank_without_punctuation(text: str, tokens: str) -> None:
    assert ptb.tokenize(text) == tokens.split()


@pytest.mark.parametrize(("response", "expected"), CASES["detections"])
def test_a_response_is_the_word_yes_or_no_or_begins_with_it(response: str, expected: bool | None) -> None:
    result = ComparisonMentions(mock_client(response)).detect([("Heart is large.", CHEST_XRAY)])[0][0]
    assert (None if isinstance(result, Failure) else result) is expected


@settings(deadline=None, max_examples=50)
@given(words, words)
def test_bleu_of_sentences_and_of_a_corpus_is_that_of_sacrebleu(candidate: str, reference: str) -> None:
    from sacrebleu.metrics.bleu import BLEU

    texts = [
        [candidate, "There is a small left pleural effusion."],
        [reference, "Small left effusion. No pneumothorax."],
    ]
    result = Bleu().score([pair(*own, str(index)) for index, own in enumerate(zip(*texts, strict=True))])
    for order in (1, 2, 3, 4):
        library = BLEU(lowercase=True, max_ngram_order=order, effective_order=True)
        expected = library.sentence_score(candidate, [reference]).score
        assert result.values[f"bleu_{order}"][0] == pytest.approx(expected, abs=1e-9)
        score = result.pooled[f"bleu_{order}"]
        expected = BLEU(lowercase=True, max_ngram_order=order).corpus_score(texts[0], [texts[1]]).score
        assert score.value(score.counts.sum(axis=0)) == pytest.approx(expected, abs=1e-9)


def test_meteor_with_the_whole_wordnet() -> None:
    folder = Path("/usr/share/wordnet")
    if not (folder / "data.noun").is_file():
        pytest.skip("needs the package wordnet-base")
    values = Meteor(folder).score([pair(*texts) for *texts, _ in CASES["wordnet"]]).values["meteor"]
    assert values == pytest.approx([expected for *_, expected in CASES["wordnet"]], abs=5e-5)


def test_wordnet_needs_no_names_of_lexicographer_files_but_its_data(wordnet: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError) as error:
        Meteor(tmp_path)
    assert (error.value.code, error.value.file) == (ErrorCode.INVALID_FORMAT, tmp_path.resolve())
    (write_wordnet(tmp_path) / "lexnames").unlink()
    scores = [Meteor(folder).score([pair("clear chest", "clear bosom")]).values for folder in (wordnet, tmp_path)]
    assert scores == [{"meteor": [0.9375]}] * 2


@pytest.mark.parametrize(("version", "regression"), [("v0", V0), ("v1", V1)])
@pytest.mark.parametrize("place", range(4))
def test_radcliq_changes_with_each_input_as_published(version: str, regression: Regression, place: int) -> None:
    at_zero, slopes = CASES["radcliq"][version]
    # So large that no digit of the smallest slope is lost.
    step = 1e12
    none, changed = regression.predict(np.stack([np.zeros(4), np.eye(4)[place] * step]))
    assert none == pytest.approx(at_zero, rel=1e-14, abs=0)
    assert (changed - none) / step == pytest.approx(float(slopes[place]), rel=1e-13, abs=0)


def test_radcliq_combines_its_parts_and_bleu_2() -> None:
    names = ("radgraph_f1", "bertscore", "chexbert_similarity")
    parts = [fixed_metric(name, [1.0, 1.0, 0.0, math.nan if name == "bertscore" else 1.0]) for name in names]
    texts = ["Clear lungs.", "x y", "Clear lungs.", "Clear lungs."]
    pairs = [pair(text, "Clear lungs.", str(index)) for index, text in enumerate(texts)]
    result = RadCliQ(*parts).score(pairs)
    # A different BLEU-2 changes version 0 by its coefficient alone.
    change = 0.2165861905287535 / 0.30336670936092264
    assert result.values["radcliq_v0"][:2] == pytest.approx([-0.24213, -0.24213 - change], abs=1e-5)
    version1 = result.values["radcliq_v1"]
    assert version1[0] == pytest.approx(-1.44069, abs=1e-5)
    assert math.isnan(version1[3])
    # The inverse of the mean of the scored pairs.
    metric = InverseRadCliQ(*parts)
    inverse = metric.score(pairs)
    assert [detail["radcliq_v1"] for detail in inverse.details] == [*version1[:3], None]
    summary = metric.aggregate(inverse, list(metric.scores), replicates=0, seed=0)["radcliq_v1.inverse"]
    assert (summary.point, summary.n) == (pytest.approx(3 / sum(version1[:3])), 3)


@pytest.mark.parametrize(("candidate", "reference", "expected"), CASES["rewards"])
def test_rewards_of_hand_made_graphs(candidate: str, reference: str, expected: list[float]) -> None:
    assert radgraph.score_graphs(GRAPHS[candidate], GRAPHS[reference]) == pytest.approx(expected)


def test_radgraph_annotates_each_text_once_in_lower_case() -> None:
    annotated: list[str] = []

    def annotate(texts: list[str]) -> list[Graph]:
        annotated.extend(texts)
        return [GRAPHS["left"] for _ in texts]

    metric = RadGraph(annotate)
    result = metric.score([pair("Left EFFUSION.", "left effusion."), pair("", "Left effusion.", "2")])
    assert annotated == ["left effusion."]
    assert result.values["rg_er"] == [1.0, 0.0]
    assert result.details[0]["candidate"][0] == "effusion (Observation::definitely present; located_at left)"


@pytest.mark.parametrize(("metric", "suffix"), [(CheXbert, ""), (CheXbert, "_plus"), (RrgCheXbert, ".rrg")])
def test_findings_score_as_in_scikit_learn(
    metric: type[CheXbert], suffix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sklearn = pytest.importorskip("sklearn.metrics")
    labels = np.random.default_rng(7).integers(0, 4, size=(2, 40, 14))
    labels[:, :, CLASSES.index("No Finding")] %= 2
    # No report has a fracture; all references have support devices.
    labels[:, :, CLASSES.index("Fracture")] = 2
    labels[1, :, CLASSES.index("Support Devices")] = 1
    # Labels of the candidates, then those of the references.
    labeler = Mock(label=Mock(side_effect=[(table, np.ones((40, 2))) for table in labels]))
    monkeypatch.setattr(chexbert, "Labeler", lambda _: labeler)
    pooled = metric(Path()).score([pair("a", "b", str(index)) for index in range(40)]).pooled
    values = {name: score.value(score.counts.sum(axis=0)) for name, score in pooled.items()}
    # 1 is positive and 3 uncertain.
    candidate, reference = (np.isin(table, (1, 3) if suffix else (1,)) for table in labels)
    averages = ("macro", "micro", "weighted") if metric is RrgCheXbert else ("macro", "micro")
    for number, classes in ((14, CLASSES), (5, FIVE)):
        columns = list(map(CLASSES.index, classes))
        for average in averages:
            expected = sklearn.f1_score(reference[:, columns], candidate[:, columns], average=average, zero_division=0)
            assert values.pop(f"chexbert_{average}_f1_{number}{suffix}") == pytest.approx(expected)
    if suffix == "_plus":
        return
    missing = {"average": None, "zero_division": np.nan}
    expected_scores = {
        "f1": sklearn.f1_score(reference, candidate, **missing),
        "recall": sklearn.recall_score(reference, candidate, **missing),
        "specificity": sklearn.recall_score(~reference, ~candidate, **missing),
    }
    for kind in ("f1",) if suffix else expected_scores:
        names = [f"chexbert_{kind}_{name.lower().replace(' ', '_')}{suffix}" for name in CLASSES]
        assert [values.pop(name) for name in names] == pytest.approx(list(expected_scores[kind]), nan_ok=True)
    assert all(name.endswith("_plus") for name in values)


def test_comparison_mentions_score_both_reports() -> None:
    responses = {"Unchanged heart.": "**Yes**", "Clear lungs.": "No."}
    model = MockChatModel(lambda text: responses.get(text, "It may be yes or no."))
    pairs = [pair("Unchanged heart.", "Clear lungs."), pair("", "Clear lungs.", "2"), pair("Odd.", "Clear lungs.", "3")]
    result = ComparisonMentions(ChatClient(model, {})).score(pairs)
    assert result.values["comparison_mentions"] == pytest.approx([1.0, 0.0, math.nan], nan_ok=True)
    assert result.values["comparison_mentions_reference"] == [0.0, 0.0, 0.0]
    assert list(result.failures) == [2]
    assert {messages[1][1] for messages in model.calls} == {"Clear lungs.", "Odd.", "Unchanged heart."}


def test_a_lateral_view_is_mentioned_within_one_sentence() -> None:
    assert mentions_lateral([Sentence(text="Clear."), Sentence(text="Seen on the lateral view.")])
    assert not mentions_lateral([Sentence(text="Seen from frontal and"), Sentence(text="lateral parts.")])
