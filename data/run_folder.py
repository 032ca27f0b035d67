"""The folder of a long run: made once, gone on with by the same command, refused to any other."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from radfact.errors import InputError
from radfact.io.jsonl import read_json, write_json

PREPARED = "prepare.run.json"
"""The note of a folder that radiographs were prepared in, whatever their source."""


def claim(out: Path, file: str, settings: Mapping[str, object], *, holds: str) -> None:
    """Make a folder and note in it what decides its content, or make sure that an earlier run noted the same.

    Args:
        out: the folder.
        file: name of the note.
        settings: by the names that an error says them with; values as JSON has them.
        holds: what the folder is for, such as "radiographs prepared".

    Raises:
        InputError: the folder was made with other settings, or by something else.
    """
    note = out / file
    if note.exists():
        held = read_json(note)
        changed = [name for name, value in settings.items() if not isinstance(held, dict) or held.get(name) != value]
        if changed:
            message = f"holds {holds} otherwise (other {', '.join(changed)}); name another --out or remove it"
            raise InputError(message, file=out)
        return
    # Hidden files may be what is left of a note that was never finished.
    if out.exists() and not out.is_dir():
        raise InputError("is a file; a folder is needed", file=out)
    if out.exists() and any(not entry.name.startswith(".") for entry in out.iterdir()):
        raise InputError("is not empty and was not made by this command; name another --out", file=out)
    out.mkdir(parents=True, exist_ok=True)
    write_json(note, dict(settings))
