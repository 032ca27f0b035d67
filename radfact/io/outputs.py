"""Lock the outputs of commands, protect their inputs, and replace earlier files only by complete ones.

`.output.json` in an output folder records its content and files. While a command writes to a folder or file, a lock
file identifies the process.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import socket
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, TypeVar

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

_T = TypeVar("_T")

LOCK = ".lock"
RECORD = ".output.json"
_NEW, _COMMIT, _OLD = ".new-", ".commit", ".old"
_ATTEMPTS = 100
"""Maximum number of attempts to lock an output while other runs create and remove its lock file or folder."""
_WAIT = 0.01


@dataclass(frozen=True, slots=True)
class Output:
    """Declares what a command writes to the path of an option, as metadata in the annotation of the option.

    Attributes:
        kind: "folder", in which files are added or replaced; "new folder", which must be missing or empty; or "file".
        content: type of the content of a folder, such as "results". Default: the name of the command. Commands with
            the same content may replace each other's files.
        resumes: whether the command itself checks its earlier output, and resumes or rejects it.
        siblings: names of other files that the command writes next to an output file; {stem} is its name without
            suffix.
        is_private: whether only the owner can read the output; otherwise the umask determines the permissions.
    """

    kind: Literal["folder", "new folder", "file"]
    content: str = ""
    resumes: bool = False
    siblings: tuple[str, ...] = ()
    is_private: bool = True


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
    """Lock an output during the block, after checking that writing to it destroys no other files.

    A nested lock of the same output has no effect. If the block writes nothing, folders created for the lock are
    removed. On file systems without locks, the output is only checked.

    Args:
        path: folder or file to write.
        output: declaration of the output.
        command: name of the command, for the error message of a second run.
        inputs: files and folders that the command reads.
        overwrite: whether to replace files that the command did not write. Inputs are never replaced.
        waits: whether to wait for another process to release the lock instead of raising an error.

    Yields:
        Whether the output is locked.

    Raises:
        InputError: another process has locked the output, or the path is an input, contains files of another origin,
            or is not writable.
    """
    path = Path(path)
    if (real := path.resolve()) in _locked_outputs.get():
        yield True
        return
    inputs = tuple(Path(item).resolve() for item in inputs)
    _check_kind(path, output)
    _check_inputs(path, output, inputs)
    _check_origin(path, output, overwrite)
    folder = path if output.kind == "folder" else path.parent
    created = [parent for parent in (folder, *folder.parents) if not parent.exists()]
    lock_file = path / LOCK if output.kind == "folder" else path.with_name(f".{path.name}{LOCK}")
    with (
        _context_value(_locked_outputs, (*_locked_outputs.get(), real)),
        _context_value(command_inputs, (*command_inputs.get(), *inputs)),
        _context_value(private_files, output.is_private),
    ):
        lock = _acquire(lock_file, path, command or Path(sys.argv[0]).name, waits=waits)
        try:
            # Another run may have written there in the meantime.
            _check_origin(path, output, overwrite)
            with (
                _record_content(path, output.content)
                if output.kind == "folder" and not output.resumes
                else nullcontext()
            ):
                yield lock is not None
        finally:
            _release(lock, lock_file, created)


@contextmanager
def _context_value(variable: ContextVar[_T], value: _T) -> Iterator[None]:
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)


@contextmanager
def _record_content(folder: Path, content: str) -> Iterator[None]:
    """Record the content of a folder if the block writes to it."""
    _finish_replacement(folder)
    if (_read_record(folder) or {}).get("content") == content:
        yield
        return
    before = _entries(folder)
    write_json(folder / RECORD, {"content": content, "files": []})
    try:
        yield
    finally:
        if folder.is_dir() and _entries(folder) == before:
            (folder / RECORD).unlink(missing_ok=True)


@contextmanager
def replace_files(folder: Path) -> Iterator[Path]:
    """Yield a temporary folder, and move its files into `folder` when the block ends without an error.

    The new files replace all files that the previous call wrote to `folder`; other files are kept. After a failure or
    a crash, `folder` has either the files of the previous call or those of this call: the next `lock_output` completes
    an interrupted move.

    Args:
        folder: output folder, locked by `lock_output`. Created if missing.

    Raises:
        InputError: a file would replace an input of the command that locked the folder.
        OSError: a file cannot be written. The error names the file in `folder`.
    """
    create_folder(folder)
    for stale in folder.glob(f"{_NEW}*"):
        shutil.rmtree(stale, ignore_errors=True)
    new = folder / f"{_NEW}{secrets.token_hex(4)}"
    try:
        with naming_file(folder, new):
            create_folder(new)
        with _name_final_folder(folder, new):
            yield new
            names = _files_in(new)
            for name in names:
                check_not_input(folder / name)
            record = _read_record(folder) or {}
            write_json(new / RECORD, {"content": record.get("content", ""), "files": names})
            new.rename(folder / _COMMIT)
    except BaseException:
        shutil.rmtree(new, ignore_errors=True)
        raise
    _finish_replacement(folder)


def record_files(folder: Path, files: Iterable[Path]) -> None:
    """Add files to the record of an output folder, so that the next run replaces them.

    Args:
        folder: output folder. Without a record, nothing is added.
        files: files in the folder.
    """
    if record := _read_record(folder):
        names = {path.relative_to(folder).as_posix() for path in files}
        if new := names.difference(record["files"]):
            write_json(folder / RECORD, {**record, "files": sorted({*record["files"], *new})})


@contextmanager
def replace_folder(folder: Path) -> Iterator[Path]:
    """Yield a temporary folder that replaces another one when the block ends without an error.

    Args:
        folder: the folder to replace; it is removed after the new one is in place.

    Raises:
        OSError: the folder cannot be written. The error names `folder`.
    """
    fresh, old = (folder.with_name(f".{folder.name}.{end}") for end in ("new", "old"))
    shutil.rmtree(fresh, ignore_errors=True)
    try:
        with naming_file(folder, fresh):
            fresh.mkdir(parents=True)
        with _name_final_folder(folder, fresh):
            yield fresh
    except BaseException:
        # Free the disk space.
        shutil.rmtree(fresh, ignore_errors=True)
        raise
    shutil.rmtree(old, ignore_errors=True)
    if folder.exists():
        folder.rename(old)
    fresh.rename(folder)
    shutil.rmtree(old, ignore_errors=True)


@contextmanager
def _name_final_folder(folder: Path, temporary: Path) -> Iterator[None]:
    """Replace the path of a temporary file by its final path in an `OSError`."""
    try:
        yield
    except OSError as error:
        name = Path(str(error.filename or ""))
        if error.filename is not None and not name.is_relative_to(temporary):
            raise
        place = folder if error.filename is None else folder / name.relative_to(temporary)
        raise OSError(error.errno, error.strerror or str(error), str(place)) from error


def _check_inputs(path: Path, output: Output, inputs: Iterable[Path]) -> None:
    """Raise an error if an output is an input or contains one."""
    written = [path, *(path.with_name(name.format(stem=path.stem)) for name in output.siblings)]
    record = (_read_record(path) if output.kind == "folder" else None) or {}
    owned = {path / name for name in record.get("files", ())}
    for item in inputs:
        content = [item, *(item / name for name in (_read_record(item) or {}).get("files", ()))]
        if any(is_same_file(file, part) for file in (*written, *owned) for part in content):
            raise InputError(
                "expected an output other than the inputs, found an input of this command; choose another output",
                code=ErrorCode.OUTPUT_CONFLICT,
                file=path,
            )
        is_inside = output.kind != "file" and item.is_relative_to(path.resolve())
        if is_inside and not (record or output.resumes):
            raise InputError(
                f"expected a folder without inputs of this command, found {item}; choose another output folder",
                code=ErrorCode.OUTPUT_CONFLICT,
                file=path,
            )


def _check_kind(path: Path, output: Output) -> None:
    """Raise an error for a file instead of a folder, a folder instead of a file, or a folder that is not writable."""
    if output.kind == "file" and path.is_dir():
        raise InputError("expected a file, found a folder", code=ErrorCode.OUTPUT_CONFLICT, file=path)
    existing = next(parent for parent in (path, *path.parents) if parent.exists() or parent.is_symlink())
    if existing == path and output.kind == "file":
        existing = path.parent
    if not existing.is_dir():
        raise InputError("expected a folder, found a file", code=ErrorCode.OUTPUT_CONFLICT, file=existing)
    if not os.access(existing, os.W_OK | os.X_OK):
        raise InputError("expected a writable folder", code=ErrorCode.WRITE_FAILED, file=existing)


def _check_origin(path: Path, output: Output, overwrite: bool) -> None:
    """Raise an error if the files of an output were not written by a command with the same content."""
    if output.resumes or overwrite:
        return
    if output.kind == "new folder":
        if path.exists() and any(path.iterdir()):
            message = "expected a new or empty folder, found files; choose another folder or remove it"
            raise InputError(message, code=ErrorCode.OUTPUT_CONFLICT, file=path)
        if path.exists() and path.samefile(Path.cwd()):
            message = "expected a new folder, found the current directory; choose another folder"
            raise InputError(message, code=ErrorCode.OUTPUT_CONFLICT, file=path)
        return
    if output.kind == "file":
        for file in (path, *(path.with_name(name.format(stem=path.stem)) for name in output.siblings)):
            if file.exists() or file.is_symlink():
                message = "already exists; choose another file, or add --overwrite to replace it"
                raise InputError(message, code=ErrorCode.OUTPUT_CONFLICT, file=file)
        return
    record = _read_record(path)
    if record is not None and record.get("content") == output.content:
        return
    # Hidden files come from file managers or from a run that stopped at this check.
    entries = path.iterdir() if path.is_dir() else ()
    foreign = sorted(entry.name for entry in entries if not entry.name.startswith(".") and not _is_output(entry))
    if record is not None or foreign:
        origin = f"files of {record['content']!r}" if record else "files that this command did not write"
        names = f" ({list_some(foreign)})" if foreign else ""
        message = (
            f"contains {origin}{names}; choose another folder, or add --overwrite to replace files of the same name "
            "and keep the others"
        )
        raise InputError(message, code=ErrorCode.OUTPUT_CONFLICT, file=path)


def _entries(folder: Path) -> set[str]:
    return {entry.name for entry in folder.iterdir()} - {LOCK, RECORD}


def _is_output(path: Path) -> bool:
    return (path / RECORD).is_file()


def _read_record(folder: Path) -> dict[str, Any] | None:
    """Return the record of an output folder with its content and the files of the last run; None without a record."""
    try:
        record = read_json(folder / RECORD)
    except InputError:
        return None
    files = record.get("files") if isinstance(record, dict) else None
    if not isinstance(files, list) or not isinstance(record.get("content"), str):
        return None
    # A record must not name files outside its folder.
    return record if all(isinstance(name, str) and _is_below(name) for name in files) else None


def _is_below(name: str) -> bool:
    return not Path(name).is_absolute() and ".." not in Path(name).parts


def _files_in(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if not path.is_dir())


def _finish_replacement(folder: Path) -> None:
    """Move the complete files of `replace_files` into their folder, also those of an interrupted run."""
    new, old = folder / _COMMIT, folder / _OLD
    if not new.is_dir():
        shutil.rmtree(old, ignore_errors=True)
        return
    before, after = _read_record(folder) or {}, _read_record(new) or {}
    names = after.get("files", [])

    def move_to_old(name: str) -> None:
        if os.path.lexists(folder / name):
            target = old / f"{name}.{secrets.token_hex(4)}"
            target.parent.mkdir(parents=True, exist_ok=True)
            (folder / name).rename(target)

    for name in names:
        if os.path.lexists(new / name):  # an interrupted run may have moved it
            move_to_old(name)
            create_folder((folder / name).parent)
            (new / name).rename(folder / name)
    for name in set(before.get("files", [])) - set(names):
        move_to_old(name)
        with suppress(OSError):  # not empty
            if (parent := (folder / name).parent) != folder:
                parent.rmdir()
    (new / RECORD).replace(folder / RECORD)
    shutil.rmtree(new, ignore_errors=True)
    shutil.rmtree(old, ignore_errors=True)


def _acquire(lock_file: Path, path: Path, command: str, *, waits: bool) -> FileLock | None:
    """Lock an output; None on file systems without locks."""
    for _ in range(_ATTEMPTS):
        try:
            create_folder(lock_file.parent)
            # Every user who can write to the folder can lock it.
            lock = FileLock(lock_file, mode=lock_file.parent.stat().st_mode & 0o666 | 0o600, is_singleton=False)
            lock.acquire(blocking=waits)
        except Timeout:
            if holder := _holder(lock_file):
                raise _lock_error(path, holder) from None
            time.sleep(_WAIT)  # the lock was just acquired or released
            continue
        except (FileNotFoundError, FileExistsError):
            continue  # another run just removed the folder
        except PermissionError:
            if not lock_file.exists():
                return None  # the code that writes the files reports the reason
            raise InputError(
                "the lock file belongs to another user and is not writable; ask its owner to make it writable, "
                "remove it if no run is active, or choose another output",
                code=ErrorCode.LOCKED,
                file=lock_file,
            ) from None
        except (OSError, NotImplementedError):
            return None
        since = datetime.now(UTC).isoformat(timespec="seconds")
        process = {"pid": os.getpid(), "host": socket.gethostname(), "command": command, "since": since}
        with suppress(OSError):  # on a full disk, for example, the lock works without its description
            lock_file.write_text(json.dumps(process), encoding="utf-8")
        return lock
    raise _lock_error(path, "another process")


def _holder(lock_file: Path) -> str:
    """Return a description of the process that holds a lock; empty if the lock file does not name it yet."""
    try:
        holder = json.loads(lock_file.read_text(encoding="utf-8"))
        return f"process {holder['pid']} on {holder['host']} ({holder['command']}, since {holder['since']})"
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def _lock_error(path: Path, holder: str) -> InputError:
    message = f"locked by {holder}; wait until it ends, or choose another output"
    return InputError(message, code=ErrorCode.LOCKED, file=path)


def _release(lock: FileLock | None, lock_file: Path, created: list[Path]) -> None:
    """Release a lock, and remove the empty folders that were created for it."""
    if lock is None:
        return
    # Remove the file while it is locked. Another process that has opened it detects this and tries again.
    with suppress(OSError):
        lock_file.unlink()
    lock.release()
    with suppress(OSError):  # not empty
        for path in created:
            path.rmdir()
