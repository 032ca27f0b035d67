"""Published variants of metrics: values from other libraries or from the definition, and names that tell them apart."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from error_checks import raises
from metric_files import fixed_metric
from nltk.translate.bleu_score import corpus_bleu

from radfact.api import evaluate
from radfact.errors import InputError
from radfact.io.jsonl import read_json
from radfact.metrics.classical.bleu import CocoBleu, RadEvalBleu
from radfact.metrics.classical.radcliq import InverseRadCliQ
from radfact.metrics.protocol import Metric
from radfact.metrics.registry import entries, expand_presets, select_metrics
from radfact.records import Pair, TextPair
from radfact.results.compare import compare

Run = Callable[..., tuple[int, str, str]]
PAIRS = [
    TextPair("1", "The heart is large. No pleural effusion.", "The heart is large; no pleural effusion is seen."),
    TextPair("2", "Lungs are clear bilaterally.", "The lungs are clear bilaterally."),
]
REPORTS = [Pair(pair.sample_id, pair.candidate, pair.reference) for pair in PAIRS]


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
    pooled = list(metric().score(PAIRS).pooled.values())[: len(orders)]
    assert [score.value(score.counts.sum(axis=0)) for score in pooled] == pytest.approx(expected, rel=1e-6)


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


def test_scores_of_different_variants_are_not_compared(tmp_path: Path) -> None:
    for folder, compat in (("none", ()), ("coco", ["coco", "exact"]), ("again", ["coco", "exact"])):
        metrics = ["bleu", "rouge_l", "radfact"]
        evaluate(REPORTS, metrics, judge="offline", compat=compat, bootstrap=0, out=tmp_path / folder)
    comparison = compare([tmp_path / "none", tmp_path / "coco"], replicates=0, rounds=9)
    assert {name.partition("_")[0] for name in comparison.scores} == {"logical"}
    for metric, variant in (("bleu", "coco"), ("rouge_l", "coco"), ("radfact", "exact")):
        assert any(
            note.startswith(f"{metric}: the variant {variant} in coco, none in none") for note in comparison.notes
        )
    evaluate(REPORTS, "bleu", bootstrap=0, out=tmp_path / "bleu")
    with pytest.raises(InputError, match="have different variants of bleu"):
        compare([tmp_path / "bleu", tmp_path / "coco"], replicates=0, rounds=9)
    same = compare([tmp_path / "coco", tmp_path / "again"], replicates=0, rounds=9)
    assert same.scores["bleu_4.coco"][1].difference is not None
    assert not any("variant" in note for note in same.notes)


@pytest.mark.parametrize(
    ("metrics", "compat", "error"),
    [
        ("bleu", ["cocoa"], "compat: unknown-name"),
        ("bleu", ["rrg"], "compat: conflicting-options"),
        ("bleu", ["coco", "radeval"], "compat: conflicting-options"),
        (["bleu", "lateral_mentions"], ["coco", "radeval"], "compat: conflicting-options"),
        (["radcliq_v0", "bleu"], ["inverse"], "compat: conflicting-options"),
    ],
    ids=[
        *("unknown", "of no selected metric", "two of one metric", "two of one metric among others"),
        "without the selected score",
    ],
)
def test_a_variant_that_does_not_apply_is_refused(
    metrics: Any, compat: list[str], error: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = [fixed_metric("part", [1.0])] * 3
    monkeypatch.setattr(InverseRadCliQ, "create", classmethod(lambda cls, _: cls(*parts)))
    monkeypatch.setattr("radfact.metrics.registry.Weights.find_all", lambda *_: [])
    with raises(error):
        evaluate(REPORTS, metrics, compat=compat)


def test_variants_are_an_option_of_the_commands(run_radfact: Run) -> None:
    Path("pairs.csv").write_text("example_id,prediction,target\n1,Clear lungs.,The lungs are clear.\n")
    Path("run.yaml").write_text("compat: [coco]\n")
    command = ("evaluate", "pairs.csv", "--out", "r", "--metrics")
    code, out, _ = run_radfact(*command, "bleu_2,rouge_l,lateral_mentions", "--config", "run.yaml")
    assert (code, "bleu_2.coco ↑" in out) == (0, True)
    results, record = read_json("r/scores.json"), read_json("r/run.json")
    assert set(results["scores"]) >= {"bleu_2.coco", "rouge_l.coco"}
    variants = {"bleu": "coco", "rouge_l": "coco", "lateral_mentions": None}
    assert {name: metric["variant"] for name, metric in results["metrics"].items()} == variants
    assert (record["options"]["variants"], record["metrics"]["bleu"]["variant"]) == (["coco"], "coco")
    assert "bleu_2.coco" in Path("r/report.html").read_text("utf-8")
    code, out, _ = run_radfact(*command, "bleu", "--compat", "radeval")
    assert "variants ['coco']" in out
    code, _, err = run_radfact(*command, "bleu", "--compat", "cocoa")
    assert (code, "--compat: unknown variant 'cocoa'; did you mean 'coco'?" in err) == (2, True)
    assert "variant --compat coco" in run_radfact("metrics")[1]


def test_the_preset_of_rexrank_selects_its_metrics_in_its_variants(run_radfact: Run) -> None:
    rows = (f"{report.sample_id},{report.candidate},{report.reference}\n" for report in REPORTS)
    Path("pairs.csv").write_text("example_id,prediction,target\n" + "".join(rows))
    assert run_radfact("evaluate", "pairs.csv", "--metrics", "rexrank,rouge_l", "--out", "r")[0] == 3
    results = read_json("r/scores.json")
    assert set(results["scores"]) == {"bleu_2.rexrank", "rouge_l"}
    # BLEU-2 is the mean of the reports; values of fast-bleu 0.0.90.
    bleu = results["scores"]["bleu_2.rexrank"]["point"]
    assert bleu == pytest.approx((0.5580303566223722 + 0.8187307530779819) / 2)
    assert set(results["unavailable"]) == {"bertscore", "chexbert", "radgraph", "radcliq", "ratescore", "green"}
    assert all("weights fetch" in why or "--judge" in why for why in results["unavailable"].values())
    options = read_json("r/run.json")["options"]
    assert options["variants"] == ["rexrank", "inverse"]
    assert "radcliq_v1" in options["metrics"]
    assert "rexrank: preset" in run_radfact("metrics")[1]
    names, compat = expand_presets(["rexrank", "rouge_l"], "rrg")
    assert compat == ("rrg", "rexrank", "inverse")
    selections = select_metrics(names, compat[1:])
    scores = [score for selection in selections for score in selection.select(selection.entry.load())]
    # GREEN comes with its counts.
    assert [score for score in scores if not score.startswith("green_")] == [
        *("bleu_2.rexrank", "bertscore", "chexbert_similarity", "radgraph_f1", "radcliq_v1.inverse"),
        *("ratescore.rexrank", "green", "rouge_l"),
    ]
