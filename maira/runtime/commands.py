"""Other commands of `maira` as subprocesses, alone or under a launcher."""

from __future__ import annotations

import shlex
import shutil
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import IO

from radfact.errors import ErrorCode, ExitCode, InputError, RunError

_PREFIX = "maira: "
"""Beginning of the line with the error of a command (`radfact.cli.program`)."""
_OUTPUT_TIMEOUT = 10.0
"""Seconds to wait for the output of a command that has ended."""


class Launcher:
    """Runs commands of `maira` one after the other, each as a subprocess.

    A subprocess leaves no memory behind on a GPU, and its crash does not end this process.
    """

    def __init__(self, launch: str | None = None) -> None:
        command = shlex.split(launch) if launch else []
        if launch is not None and (not command or shutil.which(command[0]) is None):
            raise InputError(
                f"program not found: {command[0] if command else ''}", code=ErrorCode.INVALID_OPTION, field="--launch"
            )
        self._launch = command

    def run(self, arguments: Sequence[str], *, alone: bool = False, quiet: bool = False) -> None:
        """Run a command and pass its output on: with `quiet` only standard error; `alone` is without the launcher."""
        start = [sys.executable] if alone or not self._launch else self._launch
        command = [*start, "-m", "maira", *arguments]
        lines: deque[str] = deque(maxlen=200)
        out = subprocess.DEVNULL if quiet else None
        with (
            subprocess.Popen(command, stdout=out, stderr=subprocess.PIPE, text=True, errors="replace") as process,
            _terminating(process),
        ):
            assert process.stderr is not None  # for the type: it is a pipe
            listener = threading.Thread(target=_pass_on, args=(process.stderr, lines), daemon=True)
            listener.start()
            code = process.wait()
            listener.join(_OUTPUT_TIMEOUT)
        if code not in (ExitCode.SUCCESS, ExitCode.INCOMPLETE):
            raise RunError(_failure_reason(arguments[0], code, list(lines)))


def _pass_on(stream: IO[str], lines: deque[str]) -> None:
    for line in stream:
        sys.stderr.write(line)
        sys.stderr.flush()
        lines.append(line)


@contextmanager
def _terminating(process: subprocess.Popen[str]) -> Iterator[None]:
    """Terminate the subprocess and wait for it if this process is interrupted or terminated."""

    def stop(*_: object) -> None:
        raise SystemExit(ExitCode.FAILURE)

    previous = signal.signal(signal.SIGTERM, stop) if threading.current_thread() is threading.main_thread() else None
    try:
        yield
    except BaseException:
        process.terminate()
        process.wait()
        raise
    finally:
        if previous is not None:
            signal.signal(signal.SIGTERM, previous)


def _failure_reason(name: str, code: int, lines: Sequence[str]) -> str:
    errors = [line.removeprefix(_PREFIX).strip() for line in lines if line.startswith(_PREFIX)]
    end = f"was killed by signal {-code}" if code < 0 else f"failed with exit code {code}"
    return f"{name}: {errors[-1]}" if errors else f"maira {name} {end}"
