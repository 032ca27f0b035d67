"""The results folder: what an evaluation leaves on disk."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from radfact.errors import InputError, brief, check_unique_id
from radfact.html.markup import Scores
from radfact.io.jsonl import read_json, read_jsonl, write_json, write_jsonl
from radfact.records import Box, Mask, digest, validated
from radfact.scoring.radfact import Result
from radfact.scoring.sample import SampleScore, SentenceScore
from radfact.statistics.bootstrap import Direction


def write_results(result: Result, folder: Path | str, run: Mapping[str, Any] | None = None) -> None:
    """Write `samples.jsonl`, `sentences.jsonl`, `run.json` and, last of all, `scores.json`, each whole or not at all.

    Those of an earlier run are replaced, its page goes.

    Args:
        result: as scored.
        folder: results folder, made if it is not there.
        run: what else `run.json` should hold (versions, input, calls, tokens, seconds), JSON values only; the options
            of the scoring and who judged and split stand there in any case.
    """
    folder = Path(folder)
    # A folder that has its scores is complete: without them, one cut short on the way is no mixture of two runs.
    for name in ("scores.json", "report.html"):
        (folder / name).unlink(missing_ok=True)
    who = {"judge": dict(result.judge), "splitter": None if result.splitter is None else dict(result.splitter)}
    run = {**(run or {}), **who}
    run["options"] = {**run.get("options", {}), **result.options}
    write_jsonl(folder / "samples.jsonl", map(_sample_row, result.samples))
    write_jsonl(folder / "sentences.jsonl", map(sentence_row, result.sentences))
    write_json(folder / "run.json", run)
    figures = {name: asdict(summary) for name, summary in result.figures.items()}
    write_json(folder / "scores.json", {"figures": figures, **who, "counts": dict(result.counts)})


@dataclass(frozen=True, slots=True)
class SampleFigures:
    """The figures of samples, as a results folder has them.

    Attributes:
        rows: `sample_id` -> figure -> value, NaN = not scored, in the order of the file.
        directions: which way is better, by figure, also of those that exist only for the set.
    """

    rows: Mapping[str, Mapping[str, float]]
    directions: Mapping[str, Direction]


def read_sample_figures(folder: Path | str) -> SampleFigures:
    """Read the figures of samples from a finished results folder.

    Raises:
        InputError: naming file, line and field: there is no such file, an id stands twice, or a value is no number.
    """
    folder = Path(folder)
    directions = {name: one.direction for name, one in read_scores(folder).figures.items()}
    return SampleFigures(_sample_figures(folder / "samples.jsonl", directions), directions)


def read_scores(folder: Path) -> Scores:
    """`scores.json` of a results folder.

    Raises:
        InputError: the folder is not finished, or the file holds something else.
    """
    path = folder / "scores.json"
    if not path.is_file():
        raise InputError("expected a finished results folder, but it has no scores.json", file=folder)
    return validated(Scores, read_json(path), file=path)


def read_digests(folder: Path) -> dict[str, str | None]:
    """The digest of the reports of each sample of a results folder; None where the folder does not have them.

    It stands in `samples.jsonl`; where no sample has one there, it is that of the sentences.

    Raises:
        InputError: there is no such file.
    """
    found: dict[str, str | None] = {}
    for _, row in read_jsonl(folder / "samples.jsonl"):
        said = row.get("reports")
        found[str(row.get("sample_id"))] = said if isinstance(said, str) else None
    path = folder / "sentences.jsonl"
    if any(found.values()) or not path.is_file():
        return found
    texts: dict[str, dict[Any, list[str]]] = {}
    for _, row in read_jsonl(path):
        sides = texts.setdefault(str(row.get("sample_id")), {"candidate": [], "reference": []})
        sides.setdefault(row.get("side"), []).append(str(row.get("text")))
    known = {key: digest(" ".join(one["candidate"]), " ".join(one["reference"])) for key, one in texts.items()}
    return {key: known.get(key) for key in found}


def _sample_figures(path: Path, names: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    table: dict[str, dict[str, float]] = {}
    seen: dict[str, int] = {}
    for line, row in read_jsonl(path):
        key = row.get("sample_id")
        if not isinstance(key, str):
            raise InputError(f"expected a text, found {brief(key)}", file=path, line=line, field="sample_id")
        check_unique_id(seen, key, line, file=path)
        table[key] = {name: _figure(value, path, line, name) for name, value in row.items() if name in names}
    return table


def _figure(value: Any, path: Path, line: int, name: str) -> float:
    if value is None:
        return math.nan
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise InputError(f"expected a finite number or null, found {value!r}", file=path, line=line, field=name)
    return float(value)


def _sample_row(sample: SampleScore) -> dict[str, Any]:
    figures = {name: None if math.isnan(value) else value for name, value in sample.figures.items()}
    return {
        "sample_id": sample.sample_id,
        **figures,
        **sample.counts,
        "failure": sample.failure,
        "reports": sample.reports,
    }


def sentence_row(sentence: SentenceScore) -> dict[str, Any]:
    """A sentence as `sentences.jsonl` has it."""
    return {
        "sample_id": sentence.sample_id,
        "side": sentence.side,
        "index": sentence.index,
        "text": sentence.text,
        "boxes": _regions(sentence.boxes),
        "masks": _regions(sentence.masks),
        "prior_boxes": _regions(sentence.prior_boxes),
        "status": sentence.status,
        "evidence": list(sentence.evidence),
        "spatial": sentence.spatial,
        "why": sentence.why,
    }


def _regions(regions: Sequence[Box | Mask] | None) -> list[dict[str, Any]] | None:
    return None if regions is None else [region.model_dump(mode="json") for region in regions]
