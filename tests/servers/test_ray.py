"""Judges and splitters on a local Ray cluster with two workers: results, failures and the shared cache."""

import os
import socket
import sqlite3
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing
from itertools import pairwise
from operator import itemgetter
from pathlib import Path
from typing import Any

import pytest
from chat_server import ChatServer, Reply
from error_checks import raises_code
from hypothesis import given
from hypothesis import strategies as st
from long_values import DATA
from real_servers import FEW_SHOTS, PAIRS, run_radfact
from waiting import PATIENCE

from radfact.errors import ErrorCode, ExitCode, Failure, InputError, RunError
from radfact.judges import EntailmentQuery, Splitter, Verdict, default_splitter, load_judge
from radfact.judges.callables import CallableSplitter
from radfact.judges.check import load_labeled_queries
from radfact.judges.llm_judge import LLMJudge, judge_prompt
from radfact.judges.options import JudgeOptions
from radfact.judges.ray import RayJudge, _load_splitter
from radfact.llm import ChatClient, MockChatModel, ResponseCache
from radfact.llm.ray_cluster import RayWorkers, gpus_per_engine, split_chunks
from radfact.progress import ServerActivity

pytest.importorskip("ray", reason="Ray is not installed: pip install ray")


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    """A cluster with two CPUs on the loopback address."""
    import ray

    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
        environment.setenv("RAY_USAGE_STATS_ENABLED", "0")
        # The workers import judges from this module.
        environment.setenv("PYTHONPATH", os.pathsep.join(sys.path))
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


def ray_judge(name: str, **options: Any) -> RayJudge:
    return RayJudge(JudgeOptions(judge=name, engine="ray", workers=2, **options))


def _labeled_queries() -> list[EntailmentQuery]:
    return [item.query for item in load_labeled_queries(None)]


def _premises(query: EntailmentQuery) -> tuple[str, ...]:
    return query.premises


@pytest.mark.usefixtures("cluster")
def test_two_workers_return_the_verdicts_of_one_process() -> None:
    queries = _labeled_queries()
    local, distributed = load_judge("offline"), ray_judge("offline")
    assert distributed.judge(queries) == local.judge(queries)
    assert distributed.usage()["done"] == distributed.usage()["planned"] == len(queries)
    assert distributed.describe() == local.describe()


@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize("name", ["offline", "python:test_ray:WordSplittingJudge", "python:operator:contains"])
def test_two_workers_split_as_the_default_splitter(name: str) -> None:
    narratives = ["Heart size normal. Lungs clear.", "No pneumothorax."]
    local, distributed = default_splitter(load_judge(name)), default_splitter(ray_judge(name))
    assert distributed.split(narratives) == local.split(narratives)
    assert distributed.describe() == local.describe()


def invalid_judge() -> LLMJudge:
    """Return a judge whose responses are all invalid, with one call at a time."""
    client = ChatClient(MockChatModel("I cannot assess images."), {"model": "mock:invalid"}, concurrency=1)
    return LLMJudge("invalid", client, judge_prompt())


@pytest.mark.usefixtures("cluster")
def test_invalid_responses_are_shown_and_stop_the_run() -> None:
    judge = ray_judge("python:test_ray:invalid_judge")
    (failure,) = judge.judge(_labeled_queries()[:1])
    assert isinstance(failure, Failure)
    assert f"{judge.name}: {failure.reason}" in ServerActivity.failures()
    with raises_code(ErrorCode.JUDGE_FAILED, match=r"the first 10 responses are all invalid.*--max-invalid 0"):
        judge.judge(_labeled_queries())


@pytest.mark.parametrize(("judge", "splitter", "field"), DATA["splitters on a cluster"])
def test_splitter_options_are_checked_on_a_cluster(judge: str, splitter: str | None, field: str) -> None:
    options = JudgeOptions(judge=judge, engine="ray", workers=2, splitter=splitter, splitter_args={"ontology": "x"})
    with pytest.raises(InputError) as error:
        options.load_splitter(options.load())
    assert error.value.field == field


class WordSplittingJudge:
    """A custom judge whose splitter returns words."""

    name = "words"

    def judge(self, queries: Sequence[EntailmentQuery]) -> list[Verdict | Failure]:
        return [Verdict("not_entailment")] * len(queries)

    def describe(self) -> dict[str, Any]:
        return {"name": self.name}

    def usage(self) -> dict[str, int]:
        return {}

    def make_splitter(self) -> Splitter:
        return CallableSplitter(str.split, "words")


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 9))), st.integers(1, 8))
def test_chunks_keep_order_and_groups(groups: list[tuple[int, int]], size: int) -> None:
    items = [(key, number) for key, count in groups for number in range(count)]
    chunks = list(split_chunks(items, itemgetter(0), size))
    assert [item for chunk in chunks for item in chunk] == items
    assert all(len(chunk) >= size for chunk in chunks[:-1])
    assert all(first[-1][0] != second[0][0] for first, second in pairwise(chunks))


@pytest.mark.usefixtures("cluster")
def test_results_arrive_before_the_last_chunk_is_finished() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        # In its second chunk, the worker waits for a message that is sent only after the first result.
        options = {"address": server.getsockname(), "last": 3}
        results = RayWorkers(_WaitingJudge, "judge", "waiting", options, workers=1, batch=1).stream(range(8))
        assert next(results) == (0, 0)
        server.settimeout(60)
        with server.accept()[0] as connection:
            connection.sendall(b"go")
        assert list(results) == [(index, index) for index in range(1, 8)]


class _WaitingJudge:
    """Returns the queries; waits for a message before the last one."""

    def __init__(self, name: str, *, address: tuple[str, int], last: int) -> None:
        del name
        self.address, self.last = address, last

    def judge(self, queries: list[int]) -> list[int]:
        if self.last in queries:
            with socket.create_connection(self.address, timeout=PATIENCE) as connection:
                connection.recv(2)
        return queries

    def usage(self) -> dict[str, int]:
        return {}


@pytest.mark.usefixtures("cluster")
def test_a_query_that_kills_every_worker_stops_the_run() -> None:
    with pytest.raises(RunError, match="died 3 times"):
        list(RayWorkers(_CrashingJudge, "judge", "crashing", {}, workers=1).stream([1]))


class _CrashingJudge:
    """Ends its process, as the out-of-memory killer does."""

    def __init__(self, name: str) -> None:
        del name

    def judge(self, queries: list[int]) -> None:
        os._exit(len(queries))

    def usage(self) -> dict[str, int]:
        return {}


@pytest.mark.parametrize(
    ("arguments", "gpus"), [({}, 1), ({"tensor_parallel_size": "4", "pipeline_parallel_size": 2}, 8)]
)
def test_gpus_per_worker_depend_on_the_parallel_sizes(arguments: dict[str, Any], gpus: int) -> None:
    assert gpus_per_engine(arguments) == gpus


def test_the_judges_own_splitter_of_a_worker_has_the_cache(tmp_path: Path) -> None:
    options = JudgeOptions(judge="openai:m", base_url="http://127.0.0.1:9/v1")
    _load_splitter("openai:m", options=options, cache=tmp_path)
    assert (tmp_path / ResponseCache.FILE).exists()


@pytest.mark.usefixtures("cluster")
def test_responses_of_workers_are_cached_at_once(tmp_path: Path) -> None:
    stored: list[int] = []

    def reply(*_: Any) -> Reply:
        with closing(sqlite3.connect(tmp_path / ResponseCache.FILE)) as file:
            stored.append(file.execute("SELECT count(*) FROM answers").fetchone()[0])
        return 200, {}, "evidence: []\nstatus: not_entailment"

    queries = [EntailmentQuery((f"Finding {number} is present.",), "No finding.") for number in range(6)]
    with closing(ChatServer(reply)) as server:
        # `RayJudge` refuses a judge behind a server; here it represents any judge with a cache.
        options = {"base_url": server.base_url, "concurrency": 1}
        first = RayWorkers(load_judge, "judge", "openai:m", options, tmp_path, workers=1)
        verdicts = first.run(queries, _premises)
        assert stored == list(range(6))
        local = load_judge("openai:m", **options, cache=tmp_path)
        assert local.judge(queries) == verdicts
        second = RayWorkers(load_judge, "judge", "openai:m", options, tmp_path, workers=2)
        assert second.run(queries, _premises) == verdicts
        assert (second.usage()["calls"], second.usage()["cached"]) == (0, len(queries))
    assert len(server.requests) == len(queries)


@pytest.mark.usefixtures("cluster")
def test_a_folder_that_is_no_cache_is_refused(tmp_path: Path) -> None:
    (tmp_path / ResponseCache.FILE).write_text("no database" * 500)
    workers = RayWorkers(load_judge, "judge", "offline", {}, tmp_path, workers=1)
    with raises_code(ErrorCode.FILE_UNREADABLE, file=tmp_path / ResponseCache.FILE):
        workers.run(_labeled_queries(), _premises)


@pytest.mark.usefixtures("cluster")
def test_an_error_of_a_worker_stops_the_run(tmp_path: Path) -> None:
    options = {"base_url": "http://127.0.0.1:9/v1", "few_shots": FEW_SHOTS}
    workers = RayWorkers(load_judge, "judge", "openai:absent", options, tmp_path, workers=2)
    with raises_code(ErrorCode.SERVER_UNAVAILABLE):
        workers.run(_labeled_queries(), _premises)


def test_a_judge_behind_a_server_is_refused() -> None:
    with raises_code(ErrorCode.CONFLICTING_OPTIONS, field="judge"):
        ray_judge("openai:model", base_url="http://127.0.0.1:9/v1")


def test_the_command_writes_the_same_results_with_ray(tmp_path: Path) -> None:
    local, distributed = tmp_path / "local", tmp_path / "distributed"
    assert run_radfact("score", PAIRS, "--judge", "offline", "--out", local).returncode == ExitCode.SUCCESS
    ray = ("--engine", "ray", "--workers", "2")
    process = run_radfact("score", PAIRS, "--judge", "offline", *ray, "--out", distributed)
    assert process.returncode == ExitCode.SUCCESS, process.stderr
    for name in ("scores.json", "samples.jsonl", "sentences.jsonl"):
        assert (local / name).read_text() == (distributed / name).read_text()
