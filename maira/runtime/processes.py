"""The processes that `accelerate launch` or torchrun start for one run, on one machine or more, and their signals."""

from __future__ import annotations

import os
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, redirect_stdout
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from radfact.errors import ErrorCode, ExitCode, InputError, RunError

_TIMEOUT = timedelta(days=7)
"""How long processes wait for each other: the last may have hours of work left when the first is done."""
_FAILED = (ExitCode.FAILURE, ExitCode.INVALID_INPUT)
_LAUNCHER_VARIABLES = ("TORCHELASTIC_RUN_ID", "ACCELERATE_MIXED_PRECISION")
"""Environment variables of processes started by torchrun and by `accelerate launch`, even of a single process."""


End = SystemExit | InputError | RunError
"""How a process stops; sent to the others in place of a value."""


@dataclass
class DistributedContext:
    """The processes of a run."""

    rank: int = 0  # of this process
    size: int = 1
    device: Any = None  # torch device of this process's tensors; None for a run without tensors
    group: Any = None  # for tensors; None for a single process
    _has_finished: bool = False

    @property
    def is_main(self) -> bool:
        """Whether this process is the only one that prints and writes shared files."""
        return self.rank == 0

    def gather(self, value: Any = None) -> list[Any]:
        """Return the values of all processes by rank, once every process has called this."""
        values = self._exchange(value) if self.size > 1 else [value]
        for rank, received in enumerate(values):
            if isinstance(received, End):
                self._has_finished = True
                raise _failure(rank, received)
        return values

    def finish(self, end: End) -> End:
        """Wait for all processes, since a launcher kills the others when one fails; return how the run ends."""
        # Nobody waits for an interrupted process: the launcher stops the others.
        if self.size == 1 or self._has_finished or _exit_code(end) not in list(ExitCode):
            return end
        self._has_finished = True
        try:
            # Without a class of its own, which other processes might not be able to make.
            kind = InputError if isinstance(end, InputError) else RunError
            ends = self._exchange(end if isinstance(end, SystemExit) else kind(str(end), code=end.code))
        except RunError as death:
            return death
        # Taken down in order: a connection that breaks while its thread still listens aborts the process.
        _distributed().destroy_process_group()
        failed = [rank for rank, other in enumerate(ends) if isinstance(other, End) and _exit_code(other) in _FAILED]
        return end if not failed or _exit_code(end) in _FAILED else _failure(failed[0], ends[failed[0]])

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
        """Context in which processes wait for each other's tensors, so that a failed one cannot report its error."""
        # A process that fails here ends without waiting for the others, which the launcher stops; its message names it.
        import torch

        try:
            yield
        except BaseException as error:
            self._has_finished = True
            prefix = f"process {self.rank}: " if self.size > 1 else ""
            if isinstance(error, torch.OutOfMemoryError):
                hint = "a smaller token_budget, activation_checkpointing=full, lora or optimizer=adamw_8bit needs less"
                reason = RunError(f"{prefix}out of memory on {self.device}; {hint}", code=ErrorCode.OUT_OF_MEMORY)
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


def use_gpu(device: Any) -> None:
    """Make a GPU the default one of this process, and choose how torch computes there; before the first tensor."""
    import torch

    torch.cuda.set_device(device)
    # cuDNN's attention plans each length anew, and its masked gradient is NaN for some lengths (H100, torch 2.11). From
    # torch 2.14 on it takes packed rows too. A context would not hold in a backward pass that computes blocks again.
    torch.backends.cuda.enable_cudnn_sdp(False)
    # Segments of memory that grow serve rows of all lengths. Not by a variable, which processes of vLLM would inherit.
    is_default = os.environ.keys().isdisjoint(("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"))
    if is_default and hasattr(torch._C, "_accelerator_setAllocatorSettings"):
        torch._C._accelerator_setAllocatorSettings("expandable_segments:True")


def copy_to_device(tensor: Any, device: Any) -> Any:
    """Copy a tensor; to a GPU from pinned memory, since from other memory the copy would wait for the device."""
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)


def backend(*, accelerated: bool) -> str:
    """Return the backend of torch.distributed: gloo between CPUs and, with GPUs, NCCL between them."""
    return "cpu:gloo,cuda:nccl" if accelerated else "gloo"


def run_as_group(app: Callable[[], Any]) -> None:
    """Run a command, of which only the main process prints."""
    # The processes of a group finish together, and the main one reports the error of any of them. Under a launcher,
    # skipped samples give exit code 0: the launcher reports any other code as a crash.
    with ExitStack() as silence:
        if not is_main():
            warnings.simplefilter("ignore")
            silence.enter_context(redirect_stdout(silence.enter_context(Path(os.devnull).open("w"))))
        try:
            app()
            return
        except (SystemExit, InputError, RunError) as error:
            end = error if _group is None else _group.finish(error)
    if isinstance(end, SystemExit):
        if end.code == ExitCode.INCOMPLETE and not os.environ.keys().isdisjoint(_LAUNCHER_VARIABLES):
            return
        raise end
    raise end if is_main() else SystemExit(_exit_code(end))


def _exit_code(end: End) -> int:
    if isinstance(end, SystemExit):
        return end.code if isinstance(end.code, int) else 0
    return ExitCode.INVALID_INPUT if isinstance(end, InputError) else ExitCode.FAILURE


def _failure(rank: int, end: End) -> InputError | RunError:
    """Return the end of a process as an error of this one."""
    reason, code = ("it was interrupted", ErrorCode.INTERRUPTED) if isinstance(end, SystemExit) else (end, end.code)
    kind = InputError if _exit_code(end) == ExitCode.INVALID_INPUT else RunError
    return kind(f"process {rank} stopped: {reason}", code=code)


def exit_process(code: object) -> None:
    """End one of several processes at once, after flushing its streams, without the interpreter's shutdown."""
    # On a busy machine a finished process may end with SIGABRT, which a launcher takes for a crash of the whole run:
    # threads of libraries outlive the objects they use.
    if process_count() > 1:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code if isinstance(code, int) else int(code is not None))


_MESSAGE = b"\nthe training state is saved after this step; press Ctrl-C again to end at once\n"


class TerminationSignal:
    """Context manager that records SIGTERM and Ctrl-C instead of ending the process."""

    # Schedulers send SIGTERM some time before they kill a job. A second Ctrl-C interrupts as usual. Outside of the main
    # thread, where no signals arrive, nothing is recorded.

    def __init__(self) -> None:
        self.is_received = False
        self._handlers: dict[signal.Signals, Any] = {}

    def __enter__(self) -> TerminationSignal:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                self._handlers[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)

    def _handle(self, number: int, _frame: Any) -> None:
        self.is_received = True
        if number == signal.SIGINT:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            # Not by the console, which may be writing right now.
            os.write(2, _MESSAGE if is_main() else b"")
