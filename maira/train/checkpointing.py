"""Training states to resume from, each complete or absent: `out/states/step-000500/`.

torch.distributed.checkpoint writes weights, optimizer states and the random number generators of each process, so that
a run can resume with another number of processes. `state.json` is written last, with size and checksum of every other
file: a folder without it, or with a file of another size, is incomplete.

`torch.distributed.checkpoint.async_save` is not used. It copies tensors to memory first as `save` does (64 MB on two
CPU cores, torch 2.15: 23 ms, here 19 ms), by default to shared memory, of which containers have little. And it ends
before checksums, `state.json`, the renaming and the removal of old states, which need a background thread anyway.
"""

from __future__ import annotations

import errno
import hashlib
import pickle
import random
import re
import shutil
import warnings
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from contextvars import copy_context
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributed.checkpoint import state_dict_loader, state_dict_saver
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.tensor import DTensor

from maira.train.config.run_config import BaseTrainConfig
from maira.train.parallel import TIMEOUT, DistributedContext
from radfact.errors import ErrorCode, InputError, RunError
from radfact.io.jsonl import read_json, write_json
from radfact.machine import project_version

RECORD = "state.json"
FORMAT = 1
"""Version of the format of states; increased when their content, or how it is computed (fingerprints, say), changes."""
_CHANGEABLE_FIELDS: dict[str, Any] = dict.fromkeys(
    (
        # The length of the run and its output.
        *("out", "epochs", "passes", "checkpoint_dtype", "save_every", "log_every", "keep", "trackers", "validation"),
        # How the same sums are computed.
        *("token_budget", "workers", "parallel", "activation_checkpointing", "compile", "attention"),
        # A run that an anomaly ended may be resumed with other actions.
        "faults",
    ),
    True,
) | {"grpo": dict.fromkeys(("engine", "engine_args", "importance_sampling_clip_max"), True)}
"""Fields of a configuration that may change when a run resumes."""
_NAME = re.compile(r"step-(\d+)")
_WRITING = ".writing"


@dataclass
class CheckpointManager:
    """Saves and loads the training states of a run.

    Attributes:
        out: folder of the run.
        keep: number of states kept, the last ones.
        context: processes of the run, which share the folder.
        notify: prints a line for the user.
        only_trained: omit weights that are not trained, since the model of the start has them.
        last: step of the last state that was saved or loaded; None before.
    """

    out: Path
    keep: int
    context: DistributedContext
    notify: Callable[[str], None]
    only_trained: bool = True
    last: int | None = None
    _group: Any = None
    _thread: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1, "states"))
    _pending: tuple[int, Future[None]] | None = None

    def __post_init__(self) -> None:
        if self.context.size > 1:
            # The writing threads communicate with each other independently of the main threads.
            self._group = torch.distributed.new_group(backend="gloo", timeout=TIMEOUT)

    @property
    def folder(self) -> Path:
        """Folder of the states."""
        return self.out / "states"

    def save(self, step: int, model: nn.Module, optimizer: torch.optim.Optimizer, record: dict[str, Any]) -> None:
        """Copy a state to memory and write it in the background, after the previous one; all processes call this.

        A state that cannot be written is reported, and the previous ones stay.

        Args:
            step: optimizer steps done.
            model: as the run computes with it.
            optimizer: of the model.
            record: what else is needed to resume, as JSON values.
        """
        self.finish()
        tensors = _copy_to_cpu(self._tensors(model, optimizer))
        # As bytes, since torch would take nested values apart.
        tensors["random"] = {str(self.context.rank): pickle.dumps(_random_state())}
        self._pending = step, self._thread.submit(copy_context().run, self._write, step, tensors, record)

    def finish(self) -> bool:
        """Wait until the last state is written; return whether it was, with the same result on all processes."""
        if self._pending is None:
            return True
        step, future = self._pending
        self._pending = None
        error = future.exception()
        reasons = [reason for reason in self.context.gather(_reason(error)) if reason]
        if reasons:
            self.notify(f"the state of step {step} could not be saved, the run continues: {reasons[0]}")
        else:
            self.last = step
        return not reasons

    @property
    def resume_hint(self) -> str:
        """What the same command will do next, for the last message of a run that ends early."""
        if self.last is None:
            return "no state is saved yet, so the same command starts again"
        return f"the state of step {self.last} is saved, from which the same command resumes"

    def close(self) -> None:
        """Wait for the last state and end the writing thread."""
        self._thread.shutdown()

    def find(self) -> list[Path]:
        """Return the complete states, last one first, the same on all processes; remove incomplete saves.

        Raises:
            InputError: there are states, but none of them is complete.
        """
        states: list[Path] = self.context.gather(self._find() if self.context.is_main else None)[0]
        return states

    def damaged_error(self) -> InputError:
        """Return the error of a run whose states are all damaged; a silent restart would lose the progress."""
        return InputError(
            "no state here can be read; remove the folder to start again",
            code=ErrorCode.FILE_UNREADABLE,
            file=self.folder,
        )

    def load(self, state: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """Load tensors and random number generators; all processes call this.

        Args:
            state: folder of the state.
            model: to load weights into.
            optimizer: to load states into.

        Raises:
            RunError: the state cannot be read on one of the processes.
        """
        damaged = [name for names in self.context.gather(self._damaged_files(state)) for name in names]
        if damaged:
            raise RunError(f"{state}: {damaged[0]} has changed since it was saved")
        error: BaseException | None = None
        try:
            tensors = self._tensors(model, optimizer)
            rank = str(self.context.rank)
            if f"random.{rank}" in FileSystemReader(state).read_metadata().state_dict_metadata:
                tensors["random"] = {rank: b""}
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)
                state_dict_loader.load(
                    tensors, checkpoint_id=state, process_group=self._group, no_dist=self._group is None
                )
            options = StateDictOptions(strict=not self.only_trained)
            set_model_state_dict(model, tensors["model"], options=options)
            set_optimizer_state_dict(model, optimizer, tensors["optimizer"])
            if "random" in tensors:
                _set_random_state(pickle.loads(tensors["random"][rank]))
        except (Exception, CheckpointException) as caught:  # damaged files fail in many ways
            error = caught
        if reasons := [reason for reason in self.context.gather(_reason(error)) if reason]:
            raise RunError(f"{state}: {reasons[0]}")
        self.last = read_record(state)["step"]

    def _damaged_files(self, state: Path) -> list[str]:
        """Return files whose checksum differs, among this process's share of the files."""
        checksums = read_record(state).get("checksums", {})
        share = sorted(checksums)[self.context.rank :: self.context.size]
        return [name for name in share if _checksum(state / name) != checksums[name]]

    def _tensors(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        options = StateDictOptions(ignore_frozen_params=self.only_trained)
        return {
            "model": get_model_state_dict(model, options=options),
            "optimizer": get_optimizer_state_dict(model, optimizer),
        }

    def _find(self) -> list[Path]:
        for incomplete in self.folder.glob(f"*{_WRITING}"):
            shutil.rmtree(incomplete, ignore_errors=True)
        folders = [f for f in sorted(self.folder.glob("step-*"), reverse=True) if _NAME.fullmatch(f.name)]
        complete = [folder for folder in folders if _is_complete(folder)]
        if folders and not complete:
            raise self.damaged_error()
        for folder in folders:
            if folder not in complete:
                self.notify(f"{folder} is damaged and ignored")
        return complete

    def _write(self, step: int, tensors: dict[str, Any], record: dict[str, Any]) -> None:
        state = self.folder / f"step-{step:06d}"
        temporary = state.with_name(state.name + _WRITING)
        try:
            self._write_files(temporary, tensors, {"step": step, **record})
        except BaseException as error:
            is_full = shutil.disk_usage(self.out).free < (needed := _size(tensors))
            if self.context.is_main:
                # The next state needs the space.
                shutil.rmtree(temporary, ignore_errors=True)
            cause = _system_error(error)
            if is_full or (cause and cause.errno == errno.ENOSPC):
                free = shutil.disk_usage(self.folder.parent).free
                reason = (
                    f"no space left on device ({needed / 1e9:.3g} GB are to be written, {free / 1e9:.3g} GB are free)"
                )
                raise OSError(errno.ENOSPC, reason, str(self.folder)) from error
            raise
        if not self.context.is_main:
            return
        if state.exists():
            shutil.rmtree(state)
        temporary.rename(state)
        states = sorted(f for f in self.folder.glob("step-*") if _NAME.fullmatch(f.name) and f <= state)
        with suppress(OSError):
            for old in [*states[: -self.keep], *self.folder.glob(f"*{_WRITING}")]:
                shutil.rmtree(old)

    def _write_files(self, folder: Path, tensors: dict[str, Any], record: dict[str, Any]) -> None:
        """Write the files of a state, the record last."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            state_dict_saver.save(tensors, checkpoint_id=folder, process_group=self._group, no_dist=self._group is None)
        # Each process reads the files that it has written, which are still in the page cache of its machine.
        checksums = {f.name: _checksum(f) for f in folder.iterdir() if _writer(f.name) == self.context.rank}
        if self._group is not None:
            shares: list[Any] = [None] * self.context.size
            torch.distributed.all_gather_object(shares, checksums, group=self._group)
            checksums = {name: checksum for share in shares for name, checksum in share.items()}
        if self.context.is_main:
            sizes = {file.name: file.stat().st_size for file in folder.iterdir()}
            about = {"format": FORMAT, "version": project_version()}
            write_json(folder / RECORD, {**about, **record, "sizes": sizes, "checksums": checksums})


def read_record(state: Path) -> dict[str, Any]:
    """Read the step and the record that `CheckpointManager.save` saved with the tensors.

    Raises:
        InputError: the record cannot be read, or has another format.
    """
    record: dict[str, Any] = read_json(state / RECORD)
    if (version := _format(record)) == FORMAT:
        return record
    raise InputError(
        f"was saved by {record.get('version', 'another version')} in the format {version}; this version, "
        f"{project_version()}, reads the format {FORMAT}. Resume with the version that saved it, or train in another "
        "folder; a finished checkpoint needs no states",
        code=ErrorCode.UNSUPPORTED_VERSION,
        file=state,
    )


def _format(record: dict[str, Any]) -> Any:
    """Return the format of a state.

    Development versions before 0.2.0 did not number it. Their last states have the format 1, with the field `origin`;
    in earlier ones (format 0) fields are missing.
    """
    return record.get("format", 1 if "origin" in record else 0)


def resume_fields(config: BaseTrainConfig) -> dict[str, Any]:
    """Return the fields of a configuration that must not change when a run resumes, as JSON values."""
    return config.model_dump(mode="json", exclude=_CHANGEABLE_FIELDS)


def check_same_run(state: Path, record: dict[str, Any], config: BaseTrainConfig) -> None:
    """Check that a state was saved by a run of this configuration.

    Args:
        state: folder of the state.
        record: its record.
        config: of the run that resumes.

    Raises:
        InputError: the configurations differ; the fields are named.
    """
    saved, current = record["recipe"], resume_fields(config)
    if changed := [key for key in current if saved.get(key) != current[key]]:
        raise InputError(
            f"{config.out} holds a run with another {', '.join(changed)} ({state.name}); set another `out`, or remove "
            "the folder",
            code=ErrorCode.OUTPUT_CONFLICT,
            field="out",
        )


def _is_complete(folder: Path) -> bool:
    try:
        record = read_json(folder / RECORD)
        if _format(record) != FORMAT:
            return True  # only another version can tell; `read_record` raises
        return all((folder / name).stat().st_size == size for name, size in record["sizes"].items())
    except (InputError, OSError, KeyError, TypeError, AttributeError):
        return False


def _writer(name: str) -> int:
    """Return the rank that wrote a file of torch.distributed.checkpoint; shared files are written by the first."""
    match = re.match(r"__(\d+)_", name)
    return int(match[1]) if match else 0


def _checksum(file: Path) -> str:
    """Return the BLAKE2b checksum of a file, empty if it cannot be read."""
    try:
        with file.open("rb") as handle:
            return hashlib.file_digest(handle, lambda: hashlib.blake2b(digest_size=16)).hexdigest()
    except OSError:
        return ""


def _size(tensors: Any) -> int:
    """Return the bytes of all tensors in nested dictionaries, of sharded ones this process's part."""
    if isinstance(tensors, dict):
        return sum(map(_size, tensors.values()))
    if isinstance(tensors, Tensor):
        local = tensors.to_local() if isinstance(tensors, DTensor) else tensors
        return local.numel() * local.element_size()
    return 0


def _first(error: BaseException) -> BaseException:
    """Return the first error of several processes."""
    return next(iter(error.failures.values()))[0] if isinstance(error, CheckpointException) else error


def _system_error(error: BaseException) -> OSError | None:
    """Return the operating system's error that an error comes from, if any, however it was wrapped."""
    cause: BaseException | None = _first(error)
    while cause is not None:
        if isinstance(cause, OSError) and cause.strerror:
            return cause
        cause = cause.__cause__ or cause.__context__
    return None


def _reason(error: BaseException | None) -> str:
    """Return an error as part of a line, empty for None."""
    if error is None:
        return ""
    if cause := _system_error(error):
        return f"{cause.filename}: {cause.strerror}" if cause.filename else str(cause.strerror)
    error = _first(error)
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"


def _copy_to_cpu(value: Any) -> Any:
    """Return nested dictionaries with all tensors copied to the CPU."""
    if isinstance(value, dict):
        return {key: _copy_to_cpu(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_copy_to_cpu(part) for part in value)
    return value.detach().to("cpu", copy=True) if isinstance(value, Tensor) else value


def _random_state() -> dict[str, Any]:
    cuda = torch.cuda.is_available()
    return {
        "python": random.getstate(),
        "numpy": np.random.get_state(),
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state() if cuda else None,
    }


def _set_random_state(state: dict[str, Any]) -> None:
    random.setstate(state["python"])
    np.random.set_state(state["numpy"])
    torch.set_rng_state(state["torch"])
    if state["cuda"] is not None and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])
