"""Write the tables in README.md, docs/metrics.md and docs/parity.md from metrics and data.

python docs/metric_tables.py

Each table replaces the lines between `<!-- metrics: NAME -->` and `<!-- end of metrics -->`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from radfact.api import evaluate
from radfact.io.jsonl import read_json
from radfact.metrics.protocol import Metric, describe_language, directions_of, main_scores_of
from radfact.metrics.registry import entries
from radfact.metrics.weights import WeightsFile, catalog
from radfact.records import Pair

ROOT = Path(__file__).resolve().parents[1]
FILES = (ROOT / "README.md", *(ROOT / "docs" / f"{name}.md" for name in ("metrics", "parity")))
PARITY = ROOT / "docs" / "parity.json"
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
        (
            f"`{metric.name}`",
            metric.measures,
            _direction(metric),
            _requirements(metric),
            describe_language(metric),
            metric.source,
        )
        for metric in _metrics()
    ]
    return _table(("name", "measures", "direction", "requires", "language", "source"), rows)


def _main_scores() -> str:
    rows = [
        (f"`{metric.name}`", ", ".join(f"`{name}` {ARROWS[directions_of(metric)[name]]}" for name in names))
        for metric in _metrics()
        if (names := main_scores_of(metric)) != [metric.name]
    ]
    return _table(("metric", "main scores"), rows)


def _variants() -> str:
    rows = [
        (f"`{entry.name}`", f"`{name}`", (metric := variant.load()).difference, metric.source)
        for entry in entries().values()
        for name, variant in entry.variants.items()
    ]
    return _table(("metric", "`--compat`", "difference from the default", "source"), rows)


def _parity() -> str:
    sample = read_json(PARITY)
    pairs = [Pair(str(index), **pair) for index, pair in enumerate(sample["pairs"])]
    rows = []
    for metric in _metrics():
        for variant in ("", *entries()[metric.name].variants):
            if (required := _requirements(metric)) != "nothing":
                rows.append((f"`{metric.name}`", variant, "", "", "", f"not computed here: needs {required}"))
                continue
            result = evaluate(pairs, [metric.name], compat=[variant] if variant else [], bootstrap=0)
            for name, score in result.scores.items():
                other = sample["values"].get(name, {"value": math.nan, "implementation": "none"})
                values = (score, other["value"], score - other["value"])
                cells = ("" if math.isnan(value) else f"{round(value, 6) + 0.0:.6f}" for value in values)
                rows.append((f"`{name}`", variant, *cells, other["implementation"]))
    return _table(("score", "variant", "value", "other value", "difference", "other implementation"), rows)


def _weights() -> str:
    rows = [
        (f"`{entry.name}`", entry.title, entry.license, ", ".join(map(_weights_file, entry.files)))
        for entry in catalog().values()
    ]
    return _table(("folder", "weights", "license", "files to download"), rows)


def _weights_file(file: WeightsFile) -> str:
    size = "size unknown" if file.bytes is None else f"{file.bytes:,} bytes"
    return f"`{file.path}` ({size}{'' if file.sha256 else ', no published checksum'})"


def _metrics() -> list[type[Metric] | Metric]:
    return [entry.declared for entry in entries().values() if entry.is_builtin]


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


_TABLES = {
    "overview": _overview,
    "main_scores": _main_scores,
    "weights": _weights,
    "variants": _variants,
    "parity": _parity,
}

if __name__ == "__main__":
    for path in FILES:
        path.write_text(update(path.read_text("utf-8")), encoding="utf-8")
