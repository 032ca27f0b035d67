"""Metrics that query a language model."""
