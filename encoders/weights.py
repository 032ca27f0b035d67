"""Conversion of published RAD-DINO weights to the encoder and back: Hugging Face's `Dinov2Model`, DINOv2's backbone.

DINOv2's backbone has timm's parameter names; the tables of this file map those of Hugging Face.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from maira.encoders.rad_dino import Encoder

STEMS = (
    ("embeddings.cls_token", "cls_token"),
    ("embeddings.mask_token", "mask_token"),
    ("embeddings.position_embeddings", "pos_embed"),
    ("embeddings.patch_embeddings.projection.", "patch_embed.proj."),
    ("encoder.layer.", "blocks."),
    ("layernorm.", "norm."),
)
"""Prefixes of names: (Hugging Face, timm)."""

LEAVES = (
    (".attention.output.dense.", ".attn.proj."),
    (".layer_scale1.lambda1", ".ls1.gamma"),
    (".layer_scale2.lambda1", ".ls2.gamma"),
)
"""Parts of names within a block: (Hugging Face, timm)."""

QKV = (".attention.attention.query.", ".attention.attention.key.", ".attention.attention.value.")
FUSED_QKV = ".attn.qkv."
"""timm fuses the three projections of Hugging Face, stacked in this order along the first dimension."""

ALIASES = (
    (".attention.q_proj.", QKV[0]),
    (".attention.k_proj.", QKV[1]),
    (".attention.v_proj.", QKV[2]),
    (".attention.o_proj.", LEAVES[0][0]),
)
"""Names that transformers 5 uses in memory, and writes with `save_original_format=False`."""

DINOV2_PREFIXES = re.compile(r"^(teacher\.|student\.|module\.|backbone\.|dinov2\.)+")
DINOV2_CHUNKS = re.compile(r"^blocks\.\d+\.(\d+)\.")
"""DINOv2 trained with block chunks names a block by chunk and number."""

HEAD_WIDTH = 64
"""Width of an attention head in every DINOv2; a state dict alone does not tell."""

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
"""Defaults of Hugging Face's `Dinov2Config`, which a file omits."""


def timm_name(name: str) -> tuple[str, int | None]:
    """Return timm's name of a published parameter, and 0, 1 or 2 for a part of a fused projection, else None."""
    name = DINOV2_CHUNKS.sub(r"blocks.\1.", DINOV2_PREFIXES.sub("", name))
    for hf, timm in STEMS:
        if name.startswith(hf):
            name = timm + name.removeprefix(hf)
    for hf, timm in (*ALIASES, *LEAVES):
        name = name.replace(hf, timm)
    for third, hf in enumerate(QKV):
        if hf in name:
            return name.replace(hf, FUSED_QKV), third
    return name, None


def hugging_face_names(name: str) -> tuple[str, ...]:
    """Return Hugging Face's name of a timm parameter, or the three names of a fused projection."""
    for hf, timm in STEMS:
        if name.startswith(timm):
            name = hf + name.removeprefix(timm)
    for hf, timm in LEAVES:
        name = name.replace(timm, hf)
    return tuple(name.replace(FUSED_QKV, part) for part in QKV) if FUSED_QKV in name else (name,)


def to_timm(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Convert a published state dict to timm's names."""
    converted: dict[str, Tensor] = {}
    thirds: dict[str, dict[int, Tensor]] = {}
    for name, tensor in state.items():
        timm, third = timm_name(name)
        if third is None:
            converted[timm] = tensor
        else:
            thirds.setdefault(timm, {})[third] = tensor
    for timm, parts in thirds.items():
        if missing := [name for i, name in enumerate(hugging_face_names(timm)) if i not in parts]:
            raise ValueError(f"missing weights: {', '.join(missing)}")
        converted[timm] = torch.cat([parts[i] for i in range(len(QKV))])
    return converted


def to_hugging_face(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Convert the state dict of a timm encoder (`Encoder.vit`) to the names of Hugging Face's `Dinov2Model`."""
    converted: dict[str, Tensor] = {}
    for name, tensor in state.items():
        names = hugging_face_names(name)
        parts = tensor.chunk(len(names)) if len(names) > 1 else (tensor,)
        converted |= {hf: part.clone() for hf, part in zip(names, parts, strict=True)}
    return converted


def options_of_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of `Encoder` for a Hugging Face `Dinov2Config`; missing keys have its defaults."""
    for key, value in _REQUIRED.items():
        if config.get(key, value) != value:
            raise ValueError(f"{key}: expected {value!r}, found {config[key]!r}")
    options = {key: _side(config.get(key, default)) for key, default in _SIZES.items()}
    last = f"stage{options['num_hidden_layers']}"
    if (stages := config.get("out_features")) and list(stages) != [last]:
        raise ValueError(f"out_features: expected {[last]}, found {list(stages)}")
    return options | {"stem": config.get("stem", "patch")}


def config_of_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return a Hugging Face `Dinov2Config` for arguments of `Encoder`, as a backbone with the last features."""
    if options.get("stem", "patch") != "patch":
        raise ValueError("the encoder's convolutional stem has no counterpart in DINOv2")
    layers = options["num_hidden_layers"]
    stages = ["stem", *(f"stage{i}" for i in range(1, layers + 1))]
    sizes = {key: options[key] for key in _SIZES}
    backbone = {"out_features": [stages[-1]], "out_indices": [layers], "stage_names": stages}
    return {**sizes, **_REQUIRED, **backbone, "reshape_hidden_states": False}


def options_of_weights(state: Mapping[str, Tensor]) -> dict[str, Any]:
    """Derive the arguments of `Encoder` from the shapes of a state dict with timm's names."""
    try:
        _, positions, width = state["pos_embed"].shape
        patch = state["patch_embed.proj.weight"].shape[-1]
    except (KeyError, ValueError):
        raise ValueError("expected a DINOv2 backbone; pos_embed or patch_embed.proj.weight is missing") from None
    side = math.isqrt(positions - 1)
    if side**2 != positions - 1:
        raise ValueError(f"pos_embed: expected a square number of positions and a CLS token, found {positions}")
    if not width or width % HEAD_WIDTH:
        message = f"expected a multiple of {HEAD_WIDTH} channels, found {width}; a config.json names the heads"
        raise ValueError(message)
    return {
        "image_size": side * patch,
        "patch_size": patch,
        "hidden_size": width,
        "num_hidden_layers": 1 + max((int(n.split(".")[1]) for n in state if n.startswith("blocks.")), default=-1),
        "num_attention_heads": width // HEAD_WIDTH,
    }


def load_encoder(path: Path, *, frozen: bool = True) -> Encoder:
    """Load an encoder with published weights.

    Args:
        path: folder with Hugging Face's `config.json` and weights, or file with a state dict of Hugging Face or DINOv2.
        frozen: argument of `Encoder`.

    Raises:
        ValueError: there are no weights, or not those of a DINOv2; lists missing and unexpected names.
    """
    state = to_timm(_read(_weights_file(path)))
    config = path / "config.json"
    if path.is_dir() and config.is_file():
        try:
            options = options_of_config({**json.loads(config.read_text(encoding="utf-8"))})
        except (TypeError, RecursionError, json.JSONDecodeError, UnicodeDecodeError) as error:
            raise ValueError(f"{config.name}: expected a JSON object ({error})") from None
    else:
        options = options_of_weights(state)
    encoder = Encoder(**options, frozen=frozen)
    expected = encoder.vit.state_dict()
    mismatches = {
        "missing": expected.keys() - state.keys(),
        "unexpected": state.keys() - expected.keys(),
        "different shape": {name for name in expected.keys() & state if expected[name].shape != state[name].shape},
    }
    if lists := [f"{kind}: {', '.join(sorted(names))}" for kind, names in mismatches.items() if names]:
        raise ValueError(f"the weights do not match the encoder: {'; '.join(lists)}")
    encoder.vit.load_state_dict(state)
    return encoder


def save_encoder(encoder: Encoder, folder: Path) -> None:
    """Write an encoder as Hugging Face's `Dinov2Model`: `config.json` and `model.safetensors`.

    Args:
        encoder: encoder with a "patch" stem.
        folder: folder to write, created if missing.

    Raises:
        ValueError: the encoder has a convolutional stem.
    """
    config = config_of_options(encoder.options) | {"architectures": ["Dinov2Model"]}
    folder.mkdir(parents=True, exist_ok=True)
    save_file(to_hugging_face(encoder.vit.state_dict()), folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def _side(size: Any) -> int:
    if isinstance(size, list | tuple):
        if len(set(size)) != 1:
            raise ValueError(f"expected equal sides, found {list(size)}")
        size = size[0]
    return int(size)


def _weights_file(path: Path) -> Path:
    if path.is_file():
        return path
    for name in ("model.safetensors", "pytorch_model.bin", "backbone_compatible.safetensors"):
        if (path / name).is_file():
            return path / name
    candidates = [file for suffix in ("safetensors", "pth", "pt") for file in sorted(path.glob(f"*.{suffix}"))]
    if len(candidates) == 1:
        return candidates[0]
    raise ValueError(f"no weights here: expected model.safetensors or one state dict, found {len(candidates)}")


def _read(file: Path) -> Mapping[str, Tensor]:
    try:
        if file.suffix == ".safetensors":
            state: Mapping[str, Any] = load_file(file)
        else:
            state = torch.load(file, map_location="cpu", weights_only=True, mmap=True)
    except OSError:
        raise
    except Exception as error:  # safetensors, pickle and zipfile raise many types
        raise ValueError(f"{file.name} is damaged, or not a file of weights ({type(error).__name__})") from None
    if not isinstance(state, Mapping):
        raise ValueError(f"{file.name}: expected a state dict, found {type(state).__name__}")
    # DINOv2's training checkpoints hold the state dict of the teacher, the one to use, under this key.
    for key in ("teacher", "model", "state_dict"):
        state = state.get(key, state) if isinstance(state.get(key), Mapping) else state
    return {name: value for name, value in state.items() if not re.search(r"(^|\.)(dino|ibot)_head\.", name)}
