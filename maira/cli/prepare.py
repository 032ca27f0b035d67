"""The commands `maira prepare`: a source of studies becomes a manifest and PNG files."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from maira.cli.options import OutFolder
from maira.cli.show import end, progress, say
from maira.cli.sources import SOURCES
from radfact.errors import InputError

app = typer.Typer(help="Turn a source of studies into a manifest and PNG files.", no_args_is_help=True)


@app.command("dicom")
def prepare_dicom(
    files: Annotated[list[Path], typer.Argument(help="DICOM files, each a frontal film.")],
    out: OutFolder,
    size: Annotated[int, typer.Option(help="Pixels of the shorter side.")] = 518,
) -> None:
    """Convert radiographs to 8 bit PNG (paper B.4), with a manifest of one study a film."""
    from data.films.dicom import dicom_to_png
    from data.manifest import Failure, write_failures, write_manifest
    from data.study import Study

    studies, failures = [], []
    (twice, times), *_ = Counter(path.stem for path in files).most_common(1)
    if times > 1:
        raise InputError(f"two films would become the sample '{twice}'; rename one of the files")
    for path in files:
        # Relative to the manifest's folder, as the manifest writes it.
        frontal = Path("frontal") / f"{path.stem}.png"
        try:
            dicom_to_png(path, out / frontal, size)
            studies.append(Study(sample_id=path.stem, frontal=frontal, source="dicom"))
        except InputError as error:
            if len(files) == 1:
                raise
            failures.append(Failure(source=str(path), stage="dicom", reason=str(error)))
    write_manifest(out / "manifest.jsonl", studies)
    console = Console()
    if failures:
        write_failures(out / "failures.jsonl", failures)
    say(console, f"{len(studies)} of {len(files)} films converted: {out / 'manifest.jsonl'}")
    end(console, [(str(f.source), f.reason) for f in failures])


@app.command("phantom")
def prepare_phantom(
    out: OutFolder,
    count: Annotated[int, typer.Option(help="Number of studies.")] = 24,
    seed: Annotated[int, typer.Option(help="Series of studies; different seeds share none.")] = 3,
    size: Annotated[int, typer.Option(help="Pixels of the films' shorter side.")] = 518,
    split: Annotated[str, typer.Option(help="Name of the split in the manifest.")] = "test",
    workers: Annotated[int, typer.Option(help="Processes.", min=1)] = 1,
) -> None:
    """Make phantom studies: synthetic films with true boxes, labels and reports."""
    from data.phantoms import write_phantoms

    with progress("making phantoms") as on_progress:
        for done, _ in enumerate(write_phantoms(out, count, seed=seed, size=size, split=split, workers=workers), 1):
            on_progress(done, count)
    say(Console(), f"{count} phantom studies of series {seed}: {out / 'manifest.jsonl'}")


for _name, _command in SOURCES.items():
    app.command(_name)(_command)
