"""The MAIRA-2 model: an image encoder, an MLP adapter, and a language model that reads images as tokens.

Every use takes the same steps: `encode_patches`, `project`, `embed`, `decode`. `forward` runs them in a row; training,
the engines and the memory estimate call them separately.

Source: MAIRA-2, methods.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import AutoModelForImageTextToText, GenerationMixin, LlamaForCausalLM
from transformers.conversion_mapping import register_checkpoint_conversion_mapping
from transformers.modeling_outputs import BaseModelOutputWithPast, CausalLMOutputWithPast
from transformers.modeling_utils import PreTrainedModel
from transformers.utils import GENERATION_CONFIG_NAME

from maira.encoders import Encoder
from maira.model.checkpoint import (
    check_finite,
    check_json,
    detect_layout,
    loading_mismatches,
    match_weights,
    names_for_layout,
    raise_mismatch,
    read_headers,
    resolve_pretrained,
    weight_transforms,
)
from maira.model.config import MairaConfig, read_config
from radfact.errors import InputError


class Adapter(nn.Module):
    """The MLP between encoder and language model: `projector_n_layers` linear layers with GELU between them."""

    def __init__(self, config: MairaConfig) -> None:
        super().__init__()
        self.merge = config.image_merge
        widths = [config.vision_config.hidden_size * self.merge**2]
        widths += [config.text_config.hidden_size] * config.projector_n_layers
        layers: list[nn.Module] = []
        for width_in, width_out in pairwise(widths):
            layers += [nn.Linear(width_in, width_out), nn.GELU()]
        self.layers = nn.Sequential(*layers[:-1])

    def forward(self, patches: Tensor) -> Tensor:
        """Project (images, patches, encoder width) to (images, patches / merge ** 2, language model width)."""
        if self.merge > 1:
            images, count, width = patches.shape
            side, m = round(count**0.5), self.merge
            patches = patches.view(images, side // m, m, side // m, m, width)
            patches = patches.transpose(2, 3).reshape(images, (side // m) ** 2, m * m * width)
        projected: Tensor = self.layers(patches)
        return projected


class MairaForConditionalGeneration(PreTrainedModel, GenerationMixin):
    """MAIRA-2 as a Hugging Face model: `from_pretrained`, `save_pretrained`, `generate`."""

    config: MairaConfig
    config_class = MairaConfig
    base_model_prefix = ""
    main_input_name = "input_ids"
    input_modalities = ("image", "text")
    supports_gradient_checkpointing = True
    _supports_sdpa = True
    _supports_flash_attn = True
    _supports_flex_attn = True
    # The encoder is one unit: its position embedding belongs to no block, and it is small.
    _no_split_modules = ("Encoder", "LlamaDecoderLayer")

    def __init__(self, config: MairaConfig) -> None:
        super().__init__(config)
        self.vision_tower = Encoder(**config.vision_config.encoder_options())
        self.multi_modal_projector = Adapter(config)
        self.language_model = LlamaForCausalLM._from_config(config.text_config)
        self.post_init()

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: Any, *args: Any, **kwargs: Any) -> Any:
        """Load a checkpoint of any layout (`maira.model.checkpoint`), as `PreTrainedModel.from_pretrained` does.

        Where transformers initializes missing weights at random and only warns, this raises an error.

        Args:
            pretrained_model_name_or_path: folder of the checkpoint, or ORG/NAME[@REVISION] on the Hub.
            *args: further arguments of transformers.
            **kwargs: further arguments of transformers.

        Raises:
            InputError: the configuration is not that of a MAIRA-2, there are no weights, names are missing or
                unexpected, or shapes differ; the error lists them. Or a weight is not finite.
        """
        output_loading_info = kwargs.pop("output_loading_info", False)
        folder, kwargs = resolve_pretrained(pretrained_model_name_or_path, kwargs)
        if folder.is_dir() and not kwargs.get("subfolder") and not kwargs.get("variant"):
            config = kwargs.get("config") or read_config(folder)
            check_json(folder, GENERATION_CONFIG_NAME)
            match_weights(read_headers(folder), expected_shapes(config), file=folder)
        loaded, info = super().from_pretrained(folder, *args, output_loading_info=True, **kwargs)
        raise_mismatch(*loading_mismatches(info), file=folder)
        for name, tensor in loaded.state_dict().items():
            try:
                check_finite(name, tensor, folder)
            except InputError:
                if folder.is_dir():
                    _check_stored(name, folder)
                raise
        return (loaded, info) if output_loading_info else loaded

    def save_pretrained(self, save_directory: Any, *args: Any, **kwargs: Any) -> Any:
        """Save the model in our own layout, whatever the layout that it was loaded from."""
        kwargs.setdefault("save_original_format", False)
        return super().save_pretrained(save_directory, *args, **kwargs)

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, nn.Linear | nn.Conv2d | nn.Embedding):
            nn.init.trunc_normal_(module.weight, std=self.config.text_config.initializer_range)
            if isinstance(bias := getattr(module, "bias", None), Tensor):
                nn.init.zeros_(bias)
        elif isinstance(module, nn.LayerNorm | nn.GroupNorm):
            nn.init.ones_(module.weight)
            nn.init.zeros_(module.bias)

    def get_input_embeddings(self) -> nn.Module:
        """Return the language model's token embeddings."""
        embeddings: nn.Module = self.language_model.get_input_embeddings()
        return embeddings

    def set_input_embeddings(self, value: nn.Module) -> None:
        """Replace the language model's token embeddings."""
        self.language_model.set_input_embeddings(value)

    def get_output_embeddings(self) -> nn.Module:
        """Return the language model's head."""
        head: nn.Module = self.language_model.lm_head
        return head

    def encode_patches(self, pixel_values: Tensor) -> Tensor:
        """Run the image encoder: (images, 1 or 3, height, width) -> (images, patches, encoder width)."""
        weight = next(self.vision_tower.parameters())
        patches: Tensor = self.vision_tower(pixel_values.to(weight.dtype).expand(-1, 3, -1, -1))
        return patches

    def project(self, patches: Tensor) -> Tensor:
        """Run the adapter: (images, patches, encoder width) -> (images, image_seq_length, width)."""
        image_tokens: Tensor = self.multi_modal_projector(patches)
        return image_tokens

    def embed(self, input_ids: Tensor, image_tokens: Tensor | None, *, check: bool = True) -> Tensor:
        """Embed tokens and replace the image placeholders, in reading order: (batch, length, width).

        Args:
            input_ids: (batch, length).
            image_tokens: (images, image_seq_length, width), in the order of their placeholders; None without images.
            check: whether to compare the number of placeholders with that of the image tokens, which synchronizes with
                the device; False where they are known to match, or the tensors have no values.

        Raises:
            ValueError: the number of placeholders differs from the number of image tokens.
        """
        embeddings: Tensor = self.get_input_embeddings()(input_ids)
        placeholders = input_ids == self.config.image_token_index
        if check:
            available = 0 if image_tokens is None else image_tokens.shape[0] * image_tokens.shape[1]
            expected = int(placeholders.sum())
            if available != expected:
                raise ValueError(
                    f"expected image tokens for the {expected} image placeholders of the text, found {available} "
                    f"({self.config.image_seq_length} per image)"
                )
        if image_tokens is None:
            return embeddings
        # A device map may place the encoder and the language model on different devices.
        return embeddings.masked_scatter(placeholders.unsqueeze(-1), image_tokens.to(embeddings))

    def decode(self, inputs_embeds: Tensor, **options: Any) -> BaseModelOutputWithPast:
        """Run the blocks of the language model.

        Args:
            inputs_embeds: (batch, length, width), from `embed`.
            **options: arguments of the language model, such as `attention_mask`, `position_ids`, `past_key_values`,
                `use_cache` and those of an attention kernel.

        Returns:
            `last_hidden_state` (batch, length, width) and the cache.
        """
        outputs: BaseModelOutputWithPast = self.language_model.model(inputs_embeds=inputs_embeds, **options)
        return outputs

    def forward(
        self,
        input_ids: Tensor | None = None,
        pixel_values: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Any = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        image_tokens: Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        **kwargs: Any,
    ) -> CausalLMOutputWithPast:
        """Encode images, splice them into the text, and decode.

        Args:
            input_ids: (batch, length) with `image_seq_length` placeholders per image.
            pixel_values: (images, 1 or 3, height, width), in the order of their placeholders in the flattened batch.
            attention_mask: (batch, length), 1 for tokens, 0 for padding.
            position_ids: (batch, length).
            past_key_values: cache of the preceding tokens.
            inputs_embeds: (batch, length, width), instead of `input_ids`.
            labels: (batch, length), -100 at positions without a loss; logits are then computed at the others only and
                not returned.
            image_tokens: (images, image_seq_length, width), from `project`, instead of `pixel_values`.
            use_cache: whether to return the cache.
            logits_to_keep: number of last positions (or the positions) to compute logits for; 0 for all.
            **kwargs: further arguments of the language model.

        Raises:
            ValueError: placeholders and images do not match, or there is no text.
        """
        if inputs_embeds is None:
            if input_ids is None:
                raise ValueError("expected input_ids or inputs_embeds, found neither")
            if image_tokens is None and pixel_values is not None:
                image_tokens = self.project(self.encode_patches(pixel_values))
            inputs_embeds = self.embed(input_ids, image_tokens)
        outputs = self.decode(
            inputs_embeds,
            attention_mask=attention_mask,
            position_ids=position_ids,
            past_key_values=past_key_values,
            use_cache=use_cache,
            **kwargs,
        )
        hidden = outputs.last_hidden_state
        if labels is not None:
            targets = F.pad(labels[:, 1:], (0, 1), value=-100)
            has_loss = targets != -100
            logits = self.language_model.lm_head(hidden[has_loss]).float()
            loss = F.cross_entropy(logits, targets[has_loss])
            return CausalLMOutputWithPast(loss=loss, past_key_values=outputs.past_key_values)
        positions = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        logits = self.language_model.lm_head(hidden[:, positions])
        return CausalLMOutputWithPast(logits=logits, past_key_values=outputs.past_key_values)

    def generate(self, *args: Any, **kwargs: Any) -> Any:
        """Generate as every model of transformers does, but never the image placeholder, which is no text."""
        kwargs.setdefault("suppress_tokens", [self.config.image_token_index])
        return super().generate(*args, **kwargs)

    def prepare_inputs_for_generation(
        self,
        input_ids: Tensor,
        pixel_values: Tensor | None = None,
        image_tokens: Tensor | None = None,
        is_first_iteration: bool = False,
        **kwargs: Any,
    ) -> dict[str, Any]:
        """Return the inputs of one step of `generate`; after the first step, the cache holds the images.

        Args:
            input_ids: (batch, length).
            pixel_values: (images, 1 or 3, height, width).
            image_tokens: (images, image_seq_length, width), instead of `pixel_values`.
            is_first_iteration: whether this is the first step.
            **kwargs: further inputs.
        """
        inputs: dict[str, Any] = super().prepare_inputs_for_generation(
            input_ids, is_first_iteration=is_first_iteration, **kwargs
        )
        if is_first_iteration or not kwargs.get("use_cache", True):
            inputs["pixel_values"], inputs["image_tokens"] = pixel_values, image_tokens
        return inputs


def expected_shapes(config: MairaConfig) -> dict[str, tuple[int, ...]]:
    """Return the names and shapes of a model's parameters, without allocating them."""
    with torch.device("meta"):
        state = MairaForConditionalGeneration(copy.deepcopy(config)).state_dict()
    return {name: tuple(tensor.shape) for name, tensor in state.items()}


def _check_stored(name: str, folder: Path) -> None:
    """Raise an InputError with name and file on disk if one of our parameters is not finite there."""
    stored = read_headers(folder)
    for source in names_for_layout(name, detect_layout(stored)):
        with safe_open(stored[source].file, framework="pt") as file:
            check_finite(source, file.get_tensor(source), stored[source].file)


class CheckpointWeights:
    """The parameters of a checkpoint by our names, read one at a time.

    Args:
        folder: checkpoint in any layout.
        config: configuration of its model.

    Attributes:
        shapes: shape of every parameter.

    Raises:
        InputError: files are missing or unreadable, or do not match the configuration.
    """

    def __init__(self, folder: Path, config: MairaConfig) -> None:
        self.shapes = expected_shapes(config)
        self._stored = read_headers(folder)
        self._plan = match_weights(self._stored, self.shapes, file=folder)

    def read(self, names: Iterable[str], dtype: torch.dtype) -> Iterator[tuple[str, Tensor]]:
        """Yield parameters by our names.

        Args:
            names: names of the parameters.
            dtype: type of the tensors.

        Raises:
            InputError: a parameter is not finite in this type.
        """
        for name in names:
            parts = []
            for source in self._plan[name]:
                with safe_open(self._stored[source].file, framework="pt") as file:
                    parts.append(file.get_tensor(source).to(dtype))
                check_finite(source, parts[-1], self._stored[source].file)
            yield name, parts[0] if len(parts) == 1 else torch.cat(parts)


register_checkpoint_conversion_mapping("maira2", weight_transforms(), overwrite=True)
AutoModelForImageTextToText.register(MairaConfig, MairaForConditionalGeneration)
