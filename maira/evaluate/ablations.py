"""Ablations: train similar configurations, test them alike and compare them (MAIRA-2, appendices D.5 and D.6)."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from maira.data.manifest import read_failures, read_manifest
from maira.evaluate.experiments import Experiment, ReportTask, Scoring, score_experiment
from maira.grounding.evaluation import has_reference_boxes
from maira.model.task_examples import INPUTS
from maira.train.config.run_config import TrainConfig, read_train_config
from maira.train.config.run_folder import flatten, read_record, resume_fields
from radfact.errors import ErrorCode, ExitCode, InputError, RunError

NAME = "{name}"
"""Placeholder in an override for the name of the configuration."""
_ERROR = "maira: "
"""Beginning of the line with the error of a command (`radfact.cli.program`)."""


@dataclass(frozen=True, eq=False)
class Config:
    """A training configuration, its file, and `key=value` that override the file."""

    path: Path
    overrides: tuple[str, ...]
    train: TrainConfig

    @property
    def name(self) -> str:
        return self.path.stem


def read_configs(paths: Sequence[Path], overrides: Sequence[str]) -> list[Config]:
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


@dataclass(frozen=True, kw_only=True)
class Trial(Experiment):
    """A row of the table: a trained model, and the inputs that it is tested with."""

    config: Config
    baseline: Config

    @property
    def at_inference(self) -> bool:
        """Whether more inputs are dropped than in the training."""
        return self.name != self.config.name

    @property
    def differences(self) -> dict[str, Any]:
        return differences_of(self.config.train, self.baseline.train)

    def record(self) -> dict[str, Any]:
        own = {"config": str(self.config.path), "at_inference": self.at_inference, "differs_in": self.differences}
        return own | super().record()


def plan_trials(configs: Sequence[Config], out: Path, *, infer: bool = False) -> list[Trial]:
    """Return the rows of the table, in the order of the paper."""
    baseline = configs[0]
    trials: dict[str, Trial] = {}
    for config in configs:
        more = [name for name in INPUTS if name in config.train.drop and name not in baseline.train.drop]
        if infer and more:
            dropped = tuple(name for name in INPUTS if name in (*baseline.train.drop, *more))
            name = f"infer-no-{'+'.join(more)}"
            trials[name] = Trial(out / name, dropped, config=baseline, baseline=baseline)
        trials[config.name] = Trial(out / config.name, config.train.drop, config=config, baseline=baseline)
    if infer and not any(trial.at_inference for trial in trials.values()):
        message = "no configuration drops an input, so there is nothing to drop at inference"
        raise InputError(message, code=ErrorCode.CONFLICTING_OPTIONS, field="--infer")
    return list(trials.values())


def is_trained(config: TrainConfig, say: Callable[[str], None]) -> bool:
    """Return whether a configuration has a finished checkpoint of the same model and data; saved states may be gone."""
    from maira.train.data.dataset import data_fingerprints

    if not (config.out / "checkpoint" / "config.json").is_file():
        return False
    states = sorted((config.out / "states").glob("step-*/state.json"))
    if not states:
        return True
    try:
        last = read_record(states[-1].parent)
        is_over = last["step"] == last["steps"] and last["length"] == [config.epochs, config.passes]
        return is_over and last["recipe"] == resume_fields(config) and bool(last["origin"] == data_fingerprints(config))
    except (InputError, RunError) as error:
        say(f"{config.out / 'checkpoint'} is used as it is; its origin cannot be checked: {error}")
        return True


def run_command(words: Sequence[str], launcher: Sequence[str] = (), *, quiet: bool = False) -> None:
    """Run a command of `maira` in its own process, which may crash; `quiet` passes its standard error only."""
    command = [*(launcher or [sys.executable]), "-m", "maira", *words]
    out = subprocess.DEVNULL if quiet else None
    error = ""
    with subprocess.Popen(command, stdout=out, stderr=subprocess.PIPE, text=True, errors="replace") as process:
        try:
            for line in process.stderr or ():
                print(line, end="", file=sys.stderr, flush=True)
                error = line.removeprefix(_ERROR).strip() if line.startswith(_ERROR) else error
            code = process.wait()
        except BaseException:
            process.terminate()
            # Until its end: a command that nobody reads from may wait forever.
            sys.stderr.write(process.communicate()[1])
            raise
    if code not in (ExitCode.SUCCESS, ExitCode.INCOMPLETE):
        end = f"was killed by signal {-code}" if code < 0 else f"failed with exit code {code}"
        raise RunError(f"{words[0]}: {error}" if error else f"maira {words[0]} {end}")


def train_and_score(
    trials: Sequence[Trial],
    scoring: Scoring,
    say: Callable[[str], None],
    *,
    task: ReportTask,
    options: Sequence[str],
    launcher: Sequence[str],
    draft_launcher: Sequence[str],
) -> tuple[dict[str, str], list[tuple[str, str]]]:
    """Train, test and score trials; return the reasons by name of failed trials, and skipped samples of the others."""
    failed: dict[str, str] = {}
    skipped: list[tuple[str, str]] = []
    trained: dict[Config, RunError | None] = {}
    for trial in trials:
        config = trial.config
        try:
            if config not in trained:
                trained[config] = _train(config, launcher, say)
            if error := trained[config]:
                raise error
            say(f"drafting {trial.name}")
            for command in _draft_commands(trial, task, scoring.references):
                run_command([*command, *options], draft_launcher, quiet=True)
            failures = read_failures(trial.folder / "failures.jsonl")
            skipped += [(f"{trial.name}: {failure.sample_id}", failure.reason) for failure in failures]
            skipped += score_experiment(trial, scoring, say)
        except (InputError, RunError) as error:
            failed[trial.name] = str(error)
            say(f"{trial.name} failed: {error}")
    return failed, skipped


def _train(config: Config, launcher: Sequence[str], say: Callable[[str], None]) -> RunError | None:
    """Train a configuration, or resume its training, unless it is finished; return the error of a failure."""
    try:
        if not is_trained(config.train, say):
            say(f"training {config.name}: {config.train.out}")
            run_command(["train", str(config.path), *config.overrides], launcher)
    except RunError as error:
        return error
    return None


def _draft_commands(trial: Trial, task: ReportTask, manifest: Path) -> Iterator[list[str]]:
    train = trial.config.train
    options = ["--checkpoint", str(train.out / "checkpoint"), "--manifest", str(manifest), "--preset", train.preset]
    options += ["--drop", "+".join(trial.dropped)] if trial.dropped else []
    yield ["generate", "--out", str(trial.drafts), "--task", task, *options]
    if task == "grounded" and any(map(has_reference_boxes, read_manifest(manifest))):
        yield ["boxes", "--out", str(trial.boxes), *options]


def describe_trials(trials: Sequence[Trial], task: ReportTask) -> Iterator[str]:
    """Describe how the models differ, and which were not trained on the task."""
    for trial in trials:
        if trial.at_inference:
            yield f"{trial.name}: the model of {trial.config.name} without {' and '.join(trial.dropped)}."
        elif trial.config is not trial.baseline:
            values = (f"{key} = {json.dumps(value)}" for key, value in trial.differences.items())
            yield f"{trial.name}: trained as {trial.baseline.name}, except {', '.join(values) or 'nothing'}."
        if not any(task in trial.config.train.shares(source) for source in trial.config.train.train):
            yield f"{trial.name}: the model was not trained on this task."


def differences_of(config: TrainConfig, baseline: TrainConfig) -> dict[str, Any]:
    """Return the values of a configuration that differ from another one (except the folder), nested keys with dots."""
    values, others = (dict(flatten(item.model_dump(mode="json", exclude={"out"}))) for item in (config, baseline))
    return {key: value for key, value in values.items() if key not in others or value != others[key]}
