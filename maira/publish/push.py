"""Upload of a checkpoint to the Hugging Face Hub, in one commit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi

from maira.model.checkpoint import INDEX, WEIGHTS
from maira.publish.card import CheckpointFacts
from radfact.errors import ErrorCode, InputError
from radfact.io.hub import hub_errors, progress_on_terminals
from radfact.io.jsonl import read_json

CARD = "README.md"
_SETTINGS = (
    "config.json",
    "generation_config.json",
    "preprocessor_config.json",
    "processor_config.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "lora/adapter_config.json",
)
"""Files with names of files among their values, possibly."""
_FILES = (
    *_SETTINGS,
    "added_tokens.json",
    "tokenizer.json",
    "tokenizer.model",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "*.jinja",
    INDEX,
    "lora/adapter_model.safetensors",
    "LICENSE*",
    "LICENCE*",
    "NOTICE*",
)
"""Files of a checkpoint in addition to its weights. Everything else in its folder stays here: training states, metrics,
drafts and whatever else may have been written there."""
_SHARDS = "model-*.safetensors"


@dataclass(frozen=True)
class Upload:
    """The files of a checkpoint that are uploaded.

    Attributes:
        files: paths here, by their name in the repository.
        skipped: names of files in the folder that are not uploaded.
    """

    files: dict[str, Path]
    skipped: tuple[str, ...]

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(path.stat().st_size for path in self.files.values())


def select_files(facts: CheckpointFacts) -> Upload:
    """Select the files of a checkpoint to upload."""
    weights = {tensor.file.name for tensor in facts.tensors}
    files, skipped = {}, []
    for path in sorted(path for path in facts.folder.rglob("*") if path.is_file()):
        name = path.relative_to(facts.folder).as_posix()
        if name in weights or _is_checkpoint_file(name):
            files[name] = path
        else:
            skipped.append(name)
    for name in files.keys() & {*_SETTINGS}:
        for field, value in _texts(read_json(files[name])):
            if len(value) > 1 and Path(value).is_absolute():
                raise InputError(
                    f"expected no absolute path in a published file, found {value!r}; remove it",
                    code=ErrorCode.INVALID_VALUE,
                    file=files[name],
                    field=field,
                )
    return Upload(files, tuple(skipped))


def _is_checkpoint_file(name: str) -> bool:
    return any(fnmatch(name, pattern) and name.count("/") == pattern.count("/") for pattern in _FILES)


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


def push(repository: str, upload: Upload, card: str, *, public: bool = False, message: str | None = None) -> str:
    """Upload files and card in one commit, and return its address.

    Large files are sent before the commit; those that the Hub already has are not sent again, so that a repeated call
    resumes an interrupted one. Until the commit, the repository stays as it was. Files of a checkpoint that it has from
    an earlier push, and this one lacks, are removed.
    """
    api = HfApi()
    with hub_errors(repository, field="repository"), progress_on_terminals():
        api.create_repo(repository, private=not public, exist_ok=True)
        info = api.model_info(repository)
        if not public and not info.private:
            raise InputError(
                f"'{repository}' is public, and everyone could read the model; pass --public if they may",
                code=ErrorCode.CONFLICTING_OPTIONS,
                field="public",
            )
        if public and info.private:
            raise InputError(
                f"'{repository}' is private; change its visibility on the Hub first, or omit --public",
                code=ErrorCode.CONFLICTING_OPTIONS,
                field="public",
            )
        additions = [CommitOperationAdd(name, str(path)) for name, path in upload.files.items()]
        stale = _stale_files([file.rfilename for file in info.siblings or ()], upload)
        commit = api.create_commit(
            repository,
            [
                *additions,
                CommitOperationAdd(CARD, card.encode()),
                *(CommitOperationDelete(name) for name in stale),
            ],
            commit_message=message or "Upload the model with maira push",
            parent_commit=info.sha,
        )
    return str(commit.commit_url)


def _stale_files(remote: Sequence[str], upload: Upload) -> list[str]:
    known = [name for name in remote if name == WEIGHTS or fnmatch(name, _SHARDS) or _is_checkpoint_file(name)]
    return [name for name in known if name not in upload.files and not name.startswith(("LICEN", "NOTICE"))]
