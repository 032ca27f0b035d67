"""Checks of a run config before torch is imported: data, model, packages, processes and the folder of the run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from maira.runtime.processes import is_main, process_count
from maira.train.config.files import read_names
from maira.train.config.run_config import BaseTrainConfig, Source
from maira.train.config.run_folder import RECORD, changed_settings, flatten, lock_run_folder, read_record
from radfact.errors import ErrorCode, InputError, RunError, suggest_name
from radfact.io.hub import parse_hub_name


def check_run(config: BaseTrainConfig, say: Callable[[str], None], *, overwrite: bool = False) -> None:
    """Check a run config, and print what a user may not expect."""
    config.check_sources()
    check_packages(config)
    if config.global_batch < (processes := process_count()):
        message = f"expected a sample for each of {processes} processes, found {config.global_batch}"
        raise InputError(f"{message}; set global_batch={processes}", field="global_batch")
    model = config.model
    if isinstance(model, Path) and parse_hub_name(model) is None and not (model / "config.json").is_file():
        message = f"expected a checkpoint, found no config.json in {model}; set model=FOLDER, or ORG/NAME on the Hub"
        raise InputError(message, code=ErrorCode.FILE_NOT_FOUND, field="model")
    available: dict[tuple[int, Any], int] = {}
    for index, source in enumerate(config.train):
        counts = _count_samples(config, source, f"train[{index}]", say if is_main() else None)
        available |= {(index, task): count for task, count in counts.items()}
    for index, source in enumerate(config.validation.sources):
        _count_samples(config, source, f"validation.sources[{index}]")
    config.plan_steps(sum(part.used for part in config.plan_epoch(available)))
    if is_main():
        with lock_run_folder(config, overwrite=overwrite):
            for state in sorted((config.out / "states").glob(f"step-*/{RECORD}"))[-1:]:
                with suppress(RunError, KeyError):  # damaged: an earlier one may be resumed
                    changed_settings(config, read_record(state.parent), state.parent.name)


def check_packages(config: BaseTrainConfig) -> None:
    settings = dict(flatten(config.model_dump(exclude_unset=True)))
    for field, value, package, install in read_names("packages"):
        own = settings.get(field)
        if value in (own if isinstance(own, tuple) else (own,)) and find_spec(package) is None:
            message = f"{value} needs {package}, which is not installed: pip install '{install}', or set another value"
            raise InputError(message, code=ErrorCode.MISSING_REQUIREMENT, field=field)


def _count_samples(
    config: BaseTrainConfig, source: Source, field: str, say: Callable[[str], None] | None = None
) -> Counter[Any]:
    by_split, shares = source.count_samples(), config.shares(source)
    path = getattr(source, source.path_field) or getattr(source, "shards", None)
    sizes = {split: f"{split} ({sum(counts.values())})" for split, counts in by_split.items() if split is not None}
    if source.split is None:
        if len(sizes) > 1 and say is not None:
            one = f"{{{source.path_field}: {path}, split: {next(iter(sizes))}}}"
            say(f"{field}: the run trains on all splits, {', '.join(sizes.values())}; for one, write train='{one}'")
        counts = sum(by_split.values(), Counter[Any]())
    elif source.split in by_split:
        counts = by_split[source.split]
    else:
        message = f"expected a split of {path}, which has {', '.join(sizes.values()) or 'none'}, found '{source.split}'"
        hint = suggest_name(source.split, sizes, "correct or remove it")
        raise InputError(f"{message}; {hint}", code=ErrorCode.UNKNOWN_NAME, field=f"{field}.split")
    if shares and not any(counts[task] for task in shares):
        found = ", ".join(f"{count} of {task}" for task, count in counts.items() if count) or "none"
        message = f"expected samples of the task {' or '.join(shares)} in {path}, found {found}"
        raise InputError(message, code=ErrorCode.EMPTY_INPUT, field=f"{field}.tasks")
    return counts
