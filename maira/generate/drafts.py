"""Drafts of a test set: a report for every study."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from maira.data.images import CropMap, image_size
from maira.data.manifest import Failure
from maira.data.study import Study
from maira.generate.engine import Response, Sampling, report_request, start_engine
from maira.generate.options import EngineOptions, GenerationOptions
from maira.generate.response_file import GenerationItem, ResponseFile, generate_responses, run_settings
from maira.model.parser import ParsedReport, parse_report
from maira.model.prompts import NEW_TOKENS
from maira.model.repetition import cut_repetitions
from maira.model.task_examples import Example, drop_inputs, make_example
from radfact.errors import ErrorCode, InputError
from radfact.records import Sentence


def parse_response(response: Response, *, cut_loops: bool) -> ParsedReport:
    """Parse a response.

    Args:
        response: response of the model.
        cut_loops: whether to remove the third and further copies of a sentence (`maira.model.repetition`).
    """
    parsed = parse_report(response.text, cut_off=response.cut_off)
    return cut_repetitions(parsed) if cut_loops else parsed


def to_original_coordinates(sentences: Sequence[Sentence], frontal: Path) -> list[dict[str, Any]]:
    """Return sentences as records, with boxes converted from the model's crop to the original image.

    Args:
        sentences: sentences with boxes in CROP coordinates.
        frontal: file of the frontal image.
    """
    crop = CropMap(*image_size(frontal))
    placed = [
        Sentence(text=s.text, boxes=tuple(crop.to_original(box) for box in s.boxes) if s.boxes else None)
        for s in sentences
    ]
    return [sentence.model_dump(include={"text", "boxes"}) for sentence in placed]


def make_draft(example: Example, response: Response, model: str, *, cut_loops: bool = True) -> dict[str, Any]:
    """Make the record of a draft.

    Args:
        example: sample that the model was prompted with.
        response: response of the model.
        model: name of the model.
        cut_loops: whether to remove the third and further copies of a sentence (`maira.model.repetition`).
    """
    parsed = parse_response(response, cut_loops=cut_loops)
    is_narrative = example.task == "findings"
    return {
        "sample_id": example.sample_id,
        "report": parsed.text if is_narrative else to_original_coordinates(parsed.sentences, example.images[0]),
        "raw": response.text,
        "irregularities": [irregularity.model_dump() for irregularity in parsed.irregularities],
        "model": model,
        "seconds": round(response.seconds, 4),
    }


def generate_drafts(
    studies: Sequence[Study],
    checkpoint: Path,
    out: Path,
    options: GenerationOptions | None = None,
    engine: EngineOptions | None = None,
    *,
    failures: Sequence[Failure] = (),
    on_changed: Callable[[int], None] = lambda _: None,
    on_progress: Callable[[int, int], None] = lambda *_: None,
) -> tuple[int, list[Failure]]:
    """Draft a report for every study; a run with the same settings resumes where it stopped.

    Args:
        studies: test set.
        checkpoint: folder of the model.
        out: drafts to write (JSON Lines), in the order of `studies`.
        options: options of generation.
        engine: options of the engine.
        failures: samples that are already known to fail; listed with the others.
        on_changed: called with the number of drafted studies that have changed and are drafted again, if any.
        on_progress: called with (finished studies, all studies).

    Returns:
        The number of drafts, and the failures.

    Raises:
        InputError: the checkpoint or `out` cannot be used.
        RunError: no study could be drafted, or the engine broke.
    """
    options, engine = options or GenerationOptions(), engine or EngineOptions()
    limit = options.max_new_tokens or NEW_TOKENS[options.task]
    settings = run_settings(
        checkpoint,
        task=options.task,
        preset=options.preset,
        drop=sorted(options.drop) or None,
        max_new_tokens=limit,
        free=engine.free,
        temperature=options.temperature,
        seed=None if options.temperature is None else options.seed or 0,
    )
    items, unreadable = [], list(failures)
    for study in studies:
        try:
            study = without_references(drop_inputs(study, options.drop))
            example = make_example(study, options.task, preset=options.preset)
            check_images(example)
        except InputError as error:
            unreadable.append(Failure(sample_id=study.sample_id, stage="read", reason=str(error)))
            continue
        row = partial(make_draft, example, cut_loops=not engine.free)
        request = replace(report_request(example, limit), sampling=_sampling(options, study.sample_id))
        items.append(GenerationItem((study.sample_id,), study.sample_id, request, row))
    file = ResponseFile(out, settings, items, unreadable)
    if file.changed:
        on_changed(file.changed)
    failed = generate_responses(file, lambda: start_engine(checkpoint, engine), on_progress)
    return sum(item.key in file.rows for item in items), failed


def _sampling(options: GenerationOptions, sample_id: str) -> Sampling | None:
    """Return the temperature and seed of a study's draft, which do not depend on the other studies."""
    if options.temperature is None:
        return None
    digest = hashlib.sha256(f"{options.seed or 0} {sample_id}".encode()).digest()
    return Sampling(options.temperature, int.from_bytes(digest[:8], "little"))


def without_references(study: Study) -> Study:
    """Remove the reference reports, whose faults do not matter to generation."""
    return study.model_copy(update={"findings": None, "grounded_findings": None})


def check_images(example: Example) -> None:
    """Check that the images of an example exist.

    Raises:
        InputError: an image is missing.
    """
    if missing := next((image for image in example.images if not image.is_file()), None):
        raise InputError("no such file", code=ErrorCode.FILE_NOT_FOUND, file=missing)
