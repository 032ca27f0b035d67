"""The vLLM engine compared with the transformers engine: equal greedy responses, and its errors."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import tiny_maira
from long_values import DATA
from real_servers import HERE, RunVLLM

from maira.data.manifest import read_failures, read_manifest, write_manifest
from maira.generate.drafts import generate_drafts
from maira.generate.engine import NON_FINITE, EngineOptions, FailedRequest, GenerationOptions
from maira.generate.transformers_engine import TransformersEngine
from maira.model.config import context_window, read_config
from radfact.errors import ExitCode

TASKS = ("findings", "grounded", "phrase", "boxes")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint, studies, and a file that is not an image."""
    root = tmp_path_factory.mktemp("maira")
    tiny_maira.write_checkpoint(root / "checkpoint")
    tiny_maira.write_studies(root / "studies")
    (root / "broken.png").write_bytes(b"no image")
    return root


@pytest.fixture(scope="module")
def results(folder: Path, run_vllm: RunVLLM) -> dict[str, Any]:
    """The output of `vllm_generate.py`."""
    out = folder / "results.json"
    manifest = folder / "studies" / "manifest.jsonl"
    arguments = [folder / "checkpoint", manifest, folder / "broken.png", folder / "language_model", out]
    process = run_vllm(HERE / "vllm_generate.py", *arguments)
    assert process.returncode == 0, process.stderr[-4000:]
    content: dict[str, Any] = json.loads(out.read_text())
    return content


@pytest.fixture(scope="module")
def expected(folder: Path) -> dict[str, dict[str, Any]]:
    """The responses of the transformers engine, with the grammar and unconstrained."""
    studies = read_manifest(folder / "studies" / "manifest.jsonl")
    requests = tiny_maira.all_requests(studies, folder / "broken.png")
    names = [name for name in requests if name != tiny_maira.LONG]
    responses: dict[str, dict[str, Any]] = {}
    for mode in ("constrained", "unconstrained"):
        engine = TransformersEngine(folder / "checkpoint", EngineOptions(free=mode == "unconstrained"))
        generated = engine.generate([requests[name] for name in names])
        responses[mode] = {names[index]: asdict(response) for index, response in generated}
    return responses


def _texts(responses: dict[str, Any], task: str) -> dict[str, tuple[str, bool]]:
    """Return text and `cut_off` of the responses of a task."""
    named = ((name, response) for name, response in responses.items() if name.startswith(f"{task} "))
    return {name: (response["text"], response["cut_off"]) for name, response in named}


@pytest.mark.parametrize("mode", ["constrained", "unconstrained"])
@pytest.mark.parametrize("task", TASKS)
def test_responses_equal_those_of_transformers(
    results: dict[str, Any], expected: dict[str, dict[str, Any]], mode: str, task: str
) -> None:
    texts = _texts(expected[mode], task)
    assert _texts(results[mode], task) == texts
    assert len({text for text, _ in texts.values()}) > len(texts) / 2


def test_requests_have_one_to_three_images_and_responses_have_boxes(
    folder: Path, expected: dict[str, dict[str, Any]]
) -> None:
    studies = read_manifest(folder / "studies" / "manifest.jsonl")
    requests = tiny_maira.all_requests(studies, folder / "broken.png")
    assert {len(request.example.images) for request in requests.values()} == {1, 2, 3}
    for task in TASKS[1:]:
        assert any("<box>" in text for text, _ in _texts(expected["constrained"], task).values())


def test_prompts_in_flight_are_limited(results: dict[str, Any]) -> None:
    limit, highest = results["prompt_bytes"]
    assert limit / 2 < highest <= limit


def test_an_unreadable_image_and_a_prompt_beyond_the_context_window_fail_alone(
    results: dict[str, Any], expected: dict[str, dict[str, Any]]
) -> None:
    assert "broken.png: " in results["constrained"][tiny_maira.BROKEN]["reason"]
    assert results["constrained"][tiny_maira.BROKEN] == expected["constrained"][tiny_maira.BROKEN]
    failed = {name for name, response in results["constrained"].items() if "reason" in response}
    assert failed <= {tiny_maira.BROKEN, tiny_maira.LONG}
    reason = results["constrained"][tiny_maira.LONG]["reason"]
    assert "prompt has" in reason
    assert "768" in reason


@pytest.mark.parametrize("mode", ["constrained", "unconstrained"])
def test_non_finite_logits_fail_their_request_alone(results: dict[str, Any], mode: str) -> None:
    responses = results[f"nan {mode}"]
    assert responses.pop("grounded phantom-7-000000") == asdict(FailedRequest(NON_FINITE))
    assert len(responses) > 2
    # On a CPU, NaN can spread to a request that runs at the same time and then fails, too.
    texts = {name: response["text"] for name, response in responses.items() if response.get("reason") != NON_FINITE}
    assert texts == {name: results[mode][name]["text"] for name in texts}


def test_a_repeated_sentence_ends_after_its_third_copy(results: dict[str, Any]) -> None:
    assert results["loop"]["after_three"] == [2]
    assert len(results["loop"]["after_two"]) > 500


def test_vllm_derives_the_same_context_window(folder: Path, results: dict[str, Any]) -> None:
    assert results["context_window"] == context_window(read_config(folder / "checkpoint").text_config)


def test_a_killed_process_and_a_failed_start_end_the_run(results: dict[str, Any]) -> None:
    assert results["kill_error"].startswith("vLLM's engine died; ")
    assert "vLLM cannot start: its process ended; " in results["start_error"]


def test_the_command_writes_the_drafts_of_transformers(
    folder: Path, results: dict[str, Any], run_vllm: RunVLLM, tmp_path: Path
) -> None:
    studies = read_manifest(folder / "studies" / "manifest.jsonl")
    bad = studies[0].model_copy(update={"sample_id": "bad", "frontal": folder / "broken.png"})
    manifest, out, exported = tmp_path / "manifest.jsonl", tmp_path / "drafts.jsonl", folder / "language_model"
    write_manifest(manifest, [*studies[:5], bad])
    before = {path: path.stat().st_mtime_ns for path in exported.iterdir()}

    process = run_vllm(
        HERE / "vllm_maira.py", "generate", "--checkpoint", folder / "checkpoint", "--manifest", manifest, "--out", out,
        "--engine", "vllm", "--max-new-tokens", tiny_maira.NEW_TOKENS, "--engine-arg", "enforce_eager=true",
        "--language-model", exported,
    )  # fmt: skip

    assert process.returncode == ExitCode.INCOMPLETE, process.stderr[-4000:]
    assert "Traceback" not in process.stderr
    assert {path: path.stat().st_mtime_ns for path in exported.iterdir()} == before
    other = tmp_path / "transformers.jsonl"
    generate_drafts(studies[:5], folder / "checkpoint", other, GenerationOptions(max_new_tokens=tiny_maira.NEW_TOKENS))
    rows, expected = ([json.loads(line) for line in path.read_text().splitlines()] for path in (out, other))
    assert [row | {"seconds": None} for row in rows] == [row | {"seconds": None} for row in expected]
    assert rows[0]["model"] == results["name"]
    failed = [failure.sample_id for failure in read_failures(tmp_path / "failures.jsonl") if failure.source == out.name]
    drafted = [row["sample_id"] for row in rows]
    assert failed == [study.sample_id for study in studies[:5] if study.sample_id not in drafted] + ["bad"]


@pytest.mark.parametrize(("name", "message"), DATA["refused arguments of vllm"])
def test_invalid_engine_arguments_are_named(results: dict[str, Any], name: str, message: str) -> None:
    assert results["argument_errors"][name].startswith(f"engine_args.{name}: {message}")
