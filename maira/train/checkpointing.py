"""Training states to resume from, each complete or absent: `out/states/step-000500/`.

Each process writes its part of the weights and optimizer states, with its random number generators, as tensors and JSON
in one safetensors file, so that a run can resume with another number of processes and reading a state runs no code.
`state.json` is written last, with the size of every other file: a folder without it, or with a file of another size, is
incomplete.
"""

from __future__ import annotations

import errno
import json
import math
import os
import random
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

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
)
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from maira.runtime.processes import DistributedContext
from maira.train.config.run_config import BaseTrainConfig
from maira.train.parallel import TIMEOUT
from radfact.errors import ErrorCode, InputError, RunError
from radfact.io.jsonl import read_json, write_json
from radfact.machine import project_version

RECORD = "state.json"
FORMAT = 2
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


class _Part(NamedTuple):
    """This process's part of a tensor of the state, and the position of its first element in the whole tensor."""

    tensor: Tensor
    offset: list[int]
    is_sharded: bool


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

    @torch.no_grad()
    def save(self, step: int, model: nn.Module, optimizer: torch.optim.Optimizer, record: dict[str, Any]) -> None:
        """Copy a state to memory and write it in the background, after the previous one; all processes call this.

        A state that cannot be written is reported, and the previous ones stay. `record` is what else is needed to
        resume, as JSON values.
        """
        self.finish()
        parts = {
            name: part._replace(tensor=part.tensor.detach().to("cpu", copy=True).contiguous())
            for name, part in self._parts(model, optimizer)
            if self.context.is_main or part.is_sharded
        }
        write = partial(self._write, step, parts, json.dumps(_random_state()), record)
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
        """Return the complete states, last one first, the same on all processes; remove incomplete saves."""
        states: list[Path] = self.context.gather(self._find() if self.context.is_main else None)[0]
        return states

    def damaged_error(self) -> InputError:
        """Return the error of a run whose states are all damaged; a silent restart would lose the progress."""
        return InputError(
            "no state here can be read; remove the folder to start again",
            code=ErrorCode.FILE_UNREADABLE,
            file=self.folder,
        )

    @torch.no_grad()
    def load(self, state: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """Load tensors and random number generators in place; all processes call this.

        Raises:
            RunError: the state cannot be read on one of the processes.
        """
        error: Exception | None = None
        try:
            with ExitStack() as stack:
                files = [stack.enter_context(safe_open(file, "pt")) for file in _files(state)]
                offsets = [json.loads(file.metadata()["offsets"]) for file in files]
                for name, part in self._parts(model, optimizer):
                    sources = zip(files, offsets, strict=True)
                    pieces = [(file.get_slice(name), own[name]) for file, own in sources if name in own]
                    count = sum(_copy_overlap(part, piece, offset) for piece, offset in pieces)
                    if count != part.tensor.numel():
                        raise ValueError(f"{name}: expected {part.tensor.numel()} numbers, found {count}")
                if self.context.rank < len(files):
                    _set_random_state(json.loads(files[self.context.rank].metadata()["random"]))
        except Exception as caught:  # damaged files fail in many ways
            error = caught
        if reasons := [reason for reason in self.context.gather(_reason(error)) if reason]:
            raise RunError(f"{state}: {reasons[0]}")
        self.last = read_record(state)["step"]

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

    def _write(self, step: int, parts: dict[str, _Part], random_state: str, record: dict[str, Any]) -> None:
        state = self.folder / f"step-{step:06d}"
        temporary = state.with_name(state.name + _WRITING)
        try:
            sizes = self._write_parts(temporary, parts, random_state)
            if not self.context.is_main:
                return
            about = {"format": FORMAT, "version": project_version(), "step": step}
            write_json(temporary / RECORD, {**about, **record, "sizes": sizes})
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

    def _write_parts(self, folder: Path, parts: dict[str, _Part], random_state: str) -> dict[str, int]:
        """Write the file of this process, and return the sizes of the files of all processes, once all are written."""
        file = folder / f"rank-{self.context.rank:05}.safetensors"
        offsets = json.dumps({name: part.offset for name, part in parts.items()})
        own: dict[str, int] | str
        try:
            folder.mkdir(parents=True, exist_ok=True)
            tensors = {name: part.tensor for name, part in parts.items()}
            save_file(tensors, file, metadata={"offsets": offsets, "random": random_state})
            # Renamed only when it is on the disk: a file cut short by a power failure may have its size and header.
            with file.open("rb") as written:
                os.fsync(written.fileno())
            own = {file.name: file.stat().st_size}
        except Exception as error:  # sent to the other processes, which would wait
            own = _write_failure(error, self.folder, sum(part.tensor.nbytes for part in parts.values()))
        results: list[dict[str, int] | str] = [own] * self.context.size
        if self._group is not None:
            torch.distributed.all_gather_object(results, own, group=self._group)
        sizes: dict[str, int] = {}
        for result in results:
            if isinstance(result, str):
                raise RunError(result)
            sizes |= result
        return sizes


def read_record(state: Path) -> dict[str, Any]:
    """Read the step and the record that `CheckpointManager.save` saved with the tensors."""
    record: dict[str, Any] = read_json(state / RECORD)
    if (version := record.get("format", 0)) == FORMAT:
        return record
    raise InputError(
        f"was saved by {record.get('version', 'another version')} in the format {version}; this version, "
        f"{project_version()}, reads the format {FORMAT}. Resume with the version that saved it, or train in another "
        "folder; a finished checkpoint needs no states",
        code=ErrorCode.UNSUPPORTED_VERSION,
        file=state,
    )


def resume_fields(config: BaseTrainConfig) -> dict[str, Any]:
    """Return the fields of a configuration that must not change when a run resumes, as JSON values."""
    return config.model_dump(mode="json", exclude=_CHANGEABLE_FIELDS)


def check_same_run(state: Path, record: dict[str, Any], config: BaseTrainConfig) -> None:
    """Check that a state was saved by a run of this configuration."""
    saved, current = record["recipe"], resume_fields(config)
    if changed := [key for key in current if saved.get(key) != current[key]]:
        raise InputError(
            f"{config.out} holds a run with another {', '.join(changed)} ({state.name}); set another `out`, or remove "
            "the folder",
            code=ErrorCode.OUTPUT_CONFLICT,
            field="out",
        )


def _files(state: Path) -> list[Path]:
    return sorted(state.glob("rank-*.safetensors"))


def _is_complete(folder: Path) -> bool:
    try:
        record = read_json(folder / RECORD)
        if record.get("format", 0) != FORMAT:
            return True  # only another version can tell; `read_record` raises
        for file in _files(folder):
            with safe_open(file, "pt"):  # its header can be read
                pass
        return all((folder / name).stat().st_size == size for name, size in record["sizes"].items())
    except (InputError, OSError, SafetensorError, KeyError, TypeError, AttributeError):
        return False


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


def _write_failure(error: Exception, folder: Path, size: int) -> str:
    """Return the reason why the tensors of a state could not be written."""
    # safetensors gives the number of the system's error as text.
    number = error.errno if isinstance(error, OSError) else None
    if match := re.search(r"os error (\d+)", str(error)):
        number = int(match[1])
    if number == errno.ENOSPC:
        free = shutil.disk_usage(folder.parent).free
        return (
            f"{folder}: no space left on device ({size / 1e9:.3g} GB are to be written, {free / 1e9:.3g} GB are free)"
        )
    return os.strerror(number) if number is not None else _reason(error)


def _reason(error: BaseException | None) -> str:
    """Return an error as part of a line, empty for None."""
    if error is None:
        return ""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    prefix = "" if isinstance(error, RunError) else f"{type(error).__name__}: "
    return f"{prefix}{' '.join(str(error).split())[:300]}"


def _random_state() -> dict[str, Any]:
    """Return the states of all random number generators as JSON values."""
    numpy: Any = np.random.get_state(legacy=False)
    numpy["state"]["key"] = numpy["state"]["key"].tolist()
    return {
        "python": random.getstate(),
        "numpy": numpy,
        "torch": torch.get_rng_state().tolist(),
        "cuda": torch.cuda.get_rng_state().tolist() if torch.cuda.is_available() else None,
    }


def _set_random_state(state: dict[str, Any]) -> None:
    version, numbers, gauss = state["python"]
    random.setstate((version, tuple(numbers), gauss))
    state["numpy"]["state"]["key"] = np.array(state["numpy"]["state"]["key"], np.uint32)
    np.random.set_state(state["numpy"])
    torch.set_rng_state(torch.tensor(state["torch"], dtype=torch.uint8))
    if state["cuda"] is not None and torch.cuda.is_available():
        torch.cuda.set_rng_state(torch.tensor(state["cuda"], dtype=torch.uint8))
