"""Files of drafts, as tests compare them."""

import json
from pathlib import Path
from typing import Any


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a file of JSON Lines."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def without_time(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a file of drafts without their times, which differ between runs."""
    return [{key: value for key, value in row.items() if key != "seconds"} for row in read_rows(path)]
