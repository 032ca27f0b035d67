import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from error_checks import raises

from radfact.api import RadFact
from radfact.errors import InputError
from radfact.io.jsonl import read_json, read_jsonl, write_json, write_jsonl
from radfact.metrics.radfact.scores import SCORES
from radfact.records import Box, Pair, Pairs, Sentence
from radfact.results.evaluation import EvaluationResult
from radfact.results.export import export
from radfact.results.writer import write_results

PUBLISHED_NAMES = yaml.safe_load(Path(__file__).with_name("exported_keys.yaml").read_text("utf-8"))
STATISTICS = ["mean", "stderr", "p2.5th", "p25th", "median", "p75th", "p97.5th"]
LEFT = (Box(x_min=0.5, y_min=0.0, x_max=1.0, y_max=1.0),)


def verbatim(premises: Sequence[str], hypothesis: str) -> tuple[bool, list[int]]:
    """A judge that entails verbatim sentences of the premises and fails on the sentence 'bad'."""
    if hypothesis == "bad":
        raise ValueError("no YAML")
    return hypothesis in premises, [premises.index(hypothesis)] if hypothesis in premises else []


def texts(line: str) -> list[Sentence]:
    """A word a sentence; capitals have a box."""
    return [Sentence(text=word.lower(), boxes=LEFT if word.isupper() else None) for word in line.split()]


CANDIDATES = ["A b c", "a bad", "C D", "b", "A A e"]
REFERENCES = ["A c", "a", "C d x", "c", "A"]


def scored(replicates: int = 40) -> EvaluationResult:
    metric = RadFact(verbatim, bootstrap=replicates, seed=7)
    return metric.score([texts(report) for report in CANDIDATES], [texts(report) for report in REFERENCES])


def exported(result: EvaluationResult, folder: Path, path: Path | None = None, **run: Any) -> dict[str, Any]:
    """Write a result and return its export."""
    write_results(result, folder, run)
    return dict(read_json(export(folder, path)))


@pytest.fixture(scope="module")
def result() -> EvaluationResult:
    return scored()


@pytest.fixture(scope="module")
def written(result: EvaluationResult, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return exported(result, tmp_path_factory.mktemp("export"))


def test_keys_and_their_order_are_the_published_ones(written: dict[str, Any]) -> None:
    assert list(written) == STATISTICS + [f"{name}/{kind}" for name in PUBLISHED_NAMES for kind in STATISTICS]
    # Keys without a prefix are the logical F1.
    assert [written[kind] for kind in STATISTICS] == [written[f"logical_f1/{kind}"] for kind in STATISTICS]


def test_without_replicates_a_score_has_one_key(tmp_path: Path) -> None:
    result = scored(0)
    plain = exported(result, tmp_path, input={"files": ["somewhere/pairs.json"]})
    assert (tmp_path / "radfact_scores_pairs.json").is_file()
    assert list(plain) == PUBLISHED_NAMES
    assert plain["logical_f1"] == pytest.approx(result.scores["logical_f1"])
    sentences = sum(len(text.split()) for text in CANDIDATES + REFERENCES)
    assert (plain["num_llm_failures"], plain["num_llm_success"]) == (1, sentences - 1)
    assert (plain["num_samples"], plain["num_invalid_processed_samples"]) == (4, 1)


def test_quantiles_equal_those_of_the_result(written: dict[str, Any], result: EvaluationResult) -> None:
    for name in SCORES:
        score = result.summaries[name]
        quantiles = [score.low, score.q25, score.median, score.q75, score.high]
        assert [written[f"{name}/{kind}"] for kind in STATISTICS[2:]] == pytest.approx(quantiles, abs=1e-12)


def test_mean_and_standard_error_equal_those_of_explicit_replicates(
    written: dict[str, Any], result: EvaluationResult
) -> None:
    generator = np.random.default_rng(7)
    draws = [generator.choice(5, 5, replace=True) for _ in range(40)]
    for name, column in {
        "logical_precision": [sample.scores["logical_precision"] for sample in result.samples],
        "num_candidate_phrases": [3, math.nan, 2, 1, 3],
    }.items():
        means = [np.nanmean(np.array(column)[draw]) for draw in draws]
        statistics = [written[f"{name}/mean"], written[f"{name}/stderr"]]
        assert statistics == pytest.approx([np.nanmean(means), np.nanstd(means)], abs=1e-9)
    invalid = [np.isin(draw, [1]).sum() for draw in draws]
    statistics = [written[f"num_invalid_processed_samples/{kind}"] for kind in ("mean", "stderr")]
    assert statistics == pytest.approx([np.mean(invalid), np.std(invalid)], abs=1e-9)


def test_samples_without_two_reports_are_not_exported(tmp_path: Path) -> None:
    pairs = tuple(Pair(name, texts("a " + name), texts("a")) for name in "abc")
    metric = RadFact(verbatim, bootstrap=20)
    alone = exported(metric.score(Pairs(pairs, read=3)), tmp_path / "0", tmp_path / "elsewhere" / "scores.json")
    assert exported(metric.score(Pairs(pairs, read=4, without_candidate={"d": "none"})), tmp_path / "1") == alone


def test_missing_values_are_null_and_those_of_narratives_zero_as_published(tmp_path: Path) -> None:
    without_boxes = RadFact(verbatim, bootstrap=10).score([texts("a")], [texts("a")])
    plain = exported(without_boxes, tmp_path / "sentences")
    assert [plain[f"spatial_f1/{kind}"] for kind in STATISTICS] == [None] * 7
    narratives = RadFact(verbatim, bootstrap=0, splitter=str.split).score(["a b"], ["a"])
    plain = exported(narratives, tmp_path / "narratives")
    assert [plain[name] for name in PUBLISHED_NAMES if name.startswith(("spatial", "grounding"))] == [0.0] * 6


@pytest.mark.parametrize("change", ["seed", "sample", "score"])
def test_files_of_different_runs_are_refused(change: str, result: EvaluationResult, tmp_path: Path) -> None:
    write_results(result, tmp_path)
    run, scores = (read_json(tmp_path / name) for name in ("run.json", "scores.json"))
    if change == "seed":
        write_json(tmp_path / "run.json", run | {"options": run["options"] | {"seed": 8}})
    elif change == "sample":
        write_jsonl(tmp_path / "samples.jsonl", [row for _, row in read_jsonl(tmp_path / "samples.jsonl")][1:])
    else:
        del scores["scores"]["logical_f1"]
        write_json(tmp_path / "scores.json", scores)
    with pytest.raises(InputError, match=r"scores\.json: scores\.\w+\.(point|median): samples\.jsonl and "):
        export(tmp_path)
    assert not list(tmp_path.glob("radfact_scores*"))


@pytest.mark.parametrize(
    ("name", "change", "error"),
    [
        ("run.json", {"options": {"bootstrap": 5}}, "run.json: options.seed: missing-field"),
        ("scores.json", {"version": 3, "scores": []}, "scores.json: scores: invalid-value"),
        ("samples.jsonl", {"sample_id": "x"}, "samples.jsonl:1: logical_precision: missing-field"),
    ],
)
def test_an_invalid_file_is_one_line_with_its_location(
    name: str, change: dict[str, Any], error: str, result: EvaluationResult, tmp_path: Path
) -> None:
    write_results(result, tmp_path)
    (tmp_path / name).write_text(json.dumps(change))
    with raises(error):
        export(tmp_path)
