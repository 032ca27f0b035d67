"""The guide "Train on 8 GPUs": its commands on a tiny model and phantoms, in two processes."""

import re
import shlex
from contextlib import chdir
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from test_assemble import language_model, sentencepiece_tokenizer
from tiny_runs import run_together
from transformers import Dinov2Config, Dinov2Model
from typer.testing import CliRunner

from maira.cli.main import app as maira
from maira.data.manifest import read_manifest, write_manifest
from radfact.cli.main import app as radfact

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/train-8-gpus.md").read_text("utf-8")
BLOCKS = re.findall(r"^```text\n(.*?)^```$", PAGE, re.M | re.S)
PROGRAMS = ("maira", "radfact", "torchrun")
COMMANDS = [line for block in BLOCKS for line in block.replace("\\\n", "").splitlines() if line.startswith(PROGRAMS)]
SMALL: dict[str, Any] = {
    "base": str(ROOT / "configs/maira2_7b.yaml"),
    "epochs": 1,
    "global_batch": 8,
    "token_budget": 1024,
    "workers": 1,
    "compile": False,
    "trackers": [],
    "log_every": 2,
    "learning_rate": 1.0e-3,
    "validation": {"samples": 8, "drafts": 2},
}
"""Only what is too large for a test."""
TRIAL = {"passes=1280": "passes=16", "passes=2560": "passes=24"}


def replace(words: list[str]) -> list[str]:
    """The command line for a tiny model; `prepare` makes phantoms instead of reading archives."""
    if words[:2] == ["maira", "prepare"]:
        out = words[words.index("--out") + 1]
        seed = sum(out.encode())
        return ["maira", "prepare", "phantom", "--count", "12", "--size", "64", "--seed", str(seed), "--out", out]
    return [TRIAL.get(word, word) for word in words]


def run(words: list[str], folder: Path) -> str:
    """Run a command in a folder; returns its output."""
    if words[0] != "torchrun":
        with chdir(folder):
            result = CliRunner().invoke(maira if words[0] == "maira" else radfact, words[1:])
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


def test_the_commands_lead_from_weights_to_scores(tmp_path: Path) -> None:
    torch.manual_seed(0)
    sizes = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2}
    Dinov2Model(Dinov2Config(image_size=56, patch_size=14, **sizes)).save_pretrained(tmp_path / "rad-dino")
    language_model(tmp_path / "vicuna-7b-v1.5")
    sentencepiece_tokenizer(tmp_path / "vicuna-7b-v1.5")
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs/maira2_7b.yaml").write_text(yaml.safe_dump(SMALL))
    outputs = {}
    for line in COMMANDS:
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
