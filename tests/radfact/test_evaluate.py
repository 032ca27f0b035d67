"""Evaluation with several metrics: selection, results and cached scores."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from error_checks import raises

from radfact.api import RadFact, evaluate
from radfact.errors import InputError, RunError
from radfact.io.jsonl import read_jsonl
from radfact.llm import mock_client
from radfact.metrics.classical.bleu import Bleu
from radfact.metrics.classical.rouge import RougeL
from radfact.metrics.protocol import Counts, FunctionMetric, Metric, MetricResult, PooledScore, Score, main_scores_of
from radfact.metrics.registry import MetricEntry, entries, select_metrics
from radfact.records import Box, Pair, Pairs, Sentence
from radfact.results.evaluation import EvaluationResult
from radfact.results.export import export
from radfact.results.reader import read_scores
from radfact.results.writer import write_results
from radfact.statistics.bootstrap import Direction

BOX = Box(x_min=0.1, y_min=0.1, x_max=0.5, y_max=0.5)
PAIRS = [
    Pair("a", "The lungs are clear. The heart is large.", "The lungs are clear."),
    Pair("b", "There is a left pleural effusion.", "No pleural effusion."),
    Pair(
        "c",
        [Sentence(text="Left pleural effusion.", boxes=(BOX,))],
        [Sentence(text="Left pleural effusion.", boxes=(BOX,))],
    ),
    Pair("d", "", "Normal chest."),
]


def words_a_word(counts: Counts) -> float:
    return float(counts[0] / counts[1])


class Length(Metric):
    """A custom metric: number of words of the candidate, by sample and pooled."""

    name = "length"
    scores: Mapping[str, Score | Direction] = {"words": "neutral", "words_a_word": "lower"}
    pooled: Mapping[str, Callable[[Counts], float]] = {"words_a_word": words_a_word}
    calls = 0

    def score(self, pairs: Sequence[Pair]) -> MetricResult:
        type(self).calls += 1
        counts = [[float(len(str(report).split())) for report in (pair.candidate, pair.reference)] for pair in pairs]
        values = [math.nan if pair.sample_id == "d" else row[0] for pair, row in zip(pairs, counts, strict=True)]
        return MetricResult(
            {"words": values},
            pooled={"words_a_word": PooledScore(np.array(counts), words_a_word)},
            details=[{"note": pair.sample_id} for pair in pairs],
            failures={index: "too short" for index, pair in enumerate(pairs) if pair.sample_id == "d"},
        )


class Broken(Metric):
    name = "broken"
    scores: Mapping[str, Score | Direction] = {"x": "higher"}

    def score(self, pairs: Sequence[Pair]) -> MetricResult:
        raise RunError(f"the server cannot be reached for {len(pairs)} pairs")


class Short(Metric):
    name = "short"
    scores: Mapping[str, Score | Direction] = {"x": "higher"}

    def score(self, pairs: Sequence[Pair]) -> MetricResult:
        return MetricResult({"x": [1.0] * (len(pairs) - 1)})


class FailingConstructor(Length):
    """A custom metric whose constructor fails."""

    name = "failing_constructor"

    def __init__(self) -> None:
        raise RuntimeError("no\nlicense")


class Raising(Metric):
    """A custom metric whose code fails."""

    name = "raising"
    scores: Mapping[str, Score | Direction] = {"x": "higher"}

    def score(self, pairs: Sequence[Pair]) -> MetricResult:
        return MetricResult({"x": [1 / (len(pair.sample_id) - 1) for pair in pairs]})


class Silent(Raising):
    """Returns no value for the second pair, without a reason."""

    name = "silent"

    def score(self, pairs: Sequence[Pair]) -> MetricResult:
        return MetricResult({"x": [math.nan if index == 1 else 1.0 for index in range(len(pairs))]})


class Limited(Raising):
    """A custom metric with an argument."""

    name = "limited"

    def __init__(self, limit: int = 3) -> None:
        self.limit = limit

    def score(self, pairs: Sequence[Pair]) -> MetricResult:
        return MetricResult({"x": [float(self.limit)] * len(pairs)})


class Listed(Raising):
    """Names its scores without a direction."""

    name = "listed"
    scores = ["x"]  # type: ignore[assignment]  # noqa: RUF012


class TextAsMainScores(Length):
    """Its main scores are a text instead of a list of names."""

    main_scores = "words"


def rows(path: Path) -> list[dict[str, Any]]:
    return [row for _, row in read_jsonl(path)]


def test_radfact_scores_equal_those_of_radfact_score(tmp_path: Path) -> None:
    from radfact.judges import load_judge

    result = evaluate(PAIRS, ["radfact", "rouge_l"], judge="offline", out=tmp_path / "many")
    alone = RadFact(load_judge("offline")).score(PAIRS)
    write_results(alone, tmp_path / "alone")
    assert {name: result.summaries[name] for name in alone.summaries} == alone.summaries
    assert (tmp_path / "many/sentences.jsonl").read_text() == (tmp_path / "alone/sentences.jsonl").read_text()
    samples = [rows(tmp_path / folder / "samples.jsonl") for folder in ("many", "alone")]
    for many, single in zip(*samples, strict=True):
        assert {name: many[name] for name in single} == single


def test_results_of_several_metrics_can_be_exported(tmp_path: Path) -> None:
    evaluate(PAIRS, ["radfact", "rouge_l"], judge="offline", out=tmp_path)
    flat = json.loads(export(tmp_path, tmp_path / "flat.json").read_text())
    assert flat["num_samples/mean"] == pytest.approx(4)


def test_missing_requirements_make_metrics_unavailable(tmp_path: Path) -> None:
    result = evaluate(PAIRS, ["rouge_l", "chexbert", "meteor", "green", "radfact"], weights={"wordnet": tmp_path})
    assert list(result.runs) == ["rouge_l"]
    expected = (
        "needs weights: radfact weights fetch chexbert, or --weights chexbert=FOLDER with chexbert.pth, vocab.txt"
    )
    assert result.unavailable["chexbert"] == expected
    assert result.unavailable["meteor"] == f"needs weights: {tmp_path} has no lexnames"
    assert result.unavailable["green"] == "needs a language model: --judge PROVIDER:MODEL"
    assert result.unavailable["radfact"] == "needs a judge: --judge offline or --judge PROVIDER:MODEL"


def test_a_missing_weights_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "chexbert").mkdir()
    (tmp_path / "chexbert" / "vocab.txt").write_text("")
    result = evaluate(PAIRS, ["rouge_l", "chexbert"], weights=[tmp_path])
    assert result.unavailable["chexbert"] == f"needs weights: {tmp_path / 'chexbert'} has no chexbert.pth"


def test_unknown_weights_are_refused(tmp_path: Path) -> None:
    with raises("weights.meteor: unknown-name"):
        evaluate(PAIRS, ["rouge_l"], weights={"meteor": tmp_path})


@pytest.mark.parametrize(
    ("metrics", "error"),
    [("green", "missing-requirement"), (["green", "vert"], "metrics: missing-requirement")],
)
def test_no_available_metric_is_an_error(metrics: Any, error: str) -> None:
    with raises(error):
        evaluate(PAIRS, metrics, judge="offline")


def test_a_misspelled_metric_has_a_suggestion() -> None:
    with pytest.raises(InputError, match=r"'bleu_5'; did you mean 'bleu_"):
        evaluate(PAIRS, ["bleu_5"])


def test_a_score_name_selects_that_score() -> None:
    assert list(evaluate(PAIRS, ["bleu_4", "rouge_l"]).scores) == ["bleu_4", "rouge_l"]
    assert list(evaluate(PAIRS, ["bleu_4", "bleu_1"]).scores) == ["bleu_1", "bleu_4"]
    assert list(evaluate(PAIRS, ["bleu_4", "bleu"]).scores) == ["bleu_1", "bleu_2", "bleu_3", "bleu_4"]


def test_scores_of_one_response_need_one_request() -> None:
    messages: list[str] = []

    def answer(text: str) -> str:
        messages.append(text)
        return "yes"

    result = evaluate(
        [Pair("a", "Unchanged.", "Clear.")],
        ["comparison_mentions", "comparison_mentions_reference"],
        model=mock_client(answer),
    )
    assert len(result.runs) == 1
    assert sorted(messages) == ["Clear.", "Unchanged."]


def test_a_custom_metric_is_given_by_object_or_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    by_object = evaluate(PAIRS, [Length()])
    assert by_object.summaries["words"].n == 3
    monkeypatch.setitem(sys.modules, "custom_metric", sys.modules[__name__])
    by_name = evaluate(PAIRS, ["custom_metric:Length", "rouge_l"], out=tmp_path)
    assert by_name.summaries["words"] == by_object.summaries["words"]
    assert by_name.summaries["words"].direction == "neutral"


class Reads(Metric):
    """Records the form of the reports."""

    name = "reads"
    scores: Mapping[str, Score | Direction] = {"reads": "neutral"}

    def __init__(self, reads: Any) -> None:
        self.reads = reads
        self.reports: list[Any] = []

    def score(self, pairs: Sequence[Pair]) -> MetricResult:
        self.reports = [pair.candidate for pair in pairs]
        return MetricResult({"reads": [0.0] * len(pairs)})


def test_metrics_receive_text_or_sentences_as_declared() -> None:
    grounded = [Pair("g", [Sentence(text="Clear.", boxes=(BOX,)), Sentence(text="Normal heart.")], "Clear.")]
    text, sentences = Reads("text"), Reads("sentences")
    evaluate(grounded, [text])
    evaluate(grounded, [sentences])
    assert (text.reports, sentences.reports) == (["Clear. Normal heart."], [grounded[0].candidate])
    ratio = FunctionMetric(lambda candidate, reference: len(candidate.split()) / len(reference.split()), "ratio")
    assert evaluate(grounded, [ratio]).scores["ratio"] == 3


def test_compare_writes_its_files(tmp_path: Path) -> None:
    pairs = Pairs(tuple(PAIRS), read=5, without_candidate={"e": "no candidate report"})
    evaluate(pairs, [Length(), "rouge_l"], out=tmp_path)
    scores = json.loads((tmp_path / "scores.json").read_text())
    assert scores["scores"]["words"]["n"] == 3
    assert scores["metrics"]["length"]["failed"] == 1
    assert scores["counts"] == {"samples": 5, "scored": 3, "excluded": 2, "empty_candidates": 1}
    samples = rows(tmp_path / "samples.jsonl")
    assert [row["sample_id"] for row in samples] == ["a", "b", "c", "d", "e"]
    assert samples[3]["words"] is None
    assert samples[3]["failures"] == {"length": "too short"}
    assert samples[4]["failure"] == "no candidate report"
    assert rows(tmp_path / "metrics/length.jsonl")[0]["details"] == {"note": "a"}
    assert "report.html" in {path.name for path in tmp_path.iterdir()}


def test_equal_input_gives_equal_files(tmp_path: Path) -> None:
    evaluate(PAIRS, ["rouge_l", "bleu", "radfact"], judge="offline", out=tmp_path)
    scores, rows = ((tmp_path / name).read_bytes() for name in ("scores.json", "metrics/bleu.jsonl"))
    evaluate(PAIRS, ["rouge_l", "bleu", "radfact"], judge="offline", out=tmp_path)
    assert [(tmp_path / name).read_bytes() for name in ("scores.json", "metrics/bleu.jsonl")] == [scores, rows]


def test_an_interrupted_run_of_another_system_leaves_nothing_in_the_results(tmp_path: Path) -> None:
    def interrupt(*_: object) -> bool:
        raise KeyboardInterrupt

    others = [Pair(pair.sample_id, "No finding at all.", pair.reference) for pair in PAIRS]
    first = evaluate(PAIRS, ["bleu"], out=tmp_path)
    rows = (tmp_path / "metrics/bleu.jsonl").read_bytes()
    with pytest.raises(KeyboardInterrupt):
        evaluate(others, ["bleu", "radfact"], judge=interrupt, out=tmp_path)
    assert evaluate(PAIRS, ["bleu"], out=tmp_path).values == first.values
    assert (tmp_path / "metrics/bleu.jsonl").read_bytes() == rows


_CALLS = ("rename", "replace", "open", "unlink", "mkdir", "rmdir", "fsync", "link")


def _kill_at(call: int, pairs: Sequence[Pair], out: Path) -> bool:
    """Evaluate in a process that ends at a call to the file system; return whether it has as many calls."""
    if (child := os.fork()) == 0:
        count = 0

        def counting(function: Callable[..., Any]) -> Callable[..., Any]:
            def count_call(*args: Any, **kwargs: Any) -> Any:
                nonlocal count
                count += 1
                if count > call:
                    os._exit(9)
                return function(*args, **kwargs)

            return count_call

        for name in _CALLS:
            setattr(os, name, counting(getattr(os, name)))
        try:
            evaluate(pairs, ["bleu", "rouge_l"], out=out, bootstrap=0)
        finally:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9


def _results(folder: Path) -> dict[str, bytes]:
    files = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}
    return {name: path.read_bytes() for name, path in files.items() if name not in ("run.json", "report.html")}


def test_a_kill_at_any_call_leaves_the_old_or_the_new_results(tmp_path: Path) -> None:
    """The same command finishes them; a file of another origin and the cache stay."""
    others = [Pair(pair.sample_id, "No finding at all.", pair.reference) for pair in PAIRS]
    old, new = tmp_path / "old", tmp_path / "new"
    evaluate(PAIRS, ["bleu", "rouge_l", "lateral_mentions"], out=old, bootstrap=0)
    shutil.copytree(old, new)
    evaluate(others, ["bleu", "rouge_l"], out=new, bootstrap=0)
    complete = {name: _results(folder) for name, folder in (("old", old), ("new", new))}
    ends = set()
    for call in range(400):
        out = tmp_path / "out"
        shutil.copytree(old, out)
        (out / "notes.txt").write_text("mine")
        if not _kill_at(call, others, out):
            break
        read_scores(out)  # ends an interrupted move, as every reader does
        found = _results(out)
        files = {name: data for name, data in found.items() if name in complete["old"] | complete["new"]}
        ends |= {name for name, results in complete.items() if results == files}
        assert files in complete.values()
        assert (out / "notes.txt").read_text() == "mine"
        evaluate(others, ["bleu", "rouge_l"], out=out, bootstrap=0)
        assert _results(out) == {**complete["new"], "notes.txt": b"mine"}
        shutil.rmtree(out)
    assert ends == {"old", "new"}
    assert call > 40


def test_files_of_metrics_not_selected_are_removed(tmp_path: Path) -> None:
    evaluate(PAIRS, ["rouge_l", "bleu"], out=tmp_path)
    (tmp_path / "metrics" / "notes.txt").write_text("mine")
    evaluate(PAIRS, ["rouge_l"], out=tmp_path)
    assert sorted(path.name for path in (tmp_path / "metrics").iterdir()) == [
        "notes.txt",
        "rouge_l.json",
        "rouge_l.jsonl",
    ]


class Partial(Length):
    """Scores the first pairs only."""

    name = "partial"
    scores: Mapping[str, Score | Direction] = {"share": "higher"}

    def __init__(self, scored: int) -> None:
        self.scored = scored

    def score(self, pairs: Sequence[Pair]) -> MetricResult:
        missing = len(pairs) - self.scored
        failures = dict.fromkeys(range(self.scored, len(pairs)), "no answer")
        return MetricResult({"share": [1.0] * self.scored + [math.nan] * missing}, failures=failures)


def test_a_metric_without_scores_is_unavailable_with_the_first_reason(tmp_path: Path) -> None:
    result = evaluate(PAIRS, [Partial(0), "rouge_l"], out=tmp_path)
    assert list(result.runs) == ["rouge_l"]
    assert "no sample could be scored (no answer)" in result.unavailable["partial"]


def test_the_page_counts_samples_not_scored_by_a_metric(tmp_path: Path) -> None:
    evaluate(PAIRS, [Partial(1), "rouge_l"], out=tmp_path)
    page = (tmp_path / "report.html").read_text()
    assert f"<dt>not scored by every metric</dt><dd>{len(PAIRS) - 1}</dd>" in page
    assert f"<dt>not scored by partial</dt><dd>{len(PAIRS) - 1}</dd>" in page
    assert "<dt>excluded</dt>" not in page
    assert "not scored by rouge" not in page


@pytest.mark.parametrize(("metric", "reason"), [(Broken(), "the server cannot be reached"), (Short(), "one per pair")])
def test_a_failed_metric_is_unavailable(metric: Metric, reason: str) -> None:
    result = evaluate(PAIRS, [metric, Length()])
    assert list(result.runs) == ["length"]
    assert reason in result.unavailable[metric.name]
    with pytest.raises(RunError, match=reason):
        evaluate(PAIRS, [metric])


@pytest.fixture
def custom_module(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make this module importable as custom_metric."""
    monkeypatch.setitem(sys.modules, "custom_metric", sys.modules[__name__])


@pytest.mark.usefixtures("custom_module")
@pytest.mark.parametrize(
    ("name", "reason"),
    [
        (
            "FailingConstructor",
            r"custom_metric:FailingConstructor fails with RuntimeError: no license \(test_evaluate\.py, line \d+\)",
        ),
        ("Raising", r"raising fails with ZeroDivisionError: .* \(test_evaluate\.py, line \d+\)"),
        ("Listed", "expected a mapping of scores"),
        ("TextAsMainScores", "expected a list of its scores, found 'words'"),
        ("BOX", "expected a subclass of radfact.Metric"),
    ],
)
def test_errors_of_custom_metrics_are_one_line(name: str, reason: str) -> None:
    result = evaluate(PAIRS, [f"custom_metric:{name}", "rouge_l"])
    message = result.unavailable[f"custom_metric:{name}"]
    assert list(result.runs) == ["rouge_l"]
    assert re.search(reason, message)
    assert "\n" not in message


def test_a_missing_value_without_a_reason_is_a_failure() -> None:
    run = evaluate(PAIRS, [Silent()]).runs["silent"]
    assert run.summaries["x"].n == 3
    assert run.result.failures == {1: "gave no value"}


@pytest.mark.usefixtures("custom_module")
def test_arguments_are_passed_and_recorded(tmp_path: Path) -> None:
    result = evaluate(
        PAIRS, ["custom_metric:Limited"], metric_args={"custom_metric:Limited": {"limit": 7}}, out=tmp_path
    )
    assert result.scores["x"] == 7
    record = json.loads((tmp_path / "scores.json").read_text())["metrics"]["limited"]
    assert record["arguments"] == {"limit": 7}


@pytest.mark.usefixtures("custom_module")
@pytest.mark.parametrize(
    ("arguments", "wrong"),
    [
        ({"custom_metric:Limited": {"most": 7}}, "unexpected keyword argument 'most'"),
        ({"vert": {}}, r"metric_args\.vert: "),
        ({"rouge_l": {"stem": True}}, "unexpected keyword argument 'stem'"),
    ],
)
def test_invalid_metric_arguments_are_refused(arguments: dict[str, dict[str, Any]], wrong: str) -> None:
    with pytest.raises(InputError, match=wrong):
        evaluate(PAIRS, ["custom_metric:Limited", "rouge_l"], metric_args=arguments)


def test_radfact_takes_options_as_arguments() -> None:
    result = evaluate(PAIRS, ["radfact"], judge="offline", metric_args={"radfact": {"threshold": 0.9}})
    assert result.options["threshold"] == 0.9


def test_judge_args_are_refused_with_a_client() -> None:
    client = mock_client(lambda _: "yes")
    with raises("judge_args: conflicting-options"):
        evaluate(PAIRS, "comparison_mentions", model=client, judge_args={"temperature": 1})


def test_a_client_with_unsuitable_parameters_has_a_warning() -> None:
    client = mock_client(lambda _: "yes")
    client.identity["parameters"] = {"temperature": 1, "max_tokens": 16}
    with pytest.warns(UserWarning, match="comparison_mentions .* temperature 0"):
        evaluate(PAIRS, "comparison_mentions", model=client)


@pytest.mark.parametrize(
    ("first", "name", "message"),
    [(Length(), "other", "length and other"), (Length(), "length", "'length'"), ("rouge_l", "rouge_l", "'rouge_l'")],
)
def test_names_of_metrics_and_scores_are_unique(first: Any, name: str, message: str) -> None:
    second = type("Second", (Length,), {"name": name})()
    with pytest.raises(InputError, match=message):
        evaluate(PAIRS, [first, second])


@pytest.mark.parametrize("score", ["sample_id", "failure", "candidate_sentences", "x/y", ""])
def test_reserved_score_names_are_refused(score: str) -> None:
    class Named(Length):
        scores: Mapping[str, Score | Direction] = {score: "higher"}

    with raises("metrics.scores: invalid-plugin"):
        evaluate(PAIRS, [Named()])


def test_errors_of_built_in_metrics_are_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def out_of_memory(metric: object, pairs: Sequence[Pair]) -> MetricResult:
        raise RuntimeError(f"CUDA out of\nmemory with {metric} and {len(pairs)}")

    def no_tensor(metric: object) -> None:
        raise KeyError(f"weights of {type(metric)}")

    monkeypatch.setattr(RougeL, "score", out_of_memory)
    monkeypatch.setattr(Bleu, "__init__", no_tensor)
    result = evaluate(PAIRS, ["rouge_l", "bleu", "lateral_mentions"], out=tmp_path)
    assert list(result.runs) == ["lateral_mentions"]
    assert (tmp_path / "scores.json").is_file()
    assert re.fullmatch(
        r"rouge_l fails with RuntimeError: CUDA out of memory with .* and 4 \(test_evaluate\.py, line \d+\)",
        result.unavailable["rouge_l"],
    )
    assert "fails with KeyError: " in result.unavailable["bleu"]


def test_the_dataframe_has_a_row_per_sample() -> None:
    pandas = pytest.importorskip("pandas")
    result: EvaluationResult = evaluate(PAIRS, [Length(), "rouge_l"])
    frame = result.to_dataframe()
    assert isinstance(frame, pandas.DataFrame)
    assert list(frame.columns) == ["rouge_l", "words", "failure"]
    assert math.isnan(frame.loc["d", "words"])


@pytest.mark.parametrize("entry", entries().values(), ids=lambda entry: entry.name)
def test_every_registered_metric_is_complete(entry: MetricEntry) -> None:
    metric = entry.load()
    assert entry.scores
    assert set(entry.scores.values()) <= {"higher", "lower", "neutral"}
    assert set(metric.pooled) <= set(entry.scores)
    main_scores = set(main_scores_of(metric))
    assert main_scores
    assert main_scores <= set(entry.scores) - set(metric.dataset_scores)
    assert entry.source
    assert metric.cost
    assert metric.name == entry.name


def test_registered_score_names_are_unique() -> None:
    scores = [score for entry in entries().values() for score in entry.scores]
    assert len(scores) == len(set(scores))


@pytest.mark.parametrize(
    ("names", "main_scores", "num_scores"),
    [
        (["bleu"], ["bleu_2"], 4),
        (["bleu_4", "bleu"], ["bleu_2", "bleu_4"], 4),
        (["bleu_4", "bleu_1"], ["bleu_1", "bleu_4"], 2),
        (["bleu_4", "all"], ["bleu_2", "bleu_4"], 4),
        (["all"], ["bleu_2"], 4),
    ],
)
def test_selected_names_determine_main_scores(names: list[str], main_scores: list[str], num_scores: int) -> None:
    (selection,) = (selection for selection in select_metrics(names) if selection.entry.name == "bleu")
    metric = Bleu()
    assert selection.main_scores(metric) == main_scores
    assert len(selection.select(metric)) == num_scores
    assert selection.is_named == (names != ["all"])


def test_by_default_all_scores_are_main_scores() -> None:
    assert main_scores_of(Length()) == list(Length.scores)


def test_all_selects_all_metrics_but_variants() -> None:
    names = {selection.entry.name for selection in select_metrics(["all"])}
    assert {"radfact", "rouge_l", "green", "chexbert"} <= names
    assert "vert_rubric" not in names
