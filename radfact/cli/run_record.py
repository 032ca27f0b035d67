"""What a run writes of itself into `run.json`, and how it differs from the run that was there before."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from radfact.errors import InputError

if TYPE_CHECKING:
    from radfact.io.pairs import Pairs
    from radfact.judges import Judge, Splitter
    from radfact.scoring.radfact import Result


def read_in_words(read: Pairs) -> str:
    """How many records were read, skipped and paired."""
    empty = f", of these {len(read.emptied)} with an empty candidate" if read.emptied else ""
    apart = f"; drafts without a reference report, in no figure: {len(read.unreferenced)}" if read.unreferenced else ""
    return f"records read: {read.read}, skipped: {read.skipped}, pairs: {len(read)}{empty}{apart}"


def versions() -> dict[str, str]:
    """Of Python and of the packages that every figure depends on."""
    import platform
    from importlib.metadata import version

    packages = {name: version(name) for name in ("maira-radfact", "numpy", "pydantic")}
    return {"python": platform.python_version(), **packages}


def run_record(files: Sequence[Path], read: Pairs, result: Result) -> dict[str, Any]:
    """Versions, input, and what the answers cost: those of judge and splitter together, and of each."""
    spent = {
        who: {name: count for name, count in usage.items() if name not in ("planned", "done")}
        for who, usage in result.usage.items()
    }
    names = dict.fromkeys(name for usage in spent.values() for name in usage)
    return {
        "versions": versions(),
        "input": {
            "files": list(map(str, files)),
            "read": read.read,
            "skipped": read.skipped,
            "empty_candidates": len(read.emptied),
            "without_reference": len(read.unreferenced),
        },
        **{name: sum(usage.get(name, 0) for usage in spent.values()) for name in names},
        "usage": spent,
    }


def differences(
    folder: Path,
    files: Sequence[Path],
    who: Mapping[str, Judge | Splitter | None],
    options: Mapping[str, Any],
) -> str:
    """In what the finished run in a folder differs from one to come, in words; empty where it does not, or is none.

    Args:
        folder: a results folder, or none yet.
        files: the input of the run to come.
        who: its judge and its splitter by these names; one that is None is not needed.
        options: what else its figures depend on, by the names in `run.json`.
    """
    from radfact.io.jsonl import dumps, read_json

    if not (folder / "scores.json").exists():
        return ""
    try:
        run = dict(read_json(folder / "run.json"))
        scored, chosen = dict(run["input"])["files"], dict(run["options"])
        past = {role: dict(run[role] or {}) for role in who}
    except (InputError, KeyError, TypeError, ValueError):
        return "of a run that cannot be made out"
    if scored != list(map(str, files)):
        return f"of other files ({', '.join(map(str, scored))})"
    for role, one in who.items():
        found, wanted = past[role], json.loads(dumps(one.describe())) if one is not None else {}
        if found.get("name") != wanted.get("name"):
            return f"of the {role} {found.get('name')}" if found else f"without a {role}"
        if found != wanted:
            return f"of the same {role} with other settings"
    differing = [f"{name} {chosen.get(name)}" for name, value in options.items() if chosen.get(name) != value]
    return f"with {', '.join(differing)}" if differing else ""
