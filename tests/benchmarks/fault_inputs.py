"""Small valid inputs of every command, for `faults.py`."""

import csv
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
SENTENCES = ("There is a small left pleural effusion.", "The heart is enlarged.", "There is no pneumothorax.")
ROWS = [(f"r{number}", " ".join(SENTENCES[number % 3 :]), " ".join(SENTENCES[: 1 + number % 3])) for number in range(6)]
"""Id, reference and candidate."""
FILES: dict[str, Any] = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
NOT_UTF8 = os.fsdecode(b"\xe9.dcm")


def write_inputs(folder: Path) -> None:
    """Write everything that the command lines name, into an empty folder."""
    _write_studies(folder)
    write_reports(folder)
    _write_models(folder)
    _write_archives(folder)
    lines = (
        "radfact score pairs.json --judge offline --out results",
        "radfact score pairs.csv --judge offline --out results2",
        "radfact evaluate ratings_pairs.csv --metrics rouge_l --out rated",
        "radfact evaluate ratings_pairs.csv --metrics bleu_2 --out rated2",
        "radfact meta inject reports.csv --out injected.jsonl",
        "radfact meta ensemble fit ratings.csv --better lower --judges a=rated --judges b=rated2 --folds 2"
        " --out ensemble.json",
    )
    for line in lines:
        process = subprocess.run([sys.executable, "-m", *line.split()], cwd=folder, capture_output=True, text=True)
        if process.returncode:
            raise RuntimeError(f"{line}: {process.stderr}")
    from review_files import finish

    from maira.review.store import Store
    from maira.review.studies import read_review_drafts

    store = Store(folder / "review.sqlite", read_review_drafts(folder / "drafts.jsonl"))
    store.add_reader("Ada")
    finish(store)


def _write_studies(folder: Path) -> None:
    from dicom_files import RAMP, write_deflated_bomb, write_dicom

    from maira.data.phantoms import write_phantoms

    list(write_phantoms(folder / "phantoms", 3, seed=7, size=224, split="train"))
    rows = _rows(folder / "phantoms/manifest.jsonl")
    _jsonl(folder / "drafts.jsonl", ({"sample_id": r["sample_id"], "report": r["grounded_findings"]} for r in rows))
    shortened = ({"sample_id": r["sample_id"], "report": r["grounded_findings"][:1]} for r in rows)
    _jsonl(folder / "drafts2.jsonl", shortened)
    pair = {"chosen": "<obj>No pleural effusion.</obj>", "rejected": "<obj>Mass.<box><x1><y2><x3><y4></box></obj>"}
    _jsonl(folder / "preferences.jsonl", ({"sample_id": row["sample_id"], **pair} for row in rows))
    located = [{**row, "frontal": f"phantoms/{row['frontal']}", "lateral": None} for row in rows]
    phrases = [{**row, "prior_frontal": None, "phrases": row["grounded_findings"]} for row in located]
    _jsonl(folder / "phrases.jsonl", phrases)
    _csv(folder / "phrases.csv", ("sample_id", "phrase"), [(row["sample_id"], "The heart is large.") for row in rows])
    tasks = [{"id": n, "data": {"sample_id": row["sample_id"]}, "annotations": []} for n, row in enumerate(rows)]
    _json(folder / "export.json", tasks)
    columns = ("sample_id", "patient_id", "frontal", "findings", "split")
    _csv(folder / "studies.csv", columns, [[row[column] for column in columns] for row in located])
    for name in ("radiograph.dcm", NOT_UTF8):
        write_dicom(folder / name, RAMP.astype("uint16"))
    write_deflated_bomb(folder / "bomb.dcm")
    square = [{"id": n, "file_name": rows[n]["frontal"], "width": 224, "height": 224} for n in range(2)]
    boxes = [{"image_id": n, "category_id": 5, "bbox": [20, 10, 40, 20]} for n in range(2)]
    _json(folder / "coco.json", {"images": square, "annotations": boxes, "categories": [{"id": 5, "name": "Nodule"}]})


def write_reports(folder: Path) -> None:
    """Write tables and pairs of reports, without images and models."""
    box = {"x_min": 0.25, "y_min": 0.25, "x_max": 0.5, "y_max": 0.75}
    reports = [[{"text": SENTENCES[0], "boxes": [box]}], [{"text": text} for text in SENTENCES]]
    _json(
        folder / "pairs.json",
        [{"example_id": name, "prediction": reports[0], "target": reports[1]} for name, *_ in ROWS],
    )
    texts = [(name, candidate, reference) for name, reference, candidate in ROWS]
    for name in ("pairs.csv", "ratings_pairs.csv"):
        _csv(folder / name, ("example_id", "prediction", "target"), texts)
    _csv(folder / "ratings.csv", ("id", "reference", "candidate", "expert"), [(*r, n % 4) for n, r in enumerate(ROWS)])
    _csv(folder / "reports.csv", ("id", "report"), [(f"p{n}", " ".join(SENTENCES)) for n in range(6)])
    _write_files(folder, "reports")


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
    _json(folder / "train.yaml", train_config)  # JSON is YAML
    pairs = {"model": "checkpoint", "trained": ["adapter"], "tasks": {"grounded": 1}, "patch_loss": 0, "dpo": {}}
    sources = [{"manifest": "phantoms/manifest.jsonl", "preferences": "preferences.jsonl"}]
    _json(folder / "dpo.yaml", {**train_config, **pairs, "train": sources, "global_batch": 2, "passes": 2})
    _write_files(folder, "models")
    messages = [{"role": "user", "content": SENTENCES[0]}, {"role": "assistant", "content": "yes"}]
    _jsonl(folder / "samples.jsonl", ({"sample_id": f"s{n}", "split": "train", "messages": messages} for n in range(4)))


def _write_archives(folder: Path) -> None:
    import numpy as np
    from dicom_files import write_dicom
    from PIL import Image

    _write_files(folder, "archives")
    gradient = Image.linear_gradient("L").resize((60, 40))
    for path in (folder / name for name in FILES["images"]):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_dicom(path, np.asarray(gradient)) if path.suffix == ".dcm" else gradient.save(path)


def _write_files(folder: Path, part: str) -> None:
    for name, content in FILES[part].items():
        _json(folder / name, content)


def _rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def _json(path: Path, value: Any) -> None:
    """Write a text as it is, or another value as JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(value if isinstance(value, str) else json.dumps(value))


def _jsonl(path: Path, rows: Iterable[Any]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def _csv(path: Path, header: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    with path.open("w", newline="") as handle:
        csv.writer(handle).writerows([header, *rows])
