"""Published weights in the encoder: features equal to transformers' own DINOv2, and back without a change."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import Dinov2Config, Dinov2Model

from maira.encoders import load_encoder, save_encoder
from maira.encoders.weights import config_of_options, options_of_config, timm_name, to_timm

SIZES: dict[str, Any] = {"hidden_size": 128, "num_hidden_layers": 3, "num_attention_heads": 2, "patch_size": 14}


def published(**options: Any) -> Dinov2Model:
    """A DINOv2 whose every parameter is random, norms and layer scales too."""
    torch.manual_seed(0)
    built = Dinov2Model(Dinov2Config(**SIZES | {"image_size": 518} | options)).eval()
    with torch.no_grad():
        for parameter in built.parameters():
            parameter.normal_(std=0.2)
    return built


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("rad-dino")
    published().save_pretrained(place)
    return place


@pytest.fixture(scope="module")
def state(folder: Path) -> dict[str, Tensor]:
    """What is on disk."""
    return dict(load_file(folder / "model.safetensors"))


def images(height: int, width: int) -> Tensor:
    return torch.randn(2, 3, height, width, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize(("height", "width"), [(518, 518), (224, 224), (560, 602), (98, 280)])
@torch.no_grad()
def test_features_equal_those_of_transformers(folder: Path, height: int, width: int) -> None:
    pixels = images(height, width)
    expected = Dinov2Model.from_pretrained(folder)(pixels).last_hidden_state[:, 1:]
    torch.testing.assert_close(load_encoder(folder)(pixels), expected, atol=1e-4, rtol=0)


def chunked(name: str) -> str:
    head, *rest = name.split(".")
    return ".".join([head, "0", *rest]) if head == "blocks" else name


@pytest.mark.parametrize(
    ("file", "wrap"),
    [
        ("backbone.safetensors", lambda s: s),
        ("backbone.pth", lambda s: s),
        ("training.pth", lambda s: {"teacher": {f"backbone.{n}": t for n, t in s.items()}}),
        ("chunks.pth", lambda s: {chunked(n): t for n, t in s.items()}),
        ("heads.pth", lambda s: s | {"dino_head.mlp.0.weight": torch.zeros(2, 2)}),
    ],
)
@torch.no_grad()
def test_a_backbone_state_dict_gives_the_same_features(
    folder: Path,
    state: dict[str, Tensor],
    tmp_path: Path,
    file: str,
    wrap: Callable[[dict[str, Tensor]], dict[str, Any]],
) -> None:
    path = tmp_path / file
    backbone = wrap(to_timm(state))
    save_file(backbone, path) if path.suffix == ".safetensors" else torch.save(backbone, path)
    pixels = images(224, 224)
    assert torch.equal(load_encoder(path)(pixels), load_encoder(folder)(pixels))


def test_read_and_write_keep_the_file(folder: Path, state: dict[str, Tensor], tmp_path: Path) -> None:
    save_encoder(load_encoder(folder), tmp_path)
    written = load_file(tmp_path / "model.safetensors")
    assert written.keys() == state.keys()
    assert all(torch.equal(written[name], state[name]) for name in state)
    loaded, info = Dinov2Model.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(info.values())
    assert loaded.config.hidden_size == 128


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("encoder.layer.11.attention.attention.key.bias", ("blocks.11.attn.qkv.bias", 1)),
        ("encoder.layer.11.attention.v_proj.bias", ("blocks.11.attn.qkv.bias", 2)),
        ("encoder.layer.0.attention.o_proj.weight", ("blocks.0.attn.proj.weight", None)),
        ("layernorm.weight", ("norm.weight", None)),
        ("blocks.3.norm1.weight", ("blocks.3.norm1.weight", None)),
    ],
)
def test_name_variants_of_publishers_are_supported(theirs: str, ours: tuple[str, int | None]) -> None:
    assert timm_name(theirs) == ours


def without(state: dict[str, Tensor], name: str) -> dict[str, Tensor]:
    return {other: tensor for other, tensor in state.items() if other != name}


KEY = "encoder.layer.1.attention.attention.key.weight"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda s: without(s, "layernorm.bias") | {"extra": torch.zeros(1)},
            r"missing: norm\.bias; unexpected: extra$",
        ),
        (lambda s: without(s, KEY), f"missing weights: {KEY}$"),
        (
            lambda _: {"pos_embed": torch.zeros(1, 5, 32), "patch_embed.proj.weight": torch.zeros(32, 3, 14, 14)},
            "of 64",
        ),
    ],
)
def test_other_weights_are_refused_by_name(
    state: dict[str, Tensor], tmp_path: Path, change: Callable[[dict[str, Tensor]], dict[str, Tensor]], message: str
) -> None:
    save_file(change(state), tmp_path / "backbone.safetensors")
    with pytest.raises(ValueError, match=message):
        load_encoder(tmp_path / "backbone.safetensors")


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"use_swiglu_ffn": True}, "use_swiglu_ffn: expected False, found True"),
        ({"apply_layernorm": False}, "apply_layernorm: expected True, found False"),
        ({"out_features": ["stage11"]}, r"out_features: expected \['stage12'\], found \['stage11'\]"),
        ({"image_size": [518, 224]}, "equal sides"),
    ],
)
def test_another_encoder_is_refused(config: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        options_of_config(config)


@pytest.mark.parametrize("name", ["model.safetensors", "model.pth", "folder/config.json"])
@pytest.mark.parametrize("content", [b"no weights", b"[1]", b""])
def test_a_file_that_is_no_weights_is_refused(folder: Path, tmp_path: Path, name: str, content: bytes) -> None:
    shutil.copytree(folder, tmp_path / "folder")
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(ValueError, match=path.name):
        load_encoder(path.parent if name.startswith("folder") else path)
    with pytest.raises(ValueError, match="no weights here"):
        load_encoder(folder.parent)


def test_missing_config_values_have_transformers_defaults() -> None:
    filled = Dinov2Config().to_dict()
    assert options_of_config({}) == {name: filled.get(name, "patch") for name in options_of_config({})}


def test_a_convolutional_stem_has_no_published_layout() -> None:
    with pytest.raises(ValueError, match="stem has no counterpart"):
        config_of_options(SIZES | {"image_size": 64, "stem": "conv"})
