"""Samples of a task: prompt, images and target of a study."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from maira.data.images import CropMap, image_size
from maira.data.study import Study
from maira.model.parser import render_report
from maira.model.prompts import TEXTS, Messages, Preset, Task, build_messages, build_target
from maira.model.tokens import IMAGE, NO_TEXT
from radfact.errors import ErrorCode, InputError
from radfact.records import Sentence

PRIOR_REPORT_UNUSED = "a prior report without a prior image is not used: the prompt has no place for it"
BOX_CLIPPED = "a box was clipped to the centered square that the model sees"
BOX_OUTSIDE = "a box outside the centered square that the model sees was removed from the target"
MASK_UNUSED = "a mask was removed from the target, which has boxes only"

Input = Literal["prior", "lateral", "technique", "comparison", "indication"]
INPUTS: tuple[Input, ...] = get_args(Input)

_PRIOR = ("prior_frontal", "prior_report")
_FIELDS: dict[Input, tuple[str, ...]] = {name: (name,) for name in INPUTS} | {"prior": _PRIOR}
"""Fields of a study, the one that tells whether the input exists first: a prior cannot be shown without its image."""


@dataclass(frozen=True)
class Example:
    """A sample of a task: messages, images (current frontal, current lateral, prior frontal) and the target's text."""

    sample_id: str
    task: Task
    messages: Messages
    images: tuple[Path, ...]
    target: str | None = None
    notes: tuple[str, ...] = ()
    answer_start: str = ""
    whole_images: bool = False  # the model sees no centered squares: another one than MAIRA-2

    @property
    def crop(self) -> CropMap:
        """The part of the current frontal that the model sees."""
        return CropMap(1, 1) if self.whole_images else CropMap(*image_size(self.images[0]))

    @property
    def text(self) -> str:
        """The user's message, without the words of the chat template, and the start of the response."""
        return "".join(item.get("text", IMAGE) for item in self.messages[-1]["content"]) + self.answer_start


def has_unused_prior_report(study: Study) -> bool:
    """Return whether a study has a prior report without the prior image that its prompt needs."""
    return study.prior_report is not None and study.prior_frontal is None


def make_example(
    study: Study,
    task: Task,
    *,
    phrase: Sentence | None = None,
    preset: Preset = "release",
    frontal_size: tuple[int, int] | None = None,
    whole_images: bool = False,
) -> Example:
    """Make the sample of a task; models that see whole images are told the format of boxes."""
    sections = ("prior_report", "indication", "technique", "comparison")
    inputs: dict[str, Any] = {name: getattr(study, name) for name in sections}
    inputs |= {"has_lateral": study.lateral is not None, "has_prior": study.prior_frontal is not None}
    messages = build_messages(task, preset, **inputs, phrase=phrase.text if phrase else None)
    notes: list[str] = []
    if task == "phrase":
        images: tuple[Path, ...] = (study.frontal,)
        target = _grounded_target(study, [phrase] if phrase else None, frontal_size, notes)
    else:
        images = tuple(p for p in (study.frontal, study.lateral, study.prior_frontal) if p is not None)
        if has_unused_prior_report(study):
            notes.append(PRIOR_REPORT_UNUSED)
        if task == "grounded":
            target = _grounded_target(study, study.grounded_findings, frontal_size, notes)
        elif token := next((token for token in NO_TEXT if token in (study.findings or "")), None):
            raise InputError(f"sample '{study.sample_id}': the findings contain the control token {token}")
        else:
            target = None if study.findings is None else build_target(study.findings)
    if sum(item["type"] == "image" for item in messages[-1]["content"]) != len(images):
        raise InputError(f"sample '{study.sample_id}': a section contains the image placeholder {IMAGE}")
    if whole_images and task != "findings":
        messages[-1]["content"].append({"type": "text", "text": f"\n\n{TEXTS['box format']}"})
    return Example(study.sample_id, task, messages, images, target, tuple(notes), whole_images=whole_images)


def to_crop_coordinates(sentences: Iterable[Sentence], crop: CropMap) -> tuple[list[Sentence], list[tuple[int, str]]]:
    """Convert boxes to the model's crop, and remove masks; returns sentences, and losses as (index, note)."""
    cropped: list[Sentence] = []
    losses: list[tuple[int, str]] = []
    for index, sentence in enumerate(sentences):
        parts = [crop.to_crop(box) for box in sentence.boxes or ()]
        losses += [(index, BOX_CLIPPED if part else BOX_OUTSIDE) for part, was_cut in parts if was_cut]
        losses += [(index, MASK_UNUSED)] * len(sentence.masks or ())
        boxes = tuple(part for part, _ in parts if part is not None)
        cropped.append(Sentence(text=sentence.text, boxes=boxes or None))
    return cropped, losses


def parse_inputs(text: str) -> tuple[Input, ...]:
    """Parse names of inputs joined by +, as in "prior+comparison"; unique and in the order of `INPUTS`."""
    names = [name.strip() for name in text.split("+")]
    if unknown := [name for name in names if name not in INPUTS]:
        message = f"unknown input '{unknown[0]}'; choose from {', '.join(INPUTS)}, joined by +"
        raise InputError(message, code=ErrorCode.UNKNOWN_NAME)
    return tuple(name for name in INPUTS if name in names)


def drop_inputs(study: Study, names: Sequence[Input]) -> Study:
    """Remove inputs from a study; `prior` is the prior image and the prior report."""
    return study.model_copy(update=dict.fromkeys(field for name in names for field in _FIELDS[name]))


def has_inputs(study: Study, names: Sequence[Input]) -> bool:
    """Return whether a study has all of these inputs; a prior counts if its image exists."""
    return all(getattr(study, _FIELDS[name][0]) is not None for name in names)


def _grounded_target(
    study: Study, sentences: list[Sentence] | None, size: tuple[int, int] | None, notes: list[str]
) -> str | None:
    """Render the target with boxes in the crop; losses are added to `notes`."""
    if not sentences:
        return None
    cropped, losses = to_crop_coordinates(sentences, CropMap(*(size or image_size(study.frontal))))
    notes += [note for _, note in losses]
    try:
        return build_target(render_report(cropped))
    except InputError as error:
        raise InputError(f"sample '{study.sample_id}': {error}") from None
