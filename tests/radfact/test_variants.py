"""Published variants of metrics: values from other libraries or from the definition, and names that tell them apart."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from metric_files import write_wordnet
from nltk.translate.bleu_score import corpus_bleu

from radfact.api import evaluate
from radfact.errors import ErrorCode, InputError
from radfact.io.jsonl import read_json
from radfact.metrics.classical import ptb
from radfact.metrics.classical.bleu import CocoBleu, RadEvalBleu
from radfact.metrics.classical.meteor import HuggingFaceMeteor, Meteor
from radfact.metrics.classical.radcliq import InverseRadCliQ
from radfact.metrics.classical.rouge import CocoRougeL, RadEvalRougeL
from radfact.metrics.protocol import Metric, MetricResult
from radfact.metrics.registry import entries, expand_presets, select_metrics
from radfact.records import Pair, TextPair
from radfact.results.compare import compare

Run = Callable[..., tuple[int, str, str]]
PAIRS = [
    TextPair("1", "The heart is large. No pleural effusion.", "The heart is large; no pleural effusion is seen."),
    TextPair("2", "Lungs are clear bilaterally.", "The lungs are clear bilaterally."),
]


def dataset_values(metric: Metric, pairs: list[TextPair]) -> list[float]:
    return [score.value(score.counts.sum(axis=0)) for score in metric.score(pairs).pooled.values()]


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        # From Stanford's PTBTokenizer 3.4.1 with -lowerCase, without the punctuation that pycocoevalcap removes.
        (
            "No effusion (small). The CT. is 3.5 cm; size: 2 [x] \"ok\" patient's can't -- a.m.?",
            "no effusion -lrb- small -rrb- the ct. is 3.5 cm size 2 -lsb- x -rsb- ok patient 's ca n't a.m.",
        ),
        ("Ectasia/tortuosity and/or 5/6/2020.", "ectasia/tortuosity and/or 5/6/2020"),
        ("Cannot exclude.. Normal limits.The lungs", "can not exclude normal limits.the lungs"),
    ],
)
def test_tokens_are_those_of_the_penn_treebank_without_punctuation(text: str, tokens: str) -> None:
    assert ptb.tokenize(text) == tokens.split()


@pytest.mark.parametrize(
    ("metric", "tokens"),
    [
        (
            CocoBleu,
            [
                ("the heart is large no pleural effusion", "the heart is large no pleural effusion is seen"),
                ("lungs are clear bilaterally", "the lungs are clear bilaterally"),
            ],
        ),
        (RadEvalBleu, [(pair.candidate, pair.reference) for pair in PAIRS]),
    ],
)
def test_bleu_without_smoothing_is_that_of_nltk(metric: type[Metric], tokens: list[tuple[str, str]]) -> None:
    candidates, references = zip(*((left.split(), [right.split()]) for left, right in tokens), strict=True)
    orders = (1, 2, 3) if metric is RadEvalBleu else (1, 2, 3, 4)
    expected = [corpus_bleu(references, candidates, weights=[1 / order] * order) for order in orders]
    assert dataset_values(metric(), PAIRS)[: len(orders)] == pytest.approx(expected, rel=1e-6)


def test_bleu_without_a_common_word_is_close_to_zero_but_positive() -> None:
    result = RadEvalBleu().score([TextPair("1", "Clear lungs", "clear chest")])
    assert result.values["bleu_1.radeval"] == [pytest.approx(1e-15 / 2, rel=1e-6)]


@pytest.mark.parametrize(
    ("metric", "candidate", "reference", "expected"),
    [
        (RadEvalRougeL, "Pleural effusions", "pleural effusion", 1.0),
        # One common token: precision 1/4, recall 1/2, beta 1.2.
        (CocoRougeL, "The heart is large.", "Large heart.", 2.44 * 0.125 / (0.5 + 1.44 * 0.25)),
        (CocoRougeL, "Clear.", "", 0.0),
    ],
)
def test_rouge_l_of_the_variants(metric: type[Metric], candidate: str, reference: str, expected: float) -> None:
    (values,) = metric().score([TextPair("1", candidate, reference)]).values.values()
    assert values == [pytest.approx(expected)]


@pytest.mark.parametrize(
    ("metric", "matched", "candidate_length", "reference_length", "chunks"),
    [(Meteor, 4, 4, 5, 2), (HuggingFaceMeteor, 2, 2, 3, 2)],
)
def test_meteor_depends_on_the_tokens(
    metric: type[Meteor], matched: int, candidate_length: int, reference_length: int, chunks: int, tmp_path: Path
) -> None:
    """T-spine is three tokens or one; the full stop is apart in both."""
    (values,) = metric(write_wordnet(tmp_path)).score([TextPair("1", "T-spine.", "T-spine intact.")]).values.values()
    precision, recall = matched / candidate_length, matched / reference_length
    mean = precision * recall / (0.9 * precision + 0.1 * recall)
    assert values == [pytest.approx(mean * (1 - 0.5 * (chunks / matched) ** 3))]


class Part(Metric):
    def __init__(self, name: str, values: list[float]) -> None:
        self.name, self._values = name, values
        self.scores = {name: "higher"}

    def score(self, pairs: list[Pair]) -> MetricResult:
        return MetricResult({self.name: self._values[: len(pairs)]})


def test_inverse_radcliq_is_the_inverse_of_the_mean_of_the_scored_pairs() -> None:
    parts = [Part(name, [1.0, 0.0, math.nan]) for name in ("radgraph_f1", "bertscore", "chexbert_similarity")]
    pairs = [TextPair(str(index), "Clear lungs.", "Clear lungs.") for index in range(3)]
    metric = InverseRadCliQ(*parts)
    result = metric.score(pairs)
    values = [detail["radcliq_v1"] for detail in result.details]
    assert values[0] == pytest.approx(-1.44069, abs=1e-5)
    assert values[2] is None
    summary = metric.aggregate(result, list(metric.scores), replicates=0, seed=0)["radcliq_v1.inverse"]
    assert (summary.point, summary.n) == (pytest.approx(2 / (values[0] + values[1])), 2)


@pytest.mark.parametrize("entry", entries().values(), ids=lambda entry: entry.name)
def test_scores_of_variants_have_their_own_names(entry: Any) -> None:
    """RadFact keeps its names: the pages and the export know its scores by them."""
    for name, variant in ((name, variant.load()) for name, variant in entry.variants.items()):
        assert (variant.variant, variant.name) == (name, entry.name)
        assert variant.difference
        suffix = "" if entry.name == "radfact" else f".{name}"
        assert all(score.endswith(suffix) for score in variant.scores)
        assert set(variant.pooled) <= set(variant.scores)
        assert set(variant.main_scores) <= set(variant.scores)


def test_results_state_the_variant(tmp_path: Path) -> None:
    pairs = [Pair(pair.sample_id, pair.candidate, pair.reference) for pair in PAIRS]
    names = ["bleu_2", "rouge_l", "lateral_mentions"]
    assert set(evaluate(pairs, names, compat=["coco"], out=tmp_path).scores) >= {"bleu_2.coco", "rouge_l.coco"}
    metrics = read_json(tmp_path / "scores.json")["metrics"]
    assert {name: metrics[name]["variant"] for name in metrics} == {
        "bleu": "coco", "rouge_l": "coco", "lateral_mentions": None,
    }  # fmt: skip
    assert read_json(tmp_path / "run.json")["metrics"]["bleu"]["variant"] == "coco"
    assert "bleu_2.coco" in (tmp_path / "report.html").read_text("utf-8")


def test_scores_of_different_variants_are_not_compared(tmp_path: Path) -> None:
    pairs = [Pair(pair.sample_id, pair.candidate, pair.reference) for pair in PAIRS]
    for folder, compat in (("none", ()), ("coco", ["coco", "exact"]), ("again", ["coco", "exact"])):
        metrics = ["bleu", "rouge_l", "radfact"]
        evaluate(pairs, metrics, judge="offline", compat=compat, bootstrap=0, out=tmp_path / folder)
    comparison = compare([tmp_path / "none", tmp_path / "coco"], replicates=0, rounds=9)
    assert {name.partition("_")[0] for name in comparison.scores} == {"logical"}
    for metric, variant in (("bleu", "coco"), ("rouge_l", "coco"), ("radfact", "exact")):
        assert any(
            note.startswith(f"{metric}: the variant {variant} in coco, none in none") for note in comparison.notes
        )
    evaluate(pairs, "bleu", bootstrap=0, out=tmp_path / "bleu")
    with pytest.raises(InputError, match="have different variants of bleu"):
        compare([tmp_path / "bleu", tmp_path / "coco"], replicates=0, rounds=9)
    same = compare([tmp_path / "coco", tmp_path / "again"], replicates=0, rounds=9)
    assert same.scores["bleu_4.coco"][1].difference is not None
    assert not any("variant" in note for note in same.notes)


@pytest.mark.parametrize(
    ("metrics", "compat", "code"),
    [
        ("bleu", ["cocoa"], ErrorCode.UNKNOWN_NAME),
        ("bleu", ["rrg"], ErrorCode.CONFLICTING_OPTIONS),
        ("bleu", ["coco", "radeval"], ErrorCode.CONFLICTING_OPTIONS),
        (["bleu", "lateral_mentions"], ["coco", "radeval"], ErrorCode.CONFLICTING_OPTIONS),
        (["radcliq_v0", "bleu"], ["inverse"], ErrorCode.CONFLICTING_OPTIONS),
    ],
    ids=[
        *("unknown", "of no selected metric", "two of one metric", "two of one metric among others"),
        "without the selected score",
    ],
)
def test_a_variant_that_does_not_apply_is_refused(
    metrics: Any, compat: list[str], code: ErrorCode, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = [Part("part", [1.0])] * 3
    monkeypatch.setattr(InverseRadCliQ, "create", classmethod(lambda cls, _: cls(*parts)))
    monkeypatch.setattr("radfact.metrics.registry.Weights.find_all", lambda *_: [])
    with pytest.raises(InputError) as error:
        evaluate([Pair("1", "Clear.", "Clear.")], metrics, compat=compat)
    assert (error.value.code, error.value.field) == (code, "compat")


def test_variants_are_an_option_of_the_commands(run_radfact: Run) -> None:
    Path("pairs.csv").write_text("example_id,prediction,target\n1,Clear lungs.,The lungs are clear.\n")
    Path("run.yaml").write_text("compat: [coco]\n")
    code, out, _ = run_radfact("evaluate", "pairs.csv", "--metrics", "bleu", "--config", "run.yaml", "--out", "r")
    assert (code, "bleu_4.coco ↑" in out) == (0, True)
    assert read_json("r/run.json")["options"]["variants"] == ["coco"]
    code, out, _ = run_radfact("evaluate", "pairs.csv", "--metrics", "bleu", "--compat", "radeval", "--out", "r")
    assert "r holds scores with variants ['coco']" in out
    code, _, err = run_radfact("evaluate", "pairs.csv", "--metrics", "bleu", "--compat", "cocoa", "--out", "r")
    assert (code, "--compat: unknown variant 'cocoa'; did you mean 'coco'?" in err) == (2, True)
    assert "variant --compat coco" in run_radfact("metrics")[1]


def test_bleu_2_of_rexrank_is_the_mean_of_the_reports() -> None:
    """Values of fast-bleu 0.0.90; on 400 pairs of IU-Xray, both differ by at most 2e-16."""
    values = [0.5580303566223722, 0.8187307530779819]
    result = evaluate(
        [Pair(pair.sample_id, pair.candidate, pair.reference) for pair in PAIRS], "bleu_2", compat="rexrank"
    )
    assert list(result.values["bleu_2.rexrank"]) == pytest.approx(values)
    assert result.scores == {"bleu_2.rexrank": pytest.approx(sum(values) / 2)}


def test_the_preset_of_rexrank_selects_its_metrics_in_its_variants(run_radfact: Run) -> None:
    Path("pairs.csv").write_text("example_id,prediction,target\n1,Clear lungs.,The lungs are clear.\n")
    assert run_radfact("evaluate", "pairs.csv", "--metrics", "rexrank,rouge_l", "--out", "r")[0] == 3
    results = read_json("r/scores.json")
    assert set(results["scores"]) == {"bleu_2.rexrank", "rouge_l"}
    assert set(results["unavailable"]) == {"bertscore", "chexbert", "radgraph", "radcliq", "ratescore", "green"}
    assert all("weights fetch" in why or "--judge" in why for why in results["unavailable"].values())
    options = read_json("r/run.json")["options"]
    assert options["variants"] == ["rexrank", "inverse"]
    assert "radcliq_v1" in options["metrics"]
    assert "rexrank: preset" in run_radfact("metrics")[1]


def test_the_preset_of_rexrank_gives_the_scores_of_its_table() -> None:
    names, compat = expand_presets(["rexrank", "rouge_l"], "rrg")
    assert compat == ("rrg", "rexrank", "inverse")
    scores = []
    for selection in select_metrics(names, compat[1:]):
        scores += selection.select(selection.entry.load())
    # GREEN comes with its counts.
    assert [score for score in scores if not score.startswith("green_")] == [
        *("bleu_2.rexrank", "bertscore", "chexbert_similarity", "radgraph_f1", "radcliq_v1.inverse"),
        *("ratescore.rexrank", "green", "rouge_l"),
    ]
