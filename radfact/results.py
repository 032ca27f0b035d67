"""The results folder: what an evaluation leaves on disk."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from radfact.jsonl import write_json, write_jsonl
from radfact.score import Result, SampleScore, SentenceScore


def write_results(result: Result, folder: Path | str, run: Mapping[str, Any]) -> None:
    """Write `samples.jsonl`, `sentences.jsonl`, `run.json` and, last of all, `scores.json`, each whole or not at all.

    Args:
        result: as scored.
        folder: results folder, made if it is not there.
        run: what the numbers depend on (versions, options, seed, calls, tokens, seconds); JSON values only.
    """
    folder = Path(folder)
    write_jsonl(folder / "samples.jsonl", map(_sample_row, result.samples))
    write_jsonl(folder / "sentences.jsonl", map(_sentence_row, result.sentences))
    write_json(folder / "run.json", dict(run))
    # A folder that has its scores is complete.
    figures = {name: asdict(summary) for name, summary in result.figures.items()}
    write_json(folder / "scores.json", {"figures": figures, "judge": dict(result.judge), "counts": dict(result.counts)})


def _sample_row(sample: SampleScore) -> dict[str, Any]:
    figures = {name: None if math.isnan(value) else value for name, value in sample.figures.items()}
    return {"sample_id": sample.sample_id, **figures, **sample.counts, "failure": sample.failure}


def _sentence_row(sentence: SentenceScore) -> dict[str, Any]:
    boxes = None if sentence.boxes is None else [box.model_dump() for box in sentence.boxes]
    return {
        "sample_id": sentence.sample_id,
        "side": sentence.side,
        "index": sentence.index,
        "text": sentence.text,
        "boxes": boxes,
        "status": sentence.status,
        "evidence": list(sentence.evidence),
        "spatial": sentence.spatial,
        "why": sentence.why,
    }
