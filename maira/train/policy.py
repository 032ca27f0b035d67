"""The objective of group-relative policy optimization (GRPO) on packed rows.

docs/post-training.md explains why TRL's trainer is not used.

Source: GRPO: DeepSeekMath, section 4.1; clipping and normalization by the tokens of a step: DAPO, sections 3.1 and 3.3.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from maira.generate.constraints import forbidden_table
from maira.model.grammar import Grammar
from maira.train.config.run_config import GrpoConfig
from maira.train.data.packing import PackedBatch, PolicyTargets
from maira.train.loss import Losses

STATISTICS = ("tokens", "clip_ratio", "kl", "entropy", "engine_tokens", "sampling_logp_difference")
"""Sums over the tokens of a row: their number, those whose gradient is clipped, the KL divergence from the policy that
sampled them, the entropy of the distribution that each is drawn from, in nats, the number of tokens with a
log-probability of the inference engine, and the absolute difference of that log-probability from the model's."""


class PolicyLoss(nn.Module):
    """The clipped policy gradient of sampled tokens.

    A token's probability is that of the distribution it was drawn from: of the tokens that the grammar allows at its
    place, at the temperature of the sampling.

    Args:
        grammar: grammar of the reports.
        size: number of rows of the head.
        image_token: token that is never sampled.
        config: temperature, and bounds of the probability ratio and of the importance weights.
    """

    forbidden: Tensor

    def __init__(self, grammar: Grammar, size: int, image_token: int, config: GrpoConfig) -> None:
        super().__init__()
        forbidden = forbidden_table(grammar, size)
        forbidden[:, image_token] = True
        self.register_buffer("forbidden", forbidden, persistent=False)
        self.temperature = config.temperature
        self.low = 1 - config.epsilon
        self.clip_max = config.importance_sampling_clip_max
        self.high = 1 + (config.epsilon if config.epsilon_high is None else config.epsilon_high)

    def forward(self, hidden: Tensor, head: nn.Module, batch: PackedBatch) -> Losses:
        """Compute the loss of a row of sampled answers.

        Args:
            hidden: (1, tokens, width), output of the language model's last layer.
            head: layer that computes logits.
            batch: the row.

        Raises:
            ValueError: the answers of the row were not sampled.
        """
        if batch.policy is None:
            raise ValueError("expected a row of sampled answers")
        targets = batch.policy
        # (answer tokens, vocabulary)
        scores = self.mask(head(hidden[0].index_select(0, batch.answers)).float() / self.temperature, targets)
        distribution = scores.log_softmax(-1)
        # (answer tokens,)
        log_probs = distribution.gather(-1, batch.targets[:, None])[:, 0]
        sampled = torch.where(targets.log_probs.isnan(), log_probs.detach(), targets.log_probs)
        ratio = (log_probs - sampled).exp()
        gains = torch.minimum(ratio, ratio.clamp(self.low, self.high))
        gains = torch.where(targets.advantages > 0, gains, torch.maximum(ratio, ratio.clamp(self.low, self.high)))
        logp_difference = sampled - targets.engine_log_probs
        weights = (
            torch.ones_like(gains)
            if self.clip_max is None
            else logp_difference.exp().clamp(max=self.clip_max).nan_to_num(1.0)
        )
        losses = -gains * weights * targets.advantages
        zeros = torch.zeros(len(batch.sample_ids), device=losses.device)
        return Losses(
            answer=losses.sum(),
            patches=losses.new_zeros(()),
            per_sample=zeros.index_add(0, batch.answer_samples, losses.detach()),
            tokens=zeros.index_add(0, batch.answer_samples, torch.ones_like(losses)),
            log_probs=log_probs.detach(),
            statistics=self._statistics(distribution.detach(), ratio.detach(), logp_difference, targets.advantages),
        )

    def mask(self, scores: Tensor, targets: PolicyTargets) -> Tensor:
        """Return scores (answer tokens, vocabulary) with -inf for the tokens that were forbidden.

        Args:
            scores: logits of all tokens.
            targets: targets of the sampled tokens.
        """
        forbidden = self.forbidden[targets.choices]
        forbidden[targets.banned[:, 0], targets.banned[:, 1]] = True
        return scores.masked_fill(forbidden, -torch.inf)

    def _statistics(self, distribution: Tensor, ratio: Tensor, logp_difference: Tensor, advantages: Tensor) -> Tensor:
        clipped = ((advantages > 0) & (ratio > self.high)) | ((advantages < 0) & (ratio < self.low))
        # The k3 estimator (Schulman, "Approximating KL Divergence", 2020), whose terms are never negative.
        kl = ratio - 1 - ratio.log()
        terms = torch.where(distribution.isinf(), 0.0, distribution.exp() * distribution)
        columns = (
            torch.ones_like(ratio),
            clipped,
            kl,
            -terms,
            ~logp_difference.isnan(),
            logp_difference.abs().nan_to_num(0.0),
        )
        return torch.stack([column.sum().double() for column in columns])
