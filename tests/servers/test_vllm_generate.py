"""vLLM's engine against the one of transformers: the same checkpoint, the same questions, greedy answers equal."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import tiny_maira
from real_servers import HERE, VLLM_ENVIRONMENT, VLLM_PYTHON, missing

from data.manifest import read_failures, read_manifest, write_manifest
from maira.cli.main import app
from maira.generate.drafts import generate_drafts
from maira.generate.engine import NON_FINITE, Engine, FailedRequest, start_engine
from maira.generate.options import EngineOptions, GenerationOptions
from maira.generate.transformers_engine import TransformersEngine
from maira.model.config import context_window, read_config
from radfact.errors import ExitCode, InputError

VISION = VLLM_PYTHON.parents[1] / "vision"
UNANSWERED = (tiny_maira.BROKEN, tiny_maira.LONG)
FORMS = ("findings", "grounded", "phrase", "boxes")


def in_vllm(script: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """What became of a script of this folder in vLLM's environment."""
    return subprocess.run(
        [str(VLLM_PYTHON), str(HERE / script), *map(str, arguments)],
        env=os.environ | VLLM_ENVIRONMENT | {"VLLM_LOGGING_LEVEL": "ERROR"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint, studies, and a file that is no image."""
    if not (VLLM_PYTHON.parents[1] / "installed").is_file() or not VISION.is_dir():
        missing("vLLM's build for the CPU is not installed: make .venv/vllm/installed")
    made = tmp_path_factory.mktemp("maira")
    tiny_maira.write_checkpoint(made / "checkpoint")
    tiny_maira.write_studies(made / "studies")
    (made / "broken.png").write_bytes(b"no image")
    return made


@pytest.fixture(scope="module")
def answered(folder: Path) -> dict[str, Any]:
    """What `vllm_answers.py` found."""
    out = folder / "answers.json"
    manifest = folder / "studies" / "manifest.jsonl"
    done = in_vllm(
        "vllm_answers.py", folder / "checkpoint", manifest, folder / "broken.png", folder / "language_model", out
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found: dict[str, Any] = json.loads(out.read_text())
    return found


@pytest.fixture(scope="module")
def expected(folder: Path) -> dict[str, dict[str, Any]]:
    """The answers of the transformers engine, under the grammar and free."""
    studies = read_manifest(folder / "studies" / "manifest.jsonl")
    questions = tiny_maira.requests(studies, folder / "broken.png")
    names = [name for name in questions if name != tiny_maira.LONG]
    found: dict[str, dict[str, Any]] = {}
    for mode in ("guided", "free"):
        engine = TransformersEngine(folder / "checkpoint", EngineOptions(free=mode == "free"))
        given = engine.generate([questions[name] for name in names])
        found[mode] = {names[index]: asdict(answer) for index, answer in given}
    return found


def _said(answers: dict[str, Any], form: str) -> dict[str, tuple[str, bool]]:
    return {name: (one["text"], one["cut_off"]) for name, one in answers.items() if name.startswith(f"{form} ")}


@pytest.mark.parametrize("mode", ["guided", "free"])
@pytest.mark.parametrize("form", FORMS)
def test_answers_are_those_of_transformers(
    answered: dict[str, Any], expected: dict[str, dict[str, Any]], mode: str, form: str
) -> None:
    wanted = _said(expected[mode], form)
    assert _said(answered[mode], form) == wanted
    assert len({text for text, _ in wanted.values()}) > len(wanted) / 2


def test_the_questions_have_one_two_and_three_images_and_boxes_in_their_answers(
    folder: Path, expected: dict[str, dict[str, Any]]
) -> None:
    studies = read_manifest(folder / "studies" / "manifest.jsonl")
    questions = tiny_maira.requests(studies, folder / "broken.png")
    assert {len(question.example.images) for question in questions.values()} == {1, 2, 3}
    for form in FORMS[1:]:
        assert any("<box>" in text for text, _ in _said(expected["guided"], form).values())


def test_the_window_bounds_what_vllm_holds(answered: dict[str, Any]) -> None:
    window, held = answered["held"]
    assert window / 2 < held <= window


def test_an_image_that_cannot_be_read_leaves_one_question_unanswered(
    answered: dict[str, Any], expected: dict[str, dict[str, Any]]
) -> None:
    assert "broken.png: " in answered["guided"][tiny_maira.BROKEN]["reason"]
    assert answered["guided"][tiny_maira.BROKEN] == expected["guided"][tiny_maira.BROKEN]
    assert [name for name, one in answered["guided"].items() if "reason" in one and name not in UNANSWERED] == []


def test_a_prompt_that_is_too_long_is_named_with_both_numbers(answered: dict[str, Any]) -> None:
    reason = answered["guided"][tiny_maira.LONG]["reason"]
    assert "prompt has" in reason
    assert "768" in reason


@pytest.mark.parametrize("mode", ["guided", "free"])
def test_non_finite_logits_fail_their_request_alone(answered: dict[str, Any], mode: str) -> None:
    answers = answered[f"nan {mode}"]
    assert answers.pop("grounded phantom-7-000000") == asdict(FailedRequest(NON_FINITE))
    assert len(answers) > 2
    # On a CPU, NaN can spread to a request that runs at the same time, which fails then, too.
    answers = {name: one for name, one in answers.items() if one != asdict(FailedRequest(NON_FINITE))}
    assert {name: one["text"] for name, one in answers.items()} == {
        name: answered[mode][name]["text"] for name in answers
    }


def test_a_loop_is_ended_at_its_third_copy(answered: dict[str, Any]) -> None:
    assert answered["loop"]["thrice"] == [2]
    assert len(answered["loop"]["twice"]) > 500


def test_vllm_that_dies_ends_the_run(answered: dict[str, Any]) -> None:
    assert answered["death"].startswith("vLLM's engine died; ")


def test_a_device_that_vllm_does_not_run_on_is_refused(answered: dict[str, Any]) -> None:
    assert answered["device"].startswith("device: expected cpu, for which vLLM is installed, found cuda")


def test_vllm_derives_the_same_context_window(folder: Path, answered: dict[str, Any]) -> None:
    assert answered["room"] == context_window(read_config(folder / "checkpoint").text_config)


def test_vllm_that_cannot_start_says_where_the_cause_stands(answered: dict[str, Any]) -> None:
    assert "vLLM cannot start: its process ended; " in answered["start"]


def test_the_command_drafts_as_with_transformers(folder: Path, answered: dict[str, Any], tmp_path: Path) -> None:
    studies = read_manifest(folder / "studies" / "manifest.jsonl")
    bad = studies[0].model_copy(update={"sample_id": "bad", "frontal": folder / "broken.png"})
    manifest, out, exported = tmp_path / "manifest.jsonl", tmp_path / "drafts.jsonl", folder / "language_model"
    write_manifest(manifest, [*studies[:5], bad])
    before = {path: path.stat().st_mtime_ns for path in exported.iterdir()}

    done = in_vllm(
        "vllm_maira.py", "generate", "--checkpoint", folder / "checkpoint", "--manifest", manifest, "--out", out,
        "--engine", "vllm", "--max-new-tokens", tiny_maira.NEW_TOKENS, "--engine-arg", "enforce_eager=true",
        "--language-model", exported,
    )  # fmt: skip

    assert done.returncode == ExitCode.INCOMPLETE, done.stderr[-4000:]
    assert "Traceback" not in done.stderr
    assert {path: path.stat().st_mtime_ns for path in exported.iterdir()} == before
    ours = tmp_path / "ours.jsonl"
    generate_drafts(studies[:5], folder / "checkpoint", ours, GenerationOptions(max_new_tokens=tiny_maira.NEW_TOKENS))
    rows, wanted = ([json.loads(line) for line in path.read_text().splitlines()] for path in (out, ours))
    assert [row | {"seconds": None} for row in rows] == [row | {"seconds": None} for row in wanted]
    assert rows[0]["model"] == answered["name"]
    failed = [failure.sample_id for failure in read_failures(tmp_path / "failures.jsonl") if failure.source == out.name]
    drafted = [row["sample_id"] for row in rows]
    assert failed == [study.sample_id for study in studies[:5] if study.sample_id not in drafted] + ["bad"]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("nonsense", "vLLM has no such engine argument"),
        ("model", "cannot be chosen"),
        ("dtype", "expected auto or one of half, float, float16, bfloat16, float32, found 'int8'"),
    ],
)
def test_arguments_that_cannot_be_are_refused_by_name(answered: dict[str, Any], name: str, said: str) -> None:
    assert answered["refusals"][name].startswith(f"engine_args.{name}: {said}")


def test_the_command_names_its_option_where_vllm_refuses_an_argument(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[EngineOptions] = []

    def refuse(_: Path, options: EngineOptions) -> Engine:
        given.append(options)
        raise InputError("vLLM has no such engine argument", field="engine_args.nonsense")

    monkeypatch.setattr("maira.generate.drafts.start_engine", refuse)
    tiny_maira.write_checkpoint(tmp_path / "checkpoint")
    tiny_maira.write_studies(tmp_path / "studies")
    words = ["generate", "--checkpoint", tmp_path / "checkpoint", "--manifest", tmp_path / "studies/manifest.jsonl"]
    words += ["--out", tmp_path / "drafts.jsonl", "--engine", "vllm", "--engine-arg", "nonsense=1"]
    with pytest.raises(InputError, match=r"^--engine-arg nonsense: vLLM has no such"):
        app([str(word) for word in words], standalone_mode=False)
    assert given[0].engine_args == {"nonsense": 1}


@pytest.mark.skipif(importlib.util.find_spec("vllm") is not None, reason="vLLM is installed here")
def test_vllm_that_is_missing_is_named_with_its_install_command(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r'pip install "maira-radfact\[vllm\]"'):
        start_engine(tmp_path, EngineOptions(engine="vllm"))
