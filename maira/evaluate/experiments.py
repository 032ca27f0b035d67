"""Experiments on one test set: the same studies drafted by several models or from several inputs, and scored alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from maira.data.study import Study
from maira.model.task_examples import INPUTS, Input, has_inputs, parse_inputs
from radfact.errors import ErrorCode, InputError
from radfact.io.jsonl import read_jsonl
from radfact.results.reader import read_scores

LATERAL_MENTIONS, COMPARISON_MENTIONS = "lateral_mentions", "comparison_mentions"
PAPER = (
    *(LATERAL_MENTIONS, COMPARISON_MENTIONS, "rouge_l", "bleu_1", "bleu_4", "meteor", "radgraph_f1", "rg_er"),
    *("radcliq_v0", "chexbert_macro_f1_14", "chexbert_micro_f1_14", "chexbert_macro_f1_5", "chexbert_micro_f1_5"),
    "chexbert_similarity",
)
"""Metrics of MAIRA-2, tables B.3 and D.1 to D.10, in addition to RadFact."""

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

    @cached_property
    def scores(self) -> dict[str, Any]:
        """Content of `scores.json`."""
        return read_scores(self.results).model_dump(mode="json")

    @cached_property
    def samples(self) -> dict[str, dict[str, Any]]:
        """Rows of the studies that RadFact scored, by `sample_id`."""
        return {row["sample_id"]: row for row in self._rows if row["failure"] is None}

    @property
    def excluded(self) -> int:
        """Number of studies that RadFact could not score."""
        return len(self._rows) - len(self.samples)

    @cached_property
    def completions(self) -> dict[tuple[str, int], dict[str, Any]]:
        """Rows of compared box completions by `sample_id` and `index` of the sentence."""
        if not self.boxes.is_file():
            return {}
        rows = (row for _, row in read_jsonl(self.boxes))
        return {(row["sample_id"], row["index"]): row for row in rows if row["iou"] is not None}

    @property
    def unscored(self) -> list[tuple[str, str]]:
        """The `sample_id` of each study that RadFact or another metric could not score, and the reason."""
        reasons = []
        for row in self._rows:
            if row["failure"] is not None:
                reasons.append((row["sample_id"], row["failure"]))
            else:
                reasons += [(row["sample_id"], f"{name}: {reason}") for name, reason in row["failures"].items()]
        return reasons

    @cached_property
    def _rows(self) -> list[dict[str, Any]]:
        return [row for _, row in read_jsonl(self.results / "samples.jsonl")]


def without_inputs(out: Path, drops: Sequence[str]) -> list[Experiment]:
    """Return the experiment with all inputs, and one for each of `drops`."""
    dropped = dict.fromkeys(map(parse_inputs, drops))
    if not dropped:
        message = f"expected inputs to drop: some of {', '.join(INPUTS)}, joined by +"
        raise InputError(message, code=ErrorCode.MISSING_OPTION, field="--drop")
    return [Experiment(out / "all-inputs"), *(Experiment(out / f"no-{'+'.join(names)}", names) for names in dropped)]


@dataclass(frozen=True)
class Selection:
    """The studies of an evaluation, with the reference report of its task only.

    Attributes:
        studies: studies to draft and score.
        without_input: number of studies that lack a required input.
        without_reference: number of other studies without a reference report.
    """

    studies: list[Study]
    without_input: int
    without_reference: int

    @property
    def description(self) -> str:
        """Number of studies and of skipped ones, as a sentence."""
        reasons = {"an input of the subset": self.without_input, "a reference report": self.without_reference}
        skipped = ", ".join(f"{count} without {reason}" for reason, count in reasons.items() if count)
        return f"{len(self.studies)} studies" + (f"; skipped: {skipped}." if skipped else ".")


def select_studies(
    studies: Sequence[Study], task: ReportTask, subset: str, experiments: Sequence[Experiment]
) -> Selection:
    """Select the studies that can be scored."""
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
    selected = [study for study in complete if getattr(study, reference) is not None]
    if not selected:
        requirements = ", ".join([*required, reference])
        message = f"expected studies with {requirements}, found none among {len(studies)}"
        raise InputError(message, code=ErrorCode.EMPTY_INPUT)
    # The other reference is removed: readers of a manifest prefer the grounded report.
    other = {field: None for field in _REFERENCE.values() if field != reference}
    return Selection(
        [study.model_copy(update=other) for study in selected],
        without_input=len(studies) - len(complete),
        without_reference=len(complete) - len(selected),
    )
