"""States of a run to go on from, whole or not at all: `out/states/step-000500/`.

torch.distributed.checkpoint writes weights, optimizer states and the random numbers of each process, so that a run can
go on with another number of processes. `state.json` comes last and has size and checksum of every other file: a folder
without it, or with a file of another size, was cut off.
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
from maira.train.parallel import PATIENCE, DistributedContext
from radfact.doctor.packages import project_version
from radfact.errors import InputError, RunError
from radfact.io.jsonl import read_json, write_json

RECORD = "state.json"
FORMAT = 1
"""Of a state; another number when what stands in one, or how it is reckoned (fingerprints, say), is made otherwise."""
_FREE = {
    # How long the run is and what it leaves behind.
    *("out", "epochs", "passes", "checkpoint_dtype", "save_every", "log_every", "keep", "trackers", "validation"),
    # How the same sums are computed.
    *("token_budget", "workers", "parallel", "activation_checkpointing", "compile", "attention"),
    # What becomes of a fault must be open to change after a run has ended by one.
    "faults",
}
"""Fields of a recipe that may change from one start of a run to the next."""
_NAME = re.compile(r"step-(\d+)")
_WRITING = ".writing"


@dataclass
class CheckpointManager:
    """The states of a run.

    Attributes:
        out: folder of the run.
        keep: how many are kept, the last ones.
        world: all of its processes share the folder.
        say: tells the person who waits.
        only_trained: weights that are not trained are left out, since the run's own start has them.
        last: step of the last state that was saved or loaded; None before.
    """

    out: Path
    keep: int
    world: DistributedContext
    say: Callable[[str], None]
    only_trained: bool = True
    last: int | None = None
    _group: Any = None
    _thread: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1, "states"))
    _writing: tuple[int, Future[None]] | None = None

    def __post_init__(self) -> None:
        if self.world.size > 1:
            # The thread that writes talks to those of the other processes beside the main threads.
            self._group = torch.distributed.new_group(backend="gloo", timeout=PATIENCE)

    @property
    def folder(self) -> Path:
        """Where they lie."""
        return self.out / "states"

    def save(self, step: int, model: nn.Module, optimizer: torch.optim.Optimizer, record: dict[str, Any]) -> None:
        """Copy a state to memory and write it in the background, after the one before it; all processes call this.

        A state that cannot be written is said to be so, and the ones before it stay.

        Args:
            step: optimiser steps done.
            model, optimizer: as the run computes with them.
            record: what else the run needs to go on, as JSON values.
        """
        self.finish()
        tensors = _to_memory(self._tensors(model, optimizer))
        # As bytes: what is in it must not be taken apart.
        tensors["random"] = {str(self.world.rank): pickle.dumps(_random_state())}
        self._writing = step, self._thread.submit(self._write, step, tensors, record)

    def finish(self) -> bool:
        """Wait until the last state is written; returns whether it was, on all processes alike."""
        if self._writing is None:
            return True
        step, written = self._writing
        self._writing = None
        error = written.exception()
        faults = [reason for reason in self.world.gather(_reason(error)) if reason]
        if faults:
            self.say(f"the state of step {step} could not be saved, the run goes on: {faults[0]}")
        else:
            self.last = step
        return not faults

    @property
    def resume_hint(self) -> str:
        """What the same command will do, for the last line of a run that ends before its time."""
        if self.last is None:
            return "no state is saved yet, so that the same command starts again"
        return f"the state of step {self.last} is saved, from which the same command goes on"

    def close(self) -> None:
        """Wait for the last state, and end the thread that writes."""
        self._thread.shutdown()

    def found(self) -> list[Path]:
        """The whole states, the last one first, the same on all processes; what an interrupted save left is removed.

        Raises:
            InputError: there are states, and none of them is whole.
        """
        found: list[Path] = self.world.gather(self._found() if self.world.is_main else None)[0]
        return found

    def lost(self) -> InputError:
        """The error of a run whose states are all damaged: to begin anew without a word would cost what was learnt."""
        return InputError("no state here can be read; remove the folder to start again", file=self.folder)

    def load(self, state: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """Take on the tensors and random numbers of a state; all processes call this.

        Raises:
            RunError: it cannot be read, on any of the processes.
        """
        damaged = [name for part in self.world.gather(self._damaged(state)) for name in part]
        if damaged:
            raise RunError(f"{state}: {damaged[0]} is not as it was written")
        error: BaseException | None = None
        try:
            tensors = self._tensors(model, optimizer)
            own = str(self.world.rank)
            if f"random.{own}" in FileSystemReader(state).read_metadata().state_dict_metadata:
                tensors["random"] = {own: b""}
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)
                state_dict_loader.load(
                    tensors, checkpoint_id=state, process_group=self._group, no_dist=self._group is None
                )
            options = StateDictOptions(strict=not self.only_trained)
            set_model_state_dict(model, tensors["model"], options=options)
            set_optimizer_state_dict(model, optimizer, tensors["optimizer"])
            if "random" in tensors:
                _set_random_state(pickle.loads(tensors["random"][own]))
        except (Exception, CheckpointException) as caught:  # whatever a damaged file makes of the reader
            error = caught
        if faults := [reason for reason in self.world.gather(_reason(error)) if reason]:
            raise RunError(f"{state}: {faults[0]}")
        self.last = read_record(state)["step"]

    def _damaged(self, state: Path) -> list[str]:
        """Files of a state that are not as they were written, of this process's share of them."""
        checksums = read_record(state).get("checksums", {})
        share = sorted(checksums)[self.world.rank :: self.world.size]
        return [name for name in share if _checksum(state / name) != checksums[name]]

    def _tensors(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        options = StateDictOptions(ignore_frozen_params=self.only_trained)
        return {
            "model": get_model_state_dict(model, options=options),
            "optimizer": get_optimizer_state_dict(model, optimizer),
        }

    def _found(self) -> list[Path]:
        for left in self.folder.glob(f"*{_WRITING}"):
            shutil.rmtree(left, ignore_errors=True)
        folders = [f for f in sorted(self.folder.glob("step-*"), reverse=True) if _NAME.fullmatch(f.name)]
        whole = [folder for folder in folders if _is_whole(folder)]
        if folders and not whole:
            raise self.lost()
        for folder in folders:
            if folder not in whole:
                self.say(f"{folder} is damaged and left out")
        return whole

    def _write(self, step: int, tensors: dict[str, Any], record: dict[str, Any]) -> None:
        done = self.folder / f"step-{step:06d}"
        fresh = done.with_name(done.name + _WRITING)
        try:
            self._fill(fresh, tensors, {"step": step, **record})
        except BaseException as error:
            # What is left of it takes the place that the next one needs.
            is_full = shutil.disk_usage(self.out).free < (needed := _size(tensors))
            if self.world.is_main:
                shutil.rmtree(fresh, ignore_errors=True)
            cause = _system_error(error)
            if is_full or (cause and cause.errno == errno.ENOSPC):
                raise _no_space(self.folder, needed) from error
            raise
        if not self.world.is_main:
            return
        if done.exists():
            shutil.rmtree(done)
        fresh.rename(done)
        self._forget(done)

    def _fill(self, fresh: Path, tensors: dict[str, Any], record: dict[str, Any]) -> None:
        """Write the files of a state; the record comes last."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            state_dict_saver.save(tensors, checkpoint_id=fresh, process_group=self._group, no_dist=self._group is None)
        # Each process reads again what it wrote itself, which its machine still has in memory.
        checksums = {f.name: _checksum(f) for f in fresh.iterdir() if _writer(f.name) == self.world.rank}
        if self._group is not None:
            parts: list[Any] = [None] * self.world.size
            torch.distributed.all_gather_object(parts, checksums, group=self._group)
            checksums = {name: checksum for part in parts for name, checksum in part.items()}
        if self.world.is_main:
            sizes = {file.name: file.stat().st_size for file in fresh.iterdir()}
            about = {"format": FORMAT, "version": project_version()}
            write_json(fresh / RECORD, {**about, **record, "sizes": sizes, "checksums": checksums})

    def _forget(self, last: Path) -> None:
        """Remove what is older than the kept states, and what a save that failed left behind."""
        states = sorted(f for f in self.folder.glob("step-*") if _NAME.fullmatch(f.name) and f <= last)
        with suppress(OSError):
            for old in [*states[: -self.keep], *self.folder.glob(f"*{_WRITING}")]:
                shutil.rmtree(old)


def read_record(state: Path) -> dict[str, Any]:
    """What `CheckpointManager.save` was given beside the tensors, and `step`.

    Raises:
        InputError: it cannot be read, or a version that makes states otherwise saved it.
    """
    record: dict[str, Any] = read_json(state / RECORD)
    if (held := _format(record)) == FORMAT:
        return record
    raise InputError(
        f"was saved by {record.get('version', 'another version')} in the format {held}; this version, "
        f"{project_version()}, reads the format {FORMAT}. Go on with the version that saved it, or train in another "
        "folder; a checkpoint that is finished needs no states",
        file=state,
    )


def _format(record: dict[str, Any]) -> Any:
    """The format of a state; one that does not name it is of the first."""
    return record.get("format", 1)


def resume_fields(config: BaseTrainConfig) -> dict[str, Any]:
    """The part of a recipe that must stay as it is for its run to go on, as JSON values; a run may be made longer."""
    return config.model_dump(mode="json", exclude=_FREE)


def check_same_run(state: Path, record: dict[str, Any], config: BaseTrainConfig) -> None:
    """Check that a state was saved by a run of this recipe.

    Args:
        state: its folder.
        record: what it says of itself.
        config: of the run that is to go on.

    Raises:
        InputError: it was another one; what differs is named.
    """
    held, mine = record["recipe"], resume_fields(config)
    if changed := [key for key in mine if held.get(key) != mine[key]]:
        raise InputError(
            f"{config.out} holds a run with another {', '.join(changed)} ({state.name}); name another folder or remove "
            "that one",
            field="out",
        )


def _is_whole(folder: Path) -> bool:
    try:
        record = read_json(folder / RECORD)
        if _format(record) != FORMAT:
            return True  # it is another version that could tell, which whoever reads the record is told
        return all((folder / name).stat().st_size == size for name, size in record["sizes"].items())
    except (InputError, OSError, KeyError, TypeError, AttributeError):
        return False


def _writer(name: str) -> int:
    """The process that wrote a file of torch.distributed.checkpoint; what they have in common the first one did."""
    found = re.match(r"__(\d+)_", name)
    return int(found[1]) if found else 0


def _checksum(file: Path) -> str:
    """BLAKE2b of a file's bytes; empty if they cannot be read."""
    try:
        with file.open("rb") as handle:
            return hashlib.file_digest(handle, lambda: hashlib.blake2b(digest_size=16)).hexdigest()
    except OSError:
        return ""


def _size(tensors: Any) -> int:
    """Bytes of all tensors in nested dictionaries, of sharded ones this process's part."""
    if isinstance(tensors, dict):
        return sum(map(_size, tensors.values()))
    if isinstance(tensors, Tensor):
        local = tensors.to_local() if isinstance(tensors, DTensor) else tensors
        return local.numel() * local.element_size()
    return 0


def _no_space(folder: Path, needed: int) -> OSError:
    free = shutil.disk_usage(folder.parent).free
    reason = f"no space left on device ({needed / 1e9:.3g} GB are to be written, {free / 1e9:.3g} GB are free)"
    return OSError(errno.ENOSPC, reason, str(folder))


def _first(error: BaseException) -> BaseException:
    """Of several processes' errors the first one."""
    return next(iter(error.failures.values()))[0] if isinstance(error, CheckpointException) else error


def _system_error(error: BaseException) -> OSError | None:
    """What an error comes from, however it was wrapped, if the system said no."""
    cause: BaseException | None = _first(error)
    while cause is not None:
        if isinstance(cause, OSError) and cause.strerror:
            return cause
        cause = cause.__cause__ or cause.__context__
    return None


def _reason(error: BaseException | None) -> str:
    """An error as part of a line; empty without one."""
    if error is None:
        return ""
    if cause := _system_error(error):
        return f"{cause.filename}: {cause.strerror}" if cause.filename else str(cause.strerror)
    error = _first(error)
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"


def _to_memory(value: Any) -> Any:
    """The same nested dictionaries with tensors copied to the CPU."""
    if isinstance(value, dict):
        return {key: _to_memory(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_to_memory(part) for part in value)
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
