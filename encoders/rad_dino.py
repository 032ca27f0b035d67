"""The DINOv2 vision transformer of RAD-DINO (MAIRA-2, methods and appendix B.3)."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, Literal

import torch
from timm.layers import PatchEmbed
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn
from torch.nn import functional as F


class DinoVisionTransformer(VisionTransformer):
    """timm's ViT with DINOv2's interpolation of the position embedding.

    timm uses an antialiasing filter where the grid gets smaller; DINOv2 and transformers do not.
    """

    def _pos_embed(self, x: Tensor) -> Tensor:
        """Map (images, rows, columns, width) to (images, 1 + rows * columns, width), CLS token first."""
        images, rows, columns, width = x.shape
        cls, grid = self.pos_embed[:, :1], self.pos_embed[:, 1:]
        if (rows, columns) != (old := tuple(self.patch_embed.grid_size)):
            grid = grid.float().reshape(1, *old, width).permute(0, 3, 1, 2)
            grid = F.interpolate(grid, size=(rows, columns), mode="bicubic", align_corners=False)
            grid = grid.permute(0, 2, 3, 1).reshape(1, rows * columns, width).to(cls.dtype)
        patches = x.reshape(images, rows * columns, width) + grid
        return torch.cat([(self.cls_token + cls).expand(images, -1, -1), patches], 1)


class ConvStem(PatchEmbed):
    """Patch embedding by four strided 3 x 3 convolutions, for small encoders trained from scratch.

    Early convolutions let a small transformer learn from far fewer images (Xiao et al. 2021, "Early convolutions help
    transformers see better").
    """

    def __init__(self, *, patch_size: int, in_chans: int = 3, embed_dim: int, **options: Any) -> None:
        if patch_size != 16:
            raise ValueError(f"patch_size: expected 16 for the convolutional stem, found {patch_size}")
        if embed_dim % 64:
            raise ValueError(f"hidden_size: expected a multiple of 64 for the convolutional stem, found {embed_dim}")
        super().__init__(patch_size=patch_size, in_chans=in_chans, embed_dim=embed_dim, **options)
        widths = [in_chans, embed_dim // 8, embed_dim // 4, embed_dim // 2, embed_dim]
        layers: list[nn.Module] = []
        for width_in, width_out in pairwise(widths):
            layers += [nn.Conv2d(width_in, width_out, 3, stride=2, padding=1), nn.GroupNorm(8, width_out), nn.GELU()]
        self.proj = nn.Sequential(*layers, nn.Conv2d(embed_dim, embed_dim, 1))


class Encoder(nn.Module):
    """A DINOv2 ViT that returns its patch tokens after the final norm, without the CLS token.

    Args:
        image_size: side in pixels of the images of the position embedding, which is interpolated for other sizes.
        patch_size: side of a patch in pixels.
        hidden_size: width of the tokens.
        num_hidden_layers: number of transformer blocks.
        num_attention_heads: attention heads per block.
        stem: "patch" as in DINOv2, or "conv" for small encoders trained from scratch.
        frozen: whether the weights get no gradients and the encoder stays in evaluation mode.

    Attributes:
        options: arguments of the constructor, without `frozen`.

    Raises:
        ValueError: the sizes do not divide each other.
    """

    def __init__(
        self,
        *,
        image_size: int = 518,
        patch_size: int = 14,
        hidden_size: int = 768,
        num_hidden_layers: int = 12,
        num_attention_heads: int = 12,
        stem: Literal["patch", "conv"] = "patch",
        frozen: bool = True,
    ) -> None:
        if hidden_size % num_attention_heads:
            found = f"expected a multiple of the {num_attention_heads} attention heads, found {hidden_size}"
            raise ValueError(f"hidden_size: {found}")
        super().__init__()
        self.options = {
            "image_size": image_size,
            "patch_size": patch_size,
            "hidden_size": hidden_size,
            "num_hidden_layers": num_hidden_layers,
            "num_attention_heads": num_attention_heads,
            "stem": stem,
        }
        self.patch_size = patch_size
        self.frozen = frozen
        self.vit = DinoVisionTransformer(
            img_size=image_size,
            patch_size=patch_size,
            embed_dim=hidden_size,
            depth=num_hidden_layers,
            num_heads=num_attention_heads,
            num_classes=0,
            global_pool="",
            init_values=1.0,
            dynamic_img_size=True,
            weight_init="skip",
            embed_layer=PatchEmbed if stem == "patch" else ConvStem,
        )
        # Unused here, but part of the published weights.
        self.vit.mask_token = nn.Parameter(torch.zeros(1, hidden_size)) if stem == "patch" else None
        for embedding in (self.vit.pos_embed, self.vit.cls_token):
            nn.init.trunc_normal_(embedding, std=0.02)
        if frozen:
            self.requires_grad_(False)
            self.eval()

    def train(self, mode: bool = True) -> Encoder:
        """Set training mode; a frozen encoder stays in evaluation mode."""
        return super().train(mode and not self.frozen)

    def forward(self, pixels: Tensor) -> Tensor:
        """Return patch tokens.

        Args:
            pixels: (images, 3, height, width), normalized; sides are multiples of the patch size.

        Returns:
            (images, (height / patch) * (width / patch), hidden_size), row by row from the top left.

        Raises:
            ValueError: a side is not a multiple of the patch size.
        """
        height, width = pixels.shape[-2:]
        if height % self.patch_size or width % self.patch_size:
            raise ValueError(f"expected image sides that are multiples of {self.patch_size}, found {height} x {width}")
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self.frozen):
            tokens: Tensor = self.vit(pixels)
        return tokens[:, self.vit.num_prefix_tokens :]
