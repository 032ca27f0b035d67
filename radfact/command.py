"""What the commands `radfact` and `maira` share: errors as one line and an exit code."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from radfact.errors import ExitCode, InputError, RunFailed

_INTERRUPTED = 130  # what Typer makes of Ctrl-C


def run_command(app: Callable[[], Any], name: str) -> None:
    """Run a Typer app: what went wrong is one line on standard error and the exit code, never a traceback."""
    try:
        app()
    except SystemExit as stop:
        if stop.code != _INTERRUPTED:
            raise
        _stop(name, "interrupted; what was done is kept, and the same command goes on from there", ExitCode.FAILED)
    except InputError as error:
        _stop(name, str(error), ExitCode.WRONG_INPUT)
    except RunFailed as error:
        _stop(name, str(error), ExitCode.FAILED)
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] in ("radfact", "encoders", "data", "maira"):
            raise
        wanted = 'pip install "maira-radfact[model]" brings what the model needs'
        _stop(name, f"the package '{error.name}' is not installed; {wanted}", ExitCode.FAILED)
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        _stop(name, f"{where}{error.strerror or error}", ExitCode.FAILED)


def _stop(name: str, message: str, code: ExitCode) -> None:
    print(f"{name}: {' '.join(message.split())}", file=sys.stderr)
    sys.exit(code)
