"""The MAIRA-2 model: transformers' LLaVA with RAD-DINO as vision tower, and an MLP of several layers as projector."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import safe_open
from torch import Tensor, nn
from transformers import AutoModel, LlavaForConditionalGeneration, LlavaModel, LlavaPreTrainedModel, PreTrainedModel
from transformers.conversion_mapping import register_checkpoint_conversion_mapping
from transformers.modeling_outputs import BaseModelOutputWithPast, BaseModelOutputWithPooling
from transformers.models.auto import modeling_auto
from transformers.utils import GENERATION_CONFIG_NAME

from maira.encoders import Encoder
from maira.model import checkpoint
from maira.model.checkpoint import HEAD, check_finite, raise_mismatch, release_names
from maira.model.config import MairaConfig, read_config

Part = Literal["encoder", "adapter", "language_model"]
MODULES: dict[Part, tuple[str, ...]] = {
    "encoder": ("model.vision_tower",),
    "adapter": ("model.multi_modal_projector",),
    "language_model": ("model.language_model", "lm_head"),
}
"""Names of the modules of each part; no other module's name begins so."""


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


class MairaPreTrainedModel(LlavaPreTrainedModel):
    """What the model with and without its head share."""

    config: MairaConfig
    config_class = MairaConfig
    # The encoder is one unit: its position embedding belongs to no block, and it is small.
    _no_split_modules = ("Encoder", "LlamaDecoderLayer")

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, nn.Linear | nn.Conv2d | nn.Embedding):
            nn.init.trunc_normal_(module.weight, std=self.config.text_config.initializer_range)
            if isinstance(bias := getattr(module, "bias", None), Tensor):
                nn.init.zeros_(bias)
        elif isinstance(module, nn.LayerNorm | nn.GroupNorm):
            nn.init.ones_(module.weight)
            nn.init.zeros_(module.bias)


class MairaModel(MairaPreTrainedModel, LlavaModel):
    """LLaVA without its head: `vision_tower`, `multi_modal_projector` and `language_model`."""

    def __init__(self, config: MairaConfig) -> None:
        # Not LlavaModel's, which makes its own tower and projector.
        PreTrainedModel.__init__(self, config)
        self.vision_tower = Encoder(**config.encoder_options())
        self.multi_modal_projector = Adapter(config)
        self.language_model = AutoModel.from_config(config.text_config)
        self.post_init()

    def encode_patches(self, pixel_values: Tensor) -> Tensor:
        weight = next(self.vision_tower.parameters())
        patches: Tensor = self.vision_tower(pixel_values.to(weight.dtype).expand(-1, 3, -1, -1))
        return patches

    def get_image_features(self, pixel_values: Tensor, **_: Any) -> BaseModelOutputWithPooling:
        """Return the image tokens as `pooler_output`: a (image_seq_length, width) of each image."""
        patches = self.encode_patches(pixel_values)
        tokens = self.multi_modal_projector(patches)
        return BaseModelOutputWithPooling(last_hidden_state=patches, pooler_output=list(tokens))

    def get_placeholder_mask(
        self, input_ids: Tensor | None, inputs_embeds: Tensor, image_features: Tensor | None
    ) -> Tensor:
        """Return which positions are image placeholders: (batch, length, 1); as many as there are image tokens."""
        if input_ids is None:
            token = torch.full((), self.config.image_token_index, device=inputs_embeds.device)
            mask = (inputs_embeds == self.get_input_embeddings()(token)).all(-1)
        else:
            mask = input_ids == self.config.image_token_index
        available = 0 if image_features is None else image_features.numel() // image_features.shape[-1]
        # Compiled code has no numbers to compare.
        if not torch.compiler.is_compiling() and (expected := int(mask.sum())) != available:
            found = f"found {available} ({self.config.image_seq_length} per image)"
            raise ValueError(f"expected image tokens for the {expected} image placeholders of the text, {found}")
        placeholders: Tensor = mask.unsqueeze(-1).to(inputs_embeds.device)
        return placeholders

    def forward(self, input_ids: Tensor | None = None, *args: Any, **kwargs: Any) -> Any:
        """Run LLaVA's forward pass; a text with placeholders but without images is an error too."""
        images = (kwargs.get("pixel_values"), (kwargs.get("mm_encoder_outputs") or {}).get("image"))
        if input_ids is not None and not args and all(each is None for each in images):
            self.get_placeholder_mask(input_ids, input_ids, None)
        return super().forward(input_ids, *args, **kwargs)


class MairaForConditionalGeneration(MairaPreTrainedModel, LlavaForConditionalGeneration):
    """MAIRA-2 as a Hugging Face model: `from_pretrained`, `save_pretrained`, `generate` and all else of LLaVA's."""

    def __init__(self, config: MairaConfig) -> None:
        PreTrainedModel.__init__(self, config)
        self.model = MairaModel(config)
        self.lm_head = nn.Linear(config.text_config.hidden_size, config.text_config.vocab_size, bias=False)
        self.post_init()

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: Any, *args: Any, **kwargs: Any) -> Any:
        """Load a checkpoint with the release's names or those of transformers 5.

        Where transformers initializes missing weights at random and only warns, this raises an InputError that lists
        missing and unexpected names. See `transformers.PreTrainedModel.from_pretrained`.
        """
        output_loading_info = kwargs.pop("output_loading_info", False)
        folder, kwargs = checkpoint.resolve_pretrained(pretrained_model_name_or_path, kwargs)
        if folder.is_dir() and not kwargs.get("subfolder") and not kwargs.get("variant"):
            config = kwargs.get("config") or read_config(folder)
            checkpoint.check_json(folder, GENERATION_CONFIG_NAME)
            CheckpointWeights(folder, config)
        loaded, info = super().from_pretrained(folder, *args, output_loading_info=True, **kwargs)
        raise_mismatch(info["missing_keys"], info["unexpected_keys"], info["mismatched_keys"], file=folder)
        for name, tensor in loaded.state_dict().items():
            check_finite(release_names(name)[0], tensor, folder)
        return (loaded, info) if output_loading_info else loaded

    def save_pretrained(self, save_directory: Any, *args: Any, **kwargs: Any) -> Any:
        """Save the model in the layout of the release, which has no names for quantized weights."""
        if getattr(self, "_hf_peft_config_loaded", False):
            # Adapters alone are saved, by their names in the model.
            return super().save_pretrained(save_directory, *args, **kwargs)
        if getattr(self, "hf_quantizer", None) is not None:
            raise ValueError("a quantized model cannot be saved; save it before, and quantize it when it is loaded")
        state = kwargs.get("state_dict") or self.state_dict()
        if hasattr(self, "hf_device_map") and any(tensor.is_meta for tensor in state.values()):
            from accelerate.utils.modeling import get_state_dict_offloaded_model

            state = get_state_dict_offloaded_model(self)
        released = to_release(state)
        if self.config.tie_word_embeddings:
            released[HEAD] = released[HEAD].clone()  # transformers would leave it out
        options = kwargs | {"state_dict": released, "save_original_format": False}
        return super().save_pretrained(save_directory, *args, **options)

    def encode_patches(self, pixel_values: Tensor) -> Tensor:
        """Run the encoder: (images, 1 or 3, height, width) -> (images, patches, encoder width)."""
        return self.model.encode_patches(pixel_values)

    def project(self, patches: Tensor) -> Tensor:
        """Run the adapter: (images, patches, encoder width) -> (images, image_seq_length, width)."""
        image_tokens: Tensor = self.model.multi_modal_projector(patches)
        return image_tokens

    def embed(self, input_ids: Tensor, image_tokens: Tensor | None, *, check: bool = True) -> Tensor:
        """Embed tokens and replace the image placeholders, in reading order: (batch, length, width).

        Args:
            input_ids: (batch, length).
            image_tokens: (images, image_seq_length, width), in the order of their placeholders; None without images.
            check: whether to compare their number with that of the placeholders, which synchronizes with the device.
        """
        embeddings: Tensor = self.get_input_embeddings()(input_ids)
        if check:
            self.model.get_placeholder_mask(input_ids, embeddings, image_tokens)
        if image_tokens is None:
            return embeddings
        placeholders = (input_ids == self.config.image_token_index).unsqueeze(-1)
        # A device map may place the encoder and the language model on different devices.
        return embeddings.masked_scatter(placeholders, image_tokens.to(embeddings))

    def decode(self, inputs_embeds: Tensor, **options: Any) -> BaseModelOutputWithPast:
        """Run the blocks of the language model on (batch, length, width), with its further arguments."""
        outputs: BaseModelOutputWithPast = self.model.language_model(inputs_embeds=inputs_embeds, **options)
        return outputs

    def generate(self, *args: Any, **kwargs: Any) -> Any:
        """Generate as every model of transformers does, but never the image placeholder, which is no text."""
        kwargs.setdefault("suppress_tokens", [self.config.image_token_index])
        return super().generate(*args, **kwargs)


def modules_of(model: MairaForConditionalGeneration, part: Part) -> list[nn.Module]:
    return [model.get_submodule(name) for name in MODULES[part]]


def to_release(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    released: dict[str, Tensor] = {}
    for name, tensor in state.items():
        names = release_names(name)
        # The parts of a fused projection share its memory, which safetensors refuses.
        parts = [part.clone() for part in tensor.chunk(len(names))] if len(names) > 1 else [tensor]
        released |= dict(zip(names, parts, strict=True))
    return released


def expected_shapes(config: MairaConfig) -> dict[str, tuple[int, ...]]:
    """Return the names and shapes of a model's parameters, without allocating them."""
    with torch.device("meta"):
        state = MairaForConditionalGeneration(copy.deepcopy(config)).state_dict()
    return {name: tuple(tensor.shape) for name, tensor in state.items()}


class CheckpointWeights:
    """The parameters of a checkpoint by their names in the model, read one at a time; files are checked first."""

    def __init__(self, folder: Path, config: MairaConfig) -> None:
        self.shapes = expected_shapes(config)
        self._stored = {checkpoint.name_in_release(tensor.name): tensor for tensor in checkpoint.read_headers(folder)}
        expected: dict[str, tuple[int, ...]] = {}
        for name, shape in self.shapes.items():
            parts = release_names(name)
            expected |= dict.fromkeys(parts, (shape[0] // len(parts), *shape[1:]))
        reshaped = [
            f"{tensor.name} (expected {list(expected[name])}, found {list(tensor.shape)})"
            for name, tensor in self._stored.items()
            if tensor.shape != expected.get(name, tensor.shape)
        ]
        unexpected = [tensor.name for name, tensor in self._stored.items() if name not in expected]
        raise_mismatch(expected.keys() - self._stored.keys(), unexpected, reshaped, file=folder)

    def read(self, names: Iterable[str], dtype: torch.dtype) -> Iterator[tuple[str, Tensor]]:
        """Yield parameters in a type, in which they must be finite."""
        for name in names:
            parts = []
            for stored in map(self._stored.__getitem__, release_names(name)):
                with safe_open(stored.file, framework="pt") as file:
                    parts.append(file.get_tensor(stored.name).to(dtype))
                check_finite(stored.name, parts[-1], stored.file)
            yield name, parts[0] if len(parts) == 1 else torch.cat(parts)


register_checkpoint_conversion_mapping("maira2", checkpoint.weight_transforms(), overwrite=True)
for auto_class in (modeling_auto.AutoModelForCausalLM, modeling_auto.AutoModelForImageTextToText):
    auto_class.register(MairaConfig, MairaForConditionalGeneration)
