"""Experiments on one test set: the same studies drafted by several models or from several inputs, and scored alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from maira.data.study import Study
from maira.model.task_examples import INPUTS, Input, has_inputs, parse_inputs
from radfact.errors import ErrorCode, InputError

ReportTask = Literal["findings", "grounded"]
_REFERENCE: dict[ReportTask, str] = {"findings": "findings", "grounded": "grounded_findings"}


@dataclass(frozen=True)
class Experiment:
    """Drafts of one model with all inputs or without some, and their scores.

    Attributes:
        folder: folder of the experiment.
        dropped: inputs that the model does not receive.
    """

    folder: Path
    dropped: tuple[Input, ...] = ()

    @property
    def name(self) -> str:
        """Name of the folder and of the row in tables."""
        return self.folder.name

    @property
    def drafts(self) -> Path:
        """The drafts file."""
        return self.folder / "drafts.jsonl"

    @property
    def boxes(self) -> Path:
        """The file of box completions, if there are any."""
        return self.folder / "boxes.jsonl"

    @property
    def results(self) -> Path:
        """The results folder."""
        return self.folder / "results"


def without_inputs(out: Path, drops: Sequence[str]) -> list[Experiment]:
    """Return the experiment with all inputs, and one for each of `drops`."""
    dropped = dict.fromkeys(map(parse_inputs, drops))
    if not dropped:
        message = f"expected inputs to drop: some of {', '.join(INPUTS)}, joined by +"
        raise InputError(message, code=ErrorCode.MISSING_OPTION, field="--drop")
    return [Experiment(out / "all-inputs"), *(Experiment(out / f"no-{'+'.join(names)}", names) for names in dropped)]


def select_studies(
    studies: Sequence[Study], task: ReportTask, subset: str, experiments: Sequence[Experiment]
) -> tuple[list[Study], str]:
    """Select the studies that can be scored, with the reference report of the task only.

    Returns:
        The studies, and a sentence with their number and the numbers of skipped ones.
    """
    if subset == "all":
        required: tuple[Input, ...] = ()
    elif subset == "with-input":
        required = tuple(name for name in INPUTS if any(name in item.dropped for item in experiments))
    else:
        try:
            required = parse_inputs(subset)
        except InputError as error:
            message = f"expected all, with-input, or input names: {error.message}"
            raise InputError(message, code=ErrorCode.UNKNOWN_NAME, field="--subset") from None
    complete = [study for study in studies if has_inputs(study, required)]
    reference = _REFERENCE[task]
    # The other reference is removed: readers of a manifest prefer the grounded report.
    other = {field: None for field in _REFERENCE.values() if field != reference}
    selected = [study.model_copy(update=other) for study in complete if getattr(study, reference) is not None]
    if not selected:
        message = f"expected studies with {', '.join([*required, reference])}, found none among {len(studies)}"
        raise InputError(message, code=ErrorCode.EMPTY_INPUT)
    reasons = {
        "an input of the subset": len(studies) - len(complete),
        "a reference report": len(complete) - len(selected),
    }
    skipped = ", ".join(f"{count} without {reason}" for reason, count in reasons.items() if count)
    return selected, f"{len(selected)} studies" + (f"; skipped: {skipped}." if skipped else ".")
