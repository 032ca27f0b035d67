"""The configuration of a MAIRA-2 model: transformers' LLaVA with RAD-DINO and a Llama."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from huggingface_hub.errors import StrictDataclassError
from transformers import AutoConfig, Dinov2Config, LlamaConfig, LlavaConfig
from transformers.configuration_utils import PreTrainedConfig

from maira.encoders.weights import options_of_config
from maira.model.checkpoint import check_files
from radfact.errors import ErrorCode, InputError
from radfact.io.jsonl import read_json

RAD_DINO: dict[str, Any] = {"image_size": 518}
"""What differs from the defaults of `Dinov2Config`, those of DINOv2's base model."""
VICUNA_7B: dict[str, Any] = {
    "vocab_size": 32207,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5,
    "rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 1.5},
    "pad_token_id": 0,
}
"""What differs from the defaults of `LlamaConfig`, those of Llama 7B."""
_FIXED: dict[str, Any] = {
    "vision_feature_layer": -1,
    "vision_feature_select_strategy": "default",
    "projector_hidden_act": "gelu",
    "multimodal_projector_bias": True,
}
"""Values of the released configuration that this model supports no alternative to."""


class MairaConfig(LlavaConfig):
    """Configuration of encoder, adapter and language model; the defaults are the 7B model of the paper.

    Attributes:
        vision_config: configuration of the encoder, a `Dinov2Config`; its further field `stem` is that of
            `maira.encoders.Encoder`.
        text_config: configuration of the language model, a `LlamaConfig`.
        image_token_index: id of `<image>`, the placeholder of an image token.
        image_seq_length: number of image tokens of one image (1,369 for the 7B model), which follows from the encoder.
        projector_n_layers: number of linear layers of the adapter.
        image_merge: side of the square of neighboring patches that become one image token; 1 as in the paper, more
            for small models on small machines.
    """

    model_type = "maira2"
    sub_configs = {"vision_config": Dinov2Config, "text_config": LlamaConfig}  # noqa: RUF012

    vision_config: Any = None
    text_config: Any = None
    image_token_index: int = 32204
    image_seq_length: int = 0
    vision_feature_layer: int = -1
    projector_n_layers: int = 4
    image_merge: int = 1

    def __post_init__(self, **kwargs: Any) -> None:
        # Names the released code, which this package replaces.
        kwargs.pop("auto_map", None)
        for name, value in _FIXED.items():
            if (actual := getattr(self, name)) != value:
                raise ValueError(f"{name}: expected {value!r}, found {actual!r}")
        self.vision_config = _sub_config(Dinov2Config, self.vision_config or RAD_DINO)
        self.text_config = _sub_config(LlamaConfig, self.text_config or VICUNA_7B)
        # The release's name of `rope_type`, which transformers 5 keeps as a second field.
        (self.text_config.rope_parameters or {}).pop("type", None)
        options = self.encoder_options()
        side = options["image_size"] // options["patch_size"]
        if side % self.image_merge:
            expected = f"a divisor of the {side} patches per side"
            raise ValueError(f"image_merge: expected {expected}, found {self.image_merge}")
        length = (side // self.image_merge) ** 2
        if self.image_seq_length not in (0, length):
            raise ValueError(f"image_seq_length: expected {length} as of the encoder, found {self.image_seq_length}")
        self.image_seq_length = length
        super().__post_init__(**kwargs)

    def encoder_options(self) -> dict[str, Any]:
        """Return the keyword arguments of `maira.encoders.Encoder`."""
        return options_of_config(self.vision_config.to_dict())

    def save_pretrained(self, save_directory: Any, *args: Any, **kwargs: Any) -> None:
        """Write `config.json` with the fields of the release, made with transformers 4 (which 5 reads too)."""
        super().save_pretrained(save_directory, *args, **kwargs)
        values: dict[str, Any] = json.loads(self.to_json_string(use_diff=False))
        values["architectures"] = ["Maira2ForConditionalGeneration"]
        language = values["text_config"]
        rope = dict(language.pop("rope_parameters"))
        language["rope_theta"] = rope.pop("rope_theta")
        language["rope_scaling"] = rope | {"type": rope["rope_type"]} if rope["rope_type"] != "default" else None
        for part in (values, language, values["vision_config"]):
            part["torch_dtype"] = part.pop("dtype", None)
            # The folder that it was read from, which is nobody else's business.
            part.pop("_name_or_path", None)
        text = json.dumps(values, indent=2, sort_keys=True) + "\n"
        (Path(save_directory) / "config.json").write_text(text, encoding="utf-8")


def _sub_config(kind: type[PreTrainedConfig], values: Any) -> PreTrainedConfig:
    if isinstance(values, kind):
        return values
    values = values.to_dict() if isinstance(values, PreTrainedConfig) else dict(values)
    if (found := values.pop("model_type", kind.model_type)) != kind.model_type:
        raise ValueError(f"model_type: expected '{kind.model_type}', found {found!r}")
    return kind(**values)


def read_config(folder: Path) -> MairaConfig:
    path = read_model_type(folder, "checkpoint", MairaConfig.model_type)
    try:
        config: MairaConfig = MairaConfig.from_pretrained(folder)
    except (ValueError, TypeError, AttributeError, KeyError, OSError, StrictDataclassError) as error:
        message = f"invalid configuration: {str(error).splitlines()[-1].strip()[:200]}"
        raise InputError(message, code=ErrorCode.INVALID_FORMAT, file=path) from None
    return config


def read_model_type(folder: Path, content: str, expected: str) -> Path:
    """Return the configuration file of a folder of some content, whose type of model must be as expected."""
    check_files(folder, content, "config.json")
    path = folder / "config.json"
    values = read_json(path)
    if (kind := values.get("model_type") if isinstance(values, dict) else None) != expected:
        message = f"expected '{expected}', found {kind!r}"
        raise InputError(message, code=ErrorCode.MISMATCH, file=path, field="model_type")
    return path


def context_window(config: Any) -> int:
    """Return how many tokens prompt and response may have together: 6,144 for MAIRA-2 (4,096 times 1.5)."""
    rope = config.rope_parameters or {}
    # The other kinds of scaling include their factor in the number of positions.
    is_scaled = rope.get("rope_type") in ("linear", "dynamic")
    return int(config.max_position_embeddings * (rope.get("factor") or 1.0 if is_scaled else 1.0))


AutoConfig.register("maira2", MairaConfig)
