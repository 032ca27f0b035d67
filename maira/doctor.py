"""What the model and its jobs need on this machine, beside what `radfact.doctor` looks at."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from maira.review.browser import browser_name, has_screen
from radfact.doctor import Examination, Item, evaluation, looked_at
from radfact.doctor.evaluation import Need, command_items
from radfact.doctor.examine import base_sections, evaluation_sections, program_line
from radfact.doctor.machine import hugging_face_cache

Kind = Literal["checkpoint", "encoder", "language model", "other"]

MODEL = Need(("model",))
NEEDS: Mapping[str, Need] = {
    "prepare": MODEL,
    "prepare phantom": Need(),
    "train": Need(("model",), text="by a recipe, such as configs/phantom.yaml"),
    "estimate": MODEL,
    "ablate": Need(("model",), judge=True),
    "generate": MODEL,
    "ground": MODEL,
    "boxes": MODEL,
    "convert": MODEL,
    "assemble": MODEL,
    "judge-data": MODEL,
    "judge-train": Need(("model",), text="from any chat model of transformers in a local folder"),
    "evaluate inputs": Need(("model",), judge=True),
    "sentences": Need(judge=True),
    "review": Need(("review",)),
    "review export": Need(),
}
"""Needs by the beginning of a command's words, as `radfact.doctor.evaluation.NEEDS`."""
_ASK_A_CHECKPOINT = ("generate", "ground", "boxes", "evaluate inputs")
_KINDS: Mapping[str, Kind] = {
    "maira2": "checkpoint",
    "dinov2": "encoder",
    "llama": "language model",
}
"""By `model_type` in config.json."""
_WORDS: Mapping[Kind, str] = {
    "checkpoint": "MAIRA-2: --checkpoint of generate, ground, boxes",
    "encoder": "RAD-DINO: --encoder of assemble",
    "language model": "Llama: --language-model of assemble",
    "other": "",
}
_PLACES = ("checkpoints/*", "models/*", "runs/*/checkpoint*")
"""Folders of models below the current folder, as the recipes and the guides name them."""
_FETCHED = ("microsoft/maira-2", "microsoft/rad-dino*", "lmsys/vicuna-*")
"""Models that Hugging Face's own tools may have fetched."""
_SAFETENSORS = ("model.safetensors", "model.safetensors.index.json")
_PICKLES = ("pytorch_model.bin", "pytorch_model.bin.index.json")
_WEIGHTS: Mapping[Kind, tuple[str, ...]] = {
    "checkpoint": _SAFETENSORS,
    "encoder": (_SAFETENSORS[0], _PICKLES[0], "backbone_compatible.safetensors"),
    "language model": _SAFETENSORS + _PICKLES,
    "other": _SAFETENSORS + _PICKLES,
}
"""Files that weights are loaded from, or the indexes of several; the first that is there is taken."""
_TOKENIZERS = ("tokenizer.json", "tokenizer.model")


@dataclass(frozen=True, slots=True)
class ModelFolder:
    """A folder with a model.

    Attributes:
        path: of the folder.
        kind: what the model is for.
        model_type: as its configuration has it.
        size: of its weights, in bytes.
        fault: why it cannot be used; None where nothing is seen to be wrong.
    """

    path: Path
    kind: Kind
    model_type: str
    size: int
    fault: str | None = None


def examine(
    commands: Mapping[str, Sequence[str]] | None = None,
    folders: Sequence[Path] = (),
    weights: Mapping[str, Path] | Sequence[Path] = (),
) -> Examination:
    """Look at what the model and the evaluation of reports need.

    Args:
        commands: words of each command of `maira` and of `radfact`.
        folders: of models, instead of those in the usual places.
        weights: of metrics, as `radfact metrics --weights` takes them.
    """
    found: list[ModelFolder] = []

    def models() -> Sequence[Item]:
        found.extend(map(read_folder, folders or usual_places()))
        return list(map(_folder_item, found)) or [Item("models", "note", f"none in {', '.join(_PLACES)}")]

    sections = [*base_sections(), looked_at("Models", models, _browser_items), *evaluation_sections(weights)]

    def states() -> Sequence[Item]:
        named = commands or {}
        ours = command_items("maira", named.get("maira", ()), NEEDS)
        theirs = command_items("radfact", named.get("radfact", ()), evaluation.NEEDS)
        return [*(_with_models(item, found) for item in ours), *theirs]

    return Examination(program_line(), tuple(sections), looked_at("Commands", states).items)


def usual_places() -> Iterator[Path]:
    """Folders that hold a configuration, in the places that recipes and guides name and in Hugging Face's cache."""
    here = (folder for pattern in _PLACES for folder in sorted(Path().glob(pattern)))
    cached = (
        folder
        for name in _FETCHED
        for folder in sorted(hugging_face_cache().glob(f"models--{name.replace('/', '--')}/snapshots/*"))
    )
    for folder in (*here, *cached):
        if (folder / "config.json").is_file():
            yield folder


def read_folder(folder: Path) -> ModelFolder:
    """What a folder holds by its configuration and the names of its files; no tensor is read."""
    try:
        config: Any = json.loads((folder / "config.json").read_text("utf-8"))
        model_type = str(config["model_type"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        why = (
            "config.json cannot be read" if isinstance(error, OSError | ValueError) else "config.json has no model_type"
        )
        why = "no config.json" if isinstance(error, FileNotFoundError) else why
        return ModelFolder(folder, "other", "unknown", 0, why)
    found = ModelFolder(folder, _KINDS.get(model_type, "other"), model_type, 0)
    try:
        files = _weight_files(folder, _WEIGHTS[found.kind])
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return replace(found, fault="the index of its weights cannot be read")
    absent = [file.name for file in files if not file.is_file()]
    size = sum(file.stat().st_size for file in files if file.is_file())
    fault = None
    if not files:
        fault = f"no weights: expected {' or '.join(_WEIGHTS[found.kind])}"
    elif absent:
        fault = f"{len(absent)} of {len(files)} files of weights are not there, such as {absent[0]}"
    elif found.kind in ("checkpoint", "language model") and not any((folder / name).is_file() for name in _TOKENIZERS):
        fault = f"no tokenizer: expected {' or '.join(_TOKENIZERS)}"
    return replace(found, size=size, fault=fault)


def _weight_files(folder: Path, names: Sequence[str]) -> list[Path]:
    found = next((folder / name for name in names if (folder / name).is_file()), None)
    if found is None or found.suffix != ".json":
        return [] if found is None else [found]
    named = json.loads(found.read_text("utf-8"))["weight_map"]
    return [folder / name for name in sorted(set(named.values()))]


def _folder_item(found: ModelFolder) -> Item:
    details = {"kind": found.kind, "model_type": found.model_type, "bytes": found.size}
    if found.fault is not None:
        return Item(str(found.path), "wrong", found.fault, details=details)
    words = _WORDS[found.kind] or f"a model of the type '{found.model_type}'"
    return Item(str(found.path), "ok", f"{words} ({found.size / 1e9:.2g} GB)", details=details)


def _browser_items() -> Sequence[Item]:
    screen = has_screen()
    name = browser_name() if screen else None
    why = "none that Python's webbrowser finds" if screen else "no screen to open one on"
    text = name or f"{why}; maira review says its address"
    return [Item("browser", "note", text, details={"program": name, "screen": screen})]


def _with_models(item: Item, found: Sequence[ModelFolder]) -> Item:
    """The state of a command that asks for models, given those that can be used."""
    command = item.name.partition(" ")[2]
    if item.state != "ok":
        return item
    if command == "assemble":
        return _with_parts(item, found)
    if command not in _ASK_A_CHECKPOINT:
        return item
    paths = [str(one.path) for one in found if one.kind == "checkpoint" and one.fault is None]
    if not paths:
        mend = "give --checkpoint FOLDER: the released MAIRA-2, one of your own, or checkpoints/phantom"
        return replace(item, state="missing", text="no checkpoint found", mend=mend)
    return replace(item, text="; ".join(filter(None, (f"with --checkpoint {' or '.join(paths[:3])}", item.text))))


def _with_parts(item: Item, found: Sequence[ModelFolder]) -> Item:
    usable = {one.kind: one.path for one in found if one.fault is None}
    parts = {"--encoder": usable.get("encoder"), "--language-model": usable.get("language model")}
    text = " ".join(f"{option} {path}" for option, path in parts.items() if path is not None)
    absent = [option for option, path in parts.items() if path is None]
    if not absent:
        return replace(item, text=f"with {text}")
    mend = "give --encoder FOLDER (RAD-DINO) and --language-model FOLDER (Vicuna)"
    return replace(item, state="missing", text=f"nothing found for {' and '.join(absent)}", mend=mend)
