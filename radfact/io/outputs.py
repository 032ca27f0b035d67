"""Lock the outputs of commands, protect their inputs, and replace earlier files only by complete ones."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from filelock import FileLock, Timeout

from radfact.errors import ErrorCode, InputError, list_some
from radfact.io.jsonl import (
    check_not_input,
    command_inputs,
    create_folder,
    is_same_file,
    naming_file,
    private_files,
    read_json,
    write_json,
)

LOCK, RECORD = ".lock", ".output.json"
"""Files of an output folder that identify the process that writes to it, and that record its content and files."""
_NEW, _COMMIT = ".new", ".commit"
_ATTEMPTS = 100
"""Maximum number of attempts to lock an output while other runs create and remove its folder."""
_PATIENCE, _POLL = 0.2, 0.01
"""Seconds that a run waits for a lock, which the run that has it may be about to release."""


@dataclass(frozen=True, slots=True)
class Output:
    """Declares what a command writes to the path of an option, as metadata in the annotation of the option."""

    kind: Literal["folder", "new folder", "file"]
    """Files are added to a folder or replaced in it; a new folder must be missing or empty."""
    content: str = ""
    """Of a folder, such as "results"; by default the name of the command. The same content may be replaced."""
    resumes: bool = False
    """Whether the command itself checks its earlier output, and resumes or rejects it."""
    siblings: tuple[str, ...] = ()
    """Names of other files that the command writes next to an output file; {stem} is its name without suffix."""
    is_private: bool = True
    """Whether only the owner can read the output; otherwise the umask determines the permissions."""

    def files(self, path: Path) -> list[Path]:
        return [path, *(path.with_name(name.format(stem=path.stem)) for name in self.siblings)]


RESULTS_FOLDER = Output("folder", content="results")

_locked_outputs: ContextVar[tuple[Path, ...]] = ContextVar("_locked_outputs", default=())
"""Outputs locked in the current context."""


@contextmanager
def lock_output(
    path: Path,
    output: Output,
    *,
    command: str = "",
    inputs: Iterable[Path] = (),
    overwrite: bool = False,
    waits: bool = False,
) -> Iterator[bool]:
    """Lock an output during the block, after checking that writing to it destroys no other files; yield if it could.

    An output that this context has locked is not locked again. On file systems without locks, it is only checked. With
    `waits`, another process that has the lock is waited for; with `overwrite`, files of another origin are replaced.
    """
    path = Path(path)
    if (real := path.resolve()) in _locked_outputs.get():
        yield True
        return
    inputs = tuple(Path(item).resolve() for item in inputs)
    # Files of results hold the names of files, as UTF-8.
    if unknown := [item for item in (real, *inputs) if str(item).encode(errors="replace") != os.fsencode(item)]:
        raise InputError("expected a path in UTF-8; rename the file or folder", file=unknown[0])
    _check_kind(path, output)
    _check_inputs(path, output, inputs)
    _check_origin(path, output, overwrite)
    is_folder = output.kind == "folder"
    folder = path if is_folder else path.parent
    created = [parent for parent in (folder, *folder.parents) if not parent.exists()]
    lock_file = path / LOCK if is_folder else path.with_name(f".{path.name}{LOCK}")
    with ExitStack() as stack:
        stack.callback(_locked_outputs.reset, _locked_outputs.set((*_locked_outputs.get(), real)))
        stack.callback(command_inputs.reset, command_inputs.set((*command_inputs.get(), *inputs)))
        stack.callback(private_files.reset, private_files.set(output.is_private))
        lock = _acquire(lock_file, path, command or Path(sys.argv[0]).name, waits=waits)
        if lock is not None:
            stack.callback(_release, lock, lock_file, created)
        # Another run may have written there in the meantime.
        _check_origin(path, output, overwrite)
        if is_folder and not output.resumes:
            stack.enter_context(_record_content(path, output.content))
        yield lock is not None


def _release(lock: FileLock, lock_file: Path, created: Sequence[Path]) -> None:
    # Remove the file while it is locked. Another process that has opened it detects this and tries again.
    with suppress(OSError):
        lock_file.unlink()
    lock.release()
    with suppress(OSError):  # not empty
        for parent in created:
            parent.rmdir()


@contextmanager
def _record_content(folder: Path, content: str) -> Iterator[None]:
    """Record the content of a folder if the block writes to it."""
    _finish_replacement(folder)
    is_new = _read_record(folder)["content"] != content
    before = _entries(folder)
    if is_new:
        write_json(folder / RECORD, {"content": content, "files": []})
    try:
        yield
    finally:
        if is_new and folder.is_dir() and _entries(folder) == before:
            (folder / RECORD).unlink(missing_ok=True)


@contextmanager
def replace_files(folder: Path) -> Iterator[Path]:
    """Yield a temporary folder, and move its files into `folder` when the block ends without an error.

    They replace all files of the previous call. The rename of the temporary folder to `.commit` decides whose files a
    killed process leaves: after it those of this call, which the next `lock_output` or `finish_interrupted` moves.
    """
    new = folder / _NEW
    with _removed_on_failure(new, folder):
        create_folder(new)
        yield new
        names = sorted(path.relative_to(new).as_posix() for path in new.rglob("*") if not path.is_dir())
        # Every reason why a file cannot be moved is found before the first one is moved.
        for path in (folder / name for name in names):
            check_not_input(path)
            create_folder(path.parent)
            if path.is_dir() and not path.is_symlink():
                raise _conflict("expected a file, found a folder", path)
        write_json(new / RECORD, {"content": _read_record(folder)["content"], "files": names})
        new.rename(folder / _COMMIT)
    _finish_replacement(folder)


@contextmanager
def replace_folder(folder: Path) -> Iterator[Path]:
    """Yield a temporary folder that replaces another one when the block ends without an error."""
    new, old = (folder.with_name(f".{folder.name}.{end}") for end in ("new", "old"))
    with _removed_on_failure(new, folder):
        new.mkdir(parents=True)
        yield new
    shutil.rmtree(old, ignore_errors=True)
    if folder.exists():
        folder.rename(old)
    new.rename(folder)
    shutil.rmtree(old, ignore_errors=True)


@contextmanager
def _removed_on_failure(new: Path, final: Path) -> Iterator[None]:
    """Remove a temporary folder before the block and if the block fails, whose errors name the files of `final`."""
    shutil.rmtree(new, ignore_errors=True)
    try:
        with naming_file(final, new):
            yield
    except BaseException:
        shutil.rmtree(new, ignore_errors=True)
        raise


def _finish_replacement(folder: Path) -> None:
    """Move the complete files of `replace_files` into their folder; its record, which lists them, moves last."""
    new = folder / _COMMIT
    if (new / RECORD).is_file():
        names = _read_record(new)["files"]
        for name in {*_read_record(folder)["files"]}.difference(names):
            path = folder / name
            path.unlink(missing_ok=True)
            with suppress(OSError):  # not empty
                if path.parent != folder:
                    path.parent.rmdir()
        for name in names:
            if os.path.lexists(new / name):  # an interrupted run may have moved it
                create_folder((folder / name).parent)
                (new / name).replace(folder / name)
        (new / RECORD).replace(folder / RECORD)
    shutil.rmtree(new, ignore_errors=True)


def finish_interrupted(folder: Path) -> None:
    """Finish what a killed process left of `replace_files`, before files of a results folder are read."""
    if (folder / _COMMIT / RECORD).is_file():
        with lock_output(folder, RESULTS_FOLDER):
            pass


def record_files(folder: Path, files: Iterable[Path]) -> None:
    """Add files to the record of an output folder, if it has one, so that the next run replaces them."""
    record = _read_record(folder)
    new = {path.relative_to(folder).as_posix() for path in files}.difference(record["files"])
    if record["content"] and new:
        write_json(folder / RECORD, {**record, "files": sorted({*record["files"], *new})})


def _conflict(message: str, path: Path) -> InputError:
    return InputError(message, code=ErrorCode.OUTPUT_CONFLICT, file=path)


def _check_inputs(path: Path, output: Output, inputs: Sequence[Path]) -> None:
    """Refuse an output that is an input or contains one."""
    is_folder = output.kind == "folder"
    written = [*output.files(path), *(path / name for name in (_read_record(path)["files"] if is_folder else ()))]
    for item in inputs:
        content = [item, *(item / name for name in _read_record(item)["files"])]
        if any(is_same_file(file, part) for file in written for part in content):
            raise _conflict("expected another path, found an input of this command; choose another output", path)
        is_inside = output.kind != "file" and item.is_relative_to(path.resolve())
        if is_inside and not (output.resumes or (is_folder and _read_record(path)["content"])):
            message = f"expected a folder without inputs of this command, found {item}; choose another output folder"
            raise _conflict(message, path)


def _check_kind(path: Path, output: Output) -> None:
    """Refuse a file instead of a folder, a folder instead of a file, and a folder that is not writable."""
    if output.kind == "file" and path.is_dir():
        raise _conflict("expected a file, found a folder", path)
    folder = path.parent if output.kind == "file" else path
    existing = next(parent for parent in (folder, *folder.parents) if parent.exists() or parent.is_symlink())
    if not existing.is_dir():
        raise _conflict("expected a folder, found a file", existing)
    if not os.access(existing, os.W_OK | os.X_OK):
        raise InputError("expected a writable folder", code=ErrorCode.WRITE_FAILED, file=existing)


def _check_origin(path: Path, output: Output, overwrite: bool) -> None:
    """Refuse an output whose files were not written by a command with the same content."""
    if output.resumes or overwrite:
        return
    if output.kind == "new folder":
        if path.exists() and any(path.iterdir()):
            raise _conflict("expected a new or empty folder, found files; choose another folder or remove it", path)
        if path.exists() and path.samefile(Path.cwd()):
            raise _conflict("expected a new folder, found the current directory; choose another folder", path)
        return
    if output.kind == "file":
        for file in output.files(path):
            if file.exists() or file.is_symlink():
                raise _conflict("already exists; choose another file, or add --overwrite to replace it", file)
        return
    content = _read_record(path)["content"]
    if content == output.content:
        return
    # Hidden files come from file managers or from a run that stopped at this check.
    entries = [entry for entry in (path.iterdir() if path.is_dir() else ()) if not entry.name.startswith(".")]
    foreign = sorted(entry.name for entry in entries if not (entry / RECORD).is_file())
    if content or foreign:
        origin = f"files of {content!r}" if content else "files that this command did not write"
        names = f" ({list_some(foreign)})" if foreign else ""
        hint = "choose another folder, or add --overwrite to replace files of the same name and keep the others"
        raise _conflict(f"contains {origin}{names}; {hint}", path)


def _entries(folder: Path) -> set[str]:
    return {entry.name for entry in folder.iterdir()} - {LOCK, RECORD}


def _read_record(folder: Path) -> dict[str, Any]:
    """Return the content of an output folder and the files of the last run; empty without a record."""
    with suppress(InputError):
        match read_json(folder / RECORD):
            case {"content": str(content), "files": [*files]} if all(isinstance(name, str) for name in files):
                # A record must not name files outside its folder.
                if not any(Path(name).is_absolute() or ".." in Path(name).parts for name in files):
                    return {"content": content, "files": files}
    return {"content": "", "files": []}


def _acquire(lock_file: Path, path: Path, command: str, *, waits: bool) -> FileLock | None:
    """Lock an output; None on file systems without locks."""
    for _ in range(_ATTEMPTS):
        try:
            create_folder(lock_file.parent)
            # Every user who can write to the folder can lock it.
            lock = FileLock(lock_file, mode=lock_file.parent.stat().st_mode & 0o666 | 0o600, is_singleton=False)
            lock.acquire(timeout=-1 if waits else _PATIENCE, poll_interval=_POLL)
        except Timeout:
            break
        except (FileNotFoundError, FileExistsError):
            continue  # another run just removed the folder
        except PermissionError:
            if not lock_file.exists():
                return None  # the code that writes the files reports the reason
            message = "the lock file of another user is not writable; remove it if no run is active, or ask its owner"
            raise InputError(message, code=ErrorCode.LOCKED, file=lock_file) from None
        except (OSError, NotImplementedError):
            return None
        since = datetime.now(UTC).isoformat(timespec="seconds")
        process = {"pid": os.getpid(), "host": os.uname().nodename, "command": command, "since": since}
        with suppress(OSError):  # on a full disk, for example, the lock works without its description
            lock_file.write_text(json.dumps(process), encoding="utf-8")
        return lock
    holder = "another process"
    with suppress(OSError, ValueError, KeyError, TypeError):
        row = json.loads(lock_file.read_text(encoding="utf-8"))
        holder = f"process {row['pid']} on {row['host']} ({row['command']}, since {row['since']})"
    message = f"locked by {holder}; wait until it ends, or choose another output"
    raise InputError(message, code=ErrorCode.LOCKED, file=path)
