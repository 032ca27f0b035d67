import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from radfact.api import RadFact
from radfact.errors import InputError
from radfact.io.jsonl import read_json, read_jsonl, write_json, write_jsonl
from radfact.judges import EntailmentQuery, Failure, Verdict
from radfact.metrics.radfact.scores import SCORES
from radfact.records import Box, Pair, Pairs, Sentence
from radfact.results.evaluation import EvaluationResult
from radfact.results.export import export
from radfact.results.writer import write_results

# Source: the keys that the published command writes, without the counters of its client.
PUBLISHED_NAMES = [
    "logical_precision",
    "logical_recall",
    "spatial_precision",
    "spatial_recall",
    "grounding_precision",
    "grounding_recall",
    "num_candidate_phrases",
    "num_reference_phrases",
    "num_candidate_phrases_with_boxes",
    "num_reference_phrases_with_boxes",
    "logical_f1",
    "spatial_f1",
    "grounding_f1",
    "num_samples",
    "num_llm_failures",
    "num_llm_success",
    "num_invalid_processed_samples",
]
STATISTICS = ["mean", "stderr", "p2.5th", "p25th", "median", "p75th", "p97.5th"]
LEFT = (Box(x_min=0.5, y_min=0.0, x_max=1.0, y_max=1.0),)


class Verbatim:
    """A judge that entails verbatim sentences of the premises and fails on the sentence 'bad'."""

    name = "verbatim"

    def judge(self, questions: Sequence[EntailmentQuery]) -> list[Verdict | Failure]:
        return [self._answer(question) for question in questions]

    def _answer(self, question: EntailmentQuery) -> Verdict | Failure:
        if question.hypothesis == "bad":
            return Failure("no YAML")
        if question.hypothesis in question.premises:
            return Verdict("entailment", (question.premises.index(question.hypothesis),))
        return Verdict("not_entailment")

    def describe(self) -> dict[str, Any]:
        return {"name": self.name}

    def usage(self) -> dict[str, int]:
        return {}


def texts(line: str) -> list[Sentence]:
    """A word a sentence; capitals have a box."""
    return [Sentence(text=word.lower(), boxes=LEFT if word.isupper() else None) for word in line.split()]


CANDIDATES = ["A b c", "a bad", "C D", "b", "A A e"]
REFERENCES = ["A c", "a", "C d x", "c", "A"]


def scored(replicates: int = 40) -> EvaluationResult:
    metric = RadFact(Verbatim(), bootstrap=replicates, seed=7)
    return metric.score([texts(report) for report in CANDIDATES], [texts(report) for report in REFERENCES])


def folder_of(result: EvaluationResult, folder: Path, **run: Any) -> Path:
    write_results(result, folder, run)
    return folder


def test_keys_and_their_order_are_the_published_ones(tmp_path: Path) -> None:
    written = read_json(export(folder_of(scored(), tmp_path)))
    assert list(written) == STATISTICS + [f"{name}/{kind}" for name in PUBLISHED_NAMES for kind in STATISTICS]


def test_without_replicates_a_score_has_one_key(tmp_path: Path) -> None:
    result = scored(0)
    written = read_json(export(folder_of(result, tmp_path)))
    assert list(written) == PUBLISHED_NAMES
    assert written["logical_f1"] == pytest.approx(result.scores["logical_f1"])


def test_quantiles_equal_those_of_the_result(tmp_path: Path) -> None:
    result = scored()
    written = read_json(export(folder_of(result, tmp_path)))
    for name in SCORES:
        score = result.summaries[name]
        quantiles = [score.low, score.q25, score.median, score.q75, score.high]
        assert [written[f"{name}/{kind}"] for kind in STATISTICS[2:]] == pytest.approx(quantiles, abs=1e-12)


def test_mean_and_standard_error_equal_those_of_explicit_replicates(tmp_path: Path) -> None:
    result = scored()
    written = read_json(export(folder_of(result, tmp_path)))
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


def test_keys_without_a_prefix_are_the_logical_f1(tmp_path: Path) -> None:
    written = read_json(export(folder_of(scored(), tmp_path)))
    assert [written[kind] for kind in STATISTICS] == [written[f"logical_f1/{kind}"] for kind in STATISTICS]


def test_sentences_with_and_without_a_verdict_are_counted(tmp_path: Path) -> None:
    written = read_json(export(folder_of(scored(0), tmp_path)))
    sentences = sum(len(text.split()) for text in CANDIDATES + REFERENCES)
    assert (written["num_llm_failures"], written["num_llm_success"]) == (1, sentences - 1)
    assert (written["num_samples"], written["num_invalid_processed_samples"]) == (4, 1)


def test_samples_without_two_reports_are_not_exported(tmp_path: Path) -> None:
    pairs = tuple(Pair(name, texts("a " + name), texts("a")) for name in "abc")
    metric = RadFact(Verbatim(), bootstrap=20)
    both = [Pairs(pairs, read=3), Pairs(pairs, read=4, without_candidate={"d": "none"})]
    alone, beside = (
        export(
            folder_of(metric.score(one), tmp_path / str(len(one.without_candidate))),
            tmp_path / f"{len(one.without_candidate)}.json",
        )
        for one in both
    )
    assert alone.read_bytes() == beside.read_bytes()


def test_missing_values_are_null(tmp_path: Path) -> None:
    result = RadFact(Verbatim(), bootstrap=10).score([texts("a")], [texts("a")])
    written = read_json(export(folder_of(result, tmp_path)))
    assert [written[f"spatial_f1/{kind}"] for kind in STATISTICS] == [None] * 7


def test_narratives_have_zeros_for_boxes_as_published(tmp_path: Path) -> None:
    result = RadFact(Verbatim(), bootstrap=0, splitter=str.split).score(["a b"], ["a"])
    written = read_json(export(folder_of(result, tmp_path)))
    assert [written[name] for name in PUBLISHED_NAMES if name.startswith(("spatial", "grounding"))] == [0.0] * 6


def test_the_default_file_has_the_published_name(tmp_path: Path) -> None:
    path = export(folder_of(scored(0), tmp_path, input={"files": ["somewhere/pairs.json"]}))
    assert path == tmp_path / "radfact_scores_pairs.json"


def test_the_output_path_can_be_given(tmp_path: Path) -> None:
    path = tmp_path / "elsewhere" / "scores.json"
    assert export(folder_of(scored(0), tmp_path / "results"), path) == path
    assert path.is_file()


def test_a_folder_without_scores_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"expected a finished results folder.* no scores\.json"):
        export(tmp_path)


def changed_seed(folder: Path) -> None:
    run = read_json(folder / "run.json")
    write_json(folder / "run.json", run | {"options": run["options"] | {"seed": 8}})


def lost_sample(folder: Path) -> None:
    rows = [row for _, row in read_jsonl(folder / "samples.jsonl")]
    write_jsonl(folder / "samples.jsonl", rows[1:])


def lost_figure(folder: Path) -> None:
    scores = read_json(folder / "scores.json")
    del scores["scores"]["logical_f1"]
    write_json(folder / "scores.json", scores)


@pytest.mark.parametrize("change", [changed_seed, lost_sample, lost_figure])
def test_files_of_different_runs_are_refused(change: Any, tmp_path: Path) -> None:
    folder = folder_of(scored(), tmp_path)
    change(folder)
    with pytest.raises(InputError, match=r"scores\.json: scores\.\w+\.(point|median): samples\.jsonl and "):
        export(folder)
    assert not list(folder.glob("radfact_scores*"))


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("run.json", {"options": {"bootstrap": 5}}, "run.json: options.seed: "),
        ("scores.json", {"version": 3, "scores": []}, "scores.json: scores: "),
        ("samples.jsonl", {"sample_id": "x"}, "samples.jsonl:1: logical_precision: "),
    ],
)
def test_an_invalid_file_is_one_line_with_its_location(
    name: str, change: dict[str, Any], message: str, tmp_path: Path
) -> None:
    folder = folder_of(scored(), tmp_path)
    (folder / name).write_text(json.dumps(change))
    with pytest.raises(InputError) as caught:
        export(folder)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
