"""Training states to resume from, each complete or absent: `out/states/step-000500/`.

Each process writes its part of the weights and optimizer states, with its random number generators, as tensors and JSON
in one safetensors file, so that a run can resume with another number of processes and reading a state runs no code.
The folder gets its name when all files are written. A damaged one is found when it is loaded: safetensors checks the
header and the size of a file, and every number of a tensor must be in one of them.
"""

from __future__ import annotations

import errno
import json
import math
import os
import re
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from contextvars import copy_context
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict, get_optimizer_state_dict
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from maira.runtime.processes import DistributedContext
from maira.train.config.run_folder import FORMAT, RECORD, read_record
from maira.train.parallel import TIMEOUT
from radfact.errors import ErrorCode, InputError, RunError
from radfact.io.jsonl import write_json
from radfact.machine import project_version

_NAME = re.compile(r"step-(\d+)")
_WRITING = ".writing"


class _Part(NamedTuple):
    """This process's part of a tensor of the state, and the position of its first element in the whole tensor."""

    tensor: Tensor
    offset: list[int]
    is_sharded: bool


@dataclass
class CheckpointManager:
    """Saves and loads the training states of a run."""

    out: Path
    keep: int  # number of states kept, the last ones
    context: DistributedContext  # processes of the run, which share the folder
    notify: Callable[[str], None]  # prints a line for the user
    only_trained: bool = True  # omit weights that are not trained, since the model of the start has them
    last: int | None = None  # step of the last state that was saved or loaded; None before
    _group: Any = None
    _thread: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1, "states"))
    _pending: tuple[int, Future[None]] | None = None
    _buffers: dict[str, Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.folder = self.out / "states"
        if self.context.size > 1:
            # The writing threads communicate with each other independently of the main threads.
            self._group = torch.distributed.new_group(backend="gloo", timeout=TIMEOUT)

    @torch.no_grad()
    def save(self, step: int, model: nn.Module, optimizer: torch.optim.Optimizer, record: dict[str, Any]) -> None:
        """Copy a state to memory and write it in the background, after the previous one; all processes call this."""
        # A state that cannot be written is reported, and the previous ones stay.
        self.finish()
        # Copies from a GPU wait for it once; their pinned memory is kept, since pinning takes longer than copying.
        on_gpu, parts = self.context.device.type == "cuda", dict[str, _Part]()
        buffers = self._buffers if on_gpu else {}
        for name, part in self._parts(model, optimizer):
            if self.context.is_main or part.is_sharded:
                if name not in buffers:
                    buffers[name] = torch.empty(part.tensor.shape, dtype=part.tensor.dtype, pin_memory=on_gpu)
                parts[name] = part._replace(tensor=buffers[name].copy_(part.tensor, non_blocking=True))
        if on_gpu:
            torch.cuda.synchronize()
        # Of torch's random number generators, the only ones that a step uses.
        cuda = torch.cuda.get_rng_state().tolist() if torch.cuda.is_available() else None
        random_state = json.dumps({"torch": torch.get_rng_state().tolist(), "cuda": cuda})
        write = partial(self._write, step, parts, random_state, record)
        self._pending = step, self._thread.submit(copy_context().run, write)

    def finish(self) -> bool:
        """Wait until the last state is written; return whether it was, with the same result on all processes."""
        if self._pending is None:
            return True
        step, future = self._pending
        self._pending = None
        reasons = [reason for reason in self.context.gather(_reason(future.exception())) if reason]
        if reasons:
            self.notify(f"the state of step {step} could not be saved, the run continues: {reasons[0]}")
        else:
            self.last = step
        return not reasons

    def mark_anomaly(self, step: int) -> int | None:
        """Mark the states from a step on as leading to an anomaly; return the step of the last one before it."""
        steps = {int(state.name.removeprefix("step-")): state for state in self.find()}
        for number, state in steps.items():
            if self.context.is_main and number >= step:
                with suppress(RunError, OSError):  # the run ends with the error of the anomaly
                    write_json(state / RECORD, read_record(state) | {"leads_to_anomaly": True})
        return max((number for number in steps if number < step), default=None)

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
        """Return the states, last one first, the same on all processes; remove incomplete saves."""
        states: list[Path] = []
        if self.context.is_main:
            for incomplete in self.folder.glob(f"*{_WRITING}"):
                shutil.rmtree(incomplete, ignore_errors=True)
            states = sorted((f for f in self.folder.glob("step-*") if _NAME.fullmatch(f.name)), reverse=True)
        found: list[Path] = self.context.gather(states)[0]
        return found

    def resume(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, is_usable: Callable[[Path, dict[str, Any]], bool]
    ) -> dict[str, Any] | None:
        """Load the last readable state whose record can be used, and return the record; None without any such state."""
        is_damaged = False
        for state in self.find():
            try:
                record = read_record(state)
                if is_usable(state, record):
                    self.load(state, model, optimizer)
                    return record
            except (RunError, KeyError) as error:
                reason = f"{state}: {RECORD} lacks {error}" if isinstance(error, KeyError) else error
                self.notify(f"{reason}; it is damaged, and the previous state is tried")
                is_damaged = True
        if is_damaged:
            message = "no state here can be read; remove the folder to start again"
            raise InputError(message, code=ErrorCode.FILE_UNREADABLE, file=self.folder)
        return None

    @torch.no_grad()
    def load(self, state: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """Load tensors and random number generators in place, or raise a RunError; all processes call this."""
        reason, record = "", read_record(state)
        try:
            with ExitStack() as stack:
                files = [stack.enter_context(safe_open(file, "pt")) for file in sorted(state.glob("rank-*"))]
                if len(files) != record["processes"]:
                    raise ValueError(f"expected files of {record['processes']} processes, found {len(files)}")
                offsets = [json.loads(file.metadata()["offsets"]) for file in files]
                for name, part in self._parts(model, optimizer):
                    sources = zip(files, offsets, strict=True)
                    pieces = [(file.get_slice(name), own[name]) for file, own in sources if name in own]
                    count = sum(_copy_overlap(part, piece, offset) for piece, offset in pieces)
                    if count != part.tensor.numel():
                        raise ValueError(f"{name}: expected {part.tensor.numel()} numbers, found {count}")
                if self.context.rank < len(files):
                    random = json.loads(files[self.context.rank].metadata()["random"])
                    torch.set_rng_state(torch.tensor(random["torch"], dtype=torch.uint8))
                    if random["cuda"] is not None and torch.cuda.is_available():
                        torch.cuda.set_rng_state(torch.tensor(random["cuda"], dtype=torch.uint8))
        except Exception as error:  # damaged files fail in many ways
            reason = _reason(error)
        if failed := next(filter(None, self.context.gather(reason)), None):
            raise RunError(f"{state}: {failed}")
        self.last = record["step"]

    def _parts(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> Iterator[tuple[str, _Part]]:
        """Yield this process's part of each tensor of a state by name; it shares the memory of model and optimizer."""
        weights = get_model_state_dict(model, options=StateDictOptions(ignore_frozen_params=self.only_trained))
        states: Any = get_optimizer_state_dict(model, optimizer)["state"]
        for name, weight in weights.items():
            if isinstance(weight, Tensor):
                yield from _tensor_parts(f"model.{name}", weight)
        for parameter, state in states.items():
            for name, tensor in state.items():
                yield from _tensor_parts(f"optimizer.{parameter}.{name}", tensor)

    def _write(self, step: int, parts: dict[str, _Part], random_state: str, record: dict[str, Any]) -> None:
        state = self.folder / f"step-{step:06d}"
        temporary = state.with_name(state.name + _WRITING)
        try:
            self._write_parts(temporary, parts, random_state)
            if not self.context.is_main:
                return
            about = {"format": FORMAT, "version": project_version(), "step": step, "processes": self.context.size}
            write_json(temporary / RECORD, {**about, **record})
            if state.exists():
                shutil.rmtree(state)
            temporary.rename(state)
        except BaseException:
            if self.context.is_main:
                # The next state needs the space.
                shutil.rmtree(temporary, ignore_errors=True)
            raise
        states = sorted(f for f in self.folder.glob("step-*") if _NAME.fullmatch(f.name) and f <= state)
        with suppress(OSError):
            for old in [*states[: -self.keep], *self.folder.glob(f"*{_WRITING}")]:
                shutil.rmtree(old)

    def _write_parts(self, folder: Path, parts: dict[str, _Part], random_state: str) -> None:
        """Write the file of this process, and wait until all processes have written theirs."""
        file = folder / f"rank-{self.context.rank:05}.safetensors"
        offsets = json.dumps({name: part.offset for name, part in parts.items()})
        reason = ""
        try:
            folder.mkdir(parents=True, exist_ok=True)
            tensors = {name: part.tensor for name, part in parts.items()}
            save_file(tensors, file, metadata={"offsets": offsets, "random": random_state})
            # Renamed only when it is on the disk: a file cut short by a power failure may have its size and header.
            with file.open("rb") as written:
                os.fsync(written.fileno())
        except Exception as error:  # sent to the other processes, which would wait
            reason = _reason(error)
        if reason.endswith(os.strerror(errno.ENOSPC)):
            size, free = sum(part.tensor.nbytes for part in parts.values()), shutil.disk_usage(self.out).free
            reason = f"{self.folder}: {reason} ({size / 1e9:.3g} GB are to be written, {free / 1e9:.3g} GB are free)"
        reasons = [reason] * self.context.size
        if self._group is not None:
            torch.distributed.all_gather_object(reasons, reasons[0], group=self._group)
        if failed := next(filter(None, reasons), None):
            raise RunError(failed)


def _tensor_parts(name: str, tensor: Tensor) -> Iterator[tuple[str, _Part]]:
    offset, local, is_sharded = [0] * tensor.ndim, tensor, False
    if isinstance(tensor, DTensor):
        local = tensor.to_local()
        is_sharded = any(placement.is_shard() for placement in tensor.placements)
        offset = list(compute_local_shape_and_global_offset(tensor.shape, tensor.device_mesh, tensor.placements)[1])
    if isinstance(codes := getattr(local, "codes", None), Tensor):
        # An optimizer state in 8 bits (torchao), with one scale for each block of the flattened codes.
        states: Any = local
        first_block = offset[0] * math.prod(local.shape[1:]) // states.block_size
        yield f"{name}.codes", _Part(codes, offset, is_sharded)
        yield f"{name}.scale", _Part(states.scale, [first_block], is_sharded)
    else:
        yield name, _Part(local, offset, is_sharded)


def _copy_overlap(part: _Part, saved: Any, offset: list[int]) -> int:
    """Copy the elements that a part and a saved part of the same tensor share; return their number."""
    sizes = zip(part.offset, part.tensor.shape, offset, saved.get_shape(), strict=True)
    spans = [(max(own, other), min(own + size, other + count)) for own, size, other, count in sizes]
    if any(begin >= end for begin, end in spans):
        return 0
    source = tuple(slice(begin - start, end - start) for (begin, end), start in zip(spans, offset, strict=True))
    target = tuple(slice(begin - start, end - start) for (begin, end), start in zip(spans, part.offset, strict=True))
    part.tensor[target].copy_(saved[source])
    return math.prod(end - begin for begin, end in spans)


def _reason(error: BaseException | None) -> str:
    """Return an error as part of a line, empty for None."""
    if error is None:
        return ""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    # safetensors gives the number of the system's error as text.
    if match := re.search(r"os error (\d+)", str(error)):
        return os.strerror(int(match[1]))
    prefix = "" if isinstance(error, RunError | InputError) else f"{type(error).__name__}: "
    return f"{prefix}{' '.join(str(error).split())[:300]}"
