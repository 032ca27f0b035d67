"""Repeated queries: the standard deviation over repeats, in addition to the sampling interval."""

import random
import statistics
from collections.abc import Sequence
from io import StringIO
from pathlib import Path

import pytest
from error_checks import raises
from green_responses import GreenResponse
from rich.console import Console

from radfact.api import evaluate
from radfact.cli.tables import show_results
from radfact.errors import RunError
from radfact.io.jsonl import read_json, read_jsonl
from radfact.llm import CallError, ChatClient, ChatRequest, Message, MockChatModel, ResponseCache
from radfact.llm.cache import response_key
from radfact.llm.mock import ResponseFunction
from radfact.llm.protocol import NO_PREFIX, current_repeat, use_repeat
from radfact.metrics.llm.green import Green
from radfact.metrics.protocol import Metric, MetricResult
from radfact.metrics.radfact.metric import RadFactMetric
from radfact.records import Pair, Sentence

PAIRS = [Pair(str(place), f"Candidate {place}.", f"Reference {place}.") for place in range(6)]


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
    drawn = [[(generator.randint(1, 4), generator.randint(0, 3)) for _ in PAIRS] for _ in range(3)]
    answers = iter([green_response(*answer) for repeat in drawn for answer in repeat])
    result = score(Green(client_of(lambda _: next(answers))), PAIRS, 3)
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

    result = score(Green(client_of(answer)), PAIRS[:3], 2)
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
            number = PAIRS.index(next(pair for pair in PAIRS if str(pair.candidate) in message))
            if limit is not None and calls >= limit:
                raise CallError("stopped", "the quota is used up")
            calls += 1
            generator = random.Random(current_repeat() * 100 + number)
            return green_response(generator.randint(1, 4), generator.randint(0, 3))

        with client_of(answer, folder.with_suffix(".cache")) as client:
            try:
                result = evaluate(PAIRS, ["green"], model=client, repeat=3, out=folder)
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


def test_names_of_scores_are_complete_in_a_narrow_terminal() -> None:
    """With the column of deviations, the names of GREEN's scores are wider than theirs in 80 columns."""
    with client_of(lambda _: green_response(2, 1)) as client:
        result = evaluate(PAIRS, ["green"], model=client, repeat=2, bootstrap=20)
    output = StringIO()
    show_results(Console(file=output, width=80), result, None)
    assert "repeat sd" in output.getvalue()
    assert "…" not in output.getvalue()
