"""Conversion of a checkpoint to another layout, shard by shard, without changing a byte of its tensors."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import split_torch_state_dict_into_shards
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from maira.encoders.weights import config_of_options
from maira.model.checkpoint import (
    INDEX,
    Layout,
    StoredTensor,
    checkpoint_folder,
    match_weights,
    names_for_layout,
    read_headers,
)
from maira.model.config import FIXED, MairaConfig, read_config
from maira.model.modeling import expected_shapes
from maira.model.tokens import IMAGE
from radfact.errors import ErrorCode, InputError
from radfact.io.jsonl import read_json, write_json
from radfact.io.outputs import Output, lock_output

CHECKPOINT_FOLDER = Output("new folder", is_private=False)

SHARD_SIZE = "5GB"

_SETTINGS = (".json", ".model", ".txt", ".jinja")
_MAPPED = ("processor_config.json", "preprocessor_config.json", "tokenizer_config.json")
_NOTES = ("LICENSE", "LICENCE", "NOTICE", "README", "COPYING")
_NOTE_BYTES = 1 << 20
"""Larger files are not copied as notes."""

ARCHITECTURES: dict[Layout, str] = {
    "own": "MairaForConditionalGeneration",
    "released": "Maira2ForConditionalGeneration",
    "transformers5": "Maira2ForConditionalGeneration",
}


def convert(
    folder: Path,
    out: Path,
    layout: Layout,
    *,
    shard_size: str = SHARD_SIZE,
    on_progress: Callable[[int, int], None] = lambda *_: None,
) -> int:
    """Write a checkpoint in another layout.

    Tokenizer, processor, license and notes are copied; our own processor is rewritten with the names of transformers'
    standard settings for other layouts (`standard_processor`). Code in the folder is neither run nor copied, and the
    `auto_map` that refers to it is removed: this package's or transformers' own classes read the folder.

    Args:
        folder: checkpoint in any layout.
        out: folder to create.
        layout: layout to write.
        shard_size: largest size of a file, such as "5GB"; memory use does not depend on it, since files are mapped.
        on_progress: called with (written files, all files).

    Returns:
        The number of tensors written.

    Raises:
        InputError: `folder` is not a checkpoint, its weights do not match its configuration, the layout cannot hold
            the model, or `out` exists.
    """
    _check_size(shard_size)
    config = read_config(folder)
    stored = read_headers(folder)
    try:
        values = config_in(config, layout)
    except ValueError as error:
        raise InputError(
            f"cannot be written as '{layout}': {error}", code=ErrorCode.CONFLICTING_OPTIONS, file=folder
        ) from None
    plan = match_weights(stored, expected_shapes(config), file=folder)
    targets = _targets(plan, stored, layout)
    with new_folder(out) as made:
        for file in folder.iterdir():
            if file.is_file() and _is_copied(file):
                shutil.copy2(file, made / file.name)
        for name in _MAPPED:
            _remove_auto_map(made / name)
        write_json(made / "config.json", values)
        if layout != "own":
            standard_processor(made, config.vision_config.patch_size)
        shards = split_torch_state_dict_into_shards(
            {name: target.meta for name, target in targets.items()}, max_shard_size=shard_size
        )
        with ExitStack() as stack:
            read = _Reader(stored, stack)
            for done, (shard, names) in enumerate(sorted(shards.filename_to_tensors.items()), start=1):
                save_file({name: targets[name].read(read) for name in names}, made / shard, metadata={"format": "pt"})
                on_progress(done, len(shards.filename_to_tensors))
        if shards.is_sharded:
            write_json(made / INDEX, {"metadata": shards.metadata, "weight_map": shards.tensor_to_filename})
    return len(targets)


def _is_copied(file: Path) -> bool:
    if file.suffix in _SETTINGS:
        return file.name != INDEX
    if file.stat().st_size > _NOTE_BYTES:
        return False
    return file.suffix == ".md" or file.name.upper().startswith(_NOTES)


def _remove_auto_map(path: Path) -> None:
    """Remove the names of code from a file of settings."""
    values = read_json(path) if path.is_file() else None
    if isinstance(values, dict) and "auto_map" in values:
        del values["auto_map"]
        write_json(path, values)


def _check_size(size: str) -> None:
    if not re.fullmatch(r"[1-9]\d*(KB|MB|GB|TB)", size, re.IGNORECASE):
        raise InputError(
            f"expected a number and a unit, such as 5GB, found '{size}'",
            code=ErrorCode.INVALID_OPTION,
            field="shard_size",
        )


def config_in(config: MairaConfig, layout: Layout) -> dict[str, Any]:
    """Return the content of `config.json` in a layout.

    Args:
        config: configuration of the model.
        layout: layout to write.

    Raises:
        ValueError: the layout cannot hold the model.
    """
    values: dict[str, Any] = json.loads(config.to_json_string(use_diff=False))
    values["architectures"] = [ARCHITECTURES[layout]]
    if layout == "own":
        return values
    if values.pop("image_merge") != 1:
        raise ValueError(
            f"the model merges {config.image_merge} x {config.image_merge} patches to one token (image_merge), which "
            "only the layout 'own' supports"
        )
    values |= FIXED | {"image_seq_length": config.image_seq_length}
    values["vision_config"] = config_of_options(config.vision_config.encoder_options())
    if layout == "released":
        # Keys of the rotary embedding in transformers 4, for which the release was made.
        text = values["text_config"]
        rope = dict(text.pop("rope_parameters"))
        text["rope_theta"] = rope.pop("rope_theta")
        text["rope_scaling"] = rope | {"type": rope["rope_type"]} if rope["rope_type"] != "default" else None
        for part in (values, text):
            part["torch_dtype"] = part.pop("dtype", None)
    return values


def standard_processor(folder: Path, patch_size: int) -> None:
    """Rewrite our own processor's files in a folder so that transformers' own classes can read them.

    A processor of another kind is unchanged. The files are those that transformers' `BitImageProcessor` and
    `LlavaProcessor` read; that the release names these classes is an assumption. They lack the min-max step of the
    image preparation, so pixels are equal only for images that already span all gray levels.

    Args:
        folder: folder of the files.
        patch_size: side of a patch of the encoder, pixels.
    """
    path = folder / "processor_config.json"
    settings = read_json(path).get("image_processor", {}) if path.is_file() else {}
    if settings.get("image_processor_type") != "MairaImageProcessor":
        return
    name = {"processor_class": "Maira2Processor"}
    side = settings["size"]
    standard = {
        "image_processor_type": "BitImageProcessor",
        "do_resize": True,
        "size": {"shortest_edge": side},
        "resample": 3,
        "do_center_crop": True,
        "crop_size": {"height": side, "width": side},
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": [settings["image_mean"]] * 3,
        "image_std": [settings["image_std"]] * 3,
        "do_convert_rgb": True,
    }
    write_json(folder / "preprocessor_config.json", name | standard)
    # Counts the class token, which the strategy "default" removes again.
    tokens = {"image_token": IMAGE, "num_additional_image_tokens": 1, "vision_feature_select_strategy": "default"}
    write_json(path, name | {"patch_size": patch_size} | tokens)
    tokenizer = folder / "tokenizer_config.json"
    if tokenizer.is_file():
        values = read_json(tokenizer) | name
        if values.get("tokenizer_class") == "TokenizersBackend":
            # The name of the class in transformers 4; transformers 5 knows both.
            values["tokenizer_class"] = "PreTrainedTokenizerFast"
        write_json(tokenizer, values)


@contextmanager
def new_folder(out: Path) -> Iterator[Path]:
    """Yield a temporary folder that is renamed to `out` when the block ends without an error.

    Raises:
        InputError: `out` exists and is not empty, or another process has locked it.
        OSError: it cannot be written.
    """
    with lock_output(out, CHECKPOINT_FOLDER), checkpoint_folder(out) as new:
        yield new


class _Reader:
    """Reads tensors by name from open files, which are mapped, so that a tensor is read only when it is written."""

    def __init__(self, stored: Mapping[str, StoredTensor], stack: ExitStack) -> None:
        files = {tensor.file for tensor in stored.values()}
        self.open = {file: stack.enter_context(safe_open(file, framework="pt")) for file in files}
        self.stored = stored

    def __call__(self, name: str) -> Tensor:
        tensor: Tensor = self.open[self.stored[name].file].get_tensor(name)
        return tensor


class _Target:
    """A tensor to write: its sources concatenated, or a third of one.

    Attributes:
        meta: shape and type, without data.
    """

    def __init__(self, sources: tuple[str, ...], third: int | None, stored: Mapping[str, StoredTensor]) -> None:
        self.sources, self.third = sources, third
        rows, *rest = stored[sources[0]].shape
        rows = rows * len(sources) if third is None else rows // 3
        if (dtype := stored[sources[0]].dtype) not in _TYPES:
            raise InputError(
                f"expected one of {', '.join(_TYPES)}, found {dtype}",
                code=ErrorCode.INVALID_FORMAT,
                file=stored[sources[0]].file,
                field=sources[0],
            )
        self.meta = torch.empty((rows, *rest), dtype=_TYPES[dtype], device="meta")

    def read(self, read: _Reader) -> Tensor:
        """Read the tensor."""
        parts = [read(name) for name in self.sources]
        if self.third is not None:
            return parts[0].chunk(3)[self.third].clone()
        return torch.cat(parts) if len(parts) > 1 else parts[0]


_TYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


def _targets(
    plan: Mapping[str, tuple[str, ...]], stored: Mapping[str, StoredTensor], layout: Layout
) -> dict[str, _Target]:
    targets: dict[str, _Target] = {}
    for own, sources in plan.items():
        names = names_for_layout(own, layout)
        if len(names) == len(sources):
            targets |= {name: _Target((part,), None, stored) for name, part in zip(names, sources, strict=True)}
        elif len(names) == 1:
            targets[names[0]] = _Target(sources, None, stored)
        else:
            targets |= {name: _Target(sources, third, stored) for third, name in enumerate(names)}
    return targets
