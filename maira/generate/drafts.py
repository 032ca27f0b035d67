"""Drafts of a whole test set: a report for every study."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from data.images import CropMap, image_size
from data.manifest import Failure
from data.study import Study
from maira.generate.engine import Response, report_request, start_engine
from maira.generate.options import EngineOptions, GenerationOptions
from maira.generate.response_file import GenerationItem, ResponseFile, generate_responses, run_settings
from maira.model.parser import ParsedReport, parse_report
from maira.model.prompts import NEW_TOKENS
from maira.model.repetition import cut_repetitions
from maira.model.task_examples import Example, drop_inputs, make_example
from radfact.errors import InputError
from radfact.records import Sentence


def parse_response(answer: Response, *, cut_loops: bool) -> ParsedReport:
    """What a model's answer says.

    Args:
        answer: the model's.
        cut_loops: whether a sentence's third and further copies are cut (`maira.model.repetition`).
    """
    parsed = parse_report(answer.text, cut_off=answer.cut_off)
    return cut_repetitions(parsed) if cut_loops else parsed


def to_original_coordinates(sentences: Sequence[Sentence], frontal: Path) -> list[dict[str, Any]]:
    """Sentences as records, their boxes brought from the model's crop to the original image."""
    crop = CropMap(*image_size(frontal))
    placed = [
        Sentence(text=s.text, boxes=tuple(crop.to_original(box) for box in s.boxes) if s.boxes else None)
        for s in sentences
    ]
    return [sentence.model_dump(include={"text", "boxes"}) for sentence in placed]


def make_draft(example: Example, answer: Response, model: str, *, cut_loops: bool = True) -> dict[str, Any]:
    """The record of one draft.

    Args:
        example: what the model was asked.
        answer: what it wrote.
        model: its name.
        cut_loops: whether a sentence's third and further copies are cut (`maira.model.repetition`).
    """
    parsed = parse_response(answer, cut_loops=cut_loops)
    is_narrative = example.task == "findings"
    return {
        "sample_id": example.sample_id,
        "report": parsed.text if is_narrative else to_original_coordinates(parsed.sentences, example.images[0]),
        "raw": answer.text,
        "irregularities": [irregularity.model_dump() for irregularity in parsed.irregularities],
        "model": model,
        "seconds": round(answer.seconds, 4),
    }


def generate_drafts(
    studies: Sequence[Study],
    checkpoint: Path,
    out: Path,
    options: GenerationOptions | None = None,
    engine: EngineOptions | None = None,
    *,
    failures: Sequence[Failure] = (),
    on_changed: Callable[[int], None] | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> tuple[int, list[Failure]]:
    """Draft a report for every study, going on where an earlier run of the same settings stopped.

    Args:
        studies: the test set.
        checkpoint: folder with the model.
        out: drafts file (JSON Lines) to write, in the order of `studies`.
        options: what the model writes, and from which inputs.
        engine: what runs the model.
        failures: what is known to be left out; listed with the rest.
        on_changed: called with how many studies have changed since they were drafted, if any, and are drafted again.
        on_progress: called with (studies done, studies in all).

    Returns:
        How many drafts there are, and what was left out and why.

    Raises:
        InputError: the checkpoint or `out` cannot be used.
        RunError: not one study could be drafted, or the engine broke.
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
    )
    items, unreadable = [], list(failures)
    for study in studies:
        try:
            shown = without_references(drop_inputs(study, options.drop))
            example = readable(make_example(shown, options.task, preset=options.preset))
        except InputError as error:
            unreadable.append(Failure(sample_id=study.sample_id, stage="read", reason=str(error)))
            continue
        row = partial(make_draft, example, cut_loops=not engine.free)
        items.append(GenerationItem((study.sample_id,), study.sample_id, report_request(example, limit), row))
    file = ResponseFile(out, settings, items, unreadable)
    if file.changed and on_changed:
        on_changed(file.changed)
    failed = generate_responses(file, lambda: start_engine(checkpoint, engine), on_progress)
    return sum(item.key in file.rows for item in items), failed


def without_references(study: Study) -> Study:
    """What a model that drafts is asked about: the reference reports are nothing to it, whatever is wrong with them."""
    return study.model_copy(update={"findings": None, "grounded_findings": None})


def readable(example: Example) -> Example:
    """The example itself, if all of its images are there.

    Raises:
        InputError: one is missing.
    """
    if missing := next((image for image in example.images if not image.is_file()), None):
        raise InputError("no such file", file=missing)
    return example
