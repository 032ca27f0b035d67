"""Readers of rating sets."""
