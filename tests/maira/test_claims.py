"""One run at a time in a folder."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

from maira.train.claims import LOCK, claim
from radfact.errors import InputError


def test_where_the_file_system_has_no_locks_a_run_goes_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_locks(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "lockf", no_locks)
    assert claim(tmp_path / "run") is None


def test_who_holds_a_folder_is_named_until_it_ends(tmp_path: Path) -> None:
    program = "import sys; from pathlib import Path; from maira.train.claims import claim; "
    program += "held = claim(Path(sys.argv[1])); print(held is not None, flush=True); sys.stdin.read()"
    words = [sys.executable, "-c", program, str(tmp_path)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "True\n"
        with pytest.raises(InputError, match=rf"process {other.pid} on .* trains in .*, remove \S+{LOCK}$"):
            claim(tmp_path)
        other.kill()
    held = claim(tmp_path)
    assert held is not None
    held.close()
    assert (tmp_path / LOCK).read_text(encoding="utf-8").startswith(f"process {os.getpid()} on ")
