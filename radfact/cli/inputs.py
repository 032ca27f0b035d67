"""Input and output of the scoring commands, checked before any model is queried."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from radfact.api import MetricSet
from radfact.cli.options import InputOptions
from radfact.errors import ErrorCode, InputError
from radfact.io.jsonl import dumps, read_jsonl
from radfact.io.pairs import read_candidates_and_references, read_pairs
from radfact.metrics.radfact.options import BootstrapOptions
from radfact.records import Pairs, narrative
from radfact.results.options import PageOptions
from radfact.results.reader import read_run


def read_reports(
    pairs: Path | None, options: InputOptions, draws: BootstrapOptions, *, needs_reference: bool = True
) -> Pairs:
    """Read pairs, or a sample of them, as they are in the files, as narratives, or only if grounded."""
    candidates, references = options.candidates, options.references
    how: dict[str, Any] = options.model_dump(include={"missing", "section", "columns"}) | {"cluster": draws.cluster}
    file = pairs if candidates is None else None if needs_reference or pairs is not None else candidates
    if file is not None and references is None:
        read = read_pairs(file, **how, needs_reference=needs_reference)
    elif pairs is None and candidates is not None and references is not None:
        read = read_candidates_and_references(candidates, references, **how)
    else:
        message = "expected either a file of pairs, or both --candidates and --references"
        raise InputError(message, code=ErrorCode.CONFLICTING_OPTIONS)
    if not (len(read) or read.without_candidate):
        why = "; none of these drafts has a reference report" if read.without_reference else ""
        raise InputError(f"no pairs to score{why}", code=ErrorCode.EMPTY_INPUT, file=pairs or candidates)
    if options.narrative:
        texts = (
            replace(pair, candidate=narrative(pair.candidate), reference=narrative(pair.reference)) for pair in read
        )
        read = replace(read, pairs=tuple(texts))
    for pair in read if options.narrative is False else ():
        if isinstance(pair.candidate, str) or isinstance(pair.reference, str):
            message = f"--grounded needs lists of sentences; sample '{pair.sample_id}' has a narrative"
            raise InputError(message, code=ErrorCode.CONFLICTING_OPTIONS)
    return read if options.limit is None else read.sample(options.limit, draws.seed)


def fill_page_options(options: PageOptions, pairs: Pairs) -> PageOptions:
    """Return the options of a page, with images from a manifest of references and with candidates without one."""
    candidates, references = (path if _is_manifest(path, pairs) else None for path in (pairs.files[0], pairs.files[-1]))
    update: dict[str, Any] = {"manifest": options.manifest or references}
    if options.unscored is None and pairs.without_reference:
        update |= {"unscored": candidates, "drafts": tuple(pairs.without_reference)}
    return options.model_copy(update=update)


def _is_manifest(path: Path, pairs: Pairs) -> bool:
    """Return whether an input is a manifest or a file of drafts: not pairs, COCO, or one whose ids have other names."""
    may_be = len(pairs.files) > 1 and path.suffix.lower() == ".jsonl"
    return may_be and "sample_id" in next(read_jsonl(path), (0, {}))[1]


def check_files(*paths: Path | None) -> None:
    for path in paths:
        if path is not None and not path.is_file():
            raise InputError("no such file", code=ErrorCode.FILE_NOT_FOUND, file=path)


def describe_difference(folder: Path, pairs: Pairs, selected: MetricSet, options: Mapping[str, Any]) -> str:
    """Return how finished results in a folder differ from those of a coming run; empty if they do not, or if none."""
    if not (folder / "scores.json").exists():
        return ""
    try:
        earlier = read_run(folder)
    except InputError:
        return "of a run whose record cannot be read"
    if list(earlier.input.files) != list(map(str, pairs.files)):
        return f"of other files ({', '.join(earlier.input.files)})"
    if "radfact" in selected.metrics:
        settings = json.loads(dumps(selected.metrics["radfact"][1].describe()))
        options = {**options, **settings["options"]}
        for role, before in (("judge", earlier.judge), ("splitter", earlier.splitter)):
            before, now = before if isinstance(before, dict) else {}, settings[role] or {}
            if before.get("name") != now.get("name"):
                return f"of the {role} {before.get('name')}" if before else f"without a {role}"
            if before != now:
                return f"of the same {role} with other settings"
    settings = {name: earlier.options.get(name) for name in options}
    differing = [
        f"{name} {'default' if before is None else before}"
        for name, before in settings.items()
        if before != options[name]
    ]
    return f"with {', '.join(differing)}" if differing else ""
