"""Several processes that share one run, as `accelerate launch` and `torchrun` start them, on one machine or more."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from radfact.errors import ExitCode, InputError, RunError

_PATIENCE = timedelta(days=7)
"""How long processes wait for each other: the last may have hours of work left when the first is done."""
_LAUNCHERS = ("TORCHELASTIC_RUN_ID", "ACCELERATE_MIXED_PRECISION")
"""In the environment of what torchrun starts, and of what `accelerate launch` does, even of a single process."""


@dataclass
class ProcessGroup:
    """The processes of a run.

    Attributes:
        rank: of this one.
        count: of all.
    """

    rank: int = 0
    count: int = 1
    _has_finished: bool = False

    @property
    def is_main(self) -> bool:
        """Whether this is the process that writes what is written once, and the only one that speaks."""
        return self.rank == 0

    def gather(self, value: Any = None) -> list[Any]:
        """The value of every process, by rank, once all of them have come here.

        Raises:
            InputError: a process has stopped for its input.
            RunError: a process has stopped for another reason.
        """
        if self.count == 1:
            return [value]
        values = self._exchange(value)
        for rank, other in enumerate(values):
            if isinstance(other, _Stopped):
                self._has_finished = True
                raise other.error(rank)
        return values

    def finish(self, code: int, message: str) -> None:
        """Wait until every process has come to its end, since a launcher stops the others when one has failed.

        Args:
            code: exit code of this process.
            message: what is wrong, if anything is.

        Raises:
            InputError: another process has stopped for its input, and this one has not failed.
            RunError: another process has stopped for another reason, and this one has not failed.
        """
        # Nobody waits for a process that was interrupted: the launcher stops the others.
        if self.count == 1 or self._has_finished or code not in list(ExitCode):
            return
        self._has_finished = True
        values = self._exchange(_Stopped(code, message))
        _leave()
        failed = [(rank, end) for rank, end in enumerate(values) if isinstance(end, _Stopped) and end.has_failed]
        if failed and not _Stopped(code, message).has_failed:
            rank, end = failed[0]
            raise end.error(rank)

    def abandon(self) -> None:
        """Come to an end without waiting for the others, which are waiting for something else than words."""
        self._has_finished = True

    def report(self, error: RunError) -> RunError:
        """The same error, said here if this is a process that does not speak otherwise."""
        if not self.is_main:
            print(error, file=sys.stderr)
        return error

    def _exchange(self, value: Any) -> list[Any]:
        import torch.distributed as dist

        values: list[Any] = [None] * self.count
        try:
            dist.all_gather_object(values, value)
        except RuntimeError as error:
            self._has_finished = True
            raise RunError(f"another process of the run is gone: {' '.join(str(error).split())}") from None
        return values


@dataclass(frozen=True)
class _Stopped:
    """What a process that goes no further says instead of its value."""

    code: int
    message: str

    @property
    def has_failed(self) -> bool:
        return self.code in (ExitCode.FAILURE, ExitCode.INVALID_INPUT)

    def error(self, rank: int) -> InputError | RunError:
        message = f"process {rank} has stopped: {self.message or 'it was interrupted'}"
        return InputError(message) if self.code == ExitCode.INVALID_INPUT else RunError(message)


_group: ProcessGroup | None = None


def _leave() -> None:
    """Take the connections down in order: one that breaks while its thread still listens aborts the process."""
    import torch.distributed as dist

    dist.destroy_process_group()


def is_main() -> bool:
    """Whether this process speaks for its run; known without meeting the others."""
    return int(os.environ.get("RANK", 0)) == 0


def process_count() -> int:
    """How many processes share the run; known without meeting the others."""
    return int(os.environ.get("WORLD_SIZE", 1))


def join_group(*, accelerated: bool = False) -> ProcessGroup:
    """The processes that the launcher started together with this one; met at the first call.

    Args:
        accelerated: tensors on GPUs are to travel too, not only Python values.
    """
    global _group
    if _group is None:
        if process_count() > 1:
            import torch.distributed as dist

            # Python values travel by gloo, over the network as well as within a machine.
            dist.init_process_group(backend(accelerated=accelerated), timeout=_PATIENCE)
            _group = ProcessGroup(dist.get_rank(), dist.get_world_size())
        else:
            _group = ProcessGroup()
    return _group


def backend(*, accelerated: bool) -> str:
    """What torch.distributed sends by: gloo between CPUs and, where GPUs take part, NCCL between them."""
    return "cpu:gloo,cuda:nccl" if accelerated else "gloo"


def run_as_group(app: Callable[[], Any]) -> None:
    """Run a command; of several processes only the main one speaks.

    Those that have met end together, and the main one says what went wrong in any of them. Under a launcher, samples
    that were left out are no exit code: it would take any but 0 for a crash, say so at length and end with 1.

    Raises:
        SystemExit: the command's, in all processes but the main one also for its errors.
        InputError: the command's, or another process's.
        RunError: the command's, or another process's.
    """
    if is_main():
        _run_and_part(app)
        return
    warnings.simplefilter("ignore")
    try:
        with Path(os.devnull).open("w") as nowhere, redirect_stdout(nowhere):
            _run_and_part(app)
    except InputError:
        raise SystemExit(ExitCode.INVALID_INPUT) from None
    except RunError:
        raise SystemExit(ExitCode.FAILURE) from None


def exit_process(code: object) -> None:
    """End a process of several at once, its streams written, where otherwise the interpreter would be taken down.

    On a busy machine a process that was done has been seen to end with SIGABRT, which a launcher takes for a crash of
    the whole run: threads of libraries outlive what they use.
    """
    if process_count() > 1:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code if isinstance(code, int) else int(code is not None))


def _run_and_part(app: Callable[[], Any]) -> None:
    try:
        app()
    except SystemExit as end:
        _part(end.code if isinstance(end.code, int) else 0, "")
        if end.code != ExitCode.INCOMPLETE or os.environ.keys().isdisjoint(_LAUNCHERS):
            raise
    except InputError as error:
        _part(ExitCode.INVALID_INPUT, str(error))
        raise
    except RunError as error:
        _part(ExitCode.FAILURE, str(error))
        raise


def _part(code: int, message: str) -> None:
    if _group is not None:
        _group.finish(code, message)
