"""Files of drafts, as tests compare them."""

import json
from pathlib import Path
from typing import Any


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a file of JSON Lines."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def without_time(path: Path, *others: str) -> list[dict[str, Any]]:
    """Return the rows of a file of drafts without their times, which differ between runs, and without other columns."""
    return [{key: row[key] for key in row if key not in ("seconds", *others)} for row in read_rows(path)]
