"""Model cards, and pushing and loading models against a local server that speaks the Hub's protocol."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import torch
from error_checks import raises_code
from hub_server import TOKEN, HubServer
from huggingface_hub import ModelCard, constants
from tiny_runs import quiet, train_config
from typer.testing import CliRunner

from maira.cli.main import app
from maira.model.checkpoint import fingerprint
from maira.model.modeling import MairaForConditionalGeneration
from maira.model.processor import MairaProcessor
from maira.publish.card import CardOptions, CheckpointFacts, make_card, read_checkpoint
from maira.publish.push import push, select_files
from maira.publish.scores import read_test_scores
from maira.train.record import RECORD_FILE
from maira.train.report_training import train
from radfact.errors import ErrorCode, InputError, RunError
from radfact.io.hub import resolve_model
from radfact.io.jsonl import read_json, write_json

ROOT = Path(__file__).parents[2]
REPOSITORY = "me/tiny"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[HubServer]:
    """A server as the Hub of this process, with a token, and an empty cache."""
    hub = HubServer()
    monkeypatch.setattr(constants, "ENDPOINT", hub.url)
    template = constants.HUGGINGFACE_CO_URL_TEMPLATE
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", hub.url + template[template.index("/{repo_id}") :])
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "token"))
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    yield hub
    hub.close()


@pytest.fixture(scope="module")
def facts(checkpoint: Path) -> CheckpointFacts:
    return read_checkpoint(checkpoint)


@pytest.fixture
def pushed(server: HubServer, facts: CheckpointFacts) -> HubServer:
    """A server with the checkpoint."""
    push(REPOSITORY, select_files(facts), str(make_card(REPOSITORY, facts)))
    return server


def maira(*arguments: str | Path) -> Any:
    return CliRunner().invoke(app, [*map(str, arguments)])


def test_the_command_pushes_model_processor_and_card(server: HubServer, checkpoint: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(checkpoint, tmp_path / "checkpoint")
    for name in ("optimizer.pt", "training_args.bin", "drafts.jsonl", "states/step-000001/state.json"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("{}")
    result = maira("push", folder, REPOSITORY, "--license", "mit")
    assert result.exit_code == 0, result.output
    repository = server.repositories[REPOSITORY]
    assert repository.is_private
    assert len(repository.commits) == 2  # the first is that of the new repository
    names = {path.name for path in checkpoint.iterdir()}
    assert repository.files.keys() == names | {"README.md", ".gitattributes"}
    card = ModelCard(repository.files["README.md"].decode())
    assert (card.data.license, card.data.library_name) == ("mit", "maira-radfact")


def test_a_dry_run_prints_the_card_and_contacts_nobody(server: HubServer, checkpoint: Path) -> None:
    result = maira("push", checkpoint, REPOSITORY, "--dry-run")
    assert ModelCard(result.stdout).data.license == "unknown"
    assert server.requests == []


def test_an_edited_card_is_pushed(server: HubServer, checkpoint: Path, tmp_path: Path) -> None:
    (tmp_path / "card.md").write_text("---\nlicense: mit\n---\n\n# Mine\n")
    assert maira("push", checkpoint, REPOSITORY, "--card", tmp_path / "card.md").exit_code == 0
    assert server.repositories[REPOSITORY].files["README.md"].endswith(b"# Mine\n")


def test_model_and_processor_are_loaded_by_name(
    pushed: HubServer, model: MairaForConditionalGeneration, processor: MairaProcessor, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = pushed.repositories[REPOSITORY].branches["main"]
    pushed.repositories[REPOSITORY].commit({"config.json": b"{}"})
    name = f"{REPOSITORY}@{first}"
    text = "Findings: <image> The lungs are clear."
    assert MairaProcessor.from_pretrained(name).encode_prompt(text, 1) == processor.encode_prompt(text, 1)
    assert not any(path.endswith(".safetensors") for _, path in pushed.requests)
    loaded = MairaForConditionalGeneration.from_pretrained(REPOSITORY, revision=first)
    assert all(torch.equal(value, loaded.state_dict()[key]) for key, value in model.state_dict().items())
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    count = len(pushed.requests)
    MairaForConditionalGeneration.from_pretrained(name)
    assert len(pushed.requests) == count


@pytest.mark.parametrize(
    ("name", "token", "code"),
    [
        ("me/none", TOKEN, ErrorCode.UNKNOWN_NAME),
        (f"{REPOSITORY}@none", TOKEN, ErrorCode.UNKNOWN_NAME),
        (REPOSITORY, None, ErrorCode.UNKNOWN_NAME),
        (REPOSITORY, "hf_wrong", ErrorCode.MISSING_REQUIREMENT),
    ],
)
def test_a_model_that_cannot_be_had_is_one_error(
    pushed: HubServer, monkeypatch: pytest.MonkeyPatch, name: str, token: str | None, code: ErrorCode
) -> None:
    monkeypatch.setenv("HF_TOKEN", token or "")
    error = maira("generate", "--checkpoint", name, "--manifest", "none.jsonl", "--out", "out.jsonl").exception
    assert isinstance(error, InputError)
    assert (error.code, error.field) == (code, "--checkpoint")
    assert "\n" not in str(error)
    assert pushed.requests


def test_a_model_that_is_not_cached_needs_the_hub(server: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    server.close()
    with pytest.raises(RunError) as caught:
        resolve_model(REPOSITORY)
    assert caught.value.code == ErrorCode.SERVER_UNAVAILABLE
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with raises_code(ErrorCode.FILE_NOT_FOUND, field="checkpoint"):
        resolve_model(REPOSITORY, field="checkpoint")


@pytest.mark.parametrize("token", ["", "hf_wrong"])
def test_a_push_without_a_valid_token_is_one_error(
    server: HubServer, checkpoint: Path, monkeypatch: pytest.MonkeyPatch, token: str
) -> None:
    monkeypatch.setenv("HF_TOKEN", token)
    error = maira("push", checkpoint, REPOSITORY).exception
    assert isinstance(error, InputError)
    assert error.code == ErrorCode.MISSING_REQUIREMENT
    assert server.repositories == {}


def test_an_interrupted_push_leaves_no_commit_and_resumes(server: HubServer, facts: CheckpointFacts) -> None:
    upload = select_files(facts)
    server.fail = lambda _, path: 500 if "/commit/" in path else None
    with pytest.raises(RunError) as caught:
        push(REPOSITORY, upload, "card")
    assert caught.value.code == ErrorCode.SERVER_UNAVAILABLE
    assert server.repositories[REPOSITORY].files.keys() == {".gitattributes"}
    server.fail = lambda *_: None
    push(REPOSITORY, upload, "card")
    assert server.repositories[REPOSITORY].files["README.md"] == b"card"
    assert [method for method, _ in server.requests].count("PUT") == 1


@pytest.mark.usefixtures("server")
def test_a_public_repository_needs_a_flag(facts: CheckpointFacts) -> None:
    upload = select_files(facts)
    push(REPOSITORY, upload, "card", public=True)
    with raises_code(ErrorCode.CONFLICTING_OPTIONS, field="public"):
        push(REPOSITORY, upload, "card")


def test_a_push_does_not_make_a_private_repository_public(pushed: HubServer, facts: CheckpointFacts) -> None:
    with raises_code(ErrorCode.CONFLICTING_OPTIONS, match="is private", field="public"):
        push(REPOSITORY, select_files(facts), "card", public=True)
    assert pushed.repositories[REPOSITORY].is_private


def test_weights_of_an_earlier_push_are_removed(pushed: HubServer, facts: CheckpointFacts) -> None:
    repository = pushed.repositories[REPOSITORY]
    repository.commit({**repository.files, "model-00001-of-00002.safetensors": b"old", "notes.txt": b"kept"})
    push(REPOSITORY, select_files(facts), "card")
    assert "model-00001-of-00002.safetensors" not in repository.files
    assert repository.files["notes.txt"] == b"kept"


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


def test_the_card_of_a_run_has_its_data_and_settings(phantoms: Path, tmp_path: Path) -> None:
    config = train_config(phantoms, tmp_path / "private-name", passes=8, global_batch=4)
    folder = train(config, quiet())
    record = read_json(folder / RECORD_FILE)
    assert (record["data"][0]["studies"], record["steps"]) == (14, 2)
    facts = read_checkpoint(folder)
    assert facts.sources == [Counter(phantom=14)]
    options = CardOptions(license="mit", datasets=("org/phantoms",))
    text = str(make_card(REPOSITORY, facts, options=options))
    assert "phantom (14)" in text
    assert "never seen a patient" in text
    assert "learning_rate" in text
    assert record["data"][0]["sha256"][:16] in text
    assert not any(word in text for word in ("private-name", str(tmp_path), str(Path.home()), str(phantoms.parent)))
    (tmp_path / "moved.jsonl").write_text("")
    changed = {**record, "config": {**record["config"], "train": [{"manifest": str(tmp_path / "moved.jsonl")}]}}
    write_json(folder / RECORD_FILE, changed)
    assert read_checkpoint(folder).sources == [None]


def test_a_run_from_a_model_of_the_hub_names_it(server: HubServer, phantoms: Path, tmp_path: Path) -> None:
    first = read_checkpoint(train(train_config(phantoms, tmp_path / "first", passes=4), quiet()))
    push(REPOSITORY, select_files(first), "card")
    folder = train(train_config(phantoms, tmp_path / "second", model=REPOSITORY, passes=4), quiet())
    facts = read_checkpoint(folder)
    assert facts.training is not None
    commit = server.repositories[REPOSITORY].branches["main"]
    assert (facts.training.model.name, facts.training.model.commit) == (REPOSITORY, commit)
    assert facts.training.model.fingerprint == first.fingerprint
    card = make_card("me/tuned", facts)
    assert card.data.base_model == [REPOSITORY]
    assert str(tmp_path) not in str(card)
    assert set(select_files(facts).files) == set(select_files(first).files)


def results_folder(folder: Path, model: str | None) -> Path:
    folder.mkdir()
    score = {"point": 0.5, "low": 0.25, "high": 0.75, "n": 8, "direction": "higher"}
    write_json(
        folder / "scores.json",
        {
            "version": 3,
            "scores": {"logical_f1": score, "spatial_f1": {"point": None}},
            "judge": {"name": "vllm:/home/someone/judge"},
            "counts": {"samples": 9, "scored": 8},
            "metrics": {"radfact": {"scores": ["logical_f1", "spatial_f1"]}},
            "resampling": {"by": "patient_id", "clusters": 8, "samples": 8, "unlabeled": 0},
        },
    )
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
    check = {"n": 4, "confusion": {"entailment": {"entailment": 3, "failed": 1}}, "precision": 1.0, "recall": 0.75}
    write_json(tmp_path / "check.json", {**check, "f1": None, "evidence_f1": None, "failures": 1})
    scores = read_test_scores(str(tmp_path / "check.json"), facts.fingerprint)
    assert [(score.name, score.value) for score in scores.scores] == [
        ("accuracy", 0.75),
        ("precision", 1.0),
        ("recall", 0.75),
    ]
    card = make_card("me/judge", replace(facts, is_judge=True), [scores])
    assert (card.data.library_name, card.data.pipeline_tag) == ("transformers", "text-generation")
    assert "--judge vllm:me/judge" in str(card)


FRESH = """
import sys
import maira
from transformers import AutoConfig, AutoModelForImageTextToText, AutoProcessor

name, copy = sys.argv[1:]
model, processor = (kind.from_pretrained(name) for kind in (AutoModelForImageTextToText, AutoProcessor))
print(type(AutoConfig.from_pretrained(name)).__name__, type(model).__name__, type(processor).__name__)
model.push_to_hub(copy, private=True)
processor.push_to_hub(copy)
"""

TRAINER = """
import sys
import maira
import torch
from transformers import Trainer, TrainingArguments

model = maira.MairaForConditionalGeneration.from_pretrained(sys.argv[1])
processor = maira.MairaProcessor.from_pretrained(sys.argv[1])
ids = torch.tensor(processor.encode_prompt("No images.", 0))
sample = {"input_ids": ids, "labels": ids}
arguments = TrainingArguments(
    sys.argv[3], max_steps=1, report_to=[], use_cpu=True, push_to_hub=True, hub_model_id=sys.argv[2],
    hub_private_repo=True, save_strategy="no", remove_unused_columns=False,
)
trainer = Trainer(model, arguments, train_dataset=[sample] * 2, processing_class=processor)
trainer.train()
trainer.push_to_hub()
"""


def run_fresh(server: HubServer, cache: Path, *arguments: object) -> str:
    """Run Python with an empty cache and the server as the Hub; return its standard output."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "HUGGING"))}
    environment |= {"HF_ENDPOINT": server.url, "HF_HOME": str(cache), "HF_TOKEN": TOKEN, "HF_HUB_DISABLE_XET": "1"}
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [sys.executable, *map(str, arguments)]
    process = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, cwd=cache.parent)
    assert process.returncode == 0, process.stderr
    return process.stdout


@pytest.mark.slow
def test_a_fresh_process_loads_and_pushes_by_name(pushed: HubServer, checkpoint: Path, tmp_path: Path) -> None:
    """The repository has code, as the released model has; it is not run, without a question or an option."""
    repository = pushed.repositories[REPOSITORY]
    config = json.loads(repository.files["config.json"])
    config["auto_map"] = {"AutoConfig": "code.Config", "AutoModelForImageTextToText": "code.Model"}
    files = {"config.json": json.dumps(config).encode(), "code.py": b"raise RuntimeError('was run')"}
    repository.commit({**repository.files, **files})
    kinds = run_fresh(pushed, tmp_path / "hf", "-c", FRESH, REPOSITORY, "me/copy").split()
    assert kinds == ["MairaConfig", "MairaForConditionalGeneration", "MairaProcessor"]
    assert pushed.repositories["me/copy"].is_private
    folder = resolve_model("me/copy")
    assert MairaProcessor.from_pretrained(folder).image_seq_length == 16
    before, after = (MairaForConditionalGeneration.from_pretrained(one).state_dict() for one in (checkpoint, folder))
    assert all(torch.equal(before[name], after[name]) for name in before)


@pytest.mark.slow
def test_the_trainer_of_transformers_pushes_a_model(pushed: HubServer, tmp_path: Path) -> None:
    run_fresh(pushed, tmp_path / "hf", "-c", TRAINER, REPOSITORY, "me/trained", tmp_path / "run")
    folder = resolve_model("me/trained")
    MairaForConditionalGeneration.from_pretrained(folder)
    MairaProcessor.from_pretrained(folder)


@pytest.mark.slow
def test_drafts_are_the_same_by_name_and_by_folder(server: HubServer, tmp_path: Path) -> None:
    checkpoint = ROOT / "checkpoints" / "phantom"
    facts = read_checkpoint(checkpoint)
    push("me/phantom", select_files(facts), str(make_card("me/phantom", facts)))
    arguments = ["-m", "maira", "generate", "--manifest", "phantoms/manifest.jsonl"]
    run_fresh(server, tmp_path / "hf", "-m", "maira", "prepare", "phantom", "--count", "2", "--out", "phantoms")
    drafts = []
    for name, model in (("folder.jsonl", checkpoint), ("hub.jsonl", "me/phantom")):
        run_fresh(server, tmp_path / "hf", *arguments, "--checkpoint", model, "--out", name)
        drafts.append([json.loads(line) for line in (tmp_path / name).read_text().splitlines()])
    assert [row["raw"] for row in drafts[0]] == [row["raw"] for row in drafts[1]]
    assert {row["model"] for row in drafts[1]} == {f"me/phantom@{fingerprint(checkpoint)}"}
    assert server.url == huggingface_hub.constants.ENDPOINT
