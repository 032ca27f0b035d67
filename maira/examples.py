"""From a study to what the model reads and should write: prompt, images and answer."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from data.images import CropMap
from data.study import Study
from maira.parse import render_report
from maira.prompts import Context, Preset, Task, build_prompt, build_target
from radfact.errors import InputError
from radfact.report import Sentence


@dataclass(frozen=True)
class Example:
    """One sample as text and image files; `target` is None where the answer is not known.

    Attributes:
        images: current frontal, current lateral, prior frontal, as far as present.
    """

    sample_id: str
    task: Task
    prompt: str
    images: tuple[Path, ...]
    target: str | None = None


def image_size(path: Path) -> tuple[int, int]:
    """(width, height) of an image file in pixels, read from its header.

    Raises:
        InputError: no such file, or no image.
    """
    from PIL import Image

    try:
        with Image.open(path) as image:
            return image.size
    except FileNotFoundError:
        raise InputError("no such file", file=path) from None
    except OSError:
        raise InputError("is no image that can be read; a PNG or JPEG is needed", file=path) from None


def study_context(study: Study, phrase: str | None = None) -> Context:
    """What a prompt says about a study."""
    return Context(
        has_lateral=study.lateral is not None,
        has_prior=study.prior_frontal is not None,
        prior_report=study.prior_report,
        indication=study.indication,
        technique=study.technique,
        comparison=study.comparison,
        phrase=phrase,
    )


def make_example(study: Study, task: Task, *, phrase: Sentence | None = None, preset: Preset = "release") -> Example:
    """The sample of a task; its target is None where the study has no answer for the task.

    Args:
        study: with image paths that can be opened.
        task: what to ask.
        phrase: the sentence to ground, for phrase grounding.
        preset: wording of the prompt.

    Raises:
        InputError: an image is missing, or the answer cannot be written in the model's format.
    """
    prompt = build_prompt(task, study_context(study, phrase.text if phrase else None), preset)
    if task == "phrase":
        return Example(study.sample_id, task, prompt, (study.frontal,), _grounded(study, [phrase] if phrase else None))
    images = tuple(p for p in (study.frontal, study.lateral, study.prior_frontal) if p is not None)
    if task == "findings":
        target = None if study.findings is None else build_target(study.findings)
    else:
        target = _grounded(study, study.grounded_findings)
    return Example(study.sample_id, task, prompt, images, target)


def _grounded(study: Study, sentences: list[Sentence] | None) -> str | None:
    if not sentences:
        return None
    crop = CropMap(*image_size(study.frontal))
    inside = []
    for sentence in sentences:
        boxes = [part for box in sentence.boxes or () if (part := crop.to_crop(box)[0]) is not None]
        inside.append(Sentence(text=sentence.text, boxes=tuple(boxes) or None))
    return build_target(render_report(inside))
