from typing import Any

import pytest
import torch
from torch import Tensor, nn

from maira.encoders import Encoder

SMALL: dict[str, Any] = {
    "image_size": 56,
    "patch_size": 14,
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
}
CONV: dict[str, Any] = SMALL | {"image_size": 64, "patch_size": 16, "hidden_size": 64, "stem": "conv"}


def encoder(**options: Any) -> Encoder:
    torch.manual_seed(0)
    return Encoder(**SMALL | options)


def images(height: int, width: int, count: int = 2) -> Tensor:
    return torch.randn(count, 3, height, width, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("options", [SMALL, CONV], ids=["patch", "conv"])
def test_there_is_one_token_per_patch_for_every_size(options: dict[str, Any]) -> None:
    built, side = encoder(**options), options["patch_size"]
    for rows, columns in ((4, 4), (6, 6), (2, 5)):
        assert built(images(rows * side, columns * side)).shape == (2, rows * columns, options["hidden_size"])


def test_tokens_are_the_last_block_after_the_final_norm_without_the_cls_token() -> None:
    built = encoder()
    vit = built.vit
    # A norm that is not the identity, so that leaving it out cannot go unnoticed.
    vit.norm.weight.data.uniform_(0.5, 2)
    vit.norm.bias.data.uniform_(-1, 1)
    pixels = images(56, 56)
    with torch.no_grad():
        hidden = vit.patch_embed.proj(pixels).flatten(2).transpose(1, 2)
        hidden = torch.cat([vit.cls_token.expand(2, -1, -1), hidden], 1) + vit.pos_embed
        for block in vit.blocks:
            hidden = block(hidden)
        by_hand = nn.functional.layer_norm(hidden, (24,), vit.norm.weight, vit.norm.bias, vit.norm.eps)
    torch.testing.assert_close(built(pixels), by_hand[:, 1:], atol=1e-5, rtol=1e-5)


def test_a_side_must_be_a_multiple_of_the_patch() -> None:
    with pytest.raises(ValueError, match="multiples of 14, found 56 x 57"):
        encoder()(images(56, 57))


def test_the_convolutional_stem_has_a_fixed_patch_size() -> None:
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


@pytest.mark.parametrize("options", [SMALL, CONV], ids=["patch", "conv"])
def test_a_trainable_encoder_has_gradients_everywhere(options: dict[str, Any]) -> None:
    built = encoder(**options, frozen=False)
    nn.Sequential(built).train()
    assert built.vit.blocks[0].training
    side = options["image_size"]
    built(images(side, side)).square().sum().backward()
    untouched = {name for name, p in built.named_parameters() if p.grad is None or not p.grad.abs().sum() > 0}
    assert untouched <= {"vit.mask_token"}


@pytest.mark.parametrize("options", [SMALL, CONV], ids=["patch", "conv"])
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
