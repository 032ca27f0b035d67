"""What training minimises: cross-entropy of answers (paper 004, B.2), and an auxiliary loss of a trained encoder."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from maira.model.modeling import MairaForConditionalGeneration
from maira.train import attention
from maira.train.data.packing import PackedBatch, StepTotals


class Losses(NamedTuple):
    """Losses of one packed row, summed, so that those of a step add up however it was packed.

    Attributes:
        answer: cross-entropy, summed over answer tokens.
        patches: auxiliary loss, summed over samples; 0 without.
        per_sample: (samples,), cross-entropy summed over each sample's answer, without a gradient.
        tokens: (samples,), answer tokens of each.
    """

    answer: Tensor
    patches: Tensor
    per_sample: Tensor
    tokens: Tensor

    def total(self, totals: StepTotals, patch_weight: float) -> Tensor:
        """This row's part of the loss of its optimiser step.

        Args:
            totals: answer tokens and samples of the whole step, over all processes.
            patch_weight: of the auxiliary loss.
        """
        answer = self.answer / totals.answer_tokens
        return answer + patch_weight * self.patches / totals.samples if patch_weight else answer


class PackedLossModel(nn.Module):
    """A model that reads packed rows and returns their losses.

    Attributes:
        model: what is trained.
        kernel: name of the attention within samples (`attention.choose`).
        patch_weight: weight of the auxiliary loss; 0 for none.
    """

    model: Any
    kernel: str
    patch_weight: float = 0.0


def answer_losses(hidden: Tensor, head: nn.Module, batch: PackedBatch) -> Losses:
    """Cross-entropy of a row's answers; logits are computed where the next token is an answer's, and nowhere else.

    Args:
        hidden: (1, tokens, width), what the language model's last layer gives.
        head: from there to logits.
        batch: the row.
    """
    scores = head(hidden[0].index_select(0, batch.answers)).float()
    # (answer tokens,)
    losses = F.cross_entropy(scores, batch.targets, reduction="none")
    none = torch.zeros(len(batch.sample_ids), device=losses.device)
    return Losses(
        answer=losses.sum(),
        patches=losses.new_zeros(()),
        per_sample=none.index_add(0, batch.answer_samples, losses.detach()),
        tokens=none.index_add(0, batch.answer_samples, torch.ones_like(losses)),
    )


class MairaLossModel(PackedLossModel):
    """A MAIRA-2 that reads packed rows and returns their losses, with the auxiliary loss's head beside it.

    Args:
        model: what is trained.
        kinds: findings that the auxiliary loss knows.
        patch_weight: weight of the auxiliary loss; 0 for none.
        kernel: name of the attention within samples (`attention.choose`).
    """

    def __init__(
        self,
        model: MairaForConditionalGeneration,
        kinds: int,
        patch_weight: float,
        kernel: str = attention.SAMPLES,
    ) -> None:
        super().__init__()
        self.model: MairaForConditionalGeneration = model
        self.kernel, self.patch_weight = kernel, patch_weight
        self.patch_head = nn.Linear(model.config.vision_config.hidden_size, kinds) if patch_weight else None
        attention.use(model, kernel)

    def forward(self, batch: PackedBatch) -> Losses:
        """Losses of a packed row.

        All images go through the encoder in one call: under FSDP every process must make the same calls, and rows have
        different numbers of images.
        """
        # (images, 1, size, size) -> (images, patches, encoder width)
        patches = self.model.encode_patches(batch.pixel_values)
        embeddings = self.model.embed(batch.input_ids, self.model.project(patches))
        # (1, tokens, width)
        hidden = self.model.decode(
            embeddings,
            position_ids=batch.position_ids,
            use_cache=False,
            **attention.packed(self.kernel, batch),
        ).last_hidden_state
        losses = answer_losses(hidden, self.model.language_model.lm_head, batch)
        return losses._replace(patches=self._patch_loss(patches, batch))

    def _patch_loss(self, patches: Tensor, batch: PackedBatch) -> Tensor:
        if self.patch_head is None or batch.coverage is None:
            return patches.new_zeros((), dtype=torch.float32)
        scores = self.patch_head(patches[batch.frontal_rows]).float()
        # Summed over kinds, averaged over patches: the weight then means the same for any number of kinds.
        return F.binary_cross_entropy_with_logits(scores, batch.coverage, reduction="none").sum(-1).mean(-1).sum()
