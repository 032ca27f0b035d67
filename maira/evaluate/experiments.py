"""Experiments on one test set: the same studies drafted by several models or from several inputs, all scored alike."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from data.study import Study
from maira.model.task_examples import INPUTS, Input, has_inputs, parse_inputs
from radfact.errors import ExitCode, InputError
from radfact.io.jsonl import read_jsonl
from radfact.results.reader import read_scores

LATERAL_MENTIONS, COMPARISON_MENTIONS = "lateral_mentions", "comparison_mentions"
PAPER = (
    *(LATERAL_MENTIONS, COMPARISON_MENTIONS, "rouge_l", "bleu_1", "bleu_4", "meteor", "radgraph_f1", "rg_er"),
    *("radcliq_v0", "chexbert_macro_f1_14", "chexbert_micro_f1_14", "chexbert_macro_f1_5", "chexbert_micro_f1_5"),
    "chexbert_similarity",
)
"""What the paper's tables B.3 and D.1 to D.10 have beside RadFact, as `radfact evaluate` names it."""

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

    @property
    def metrics(self) -> Path:
        """The results folder of `radfact evaluate`, with all figures but RadFact's."""
        return self.folder / "metrics"

    @cached_property
    def scores(self) -> dict[str, Any]:
        """What stands in RadFact's `scores.json`."""
        return read_scores(self.results).model_dump(mode="json")

    @cached_property
    def measured(self) -> dict[str, Any]:
        """What stands in the `scores.json` of the other metrics."""
        return read_scores(self.metrics).model_dump(mode="json")

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
        """The `sample_id` of each study that RadFact or another metric could not score, and why."""
        found = [(row["sample_id"], row["failure"]) for row in self._rows if row["failure"] is not None]
        for _, row in read_jsonl(self.metrics / "samples.jsonl"):
            by_metric = [(row["sample_id"], f"{name}: {why}") for name, why in row["failures"].items()]
            found += [] if row["sample_id"] in dict(found) else by_metric
        return found

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


@dataclass(frozen=True)
class Scoring:
    """How the drafts of all experiments are scored.

    Attributes:
        references: manifest with the reference reports.
        cache: folder for the answers of a model, shared by all experiments.
        judge: as `--judge` of `radfact score`; None leaves it to the configuration or the environment.
        config: YAML file with any other options of `radfact score` and `radfact evaluate`.
        metrics: as `--metrics` of `radfact evaluate`; None takes those of the paper's tables (`PAPER`), if the
            configuration names none either.
        weights: as `--weights` of `radfact evaluate`.
    """

    references: Path
    cache: Path
    judge: str | None = None
    config: Path | None = None
    metrics: str | None = None
    weights: Sequence[str] = ()

    def words(self, experiment: Experiment, out: Path) -> list[str]:
        """Options that both commands have."""
        options: Mapping[str, object | None] = {
            "--candidates": experiment.drafts,
            "--references": self.references,
            "--missing": "skip",
            "--out": out,
            "--cache": self.cache,
            "--judge": self.judge,
            "--config": self.config,
        }
        return [word for name, value in options.items() if value is not None for word in (name, str(value))]


class Scorer:
    """`radfact score` and `radfact evaluate` on the drafts of one experiment, their options checked before any draft.

    Args:
        experiment: whose drafts are scored; they need not be there yet.
        how: all are scored.

    Raises:
        InputError: no judge is named, or an option that is wrong or does not fit.
    """

    def __init__(self, experiment: Experiment, how: Scoring) -> None:
        from typer.main import get_command

        from radfact.cli.command import build_options
        from radfact.cli.main import app
        from radfact.judges.options import JudgeOptions

        # The commands themselves and not their parts, so that every option of them counts here too.
        group: Any = get_command(app)
        self._experiment, self._names_metrics = experiment, how.metrics is not None
        parent = group.make_context("radfact", ["score"])
        score = group.commands["score"].make_context("score", how.words(experiment, experiment.results), parent=parent)
        judge = build_options(JudgeOptions, score.params).or_environment()
        judge.load_splitter(judge.load())
        words = how.words(experiment, experiment.metrics)
        words += [word for folder in how.weights for word in ("--weights", folder)]
        words += [] if how.metrics is None else ["--metrics", how.metrics]
        evaluate = group.commands["evaluate"].make_context(
            "evaluate", words, parent=parent, default_map={"metrics": ",".join(PAPER)}
        )
        evaluate.params["metrics"] = _others(evaluate.params["metrics"], evaluate.params["weights"])
        self._contexts = (score, evaluate)

    def score(self) -> list[tuple[str, str]]:
        """Score; gives the `sample_id` of each study left out, and metrics that were named and cannot be had, with why.

        Of what the commands say only their progress is shown: all that they print is in the results folders too.

        Raises:
            InputError: as the commands.
            RunError: as the commands.
        """
        from typer import Exit

        for context in self._contexts:
            try:
                with redirect_stdout(io.StringIO()):
                    context.command.invoke(context)
            except Exit as stop:
                if stop.exit_code != ExitCode.INCOMPLETE:
                    raise
        missing = self._experiment.measured["unavailable"].items() if self._names_metrics else ()
        return [*self._experiment.unscored, *missing]


def _others(metrics: str, weights: list[str] | None) -> str:
    """What `radfact evaluate` is asked for: lateral mentions in any case, and not RadFact, which has been scored.

    Raises:
        InputError: a name is no metric, or a folder of weights is not there.
    """
    from radfact.cli.metrics import read_weights
    from radfact.metrics.registry import select_metrics

    read_weights(weights)
    names = [name.strip() for name in metrics.split(",") if name.strip()]
    chosen = {one.entry.name: one.scores or (one.entry.name,) for one in select_metrics([LATERAL_MENTIONS, *names])}
    return ",".join(name for entry, figures in chosen.items() if entry != "radfact" for name in figures)
