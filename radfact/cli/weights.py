"""`radfact weights`: download the weights that metrics need, and check them."""

from __future__ import annotations

import sys
from collections import Counter
from typing import Annotated
from urllib.parse import urlsplit

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from radfact.cache_folders import weights_folder
from radfact.cli.tables import new_console, say
from radfact.errors import ErrorCode, ExitCode, InputError, RunError
from radfact.io.download import OnProgress
from radfact.io.jsonl import dumps
from radfact.metrics.weights import WeightsFile, catalog
from radfact.metrics.weights_cache import DOWNLOADS, describe, fetch, select_entries, verify

MANUAL = (
    "Download the weights that metrics need, and check them.\n\nOnly 'radfact weights fetch' downloads anything. "
    "Metrics find the weights in the same folder: RADFACT_WEIGHTS, or radfact/weights in the user's cache."
)
app = typer.Typer(help=MANUAL, no_args_is_help=True, rich_markup_mode="rich")
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object, with every address and checksum.")]
Names = Annotated[list[str], typer.Argument(help="Weights, or metrics for all weights that they need.")]
_STYLES = {"ready": "green", "partial download": "yellow", "without record": "yellow"}


@app.command("list")
def list_weights(json: Json = False) -> None:
    """List the weights with source, license, size, checksum, and whether they are in the folder; needs no network."""
    root = weights_folder()
    items = [describe(entry, root) for entry in catalog().values()]
    if json:
        print(dumps({"folder": str(root), "weights": items}))
        return
    console = new_console()
    say(console, f"folder: {root}", wrap=False)
    say(console, f"files in {root / DOWNLOADS}/NAME are used instead of a download", wrap=False)
    for item in items:
        say(console, f"{item['name']}: {item['status']}", style=_STYLES.get(item["status"]), wrap=False)
        say(console, f"  {item['title']}; for {', '.join(item['metrics'])}", wrap=False)
        say(console, f"  license: {item['license']} ({item['license_url']})", wrap=False)
        if item["note"]:
            say(console, f"  note: {item['note']}", wrap=False)
        for file in item["files"]:
            size = "size unknown" if file["bytes"] is None else f"{file['bytes']:,} bytes"
            checksum = f"SHA-256 {file['sha256'] or 'unknown, recorded at the first fetch'}"
            say(console, f"  {file['url']}\n    {size}, {checksum}", wrap=False)


@app.command("fetch")
def fetch_weights(context: typer.Context, names: Names) -> None:
    """Download weights, check their checksums, and put them where metrics find them.

    The same command resumes an interrupted download, and uses files that are in the folder of downloads already.
    """
    root, console = weights_folder(), new_console(stderr=True)
    description = TextColumn("{task.description}")
    columns = (description, BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    for entry in select_entries(names):
        say(console, f"{entry.name}: {entry.title}; license: {entry.license} ({entry.license_url})", wrap=False)
        with Progress(*columns, console=console, disable=not sys.stderr.isatty()) as progress:
            is_new = fetch(entry, root, lambda file: _start(console, progress, file), command=context.command_path)
        say(new_console(), f"{entry.name}: {'fetched to' if is_new else 'already in'} {root / entry.name}", wrap=False)
        if unknown := [file.path for file in entry.files if file.sha256 is None]:
            say(console, f"  no published checksum of {', '.join(unknown)}: recorded as downloaded", wrap=False)


@app.command("verify")
def verify_weights(
    names: Annotated[list[str] | None, typer.Argument(help="Weights or metrics; by default all in the folder.")] = None,
) -> None:
    """Check the files of fetched or copied weights against published or recorded checksums.

    Exit code 1: a file is missing or has another checksum. Exit code 3: no checksum is known of a file.
    """
    root, console = weights_folder(), new_console()
    selected = select_entries(names) if names else [e for e in catalog().values() if (root / e.name).is_dir()]
    if not selected:
        raise InputError("no weights; run 'radfact weights fetch NAME'", code=ErrorCode.FILE_NOT_FOUND, file=root)
    failed = unknown = 0
    for entry in selected:
        checks = verify(entry, root)
        for check in checks:
            if not check.is_valid:
                style = "red" if check.is_valid is False else "yellow"
                say(console, f"{check.path}: {check.message}", style=style, wrap=False)
        valid = Counter(check.message for check in checks if check.is_valid)
        details = ", ".join(f"{count} with the {message}" for message, count in valid.items())
        say(console, f"{entry.name}: {len(checks)} files, {details or 'none with a known checksum'}", wrap=False)
        failed += sum(check.is_valid is False for check in checks)
        unknown += sum(check.is_valid is None for check in checks)
    if failed:
        message = f"{failed} files of weights are missing or have another checksum"
        advice = "remove their folder, and fetch or copy them again"
        raise RunError(f"{message}; {advice}", code=ErrorCode.CHECKSUM_MISMATCH)
    if unknown:
        raise typer.Exit(ExitCode.INCOMPLETE)


def _start(console: Console, progress: Progress, file: WeightsFile) -> OnProgress:
    """Announce a file, and return what draws its progress."""
    say(console, f"  {file.path} from {urlsplit(file.url).netloc}", wrap=False)
    task = progress.add_task(file.path, total=file.bytes)
    return lambda done, total: progress.update(task, completed=done, total=total)
