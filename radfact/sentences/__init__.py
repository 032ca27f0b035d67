"""Narrative findings to single-finding sentences."""

from __future__ import annotations

from radfact.sentences.offline import split_narrative
from radfact.sentences.splitter import Splitter

__all__ = ["Splitter", "split_narrative"]
