"""The folder of a run: its lock, and whether the settings of a run config may resume a training state."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from maira.train.config.run_config import BaseTrainConfig
from radfact.errors import ErrorCode, InputError, RunError
from radfact.io.jsonl import read_json
from radfact.io.outputs import Output, lock_output
from radfact.machine import project_version

RECORD = "state.json"
FORMAT = 3
"""Version of the format of states; increased when their content, or how it is computed (fingerprints, say), changes."""
_FOLDER = Output("folder", content="training", is_private=False)
_FREE_FIELDS: dict[str, Any] = dict.fromkeys(
    (
        # The length of the run and its output.
        *("out", "epochs", "passes", "checkpoint_dtype", "save_every", "log_every", "keep", "trackers", "validation"),
        # How the same sums are computed.
        *("token_budget", "workers", "parallel", "activation_checkpointing", "compile", "attention"),
        # Recorded apart from the other fields.
        "faults",
    ),
    True,
) | {"grpo": dict.fromkeys(("engine", "engine_args", "importance_sampling_clip_max"), True)}
"""Fields of a configuration that may change when a run resumes, and are not recorded."""
OPTIMIZER_FIELDS = ("learning_rate", "warmup", "betas", "weight_decay", "clip")
"""Fields that may change and are recorded: neither the order of the data nor the shape of a state depends on them."""


@contextmanager
def lock_run_folder(config: BaseTrainConfig, *, overwrite: bool) -> Iterator[bool]:
    """Lock the folder of a run; yield whether it was empty, so that a refused run can remove what it has written."""
    sources = (*config.train, *config.validation.sources)
    inputs = [path for source in sources for _, path in source if isinstance(path, Path)]
    with lock_output(config.out, _FOLDER, inputs=inputs, overwrite=overwrite) as is_locked:
        yield is_locked and all(path.name.startswith(".") for path in config.out.iterdir())


def read_record(state: Path) -> dict[str, Any]:
    """Read the step and the record that `CheckpointManager.save` saved with the tensors; RunError if it is damaged."""
    try:
        record: dict[str, Any] = read_json(state / RECORD)
        version = record.get("format", 0)
    except (InputError, AttributeError) as error:
        raise RunError(f"{state}: {error}") from None
    if version == FORMAT:
        return record
    origin = f"was saved by {record.get('version', 'another version')} in the format {version}"
    message = f"{origin}, and this code, of version {project_version()}, reads the format {FORMAT}. Resume with the "
    message += "code that saved it, or train in another folder; a finished checkpoint needs no states"
    raise InputError(message, code=ErrorCode.UNSUPPORTED_VERSION, file=state)


def resume_fields(config: BaseTrainConfig) -> dict[str, Any]:
    """Return the fields of a configuration that identify a run, as JSON values."""
    return config.model_dump(mode="json", exclude=_FREE_FIELDS)


def changed_settings(config: BaseTrainConfig, record: Mapping[str, Any], state: str) -> dict[str, list[Any]]:
    """Return the recorded settings that differ from those of a state, [old, new] by name; refuse other differences."""
    new = resume_fields(config) | {"faults": config.faults.model_dump(mode="json")}
    saved = record["recipe"] | {"faults": record.get("faults", new["faults"])}
    before, after = (dict(flatten({name: values.get(name) for name in new})) for values in (saved, new))
    names = [name for name in before | after if before.get(name) != after.get(name)]
    if refused := [name for name in names if name.split(".")[0] not in (*OPTIMIZER_FIELDS, "faults")]:
        message = f"{config.out} holds a run with another {', '.join(refused)} ({state})"
        raise InputError(f"{message}; set another `out`", code=ErrorCode.OUTPUT_CONFLICT, field="out")
    return {name: [before.get(name), after.get(name)] for name in names}


def flatten(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the values of nested mappings, with the keys to them joined by dots."""
    for key, value in values.items():
        if isinstance(value, dict):
            yield from flatten(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value
