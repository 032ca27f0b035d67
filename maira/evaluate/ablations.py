"""Ablations: train similar configurations, test them alike and compare them (MAIRA-2, appendices D.5 and D.6)."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from maira.data.manifest import read_failures, read_manifest
from maira.evaluate.comparison import ExperimentComparison, compare
from maira.evaluate.experiments import Experiment, ReportTask, Selection
from maira.evaluate.scoring import Scoring, score_experiment
from maira.grounding.evaluation import has_reference_boxes
from maira.model.task_examples import INPUTS, Input
from maira.runtime.commands import Launcher
from maira.train.config.run_config import TrainConfig, read_train_config
from radfact.errors import ErrorCode, InputError, RunError

NAME = "{name}"
"""Placeholder in an override for the name of the configuration."""


@dataclass(frozen=True)
class Config:
    """A training configuration and its file.

    Attributes:
        path: the file.
        overrides: `key=value` that override the file.
        train: the resulting configuration.
    """

    path: Path
    overrides: tuple[str, ...]
    train: TrainConfig

    @property
    def name(self) -> str:
        """Name of the experiment."""
        return self.path.stem

    @property
    def checkpoint(self) -> Path:
        """Folder of the trained model."""
        return self.train.out / "checkpoint"


def read_configs(paths: Sequence[Path], overrides: Sequence[str]) -> list[Config]:
    """Read the training configurations of an ablation."""
    if not paths:
        raise InputError("expected at least one configuration", code=ErrorCode.MISSING_OPTION)
    configs: list[Config] = []
    for path in paths:
        own = tuple(override.replace(NAME, path.stem) for override in overrides)
        config = Config(path, own, read_train_config(path, list(own)))
        for other in configs:
            if other.name == config.name:
                message = f"same name as {other.path}; rename one of the files"
                raise InputError(message, code=ErrorCode.DUPLICATE, file=path)
            if other.train.out.resolve() == config.train.out.resolve():
                message = f"same folder {config.train.out} as {other.path}; use out=FOLDER/{NAME}"
                raise InputError(message, code=ErrorCode.DUPLICATE, file=path, field="out")
        configs.append(config)
    return configs


@dataclass(frozen=True)
class Trial:
    """A row of the table: a trained model, and the inputs that it is tested with.

    Attributes:
        config: training configuration of the model.
        experiment: drafts without the inputs that the configuration drops, or without more if `at_inference`.
        at_inference: whether the model was trained with dropped inputs.
    """

    config: Config
    experiment: Experiment
    at_inference: bool = False


def plan_trials(configs: Sequence[Config], out: Path, *, infer: bool = False) -> list[Trial]:
    """Return the rows of the table, in the order of the paper."""
    baseline = configs[0]
    trials = {baseline.name: Trial(baseline, Experiment(out / baseline.name, baseline.train.drop))}
    for config in configs[1:]:
        more = [name for name in config.train.drop if name not in baseline.train.drop]
        if infer and more:
            dropped: tuple[Input, ...] = tuple(n for n in INPUTS if n in (*baseline.train.drop, *more))
            name = f"infer-no-{'+'.join(n for n in INPUTS if n in more)}"
            trials[name] = Trial(baseline, Experiment(out / name, dropped), at_inference=True)
        trials[config.name] = Trial(config, Experiment(out / config.name, config.train.drop))
    if infer and not any(trial.at_inference for trial in trials.values()):
        message = "no configuration drops an input, so there is nothing to drop at inference"
        raise InputError(message, code=ErrorCode.CONFLICTING_OPTIONS, field="--infer")
    return list(trials.values())


def is_trained(config: TrainConfig, say: Callable[[str], None]) -> bool:
    """Return whether the folder of a configuration contains its finished checkpoint, with the same model and data.

    A checkpoint without saved states is accepted, since states are large and no longer needed after training. So is
    one whose last state, start or data cannot be read any more, with a message.
    """
    from maira.train.checkpointing import read_record, resume_fields
    from maira.train.data.dataset import data_fingerprints

    if not (config.out / "checkpoint" / "config.json").is_file():
        return False
    states = sorted((config.out / "states").glob("step-*/state.json"))
    if not states:
        return True
    try:
        last = read_record(states[-1].parent)
        is_over = last["step"] == last["steps"] and last["length"] == [config.epochs, config.passes]
        if not is_over or last["recipe"] != resume_fields(config):
            return False
        return bool(last["origin"] == data_fingerprints(config))
    except (InputError, RunError) as error:
        say(f"{config.out / 'checkpoint'} is used as it is; its origin cannot be checked: {error}")
        return True


@dataclass(frozen=True)
class Drafting:
    """How models are tested.

    Attributes:
        task: task of the reports.
        manifest: the test set, with the reference reports of the task only.
        options: further arguments of `maira generate` and `maira boxes`.
        alone: whether these run without the launcher.
    """

    task: ReportTask
    manifest: Path
    options: tuple[str, ...] = ()
    alone: bool = False


@dataclass
class Ablation:
    """Trains, tests and scores the trials of a table. A trial that fails is listed, and the others continue.

    Attributes:
        trials: the rows.
        drafting: how they are tested.
        scoring: how they are scored.
        launcher: runs commands.
        say: prints a message.
        failed: reason by experiment that failed.
        skipped: skipped samples of the other experiments, with the reason.
    """

    trials: Sequence[Trial]
    drafting: Drafting
    scoring: Scoring
    launcher: Launcher
    say: Callable[[str], None]
    failed: dict[str, str] = field(default_factory=dict)
    skipped: list[tuple[str, str]] = field(default_factory=list)
    _trained: set[Path] = field(default_factory=set)
    _training_errors: dict[Path, str] = field(default_factory=dict)

    @property
    def failures(self) -> list[tuple[str, str]]:
        """Failed experiments and skipped samples, with the reason."""
        return [*self.failed.items(), *self.skipped]

    def run(self) -> list[Trial]:
        """Train, test and score all trials, and return those that succeeded."""
        return [trial for trial in self.trials if self._run(trial)]

    def _run(self, trial: Trial) -> bool:
        experiment = trial.experiment
        try:
            self._train(trial.config)
            self._draft(trial)
            failures = read_failures(experiment.folder / "failures.jsonl")
            skipped = [(str(failure.sample_id), failure.reason) for failure in failures]
            skipped += score_experiment(experiment, self.scoring)
        except (InputError, RunError) as error:
            self.failed[experiment.name] = str(error)
            self.say(f"{experiment.name} failed: {error}")
            return False
        self.skipped += [(f"{experiment.name}: {key}", reason) for key, reason in skipped]
        self.say(f"{experiment.name}: {len(experiment.samples)} studies scored: {experiment.results}")
        return True

    def _train(self, config: Config) -> None:
        """Train a configuration, or resume its training, unless it is finished."""
        if config.path in self._training_errors:
            raise RunError(self._training_errors[config.path])
        if config.path in self._trained:
            return
        if not is_trained(config.train, self.say):
            self.say(f"training {config.name}: {config.train.out}")
            try:
                self.launcher.run(["train", str(config.path), *config.overrides])
            except RunError as error:
                self._training_errors[config.path] = str(error)
                raise
        self._trained.add(config.path)

    def _draft(self, trial: Trial) -> None:
        experiment, drafting = trial.experiment, self.drafting
        self.say(f"drafting {experiment.name}")
        options = ["--checkpoint", str(trial.config.checkpoint), "--manifest", str(drafting.manifest)]
        options += ["--preset", trial.config.train.preset, *drafting.options]
        if experiment.dropped:
            options += ["--drop", "+".join(experiment.dropped)]
        commands = [["generate", "--out", str(experiment.drafts), "--task", drafting.task]]
        if drafting.task == "grounded" and any(map(has_reference_boxes, read_manifest(drafting.manifest))):
            commands.append(["boxes", "--out", str(experiment.boxes)])
        for command in commands:
            self.launcher.run([*command, *options], alone=drafting.alone, quiet=True)


def compare_trials(
    ablation: Ablation, trials: Sequence[Trial], selection: Selection
) -> tuple[ExperimentComparison, dict[str, dict[str, Any]]]:
    """Compare trials with the baseline, if that succeeded.

    Returns:
        The comparison, and details by experiment.
    """
    baseline = ablation.trials[0]
    notes = [selection.description, *_notes(trials, baseline.config, ablation.drafting.task)]
    notes += [f"{name} failed: {reason}" for name, reason in ablation.failed.items()]
    experiments = [trial.experiment for trial in trials]
    comparison = compare(experiments, notes, baseline.experiment if baseline in trials else None)
    details = {
        trial.experiment.name: {
            "config": str(trial.config.path),
            "at_inference": trial.at_inference,
            "differs_in": differences_of(trial.config.train, baseline.config.train),
        }
        for trial in trials
    }
    return comparison, details


def differences_of(config: TrainConfig, baseline: TrainConfig) -> dict[str, Any]:
    """Return the values of a configuration that differ from another one (except the folder), nested keys with dots."""
    values, baseline_values = (
        dict(_flatten(item.model_dump(mode="json", exclude={"out"}))) for item in (config, baseline)
    )
    return {key: value for key, value in values.items() if key not in baseline_values or value != baseline_values[key]}


def _flatten(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, dict):
            yield from _flatten(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def _notes(trials: Sequence[Trial], baseline: Config, task: ReportTask) -> Iterator[str]:
    """Describe how the models differ, and which were not trained on the task."""
    for trial in trials:
        config, name = trial.config, trial.experiment.name
        if trial.at_inference:
            yield f"{name}: the model of {baseline.name} without {' and '.join(trial.experiment.dropped)}."
        elif config != baseline:
            changes = differences_of(config.train, baseline.train)
            changed = ", ".join(f"{key} = {json.dumps(value)}" for key, value in changes.items()) or "nothing"
            yield f"{name}: trained as {baseline.name}, except {changed}."
        if not any(task in config.train.shares(source) for source in config.train.train):
            yield f"{name}: the model was not trained on this task."
