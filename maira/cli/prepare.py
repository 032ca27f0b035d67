"""`maira prepare`: convert a source of studies to a manifest and PNG files."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Annotated

import typer
from pydantic import Field
from rich.console import Console

from maira.cli.options import PreparedFolder
from maira.cli.show import exit_with_failures, print_line, show_progress
from maira.cli.sources import SOURCES
from maira.data.image_check import ImageCheckOption
from maira.data.images import MAX_SIZE
from radfact.cli.command import with_options
from radfact.errors import ErrorCode, InputError, RunError
from radfact.io.jsonl import write_jsonl
from radfact.options import Option, Options

app = typer.Typer(help="Convert a data set to a manifest and PNG files.", no_args_is_help=True)


SOURCE_FILES = "source_files.jsonl"
"""The file of each sample; other files of a prepared folder do not name them."""


class DicomOptions(Options):
    """Conversion and names of single radiographs."""

    size: Annotated[int, Field(ge=14, le=MAX_SIZE), Option("Shorter side in pixels.")] = 518
    image_check: ImageCheckOption = "refuse"
    file_names: Annotated[
        bool,
        Option(
            "Name samples after their files, which often contain names of patients. Default: a hash of the SOP "
            "instance UID.",
            flag="--file-names",
        ),
    ] = False


@app.command("dicom")
@with_options
def prepare_dicom(
    files: Annotated[list[Path], typer.Argument(help="DICOM files or folders; each file is one frontal radiograph.")],
    out: PreparedFolder,
    options: DicomOptions,
) -> None:
    """Convert radiographs to 8-bit PNG (MAIRA-2, appendix B.4), and write a manifest with one study per radiograph."""
    from maira.data.dicom.radiograph import to_levels, write_png
    from maira.data.dicom.reader import open_binary, read_dicom
    from maira.data.manifest import PREPARATION_RECORD, Failure, open_run_folder, write_failures, write_manifest
    from maira.data.sources.dicom import find_radiographs, pseudonym
    from maira.data.study import Study

    studies: list[Study] = []
    failures: list[Failure] = []
    sources: dict[str, Path] = {}
    radiographs = find_radiographs(files)
    # A digest, since the record does not have to name the files.
    paths = hashlib.sha256("\n".join(map(str, radiographs.values())).encode()).hexdigest()
    settings = {"source": "dicom", "radiographs": paths, **options.record()}
    for name, path in radiographs.items():
        try:
            with open_binary(path) as content:
                frame = read_dicom(content, path, image_check=options.image_check, view="frontal")
            levels = to_levels(frame, options.size, path)
            if not options.file_names:
                name = pseudonym(frame.instance, path)
            if (first := sources.setdefault(name, path)) != path:
                raise InputError(f"has the same SOP instance as {first}", code=ErrorCode.DUPLICATE, file=path)
        except InputError as error:
            if len(radiographs) == 1:
                raise
            failures.append(Failure(source=str(path), stage="dicom", reason=str(error)))
            continue
        if not studies:
            # After the first success, so that a wrong path does not leave a folder behind.
            open_run_folder(out, PREPARATION_RECORD, settings)
        frontal = Path("frontal") / f"{name}.png"
        write_png(levels, out / frontal)
        studies.append(Study(sample_id=name, frontal=frontal, source="dicom"))
    if not studies:
        raise RunError(f"none of the {len(radiographs)} radiographs can be read, for example: {failures[0].reason}")
    write_jsonl(out / SOURCE_FILES, ({"sample_id": name, "file": str(path)} for name, path in sources.items()))
    write_manifest(out / "manifest.jsonl", studies)
    console = Console()
    if failures:
        write_failures(out / "failures.jsonl", failures)
    print_line(console, f"{len(studies)} of {len(radiographs)} radiographs converted: {out / 'manifest.jsonl'}")
    exit_with_failures(console, [(str(f.source), f.reason) for f in failures])


@app.command("phantom")
@with_options
def prepare_phantom(
    out: PreparedFolder,
    count: Annotated[int, typer.Option(help="Number of studies.")] = 24,
    seed: Annotated[int, typer.Option(min=0, help="Random seed.")] = 3,
    size: Annotated[int, typer.Option(help="Shorter side of the radiographs in pixels.", max=MAX_SIZE)] = 518,
    split: Annotated[str, typer.Option(help="Split to write to the manifest.")] = "test",
    workers: Annotated[int, typer.Option(help="Number of processes.", min=1)] = 1,
) -> None:
    """Generate phantom studies: synthetic radiographs with ground-truth boxes, labels and reports."""
    from maira.data.phantoms import write_phantoms

    with show_progress("making phantoms") as on_progress:
        for done, _ in enumerate(write_phantoms(out, count, seed=seed, size=size, split=split, workers=workers), 1):
            on_progress(done, count)
    print_line(Console(), f"{count} phantom studies of series {seed}: {out / 'manifest.jsonl'}")


for _name, _command in SOURCES.items():
    app.command(_name)(_command)
