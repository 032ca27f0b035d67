"""The words and patterns of the rules, in `rules.yaml`."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any


@cache
def tables() -> dict[str, Any]:
    import yaml

    text = Path(__file__).with_name("rules.yaml").read_text(encoding="utf-8")
    loaded: dict[str, Any] = yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    return loaded


@cache
def pattern(name: str) -> re.Pattern[str]:
    """Return the alternatives of a pattern as one."""
    return _compile("|".join(tables()["patterns"][name]))


@cache
def removals() -> list[tuple[re.Pattern[str], str]]:
    """Return the patterns that remove a comparison, and what replaces each."""
    return [(_compile(text), replacement) for text, replacement in tables()["removals"]]


def _compile(text: str) -> re.Pattern[str]:
    for name, part in tables()["parts"].items():
        text = text.replace(f"<{name}>", part)
    return re.compile(text, re.IGNORECASE)
