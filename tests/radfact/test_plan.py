"""Before and during a run: `--dry-run` and `--limit`, what it would send and cost, and its progress."""

import io
import json
import re
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from error_checks import raises_code
from rich.console import Console

from radfact import progress as live
from radfact.api import MetricSet, as_pairs
from radfact.errors import ErrorCode
from radfact.io.pairs import read_pairs
from radfact.judges import load_judge, load_splitter
from radfact.judges.llm_judge import LLMJudge, judge_prompt
from radfact.judges.llm_splitter import LLMSplitter
from radfact.llm import ChatClient, ChatRequest, MockChatModel, ResponseCache
from radfact.llm.plan import CHARACTERS_PER_TOKEN, RequestPlan, plan_requests
from radfact.metrics.llm.crimson import Crimson
from radfact.metrics.llm.green import Green
from radfact.metrics.protocol import FunctionMetric, score_pairs
from radfact.metrics.radfact.metric import RadFactMetric
from radfact.metrics.registry import entries
from radfact.progress import Meter, Price, ServerActivity, describe_usage, display_progress, parse_price
from radfact.records import Pair, Pairs, Sentence

Run = Callable[..., tuple[int, str, str]]

NO = "evidence: []\nstatus: not_entailment"
BUILT_IN = {name: entry.declared for name, entry in entries().items() if entry.is_builtin}
LLM_METRICS = [name for name, declared in BUILT_IN.items() if declared.requirements.judge == "model"]
GROUNDED = [
    Pair(str(i), [Sentence(text=f"Effusion {i}."), Sentence(text="No edema.")], [Sentence(text=f"Mass {i}.")])
    for i in range(4)
]
"""Two sentences and one: three queries each."""
NARRATIVE = [Pair(str(i), f"Effusion {i}. No edema.", "The heart is enlarged.") for i in range(4)]


def client(responses: Any = NO, **options: Any) -> ChatClient:
    return ChatClient(MockChatModel(responses), {"model": "mock:m"}, **{"max_invalid": 0, **options})


def sent(chat: ChatClient) -> list[Any]:
    assert isinstance(chat.backend, MockChatModel)
    return chat.backend.calls


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> Iterator[MockChatModel]:
    backend = MockChatModel(NO)
    monkeypatch.setattr("radfact.llm.loading._backend", lambda *_: (backend, {}))
    return backend


def test_the_queries_of_a_judge_are_those_of_its_run(model: MockChatModel) -> None:
    plan = RadFactMetric(load_judge("openai:m")).plan(GROUNDED)["judging"]
    # In batches, four candidates with two sentences and four references with one.
    assert RadFactMetric(load_judge("openai:m", batch="report")).plan(GROUNDED)["judging"].queries == 8
    assert model.calls == []
    RadFactMetric(load_judge("openai:m")).score(GROUNDED)
    characters = sum(len(text) for call in model.calls for _, text in call)
    assert plan == RequestPlan(
        "openai:m", len(model.calls), 0, round(characters / CHARACTERS_PER_TOKEN), (0, 1024 * len(model.calls))
    )


@pytest.mark.parametrize("name", LLM_METRICS)
def test_the_queries_of_a_metric_are_those_of_its_run(name: str) -> None:
    chat = client()
    metrics = MetricSet(name, model=chat)
    plan = metrics.plan(as_pairs(NARRATIVE))[name]
    assert sent(chat) == []
    score_pairs(metrics.metrics[name][1], NARRATIVE)
    assert plan.queries == chat.usage_counter.planned > 0


def test_repeats_are_separate_queries_and_equal_requests_are_one() -> None:
    pairs = [*NARRATIVE, Pair("again", NARRATIVE[0].candidate, NARRATIVE[0].reference)]
    assert MetricSet("green", model=client(), repeat=3).plan(as_pairs(pairs))["green"].queries == 12


def test_the_offline_rules_estimate_narratives_that_are_not_split(model: MockChatModel) -> None:
    plans = RadFactMetric(load_judge("openai:m")).plan(NARRATIVE)
    # Four candidates and the shared reference. "No edema." is one query, since the reference is the same.
    assert (plans["splitting"].queries, plans["splitting"].is_exact) == (5, True)
    assert (plans["judging"].queries, plans["judging"].is_exact) == (4 + 1 + 4, False)
    assert model.calls == []


def test_cached_splits_give_the_exact_number_of_queries(tmp_path: Path) -> None:
    def split(message: str) -> str:
        return json.dumps([{"orig": message, "new": ["one", "two", "three"]}])

    with client(split, cache=ResponseCache(tmp_path)) as chat:
        splitter = LLMSplitter("m", chat, [])
        splitter.split([text for pair in NARRATIVE for text in (pair.candidate, pair.reference)])
        before = len(sent(chat))
        plans = RadFactMetric(LLMJudge("m", client(), judge_prompt()), splitter).plan(NARRATIVE)
    assert (plans["splitting"].queries, plans["splitting"].cached) == (0, before)
    # All reports have the same three sentences.
    assert (plans["judging"].queries, plans["judging"].is_exact) == (3, True)


def test_only_language_models_have_tokens() -> None:
    def fail(*_: Any) -> Any:
        raise AssertionError

    plans = RadFactMetric(fail, fail).plan(NARRATIVE)
    assert (plans["splitting"].queries, plans["judging"].queries) == (5, 9)
    assert {plan.tokens_in for plan in plans.values()} == {None}
    assert RadFactMetric(load_judge("offline"), load_splitter("offline")).plan(NARRATIVE) == {}
    assert FunctionMetric(lambda *_: 1.0, "x").plan([]) == {}


def test_tokens_are_estimated_from_cached_responses(tmp_path: Path) -> None:
    with client("word " * 30, cache=ResponseCache(tmp_path)) as chat:
        metric = Green(chat)
        metric.score(NARRATIVE[:2])
        plan = metric.plan(NARRATIVE)["green"]
        (tokens,) = {sum(len(text.split()) for _, text in call) for call in sent(chat) if len(call) == 1}
        # A response without the schema of a request is its response as well.
        (request,) = Crimson(chat).requests(NARRATIVE[:1])
        chat.complete_all([ChatRequest(request.messages, str, request.prefix)])
        plan_of_invalid, values = plan_requests(chat, [request])
    assert (plan.queries, plan.cached, plan.tokens_in, plan.tokens_out) == (2, 2, 2 * tokens, (60, 60))
    assert (plan_of_invalid.queries, plan_of_invalid.cached, values) == (0, 1, [None])


@pytest.mark.parametrize(("parameters", "high"), [({}, None), ({"max_completion_tokens": 50}, 200)])
def test_the_limit_of_tokens_is_the_upper_bound(parameters: dict[str, int], high: int | None) -> None:
    chat = ChatClient(MockChatModel(NO), {"model": "m", "parameters": parameters})
    assert Green(chat).plan(NARRATIVE)["green"].tokens_out == (0, high)


def test_a_dry_run_sends_and_writes_nothing(run_radfact: Run, serve: Any) -> None:
    server = serve(lambda *_: (200, {}, NO))
    sides = [(str(i), [{"text": f"Effusion {i}."}], [{"text": f"Mass {i}."}]) for i in range(6)]
    rows = [dict(zip(("example_id", "prediction", "target"), row, strict=True)) for row in sides]
    Path("pairs.json").write_text(json.dumps(rows))
    command = ["score", "pairs.json", "--judge", "openai:m", "--base-url", server.base_url, "--price", "1000,2000,EUR"]
    code, out, _ = run_radfact(*command, "--dry-run")
    assert (code, server.requests, "cost EUR" in out) == (0, [], True)
    assert [path.name for path in Path().iterdir()] == ["pairs.json"]
    (row,) = [re.split(r"\s{2,}", line.strip()) for line in out.splitlines() if "judging" in line]
    assert (row[1:4], row[5]) == (["openai:m", "12", "0"], "up to 12.3k")  # 12 x 1,024
    assert run_radfact(*command)[0] == 0
    characters = sum(len(message["content"]) for request in server.requests for message in request["messages"])
    tokens = round(characters / CHARACTERS_PER_TOKEN)
    assert row[6] == f"{tokens / 1000:.2f} to {(tokens + 2 * 12 * 1024) / 1000:.2f}"
    before = set(Path().rglob("*"))
    code, out, _ = run_radfact(*command, "--dry-run")
    assert (code, len(server.requests), "No queries to a model." in out) == (0, 12, True)
    # SQLite removes the files of open connections when those of the first command have closed.
    assert {path.suffix for path in before ^ set(Path().rglob("*"))} <= {".sqlite-shm", ".sqlite-wal"}


def test_a_sample_is_recorded(run_radfact: Run) -> None:
    rows = [f"{i},Effusion {i}.,Mass {i}." for i in range(10)]
    Path("pairs.csv").write_text("\n".join(["example_id,prediction,target", *rows]))
    command = ("score", "pairs.csv", "--judge", "offline", "--out", "r")
    assert run_radfact(*command, "--limit", "0")[0] == 2
    code, out, _ = run_radfact(*command, "--limit", "4")
    assert (code, "pairs: 4, a random sample of 10" in out) == (0, True)
    counts = json.loads(Path("r/scores.json").read_text())["counts"]
    assert (counts["samples"], counts["drawn_from"]) == (4, 10)
    assert json.loads(Path("r/run.json").read_text())["options"]["limit"] == 4
    assert "A random sample: 4 of 10 studies." in Path("r/report.html").read_text()
    assert "r holds scores with limit 4" in run_radfact(*command)[1]
    assert "drawn_from" not in json.loads(Path("r/scores.json").read_text())["counts"]
    assert read_pairs("pairs.csv").sample(1).files == (Path("pairs.csv"),)


def ids(pairs: Sequence[Pair]) -> list[str]:
    return [pair.sample_id for pair in pairs]


POPULATION = Pairs(tuple(Pair(f"s{i}", "a", "b") for i in range(50)), read=50)


def test_a_sample_depends_on_ids_and_seed_alone_and_keeps_the_order() -> None:
    sample = POPULATION.sample(10)
    assert ids(sample) == [key for key in ids(POPULATION) if key in ids(sample)]
    assert (len(sample), sample.drawn_from) == (10, 50)
    shuffled = Pairs(tuple(reversed(POPULATION.pairs)), read=50)
    assert set(ids(shuffled.sample(10))) == set(ids(sample)) != set(ids(POPULATION.sample(10, seed=1)))
    assert set(ids(sample)) < set(ids(POPULATION.sample(20)))
    assert POPULATION.sample(50) is POPULATION
    assert POPULATION.sample(99).drawn_from is None


def test_a_sample_is_random() -> None:
    counts = dict.fromkeys(ids(POPULATION), 0)
    for seed in range(400):
        for key in ids(POPULATION.sample(10, seed)):
            counts[key] += 1
    # Binomial with n = 400 and p = 0.2: mean 80, standard deviation 8.
    assert all(40 < count < 120 for count in counts.values())


def test_references_without_a_candidate_are_part_of_the_population() -> None:
    absent = dict.fromkeys(ids(POPULATION)[:20], "none")
    some = Pairs(POPULATION.pairs[20:], read=50, without_candidate=absent)
    sample = some.sample(10)
    assert {*ids(sample), *sample.without_candidate} == set(ids(POPULATION.sample(10)))
    assert len(sample) < 10


@pytest.mark.parametrize("text", ["1", "1,2,3", "1,2,euro", "1,2,EUR,4", "a,b", "1,nan", "-1,2", "1e999,1", ""])
def test_a_wrong_price_is_refused(text: str) -> None:
    with raises_code(ErrorCode.INVALID_OPTION, field="--price"):
        parse_price(text)


def test_a_price_has_a_currency() -> None:
    price = parse_price("0.5, 1.5, CHF")
    assert price is not None
    assert describe_usage({"tokens_in": 2_000_000, "tokens_out": 1_000_000}, price).endswith(", cost 2.50 CHF")
    assert parse_price("1,2,") == parse_price("1.,+2") == parse_price("1,2")


@pytest.fixture(autouse=True)
def no_other_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide the clients that other tests of this process have left."""
    monkeypatch.setattr(ServerActivity, "_all", weakref.WeakSet())


def metered(*readings: tuple[float, dict[str, int]], price: Price | None = None) -> Meter:
    meter = Meter("judging", price)
    for now, usage in readings:
        meter.read(usage, now)
    return meter


def test_rate_and_time_left_follow_from_completed_queries() -> None:
    meter = metered((0, {"planned": 100, "done": 0}), (10, {"planned": 100, "done": 20}))
    assert (meter.rate, meter.seconds_left) == (2, 40)
    assert meter.line() == "judging: 20 of 100 done, 2 per second, 0:00:40 left"


def test_cached_responses_do_not_shorten_the_time_left() -> None:
    quick = [(0.0, {"planned": 9000, "done": 0}), (1.0, {"planned": 9000, "done": 5000})]
    slow = [(float(now), {"planned": 9000, "done": 5000 + now}) for now in range(2, 60)]
    assert metered(*quick, *slow).rate == pytest.approx(1)
    # Queries before the first count are not part of the rate.
    assert metered((0, {}), (10, {"planned": 9000, "done": 5000}), (20, {"planned": 9000, "done": 5010})).rate == 1


def test_tokens_cost_failures_and_retries_are_shown() -> None:
    usage = {"planned": 9, "done": 5, "tokens_in": 2_000_000, "tokens_out": 1500, "failures": 1, "retries": 3}
    meter = metered((0, usage), price=Price(0.5, 100))
    assert meter.status == "1 failed, 3 retries, tokens 2M in, 1.5k out, cost 1.15"


@pytest.mark.parametrize(("number", "text"), [(0, "0"), (999, "999"), (1000, "1k"), (123456, "123k"), (2e9, "2G")])
def test_counts_are_abbreviated(number: int, text: str) -> None:
    assert live.format_count(number) == text


def test_the_terminal_is_restored() -> None:
    written = io.StringIO()
    with display_progress(Console(file=written, force_terminal=True, width=100), {"judging": lambda: {"planned": 3}}):
        pass
    # Every line that was drawn is erased, and the cursor is there again.
    assert written.getvalue().count("\x1b[?25l") == written.getvalue().count("\x1b[?25h") > 0
    assert "judging" not in written.getvalue().rsplit("\x1b[2K", 1)[1]


def test_a_silent_server_is_shown_within_seconds() -> None:
    now = 0.0
    activity = ServerActivity("judge:8000", clock=lambda: now)
    now = 60.0  # nothing was sent
    assert activity.status() == ""
    with activity.calling():
        now = 64.0
        assert activity.status() == ""
        now = 72.0
        assert activity.status() == "waiting for judge:8000: no answer for 12 s"
    activity.wait("HTTP 429", 300.0)
    assert activity.status() == "judge:8000: rate limited, next try in 300 s"
    now = 102.0
    assert activity.status() == "judge:8000: rate limited, next try in 270 s"
    activity.respond()
    assert activity.status() == ""


class SignalingConsole(Console):
    """Sets an event once both texts were printed, the first one twice."""

    def __init__(self, first: str, second: str) -> None:
        self.written, self.printed, self.texts = io.StringIO(), threading.Event(), (first, second)
        super().__init__(file=self.written)

    def print(self, *objects: Any, **options: Any) -> None:
        super().print(*objects, **options)
        first, second = map(self.written.getvalue().count, self.texts)
        if first >= 2 and second:
            self.printed.set()


def test_without_terminal_lines_come_at_intervals_and_a_silent_server_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "LINE_INTERVAL", 0.001)
    monkeypatch.setattr(live, "POLL_INTERVAL", 0.001)
    monkeypatch.setattr(live, "SILENT_SECONDS", 0.0)
    console, activity = SignalingConsole("judging: 1 of 3 done", "waiting"), ServerActivity("judge:8000")
    with activity.calling(), display_progress(console, {"judging": lambda: {"planned": 3, "done": 1}}):
        assert console.printed.wait(10)
    first, second, *_ = console.written.getvalue().splitlines()
    assert first.startswith("judging: 1 of 3 done")
    assert second == "waiting for judge:8000: no answer for 0 s"
