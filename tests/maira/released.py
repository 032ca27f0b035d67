"""A small model of the released shape, of transformers' own parts, and its files, without code of this package."""

import json
import tempfile
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import save_torch_state_dict
from long_values import DATA
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import Dinov2Backbone, Dinov2Config, LlamaConfig, LlamaForCausalLM

IMAGE_TOKEN = 90
CONFIG = DATA["released model"]
VISION, TEXT = CONFIG["vision_config"], CONFIG["text_config"]


class Assembly(nn.Module):
    """Encoder, adapter and language model with a minimal forward pass."""

    def __init__(self) -> None:
        super().__init__()
        vision = {name: value for name, value in VISION.items() if name != "model_type"}
        text = {name: value for name, value in TEXT.items() if name not in ("model_type", "rope_scaling")}
        rope = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 1.5}
        self.vision_tower = Dinov2Backbone(Dinov2Config(**vision))
        layers: list[nn.Module] = [nn.Linear(24, 32)]
        for _ in range(3):
            layers += [nn.GELU(), nn.Linear(32, 32)]
        self.projector = nn.Sequential(*layers)
        self.language_model = LlamaForCausalLM(LlamaConfig(**text, rope_parameters=rope))
        generator = torch.Generator().manual_seed(0)
        with torch.no_grad():
            for name, parameter in sorted(self.named_parameters()):
                parameter.normal_(std=0.2, generator=generator)
                if "norm" in name and name.endswith("weight"):
                    parameter.add_(1)
        self.eval()

    @torch.no_grad()
    def logits(self, ids: list[int], pixels: Tensor) -> Tensor:
        """Return the logits (length, vocabulary) of one text, its placeholders replaced in order by image tokens."""
        patches = self.vision_tower(pixels).feature_maps[-1][:, 1:]
        tokens = iter(self.projector(patches).flatten(0, 1))
        words = self.language_model.get_input_embeddings()(torch.tensor(ids))
        rows = [next(tokens) if token == IMAGE_TOKEN else word for token, word in zip(ids, words, strict=True)]
        assert next(tokens, None) is None
        logits: Tensor = self.language_model(inputs_embeds=torch.stack(rows)[None]).logits[0]
        return logits

    def greedy(self, ids: list[int], pixels: Tensor, count: int) -> list[int]:
        """Return the next tokens by greedy search without a cache."""
        generated: list[int] = []
        for _ in range(count):
            best = self.logits(ids + generated, pixels)[-1]
            best[IMAGE_TOKEN] = -torch.inf
            generated.append(int(best.argmax()))
        return generated

    def on_disk(self) -> dict[str, Tensor]:
        """Return the state dict with the released names; transformers itself writes the encoder."""
        with tempfile.TemporaryDirectory() as folder:
            self.vision_tower.save_pretrained(folder)
            encoder = {name: tensor.clone() for name, tensor in load_file(Path(folder) / "model.safetensors").items()}
        state = {f"vision_tower.{name}": tensor for name, tensor in encoder.items()}
        projector = self.projector.state_dict()
        state |= {f"multi_modal_projector.layers.{name}": tensor for name, tensor in projector.items()}
        return state | {f"language_model.{name}": tensor for name, tensor in self.language_model.state_dict().items()}


def write_released(folder: Path, state: dict[str, Tensor], config: dict[str, Any] | None = None) -> Path:
    """Write a folder like the released one: sharded weights and `config.json`."""
    folder.mkdir(parents=True, exist_ok=True)
    save_torch_state_dict(state, folder, max_shard_size="60KB")
    (folder / "config.json").write_text(json.dumps(config or CONFIG), encoding="utf-8")
    return folder


def in_transformers5(state: dict[str, Tensor], *, in_memory_names: bool = False) -> dict[str, Tensor]:
    """Convert a state dict to transformers 5's layout, optionally with its in-memory names of the encoder."""
    converted = {}
    for name, tensor in state.items():
        if name.startswith("language_model.lm_head"):
            name = name.removeprefix("language_model.")
        elif name.startswith("language_model.model."):
            name = name.replace("language_model.model.", "model.language_model.")
        else:
            name = f"model.{name}"
        if in_memory_names:
            for letter, word in (("q", "query"), ("k", "key"), ("v", "value")):
                name = name.replace(f"attention.attention.{word}", f"attention.{letter}_proj")
            name = name.replace("attention.output.dense", "attention.o_proj")
        converted[name] = tensor
    return converted
