"""Phrase grounding and box completion of a whole set (MAIRA-2, appendices D.1 and D.4)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

from maira.data.manifest import Failure
from maira.data.study import Study
from maira.generate import drafts
from maira.generate.drafts import GenerationItem, Row, generate_rows
from maira.generate.engine import EngineOptions, GenerationOptions, GenerationRequest, Response, report_request
from maira.grounding.boxes import GRID, Overlap, box_overlap, read_completion, summarize_overlaps
from maira.grounding.phrases import Phrase
from maira.model.other_models import is_other_model
from maira.model.parser import Irregularity, render_report
from maira.model.prompts import NEW_TOKENS, Preset, build_target
from maira.model.task_examples import BOX_CLIPPED, BOX_OUTSIDE, drop_inputs, make_example, to_crop_coordinates
from maira.model.tokens import BOX
from maira.runtime.processes import is_main
from radfact.errors import ErrorCode, InputError
from radfact.io.jsonl import write_json
from radfact.records import Box, Sentence
from radfact.statistics.bootstrap import Summary

_BOOTSTRAP = {"replicates": 500, "seed": 42}
"""Bootstrap over phrases."""


@dataclass(frozen=True, slots=True)
class BoxResult:
    """Scores (`precision`, `recall`, `mean_iou`) and counts of a run."""

    scores: dict[str, Summary]
    requested: int  # phrases, or sentences with a box in the crop; includes those of unreadable studies
    answered: int
    compared: int  # responses that have scores
    clipped: int  # compared references that the crop cuts; only the part inside counts
    outside: int  # references without a pixel in the crop, which are not compared
    masked: int  # references with masks, which are ignored
    failures: list[Failure]


def ground_phrases(
    studies: Sequence[Study],
    phrases: Sequence[Phrase],
    checkpoint: Path | None,
    out: Path,
    options: GenerationOptions = GenerationOptions(),
    engine: EngineOptions = EngineOptions(),
    *,
    failures: Sequence[Failure] = (),
    **callbacks: Callable[..., None],
) -> BoxResult:
    """Locate every phrase on its study's frontal image (MAIRA-2, appendix D.4), and write rows and scores to `out`."""
    if not phrases:
        message = "the manifest has no phrases; name a file of phrases"
        raise InputError(message, code=ErrorCode.EMPTY_INPUT, field="phrases")
    by_id = {study.sample_id: study for study in studies}
    known = by_id.keys() | {failure.sample_id for failure in failures}
    if unknown := next((phrase.sample_id for phrase in phrases if phrase.sample_id not in known), None):
        raise InputError(f"unknown sample '{unknown}'", code=ErrorCode.UNKNOWN_NAME, field="sample_id")

    def make(phrase: Phrase) -> list[GenerationItem]:
        study = by_id[phrase.sample_id]
        return [_phrase_item(study, phrase, options, cut_loops=not engine.free, whole_images=is_other)]

    is_other = is_other_model(checkpoint)
    readable = [phrase for phrase in phrases if phrase.sample_id in by_id]
    _, rows, failed = generate_rows(readable, make, checkpoint, out, engine, _settings(options), failures, **callbacks)
    masked = sum(phrase.sentence.masks is not None for phrase in phrases)
    return _write_result(out, rows, failed, requested=len(phrases), outside=0, masked=masked)


def complete_boxes(
    studies: Sequence[Study],
    checkpoint: Path | None,
    out: Path,
    options: GenerationOptions = GenerationOptions(),
    engine: EngineOptions = EngineOptions(),
    *,
    failures: Sequence[Failure] = (),
    **callbacks: Callable[..., None],
) -> BoxResult:
    """Complete the boxes of every grounded sentence of the reference reports (MAIRA-2, appendix D.1)."""
    if is_other_model(checkpoint):
        message = "box completion continues the beginning of a response, which only checkpoints of MAIRA-2 can do here"
        raise InputError(message, code=ErrorCode.CONFLICTING_OPTIONS)
    grounded = [study for study in studies if has_reference_boxes(study)]
    if not grounded:
        message = "no study of the manifest has sentences with boxes in its grounded_findings"
        raise InputError(message, code=ErrorCode.EMPTY_INPUT)

    def make(study: Study) -> list[GenerationItem]:
        return completion_items(drop_inputs(study, options.drop), _limit(options), preset=options.preset)

    settings = _settings(options)
    items, rows, failed = generate_rows(grounded, make, checkpoint, out, engine, settings, failures, **callbacks)
    located = {study.sample_id: [s for s in study.grounded_findings or () if s.boxes] for study in grounded}
    unread = {failure.sample_id for failure in failed if failure.stage == "read"}
    requested = sum(map(len, located.values()))
    outside = sum(len(sentences) for name, sentences in located.items() if name not in unread) - len(items)
    masked = sum(sentence.masks is not None for sentences in located.values() for sentence in sentences)
    return _write_result(out, rows, failed, requested=requested - outside, outside=outside, masked=masked)


def has_reference_boxes(study: Study) -> bool:
    return any(sentence.boxes for sentence in study.grounded_findings or ())


def _settings(options: GenerationOptions) -> Row:
    return {"preset": options.preset, "drop": sorted(options.drop) or None, "max_new_tokens": _limit(options)}


def _limit(options: GenerationOptions) -> int:
    return options.max_new_tokens or NEW_TOKENS["phrase"]


def _phrase_item(
    study: Study, phrase: Phrase, options: GenerationOptions, *, cut_loops: bool, whole_images: bool
) -> GenerationItem:
    # Without the reference boxes, which matter to the comparison only.
    text_only = Sentence(text=phrase.sentence.text)
    example = make_example(study, "phrase", phrase=text_only, preset=options.preset, whole_images=whole_images)
    (cropped,), losses = to_crop_coordinates([phrase.sentence], crop := example.crop)
    is_clipped = any(note in (BOX_CLIPPED, BOX_OUTSIDE) for _, note in losses)

    def row(response: Response, model: str) -> Row:
        parsed = drafts.parse_response(response, example, cut_loops=cut_loops)
        boxes = [box for sentence in parsed.sentences for box in sentence.boxes or ()]
        return {
            "sample_id": phrase.sample_id,
            "index": phrase.index,
            "phrase": phrase.sentence.text,
            "report": drafts.to_original_coordinates(parsed.sentences, crop),
            **_comparison(phrase.sentence.boxes, cropped.boxes or (), is_clipped, boxes),
            **drafts.response_columns(response, parsed.irregularities, model),
        }

    return GenerationItem(report_request(example, _limit(options)), row, phrase.index, phrase.sentence.boxes)


def completion_items(study: Study, limit: int, *, preset: Preset = "release") -> list[GenerationItem]:
    """Make the requests for the boxes of every grounded sentence of a reference report (MAIRA-2, appendix D.1)."""
    # The prompt ends with the sentence's first <box>. A sentence with boxes outside the crop only has no box to write.
    example = make_example(study, "grounded", preset=preset)
    sentences = study.grounded_findings or []
    cropped, losses = to_crop_coordinates(sentences, crop := example.crop)
    clipped = {index for index, note in losses if note in (BOX_CLIPPED, BOX_OUTSIDE)}

    def row(index: int, response: Response, model: str) -> Row:
        text, original = sentences[index].text, sentences[index].boxes or ()
        boxes, kinds = read_completion(text, response.text, cut_off=response.cut_off)
        (placed,) = drafts.to_original_coordinates([Sentence(text=text, boxes=boxes)], crop)
        return {
            "sample_id": study.sample_id,
            "index": index,
            **placed,
            **_comparison(original, cropped[index].boxes or (), index in clipped, boxes),
            **drafts.response_columns(response, [Irregularity(index=index, kind=kind) for kind in kinds], model),
        }

    items, preceding = [], ""
    for index, sentence in enumerate(cropped):
        rendered = render_report([sentence])
        if sentence.boxes:
            start, box, rest = rendered.partition(BOX)
            completed = replace(example, answer_start=build_target(preceding + start + box), target=rest)
            request = GenerationRequest(completed, "boxes", limit)
            items.append(GenerationItem(request, partial(row, index), index, sentences[index].boxes))
        preceding += rendered
    return items


def _comparison(original: Iterable[Box] | None, cropped: Iterable[Box], is_clipped: bool, boxes: Iterable[Box]) -> Row:
    """Return the columns that compare boxes with the reference; None where the reference covers no pixel."""
    overlap = box_overlap(boxes, cropped)._asdict()
    return {
        "reference": None if original is None else [box.model_dump() for box in original],
        "is_clipped": None if original is None else is_clipped,
        **{name: None if math.isnan(value) else value for name, value in overlap.items()},
    }


def _write_result(
    out: Path, rows: Sequence[Row], failures: list[Failure], *, requested: int, outside: int, masked: int
) -> BoxResult:
    """Score the rows of a finished run and write `OUT.scores.json`."""
    with_reference = [row for row in rows if row["reference"] is not None]
    compared = [row for row in with_reference if row["iou"] is not None]
    scores = summarize_overlaps([Overlap(*(row[name] for name in Overlap._fields)) for row in compared], **_BOOTSTRAP)
    counts = {
        "requested": requested,
        "answered": len(rows),
        "compared": len(compared),
        "clipped": sum(row["is_clipped"] for row in compared),
        "outside": outside + len(with_reference) - len(compared),
        "masked": masked,
    }
    if is_main():
        values = {name: asdict(score) for name, score in scores.items()}
        about = {"counts": counts | {"failures": len(failures)}, "grid": GRID, "bootstrap": _BOOTSTRAP}
        write_json(out.with_name(f"{out.stem}.scores.json"), {"scores": values, **about})
    return BoxResult(scores, **counts, failures=failures)
