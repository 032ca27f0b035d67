"""The guides of the 7B model: their commands on a tiny model and phantoms, in two processes."""

import csv
import re
import shlex
import shutil
import subprocess
from contextlib import chdir
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from ports import free_port
from slurm import slurm_environment
from test_assemble import language_model, sentencepiece_tokenizer
from test_llm_resume import verdict_reply
from tiny_runs import CASES, run_together
from transformers import Dinov2Config, Dinov2Model
from typer.testing import CliRunner

from maira.cli.main import app as maira
from maira.data.manifest import read_manifest, write_manifest
from maira.data.phantoms import write_phantoms
from radfact.cli.main import create_app

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
PROGRAMS = ("maira", "radfact", "torchrun", "sbatch deploy/slurm/train.sh", "sbatch deploy/slurm/generate.sh")


def blocks(page: str, language: str) -> list[str]:
    """The blocks of a guide in a language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", (ROOT / "docs" / page).read_text("utf-8"), re.M | re.S)


def commands(page: str) -> list[str]:
    """The commands of a guide."""
    lines = [line for block in blocks(page, "text") for line in block.replace("\\\n", "").splitlines()]
    return [line for line in lines if line.startswith(PROGRAMS)]


def replace(words: list[str]) -> list[str]:
    """The command line for a tiny model; `prepare` makes phantoms instead of reading archives."""
    if words[:2] == ["maira", "prepare"] and words[2] != "table":
        out = words[words.index("--out") + 1]
        seed = sum(out.encode())
        return ["maira", "prepare", "phantom", "--count", "12", "--size", "64", "--seed", str(seed), "--out", out]
    return [CASES["words of guides"].get(word, word) for word in words]


def run(words: list[str], folder: Path) -> str:
    """Run a command in a folder; returns its output."""
    if words[0] == "sbatch":
        environment = slurm_environment(folder / Path(words[1]).stem, 2, MASTER_PORT=str(free_port()))
        job = ["bash", str(ROOT / words[1]), *words[2:]]
        done = subprocess.run(job, cwd=folder, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout
    if words[0] != "torchrun":
        with chdir(folder):
            result = CliRunner().invoke(maira if words[0] == "maira" else create_app(), words[1:])
        assert result.exit_code == 0, f"{shlex.join(words)}\n{result.output}\n{result.exception!r}"
        return result.output
    codes, outputs = run_together(words[words.index("maira") + 1 :], folder)
    assert codes == [0, 0], f"{shlex.join(words)}\n{outputs}"
    return "".join(outputs)


def split(manifest: Path) -> None:
    """Put studies in the splits that the run config trains and validates on."""
    studies = read_manifest(manifest)
    splits = ["train"] * (len(studies) - 3) + ["validate"] * 3
    write_manifest(manifest, [s.model_copy(update={"split": p}) for s, p in zip(studies, splits, strict=True)])


def write_config(folder: Path, name: str, **changes: Any) -> None:
    """Write a shipped config without what is too large for a test."""
    (folder / "configs").mkdir()
    config = {"base": str(ROOT / f"configs/{name}.yaml")} | CASES["config of guides"] | changes
    (folder / f"configs/{name}.yaml").write_text(yaml.safe_dump(config))


def test_the_commands_lead_from_weights_to_scores(tmp_path: Path) -> None:
    torch.manual_seed(0)
    sizes = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2}
    Dinov2Model(Dinov2Config(image_size=56, patch_size=14, **sizes)).save_pretrained(tmp_path / "rad-dino")
    language_model(tmp_path / "vicuna-7b-v1.5")
    sentencepiece_tokenizer(tmp_path / "vicuna-7b-v1.5")
    write_config(tmp_path, "maira2_7b")
    outputs = {}
    for line in commands("train-8-gpus.md"):
        words = shlex.split(line)
        outputs[line] = run(replace(words), tmp_path)
        if words[:2] == ["maira", "prepare"]:
            split(tmp_path / words[words.index("--out") + 1] / "manifest.jsonl")
    assert sum(line.startswith("torchrun") for line in outputs) == 4
    for made in ("checkpoint-best/model.safetensors", "drafts.jsonl", "scores/report.html"):
        assert (tmp_path / "runs/maira2_7b" / made).exists(), made
    resumed = next(output for line, output in outputs.items() if "passes=2560" in line)
    assert "Resuming runs/trial at step 2 of 3" in resumed
    assert "was planned with 2 steps" in resumed


def test_the_commands_lead_from_a_table_to_scores(checkpoint: Path, serve: Any, tmp_path: Path) -> None:
    shutil.copytree(checkpoint, tmp_path / "microsoft/maira-2")
    write_config(tmp_path, "maira2_7b_lora", lora={"rank": 4})
    list(write_phantoms(tmp_path / "export/images", 24, seed=5, size=64))
    with (tmp_path / "export/studies.csv").open("w") as file:
        (table,) = blocks("tutorials/fine-tune.md", "none")
        writer = csv.DictWriter(file, table.splitlines()[0].split(","), extrasaction="ignore")
        writer.writeheader()
        for study in read_manifest(tmp_path / "export/images/manifest.jsonl"):
            row = {"study_date": "2024-03-01", "findings": "The lungs are clear."}
            writer.writerow(study.model_dump(exclude_none=True) | row | {"lateral": None})
    outputs, server = {}, serve(lambda body, _: verdict_reply(body))
    for line in commands("tutorials/fine-tune.md"):
        line = line.replace("http://localhost:8000/v1", f"{server.base_url} --splitter offline")
        words = replace(shlex.split(line))
        outputs[words[0], words[1]] = run(words, tmp_path)
    assert len(server.requests) > 0
    assert "Resuming runs/own" in outputs["sbatch", "deploy/slurm/train.sh"]
    assert (tmp_path / "runs/own/scores/report.html").exists()
