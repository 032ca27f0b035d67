"""The configuration of a MAIRA-2 model, as a Hugging Face config."""

from __future__ import annotations

from typing import Any

from transformers import AutoConfig, LlamaConfig
from transformers.configuration_utils import PreTrainedConfig

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
    """The arguments of `encoders.Encoder`; the defaults are RAD-DINO's."""

    model_type = "maira2_vision"

    image_size: int = 518
    patch_size: int = 14
    hidden_size: int = 768
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    stem: str = "patch"
    frozen: bool = True

    def encoder_options(self) -> dict[str, Any]:
        """Keyword arguments for `encoders.Encoder`."""
        return {name: getattr(self, name) for name in RAD_DINO}


class MairaConfig(PreTrainedConfig):
    """Encoder, adapter and language model of MAIRA-2; the defaults are the 7B model of the paper.

    Attributes:
        vision_config: the encoder.
        text_config: the language model, a Llama.
        image_token_index: id of `<image>`, the placeholder that the adapter's outputs replace.
        projector_n_layers: linear layers of the adapter, GELU between them.
        image_merge: side of the square of neighbouring patches that become one token of the language model; 1 as in
            the paper, more for small models on small machines.
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
        if not isinstance(self.vision_config, VisionConfig):
            self.vision_config = VisionConfig(**_without_type(self.vision_config or RAD_DINO))
        if not isinstance(self.text_config, LlamaConfig):
            self.text_config = LlamaConfig(**_without_type(self.text_config or VICUNA_7B))
        side = self.vision_config.image_size // self.vision_config.patch_size
        if side % self.image_merge:
            raise ValueError(f"image_merge {self.image_merge} does not divide the {side} patches of a side")
        super().__post_init__(**kwargs)

    @property
    def image_seq_length(self) -> int:
        """Tokens of the language model that one image takes (1,369 for the 7B model)."""
        side = self.vision_config.image_size // self.vision_config.patch_size
        return int((side // self.image_merge) ** 2)


def _without_type(values: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if key != "model_type"}


AutoConfig.register("maira2", MairaConfig)
