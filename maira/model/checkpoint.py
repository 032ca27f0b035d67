"""Names of MAIRA-2's parameters on disk (the release's or transformers 5's), and the content of checkpoints."""

from __future__ import annotations

import errno
import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor
from transformers.core_model_loading import Concatenate, WeightConverter, WeightRenaming

from maira.encoders.weights import ALIASES, FUSED_QKV, LEAVES, QKV, STEMS, hugging_face_names
from maira.model.weight_index import check_indexes, indexed_files
from radfact.errors import ErrorCode, InputError
from radfact.fingerprint import weights_digest
from radfact.io.hub import MODEL_FILES, resolve_model, snapshot_name
from radfact.io.jsonl import read_json, reading
from radfact.io.outputs import replace_folder

ENCODER = "model.vision_tower.vit."
RELEASE = (
    ("vision_tower.", ENCODER),
    ("multi_modal_projector.", "model.multi_modal_projector."),
    ("language_model.model.", "model.language_model."),
    ("language_model.lm_head.", "lm_head."),
)
"""Prefixes of names: (in the release, in the model)."""
_TRANSFORMERS5 = (
    *(("^model." + release, release) for release in ("vision_tower.", "multi_modal_projector.")),
    ("^model.language_model.", "language_model.model."),
    ("^lm_head.", "language_model.lm_head."),
    *ALIASES,
)
"""Parts of names: (in the layout of transformers 5, in the release)."""

HEAD = "language_model.lm_head.weight"
INDEX = "model.safetensors.index.json"
WEIGHTS = "model.safetensors"
_FINGERPRINT_FILES = (
    *("config.json", "generation_config.json", "preprocessor_config.json", "processor_config.json", "tokenizer.json"),
    *("tokenizer.model", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.json"),
    *("merges.txt", "*.jinja", "chat_template.json", "*.index.json", "*.safetensors", "*.bin"),
)
"""Files of a checkpoint that determine its output; the folder may hold drafts too."""
_HUB_ARGUMENTS = ("cache_dir", "force_download", "local_files_only", "revision", "token")
"""Arguments of `from_pretrained` that only a name on the Hub has a use for."""
_MAX_LISTED = 6
"""Most names listed in an error."""


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor on disk: its file, name, shape, and type by safetensors' name."""

    file: Path
    name: str
    shape: tuple[int, ...]
    dtype: str


def _renamings(pairs: Iterable[tuple[str, str]]) -> list[WeightRenaming]:
    return [WeightRenaming(old.replace(".", r"\."), new) for old, new in pairs]


_TO_RELEASE = _renamings(_TRANSFORMERS5)


def name_in_release(name: str) -> str:
    """Return the name in the release of a tensor on disk."""
    for renaming in _TO_RELEASE:
        name, _ = renaming.rename_source_key(name)
    return name


def release_names(name: str) -> tuple[str, ...]:
    """Return the names in the release of one of the model's parameters: one, or three for a fused projection."""
    for prefix, ours in RELEASE:
        if name.startswith(ours):
            rest = name.removeprefix(ours)
            return tuple(prefix + end for end in (hugging_face_names(rest) if ours == ENCODER else (rest,)))
    return (name,)


def weight_transforms() -> list[WeightRenaming | WeightConverter]:
    """Return transformers' rules for names on disk, in the order in which it applies them: via those of the release."""
    (tower, encoder), *others = RELEASE
    stems = [(f"^{tower}{theirs}", encoder + ours) for theirs, ours in STEMS]
    renamings = _renamings([*stems, *((f"^{theirs}", ours) for theirs, ours in others), *LEAVES])
    fuse = WeightConverter([re.escape(part) for part in QKV], FUSED_QKV, [Concatenate(dim=0)])
    return [*_TO_RELEASE, *renamings, fuse]


def check_finite(name: str, tensor: Tensor, file: Path | str) -> None:
    """Check that a tensor has no NaN and no infinity, at about 10 GB/s; tensors without values (meta device) pass."""
    if tensor.is_meta or not tensor.is_floating_point() or not tensor.numel():
        return
    low, high = tensor.aminmax()  # NaN if one of the values is
    if not (low.isfinite() and high.isfinite()):
        message = f"expected finite weights, found NaN or infinity in {tensor.dtype}; use an earlier checkpoint"
        raise InputError(message, file=file, field=name)


def check_files(folder: Path, kind: str, *names: str) -> None:
    """Check that a folder has one of the files of a kind of content."""
    if not any((folder / name).is_file() for name in names):
        raise InputError(f"no {kind} here: expected {' or '.join(names)}", code=ErrorCode.FILE_NOT_FOUND, file=folder)


def check_json(folder: Path, *names: str) -> None:
    """Check that each of the files that the folder has is a JSON object."""
    for path in (folder / name for name in names):
        if path.exists() and not isinstance(read_json(path), dict):
            raise InputError("expected a JSON object", code=ErrorCode.INVALID_FORMAT, file=path)


def read_headers(folder: Path) -> list[StoredTensor]:
    check_files(folder, "weights", WEIGHTS, INDEX)
    check_indexes(folder)
    files = [folder / WEIGHTS] if (folder / WEIGHTS).is_file() else indexed_files(folder / INDEX)
    tensors: list[StoredTensor] = []
    for file in files:
        try:
            with safe_open(file, framework="pt") as handle:
                for name in handle.keys():  # noqa: SIM118 - safe_open is no mapping
                    part = handle.get_slice(name)
                    tensors.append(StoredTensor(file, name, tuple(part.get_shape()), str(part.get_dtype())))
        except FileNotFoundError:
            raise InputError(f"{INDEX} names a missing file", code=ErrorCode.FILE_NOT_FOUND, file=file) from None
        except SafetensorError as error:
            message = f"cannot be read as safetensors: {error}"
            raise InputError(message, code=ErrorCode.FILE_UNREADABLE, file=file) from None
    return tensors


def raise_mismatch(missing: Iterable[str], unexpected: Iterable[str], reshaped: Iterable[Any], *, file: Path) -> None:
    """Raise an InputError that lists mismatches, unless there are none."""
    lists = []
    for kind, names in (("missing", missing), ("unexpected", unexpected), ("different shape", reshaped)):
        if listed := sorted(map(str, names)):
            if len(listed) > _MAX_LISTED:
                # One name stands for those of all layers.
                listed = sorted({re.sub(r"\.\d+\.", ".*.", name) for name in listed})
            more = f" and {len(listed) - _MAX_LISTED} more" if len(listed) > _MAX_LISTED else ""
            lists.append(f"{kind}: {', '.join(listed[:_MAX_LISTED])}{more}")
    if lists:
        message = f"the weights do not match the configuration; {'; '.join(lists)}"
        raise InputError(message, code=ErrorCode.MISMATCH, file=file)


def fingerprint(checkpoint: Path) -> str:
    """Return a short hash of the files of a checkpoint that determine its output (weights: by `weights_digest`)."""
    check_files(checkpoint, "checkpoint", "config.json")
    files = sorted(path for name in _FINGERPRINT_FILES for path in checkpoint.glob(name) if path.is_file())
    digest = hashlib.sha256()
    for path in files:
        digest.update(f"\n{path.name}\n".encode())
        with reading(path):
            digest.update(weights_digest(path) if path.suffix in (".safetensors", ".bin") else path.read_bytes())
    return digest.hexdigest()[:12]


def resolve_pretrained(
    name: Path | str, arguments: Mapping[str, Any], files: Sequence[str] = MODEL_FILES
) -> tuple[Path, dict[str, Any]]:
    """Return the folder of a checkpoint and the other arguments: transformers would load files of the Hub unchecked."""
    rest = dict(arguments)
    options = {key: value for key in _HUB_ARGUMENTS if (value := rest.pop(key, None)) is not None}
    if rest.get("subfolder") or rest.get("variant"):
        return Path(name), dict(arguments)
    return resolve_model(name, allow_patterns=list(files), **options), rest


def checkpoint_name(checkpoint: Path) -> str:
    """Return the name of a checkpoint for records: its folder, or its name on the Hub, and its fingerprint."""
    on_hub = snapshot_name(checkpoint)
    return f"{on_hub[0] if on_hub else checkpoint.resolve().name}@{fingerprint(checkpoint)}"


@contextmanager
def checkpoint_folder(folder: Path) -> Iterator[Path]:
    """Yield a temporary folder that replaces a checkpoint when the block ends without an error."""
    try:
        with replace_folder(folder) as new:
            yield new
    except SafetensorError as error:
        # It has no error number and no file.
        raise OSError(errno.EIO, str(error), str(folder)) from error
