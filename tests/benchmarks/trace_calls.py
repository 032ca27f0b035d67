"""Count the distinct functions of ours that a command calls, and how deep their calls go.

A guide to how much code a reader has to follow, and no measure of time:

    python tests/benchmarks/trace_calls.py              # `radfact score` on one grounded pair, offline judge
    python tests/benchmarks/trace_calls.py --list       # the same, with the functions by file
    python tests/benchmarks/trace_calls.py maira generate --checkpoint checkpoints/phantom --manifest M --out O

Functions and methods of the packages count once each, also those that run while their modules are imported and in other
threads. Class bodies, module bodies, lambdas, comprehensions and generator expressions do not count. The depth is the
number of such calls that are open at the same time in one thread.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import inspect
import io
import json
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
BOX = {"x_min": 0.1, "y_min": 0.6, "x_max": 0.4, "y_max": 0.9}
PAIR = {
    "example_id": "1",
    "prediction": [
        {"text": "Small left pleural effusion.", "boxes": [BOX]},
        {"text": "The heart is enlarged.", "boxes": None},
    ],
    "target": [
        {"text": "There is a left pleural effusion.", "boxes": [BOX]},
        {"text": "No pneumothorax.", "boxes": None},
    ],
}
"""One grounded pair in the published layout."""


class Trace:
    """Records which functions of some folders are called, in all threads and from the first import on."""

    def __init__(self, folders: Sequence[Path]) -> None:
        self._roots = tuple(f"{folder}/" for folder in folders)
        self._counted: dict[CodeType, bool] = {}
        self._open: Counter[int] = Counter()
        self.functions: set[CodeType] = set()
        self.depth = 0

    def _is_counted(self, code: CodeType) -> bool:
        if code not in self._counted:
            # A module body lacks CO_NEWLOCALS, a class body CO_OPTIMIZED.
            flags = inspect.CO_NEWLOCALS | inspect.CO_OPTIMIZED
            is_function = code.co_flags & flags == flags and not code.co_name.startswith("<")
            self._counted[code] = is_function and code.co_filename.startswith(self._roots)
        return self._counted[code]

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        if event not in ("call", "return") or not self._is_counted(frame.f_code):
            return
        thread = threading.get_ident()
        self._open[thread] += 1 if event == "call" else -1
        if event == "call":
            self.functions.add(frame.f_code)
            self.depth = max(self.depth, self._open[thread])

    @contextlib.contextmanager
    def tracing(self) -> Iterator[None]:
        """Trace the calls of the block."""
        threading.setprofile(self)
        sys.setprofile(self)
        try:
            yield
        finally:
            sys.setprofile(None)
            threading.setprofile(None)  # type: ignore[arg-type]


def trace_command(words: Sequence[str]) -> Trace:
    """Run a command in this process and trace it; it must succeed."""
    folders = [ROOT / name for name in ("radfact", "maira", "data", "encoders")]
    trace, sys.argv = Trace(folders), list(words)
    with trace.tracing(), contextlib.redirect_stdout(io.StringIO()):
        try:
            importlib.import_module(f"{words[0]}.cli.main").main()
        except SystemExit as ended:
            if ended.code:
                raise
    return trace


def main() -> None:
    """Print the counts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", action="store_true", help="also list the functions by file")
    parser.add_argument(
        "words", nargs=argparse.REMAINDER, metavar="COMMAND", help="`radfact` or `maira` with its options"
    )
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        pairs = Path(folder, "pairs.json")
        pairs.write_text(json.dumps([PAIR]), encoding="utf-8")
        score = ["radfact", "score", str(pairs), "--judge", "offline", "--out", f"{folder}/results"]
        trace = trace_command(arguments.words or score)
    files = Counter(code.co_filename for code in trace.functions)
    print(f"{len(trace.functions)} distinct functions in {len(files)} files, depth {trace.depth}")
    if arguments.list:
        for file, count in files.most_common():
            names = sorted(code.co_qualname for code in trace.functions if code.co_filename == file)
            print(f"{count:4d} {file}: {', '.join(names)}")


if __name__ == "__main__":
    main()
