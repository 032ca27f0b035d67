"""Write the tables of metrics in README.md and docs/metrics.md from the attributes of the metrics.

python docs/metric_tables.py

Each table replaces the lines between `<!-- metrics: NAME -->` and `<!-- end of metrics -->`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from radfact.metrics.protocol import Metric, directions_of, main_scores_of
from radfact.metrics.registry import entries

ROOT = Path(__file__).resolve().parents[1]
FILES = (ROOT / "README.md", ROOT / "docs" / "metrics.md")
ARROWS = {"higher": "↑", "lower": "↓", "neutral": "neutral"}


def update(text: str) -> str:
    """Return a page with its tables written anew."""
    return re.sub(
        r"(?<=<!-- metrics: )(\w+) -->\n.*?(?=<!-- end of metrics -->)",
        lambda match: f"{match[1]} -->\n{_TABLES[match[1]]()}\n",
        text,
        flags=re.S,
    )


def _overview() -> str:
    rows = [
        (f"`{metric.name}`", metric.measures, _direction(metric), _requirements(metric), metric.source)
        for metric in _metrics()
    ]
    return _table(("name", "measures", "direction", "requires", "source"), rows)


def _main_scores() -> str:
    rows = [
        (f"`{metric.name}`", ", ".join(f"`{name}` {ARROWS[directions_of(metric)[name]]}" for name in names))
        for metric in _metrics()
        if (names := main_scores_of(metric)) != [metric.name]
    ]
    return _table(("metric", "main scores"), rows)


def _metrics() -> list[type[Metric] | Metric]:
    declared = [entry.declared for entry in entries().values() if entry.is_builtin]
    return [metric for metric in declared if metric is not None]


def _direction(metric: type[Metric] | Metric) -> str:
    directions = directions_of(metric)
    return ", ".join(dict.fromkeys(ARROWS[directions[name]] for name in main_scores_of(metric)))


def _requirements(metric: type[Metric] | Metric) -> str:
    requirements = metric.requirements
    judge = {"any": "a judge", "model": "a language model", None: ""}[requirements.judge]
    weights = f"weights: {', '.join(requirements.weights)}" if requirements.weights else ""
    return ", ".join(filter(None, (judge, weights))) or "nothing"


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (heads, ("---",) * len(heads), *rows))


_TABLES = {"overview": _overview, "main_scores": _main_scores}

if __name__ == "__main__":
    for path in FILES:
        path.write_text(update(path.read_text("utf-8")), encoding="utf-8")
