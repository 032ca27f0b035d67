"""Ablations: recipes that differ in little, each trained, tested and set beside the first (paper 004, D.5 and D.6)."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from data.manifest import read_failures, read_manifest
from maira.evaluate.comparison import Comparison, compare
from maira.evaluate.experiments import Experiment, ReportTask, Scorer, Selection
from maira.grounding.evaluation import has_reference_boxes
from maira.model.task_examples import INPUTS, Input
from maira.runtime.commands import Launcher
from maira.train.config.run_config import TrainConfig, read_train_config
from radfact.errors import InputError, RunError

NAME = "{name}"
"""What stands in an override for the name of the recipe that it overrides."""


@dataclass(frozen=True)
class Config:
    """A recipe by its file.

    Attributes:
        path: of the file.
        overrides: `key=value`, instead of the file's.
        recipe: what both make.
    """

    path: Path
    overrides: tuple[str, ...]
    recipe: TrainConfig

    @property
    def name(self) -> str:
        """As its experiment is called."""
        return self.path.stem

    @property
    def checkpoint(self) -> Path:
        """Where its training leaves the model."""
        return self.recipe.out / "checkpoint"


def read_configs(paths: Sequence[Path], overrides: Sequence[str]) -> list[Config]:
    """Read recipes that are to be set side by side.

    Args:
        paths: of the recipes; the first is what the others are compared with.
        overrides: `key=value` for all of them; `{name}` in one stands for the recipe's name.

    Raises:
        InputError: there is none, one cannot be read, or two have one name or one folder.
    """
    if not paths:
        raise InputError("name at least one recipe")
    configs: list[Config] = []
    for path in paths:
        own = tuple(override.replace(NAME, path.stem) for override in overrides)
        config = Config(path, own, read_train_config(path, list(own)))
        for other in configs:
            if other.name == config.name:
                raise InputError(f"has the name of {other.path}; each experiment needs one of its own", file=path)
            if other.recipe.out.resolve() == config.recipe.out.resolve():
                message = f"{config.recipe.out} is the folder of {other.path} too; out=FOLDER/{NAME} gives each its own"
                raise InputError(message, file=path, field="out")
        configs.append(config)
    return configs


@dataclass(frozen=True)
class Trial:
    """A row of the table: a trained model and what it is shown when it is tested.

    Attributes:
        config: the recipe of the model.
        experiment: its drafts without the inputs that the recipe drops, or without more where `at_inference`.
        at_inference: the model was trained with what it is not shown.
    """

    config: Config
    experiment: Experiment
    at_inference: bool = False


def plan_trials(configs: Sequence[Config], out: Path, *, infer: bool = False) -> list[Trial]:
    """The rows of the table, in the order of the paper's.

    Args:
        configs: the first is what the others are compared with.
        out: folder of the experiments.
        infer: before each recipe that drops inputs a row of the first one's model that is not shown them either.

    Raises:
        InputError: `infer`, and no recipe drops more inputs than the first.
    """
    base = configs[0]
    trials = {base.name: Trial(base, Experiment(out / base.name, base.recipe.drop))}
    for config in configs[1:]:
        more = [name for name in config.recipe.drop if name not in base.recipe.drop]
        if infer and more:
            shown_not: tuple[Input, ...] = tuple(n for n in INPUTS if n in (*base.recipe.drop, *more))
            name = f"infer-no-{'+'.join(n for n in INPUTS if n in more)}"
            trials[name] = Trial(base, Experiment(out / name, shown_not), at_inference=True)
        trials[config.name] = Trial(config, Experiment(out / config.name, config.recipe.drop))
    if infer and not any(trial.at_inference for trial in trials.values()):
        raise InputError(
            "no recipe drops an input, so that there is nothing to leave out at inference", field="--infer"
        )
    return list(trials.values())


def is_trained(recipe: TrainConfig, say: Callable[[str], None]) -> bool:
    """Whether the folder of a recipe holds the finished checkpoint of this very recipe, model and data.

    One without states to tell is taken as it is: they are large, and a run that is done needs them no more. So is one
    whose last state, start or data cannot be read any more, which is said: nothing of them is needed.

    Args:
        recipe: of the run.
        say: tells the person who waits.
    """
    from maira.train.checkpointing import read_record, resume_fields
    from maira.train.data.dataset import data_fingerprints

    if not (recipe.out / "checkpoint" / "config.json").is_file():
        return False
    states = sorted((recipe.out / "states").glob("step-*/state.json"))
    if not states:
        return True
    try:
        last = read_record(states[-1].parent)
        is_over = last["step"] == last["steps"] and last["length"] == [recipe.epochs, recipe.passes]
        if not is_over or last["recipe"] != resume_fields(recipe):
            return False
        return bool(last["origin"] == data_fingerprints(recipe))
    except InputError as error:
        say(f"{recipe.out / 'checkpoint'} is taken as it is; what it was trained from cannot be compared: {error}")
        return True


@dataclass(frozen=True)
class Drafting:
    """How every model is tested.

    Attributes:
        task: what it writes.
        manifest: the test set, with the reference reports of the task alone.
        options: more options of `maira generate` and `maira boxes`, as words.
        alone: whether these run without the launcher.
    """

    task: ReportTask
    manifest: Path
    options: tuple[str, ...] = ()
    alone: bool = False


@dataclass
class Ablation:
    """Trains and tests the trials of one table.

    A trial that fails is listed, and the others go on.

    Attributes:
        trials: the rows.
        drafting: how they are tested.
        launcher: runs the commands.
        say: tells the person who waits.
        broken: by the name of an experiment, why it did not come to its end.
        left_out: samples of the others that were left out, and why.
    """

    trials: Sequence[Trial]
    drafting: Drafting
    launcher: Launcher
    say: Callable[[str], None]
    broken: dict[str, str] = field(default_factory=dict)
    left_out: list[tuple[str, str]] = field(default_factory=list)
    _trained: set[Path] = field(default_factory=set)
    _untrained: dict[Path, str] = field(default_factory=dict)

    @property
    def failures(self) -> list[tuple[str, str]]:
        """What is to be listed, and why."""
        return [*self.broken.items(), *self.left_out]

    def run(self, scorers: Sequence[Scorer]) -> list[Trial]:
        """Train, draft and score every trial; gives those that came to their end.

        Args:
            scorers: of the trials, in their order.
        """
        return [trial for trial, scorer in zip(self.trials, scorers, strict=True) if self._run(trial, scorer)]

    def _run(self, trial: Trial, scorer: Scorer) -> bool:
        experiment = trial.experiment
        try:
            self._train(trial.config)
            self._draft(trial)
            undrafted = read_failures(experiment.folder / "failures.jsonl")
            left_out = [*((str(one.sample_id), one.reason) for one in undrafted), *scorer.score()]
        except (InputError, RunError) as error:
            self.broken[experiment.name] = str(error)
            self.say(f"{experiment.name} has failed: {error}")
            return False
        self.left_out += [(f"{experiment.name}: {key}", reason) for key, reason in left_out]
        self.say(f"{experiment.name}: {len(experiment.samples)} studies scored: {experiment.results}")
        return True

    def _train(self, config: Config) -> None:
        """Train a recipe unless that is done, or go on where it was interrupted."""
        if config.path in self._untrained:
            raise RunError(self._untrained[config.path])
        if config.path in self._trained:
            return
        if not is_trained(config.recipe, self.say):
            self.say(f"training {config.name}: {config.recipe.out}")
            try:
                self.launcher.run(["train", str(config.path), *config.overrides])
            except RunError as error:
                self._untrained[config.path] = str(error)
                raise
        self._trained.add(config.path)

    def _draft(self, trial: Trial) -> None:
        experiment, how = trial.experiment, self.drafting
        self.say(f"drafting {experiment.name}")
        options = ["--checkpoint", str(trial.config.checkpoint), "--manifest", str(how.manifest)]
        options += ["--preset", trial.config.recipe.preset, *how.options]
        if experiment.dropped:
            options += ["--drop", "+".join(experiment.dropped)]
        asked = [["generate", "--out", str(experiment.drafts), "--task", how.task]]
        if how.task == "grounded" and any(map(has_reference_boxes, read_manifest(how.manifest))):
            asked.append(["boxes", "--out", str(experiment.boxes)])
        for words in asked:
            self.launcher.run([*words, *options], alone=how.alone, quiet=True)


def table_of(
    ablation: Ablation, done: Sequence[Trial], selection: Selection
) -> tuple[Comparison, dict[str, dict[str, Any]]]:
    """The trials that came to their end side by side, compared with the first of all if that is among them.

    Args:
        ablation: that has been run.
        done: what it gave.
        selection: the studies of the test.

    Returns:
        The table, and by experiment what decides it.
    """
    base = ablation.trials[0]
    notes = [selection.in_words, *_notes(done, base.config, ablation.drafting.task)]
    notes += [f"{name} has failed: {reason}" for name, reason in ablation.broken.items()]
    experiments = [trial.experiment for trial in done]
    table = compare(experiments, notes, base.experiment if base in done else None)
    about = {
        trial.experiment.name: {
            "recipe": str(trial.config.path),
            "at_inference": trial.at_inference,
            "differs_in": differences_of(trial.config.recipe, base.config.recipe),
        }
        for trial in done
    }
    return table, about


def differences_of(recipe: TrainConfig, base: TrainConfig) -> dict[str, Any]:
    """What a recipe says otherwise than another, but for its folder: JSON values by key, nested keys with dots."""
    ours, theirs = (dict(_flat(one.model_dump(mode="json", exclude={"out"}))) for one in (recipe, base))
    return {key: value for key, value in ours.items() if key not in theirs or value != theirs[key]}


def _flat(values: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{above}{key}.")
        else:
            yield above + key, value


def _notes(trials: Sequence[Trial], base: Config, task: ReportTask) -> Iterator[str]:
    """What a reader must know of the models: what sets their recipes apart, and which never learnt the task."""
    for trial in trials:
        config, name = trial.config, trial.experiment.name
        if trial.at_inference:
            yield f"{name}: the model of {base.name}, not shown {' and '.join(trial.experiment.dropped)}."
        elif config != base:
            changed = differences_of(config.recipe, base.recipe)
            what = ", ".join(f"{key} = {json.dumps(value)}" for key, value in changed.items()) or "nothing"
            yield f"{name}: trained as {base.name}, but for {what}."
        if not any(task in config.recipe.shares(source) for source in config.recipe.train):
            yield f"{name}: the model was not trained on this task."
