"""Process groups: the processes that `accelerate launch` or torchrun start for one run, on one machine or more."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from radfact.errors import ErrorCode, ExitCode, InputError, RunError

_TIMEOUT = timedelta(days=7)
"""How long processes wait for each other: the last may have hours of work left when the first is done."""
_LAUNCHER_VARIABLES = ("TORCHELASTIC_RUN_ID", "ACCELERATE_MIXED_PRECISION")
"""Environment variables of processes started by torchrun and by `accelerate launch`, even of a single process."""


@dataclass
class DistributedContext:
    """The processes of a run.

    Attributes:
        rank: of this process.
        size: number of processes.
        device: torch device of this process's tensors; None for a run without tensors.
        group: for tensors; None for a single process.
    """

    rank: int = 0
    size: int = 1
    device: Any = None
    group: Any = None
    _has_finished: bool = False

    @property
    def is_main(self) -> bool:
        """Whether this process is the only one that prints and writes shared files."""
        return self.rank == 0

    def gather(self, value: Any = None) -> list[Any]:
        """Return the values of all processes by rank, once every process has called this."""
        if self.size == 1:
            return [value]
        values = self._exchange(value)
        for rank, received in enumerate(values):
            if isinstance(received, _Stopped):
                self._has_finished = True
                raise received.error(rank)
        return values

    def finish(self, code: int, error: InputError | RunError | None = None) -> None:
        """Wait for all processes to finish, since a launcher kills the others when one fails."""
        # Nobody waits for an interrupted process: the launcher stops the others.
        if self.size == 1 or self._has_finished or code not in list(ExitCode):
            return
        self._has_finished = True
        stopped = _Stopped(code, str(error or ""), error.code if error else ErrorCode.INTERRUPTED)
        values = self._exchange(stopped)
        # Taken down in order: a connection that breaks while its thread still listens aborts the process.
        _distributed().destroy_process_group()
        failed = [(rank, end) for rank, end in enumerate(values) if isinstance(end, _Stopped) and end.has_failed]
        if failed and not stopped.has_failed:
            rank, end = failed[0]
            raise end.error(rank)

    def wait(self) -> None:
        """Wait for all processes; raises as `gather`."""
        self.gather()

    def sum(self, values: Any) -> Any:
        """Sum a tensor over the processes in place."""
        if self.group is not None:
            _distributed().all_reduce(values, group=self.group)
        return values

    @contextmanager
    def collective_section(self) -> Iterator[None]:
        """Context in which processes wait for each other's tensors, so that a failed one cannot report its error.

        A process that fails here ends without waiting for the others, which the launcher stops; its message names it.
        """
        import torch

        try:
            yield
        except BaseException as error:
            self._has_finished = True
            prefix = f"process {self.rank}: " if self.size > 1 else ""
            if isinstance(error, torch.OutOfMemoryError):
                reason = RunError(
                    f"{prefix}out of memory on {self.device}; a smaller token_budget, activation_checkpointing=full, "
                    "lora or optimizer=adamw_8bit needs less",
                    code=ErrorCode.OUT_OF_MEMORY,
                )
            elif isinstance(error, torch.distributed.DistError) or (self.size > 1 and "gloo" in str(error).lower()):
                reason = RunError(f"{prefix}another process of the run has died: {error}")
            else:
                raise
            if not self.is_main:
                print(reason, file=sys.stderr)
            raise reason from None

    def _exchange(self, value: Any) -> list[Any]:
        values: list[Any] = [None] * self.size
        try:
            _distributed().all_gather_object(values, value)
        except RuntimeError as error:
            self._has_finished = True
            raise RunError(f"another process of the run died: {' '.join(str(error).split())}") from None
        return values


@dataclass(frozen=True)
class _Stopped:
    """Sent in place of a value by a process that stops."""

    code: int
    message: str
    error_code: ErrorCode

    @property
    def has_failed(self) -> bool:
        return self.code in (ExitCode.FAILURE, ExitCode.INVALID_INPUT)

    def error(self, rank: int) -> InputError | RunError:
        message = f"process {rank} stopped: {self.message or 'it was interrupted'}"
        if self.code == ExitCode.INVALID_INPUT:
            return InputError(message, code=self.error_code)
        return RunError(message, code=self.error_code)


_group: DistributedContext | None = None


def _distributed() -> Any:
    import torch.distributed

    return torch.distributed


def is_main() -> bool:
    """Return whether this process prints for its run; works before the group is joined."""
    return int(os.environ.get("RANK", 0)) == 0


def process_count() -> int:
    """Return the number of processes of the run; works before the group is joined."""
    return int(os.environ.get("WORLD_SIZE", 1))


def join_group(*, accelerated: bool = False) -> DistributedContext:
    """Return the group of the processes that the launcher started; the first call connects them."""
    global _group
    if _group is None:
        if process_count() > 1:
            distributed = _distributed()
            distributed.init_process_group(backend(accelerated=accelerated), timeout=_TIMEOUT)
            _group = DistributedContext(distributed.get_rank(), distributed.get_world_size())
        else:
            _group = DistributedContext()
    return _group


def backend(*, accelerated: bool) -> str:
    """Return the backend of torch.distributed: gloo between CPUs and, with GPUs, NCCL between them."""
    return "cpu:gloo,cuda:nccl" if accelerated else "gloo"


def run_as_group(app: Callable[[], Any]) -> None:
    """Run a command, of which only the main process prints.

    The processes of a group finish together, and the main one reports the error of any of them. Under a launcher,
    skipped samples give exit code 0: the launcher reports any other code as a crash.
    """
    if is_main():
        _run_and_finish(app)
        return
    warnings.simplefilter("ignore")
    try:
        with Path(os.devnull).open("w") as sink, redirect_stdout(sink):
            _run_and_finish(app)
    except InputError:
        raise SystemExit(ExitCode.INVALID_INPUT) from None
    except RunError:
        raise SystemExit(ExitCode.FAILURE) from None


def exit_process(code: object) -> None:
    """End one of several processes at once, after flushing its streams, without the interpreter's shutdown.

    On a busy machine a finished process may end with SIGABRT, which a launcher takes for a crash of the whole run:
    threads of libraries outlive the objects they use.
    """
    if process_count() > 1:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code if isinstance(code, int) else int(code is not None))


def _run_and_finish(app: Callable[[], Any]) -> None:
    try:
        app()
    except SystemExit as end:
        _finish(end.code if isinstance(end.code, int) else 0)
        if end.code != ExitCode.INCOMPLETE or os.environ.keys().isdisjoint(_LAUNCHER_VARIABLES):
            raise
    except InputError as error:
        _finish(ExitCode.INVALID_INPUT, error)
        raise
    except RunError as error:
        _finish(ExitCode.FAILURE, error)
        raise


def _finish(code: int, error: InputError | RunError | None = None) -> None:
    if _group is not None:
        _group.finish(code, error)
