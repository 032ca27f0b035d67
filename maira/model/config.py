"""The configuration of a MAIRA-2 model, as a Hugging Face config."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import AutoConfig, LlamaConfig
from transformers.configuration_utils import PreTrainedConfig

from maira.encoders.weights import options_of_config
from radfact.errors import ErrorCode, InputError
from radfact.io.jsonl import read_json

RAD_DINO: dict[str, Any] = {
    "image_size": 518,
    "patch_size": 14,
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "stem": "patch",
    "frozen": True,
}
VICUNA_7B: dict[str, Any] = {
    "vocab_size": 32207,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5,
    "rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 1.5},
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "tie_word_embeddings": False,
}


class VisionConfig(PreTrainedConfig):
    """Configuration of `encoders.Encoder`; the defaults are RAD-DINO's."""

    model_type = "maira2_vision"

    image_size: int = 518
    patch_size: int = 14
    hidden_size: int = 768
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    stem: str = "patch"
    frozen: bool = True

    def encoder_options(self) -> dict[str, Any]:
        """Return the keyword arguments of `encoders.Encoder`."""
        return {name: getattr(self, name) for name in RAD_DINO}


FIXED: dict[str, Any] = {
    "vision_feature_layer": -1,
    "vision_feature_select_strategy": "default",
    "projector_hidden_act": "gelu",
}
"""Values of the released configuration that this model supports no alternative to."""


class MairaConfig(PreTrainedConfig):
    """Configuration of encoder, adapter and language model; the defaults are the 7B model of the paper.

    `config.json` of the released model and of transformers 5, whose encoder is a Hugging Face `Dinov2Config`, are read
    as well.

    Attributes:
        vision_config: configuration of the encoder.
        text_config: configuration of the language model, a Llama.
        image_token_index: id of `<image>`, the placeholder of an image token.
        projector_n_layers: number of linear layers of the adapter.
        image_merge: side of the square of neighboring patches that become one image token; 1 as in the paper, more
            for small models on small machines.
    """

    model_type = "maira2"
    sub_configs = {"vision_config": VisionConfig, "text_config": LlamaConfig}  # noqa: RUF012
    attribute_map = {"image_token_id": "image_token_index"}  # noqa: RUF012

    vision_config: Any = None
    text_config: Any = None
    image_token_index: int = 32204
    projector_n_layers: int = 4
    image_merge: int = 1
    tie_word_embeddings: bool = False

    def __post_init__(self, **kwargs: Any) -> None:
        # Names the released code, which this package replaces.
        kwargs.pop("auto_map", None)
        for name, value in FIXED.items():
            if (actual := kwargs.pop(name, None)) not in (None, value):
                raise ValueError(f"{name}: expected {value!r}, found {actual!r}")
        if not isinstance(self.vision_config, VisionConfig):
            self.vision_config = _vision_config(self.vision_config)
        if not isinstance(self.text_config, LlamaConfig):
            self.text_config = LlamaConfig(**_without_type(self.text_config or VICUNA_7B))
        side = self.vision_config.image_size // self.vision_config.patch_size
        if side % self.image_merge:
            raise ValueError(
                f"image_merge: expected a divisor of the {side} patches per side, found {self.image_merge}"
            )
        if (length := kwargs.pop("image_seq_length", None)) not in (None, self.image_seq_length):
            raise ValueError(f"image_seq_length: expected {self.image_seq_length} as of the encoder, found {length}")
        super().__post_init__(**kwargs)

    @property
    def image_seq_length(self) -> int:
        """Number of image tokens of one image (1,369 for the 7B model)."""
        side = self.vision_config.image_size // self.vision_config.patch_size
        return int((side // self.image_merge) ** 2)


def _vision_config(values: Any) -> VisionConfig:
    if isinstance(values, PreTrainedConfig):
        values = values.to_dict()
    if values and values.get("model_type") == "dinov2":
        values = options_of_config(values)
    return VisionConfig(**_without_type(values or RAD_DINO))


def _without_type(values: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if key != "model_type"}


def read_config(folder: Path) -> MairaConfig:
    """Read the configuration of a checkpoint, of any layout.

    Raises:
        InputError: the folder has no valid configuration of MAIRA-2.
    """
    path = folder / "config.json"
    if not path.is_file():
        raise InputError("expected a checkpoint, found no config.json", code=ErrorCode.FILE_NOT_FOUND, file=folder)
    values = read_json(path)
    kind = values.get("model_type") if isinstance(values, dict) else None
    if kind != MairaConfig.model_type:
        raise InputError(
            f"expected '{MairaConfig.model_type}', found {kind!r}",
            code=ErrorCode.MISMATCH,
            file=path,
            field="model_type",
        )
    try:
        config: MairaConfig = MairaConfig.from_pretrained(folder)
    except (ValueError, TypeError, AttributeError, KeyError, OSError) as error:
        raise InputError(
            f"invalid configuration: {str(error).splitlines()[-1].strip()}", code=ErrorCode.INVALID_FORMAT, file=path
        ) from None
    return config


def context_window(config: Any) -> int:
    """Return how many tokens prompt and response may have together: 6,144 for MAIRA-2 (4,096 positions scaled by 1.5).

    vLLM derives the same length from the same configuration.

    Args:
        config: configuration of the language model, a Llama.
    """
    rope = config.rope_parameters or {}
    # The other kinds of scaling include their factor in the number of positions.
    is_scaled = rope.get("rope_type") in ("linear", "dynamic")
    return int(config.max_position_embeddings * (rope.get("factor") or 1.0 if is_scaled else 1.0))


AutoConfig.register("maira2", MairaConfig)
