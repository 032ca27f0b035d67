"""Upload of a checkpoint to the Hugging Face Hub, in one commit."""

from __future__ import annotations

from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi

from maira.model.checkpoint import INDEX, WEIGHTS
from maira.publish.card import CheckpointFacts
from radfact.errors import ErrorCode, InputError
from radfact.io.hub import hub_errors, progress_on_terminals
from radfact.io.jsonl import read_json

_SETTINGS = {
    *("config.json", "generation_config.json", "preprocessor_config.json", "processor_config.json"),
    *("tokenizer_config.json", "special_tokens_map.json", "lora/adapter_config.json"),
}
"""Files with names of files among their values, possibly."""
_LICENSES = ("LICENSE*", "LICENCE*", "NOTICE*")
_FILES = (
    *(*_SETTINGS, *_LICENSES, INDEX, "*.jinja", "lora/adapter_model.safetensors"),
    *("added_tokens.json", "tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "merges.txt"),
)
"""Files of a checkpoint in addition to its weights. Everything else in its folder stays here: training states, metrics,
drafts and whatever else may have been written there."""


def select_files(facts: CheckpointFacts) -> tuple[dict[str, Path], list[str]]:
    """Return the files of a checkpoint to upload by their name in the repository, and the names of the others."""
    weights = {tensor.file.name for tensor in facts.tensors}
    paths = {path.relative_to(facts.folder).as_posix(): path for path in facts.folder.rglob("*") if path.is_file()}
    files = {name: paths[name] for name in sorted(paths) if name in weights or _fits(name, *_FILES)}
    for name in files.keys() & _SETTINGS:
        for field, value in _texts(read_json(files[name])):
            if len(value) > 1 and Path(value).is_absolute():
                message = f"expected no absolute path in a published file, found {value!r}; remove it"
                raise InputError(message, file=files[name], field=field)
    return files, sorted(paths.keys() - files.keys())


def _fits(name: str, *patterns: str) -> bool:
    return any(fnmatch(name, pattern) and name.count("/") == pattern.count("/") for pattern in patterns)


def _texts(value: Any, field: str = "") -> Iterator[tuple[str, str]]:
    """Yield all texts in a JSON value with their fields."""
    if isinstance(value, str):
        yield field, value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _texts(item, f"{field}.{key}" if field else str(key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _texts(item, f"{field}[{index}]")


def push(repository: str, files: dict[str, Path], card: str, *, public: bool = False) -> str:
    """Upload files and card in one commit, and return its address; a repeated call resumes an interrupted one."""
    api = HfApi()
    with hub_errors(repository, field="repository"), progress_on_terminals():
        api.create_repo(repository, private=not public, exist_ok=True)
        info = api.model_info(repository)
        if public == bool(info.private):
            problem = "is public, and everyone could read the model; pass --public if they may"
            if public:
                problem = "is private; change its visibility on the Hub first, or omit --public"
            raise InputError(f"'{repository}' {problem}", code=ErrorCode.CONFLICTING_OPTIONS, field="public")
        remote = {file.rfilename for file in info.siblings or ()} - files.keys()
        known = [name for name in remote if _fits(name, *_FILES, WEIGHTS, "model-*.safetensors")]
        added = [CommitOperationAdd(name, str(path)) for name, path in files.items()]
        added.append(CommitOperationAdd("README.md", card.encode()))
        deleted = [CommitOperationDelete(name) for name in sorted(known) if not _fits(name, *_LICENSES)]
        message = "Upload the model with maira push"
        commit = api.create_commit(repository, [*added, *deleted], commit_message=message, parent_commit=info.sha)
    return str(commit.commit_url)
