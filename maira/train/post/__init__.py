"""Training with rewards (GRPO) or preference pairs (DPO) after supervised training."""
