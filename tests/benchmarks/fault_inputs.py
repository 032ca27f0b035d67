"""Small valid inputs of every command, for `faults.py`."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

from radfact.io.jsonl import dumps, read_jsonl, write_jsonl
from radfact.pages.meta_page import Table

ROOT = Path(__file__).resolve().parents[2]
SENTENCES = ("There is a small left pleural effusion.", "The heart is enlarged.", "There is no pneumothorax.")
FILES: dict[str, Any] = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
NOT_UTF8 = os.fsdecode(b"\xe9.dcm")


def write_inputs(folder: Path) -> None:
    """Write everything that the command lines name, into an empty folder."""
    _write_studies(folder)
    write_reports(folder)
    _write_models(folder)
    for line in FILES["commands"]:
        subprocess.run([sys.executable, "-m", *line.split()], cwd=folder, stdout=subprocess.DEVNULL, check=True)
    from review_files import finish

    from maira.review.store import Store
    from maira.review.studies import read_review_drafts

    store = Store(folder / "review.sqlite", read_review_drafts(folder / "drafts.jsonl"))
    store.add_reader("Ada")
    finish(store)


def _write_studies(folder: Path) -> None:
    import numpy as np
    from dicom_files import RAMP, write_deflated_bomb, write_dicom
    from PIL import Image

    from maira.data.phantoms import write_phantoms

    list(write_phantoms(folder / "phantoms", 3, seed=7, size=224, split="train"))
    rows = [row for _, row in read_jsonl(folder / "phantoms/manifest.jsonl")]
    for name, count in (("drafts.jsonl", None), ("drafts2.jsonl", 1)):
        drafts = ({"sample_id": row["sample_id"], "report": row["grounded_findings"][:count]} for row in rows)
        write_jsonl(folder / name, drafts)
    located = [{**row, "frontal": f"phantoms/{row['frontal']}", "lateral": None} for row in rows]
    phrases = [{**row, "prior_frontal": None, "phrases": row["grounded_findings"]} for row in located]
    write_jsonl(folder / "phrases.jsonl", phrases)
    columns = ("sample_id", "patient_id", "frontal", "findings", "split")
    Table(columns, [[row[column] for column in columns] for row in located]).write(folder / "studies.csv")
    for name in ("radiograph.dcm", NOT_UTF8):
        write_dicom(folder / name, RAMP.astype("uint16"))
    write_deflated_bomb(folder / "bomb.dcm")
    gradient = Image.linear_gradient("L").resize((60, 40))
    for path in (folder / name for name in FILES["images"]):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_dicom(path, np.asarray(gradient)) if path.suffix == ".dcm" else gradient.save(path)


def write_reports(folder: Path) -> None:
    """Write the files that are texts or JSON."""
    for name, content in FILES["files"].items():
        _write(folder / name, content)


def _write_models(folder: Path) -> None:
    import torch
    from tiny_judge import write_tiny_model
    from tiny_runs import values
    from transformers import Dinov2Config, Dinov2Model

    (folder / "checkpoint").mkdir()
    for file in (ROOT / "checkpoints/phantom").iterdir():
        (folder / "checkpoint" / file.name).symlink_to(file)
    torch.manual_seed(0)
    sizes = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2}
    Dinov2Model(Dinov2Config(image_size=56, patch_size=14, **sizes)).save_pretrained(folder / "encoder")
    write_tiny_model(folder / "llama", SENTENCES)
    train_config = values(Path("phantoms/manifest.jsonl"), Path("out"), passes=4, validation={"sources": []})
    _write(folder / "train.yaml", train_config)
    _write(folder / "dpo.yaml", train_config | FILES["dpo"])


def _write(path: Path, content: Any) -> None:
    """Write a text as it is, or another value as JSON, which is also YAML."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else dumps(content))
