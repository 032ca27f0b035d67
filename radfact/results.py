"""The results folder: what an evaluation leaves on disk."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from radfact.jsonl import write_json, write_jsonl
from radfact.report import Box, Mask
from radfact.sample import SampleScore, SentenceScore
from radfact.score import Result


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


def _sample_row(sample: SampleScore) -> dict[str, Any]:
    figures = {name: None if math.isnan(value) else value for name, value in sample.figures.items()}
    return {"sample_id": sample.sample_id, **figures, **sample.counts, "failure": sample.failure}


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
