"""Models asked for boxes, a whole set at a time: phrase grounding and box completion (paper 004, D.1 and D.4)."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from data.images import CropMap, image_size
from data.manifest import Failure
from data.study import Study
from maira.generate.drafts import parse_response, readable, to_original_coordinates
from maira.generate.engine import GenerationRequest, Response, report_request, start_engine
from maira.generate.options import EngineOptions, GenerationOptions
from maira.generate.response_file import GenerationItem, ResponseFile, Row, generate_responses, run_settings
from maira.grounding.boxes import GRID, BoxCompletion, Overlap, box_completions, overlap, summarize_overlaps
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
from radfact.errors import InputError
from radfact.io.jsonl import write_json
from radfact.records import Box, Sentence
from radfact.statistics.bootstrap import Summary

KEY = ("sample_id", "index")
REPLICATES, SEED = 500, 42
"""Of the bootstrap over phrases."""
_COUNTS = ("asked", "answered", "compared", "clipped", "outside", "masked")


@dataclass(frozen=True, slots=True)
class BoxResult:
    """What came of asking a set.

    Attributes:
        scores: `precision`, `recall` and `mean_iou` of the answers to which the reference is known.
        asked, answered: phrases, or sentences of which the crop shows a box; those of studies that cannot be read are
            asked too.
        compared: answers that have figures of their own.
        clipped: references of which the crop cuts a part, and which are compared as far as it shows them.
        outside: references that cover no pixel of the crop, so that there is nothing to compare with.
        masked: references with masks too, which are not compared.
        failures: everything without an answer, and why.
    """

    scores: dict[str, Summary]
    asked: int
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
    on_changed: Callable[[int], None] | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> BoxResult:
    """Locate every phrase, going on where an earlier run of the same settings stopped (paper 004, D.4).

    Beside `out`, `OUT.scores.json` holds what is compared with the phrases' own boxes.

    Args:
        studies: whose frontal images are shown.
        phrases: what to locate.
        checkpoint: folder with the model.
        out: file (JSON Lines) to write, one phrase a line in the order given.
        options: wording of the prompts, dropped inputs and length of the responses.
        engine: what runs the model.
        failures: what is known to be left out; listed with the rest.
        on_changed: called with how many phrases have changed since they were answered, if any, and are asked again.
        on_progress: called with (phrases done, phrases in all).

    Raises:
        InputError: there are no phrases, or one is about a sample that is neither a study nor a failure, or the
            checkpoint or `out` cannot be used.
        RunError: not one phrase has an answer, or the engine broke.
    """
    options, engine = options or GenerationOptions(), engine or EngineOptions()
    if not phrases:
        raise InputError("no study of the manifest has phrases; give them in a file", field="phrases")
    by_id = {study.sample_id: study for study in studies}
    known = by_id.keys() | {failure.sample_id for failure in failures}
    if unknown := next((phrase.sample_id for phrase in phrases if phrase.sample_id not in known), None):
        raise InputError(f"there is no study '{unknown}'", field="sample_id")
    decides = _settings(checkpoint, options, engine)
    items, unreadable = [], list(failures)
    for phrase in phrases:
        if phrase.sample_id not in by_id:
            continue
        try:
            items.append(_phrase_item(by_id[phrase.sample_id], phrase, options, cut_loops=not engine.free))
        except InputError as error:
            unreadable.append(Failure(sample_id=phrase.sample_id, stage="read", reason=str(error)))
    file = ResponseFile(out, decides, items, unreadable, KEY)
    failed = _answer(file, checkpoint, engine, on_changed, on_progress)
    masked = sum(phrase.sentence.masks is not None for phrase in phrases)
    return _finish(file, failed, asked=len(phrases), masked=masked)


def complete_boxes(
    studies: Sequence[Study],
    checkpoint: Path,
    out: Path,
    options: GenerationOptions | None = None,
    engine: EngineOptions | None = None,
    *,
    failures: Sequence[Failure] = (),
    on_changed: Callable[[int], None] | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> BoxResult:
    """Complete the boxes of every grounded sentence of the reference reports (paper 004, D.1).

    Goes on where an earlier run of the same settings stopped. Beside `out`, `OUT.scores.json` holds
    the figures. Studies whose reference report has no boxes are not asked.

    Args:
        studies: with `grounded_findings`.
        checkpoint: folder with the model.
        out: file (JSON Lines) to write, one sentence a line in the order of the studies.
        options: wording of the prompts, dropped inputs and length of the responses.
        engine: what runs the model.
        failures: what is known to be left out; listed with the rest.
        on_changed: called with how many sentences have changed since they were answered, if any, and are asked again.
        on_progress: called with (sentences done, sentences in all).

    Raises:
        InputError: no study has a reference with boxes, or the checkpoint or `out` cannot be used.
        RunError: not one sentence has an answer, or the engine broke.
    """
    options, engine = options or GenerationOptions(), engine or EngineOptions()
    grounded = [study for study in studies if has_reference_boxes(study)]
    if not grounded:
        raise InputError("no study of the manifest has sentences with boxes in its grounded_findings")
    decides = _settings(checkpoint, options, engine)
    items, unreadable, asked, outside, masked = [], list(failures), 0, 0, 0
    for study in grounded:
        located = [sentence for sentence in study.grounded_findings or () if sentence.boxes]
        asked += len(located)
        masked += sum(sentence.masks is not None for sentence in located)
        try:
            with warnings.catch_warnings(action="ignore", category=UnusedInputWarning):
                # What the crop costs is counted here.
                shown = drop_inputs(study, options.drop)
                completions = [c for c in box_completions(shown, preset=options.preset) if readable(c.example)]
        except InputError as error:
            unreadable.append(Failure(sample_id=study.sample_id, stage="read", reason=str(error)))
            continue
        items += [completion_item(study, completion, _limit(options)) for completion in completions]
        outside += len(located) - len(completions)
    file = ResponseFile(out, decides, items, unreadable, KEY)
    failed = _answer(file, checkpoint, engine, on_changed, on_progress)
    return _finish(file, failed, asked=asked - outside, outside=outside, masked=masked)


def has_reference_boxes(study: Study) -> bool:
    """Whether a study's reference report has a sentence with boxes."""
    return any(sentence.boxes for sentence in study.grounded_findings or ())


def _phrase_item(study: Study, phrase: Phrase, options: GenerationOptions, *, cut_loops: bool) -> GenerationItem:
    # Without its boxes: where they fall in the crop matters to the comparison only.
    asked = Sentence(text=phrase.sentence.text)
    example = readable(make_example(study, "phrase", phrase=asked, preset=options.preset))
    (inside,), lost = to_crop_coordinates([phrase.sentence], CropMap(*image_size(study.frontal)))
    row = partial(
        _phrase_row,
        example,
        phrase,
        reference=inside.boxes or (),
        is_clipped=any(note in (BOX_CLIPPED, BOX_OUTSIDE) for _, note in lost),
        cut_loops=cut_loops,
    )
    key = (phrase.sample_id, phrase.index)
    return GenerationItem(key, phrase.sample_id, report_request(example, _limit(options)), row, phrase.sentence.boxes)


def _phrase_row(
    example: Example,
    phrase: Phrase,
    answer: Response,
    model: str,
    *,
    reference: Sequence[Box],
    is_clipped: bool,
    cut_loops: bool,
) -> Row:
    parsed = parse_response(answer, cut_loops=cut_loops)
    said = [box for sentence in parsed.sentences for box in sentence.boxes or ()]
    true = phrase.sentence.boxes
    return {
        "sample_id": phrase.sample_id,
        "index": phrase.index,
        "phrase": phrase.sentence.text,
        "report": to_original_coordinates(parsed.sentences, example.images[0]),
        "reference": None if true is None else [box.model_dump() for box in true],
        "is_clipped": None if true is None else is_clipped,
        **_measures(said, reference),
        "raw": answer.text,
        "irregularities": [irregularity.model_dump() for irregularity in parsed.irregularities],
        "model": model,
        "seconds": round(answer.seconds, 4),
    }


def completion_item(study: Study, completion: BoxCompletion, limit: int) -> GenerationItem:
    """The question for the boxes of one sentence, whose row compares them with the reference's.

    Args:
        study: of the sentence.
        completion: what is asked.
        limit: most tokens of the answer.
    """
    key = (study.sample_id, completion.index)
    request = GenerationRequest(completion.example, "boxes", limit)
    row = partial(_completion_row, study, completion)
    return GenerationItem(key, study.sample_id, request, row, _reference(study, completion))


def _completion_row(study: Study, completion: BoxCompletion, answer: Response, model: str) -> Row:
    said, kinds = completion.read(answer.text, cut_off=answer.cut_off)
    (placed,) = to_original_coordinates([Sentence(text=completion.text, boxes=said)], study.frontal)
    return {
        "sample_id": study.sample_id,
        "index": completion.index,
        "text": completion.text,
        "boxes": placed["boxes"],
        "reference": [box.model_dump() for box in _reference(study, completion)],
        "is_clipped": completion.is_clipped,
        **_measures(said, completion.reference),
        "raw": answer.text,
        "irregularities": [{"index": completion.index, "kind": kind} for kind in kinds],
        "model": model,
        "seconds": round(answer.seconds, 4),
    }


def _measures(said: Iterable[Box], reference: Iterable[Box]) -> Row:
    """The overlap of boxes of the crop by name, None where the reference covers nothing."""
    values = overlap(said, reference)._asdict()
    return {name: None if math.isnan(value) else value for name, value in values.items()}


def _reference(study: Study, completion: BoxCompletion) -> Sequence[Box]:
    """The boxes of the completed sentence, on the original image."""
    return (study.grounded_findings or [])[completion.index].boxes or ()


def _settings(checkpoint: Path, options: GenerationOptions, engine: EngineOptions) -> dict[str, Any]:
    """What decides all answers of a run."""
    return run_settings(
        checkpoint,
        preset=options.preset,
        drop=sorted(options.drop) or None,
        max_new_tokens=_limit(options),
        free=engine.free,
    )


def _limit(options: GenerationOptions) -> int:
    return options.max_new_tokens or NEW_TOKENS["phrase"]


def _answer(
    file: ResponseFile,
    checkpoint: Path,
    engine: EngineOptions,
    on_changed: Callable[[int], None] | None,
    on_progress: Callable[[int, int], None] | None,
) -> list[Failure]:
    if file.changed and on_changed:
        on_changed(file.changed)
    return generate_responses(file, lambda: start_engine(checkpoint, engine), on_progress)


def _finish(file: ResponseFile, failures: list[Failure], *, asked: int, outside: int = 0, masked: int) -> BoxResult:
    """The figures of a finished run, written beside its answers."""
    # In their order, on which the bootstrap's draws depend.
    rows = [file.rows[item.key] for item in file.items if item.key in file.rows]
    known = [row for row in rows if row["reference"] is not None]
    compared = [row for row in known if row["iou"] is not None]
    overlaps = [Overlap(*(row[name] for name in Overlap._fields)) for row in compared]
    run = BoxResult(
        summarize_overlaps(overlaps, replicates=REPLICATES, seed=SEED),
        asked=asked,
        answered=len(rows),
        compared=len(compared),
        clipped=sum(row["is_clipped"] for row in compared),
        outside=outside + len(known) - len(compared),
        masked=masked,
        failures=failures,
    )
    counts = {name: getattr(run, name) for name in _COUNTS}
    written = {
        "scores": {name: asdict(score) for name, score in run.scores.items()},
        "counts": counts | {"failures": len(failures)},
        "grid": GRID,
        "bootstrap": {"replicates": REPLICATES, "seed": SEED},
    }
    if file.group.is_main:
        write_json(file.out.with_name(f"{file.out.stem}.scores.json"), written)
    return run
