"""Experiments on one test set: the same studies drafted by several models or from several inputs, all scored alike."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from data.study import Study
from maira.inputs import INPUTS, Input, has_inputs, parse_inputs
from radfact.errors import ExitCode, InputError
from radfact.jsonl import read_json, read_jsonl
from radfact.report import Report

ReportTask = Literal["findings", "grounded"]
_REFERENCE: dict[ReportTask, str] = {"findings": "findings", "grounded": "grounded_findings"}


@dataclass(frozen=True)
class Experiment:
    """One model that drafts the studies with all of their inputs or without some, and what it scores.

    Attributes:
        folder: of its files.
        dropped: what the model is not shown.
    """

    folder: Path
    dropped: tuple[Input, ...] = ()

    @property
    def name(self) -> str:
        """As its folder and its row are called."""
        return self.folder.name

    @property
    def drafts(self) -> Path:
        """The drafts file."""
        return self.folder / "drafts.jsonl"

    @property
    def boxes(self) -> Path:
        """The file of box completions, where there are any."""
        return self.folder / "boxes.jsonl"

    @property
    def results(self) -> Path:
        """The results folder of `radfact score`."""
        return self.folder / "results"

    @cached_property
    def scores(self) -> dict[str, Any]:
        """What stands in `scores.json`."""
        return dict(read_json(self.results / "scores.json"))

    @cached_property
    def samples(self) -> dict[str, dict[str, Any]]:
        """The rows of the studies that were scored, by `sample_id`."""
        return {row["sample_id"]: row for row in self._rows if row["failure"] is None}

    @cached_property
    def completions(self) -> dict[tuple[str, int], dict[str, Any]]:
        """The rows of the sentences whose boxes were completed and could be compared, by `sample_id` and `index`."""
        if not self.boxes.is_file():
            return {}
        rows = (row for _, row in read_jsonl(self.boxes))
        return {(row["sample_id"], row["index"]): row for row in rows if row["iou"] is not None}

    @property
    def unscored(self) -> list[tuple[str, str]]:
        """The `sample_id` of each study that could not be scored, and why."""
        return [(row["sample_id"], row["failure"]) for row in self._rows if row["failure"] is not None]

    @cached_property
    def _rows(self) -> list[dict[str, Any]]:
        return [row for _, row in read_jsonl(self.results / "samples.jsonl")]


def without_inputs(out: Path, drops: Sequence[str]) -> list[Experiment]:
    """The experiment with all inputs, and one for each of `drops`, such as "prior+comparison", in this order.

    Raises:
        InputError: there is nothing to drop, or an input that is not known.
    """
    dropped = dict.fromkeys(map(parse_inputs, drops))
    if not dropped:
        raise InputError(f"nothing to leave out; give --drop with some of {', '.join(INPUTS)}, joined by +")
    return [Experiment(out / "all-inputs"), *(Experiment(out / f"no-{'+'.join(one)}", one) for one in dropped)]


@dataclass(frozen=True)
class Selection:
    """The studies of an evaluation, each with the reference report of its task alone.

    Attributes:
        studies: to draft and score.
        without_input: how many others lack an input that was asked for.
        without_reference: how many others have no report to compare with.
    """

    studies: list[Study]
    without_input: int
    without_reference: int

    @property
    def in_words(self) -> str:
        """How many studies there are, and how many are not among them."""
        lacks = {"an input of the subset": self.without_input, "a reference report": self.without_reference}
        left_out = ", ".join(f"{count} without {what}" for what, count in lacks.items() if count)
        return f"{len(self.studies)} studies" + (f"; left out: {left_out}." if left_out else ".")

    @property
    def references(self) -> dict[str, Report]:
        """The reference reports by `sample_id`."""
        return {study.sample_id: study.grounded_findings or study.findings or "" for study in self.studies}


def select_studies(
    studies: Sequence[Study], task: ReportTask, subset: str, experiments: Sequence[Experiment]
) -> Selection:
    """The studies that can be scored.

    Args:
        studies: of a manifest.
        task: whose reference report a study needs.
        subset: `all`; `with-input` for studies with every input that any experiment drops; or inputs by name, as in
            `--drop` (the paper's tables D.9 and D.10 are about studies with a prior, and with a lateral).
        experiments: of the evaluation.

    Raises:
        InputError: an unknown subset, or no study is left.
    """
    if subset == "all":
        needed: tuple[Input, ...] = ()
    elif subset == "with-input":
        needed = tuple(name for name in INPUTS if any(name in one.dropped for one in experiments))
    else:
        try:
            needed = parse_inputs(subset)
        except InputError as error:
            raise InputError(f"a subset is all, with-input, or inputs by name: {error}") from None
    having = [study for study in studies if has_inputs(study, needed)]
    reference = _REFERENCE[task]
    chosen = [study for study in having if getattr(study, reference) is not None]
    if not chosen:
        inputs = f"has {' and '.join(needed)} and " if needed else "has "
        raise InputError(f"none of {len(studies)} studies {inputs}'{reference}' to compare with")
    # The narrative is not to be compared with a grounded report, which a manifest's reader would prefer.
    other = {field: None for field in _REFERENCE.values() if field != reference}
    return Selection(
        [study.model_copy(update=other) for study in chosen], len(studies) - len(having), len(having) - len(chosen)
    )


class Scorer:
    """`radfact score` on the drafts of one experiment, with options that are checked before anything is drafted.

    Args:
        experiment: whose drafts are scored; they need not be there yet.
        references: manifest with the reference reports.
        cache: folder for the answers of a model, shared by all experiments.
        judge: as `--judge` of `radfact score`; None leaves it to the configuration or the environment.
        config: YAML file with any other options of `radfact score`.

    Raises:
        InputError: no judge is named, or an option that is wrong or does not fit.
    """

    def __init__(
        self,
        experiment: Experiment,
        references: Path,
        cache: Path,
        judge: str | None = None,
        config: Path | None = None,
    ) -> None:
        from typer.main import get_command

        from radfact.cli import app
        from radfact.cli.options import JudgeOptions

        options: Mapping[str, object | None] = {
            "--candidates": experiment.drafts,
            "--references": references,
            "--missing": "leave-out",
            "--out": experiment.results,
            "--cache": cache,
            "--judge": judge,
            "--config": config,
        }
        words = [word for name, value in options.items() if value is not None for word in (name, str(value))]
        # The command itself and not its parts, so that every option of it counts here too.
        group: Any = get_command(app)
        self._experiment = experiment
        self._command = group.commands["score"]
        self._context = self._command.make_context("score", words, parent=group.make_context("radfact", ["score"]))
        given = self._context.params
        who = JudgeOptions(**{field.name: given[field.name] for field in fields(JudgeOptions)})
        who.load(None)
        who.load_splitter(given["splitter"], given["splitter_arg"], given["splitter_few_shots"], None)

    def score(self) -> list[tuple[str, str]]:
        """Score; gives the `sample_id` of each study left out, and why.

        Of what the command says only its progress is shown: all that it prints is in the results folder too.

        Raises:
            InputError: as the command.
            RunFailed: as the command.
        """
        from typer import Exit

        try:
            with redirect_stdout(io.StringIO()):
                self._command.invoke(self._context)
        except Exit as stop:
            if stop.exit_code != ExitCode.SAMPLES_LEFT_OUT:
                raise
        return self._experiment.unscored
