"""The same judge on a Ray cluster of two workers on this machine: equal verdicts, stores that become one."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from real_servers import FEW_SHOTS, MODEL_FOLDER, PAIRS, VLLM_ENGINE, VLLM_ENVIRONMENT, Server, radfact

from radfact.errors import ErrorCode, ExitCode, Failure, InputError, RunError
from radfact.judges import EntailmentQuery, Splitter, Verdict, default_splitter, load_judge, load_splitter
from radfact.judges.callables import CallableSplitter
from radfact.judges.check import load_labeled_queries
from radfact.judges.llm_judge import LLMJudge, judge_prompt
from radfact.judges.options import JudgeOptions
from radfact.judges.ray import RaySplitter, load_ray_judge
from radfact.llm import CachedResponse, ChatClient, MockChatModel, ResponseCache
from radfact.llm.ray_cluster import RayWorkers, gpus_per_engine, gpus_per_worker
from radfact.progress import ServerActivity

pytest.importorskip("ray", reason='Ray is not installed: pip install "ray[data]"')
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:ray.data.context")


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    """A cluster of two CPUs on the loopback address, ended with the module."""
    import ray

    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
        environment.setenv("RAY_USAGE_STATS_ENABLED", "0")
        # The workers import the judge that this module makes.
        environment.setenv("PYTHONPATH", str(Path(__file__).parent))
        ray.init(
            address="local",
            num_cpus=2,
            include_dashboard=False,
            object_store_memory=200 * 1024**2,
            log_to_driver=False,
            _node_ip_address="127.0.0.1",
        )
    yield
    ray.shutdown()


def _labeled_queries() -> list[EntailmentQuery]:
    return [item.query for item in load_labeled_queries(None)]


def _premises(query: EntailmentQuery) -> tuple[str, ...]:
    return query.premises


@pytest.mark.usefixtures("cluster")
def test_two_workers_give_the_verdicts_of_one_process() -> None:
    queries = _labeled_queries()
    spread = load_ray_judge("offline", workers=2)
    assert spread.judge(queries) == load_judge("offline").judge(queries)
    assert spread.usage()["done"] == spread.usage()["planned"] == len(queries)
    assert spread.describe() == load_judge("offline").describe()


@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize("name", ["offline", "python:test_ray:WordsJudge"])
def test_two_workers_split_as_whoever_splits_beside_the_judge(name: str) -> None:
    narratives = ["Heart size normal. Lungs clear.", "No pneumothorax."]
    spread, alone = default_splitter(load_ray_judge(name, workers=2)), default_splitter(load_judge(name))
    assert spread.split(narratives) == alone.split(narratives)
    assert spread.describe() == alone.describe()


def hopeless_judge() -> LLMJudge:
    """A judge whose model never follows the format, with one call at a time."""
    client = ChatClient(MockChatModel("I cannot assess images."), {"model": "mock:hopeless"}, concurrency=1)
    return LLMJudge("hopeless", client, judge_prompt())


@pytest.mark.usefixtures("cluster")
def test_a_hopeless_judge_stops_the_run_on_a_cluster_too() -> None:
    with pytest.raises(RunError, match=r"the first 10 responses are all invalid.*--max-invalid 0") as error:
        load_ray_judge("python:test_ray:hopeless_judge", workers=2).judge(_labeled_queries())
    assert error.value.code is ErrorCode.JUDGE_FAILED


@pytest.mark.usefixtures("cluster")
def test_the_first_failures_on_a_cluster_are_shown() -> None:
    judge = load_ray_judge("python:test_ray:hopeless_judge", workers=2)
    failures = judge.judge(_labeled_queries()[:3])
    assert all(isinstance(failure, Failure) for failure in failures)
    assert f"python:test_ray:hopeless_judge: {failures[0].reason}" in ServerActivity.failures()


@pytest.mark.usefixtures("cluster")
def test_the_offline_rules_are_spread_beside_a_judge_that_does_not_split() -> None:
    options = JudgeOptions(judge="python:operator:contains", engine="ray", workers=2)
    narratives = ["Heart size normal. Lungs clear.", "No pneumothorax."]
    spread, alone = options.load_splitter(options.load()), load_splitter("offline")
    assert isinstance(spread, RaySplitter)
    assert spread.split(narratives) == alone.split(narratives)
    assert spread.describe() == alone.describe()


@pytest.mark.parametrize(
    ("judge", "splitter", "field"),
    [
        ("python:test_ray:WordsJudge", None, "splitter_args"),
        ("python:operator:contains", "python:operator:contains", "splitter"),
    ],
)
def test_what_does_not_fit_whoever_splits_is_refused_on_a_cluster_too(
    judge: str, splitter: str | None, field: str
) -> None:
    options = JudgeOptions(judge=judge, engine="ray", workers=2, splitter=splitter, splitter_args={"ontology": "x"})
    with pytest.raises(InputError) as error:
        options.load_splitter(options.load())
    assert error.value.field == field


class WordsJudge:
    """A custom judge, whose sentences are words."""

    name = "words"

    def judge(self, queries: Sequence[EntailmentQuery]) -> list[Verdict | Failure]:
        return [Verdict("not_entailment")] * len(queries)

    def describe(self) -> dict[str, Any]:
        return {"name": self.name}

    def usage(self) -> dict[str, int]:
        return {}

    def make_splitter(self) -> Splitter:
        return CallableSplitter(str.split, "words")


@pytest.mark.usefixtures("cluster")
def test_queries_with_the_same_premises_stay_together() -> None:
    queries = [
        EntailmentQuery((f"Report {number}.",), f"Sentence {index}.") for number in range(40) for index in range(5)
    ]
    spread = RayWorkers(_PortionJudge, "judge", "portions", {}, workers=2)
    answers = spread.run(queries, _premises)
    portion_of: dict[tuple[str, ...], set[EntailmentQuery]] = {}
    for query, portion in zip(queries, answers, strict=True):
        portion_of.setdefault(query.premises, set()).add(portion)
    assert all(len(portions) == 1 for portions in portion_of.values())
    assert len(set(answers)) > 2


class _PortionJudge:
    """Says of every query which one was the first of its portion."""

    def __init__(self, name: str, *, cache: Path | None = None) -> None:
        del name, cache

    def judge(self, queries: list[EntailmentQuery]) -> list[EntailmentQuery]:
        return [queries[0]] * len(queries)

    def usage(self) -> dict[str, int]:
        return {}


@pytest.mark.usefixtures("cluster")
def test_answers_come_before_the_last_portion_is_done() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        # The worker waits for a call at its last query, which comes only after the answer to the first.
        options = {"address": server.getsockname(), "last": 7}
        answers = RayWorkers(_WaitingJudge, "judge", "waiting", options, workers=1, batch=1).stream(range(8))
        assert next(answers) == (0, 0)
        server.settimeout(60)
        with server.accept()[0] as connection:
            connection.sendall(b"go")
        assert list(answers) == [(index, index) for index in range(1, 8)]


class _WaitingJudge:
    """Repeats the queries; with the last it waits until it is told to go on."""

    def __init__(self, name: str, *, address: tuple[str, int], last: int) -> None:
        del name
        self.address, self.last = address, last

    def judge(self, queries: list[int]) -> list[int]:
        if self.last in queries:
            with socket.create_connection(self.address, timeout=60) as connection:
                connection.recv(2)
        return queries

    def usage(self) -> dict[str, int]:
        return {}


@pytest.mark.usefixtures("cluster")
def test_queries_that_end_every_worker_end_the_run() -> None:
    with pytest.raises(RunError, match="died 3 times"):
        list(RayWorkers(_DyingJudge, "judge", "dying", {}, workers=1).stream([1]))


class _DyingJudge(_PortionJudge):
    """Ends its process without a word, as a system that is out of memory does."""

    def judge(self, queries: list[EntailmentQuery]) -> list[EntailmentQuery]:
        os._exit(len(queries))


@pytest.mark.parametrize(("given", "gpus"), [({}, 1), ({"tensor_parallel_size": "4", "pipeline_parallel_size": 2}, 8)])
def test_a_worker_takes_the_gpus_that_its_model_is_spread_over(given: dict[str, Any], gpus: int) -> None:
    assert gpus_per_engine(given) == gpus_per_worker("vllm:folder", given) == gpus
    assert gpus_per_worker("offline", given) == 0


@pytest.mark.usefixtures("cluster")
def test_the_stores_of_workers_become_one(llama_cpp: Server, tmp_path: Path) -> None:
    # A judge behind an address is refused by ray_judge; here it stands for any that keeps its answers.
    options = {
        "base_url": llama_cpp.base_url,
        "judge_args": {"max_tokens": "100"},
        "few_shots": FEW_SHOTS,
        "answer_format": "schema",
    }
    queries = [EntailmentQuery((f"Finding {number} is present.",), "No finding.") for number in range(6)]
    first = RayWorkers(load_judge, "judge", llama_cpp.judge, options, tmp_path, workers=2)
    answers = first.run(queries, _premises)
    assert not list((tmp_path / "workers").iterdir())
    local = load_judge(llama_cpp.judge, **options, cache=tmp_path)
    assert local.judge(queries) == answers
    assert local.usage()["calls"] == 0
    again = RayWorkers(load_judge, "judge", llama_cpp.judge, options, tmp_path, workers=2)
    assert again.run(queries, _premises) == answers
    assert (again.usage()["calls"], again.usage()["cached"]) == (0, len(queries))


@pytest.mark.usefixtures("cluster")
def test_what_a_killed_run_left_is_taken_over(tmp_path: Path) -> None:
    left = ResponseCache(tmp_path / "workers" / "of-a-killed-run" / "worker")
    left.put([("key", CachedResponse("text", 1, 2))])
    left.close()
    RayWorkers(_PortionJudge, "judge", "portions", {}, tmp_path, workers=2).run([EntailmentQuery((), "A.")], _premises)
    main = ResponseCache(tmp_path)
    assert main.get("key") == CachedResponse("text", 1, 2)
    main.close()
    assert not list((tmp_path / "workers").iterdir())


@pytest.mark.usefixtures("cluster")
def test_what_stops_a_worker_stops_the_run_with_one_line(tmp_path: Path) -> None:
    options = {"base_url": "http://127.0.0.1:9/v1", "few_shots": FEW_SHOTS}
    spread = RayWorkers(load_judge, "judge", "openai:absent", options, tmp_path, workers=2)
    with pytest.raises(RunError) as error:
        spread.run(_labeled_queries(), _premises)
    assert error.value.code is ErrorCode.SERVER_UNAVAILABLE


def test_a_judge_that_answers_elsewhere_is_refused() -> None:
    with pytest.raises(InputError) as error:
        load_ray_judge("openai:model", base_url="http://127.0.0.1:9/v1")
    assert (error.value.code, error.value.field) == (ErrorCode.CONFLICTING_OPTIONS, "judge")


def test_the_command_ends_the_cluster_that_it_started(tmp_path: Path) -> None:
    local, spread = tmp_path / "local", tmp_path / "spread"
    assert radfact("score", PAIRS, "--judge", "offline", "--out", local).returncode == ExitCode.SUCCESS
    ray = ("--engine", "ray", "--workers", "2")
    done = radfact("score", PAIRS, "--judge", "offline", *ray, "--out", spread)
    assert done.returncode == ExitCode.SUCCESS, done.stderr
    for name in ("scores.json", "samples.jsonl", "sentences.jsonl"):
        assert (local / name).read_text() == (spread / name).read_text()


def test_vllm_on_two_workers_judges_as_in_one_process(vllm_python: Path, tmp_path: Path) -> None:
    command = (str(vllm_python.with_name("radfact")),)
    engine = [word for name, value in VLLM_ENGINE.items() for word in ("--judge-arg", f"{name}={value}")]
    arguments = ["score", PAIRS, "--judge", f"vllm:{MODEL_FOLDER}", *engine, "--judge-arg", "max_tokens=200"]
    arguments += ["--few-shots", FEW_SHOTS, "--format", "schema", "--out"]
    one, two = tmp_path / "one", tmp_path / "two"
    ray = ("--engine", "ray", "--workers", "2")
    done = radfact(*arguments, two, *ray, command=command, environment=VLLM_ENVIRONMENT)
    assert done.returncode == ExitCode.SUCCESS, done.stderr
    assert radfact(*arguments, one, command=command, environment=VLLM_ENVIRONMENT).returncode == ExitCode.SUCCESS
    assert (one / "sentences.jsonl").read_text() == (two / "sentences.jsonl").read_text()
    runs = [json.loads((out / "run.json").read_text()) for out in (one, two)]
    assert runs[0]["calls"] == runs[1]["calls"]
