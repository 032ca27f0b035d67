"""From a study to what the model reads and should write: prompt, images and answer."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from data.images import CropMap, image_size
from data.study import Study
from maira.model.parser import render_report
from maira.model.prompts import Context, Preset, Task, build_prompt, build_target
from maira.model.tokens import IMAGE, NO_TEXT
from radfact.errors import InputError
from radfact.records import Sentence

PRIOR_REPORT_UNUSED = "a prior report without a prior image cannot be used: the prompt has no place for it"
BOX_CLIPPED = "a box was clipped to the centred square that the model sees"
BOX_OUTSIDE = "a box outside of the centred square that the model sees was left out of the answer"
MASK_UNUSED = "a mask cannot be written in the model's answer, which has boxes only"

Input = Literal["prior", "lateral", "technique", "comparison", "indication"]
INPUTS: tuple[Input, ...] = get_args(Input)

_FIELDS: dict[Input, tuple[str, ...]] = {
    "prior": ("prior_frontal", "prior_report"),
    "lateral": ("lateral",),
    "technique": ("technique",),
    "comparison": ("comparison",),
    "indication": ("indication",),
}
"""Fields of a Study, the one that says whether the input is there first: without its image a prior cannot be shown."""


class UnusedInputWarning(UserWarning):
    """Something of a study cannot be used."""


@dataclass(frozen=True)
class Example:
    """One sample as text and image files; `target` is None where the answer is not known.

    Attributes:
        images: current frontal, current lateral, prior frontal, as far as present.
        notes: what of the study could not be used, for the caller to count; each has been a warning too.
    """

    sample_id: str
    task: Task
    prompt: str
    images: tuple[Path, ...]
    target: str | None = None
    notes: tuple[str, ...] = ()


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


def has_unused_prior_report(study: Study) -> bool:
    """Whether a study has a prior report that no prompt can show, since its image is missing."""
    return study.prior_report is not None and study.prior_frontal is None


def make_example(
    study: Study,
    task: Task,
    *,
    phrase: Sentence | None = None,
    preset: Preset = "release",
    frontal_size: tuple[int, int] | None = None,
) -> Example:
    """The sample of a task; its target is None where the study has no answer for the task.

    What of the study cannot be used is a warning (`UnusedInputWarning`; Python shows each once) and one of the example's notes,
    once for each prior report, box or mask.

    Args:
        study: with image paths that can be opened.
        task: what to ask.
        phrase: the sentence to ground, for phrase grounding.
        preset: wording of the prompt.
        frontal_size: (width, height) of the frontal in pixels; None reads it from the file.

    Raises:
        InputError: an image is missing, a text holds the image placeholder, or the answer cannot be written in the
            model's format.
    """
    prompt = build_prompt(task, study_context(study, phrase.text if phrase else None), preset)
    notes: list[str] = []
    if task == "phrase":
        images: tuple[Path, ...] = (study.frontal,)
        target = _grounded(study, [phrase] if phrase else None, frontal_size, notes)
    else:
        images = tuple(p for p in (study.frontal, study.lateral, study.prior_frontal) if p is not None)
        if has_unused_prior_report(study):
            notes.append(PRIOR_REPORT_UNUSED)
        sentences = study.grounded_findings
        target = _narrative(study) if task == "findings" else _grounded(study, sentences, frontal_size, notes)
    if prompt.count(IMAGE) != len(images):
        raise InputError(f"a section of sample '{study.sample_id}' holds {IMAGE}, which stands for an image")
    for note in notes:
        warnings.warn(note, UnusedInputWarning, stacklevel=2)
    return Example(study.sample_id, task, prompt, images, target, tuple(notes))


def to_crop_coordinates(sentences: Iterable[Sentence], crop: CropMap) -> tuple[list[Sentence], list[tuple[int, str]]]:
    """Sentences as the model can write them: boxes in the coordinates of its crop, no masks.

    A box that lies partly outside is clipped, one that lies outside altogether is left out; the sentence stays.

    Args:
        sentences: with boxes on the original image.
        crop: of that image.

    Returns:
        The sentences, and what each lost: (index, `BOX_CLIPPED`, `BOX_OUTSIDE` or `MASK_UNUSED`), once a box or mask.
    """
    inside: list[Sentence] = []
    lost: list[tuple[int, str]] = []
    for index, sentence in enumerate(sentences):
        parts = [crop.to_crop(box) for box in sentence.boxes or ()]
        lost += [(index, BOX_CLIPPED if part else BOX_OUTSIDE) for part, was_cut in parts if was_cut]
        lost += [(index, MASK_UNUSED)] * len(sentence.masks or ())
        boxes = tuple(part for part, _ in parts if part is not None)
        inside.append(Sentence(text=sentence.text, boxes=boxes or None))
    return inside, lost


def parse_inputs(text: str) -> tuple[Input, ...]:
    """Inputs as a user writes them, "prior+comparison", in the order of `INPUTS` and each once.

    Raises:
        InputError: one has no such name.
    """
    given = [name.strip() for name in text.split("+")]
    if unknown := [name for name in given if name not in INPUTS]:
        raise InputError(f"no input is called '{unknown[0]}'; known are {', '.join(INPUTS)}, joined by +")
    return tuple(name for name in INPUTS if name in given)


def drop_inputs(study: Study, names: Sequence[Input]) -> Study:
    """The study as if it did not have these inputs; `prior` is the prior image and the prior report."""
    return study.model_copy(update=dict.fromkeys(field for name in names for field in _FIELDS[name]))


def has_inputs(study: Study, names: Sequence[Input]) -> bool:
    """Whether a study has all of these inputs; a prior is there if its image is."""
    return all(getattr(study, _FIELDS[name][0]) is not None for name in names)


def _narrative(study: Study) -> str | None:
    if study.findings is None:
        return None
    if token := next((token for token in NO_TEXT if token in study.findings), None):
        raise InputError(f"the findings of sample '{study.sample_id}' hold {token}, which is no text for the model")
    return build_target(study.findings)


def _grounded(
    study: Study, sentences: list[Sentence] | None, size: tuple[int, int] | None, notes: list[str]
) -> str | None:
    """The answer with boxes brought into the crop; what is lost on the way is added to `notes`."""
    if not sentences:
        return None
    inside, lost = to_crop_coordinates(sentences, CropMap(*(size or image_size(study.frontal))))
    notes += [note for _, note in lost]
    try:
        return build_target(render_report(inside))
    except InputError as error:
        raise InputError(f"sample '{study.sample_id}': {error}") from None
