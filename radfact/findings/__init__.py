"""Findings of reports as records, their extractors, and their clinical significance."""

from __future__ import annotations

from typing import TYPE_CHECKING

from radfact.lazy import lazy_names

if TYPE_CHECKING:
    from radfact.findings.llm import LLMFindingExtractor
    from radfact.findings.offline import OfflineFindingExtractor
    from radfact.findings.records import Extraction, Finding, FindingExtractor, Status, Tier
    from radfact.findings.significance import Significance

__all__ = [
    "Extraction",
    "Finding",
    "FindingExtractor",
    "LLMFindingExtractor",
    "OfflineFindingExtractor",
    "Significance",
    "Status",
    "Tier",
]

__getattr__ = lazy_names(__name__)
