"""Phrase grounding and box completion of a whole set (MAIRA-2, appendices D.1 and D.4)."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from maira.data.images import CropMap, image_size
from maira.data.manifest import Failure
from maira.data.study import Study
from maira.generate.drafts import check_images, parse_response, to_original_coordinates
from maira.generate.engine import GenerationRequest, Response, report_request, start_engine
from maira.generate.options import EngineOptions, GenerationOptions
from maira.generate.response_file import GenerationItem, ResponseFile, Row, generate_responses, run_settings
from maira.grounding.boxes import GRID, BoxCompletion, Overlap, box_completions, box_overlap, summarize_overlaps
from maira.grounding.phrases import Phrase
from maira.model.prompts import NEW_TOKENS
from maira.model.task_examples import (
    BOX_CLIPPED,
    BOX_OUTSIDE,
    Example,
    UnusedInputWarning,
    drop_inputs,
    make_example,
    to_crop_coordinates,
)
from radfact.errors import ErrorCode, InputError
from radfact.io.jsonl import write_json
from radfact.records import Box, Sentence
from radfact.statistics.bootstrap import Summary

KEY = ("sample_id", "index")
REPLICATES, SEED = 500, 42
"""Bootstrap over phrases."""
_COUNTS = ("requested", "answered", "compared", "clipped", "outside", "masked")


@dataclass(frozen=True, slots=True)
class BoxResult:
    """Result of a run.

    Attributes:
        scores: `precision`, `recall` and `mean_iou` of the responses with a reference.
        requested: phrases, or sentences with a box in the crop; includes those of unreadable studies.
        answered: requests with a response.
        compared: responses that have scores.
        clipped: compared references that the crop cuts; only the part inside counts.
        outside: references without a pixel in the crop, which are not compared.
        masked: references with masks, which are ignored.
        failures: requests without a response, and the reasons.
    """

    scores: dict[str, Summary]
    requested: int
    answered: int
    compared: int
    clipped: int
    outside: int
    masked: int
    failures: list[Failure]


def ground_phrases(
    studies: Sequence[Study],
    phrases: Sequence[Phrase],
    checkpoint: Path,
    out: Path,
    options: GenerationOptions | None = None,
    engine: EngineOptions | None = None,
    *,
    failures: Sequence[Failure] = (),
    on_changed: Callable[[int], None] = lambda _: None,
    on_progress: Callable[[int, int], None] = lambda *_: None,
) -> BoxResult:
    """Locate every phrase; a run with the same settings resumes where it stopped (MAIRA-2, appendix D.4).

    Args:
        studies: studies whose frontal images are shown.
        phrases: phrases to locate.
        checkpoint: folder of the model.
        out: file to write (JSON Lines), one phrase per line in the given order; `OUT.scores.json` next to it compares
            the responses with the phrases' own boxes.
        options: options of generation; `task` is not used.
        engine: options of the engine.
        failures: samples that are already known to fail; listed with the others.
        on_changed: called with the number of phrases that have changed and are located again, if any.
        on_progress: called with (finished phrases, all phrases).

    Raises:
        InputError: there are no phrases, a phrase names an unknown sample, or the checkpoint or `out` cannot be used.
        RunError: no phrase has a response, or the engine broke.
    """
    options, engine = options or GenerationOptions(), engine or EngineOptions()
    if not phrases:
        raise InputError(
            "the manifest has no phrases; name a file of phrases", code=ErrorCode.EMPTY_INPUT, field="phrases"
        )
    by_id = {study.sample_id: study for study in studies}
    known = by_id.keys() | {failure.sample_id for failure in failures}
    if unknown := next((phrase.sample_id for phrase in phrases if phrase.sample_id not in known), None):
        raise InputError(f"unknown sample '{unknown}'", code=ErrorCode.UNKNOWN_NAME, field="sample_id")
    items, unreadable = [], list(failures)
    for phrase in phrases:
        if phrase.sample_id not in by_id:
            continue
        try:
            items.append(_phrase_item(by_id[phrase.sample_id], phrase, options, cut_loops=not engine.free))
        except InputError as error:
            unreadable.append(Failure(sample_id=phrase.sample_id, stage="read", reason=str(error)))
    masked = sum(phrase.sentence.masks is not None for phrase in phrases)
    file = ResponseFile(out, _run_settings(checkpoint, options, engine), items, unreadable, KEY)
    failed = _generate(file, checkpoint, engine, on_changed, on_progress)
    return _write_result(file, failed, requested=len(phrases), masked=masked)


def complete_boxes(
    studies: Sequence[Study],
    checkpoint: Path,
    out: Path,
    options: GenerationOptions | None = None,
    engine: EngineOptions | None = None,
    *,
    failures: Sequence[Failure] = (),
    on_changed: Callable[[int], None] = lambda _: None,
    on_progress: Callable[[int, int], None] = lambda *_: None,
) -> BoxResult:
    """Complete the boxes of every grounded sentence of the reference reports (MAIRA-2, appendix D.1).

    A run with the same settings resumes where it stopped. Studies without reference boxes are skipped.

    Args:
        studies: studies with `grounded_findings`.
        checkpoint: folder of the model.
        out: file to write (JSON Lines), one sentence per line in the order of the studies; `OUT.scores.json` next to
            it holds the scores.
        options: options of generation; `task` is not used.
        engine: options of the engine.
        failures: samples that are already known to fail; listed with the others.
        on_changed: called with the number of sentences that have changed and are completed again, if any.
        on_progress: called with (finished sentences, all sentences).

    Raises:
        InputError: no study has a reference with boxes, or the checkpoint or `out` cannot be used.
        RunError: no sentence has a response, or the engine broke.
    """
    options, engine = options or GenerationOptions(), engine or EngineOptions()
    grounded = [study for study in studies if has_reference_boxes(study)]
    if not grounded:
        raise InputError(
            "no study of the manifest has sentences with boxes in its grounded_findings", code=ErrorCode.EMPTY_INPUT
        )
    items, unreadable, requested, outside, masked = [], list(failures), 0, 0, 0
    for study in grounded:
        located = [sentence for sentence in study.grounded_findings or () if sentence.boxes]
        requested += len(located)
        masked += sum(sentence.masks is not None for sentence in located)
        try:
            with warnings.catch_warnings(action="ignore", category=UnusedInputWarning):  # counted below
                completions = box_completions(drop_inputs(study, options.drop), preset=options.preset)
            for completion in completions:
                check_images(completion.example)
        except InputError as error:
            unreadable.append(Failure(sample_id=study.sample_id, stage="read", reason=str(error)))
            continue
        items += [completion_item(study, completion, _limit(options)) for completion in completions]
        outside += len(located) - len(completions)
    file = ResponseFile(out, _run_settings(checkpoint, options, engine), items, unreadable, KEY)
    failed = _generate(file, checkpoint, engine, on_changed, on_progress)
    return _write_result(file, failed, requested=requested - outside, outside=outside, masked=masked)


def has_reference_boxes(study: Study) -> bool:
    """Return whether the reference report of a study has a sentence with boxes."""
    return any(sentence.boxes for sentence in study.grounded_findings or ())


def _phrase_item(study: Study, phrase: Phrase, options: GenerationOptions, *, cut_loops: bool) -> GenerationItem:
    # Without the reference boxes, which matter to the comparison only.
    text_only = Sentence(text=phrase.sentence.text)
    example = make_example(study, "phrase", phrase=text_only, preset=options.preset)
    check_images(example)
    (cropped,), losses = to_crop_coordinates([phrase.sentence], CropMap(*image_size(study.frontal)))
    row = partial(
        _phrase_row,
        example,
        phrase,
        reference=cropped.boxes or (),
        is_clipped=any(note in (BOX_CLIPPED, BOX_OUTSIDE) for _, note in losses),
        cut_loops=cut_loops,
    )
    key = (phrase.sample_id, phrase.index)
    return GenerationItem(key, phrase.sample_id, report_request(example, _limit(options)), row, phrase.sentence.boxes)


def _phrase_row(
    example: Example,
    phrase: Phrase,
    response: Response,
    model: str,
    *,
    reference: Sequence[Box],
    is_clipped: bool,
    cut_loops: bool,
) -> Row:
    parsed = parse_response(response, cut_loops=cut_loops)
    boxes = [box for sentence in parsed.sentences for box in sentence.boxes or ()]
    reference_boxes = phrase.sentence.boxes
    return {
        "sample_id": phrase.sample_id,
        "index": phrase.index,
        "phrase": phrase.sentence.text,
        "report": to_original_coordinates(parsed.sentences, example.images[0]),
        "reference": None if reference_boxes is None else [box.model_dump() for box in reference_boxes],
        "is_clipped": None if reference_boxes is None else is_clipped,
        **_overlap_columns(boxes, reference),
        "raw": response.text,
        "irregularities": [irregularity.model_dump() for irregularity in parsed.irregularities],
        "model": model,
        "seconds": round(response.seconds, 4),
    }


def completion_item(study: Study, completion: BoxCompletion, limit: int) -> GenerationItem:
    """Make the request for the boxes of one sentence, whose row compares them with the reference boxes.

    Args:
        study: study of the sentence.
        completion: sentence to complete.
        limit: limit of the response, in tokens.
    """
    key = (study.sample_id, completion.index)
    request = GenerationRequest(completion.example, "boxes", limit)
    row = partial(_completion_row, study, completion)
    return GenerationItem(key, study.sample_id, request, row, _reference_boxes(study, completion))


def _completion_row(study: Study, completion: BoxCompletion, response: Response, model: str) -> Row:
    boxes, kinds = completion.read(response.text, cut_off=response.cut_off)
    (placed,) = to_original_coordinates([Sentence(text=completion.text, boxes=boxes)], study.frontal)
    return {
        "sample_id": study.sample_id,
        "index": completion.index,
        "text": completion.text,
        "boxes": placed["boxes"],
        "reference": [box.model_dump() for box in _reference_boxes(study, completion)],
        "is_clipped": completion.is_clipped,
        **_overlap_columns(boxes, completion.reference),
        "raw": response.text,
        "irregularities": [{"index": completion.index, "kind": kind} for kind in kinds],
        "model": model,
        "seconds": round(response.seconds, 4),
    }


def _overlap_columns(boxes: Iterable[Box], reference: Iterable[Box]) -> Row:
    """Return precision, recall and IoU of boxes in the crop; None where the reference covers no pixel."""
    values = box_overlap(boxes, reference)._asdict()
    return {name: None if math.isnan(value) else value for name, value in values.items()}


def _reference_boxes(study: Study, completion: BoxCompletion) -> Sequence[Box]:
    """Return the boxes of the completed sentence on the original image."""
    return (study.grounded_findings or [])[completion.index].boxes or ()


def _run_settings(checkpoint: Path, options: GenerationOptions, engine: EngineOptions) -> dict[str, Any]:
    return run_settings(
        checkpoint,
        preset=options.preset,
        drop=sorted(options.drop) or None,
        max_new_tokens=_limit(options),
        free=engine.free,
    )


def _limit(options: GenerationOptions) -> int:
    return options.max_new_tokens or NEW_TOKENS["phrase"]


def _generate(
    file: ResponseFile,
    checkpoint: Path,
    engine: EngineOptions,
    on_changed: Callable[[int], None],
    on_progress: Callable[[int, int], None],
) -> list[Failure]:
    if file.changed:
        on_changed(file.changed)
    return generate_responses(file, lambda: start_engine(checkpoint, engine), on_progress)


def _write_result(
    file: ResponseFile, failures: list[Failure], *, requested: int, outside: int = 0, masked: int
) -> BoxResult:
    """Score a finished run and write `OUT.scores.json`."""
    # In the order of the items, which the bootstrap depends on.
    rows = [file.rows[item.key] for item in file.items if item.key in file.rows]
    with_reference = [row for row in rows if row["reference"] is not None]
    compared = [row for row in with_reference if row["iou"] is not None]
    overlaps = [Overlap(*(row[name] for name in Overlap._fields)) for row in compared]
    result = BoxResult(
        summarize_overlaps(overlaps, replicates=REPLICATES, seed=SEED),
        requested=requested,
        answered=len(rows),
        compared=len(compared),
        clipped=sum(row["is_clipped"] for row in compared),
        outside=outside + len(with_reference) - len(compared),
        masked=masked,
        failures=failures,
    )
    counts = {name: getattr(result, name) for name in _COUNTS}
    content = {
        "scores": {name: asdict(score) for name, score in result.scores.items()},
        "counts": counts | {"failures": len(failures)},
        "grid": GRID,
        "bootstrap": {"replicates": REPLICATES, "seed": SEED},
    }
    if file.group.is_main:
        write_json(file.out.with_name(f"{file.out.stem}.scores.json"), content)
    return result
