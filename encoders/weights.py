"""Published weights of RAD-DINO into the encoder and back: Hugging Face's `Dinov2Model`, DINOv2's own backbone.

DINOv2's backbone has timm's names; those of Hugging Face are mapped by the tables of this file.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from encoders.rad_dino import Encoder

STEMS = (
    ("embeddings.cls_token", "cls_token"),
    ("embeddings.mask_token", "mask_token"),
    ("embeddings.position_embeddings", "pos_embed"),
    ("embeddings.patch_embeddings.projection.", "patch_embed.proj."),
    ("encoder.layer.", "blocks."),
    ("layernorm.", "norm."),
)
"""How names begin: (Hugging Face, timm)."""

LEAVES = (
    (".attention.output.dense.", ".attn.proj."),
    (".layer_scale1.lambda1", ".ls1.gamma"),
    (".layer_scale2.lambda1", ".ls2.gamma"),
)
"""What differs inside a block: (Hugging Face, timm)."""

QKV = (".attention.attention.query.", ".attention.attention.key.", ".attention.attention.value.")
FUSED_QKV = ".attn.qkv."
"""timm keeps the three projections of Hugging Face as one, stacked in this order along the first dimension."""

ALIASES = (
    (".attention.q_proj.", QKV[0]),
    (".attention.k_proj.", QKV[1]),
    (".attention.v_proj.", QKV[2]),
    (".attention.o_proj.", LEAVES[0][0]),
)
"""Names that transformers 5 has in memory, and writes where it is told not to write the original ones."""

DINOV2_PREFIXES = re.compile(r"^(teacher\.|student\.|module\.|backbone\.|dinov2\.)+")
DINOV2_CHUNKS = re.compile(r"^blocks\.\d+\.(\d+)\.")
"""DINOv2 trained with sharded blocks names a block by chunk and number."""

HEAD_WIDTH = 64
"""Width of an attention head in every DINOv2; a bare state dict does not say it."""

_REQUIRED = {
    "model_type": "dinov2",
    "mlp_ratio": 4,
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-6,
    "num_channels": 3,
    "qkv_bias": True,
    "use_swiglu_ffn": False,
    "use_mask_token": True,
    "apply_layernorm": True,
}
_SIZES = {"image_size": 224, "patch_size": 14, "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12}
"""Defaults of Hugging Face's `Dinov2Config`, which a file leaves out."""


def timm_name(name: str) -> tuple[str, int | None]:
    """timm's name for a parameter as any publisher calls it, and which third of it this is (None: the whole)."""
    name = DINOV2_CHUNKS.sub(r"blocks.\1.", DINOV2_PREFIXES.sub("", name))
    for theirs, ours in STEMS:
        if name.startswith(theirs):
            name = ours + name.removeprefix(theirs)
            break
    for theirs, ours in (*ALIASES, *LEAVES):
        name = name.replace(theirs, ours)
    for third, theirs in enumerate(QKV):
        if theirs in name:
            return name.replace(theirs, FUSED_QKV), third
    return name, None


def hugging_face_names(name: str) -> tuple[str, ...]:
    """Hugging Face's name for a parameter of timm's, or its three names where timm keeps three as one."""
    for theirs, ours in STEMS:
        if name.startswith(ours):
            name = theirs + name.removeprefix(ours)
            break
    for theirs, ours in LEAVES:
        name = name.replace(ours, theirs)
    return tuple(name.replace(FUSED_QKV, part) for part in QKV) if FUSED_QKV in name else (name,)


def to_timm(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A published state dict under timm's names.

    Raises:
        ValueError: of a fused projection only a part is there.
    """
    found: dict[str, Tensor] = {}
    thirds: dict[str, dict[int, Tensor]] = {}
    for name, tensor in state.items():
        ours, third = timm_name(name)
        if third is None:
            found[ours] = tensor
        else:
            thirds.setdefault(ours, {})[third] = tensor
    for ours, parts in thirds.items():
        if lacking := [name for i, name in enumerate(hugging_face_names(ours)) if i not in parts]:
            raise ValueError(f"the weights lack {', '.join(lacking)}")
        found[ours] = torch.cat([parts[i] for i in range(len(QKV))])
    return found


def to_hugging_face(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The state dict of a timm encoder (`Encoder.vit`) under the names of Hugging Face's `Dinov2Model`."""
    found: dict[str, Tensor] = {}
    for name, tensor in state.items():
        names = hugging_face_names(name)
        parts = tensor.chunk(len(names)) if len(names) > 1 else (tensor,)
        found |= {theirs: part.clone() for theirs, part in zip(names, parts, strict=True)}
    return found


def options_of_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of `Encoder` for a Hugging Face `Dinov2Config`, of whose keys any may be left out.

    Raises:
        ValueError: the config asks for what RAD-DINO does not have, or for features that are not the last block's
            after the final norm.
    """
    for key, value in _REQUIRED.items():
        if config.get(key, value) != value:
            raise ValueError(f"{key} is {config[key]!r}; the encoder has {value!r}")
    options = {key: _side(config.get(key, default)) for key, default in _SIZES.items()}
    last = f"stage{options['num_hidden_layers']}"
    if (stages := config.get("out_features")) and list(stages) != [last]:
        raise ValueError(f"out_features is {list(stages)}; the encoder gives those of {last}")
    return options


def config_of_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """A Hugging Face `Dinov2Config` for arguments of `Encoder`, as a backbone that gives its last features.

    Raises:
        ValueError: the encoder has another stem than DINOv2.
    """
    if options.get("stem", "patch") != "patch":
        raise ValueError("the encoder's convolutional stem has no counterpart in DINOv2")
    layers = options["num_hidden_layers"]
    stages = ["stem", *(f"stage{i}" for i in range(1, layers + 1))]
    sizes = {key: options[key] for key in _SIZES}
    backbone = {"out_features": [stages[-1]], "out_indices": [layers], "stage_names": stages}
    return {**sizes, **_REQUIRED, **backbone, "reshape_hidden_states": False}


def options_of_weights(state: Mapping[str, Tensor]) -> dict[str, Any]:
    """Arguments of `Encoder` for a state dict under timm's names, read off its shapes.

    Raises:
        ValueError: it is no DINOv2 of one CLS token and square images.
    """
    try:
        _, positions, width = state["pos_embed"].shape
        patch = state["patch_embed.proj.weight"].shape[-1]
    except (KeyError, ValueError):
        raise ValueError("no DINOv2 backbone: pos_embed or patch_embed.proj.weight is missing") from None
    side = math.isqrt(positions - 1)
    if side**2 != positions - 1:
        raise ValueError(f"pos_embed has {positions} positions, which is no square and a CLS token")
    return {
        "image_size": side * patch,
        "patch_size": patch,
        "hidden_size": width,
        "num_hidden_layers": 1 + max((int(n.split(".")[1]) for n in state if n.startswith("blocks.")), default=-1),
        "num_attention_heads": width // HEAD_WIDTH,
    }


def load_encoder(path: Path, *, frozen: bool = True) -> Encoder:
    """An encoder with published weights.

    Args:
        path: a folder with Hugging Face's `config.json` and weights, or a file with the state dict of either.
        frozen: as of `Encoder`.

    Raises:
        ValueError: there are no weights, or they are no DINOv2's; missing and unexpected names are listed.
    """
    state = to_timm(_read(_weights_file(path)))
    config = path / "config.json"
    if path.is_dir() and config.is_file():
        options = options_of_config(json.loads(config.read_text(encoding="utf-8")))
    else:
        options = options_of_weights(state)
    encoder = Encoder(**options, frozen=frozen)
    expected = encoder.vit.state_dict()
    wrong = _listed("missing", expected.keys() - state.keys())
    wrong += _listed("unexpected", state.keys() - expected.keys())
    wrong += _listed("of another shape", (n for n in expected.keys() & state if expected[n].shape != state[n].shape))
    if wrong:
        raise ValueError(f"the weights do not fit the encoder: {'; '.join(wrong)}")
    encoder.vit.load_state_dict(state)
    return encoder


def save_encoder(encoder: Encoder, folder: Path) -> None:
    """Write an encoder as Hugging Face's `Dinov2Model`: `config.json` and `model.safetensors`.

    Args:
        encoder: with a "patch" stem.
        folder: to write into; it is made if it is missing.

    Raises:
        ValueError: the encoder has another stem than DINOv2.
    """
    config = config_of_options(encoder.options) | {"architectures": ["Dinov2Model"]}
    folder.mkdir(parents=True, exist_ok=True)
    save_file(to_hugging_face(encoder.vit.state_dict()), folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def _side(size: Any) -> int:
    if isinstance(size, list | tuple):
        if len(set(size)) != 1:
            raise ValueError(f"sides differ: {list(size)}; the encoder is square")
        size = size[0]
    return int(size)


def _weights_file(path: Path) -> Path:
    if path.is_file():
        return path
    for name in ("model.safetensors", "pytorch_model.bin", "backbone_compatible.safetensors"):
        if (path / name).is_file():
            return path / name
    others = [file for suffix in ("safetensors", "pth", "pt") for file in sorted(path.glob(f"*.{suffix}"))]
    if len(others) == 1:
        return others[0]
    raise ValueError(f"no weights here: expected model.safetensors or one state dict, found {len(others)}")


def _read(file: Path) -> Mapping[str, Tensor]:
    if file.suffix == ".safetensors":
        state: Mapping[str, Any] = load_file(file)
    else:
        state = torch.load(file, map_location="cpu", weights_only=True, mmap=True)
    # DINOv2's training checkpoints keep the state dict of the teacher, which is the one to use, under its name.
    for key in ("teacher", "model", "state_dict"):
        state = state.get(key, state) if isinstance(state.get(key), Mapping) else state
    return {name: value for name, value in state.items() if not re.search(r"(^|\.)(dino|ibot)_head\.", name)}


def _listed(what: str, names: Iterable[str]) -> list[str]:
    found = sorted(names)
    return [f"{what}: {', '.join(found)}"] if found else []
