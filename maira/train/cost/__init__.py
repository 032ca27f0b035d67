"""Estimate the cost of a training run: FLOPs, memory and time."""
