"""Other commands of `maira` as processes of their own, alone or under a launcher of several."""

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

from radfact.errors import ExitCode, InputError, RunError

_PREFIX = "maira: "
"""What the line begins with that says why a command has failed (`radfact.cli.program`)."""
_PATIENCE = 10.0
"""Seconds for what a command that has ended may still have to say."""


class Launcher:
    """Runs commands of `maira`, one after the other.

    A process of its own each: it leaves no memory behind on a GPU, and what breaks it breaks nothing else.

    Args:
        launch: a launcher with its options, such as "accelerate launch --num_processes 8"; None for one plain process.

    Raises:
        InputError: there is no such program.
    """

    def __init__(self, launch: str | None = None) -> None:
        words = shlex.split(launch) if launch else []
        if launch is not None and (not words or shutil.which(words[0]) is None):
            raise InputError(f"no such program: {words[0] if words else ''}", field="--launch")
        self._launch = words

    def run(self, words: Sequence[str], *, alone: bool = False, quiet: bool = False) -> None:
        """Run a command to its end; what it says is shown as it comes.

        Args:
            words: its name and its arguments.
            alone: without the launcher.
            quiet: show its progress and what is wrong only.

        Raises:
            RunError: it has not come to its end, and why, as far as it said so.
        """
        start = [sys.executable] if alone or not self._launch else self._launch
        command = [*start, "-m", "maira", *words]
        last: deque[str] = deque(maxlen=200)
        out = subprocess.DEVNULL if quiet else None
        with (
            subprocess.Popen(command, stdout=out, stderr=subprocess.PIPE, text=True, errors="replace") as process,
            _ending(process),
        ):
            assert process.stderr is not None  # for the type: it is a pipe
            listener = threading.Thread(target=_pass_on, args=(process.stderr, last), daemon=True)
            listener.start()
            code = process.wait()
            listener.join(_PATIENCE)
        if code not in (ExitCode.SUCCESS, ExitCode.INCOMPLETE):
            raise RunError(_reason(words[0], code, list(last)))


def _pass_on(stream: IO[str], last: deque[str]) -> None:
    for line in stream:
        sys.stderr.write(line)
        sys.stderr.flush()
        last.append(line)


@contextmanager
def _ending(process: subprocess.Popen[str]) -> Iterator[None]:
    """End the process, and wait for it, where this one is interrupted or told to stop."""

    def stop(*_: object) -> None:
        raise SystemExit(ExitCode.FAILURE)

    before = signal.signal(signal.SIGTERM, stop) if threading.current_thread() is threading.main_thread() else None
    try:
        yield
    except BaseException:
        process.terminate()
        process.wait()
        raise
    finally:
        if before is not None:
            signal.signal(signal.SIGTERM, before)


def _reason(name: str, code: int, said: Sequence[str]) -> str:
    """Why a command has failed, by its own line if it said one."""
    own = [line.removeprefix(_PREFIX).strip() for line in said if line.startswith(_PREFIX)]
    how = f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
    return f"{name}: {own[-1]}" if own else f"maira {name} {how}"
