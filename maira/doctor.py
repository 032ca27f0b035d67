"""Checks of what the model and its jobs require, in addition to those of `radfact doctor`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from maira.review.browser import browser_name, has_screen
from radfact.cache_folders import hugging_face_cache
from radfact.cli.doctor import CheckResult, check_all, check_commands, run_checks

Kind = Literal["checkpoint", "encoder", "language model", "other"]

COMMAND_EXTRAS: Mapping[str, str] = {
    "prepare phantom": "",
    "sentences": "",
    "review export": "",
    "review": "review",
    **dict.fromkeys(("prepare", "train", "estimate", "ablate", "generate", "ground", "boxes"), "model"),
    **dict.fromkeys(("assemble", "push", "judge-data", "judge-train", "evaluate inputs"), "model"),
}
"""As in `radfact.cli.doctor`."""
_COMMANDS_WITH_CHECKPOINT = ("generate", "ground", "boxes", "evaluate inputs")
_KINDS: Mapping[str, Kind] = {
    "maira2": "checkpoint",
    "dinov2": "encoder",
    "llama": "language model",
}
"""By `model_type` in config.json."""
_DESCRIPTIONS: Mapping[Kind, str] = {
    "checkpoint": "MAIRA-2: --checkpoint of generate, ground, boxes",
    "encoder": "RAD-DINO: --encoder of assemble",
    "language model": "Llama: --language-model of assemble",
    "other": "",
}
_PLACES = ("checkpoints/*", "models/*", "runs/*/checkpoint*")
"""Folders of models below the current folder, as in the configs and the guides."""
_DOWNLOADS = ("microsoft/maira-2", "microsoft/rad-dino*", "lmsys/vicuna-*")
"""Models that Hugging Face's tools may have downloaded."""
_SAFETENSORS = ("model.safetensors", "model.safetensors.index.json")
_PICKLES = ("pytorch_model.bin", "pytorch_model.bin.index.json")
_WEIGHTS: Mapping[Kind, tuple[str, ...]] = {
    "checkpoint": _SAFETENSORS,
    "encoder": (_SAFETENSORS[0], _PICKLES[0], "backbone_compatible.safetensors"),
    "language model": _SAFETENSORS + _PICKLES,
    "other": _SAFETENSORS + _PICKLES,
}
"""Weight files or indexes of weight files; the first that exists is loaded."""
_CHAT_TEMPLATES = ("chat_template.json", "processor_config.json", "tokenizer_config.json")
"""Files that may have a field `chat_template`; `chat_template.jinja` takes precedence over them."""
_TOKENIZERS = ("tokenizer.json", "tokenizer.model")


@dataclass(frozen=True, slots=True)
class ModelFolder:
    """A folder with a model: the size of its weights in bytes, and why it cannot be used, if that is known."""

    path: Path
    kind: Kind
    model_type: str
    size: int
    problem: str | None = None


def diagnose(
    commands: Mapping[str, Sequence[str]] | None = None,
    folders: Sequence[Path] = (),
    weights: Mapping[str, Path] | Sequence[Path] = (),
) -> dict[str, list[CheckResult]]:
    """Check what the model and the evaluation of reports require; return the results by section."""
    models: list[ModelFolder] = []

    def check_models() -> Sequence[CheckResult]:
        models.extend(map(read_folder, folders or usual_places()))
        return list(map(_check_folder, models)) or [CheckResult("models", "note", f"none in {', '.join(_PLACES)}")]

    def check_all_commands() -> Sequence[CheckResult]:
        names = commands or {}
        results = check_commands("maira", names.get("maira", ()), COMMAND_EXTRAS)
        return [
            *(_add_models(result, models) for result in results),
            *check_commands("radfact", names.get("radfact", ())),
        ]

    own = run_checks(Models=check_models, Browser=_check_browser, Commands=check_all_commands)
    return check_all(weights) | own


def usual_places() -> Iterator[Path]:
    """Yield the model folders in the places that configs and guides name, and in Hugging Face's cache."""
    local = (folder for pattern in _PLACES for folder in sorted(Path().glob(pattern)))
    cached = (
        folder
        for name in _DOWNLOADS
        for folder in sorted(hugging_face_cache().glob(f"models--{name.replace('/', '--')}/snapshots/*"))
    )
    for folder in (*local, *cached):
        if (folder / "config.json").is_file():
            yield folder


def read_folder(folder: Path) -> ModelFolder:
    """Inspect the configuration and the file names of a folder, without reading tensors."""
    try:
        config: Any = json.loads((folder / "config.json").read_text("utf-8"))
        model_type = str(config["model_type"])
    except FileNotFoundError:
        return ModelFolder(folder, "other", "unknown", 0, "no config.json")
    except (OSError, ValueError):
        return ModelFolder(folder, "other", "unknown", 0, "config.json cannot be read")
    except (KeyError, TypeError):
        return ModelFolder(folder, "other", "unknown", 0, "config.json has no model_type")
    model = ModelFolder(folder, _KINDS.get(model_type, "other"), model_type, 0)
    try:
        files = _weight_files(folder, _WEIGHTS[model.kind])
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return replace(model, problem="the index of its weights cannot be read")
    absent = [file.name for file in files if not file.is_file()]
    size = sum(file.stat().st_size for file in files if file.is_file())
    problem = None
    if not files:
        problem = f"no weights: expected {' or '.join(_WEIGHTS[model.kind])}"
    elif absent:
        problem = f"{len(absent)} of {len(files)} weight files are missing, such as {absent[0]}"
    elif model.kind in ("checkpoint", "language model") and not any((folder / name).is_file() for name in _TOKENIZERS):
        problem = f"no tokenizer: expected {' or '.join(_TOKENIZERS)}"
    return replace(model, size=size, problem=problem)


def _weight_files(folder: Path, names: Sequence[str]) -> list[Path]:
    file = next((folder / name for name in names if (folder / name).is_file()), None)
    if file is None or file.suffix != ".json":
        return [] if file is None else [file]
    weight_map = json.loads(file.read_text("utf-8"))["weight_map"]
    return [folder / name for name in sorted(set(weight_map.values()))]


def _check_folder(model: ModelFolder) -> CheckResult:
    if model.problem is not None:
        return CheckResult(str(model.path), "wrong", model.problem)
    description = _DESCRIPTIONS[model.kind] or f"a model of the type '{model.model_type}'"
    if model.kind == "checkpoint":
        description += f"; prompts by {_chat_template(model.path)}"
    return CheckResult(str(model.path), "ok", f"{description} ({model.size / 1e9:.2g} GB)")


def _chat_template(folder: Path) -> str:
    if (folder / "chat_template.jinja").is_file():
        return "chat_template.jinja"
    for name in _CHAT_TEMPLATES:
        with suppress(OSError, ValueError, AttributeError):
            if json.loads((folder / name).read_text("utf-8")).get("chat_template"):
                return name
    return "the chat template of this package"


def _check_browser() -> Sequence[CheckResult]:
    screen = has_screen()
    name = browser_name() if screen else None
    reason = "none found by Python's webbrowser" if screen else "no screen to open one on"
    message = name or f"{reason}; maira review prints its address"
    return [CheckResult("browser", "note", message)]


def _add_models(result: CheckResult, models: Sequence[ModelFolder]) -> CheckResult:
    """Add the usable models to the result of a command that requires some."""
    command = result.name.partition(" ")[2]
    if result.status != "ok":
        return result
    if command == "assemble":
        return _add_parts(result, models)
    if command not in _COMMANDS_WITH_CHECKPOINT:
        return result
    paths = [str(model.path) for model in models if model.kind == "checkpoint" and model.problem is None]
    if not paths:
        fix = "give --checkpoint FOLDER: the released MAIRA-2, your own, or checkpoints/phantom"
        return replace(result, status="missing", message="no checkpoint found", fix=fix)
    message = f"with --checkpoint {' or '.join(paths[:3])}"
    return replace(result, message="; ".join(filter(None, (message, result.message))))


def _add_parts(result: CheckResult, models: Sequence[ModelFolder]) -> CheckResult:
    usable = {model.kind: model.path for model in models if model.problem is None}
    parts = {"--encoder": usable.get("encoder"), "--language-model": usable.get("language model")}
    absent = [option for option, path in parts.items() if path is None]
    if not absent:
        return replace(result, message="with " + " ".join(f"{option} {path}" for option, path in parts.items()))
    fix = "give --encoder FOLDER (RAD-DINO) and --language-model FOLDER (Vicuna)"
    return replace(result, status="missing", message=f"nothing found for {' and '.join(absent)}", fix=fix)
