"""Downloaded weights: FOLDER/NAME has complete ones of the catalog, FOLDER/downloads/NAME others and the user's."""

from __future__ import annotations

import shutil
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from radfact.errors import ErrorCode, InputError, RunError, suggest_name
from radfact.io.download import OnProgress, download, file_sha256
from radfact.io.jsonl import read_json, write_json
from radfact.io.outputs import Output, lock_output, replace_folder
from radfact.metrics.registry import entries
from radfact.metrics.weights import WeightsEntry, WeightsFile, catalog, find_lack

RECORD = ".weights.json"
DOWNLOADS = "downloads"
Status = Literal["ready", "incomplete", "partial download", "without record", "missing"]


@dataclass(frozen=True, slots=True)
class FileCheck:
    """Whether a file has the expected checksum (None if none is known), and what was found."""

    path: Path
    is_valid: bool | None
    message: str


def select_entries(names: Sequence[str]) -> list[WeightsEntry]:
    """Return the weights of the given names, each once."""
    selected: dict[str, WeightsEntry] = {}
    known, metrics = catalog(), entries()
    for name in names:
        needed = [name] if name in known else []
        if not needed and name in metrics:
            needed = [weights for weights in metrics[name].declared.requirements.weights if weights in known]
        if not needed:
            users = [metric for weights in known for metric in metrics_with(weights)]
            hint = suggest_name(name, [*known, *users], f"names are {', '.join(known)}")
            raise InputError(f"no weights to fetch are known for '{name}'; {hint}", code=ErrorCode.UNKNOWN_NAME)
        selected |= {weights: known[weights] for weights in needed}
    return list(selected.values())


def metrics_with(weights: str) -> list[str]:
    """Return the names of the metrics that need weights."""
    names = []
    for name, entry in entries().items():
        with suppress(InputError):  # a package's metric that cannot be loaded
            if weights in entry.declared.requirements.weights:
                names.append(name)
    return names


def fetch(
    entry: WeightsEntry, root: Path, on_progress: Callable[[WeightsFile], OnProgress], *, command: str = ""
) -> bool:
    """Download weights, check them, and put them in their folder; False if they are there already."""
    folder, downloads = root / entry.name, root / DOWNLOADS / entry.name
    with lock_output(downloads, Output("folder", resumes=True, is_private=False), command=command):
        if _is_complete(entry, folder):
            return False
        if _has_other_files(folder):
            hint = "use or move them, or set RADFACT_WEIGHTS to another folder"
            message = f"holds files that this command has not fetched; {hint}"
            raise InputError(message, code=ErrorCode.OUTPUT_CONFLICT, file=folder)
        digests = {}
        for file in entry.files:
            path, progress = downloads / file.path, on_progress(file)
            try:
                digests[file.path] = download(file.url, path, size=file.bytes, sha256=file.sha256, on_progress=progress)
            except RunError as error:
                if error.code is ErrorCode.SERVER_UNAVAILABLE:
                    hint = f"or put the file at {path} and repeat the command"
                    raise RunError(f"{error}; {hint}", code=error.code) from None
                raise
        with replace_folder(folder) as new:
            _install(entry, downloads, new, digests)
        shutil.rmtree(downloads)
    with suppress(OSError):  # other weights are not complete
        downloads.parent.rmdir()
    return True


def status(entry: WeightsEntry, root: Path) -> Status:
    """Return whether weights are in their folder; nothing is read but their record."""
    folder, downloads = root / entry.name, root / DOWNLOADS / entry.name
    if (folder / RECORD).exists():
        return "ready" if _is_complete(entry, folder) else "incomplete"
    if _has_other_files(folder):
        return "without record"
    has_files = downloads.is_dir() and any(path.is_file() for path in downloads.rglob("[!.]*"))
    return "partial download" if has_files else "missing"


def verify(entry: WeightsEntry, root: Path) -> list[FileCheck]:
    """Check the files of weights against published checksums, or those that were recorded when they were fetched."""
    folder = root / entry.name
    if not folder.is_dir():
        message = f"no such folder; run 'radfact weights fetch {entry.name}'"
        raise InputError(message, code=ErrorCode.FILE_NOT_FOUND, file=folder)
    published = {file.path: file.sha256 for file in entry.files if file.sha256 and file.unpack is None}
    recorded = _read_record(folder)["files"]
    found = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    checks = []
    for name in sorted({*published, *recorded, *found} - {RECORD}):
        path, expected = folder / name, published.get(name) or recorded.get(name)
        if name not in found:
            checks.append(FileCheck(path, False, "missing"))
        elif expected is None:
            checks.append(FileCheck(path, None, "neither a published nor a recorded checksum is known"))
        elif (digest := file_sha256(path)) != expected:
            checks.append(FileCheck(path, False, f"expected the SHA-256 {expected}, found {digest}"))
        else:
            checks.append(FileCheck(path, True, "published checksum" if name in published else "recorded checksum"))
    return checks


def describe(entry: WeightsEntry, root: Path) -> dict[str, Any]:
    """Return everything that is known about weights, in JSON types."""
    downloads = root / DOWNLOADS / entry.name
    files = [
        {name: getattr(file, name) for name in ("url", "bytes", "sha256")}
        | {"is_archive": file.unpack is not None, "download_to": str(downloads / file.path)}
        for file in entry.files
    ]
    record = {"name": entry.name, "title": entry.title, "metrics": metrics_with(entry.name)}
    record |= {name: getattr(entry, name) for name in ("license", "license_url", "note")}
    return {**record, "folder": str(root / entry.name), "status": status(entry, root), "files": files}


def _install(entry: WeightsEntry, downloads: Path, folder: Path, digests: Mapping[str, str]) -> None:
    """Put downloaded files in a new folder, and record the checksums of all of them."""
    for file in entry.files:
        if file.unpack is not None:
            _unpack(downloads / file.path, file.unpack, folder)
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    recorded = {path.relative_to(folder).as_posix(): file_sha256(path) for path in files}
    for file in entry.files:
        if file.unpack is None:
            (folder / file.path).parent.mkdir(parents=True, exist_ok=True)
            (downloads / file.path).rename(folder / file.path)
            recorded[file.path] = digests[file.path]
    sources = {file.url: digests[file.path] for file in entry.files}
    write_json(folder / RECORD, {"sources": sources, "files": recorded})
    for metric in metrics_with(entry.name):
        if lack := find_lack(folder, entries()[metric].declared.requirements.weights[entry.name]):
            raise RunError(f"{entry.name}: the source has other files than expected: {lack}")


def _unpack(archive: Path, inner: str, folder: Path) -> None:
    """Move the content of a folder in an archive to another folder; no member is written outside of it."""
    content = folder / f".{archive.name}"
    try:
        # Members of a ZIP file that lead out of the folder are skipped by default.
        shutil.unpack_archive(archive, content, filter="data" if tarfile.is_tarfile(archive) else None)
        for path in sorted((content / inner).iterdir()):
            path.rename(folder / path.name)
    except (shutil.ReadError, tarfile.TarError, zipfile.BadZipFile, zlib.error, EOFError, FileNotFoundError) as error:
        message = f"{archive}: cannot be unpacked: {error!s:.200}; remove the file"
        raise RunError(message, code=ErrorCode.INVALID_FORMAT) from None
    shutil.rmtree(content)


def _has_other_files(folder: Path) -> bool:
    return folder.is_dir() and any(folder.iterdir()) and not (folder / RECORD).exists()


def _read_record(folder: Path) -> dict[str, dict[str, str]]:
    """Return the record of fetched weights, checksums by source address and by file; both empty without a record."""
    path = folder / RECORD
    if not path.exists():
        return {"sources": {}, "files": {}}
    record = read_json(path)
    for name in ("sources", "files"):
        checksums = record.get(name) if isinstance(record, dict) else None
        if not isinstance(checksums, dict) or not all(isinstance(item, str) for item in checksums.values()):
            raise InputError("expected checksums by name", code=ErrorCode.INVALID_FORMAT, file=path, field=name)
    return record  # type: ignore[no-any-return]


def _is_complete(entry: WeightsEntry, folder: Path) -> bool:
    """Return whether a folder has all files of its record, fetched from the addresses of the catalog."""
    try:
        record = _read_record(folder)
    except InputError:
        return False
    has_sources = list(record["sources"]) == [file.url for file in entry.files]
    return has_sources and all((folder / name).is_file() for name in record["files"])
