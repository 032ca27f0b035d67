"""Checks of what the model and its jobs require, in addition to those of `radfact doctor`."""

from __future__ import annotations

import webbrowser
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from pydantic import BaseModel

from maira.model.weight_index import indexed_files
from maira.review.serve import has_screen
from radfact.cache_folders import hugging_face_cache
from radfact.cli.doctor import CheckResult, check_all, check_commands, run_checks
from radfact.errors import InputError
from radfact.io.jsonl import read_json
from radfact.records import validate_model

COMMAND_EXTRAS: Mapping[str, str] = {
    "prepare phantom": "",
    "sentences": "",
    "review export": "",
    "review": "review",
    **dict.fromkeys(("prepare", "train", "estimate", "ablate", "generate", "ground", "boxes"), "model"),
    **dict.fromkeys(("assemble", "push", "judge-data", "judge-train", "evaluate inputs"), "model"),
}
"""As in `radfact.cli.doctor`."""
_SAFETENSORS = ("model.safetensors", "model.safetensors.index.json")
_PICKLES = ("pytorch_model.bin", "pytorch_model.bin.index.json")


class Kind(NamedTuple):
    """A kind of model, and what takes it. Of its weights, files or indexes, the first that exists is loaded."""

    name: str
    commands: tuple[str, ...]
    option: str
    example: str
    weights: tuple[str, ...]


_GENERATION = ("generate", "ground", "boxes", "evaluate inputs")
_ENCODER_WEIGHTS = (_SAFETENSORS[0], _PICKLES[0], "backbone_compatible.safetensors")
_RELEASED = "the released MAIRA-2, your own, or checkpoints/phantom"
_KINDS = {
    "maira2": Kind("MAIRA-2", _GENERATION, "--checkpoint", _RELEASED, _SAFETENSORS),
    "dinov2": Kind("RAD-DINO", ("assemble",), "--encoder", "RAD-DINO", _ENCODER_WEIGHTS),
    "llama": Kind("Llama", ("assemble",), "--language-model", "Vicuna", _SAFETENSORS + _PICKLES),
}
"""By `model_type` in config.json."""
_PLACES = ("checkpoints/*", "models/*", "runs/*/checkpoint*")
"""Folders of models below the current folder, as in the configs and the guides."""
_DOWNLOADS = ("microsoft/maira-2", "microsoft/rad-dino*", "lmsys/vicuna-*")
"""Models that Hugging Face's tools may have downloaded."""
_CHAT_TEMPLATES = ("chat_template.json", "processor_config.json", "tokenizer_config.json")
"""Files that may have a field `chat_template`; `chat_template.jinja` takes precedence over them."""
_TOKENIZERS = ("tokenizer.json", "tokenizer.model")


def diagnose(
    commands: Mapping[str, Sequence[str]] | None = None,
    folders: Sequence[Path] = (),
    weights: Mapping[str, Path] | Sequence[Path] = (),
) -> dict[str, list[CheckResult]]:
    """Check what the model and the evaluation of reports require; return the results by section."""
    usable: dict[str, list[str]] = defaultdict(list)

    def check_models() -> Iterator[CheckResult]:
        found = list(folders or usual_places())
        for folder in found:
            model_type, result = check_folder(folder)
            if result.status == "ok":
                usable[model_type].append(result.name)
            yield result
        if not found:
            yield CheckResult("models", "note", f"none in {', '.join(_PLACES)}")

    def check_all_commands() -> Iterator[CheckResult]:
        names = commands or {}
        for result in check_commands("maira", names.get("maira", ()), COMMAND_EXTRAS):
            yield _add_models(result, usable) if result.status == "ok" else result
        yield from check_commands("radfact", names.get("radfact", ()))

    return check_all(weights) | run_checks(Models=check_models, Browser=_check_browser, Commands=check_all_commands)


def usual_places() -> Iterator[Path]:
    """Yield the model folders in the places that configs and guides name, and in Hugging Face's cache."""
    patterns = [f"models--{name.replace('/', '--')}/snapshots/*" for name in _DOWNLOADS]
    for root, names in ((Path(), _PLACES), (hugging_face_cache(), patterns)):
        for name in names:
            yield from (folder for folder in sorted(root.glob(name)) if (folder / "config.json").is_file())


class _Config(BaseModel):
    model_type: str


def check_folder(folder: Path) -> tuple[str, CheckResult]:
    """Inspect configuration and file names of a folder, without reading tensors; return the model's type as well."""
    model_type = "unknown"
    try:
        config = folder / "config.json"
        model_type = validate_model(_Config, read_json(config), file=config).model_type
        return model_type, CheckResult(str(folder), "ok", _describe(folder, model_type))
    except InputError as error:
        return model_type, CheckResult(str(folder), "wrong", str(error).removeprefix(f"{folder}/"))


def _describe(folder: Path, model_type: str) -> str:
    kind = _KINDS.get(model_type)
    names = kind.weights if kind else _SAFETENSORS + _PICKLES
    files = [file for name in names if (file := folder / name).is_file()][:1]
    if files and files[0].suffix == ".json":
        files = indexed_files(files[0])
    if not files:
        raise InputError(f"no weights: expected {' or '.join(names)}")
    if absent := [file.name for file in files if not file.is_file()]:
        raise InputError(f"{len(absent)} of {len(files)} weight files are missing, such as {absent[0]}")
    if model_type in ("maira2", "llama") and not any((folder / name).is_file() for name in _TOKENIZERS):
        raise InputError(f"no tokenizer: expected {' or '.join(_TOKENIZERS)}")
    use = f"{kind.name}: {kind.option} of {', '.join(kind.commands)}" if kind else f"a model of the type '{model_type}'"
    prompts = f"; prompts by {_chat_template(folder)}" if model_type == "maira2" else ""
    return f"{use}{prompts} ({sum(file.stat().st_size for file in files) / 1e9:.2g} GB)"


def _chat_template(folder: Path) -> str:
    if (folder / "chat_template.jinja").is_file():
        return "chat_template.jinja"
    for name in _CHAT_TEMPLATES:
        with suppress(InputError, AttributeError):
            if read_json(folder / name).get("chat_template"):
                return name
    return "the chat template of this package"


def _check_browser() -> Sequence[CheckResult]:
    try:
        name = webbrowser.get().name or "the system's"
    except webbrowser.Error:
        name = "none found by Python's webbrowser; maira review prints its address"
    if not has_screen():
        name = "no screen to open one on; maira review prints its address"
    return [CheckResult("browser", "note", name)]


def _add_models(result: CheckResult, usable: Mapping[str, Sequence[str]]) -> CheckResult:
    """Add the usable models to the result of a command that requires some."""
    command = result.name.partition(" ")[2]
    required = {model_type: kind for model_type, kind in _KINDS.items() if command in kind.commands}
    absent = [kind for model_type, kind in required.items() if not usable[model_type]]
    if absent:
        fix = "give " + " and ".join(f"{kind.option} FOLDER ({kind.example})" for kind in absent)
        options = " and ".join(kind.option for kind in absent)
        return replace(result, status="missing", message=f"nothing found for {options}", fix=fix)
    found = [f"{kind.option} {' or '.join(usable[model_type][:3])}" for model_type, kind in required.items()]
    return replace(result, message="with " + " ".join(found)) if found else result
