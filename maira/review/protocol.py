"""The review protocol: steps, clinical implications and error types (MAIRA-2, figure F.1)."""

from __future__ import annotations

from importlib import resources
from typing import Any, Literal

from radfact.io.yaml_files import parse_yaml

SeverityId = Literal[0, 1, 2]

_PROTOCOL: dict[str, Any] = parse_yaml((resources.files("maira.review") / "protocol.yaml").read_text(encoding="utf-8"))

SEVERITIES: list[dict[str, Any]] = _PROTOCOL["severities"]
"""`id`, `name` and `definition` of the clinical implications of an error (figure F.1; ids as in tables F.1 to F.3)."""

STEPS: list[dict[str, Any]] = _PROTOCOL["steps"]
"""`number`, `name` and `instruction` of the steps of a review (figure F.1)."""

REFERENCE_STEP = 3
"""The first step in which the reader sees the reference report."""

ERROR_TYPES: dict[str, str] = _PROTOCOL["error_types"]
"""Error types of tables F.1 to F.3 with their names in plain words; readers may add others."""
