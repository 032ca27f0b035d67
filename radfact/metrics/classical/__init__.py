"""Metrics of two texts that need no language model to answer."""
