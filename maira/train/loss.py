"""Losses: cross-entropy of the answers (MAIRA-2, appendix B.2) or another one, and an auxiliary one of the encoder."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from maira.model.modeling import MairaForConditionalGeneration
from maira.train import attention
from maira.train.data.packing import PackedBatch, StepTotals


class Losses(NamedTuple):
    """Losses of one packed row as sums, so that those of a step add up however it was packed."""

    answer: Tensor  # () cross-entropy summed over answer tokens, or the loss of the objective
    patches: Tensor  # () auxiliary loss, summed over samples; 0 without
    per_sample: Tensor  # (samples,) cross-entropy, summed over each sample's answer, without a gradient
    tokens: Tensor  # (samples,) answer tokens of each sample
    log_probs: Tensor | None = None  # (answer tokens,) of the policy, without a gradient; None without a policy
    statistics: Tensor | None = None  # sums of `maira.train.loop.Objective.statistics`; None for the cross-entropy

    def total(self, totals: StepTotals, patch_weight: float) -> Tensor:
        """Return this row's part of the loss of its optimizer step."""
        answer = self.answer / totals.answer_tokens
        return answer + patch_weight * self.patches / totals.samples if patch_weight else answer


class PackedLossModel(nn.Module):
    """A model that reads packed rows and returns their losses."""

    model: Any
    kernel: str  # name of the attention within samples (`attention.select_kernel`)
    patch_weight: float = 0.0  # of the auxiliary loss; 0 for none


def answer_losses(hidden: Tensor, head: nn.Module, batch: PackedBatch) -> Losses:
    """Compute the cross-entropy of a row's answers; logits are computed only where the next token is an answer's."""
    return sum_losses(token_losses(hidden, head, batch), batch)


def sum_losses(losses: Tensor, batch: PackedBatch) -> Losses:
    """Sum the losses (answer tokens,) of a row over its samples."""
    zeros = torch.zeros(len(batch.sample_ids), device=losses.device)
    per_sample = zeros.index_add(0, batch.answer_samples, losses.detach())
    tokens = zeros.index_add(0, batch.answer_samples, torch.ones_like(losses))
    return Losses(losses.sum(), losses.new_zeros(()), per_sample, tokens)


def token_losses(hidden: Tensor, head: nn.Module, batch: PackedBatch) -> Tensor:
    """Compute the cross-entropy of each token of a row's answers: (answer tokens,)."""
    # (answer tokens, vocabulary)
    logits = head(hidden[0].index_select(0, batch.answers)).float()
    return F.cross_entropy(logits, batch.targets, reduction="none")


class MairaLossModel(PackedLossModel):
    """MAIRA-2 with its training losses and the head of the auxiliary loss."""

    def __init__(
        self,
        model: MairaForConditionalGeneration,
        kinds: int,
        patch_weight: float,
        kernel: str = attention.SAMPLES,
        policy: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.policy = policy
        self.model: MairaForConditionalGeneration = model
        self.kernel, self.patch_weight = kernel, patch_weight
        self.patch_head = nn.Linear(model.config.vision_config.hidden_size, kinds) if patch_weight else None
        attention.set_kernel(model, kernel)

    def forward(self, batch: PackedBatch) -> Losses:
        # All images go through the encoder in one call: under FSDP every process must make the same calls, and rows
        # have different numbers of images.
        # (images, 1, size, size) -> (images, patches, encoder width)
        patches = self.model.encode_patches(batch.pixel_values)
        # Without the check, which synchronizes with the device; the encoding of the prompt has already checked this.
        embeddings = self.model.embed(batch.input_ids, self.model.project(patches), check=False)
        # (1, tokens, width)
        options = {"position_ids": batch.position_ids, "use_cache": False}
        options |= attention.packed_kwargs(self.kernel, batch)
        hidden = self.model.decode(embeddings, **options).last_hidden_state
        is_supervised = batch.policy is None and batch.reference_log_probs is None
        losses_of = answer_losses if is_supervised or self.policy is None else self.policy
        losses: Losses = losses_of(hidden, self.model.lm_head, batch)
        return losses._replace(patches=self._patch_loss(patches, batch))

    def _patch_loss(self, patches: Tensor, batch: PackedBatch) -> Tensor:
        if self.patch_head is None or batch.coverage is None:
            return patches.new_zeros((), dtype=torch.float32)
        # (samples, patches, kinds)
        logits = self.patch_head(patches[batch.frontal_rows]).float()
        # Summed over kinds and averaged over patches, so that the weight means the same for any number of kinds.
        return F.binary_cross_entropy_with_logits(logits, batch.coverage, reduction="none").sum(-1).mean(-1).sum()
