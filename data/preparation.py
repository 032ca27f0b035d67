"""Convert the radiographs of an archive to PNG in parallel and write a manifest; an interrupted run resumes."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, PositiveInt

from maira.data.archive import Radiograph
from maira.data.dicom.convert import radiograph_to_png
from maira.data.image_check import ImageCheck, ImageCheckOption
from maira.data.images import MAX_SIZE
from maira.data.manifest import (
    PREPARATION_RECORD,
    Failure,
    open_run_folder,
    read_failures,
    write_failures,
    write_manifest,
)
from maira.data.pairing import SampleMaker, png_path
from maira.data.processes import process_pool
from maira.data.study import IMAGE_COLUMNS, Original, Study
from radfact.errors import InputError, RunError
from radfact.io.jsonl import append_jsonl
from radfact.options import Option, Options

MANIFEST, FAILURES = "manifest.jsonl", "failures.jsonl"

_AHEAD = 16
"""Radiographs queued for each process. The number in flight bounds the memory, whatever the archive's size."""

Outcome = tuple[str | None, tuple[str, ...]]
"""The reason why a radiograph cannot be converted, and what is doubtful about one that is."""
_DOUBT = "doubt"
"""Stage of the failures that list samples with a doubtful image, which are in the manifest."""
_ConversionFailure = tuple[Radiograph, str, Study, str]
"""A radiograph that cannot be converted, the reason, and a sample that was to show it in a column."""
Target = tuple[Radiograph, Path]
"""A radiograph and the path of its PNG."""


class Conversion(Options):
    """Conversion of images to PNG; defaults as in the MAIRA-2 paper."""

    size: Annotated[int, Field(ge=14, le=MAX_SIZE), Option("Shorter side of the radiographs in pixels.")] = 518
    apply_windows: Annotated[
        bool, Option("Apply the VOI windows of DICOM files (not done in the paper).", flag="--apply-windows")
    ] = False
    image_check: ImageCheckOption = "refuse"
    link_originals: Annotated[
        bool,
        Option("List the original files in the manifest, for `maira review` to show them.", flag="--link-originals"),
    ] = False
    engine: Annotated[Literal["local", "ray"], Option("Processes on this machine, or a Ray cluster.")] = "local"
    workers: Annotated[PositiveInt | None, Option("Number of processes. Default: 1, or the CPUs of the cluster.")] = (
        None
    )

    @property
    def pixel_settings(self) -> dict[str, Any]:
        """Arguments of `convert_radiograph`."""
        return {"size": self.size, "apply_windows": self.apply_windows, "image_check": self.image_check}


@dataclass(frozen=True)
class PreparationResult:
    """Samples of the manifest, what was skipped, and the number of radiographs converted in this run."""

    studies: list[Study]
    failures: list[Failure] = field(default_factory=list)
    converted: int = 0


def prepare(
    source: str,
    origin: str,
    make: SampleMaker,
    out: Path,
    conversion: Conversion,
    *,
    unread: Iterable[Failure] = (),
    on_progress: Callable[[int, int], None] = lambda *_: None,
) -> PreparationResult:
    """Convert the radiographs that samples show, and write `manifest.jsonl` and `failures.jsonl`.

    If a radiograph cannot be converted, samples are made again as if the archive did not have it: another lateral or
    prior is drawn if there is one. PNGs of unchanged sources are kept, so an interrupted run resumes: a PNG has the
    modification time of its source. The origin (the folder of the radiographs) is part of the run's settings: names are
    unique within one only.
    """
    samples = make(frozenset())
    settings = {"source": source, "images": origin, **conversion.pixel_settings}
    open_run_folder(out, PREPARATION_RECORD, settings)
    unreadable: dict[str, str] = {}
    doubts = {failure.source: failure for failure in read_failures(out / FAILURES) if failure.stage == _DOUBT}
    conversion_failures: list[_ConversionFailure] = []
    converted = 0
    for partial_file in (out / "images").glob("*/.*"):
        # From a run that was killed while writing.
        partial_file.unlink()
    while True:
        missing = {path: image for path, image in samples.radiographs.items() if not _is_current(out / path, image)}
        present = len(samples.radiographs) - len(missing)
        on_progress(present, len(samples.radiographs))
        failed: dict[Path, tuple[Radiograph, str]] = {}
        # An interrupted run ends its processes before it returns.
        with closing(_convert(missing, out, conversion)) as conversions:
            for done, (radiograph, (reason, doubtful)) in enumerate(conversions, start=1):
                source = str(radiograph.location)
                doubts.pop(source, None)
                if doubtful:
                    reason_to_look = f"is kept, but look at the image {png_path(radiograph)}: {'; '.join(doubtful)}"
                    doubts[source] = Failure(source=source, stage=_DOUBT, reason=reason_to_look)
                    # Now, since a resumed run does not convert it again.
                    append_jsonl(out / FAILURES, [doubts[source].model_dump(mode="json")])
                if reason is None:
                    converted += 1
                else:
                    failed[png_path(radiograph)] = radiograph, reason
                    unreadable[radiograph.key] = reason
                on_progress(present + done, len(samples.radiographs))
        if not failed:
            break
        conversion_failures += [
            (*failed[path], study, column)
            for study in samples.studies
            for column in IMAGE_COLUMNS
            if (path := getattr(study, column)) in failed
        ]
        samples = make(frozenset(unreadable))
    failures = [*unread, *_describe_failures(conversion_failures, samples.studies), *samples.skipped]
    shown = sorted(str(radiograph.location) for radiograph in samples.radiographs.values())
    failures += [doubts[source] for source in shown if source in doubts]
    if not samples.studies:
        # Unreadable radiographs are the reason why their studies have none, so they are the better example.
        example = next(iter([*unreadable.values(), *(failure.reason for failure in failures)]), None)
        if all(entry.name == PREPARATION_RECORD for entry in out.iterdir()):
            # A wrong path leaves no folder that the corrected command would have to be given another name for.
            (out / PREPARATION_RECORD).unlink()
            out.rmdir()
        details = f"; skipped {len(failures)} radiographs, studies and rows, for example: {example}" if example else ""
        raise RunError(f"{source}: expected at least one usable sample, found none{details}")
    # Failures first: the manifest marks a complete preparation.
    write_failures(out / FAILURES, failures)
    studies = samples.studies
    if conversion.link_originals:
        studies = [_link_originals(study, samples.radiographs) for study in studies]
    write_manifest(out / MANIFEST, studies)
    return PreparationResult(studies, failures, converted)


def _link_originals(study: Study, radiographs: Mapping[Path, Radiograph]) -> Study:
    originals = {}
    for column in IMAGE_COLUMNS:
        if (path := getattr(study, column)) is not None:
            source = radiographs[path]
            file = source.path.absolute()
            originals[column] = Original(path=file, member=source.member, is_inverted=source.is_inverted)
    return study.model_copy(update={"originals": originals})


def _is_current(target: Path, radiograph: Radiograph) -> bool:
    """Return whether a PNG was converted from the current file of a radiograph, or that file no longer exists."""
    converted, modified = _modified(target), _modified(radiograph.path)
    return converted is not None and modified in (converted, None)


def _modified(path: Path) -> int | None:
    """Return the modification time of a file in nanoseconds; None if it does not exist."""
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return None


def _describe_failures(
    conversion_failures: Iterable[_ConversionFailure], studies: Iterable[Study]
) -> Iterator[Failure]:
    """Yield what happened to samples that lost a radiograph, in an order independent of the processes' timing."""
    # Sample ids may be renumbered as radiographs are lost, so samples are identified by study and frontal.
    by_frontal: dict[tuple[str, Path], list[Study]] = {}
    for study in studies:
        by_frontal.setdefault((study.study_id or study.sample_id, study.frontal), []).append(study)
    for radiograph, cause, study, column in conversion_failures:
        remaining = by_frontal.get((study.study_id or study.sample_id, study.frontal), [])
        sample_id = remaining[0].sample_id if remaining else study.sample_id
        name = column.split("_")[0]
        if not remaining:
            effect = "is skipped"
        elif all(getattr(left, column) is None for left in remaining):
            effect = f"has no {name} image"
        else:
            effect = f"uses another {name} image"
        reason = f"sample {sample_id} {effect}: {cause}"
        yield Failure(sample_id=sample_id, source=str(radiograph.location), stage="convert", reason=reason)


def _convert(
    radiographs: Mapping[Path, Radiograph], out: Path, conversion: Conversion
) -> Generator[tuple[Radiograph, Outcome]]:
    """Yield each radiograph when it is done."""
    # Members of a zip file together: the reader keeps only a few zip files open.
    ordered = sorted(radiographs.items(), key=lambda item: (str(item[1].path), item[1].member or ""))
    targets = [(radiograph, out.absolute() / path) for path, radiograph in ordered]
    convert = _convert_with_ray if conversion.engine == "ray" else _convert_in_processes
    return convert(targets, conversion)


def convert_radiograph(
    radiograph: Radiograph, target: Path, size: int, apply_windows: bool, image_check: ImageCheck = "refuse"
) -> Outcome:
    """Convert one radiograph."""
    # Before reading, so that a source replaced in the meantime is converted again.
    modified = _modified(radiograph.path)
    try:
        info = radiograph_to_png(radiograph, target, size, apply_windows=apply_windows, image_check=image_check)
    except InputError as error:
        return str(error), ()
    except MemoryError:
        return f"{radiograph.path}: not enough memory", ()
    if modified is not None:
        os.utime(target, ns=(modified, modified))
    return None, info.doubts


def _convert_in_processes(targets: Sequence[Target], conversion: Conversion) -> Generator[tuple[Radiograph, Outcome]]:
    """Convert in separate processes: decoders are C++, and a damaged file can crash its process."""
    workers = conversion.workers or 1
    pending, suspects = iter(targets), list[Target]()
    # One in flight at a time identifies the file that crashes the decoder.
    for processes, limit in ((workers, workers * _AHEAD), (1, 1)):
        while crashed := (yield from _convert_in_pool(pending, conversion, processes, limit)):
            if limit == 1:
                radiograph, _ = crashed[0]
                yield radiograph, (f"{radiograph.path}: the decoder crashed", ())
            else:
                suspects += crashed
        pending = iter(suspects)


def _convert_in_pool(
    pending: Iterator[Target], conversion: Conversion, processes: int, limit: int
) -> Generator[tuple[Radiograph, Outcome], None, list[Target]]:
    """Convert with at most `limit` radiographs in flight, and return those in flight when a process dies."""
    work = partial(convert_radiograph, **conversion.pixel_settings)
    in_flight: dict[Future[Outcome], Target] = {}
    submitted: list[Target] = []
    try:
        with process_pool(processes) as pool:
            while True:
                for target in islice(pending, limit - len(in_flight)):
                    # submit() may raise; the target must not get lost then.
                    submitted.append(target)
                    in_flight[pool.submit(work, *target)] = submitted.pop()
                if not in_flight:
                    return []
                for future in wait(in_flight, return_when=FIRST_COMPLETED).done:
                    outcome = future.result()
                    radiograph, _ = in_flight.pop(future)
                    yield radiograph, outcome
    except BrokenProcessPool:
        return [*submitted, *in_flight.values()]


def _convert_with_ray(targets: Sequence[Target], conversion: Conversion) -> Generator[tuple[Radiograph, Outcome]]:
    from radfact.llm.ray_cluster import RayWorkers

    options = conversion.pixel_settings
    ray_workers = RayWorkers(_RayWorker, "convert", "radiographs", options, workers=conversion.workers, max_chunk=256)
    for index, outcome in ray_workers.stream(targets):
        yield targets[index][0], outcome


class _RayWorker:
    """Converts radiographs in a process of a Ray cluster."""

    def __init__(self, _: str, **settings: Any) -> None:
        self.settings = settings

    def convert(self, targets: Sequence[Target]) -> list[Outcome]:
        """Convert radiographs."""
        return [convert_radiograph(radiograph, target, **self.settings) for radiograph, target in targets]

    def usage(self) -> dict[str, int]:
        """Return no usage: the driver counts radiographs."""
        return {}
