"""The encoder, and published weights in it: features equal to transformers' own DINOv2, and back without a change."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import Dinov2Config, Dinov2Model

from maira.encoders import Encoder, load_encoder, save_encoder
from maira.encoders.weights import config_of_options, options_of_config, timm_name, to_timm

CASES = yaml.safe_load(Path(__file__).with_name("encoder.yaml").read_text("utf-8"))
SMALL: dict[str, Any] = CASES["small"]
CONV: dict[str, Any] = SMALL | {"image_size": 64, "patch_size": 16, "hidden_size": 64, "stem": "conv"}
PUBLISHED: dict[str, Any] = SMALL | {"image_size": 518, "hidden_size": 128, "num_hidden_layers": 3}
both_stems = pytest.mark.parametrize("options", [SMALL, CONV], ids=["patch", "conv"])


def encoder(**options: Any) -> Encoder:
    torch.manual_seed(0)
    return Encoder(**SMALL | options)


def images(height: int, width: int) -> Tensor:
    return torch.randn(2, 3, height, width, generator=torch.Generator().manual_seed(1))


@both_stems
def test_there_is_one_token_per_patch_for_every_size(options: dict[str, Any]) -> None:
    built, side = encoder(**options), options["patch_size"]
    for rows, columns in ((4, 4), (6, 6), (2, 5)):
        assert built(images(rows * side, columns * side)).shape == (2, rows * columns, options["hidden_size"])


def test_sizes_that_patches_do_not_fill_are_refused() -> None:
    with pytest.raises(ValueError, match="multiples of 14, found 56 x 57"):
        encoder()(images(56, 57))
    with pytest.raises(ValueError, match=r"expected 16 .* found 14"):
        encoder(**CONV | {"patch_size": 14, "image_size": 56})


def test_defaults_match_rad_dino() -> None:
    with torch.device("meta"):
        built = Encoder()
    sizes = {name: tuple(parameter.shape) for name, parameter in built.named_parameters()}
    # 1,370 positions x 768 (specification, "Parameter names"); 86,580,480 with DINOv2's unused mask token.
    assert sizes["vit.pos_embed"] == (1, 1370, 768)
    assert sum(parameter.numel() for parameter in built.parameters()) == 86_580_480


def test_a_frozen_encoder_has_no_gradients_and_stays_in_evaluation_mode() -> None:
    built = encoder(frozen=True)
    nn.Sequential(built).train()
    pixels = images(56, 56).requires_grad_()
    assert not built.vit.blocks[0].training
    assert not built(pixels).requires_grad
    assert not any(parameter.requires_grad for parameter in built.parameters())


@both_stems
def test_a_trainable_encoder_has_gradients_everywhere(options: dict[str, Any]) -> None:
    built = encoder(**options, frozen=False)
    nn.Sequential(built).train()
    assert built.vit.blocks[0].training
    side = options["image_size"]
    built(images(side, side)).square().sum().backward()
    untouched = {name for name, p in built.named_parameters() if p.grad is None or not p.grad.abs().sum() > 0}
    assert untouched <= {"vit.mask_token"}


@both_stems
def test_every_parameter_is_initialized(options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    # Uninitialized memory is often zero by chance; here it is never zero.
    def poisoned(*args: Any, **kwargs: Any) -> Tensor:
        built: Tensor = plain_empty(*args, **kwargs)
        return built.fill_(1e6) if built.is_floating_point() else built

    plain_empty = torch.empty
    monkeypatch.setattr(torch, "empty", poisoned)
    built = encoder(**options)
    monkeypatch.undo()
    for name, parameter in built.named_parameters():
        assert parameter.isfinite().all(), name
        assert parameter.abs().max() <= 2, name
    assert built.vit.pos_embed.std() > 0.01


State = dict[str, Tensor]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A DINOv2 whose every parameter is random, norms and layer scales too."""
    place = tmp_path_factory.mktemp("rad-dino")
    torch.manual_seed(0)
    built = Dinov2Model(Dinov2Config(**PUBLISHED)).eval()
    with torch.no_grad():
        for parameter in built.parameters():
            parameter.normal_(std=0.2)
    built.save_pretrained(place)
    return place


@pytest.fixture(scope="module")
def state(folder: Path) -> State:
    return dict(load_file(folder / "model.safetensors"))


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
    folder: Path, state: State, tmp_path: Path, file: str, wrap: Callable[[State], dict[str, Any]]
) -> None:
    path = tmp_path / file
    backbone = wrap(to_timm(state))
    save_file(backbone, path) if path.suffix == ".safetensors" else torch.save(backbone, path)
    pixels = images(224, 224)
    assert torch.equal(load_encoder(path)(pixels), load_encoder(folder)(pixels))


def test_read_and_write_keep_the_file(folder: Path, state: State, tmp_path: Path) -> None:
    save_encoder(load_encoder(folder), tmp_path)
    written = load_file(tmp_path / "model.safetensors")
    assert written.keys() == state.keys()
    assert all(torch.equal(written[name], state[name]) for name in state)
    loaded, info = Dinov2Model.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(info.values())
    assert loaded.config.hidden_size == 128


@pytest.mark.parametrize(("theirs", "ours"), CASES["names"])
def test_name_variants_of_publishers_are_supported(theirs: str, ours: list[Any]) -> None:
    assert timm_name(theirs) == tuple(ours)


def without(state: State, name: str) -> State:
    return {other: tensor for other, tensor in state.items() if other != name}


KEY = "encoder.layer.1.attention.attention.key.weight"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: without(s, "layernorm.bias") | {"extra": torch.ones(1)}, r"missing: norm\.bias; unexpected: extra$"),
        (lambda s: without(s, KEY), f"missing weights: {KEY}$"),
        (lambda _: {"pos_embed": torch.ones(1, 5, 32), "patch_embed.proj.weight": torch.ones(32, 3, 14, 14)}, "of 64"),
    ],
)
def test_other_weights_are_refused_by_name(
    state: State, tmp_path: Path, change: Callable[[State], State], message: str
) -> None:
    save_file(change(state), tmp_path / "backbone.safetensors")
    with pytest.raises(ValueError, match=message):
        load_encoder(tmp_path / "backbone.safetensors")


@pytest.mark.parametrize(("config", "message"), CASES["other encoders"])
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
        config_of_options(CONV)
