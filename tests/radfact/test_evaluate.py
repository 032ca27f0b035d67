"""Evaluation with several metrics: selection, results and cached scores."""

import json
import math
import os
import random
import re
import shutil
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from io import StringIO
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import yaml
from error_checks import raises, raises_code, summary
from green_responses import GreenResponse
from rich.console import Console

from radfact.api import RadFact, evaluate
from radfact.cli.tables import show_results, show_rows
from radfact.errors import ErrorCode, ExitCode, InputError, RunError
from radfact.io.jsonl import read_json, read_jsonl, write_jsonl
from radfact.judges import load_judge
from radfact.llm import CallError, ChatClient, ChatRequest, Message, MockChatModel, ResponseCache, mock_client
from radfact.llm.cache import response_key
from radfact.llm.mock import ResponseFunction
from radfact.llm.protocol import NO_PREFIX, current_repeat, use_repeat
from radfact.metrics.classical.bleu import Bleu
from radfact.metrics.llm.green import Green
from radfact.metrics.protocol import Counts, FunctionMetric, Metric, MetricResult, PooledScore, Score, main_scores_of
from radfact.metrics.radfact.metric import RadFactMetric
from radfact.metrics.registry import MetricEntry, entries, select_metrics
from radfact.records import Box, Pair, Pairs, Sentence
from radfact.results.evaluation import EvaluationResult
from radfact.results.export import export
from radfact.results.reader import read_scores
from radfact.results.writer import write_results
from radfact.rewards import make_reward
from radfact.statistics.bootstrap import Direction

CASES = yaml.safe_load(Path(__file__).with_name("score_options.yaml").read_text("utf-8"))

CLIENT = mock_client("yes")
BOX = Box(x_min=0.1, y_min=0.1, x_max=0.5, y_max=0.5)
PAIRS = [
    Pair("a", "The lungs are clear. The heart is large.", "The lungs are clear."),
    Pair("b", "There is a left pleural effusion.", "No pleural effusion."),
    Pair("c", *[[Sentence(text="Left pleural effusion.", boxes=(BOX,))]] * 2),
    Pair("d", "", "Normal chest."),
]


def words_a_word(counts: Counts) -> float:
    return float(counts[0] / counts[1])


class Length(Metric):
    """A custom metric: number of words of the candidate, by sample and pooled."""

    name = "length"
    scores: Mapping[str, Score | Direction] = {"words": "neutral", "words_a_word": "lower"}
    pooled: Mapping[str, Callable[[Counts], float]] = {"words_a_word": words_a_word}

    def score(self, pairs: Sequence[Pair]) -> MetricResult:
        counts = [[float(len(str(report).split())) for report in (pair.candidate, pair.reference)] for pair in pairs]
        values = [math.nan if pair.sample_id == "d" else row[0] for pair, row in zip(pairs, counts, strict=True)]
        return MetricResult(
            {"words": values},
            pooled={"words_a_word": PooledScore(np.array(counts), words_a_word)},
            details=[{"note": pair.sample_id} for pair in pairs],
            failures={index: "too short" for index, pair in enumerate(pairs) if pair.sample_id == "d"},
        )


def metric_class(name: str, values: Callable[[Sequence[Pair]], list[float]], **attributes: Any) -> type[Metric]:

    def score(_: Metric, pairs: Sequence[Pair]) -> MetricResult:
        return MetricResult({"x": values(pairs)})

    return type(name, (Metric,), {"name": name, "scores": {"x": "higher"}, "score": score} | attributes)


def no_license(_: Metric) -> None:
    raise RuntimeError("no\nlicense")


def no_answer(_: Metric, pairs: Sequence[Pair]) -> MetricResult:
    return MetricResult({"x": [math.nan] * len(pairs)}, failures=dict.fromkeys(range(len(pairs)), "no answer"))


Broken = metric_class("broken", Mock(side_effect=RunError("the server cannot be reached")))
Short = metric_class("short", lambda pairs: [1.0] * (len(pairs) - 1))
Silent = metric_class("silent", lambda pairs: [math.nan if pair.sample_id == "b" else 1.0 for pair in pairs])
Silenced = metric_class("silenced", lambda pairs: [None] * len(pairs))  # type: ignore[list-item]
NoAnswer = metric_class("no_answer", lambda _: [], score=no_answer)
Raising = metric_class("raising", lambda pairs: [1 / (len(pair.sample_id) - 1) for pair in pairs])
Listed = metric_class("listed", lambda _: [], scores=["x"])
FailingConstructor = metric_class("failing_constructor", lambda _: [], __init__=no_license)
TextAsMainScores = metric_class("text_as_main_scores", lambda _: [], main_scores="x")


LIMITED = "custom_metric:Limited"


class Limited(Metric):
    name = "limited"
    scores: Mapping[str, Score | Direction] = {"x": "higher"}

    def __init__(self, limit: int = 3) -> None:
        self.limit = limit

    def score(self, pairs: Sequence[Pair]) -> MetricResult:
        return MetricResult({"x": [float(self.limit)] * len(pairs)})


@pytest.fixture(autouse=True)
def custom_module(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "custom_metric", sys.modules[__name__])


def rows(path: Path) -> list[dict[str, Any]]:
    return [row for _, row in read_jsonl(path)]


def test_radfact_scores_equal_those_of_radfact_score(tmp_path: Path) -> None:
    result = evaluate(PAIRS, ["radfact", "rouge_l"], judge="offline", out=tmp_path / "many")
    alone = RadFact(load_judge("offline")).score(PAIRS)
    write_results(alone, tmp_path / "alone")
    assert {name: result.summaries[name] for name in alone.summaries} == alone.summaries
    assert (tmp_path / "many/sentences.jsonl").read_text() == (tmp_path / "alone/sentences.jsonl").read_text()
    samples = [rows(tmp_path / folder / "samples.jsonl") for folder in ("many", "alone")]
    for many, single in zip(*samples, strict=True):
        assert {name: many[name] for name in single} == single
    flat = json.loads(export(tmp_path / "many", tmp_path / "flat.json").read_text())
    assert flat["num_samples/mean"] == pytest.approx(4)


def test_missing_requirements_make_metrics_unavailable(tmp_path: Path) -> None:
    (tmp_path / "chexbert").mkdir()
    (tmp_path / "chexbert" / "vocab.txt").write_text("")
    weights = {"wordnet": tmp_path, "chexbert": tmp_path / "chexbert"}
    result = evaluate(PAIRS, ["rouge_l", "chexbert", "bertscore", "meteor", "green", "radfact"], weights=weights)
    assert list(result.runs) == ["rouge_l"]
    bertscore = result.unavailable.pop("bertscore")
    assert bertscore.startswith("needs weights: radfact weights fetch bertscore, or --weights bertscore=FOLDER with ")
    assert result.unavailable == {
        "chexbert": f"needs weights: {tmp_path / 'chexbert'} has no chexbert.pth",
        "meteor": f"needs weights: {tmp_path} has no data.noun",
        "green": "needs a language model: --judge PROVIDER:MODEL",
        "radfact": "needs a judge: --judge offline or --judge PROVIDER:MODEL",
    }
    found = evaluate(PAIRS, ["rouge_l", "chexbert"]).unavailable["chexbert"]
    assert found.endswith("chexbert=FOLDER with chexbert.pth, vocab.txt")
    found = evaluate(PAIRS, ["rouge_l", "chexbert"], weights=[tmp_path]).unavailable["chexbert"]
    assert found == f"needs weights: {tmp_path / 'chexbert'} has no chexbert.pth"


def second(name: str, **attributes: Any) -> Metric:
    return type("Second", (Length,), {"name": name, **attributes})()


@pytest.mark.parametrize(
    ("metrics", "options", "error", "detail"),
    [
        (["rouge_l"], {"weights": {"meteor": Path()}}, "weights.meteor: unknown-name", ""),
        ("green", {"judge": "offline"}, "missing-requirement", ""),
        (["green", "vert"], {"judge": "offline"}, "metrics: missing-requirement", ""),
        (["bleu_5"], {}, "metrics: unknown-name", "did you mean 'bleu_"),
        (LIMITED, {"metric_args": {LIMITED: {"most": 7}}}, "metric_args: invalid-option", "'most'"),
        (["rouge_l"], {"metric_args": {"vert": {}}}, "metric_args.vert: conflicting-options", ""),
        (["rouge_l"], {"metric_args": {"rouge_l": {"stem": True}}}, "metric_args: invalid-option", "'stem'"),
        ("comparison_mentions", {"model": CLIENT, "judge_args": {"t": 1}}, "judge_args: conflicting-options", ""),
        ([Length(), second("other")], {}, "metrics: duplicate", "length and other"),
        ([Length(), second("length")], {}, "metrics: duplicate", "'length'"),
        (["rouge_l", second("rouge_l")], {}, "metrics: duplicate", "'rouge_l'"),
        *(
            ([second("named", scores={score: "higher"})], {}, "metrics.scores: invalid-plugin", "")
            for score in ("sample_id", "failure", "candidate_sentences", "x/y", "")
        ),
    ],
)
def test_invalid_arguments_are_refused(metrics: Any, options: dict[str, Any], error: str, detail: str) -> None:
    with pytest.raises((InputError, RunError)) as caught:
        evaluate(PAIRS, metrics, **options)
    assert summary(caught.value) == error
    assert detail in str(caught.value)


def test_metrics_have_arguments_and_a_custom_metric_is_given_by_object_or_by_name(tmp_path: Path) -> None:
    by_object = evaluate(PAIRS, [Length()]).summaries["words"]
    assert (by_object.n, by_object.direction) == (3, "neutral")
    arguments = {LIMITED: {"limit": 7}, "radfact": {"threshold": 0.9}}
    metrics = ["custom_metric:Length", LIMITED, "radfact"]
    by_name = evaluate(PAIRS, metrics, judge="offline", metric_args=arguments, out=tmp_path)
    assert by_name.summaries["words"] == by_object
    assert (by_name.scores["x"], by_name.options["threshold"]) == (7, 0.9)
    record = json.loads((tmp_path / "scores.json").read_text())["metrics"]["limited"]
    assert record["arguments"] == {"limit": 7}


def test_metrics_receive_text_or_sentences_as_declared() -> None:
    grounded = [Pair("g", [Sentence(text="Clear.", boxes=(BOX,)), Sentence(text="Normal heart.")], "Clear.")]
    received: list[Any] = []

    def record(pairs: Sequence[Pair]) -> list[float]:
        received.extend(pair.candidate for pair in pairs)
        return [0.0] * len(pairs)

    for reads in ("text", "sentences"):
        evaluate(grounded, [metric_class("reads", record, reads=reads)()])
    assert received == ["Clear. Normal heart.", grounded[0].candidate]
    ratio = FunctionMetric(lambda candidate, reference: len(candidate.split()) / len(reference.split()), "ratio")
    assert evaluate(grounded, [ratio]).scores["ratio"] == 3


def test_evaluate_writes_its_files(tmp_path: Path) -> None:
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
    assert (tmp_path / "report.html").is_file()
    # Another selection removes the files of metrics that it does not have, and no others.
    (tmp_path / "metrics" / "notes.txt").write_text("mine")
    evaluate(PAIRS, ["rouge_l"], out=tmp_path)
    assert {path.name for path in (tmp_path / "metrics").iterdir()} == {"notes.txt", "rouge_l.json", "rouge_l.jsonl"}


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


def _states_of_kills(pairs: Sequence[Pair], out: Path, folder: Path) -> list[Path]:
    """Evaluate, and copy the output before each call to the file system: this is what a kill at the call leaves."""
    copies: list[Path] = []
    is_copying = False

    def copying(function: Callable[..., Any]) -> Callable[..., Any]:
        def copy_first(*args: Any, **kwargs: Any) -> Any:
            nonlocal is_copying
            if not is_copying:
                is_copying = True
                copies.append(shutil.copytree(out, folder / str(len(copies))))
                is_copying = False
            return function(*args, **kwargs)

        return copy_first

    with pytest.MonkeyPatch.context() as patch:
        for name in _CALLS:
            patch.setattr(os, name, copying(getattr(os, name)))
        evaluate(pairs, ["rouge_l"], out=out, bootstrap=0)
    return copies


def _results(folder: Path) -> dict[str, bytes]:
    files = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}
    return {name: path.read_bytes() for name, path in files.items() if name not in ("run.json", "report.html")}


def test_a_kill_at_any_call_leaves_the_old_or_the_new_results(tmp_path: Path) -> None:
    """The same command finishes them; a file of another origin and the cache stay."""
    others = [Pair(pair.sample_id, "No finding at all.", pair.reference) for pair in PAIRS]
    old, new = tmp_path / "old", tmp_path / "new"
    evaluate(PAIRS, ["rouge_l", "lateral_mentions"], out=old, bootstrap=0)
    (old / "notes.txt").write_text("mine")
    shutil.copytree(old, new)
    states = _states_of_kills(others, new, tmp_path / "states")
    complete = {name: _results(folder) for name, folder in (("old", old), ("new", new))}
    ends, last = set(), None
    for call, out in enumerate(states):
        # While new files are written apart, most calls change nothing else.
        names = {path.relative_to(out) for path in out.rglob("*") if ".new" not in path.parts}
        is_finished = call % 6 == 0 or names != last
        last = names
        read_scores(out)  # ends an interrupted move, as every reader does
        files = {name: data for name, data in _results(out).items() if name in complete["old"] | complete["new"]}
        ends |= {name for name, results in complete.items() if results == files}
        assert files in complete.values()
        if is_finished:
            evaluate(others, ["rouge_l"], out=out, bootstrap=0)
            assert _results(out) == complete["new"]
    assert ends == {"old", "new"}
    assert len(states) > 30


def test_a_sample_without_a_value_is_a_failure_and_counted_on_the_page(tmp_path: Path) -> None:
    run = evaluate(PAIRS, [Silent(), "rouge_l"], out=tmp_path).runs["silent"]
    assert (run.summaries["x"].n, run.result.failures) == (3, {1: "gave no value"})
    page = (tmp_path / "report.html").read_text()
    assert "<dt>not scored by silent</dt><dd>1</dd>" in page
    assert "<dt>not scored by every metric</dt><dd>1</dd>" in page
    assert "<dt>excluded</dt>" not in page
    assert "not scored by rouge" not in page


@pytest.mark.parametrize(
    ("metric", "reason"),
    [
        (Broken(), "the server cannot be reached"),
        (Short(), "one per pair"),
        (Silenced(), r"no sample could be scored \(gave no value\)"),
        (FunctionMetric(lambda *_: None, "mute"), "^mute: expected a number, .*, found None$"),  # type: ignore[arg-type, return-value]
        (metric_class("empty", list, score=lambda *_: None)(), "^empty: expected a MetricResult, found NoneType$"),
        (NoAnswer(), r"no sample could be scored \(no answer\)"),
        (Raising(), r"raising fails with ZeroDivisionError: .* \(test_evaluate\.py, line \d+\)"),
        ("custom_metric:FailingConstructor", r"Constructor fails with RuntimeError: no license \(test_.*, line \d+\)"),
        ("custom_metric:Listed", "expected a mapping of scores"),
        ("custom_metric:TextAsMainScores", "expected a list of its scores, found 'x'"),
        ("custom_metric:BOX", "expected a subclass of radfact.Metric"),
    ],
)
def test_a_metric_that_fails_is_unavailable_with_its_reason_on_one_line(metric: Any, reason: str) -> None:
    result = evaluate(PAIRS, [metric, Length()])
    assert list(result.runs) == ["length"]
    (message,) = result.unavailable.values()
    assert re.search(reason, message)
    assert "\n" not in message
    with pytest.raises((InputError, RunError), match=reason):
        evaluate(PAIRS, [metric])


def test_a_client_with_unsuitable_parameters_has_a_warning() -> None:
    client = mock_client(lambda _: "yes")
    client.identity["parameters"] = {"temperature": 1, "max_tokens": 16}
    with pytest.warns(UserWarning, match="comparison_mentions .* temperature 0"):
        evaluate(PAIRS, "comparison_mentions", model=client)


def test_the_dataframe_has_a_row_per_sample() -> None:
    pandas = pytest.importorskip("pandas")
    result: EvaluationResult = evaluate(PAIRS, [Length(), "rouge_l"])
    frame = result.to_dataframe()
    assert isinstance(frame, pandas.DataFrame)
    assert list(frame.columns) == ["rouge_l", "words", "failure"]
    assert math.isnan(frame.loc["d", "words"])


@pytest.mark.parametrize("entry", entries().values(), ids=lambda entry: entry.name)
def test_every_registered_metric_is_complete_with_its_variants(entry: MetricEntry) -> None:
    """Variants of RadFact keep its names of scores: the pages and the export know them."""
    metric = entry.load()
    assert metric.name == entry.name
    assert set(metric.pooled) <= set(entry.scores)
    main_scores = set(main_scores_of(metric))
    assert set() < main_scores <= set(entry.scores) - set(metric.dataset_scores)
    assert entry.source
    assert metric.cost
    for name, variant in ((name, variant.load()) for name, variant in entry.variants.items()):
        assert (variant.variant, variant.name) == (name, entry.name)
        assert variant.difference
        assert all(score.endswith(f".{name}") or entry.name == "radfact" for score in variant.scores)
        assert {*variant.pooled, *variant.main_scores} <= set(variant.scores)


def test_registered_score_names_are_unique_and_main_scores_where_a_metric_names_none() -> None:
    scores = [score for entry in entries().values() for score in entry.scores]
    assert len(scores) == len(set(scores))
    assert main_scores_of(Length()) == list(Length.scores)


@pytest.mark.parametrize(("names", "main_scores", "selected"), CASES["names of metrics"])
def test_names_determine_scores_and_main_scores(names: list[str], main_scores: list[str], selected: str) -> None:
    selections = {selection.entry.name: selection for selection in select_metrics(names)}
    selection, metric = selections["bleu"], Bleu()
    assert selection.main_scores(metric) == main_scores
    assert list(selection.select(metric)) == [f"bleu_{order}" for order in selected]
    assert selection.is_named == (names != ["all"])
    # All metrics are without the variants of some.
    assert ({"radfact", "rouge_l", "green", "chexbert"} <= set(selections)) == ("all" in names)
    assert "vert_rubric" not in selections


REPEATED = [Pair(str(place), f"Candidate {place}.", f"Reference {place}.") for place in range(6)]


def green_response(matched: int, significant: int) -> str:
    return GreenResponse((("x",) * significant, *[()] * 5), ((),) * 6, ("a",) * matched).text()


def client_of(answers: ResponseFunction, folder: Path | None = None) -> ChatClient:
    cache = None if folder is None else ResponseCache(folder)
    return ChatClient(MockChatModel(answers), {"model": "mock:m"}, cache=cache, concurrency=1)


def test_repeats_have_their_own_keys_and_the_first_keeps_its_key() -> None:
    messages = (("user", "x"),)
    keys = [response_key(b"{}", NO_PREFIX, messages, schema, n) for schema in (None, {"a": 1}) for n in range(3)]
    assert len(set(keys)) == 6
    # The key of responses that are cached already.
    assert keys[0] == response_key(b"{}", NO_PREFIX, messages)
    assert keys[0] == "bc838b1637457b8581dc8b48f9adaf0158409e1c20b4f37997fe21febd2c83eb"


def test_a_repeat_does_not_use_the_cached_responses_of_another(tmp_path: Path) -> None:
    answers = iter("abcd")
    request = ChatRequest((("user", "x"),), parse=str)
    for _ in range(2):
        with client_of(lambda _: next(answers), tmp_path) as client:
            results = client.complete_all([request, request])
            for number in (1, 2):
                with use_repeat(number):
                    results += client.complete_all([request])
            assert results == ["a", "a", "b", "c"]
    assert current_repeat() == 0


def score(metric: Metric, pairs: Sequence[Pair], repeat: int) -> MetricResult:
    return evaluate(pairs, [metric], repeat=repeat, bootstrap=0).runs[metric.name].result


def test_scores_are_means_over_repeats_with_their_deviation() -> None:
    generator = random.Random(1)
    drawn = [[(generator.randint(1, 4), generator.randint(0, 3)) for _ in REPEATED] for _ in range(3)]
    answers = iter([green_response(*answer) for repeat in drawn for answer in repeat])
    result = score(Green(client_of(lambda _: next(answers))), REPEATED, 3)
    greens = [[matched / (matched + errors) for matched, errors in repeat] for repeat in drawn]
    by_sample = list(zip(*greens, strict=True))
    assert result.values["green"] == pytest.approx([statistics.fmean(values) for values in by_sample])
    assert result.repeats is not None
    expected = statistics.stdev(statistics.fmean(repeat) for repeat in greens)
    assert result.repeats.repeat_sd["green"] == pytest.approx(expected)
    deviations = [detail["repeat_sd"]["green"] for detail in result.details]
    assert deviations == pytest.approx([statistics.stdev(values) for values in by_sample])
    assert (result.usage["calls"], result.repeats.count, result.repeats.partly_failed) == (18, 3, 0)


def test_samples_with_a_failed_answer_keep_the_others() -> None:
    """Sample 0 has no valid response at all, sample 1 none in the first repeat."""

    def answer(_: str, conversation: Sequence[Message]) -> str:
        message = conversation[0][1]
        if "Candidate 0." in message or ("Candidate 1." in message and current_repeat() == 0):
            return "I cannot say."
        return green_response(2, 2)

    result = score(Green(client_of(answer)), REPEATED[:3], 2)
    assert list(result.failures) == [0]
    assert result.values["green"][1:] == [0.5, 0.5]
    assert result.repeats is not None
    assert result.repeats.partly_failed == 1
    assert [detail["failed_repeats"] for detail in result.details] == [2, 1, 0]
    assert "matched" in str(result.details[1])


def test_radfact_is_repeated_with_its_model_and_not_with_the_offline_judge() -> None:
    sentences = [Pair(str(place), [Sentence(text="No effusion.")], [Sentence(text="Clear.")]) for place in range(8)]
    generator = random.Random(2)

    def judge(_premises: Sequence[str], _hypothesis: str) -> bool:
        return generator.random() < 0.5

    result = score(RadFactMetric(judge), sentences, 4)
    assert result.repeats is not None
    assert result.repeats.repeat_sd["logical_f1"] is not None
    assert set(result.values["logical_precision"]) <= {0.0, 0.25, 0.5, 0.75, 1.0}
    evaluation = evaluate(sentences, ["radfact", "rouge_l"], judge="offline", repeat=3)
    assert evaluation.repeat_sd == {}
    assert [note.partition(":")[0] for note in evaluation.repeat_notes] == ["radfact", "rouge_l"]
    with raises("repeat: invalid-option"):
        evaluate(sentences, ["rouge_l"], repeat=0)


def test_an_interrupted_run_continues_from_the_cache(tmp_path: Path) -> None:
    """The model fails in the second of three repeats; the same run then sends only the missing queries."""

    def run(limit: int | None, folder: Path) -> tuple[int, dict[str, float | None] | None]:
        calls = 0

        def answer(message: str) -> str:
            nonlocal calls
            number = REPEATED.index(next(pair for pair in REPEATED if str(pair.candidate) in message))
            if limit is not None and calls >= limit:
                raise CallError("stopped", "the quota is used up")
            calls += 1
            generator = random.Random(current_repeat() * 100 + number)
            return green_response(generator.randint(1, 4), generator.randint(0, 3))

        with client_of(answer, folder.with_suffix(".cache")) as client:
            try:
                result = evaluate(REPEATED, ["green"], model=client, repeat=3, out=folder)
            except RunError:
                return calls, None
            return calls, {"green": result.scores["green"], **result.repeat_sd}

    assert run(8, tmp_path / "a") == (8, None)
    calls, resumed = run(None, tmp_path / "a")
    assert calls == 18 - 8
    assert (18, resumed) == run(None, tmp_path / "b")
    scores = read_json(tmp_path / "a" / "scores.json")
    assert resumed is not None
    assert scores["scores"]["green_f1"]["repeat_sd"] == pytest.approx(resumed["green_f1"])
    assert scores["metrics"]["green"]["repeats"] == 3
    assert "Repeat SD" in (tmp_path / "a" / "report.html").read_text()
    details = [row for _, row in read_jsonl(tmp_path / "a" / "metrics" / "green.jsonl")]
    assert all("green" in row["details"]["repeat_sd"] for row in details)


def test_no_name_of_a_table_is_broken_in_a_narrow_terminal() -> None:
    """With the column of deviations, the names of GREEN's scores are wider than theirs in 80 columns."""
    with client_of(lambda _: green_response(2, 1)) as client:
        result = evaluate(REPEATED, ["green"], model=client, repeat=2, bootstrap=20)
    output = StringIO()
    console = Console(file=output, width=80)
    show_results(console, result, None, verbose=True)
    systems = [f"a_system_with_a_long_name_{index}" for index in range(3)]
    show_rows(console, ["score", *systems], [["x" * 50, *["0.123 [0.100, 0.200]"] * 3], ["y" * 90, "1", "2", "3"]])
    lines = output.getvalue().splitlines()
    assert {line.split()[0] for line in lines if line.strip()} >= {*result.scores, "x" * 50, "y" * 90}
    assert {word for line in lines for word in line.split()} >= {*systems, "median"}
    assert max(len(line.rstrip()) for line in lines if not set(line) & {"x", "y", "─"}) <= 80


def test_consistency_needs_no_reference_and_other_metrics_say_that_they_do(
    tmp_path: Path, run_radfact: Callable[..., tuple[int, str, str]]
) -> None:
    rows = [{"sample_id": "a", "report": "No effusion. Small effusion."}, {"sample_id": "b", "report": ""}]
    write_jsonl(tmp_path / "drafts.jsonl", rows)
    given = ("--metrics", "consistency,rouge_l", "--out", str(tmp_path / "r"))
    for files in (["drafts.jsonl"], ["--candidates", "drafts.jsonl"]):
        code, out, _ = run_radfact(
            "evaluate", *(str(tmp_path / name) if "." in name else name for name in files), *given
        )
        assert (code, "without rouge_l: needs a reference" in out) == (ExitCode.INCOMPLETE, True)
        assert "b: the candidate is empty" in out
    table = [{"id": row["sample_id"], "candidate": row["report"]} for row in rows]
    result = evaluate(table, "consistency", bootstrap=0)
    assert result.values["consistency"][0] == result.scores["consistency_contradiction_free"] == 0
    assert math.isnan(result.values["consistency"][1])
    with raises_code(ErrorCode.MISSING_FIELD):
        evaluate(table, "rouge_l", bootstrap=0)
    assert make_reward("consistency")(["", "No effusion."], ground_truth=["Clear lungs."] * 2) == [0, 1]
