"""Model cards, what is pushed, and models that are loaded by name from Hugging Face's cache."""

import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import yaml
from chat_server import LocalServer, QuietHandler
from error_checks import raises, raises_code
from huggingface_hub import CommitOperationDelete, ModelCard, constants
from long_values import DATA
from maira_command import maira
from tiny_runs import quiet, train_config

from maira.data.manifest import read_manifest, write_manifest
from maira.model.checkpoint import fingerprint
from maira.model.modeling import MairaForConditionalGeneration
from maira.model.processor import MairaProcessor
from maira.publish.card import CheckpointFacts, make_card, read_checkpoint, read_test_scores
from maira.publish.push import push, select_files
from maira.train.record import RECORD_FILE
from maira.train.report_training import train
from radfact.errors import ErrorCode
from radfact.io.hub import resolve_model
from radfact.io.jsonl import read_json, write_json

ROOT = Path(__file__).parents[2]
REPOSITORY = "me/tiny"
COMMIT = "0" * 40
FILES: dict[str, Any] = yaml.safe_load(Path(__file__).with_name("publish.yaml").read_text("utf-8"))


class LocalHub:
    """What `push` calls of `HfApi`, for one repository that is a mapping of names to contents."""

    def __init__(self, files: dict[str, bytes] | None = None, *, is_private: bool = True) -> None:
        self.files, self.is_private, self.commits = files, is_private, 0

    def create_repo(self, _: str, *, private: bool, exist_ok: bool) -> None:
        assert exist_ok
        if self.files is None:
            self.files, self.is_private = {".gitattributes": b""}, private

    def model_info(self, _: str) -> SimpleNamespace:
        siblings = [SimpleNamespace(rfilename=name) for name in self.files or ()]
        return SimpleNamespace(private=self.is_private, siblings=siblings, sha=COMMIT)

    def create_commit(self, name: str, operations: Any, *, commit_message: str, parent_commit: str) -> SimpleNamespace:
        assert (bool(commit_message), parent_commit, self.files is None) == (True, COMMIT, False)
        for operation in operations:
            if isinstance(operation, CommitOperationDelete):
                del self.files[operation.path_in_repo]
            else:
                with operation.as_file() as file:
                    self.files[operation.path_in_repo] = file.read()
        self.commits += 1
        return SimpleNamespace(commit_url=f"hub:{name}")


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> LocalHub:
    """A Hub without the repository."""
    made = LocalHub()
    monkeypatch.setattr("maira.publish.push.HfApi", lambda: made)
    return made


@pytest.fixture
def cached(checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cache of a machine without a network, with the checkpoint as the repository."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hf" / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    repository = tmp_path / "hf" / "hub" / "models--me--tiny"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text(COMMIT)
    return shutil.copytree(checkpoint, repository / "snapshots" / COMMIT)


@pytest.fixture
def refuse(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Callable[[int | None, str], None]]:
    """A server as the Hub, which answers every request with an error code and a status, or not; the cache is empty."""

    class Handler(QuietHandler):
        answer = (404, "")

        def _respond(self) -> None:
            status, code = self.answer
            self.send_head(status, {"X-Error-Code": code, "X-Error-Message": code, "Content-Length": "0"})

        do_GET = do_POST = do_HEAD = _respond  # noqa: N815

    server = LocalServer(Handler)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "token"))

    def answer(status: int | None, code: str) -> None:
        monkeypatch.setattr(constants, "ENDPOINT", server.root_url if status else "http://127.0.0.1:9")
        Handler.answer = (status or 404, code)

    yield answer
    server.close()


@pytest.fixture(scope="module")
def facts(checkpoint: Path) -> CheckpointFacts:
    return read_checkpoint(checkpoint)


@pytest.fixture(scope="module")
def trained(phantoms: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checkpoint of a run of two steps."""
    folder = tmp_path_factory.mktemp("runs") / "private-name"
    return train(train_config(phantoms, folder, passes=8, global_batch=4), quiet())


def test_the_command_pushes_model_processor_and_card(hub: LocalHub, checkpoint: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(checkpoint, tmp_path / "checkpoint")
    for name in ("optimizer.pt", "training_args.bin", "drafts.jsonl", "states/step-000001/state.json"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("{}")
    result = maira("push", folder, REPOSITORY, "--license", "mit")
    assert "not published: drafts.jsonl, optimizer.pt, states/step-000001/state.json, training_args" in result.stderr
    assert (hub.is_private, hub.commits) == (True, 1)
    assert hub.files is not None
    names = {path.name for path in checkpoint.iterdir()}
    assert hub.files.keys() == names | {"README.md", ".gitattributes"}
    assert hub.files["model.safetensors"] == (checkpoint / "model.safetensors").read_bytes()
    card = ModelCard(hub.files["README.md"].decode())
    assert (card.data.license, card.data.library_name) == ("mit", "maira-radfact")


def test_dry_runs_contact_nobody_and_an_edited_card_is_pushed(hub: LocalHub, checkpoint: Path, tmp_path: Path) -> None:
    assert ModelCard(maira("push", checkpoint, REPOSITORY, "--dry-run").stdout).data.license == "unknown"
    assert hub.files is None
    (tmp_path / "card.md").write_text("---\nlicense: mit\n---\n\n# Mine\n")
    maira("push", checkpoint, REPOSITORY, "--card", tmp_path / "card.md")
    assert (hub.files or {})["README.md"].endswith(b"# Mine\n")


def test_weights_of_an_earlier_push_are_removed(hub: LocalHub, facts: CheckpointFacts) -> None:
    hub.files = dict.fromkeys(("model-00001-of-00002.safetensors", "notes.txt", "LICENSE"), b"old")
    push(REPOSITORY, select_files(facts)[0], "card")
    assert "model-00001-of-00002.safetensors" not in hub.files
    assert {"notes.txt", "LICENSE", "README.md"} <= hub.files.keys()


@pytest.mark.parametrize("is_private", [True, False, None])
def test_a_push_does_not_change_the_visibility(is_private: bool | None, hub: LocalHub, facts: CheckpointFacts) -> None:
    hub.files, hub.is_private = {}, is_private
    with raises_code(ErrorCode.CONFLICTING_OPTIONS, match="is private" if is_private else "--public", field="public"):
        push(REPOSITORY, select_files(facts)[0], "card", public=bool(is_private))
    assert hub.files == {}


def test_a_model_of_the_cache_is_loaded_and_drafts_by_name(
    cached: Path, model: MairaForConditionalGeneration, phantoms: Path, tmp_path: Path
) -> None:
    loaded = MairaForConditionalGeneration.from_pretrained(f"{REPOSITORY}@{COMMIT}")
    assert all(torch.equal(value, loaded.state_dict()[key]) for key, value in model.state_dict().items())
    assert MairaProcessor.from_pretrained(REPOSITORY).image_seq_length == 16
    write_manifest(tmp_path / "set.jsonl", read_manifest(phantoms)[:2])
    drafts = []
    for name, source in (("folder.jsonl", cached), ("hub.jsonl", REPOSITORY)):
        options = ("--manifest", tmp_path / "set.jsonl", "--max-new-tokens", "12", "--out", tmp_path / name)
        maira("generate", "--checkpoint", source, *options)
        drafts.append([json.loads(line) for line in (tmp_path / name).read_text().splitlines()])
    assert [row["raw"] for row in drafts[0]] == [row["raw"] for row in drafts[1]]
    assert {row["model"] for row in drafts[1]} == {f"{REPOSITORY}@{fingerprint(cached)}"}
    with raises_code(ErrorCode.FILE_NOT_FOUND, field="checkpoint"):
        resolve_model("me/none", field="checkpoint")


REQUESTS: dict[str, Callable[[], Any]] = {
    "load": partial(resolve_model, REPOSITORY, field="checkpoint"),
    "push": partial(push, REPOSITORY, {}, "card"),
    "generate": partial(
        maira, "generate", "--checkpoint", REPOSITORY, "--manifest", "none.jsonl", "--out", "out.jsonl"
    ),
}


@pytest.mark.parametrize(("request_", "status", "answer", "error"), FILES["answers"])
def test_an_answer_of_the_hub_is_one_error(
    refuse: Callable[[int | None, str], None], request_: str, status: int | None, answer: str, error: str
) -> None:
    refuse(status, answer)
    with raises(error):
        REQUESTS[request_]()


def test_settings_with_a_path_of_the_machine_are_refused(checkpoint: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(checkpoint, tmp_path / "checkpoint")
    config = read_json(folder / "config.json")
    config["text_config"]["_name_or_path"] = str(tmp_path / "vicuna")
    write_json(folder / "config.json", config)
    with raises_code(ErrorCode.INVALID_VALUE, file=folder / "config.json", field="text_config._name_or_path"):
        select_files(read_checkpoint(folder))


def test_a_run_folder_is_no_checkpoint(checkpoint: Path, tmp_path: Path) -> None:
    shutil.copytree(checkpoint, tmp_path / "checkpoint")
    with raises_code(ErrorCode.FILE_NOT_FOUND, match="did you mean", file=tmp_path):
        read_checkpoint(tmp_path)


def test_what_is_not_known_is_unknown(facts: CheckpointFacts) -> None:
    text = str(make_card(REPOSITORY, facts))
    sections = dict(part.split("\n\n", 1) for part in text.split("\n## ")[1:])
    assert all(sections[name].startswith("Unknown") for name in ("Scores", "Training data", "Training", "License"))
    assert ModelCard(text).data.to_dict().keys().isdisjoint({"datasets", "base_model", "model-index"})


def test_the_card_of_a_run_has_its_data_and_settings(trained: Path, phantoms: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(trained, tmp_path / "copy")
    record = read_json(folder / RECORD_FILE)
    assert (record["data"][0]["studies"], record["steps"]) == (14, 2)
    facts = read_checkpoint(folder)
    assert facts.sources == [Counter(phantom=14)]
    text = str(make_card(REPOSITORY, facts, license="mit", datasets=("org/phantoms",)))
    assert "phantom (14)" in text
    assert "never seen a patient" in text
    assert "learning_rate" in text
    assert record["data"][0]["sha256"][:16] in text
    assert not any(word in text for word in ("private-name", str(tmp_path), str(Path.home()), str(phantoms.parent)))
    moved = str(tmp_path / "moved.jsonl")
    Path(moved).write_text("")
    record["config"] |= {"train": [{"manifest": moved, "preferences": moved}], "grpo": {"judge": f"vllm:{tmp_path}"}}
    write_json(folder / RECORD_FILE, record)
    facts = read_checkpoint(folder)
    assert facts.sources == [Counter()]
    assert str(tmp_path) not in str(make_card(REPOSITORY, facts))


def test_a_run_from_a_model_of_the_hub_names_it(cached: Path, trained: Path, phantoms: Path, tmp_path: Path) -> None:
    shutil.rmtree(cached)
    shutil.copytree(trained, cached)
    facts = read_checkpoint(train(train_config(phantoms, tmp_path / "run", model=REPOSITORY, passes=4), quiet()))
    assert facts.training is not None
    start = facts.training.model
    assert (start.name, start.commit, start.fingerprint) == (REPOSITORY, COMMIT, fingerprint(cached))
    card = make_card("me/tuned", facts)
    assert card.data.base_model == [REPOSITORY]
    assert str(tmp_path) not in str(card)


def results_folder(folder: Path, model: str | None) -> Path:
    folder.mkdir()
    write_json(folder / "scores.json", FILES["scores.json"])
    write_json(folder / "run.json", {"version": 3, "input": {"models": [model] if model else []}})
    return folder


def test_scores_reach_the_card_with_their_intervals(facts: CheckpointFacts, tmp_path: Path) -> None:
    folder = results_folder(tmp_path / "results", f"checkpoint@{facts.fingerprint}")
    card = make_card(REPOSITORY, facts, [read_test_scores(f"Test set={folder}", facts.fingerprint)])
    (result,) = card.data.eval_results
    assert (result.dataset_name, result.metric_type, result.metric_value) == ("Test set", "logical_f1", 0.5)
    assert result.metric_args == {"interval_95": [0.25, 0.75], "n": 8, "judge": "vllm:judge"}
    assert "| `logical_f1` | 0.500 | 0.250 to 0.750 | 8 |" in str(card)
    assert "without a value: `spatial_f1`" in str(card)
    assert "/home" not in str(card)


def test_scores_of_another_checkpoint_are_refused(facts: CheckpointFacts, tmp_path: Path) -> None:
    folder = results_folder(tmp_path / "results", "other@000000000000")
    with raises_code(ErrorCode.MISMATCH, file=folder):
        read_test_scores(str(folder), facts.fingerprint)
    (notes,) = [read_test_scores(str(results_folder(tmp_path / "unnamed", None)), facts.fingerprint).notes]
    assert any("not verified" in note for note in notes)


def test_the_card_of_a_judge_has_its_check(facts: CheckpointFacts, tmp_path: Path) -> None:
    write_json(tmp_path / "check.json", FILES["check.json"])
    scores = read_test_scores(str(tmp_path / "check.json"), facts.fingerprint)
    points = {name: score.point for name, score in scores.scores.items()}
    assert points == {"accuracy": 0.75, "precision": 1.0, "recall": 0.75}
    card = make_card("me/judge", replace(facts, is_judge=True), [scores])
    assert (card.data.library_name, card.data.pipeline_tag) == ("transformers", "text-generation")
    assert "--judge vllm:me/judge" in str(card)


@pytest.mark.slow
def test_a_fresh_process_loads_by_name_and_transformers_trains_and_saves(cached: Path, tmp_path: Path) -> None:
    """The repository has code, as the released model has; it is not run, without a question or an option."""
    config = read_json(cached / "config.json")
    config["auto_map"] = {"AutoConfig": "code.Config", "AutoModelForImageTextToText": "code.Model"}
    write_json(cached / "config.json", config)
    (cached / "code.py").write_text("raise RuntimeError('was run')")
    environment = os.environ | {"HF_HOME": str(cached.parents[3]), "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", DATA["fresh process"], REPOSITORY, str(tmp_path / "run")]
    process = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, cwd=cached.parent)
    assert process.returncode == 0, process.stderr
    assert process.stdout.split()[:3] == ["MairaConfig", "MairaForConditionalGeneration", "MairaProcessor"]
    MairaForConditionalGeneration.from_pretrained(tmp_path / "run")
    MairaProcessor.from_pretrained(tmp_path / "run")
