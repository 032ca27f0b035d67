"""Published variants of metrics: values from other libraries or from the definition, and names that tell them apart."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from metric_files import fixed_metric
from nltk.translate.bleu_score import corpus_bleu

from radfact.api import evaluate
from radfact.errors import ErrorCode, InputError
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


def test_bleu_2_of_rexrank_is_the_mean_of_the_reports() -> None:
    result = evaluate(REPORTS, "bleu_2", compat="rexrank")
    assert result.scores == {"bleu_2.rexrank": pytest.approx(sum(result.values["bleu_2.rexrank"]) / 2)}


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
    names = ["bleu_2", "rouge_l", "lateral_mentions"]
    assert set(evaluate(REPORTS, names, compat=["coco"], out=tmp_path).scores) >= {"bleu_2.coco", "rouge_l.coco"}
    metrics = read_json(tmp_path / "scores.json")["metrics"]
    assert {name: metrics[name]["variant"] for name in metrics} == {
        "bleu": "coco", "rouge_l": "coco", "lateral_mentions": None,
    }  # fmt: skip
    assert read_json(tmp_path / "run.json")["metrics"]["bleu"]["variant"] == "coco"
    assert "bleu_2.coco" in (tmp_path / "report.html").read_text("utf-8")


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
    parts = [fixed_metric("part", [1.0])] * 3
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
