"""An archive on disk becomes a folder of PNGs with its manifest, in parallel, and again from where it stopped."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from multiprocessing import get_context
from pathlib import Path
from typing import Literal

from data.archive import Radiograph
from data.dicom.convert import radiograph_to_png
from data.manifest import Failure, write_failures, write_manifest
from data.pairing import SampleMaker, png_path
from data.run_folder import PREPARED, claim
from data.study import IMAGE_COLUMNS, Study
from radfact.errors import InputError, RunError

MANIFEST, FAILURES = "manifest.jsonl", "failures.jsonl"

_AHEAD = 16
"""Radiographs given to each process ahead of its work; their number in flight bounds the memory, whatever the archive."""
_CRASHED = "the decoder crashed on it"


@dataclass(frozen=True)
class Conversion:
    """How radiographs become PNGs.

    Attributes:
        size: shorter side, pixels.
        apply_windows: apply a DICOM's VOI window, which the paper does not.
        workers: processes, or of a Ray cluster; None takes one for each CPU of the cluster, and one process here.
        engine: processes of this machine, or Ray.
    """

    size: int = 518
    apply_windows: bool = False
    workers: int | None = None
    engine: Literal["local", "ray"] = "local"


@dataclass(frozen=True)
class Prepared:
    """What a preparation came to.

    Attributes:
        studies: of the manifest.
        failures: what was left out, and why; radiographs, studies, rows of the archive's tables.
        converted: radiographs converted in this run; those of an earlier one are not counted.
    """

    studies: list[Study]
    failures: list[Failure] = field(default_factory=list)
    converted: int = 0


def prepare(
    source: str,
    images: Path,
    make: SampleMaker,
    out: Path,
    conversion: Conversion,
    *,
    unread: Iterable[Failure] = (),
    on_progress: Callable[[int, int], None] | None = None,
) -> Prepared:
    """Convert the radiographs that samples show, and write `manifest.jsonl` and `failures.jsonl`.

    A radiograph that cannot be converted is listed for each sample that loses something by it, and the samples are made as if
    the archive did not have it: another lateral or prior is drawn where there is one. A radiograph that is there already is
    not converted again, so a run that was interrupted goes on where it stopped.

    Args:
        source: name of the archive.
        images: folder of its radiographs. Those of one folder have each a name of its own; those of two may share one.
        make: makes the samples, as `data.pairing.make_samples` does.
        out: folder to write.
        conversion: how radiographs become PNGs.
        unread: what of the archive could not be read; listed with the rest.
        on_progress: called with (radiographs there, radiographs in all).

    Raises:
        InputError: the archive contradicts itself (see `data.pairing.make_samples`), or `out` was made otherwise.
        RunError: not one sample could be made.
    """
    samples = make(frozenset())
    settings = {"source": source, "images": str(images.absolute()), "size": conversion.size}
    claim(out, PREPARED, settings | {"apply_windows": conversion.apply_windows}, holds="radiographs prepared")
    broken: dict[str, str] = {}
    losses: list[_Loss] = []
    converted = 0
    for leftover in (out / "images").glob("*/.*"):
        # Of a run that was killed while it wrote them.
        leftover.unlink()
    while True:
        left = {path: radiograph for path, radiograph in samples.radiographs.items() if not (out / path).exists()}
        report = on_progress or _unwatched
        there = len(samples.radiographs) - len(left)
        report(there, len(samples.radiographs))
        lost: dict[Path, tuple[Radiograph, str]] = {}
        for done, (radiograph, reason) in enumerate(_convert(left, out, conversion), start=1):
            if reason is None:
                converted += 1
            else:
                lost[png_path(radiograph)] = radiograph, reason
                broken[radiograph.key] = reason
            report(there + done, len(samples.radiographs))
        if not lost:
            break
        losses += _losses(samples.studies, lost)
        samples = make(frozenset(broken))
    failures = [*unread, *_told(losses, samples.studies), *samples.left_out]
    if not samples.studies:
        # Radiographs that cannot be read are why their studies have none, so they say more.
        first = next(iter([*broken.values(), *(failure.reason for failure in failures)]), None)
        why = f"; {len(failures)} radiographs, studies and rows were left out, such as: {first}" if first else ""
        raise RunError(f"{source}: there is no sample in it{why}")
    # Failures first: a manifest says that the preparation is whole.
    write_failures(out / FAILURES, failures)
    write_manifest(out / MANIFEST, samples.studies)
    return Prepared(samples.studies, failures, converted)


@dataclass(frozen=True)
class _Loss:
    """A radiograph that cannot be converted, and a sample that was to show it as its frontal, lateral or prior radiograph."""

    radiograph: Radiograph
    reason: str
    study: Study
    column: str


def _losses(studies: Iterable[Study], lost: Mapping[Path, tuple[Radiograph, str]]) -> Iterator[_Loss]:
    for study in studies:
        for column in IMAGE_COLUMNS:
            if (found := lost.get(getattr(study, column))) is not None:
                yield _Loss(*found, study, column)


def _told(losses: Iterable[_Loss], studies: Iterable[Study]) -> Iterator[Failure]:
    """What became of samples that lost a radiograph, in an order that does not depend on which process was first."""
    left: dict[tuple[str, Path], list[Study]] = {}
    for study in studies:
        left.setdefault(_place(study), []).append(study)
    for loss in losses:
        kept, name = left.get(_place(loss.study), []), loss.column.split("_")[0]
        sample_id = kept[0].sample_id if kept else loss.study.sample_id
        if not kept:
            lot = "is left out"
        elif all(getattr(study, loss.column) is None for study in kept):
            lot = f"goes without its {name}"
        else:
            lot = f"shows another {name}"
        reason = f"sample {sample_id} {lot}: {loss.reason}"
        yield Failure(sample_id=sample_id, source=str(loss.radiograph.name), stage="convert", reason=reason)


def _place(study: Study) -> tuple[str, Path]:
    """What tells samples apart whose numbers change as radiographs are lost."""
    return study.study_id or study.sample_id, study.frontal


def _unwatched(*_: int) -> None:
    """Progress that nobody looks at."""


def _convert(
    radiographs: Mapping[Path, Radiograph], out: Path, conversion: Conversion
) -> Iterator[tuple[Radiograph, str | None]]:
    """Each radiograph once, with the reason where it could not be converted, as they are done."""
    # Members of one zip file together: the reader keeps few of them open.
    ordered = sorted(radiographs.items(), key=lambda one: (str(one[1].path), one[1].member or ""))
    targets = [(radiograph, out.absolute() / path) for path, radiograph in ordered]
    return _by_ray(targets, conversion) if conversion.engine == "ray" else _by_processes(targets, conversion)


def convert_radiograph(radiograph: Radiograph, target: Path, size: int, apply_windows: bool) -> str | None:
    """Convert one radiograph, and return the reason where that cannot be done."""
    try:
        radiograph_to_png(radiograph, target, size, apply_windows=apply_windows)
    except InputError as error:
        return str(error)
    except MemoryError:
        return f"{radiograph.path}: there is not enough memory for it"
    return None


Target = tuple[Radiograph, Path]


def _by_processes(targets: Sequence[Target], conversion: Conversion) -> Iterator[tuple[Radiograph, str | None]]:
    """In processes of their own: decoders are C++, and a damaged file can take its process with it."""
    pending, lost = iter(targets), list[Target]()
    workers = conversion.workers or 1
    suspects: list[Target] = []
    while True:
        yield from _in_pool(pending, conversion, workers, workers * _AHEAD, lost)
        if not lost:
            break
        suspects += lost
        lost.clear()
    pending = iter(suspects)
    while True:
        # With one in flight it is known which one it was.
        yield from _in_pool(pending, conversion, 1, 1, lost)
        if not lost:
            return
        radiograph, _ = lost.pop()
        yield radiograph, f"{radiograph.path}: {_CRASHED}"


def _in_pool(
    pending: Iterator[Target], conversion: Conversion, processes: int, most: int, lost: list[Target]
) -> Iterator[tuple[Radiograph, str | None]]:
    """Radiographs from `pending`, `most` in flight, until there is none left or a process dies; `lost` then takes those."""
    work = partial(convert_radiograph, size=conversion.size, apply_windows=conversion.apply_windows)
    flying: dict[Future[str | None], Target] = {}
    # Not forked: the parent may have threads, whose locks a fork would copy.
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        try:
            while True:
                for target in islice(pending, most - len(flying)):
                    lost.append(target)
                    flying[pool.submit(work, *target)] = lost.pop()
                if not flying:
                    return
                for future in wait(flying, return_when=FIRST_COMPLETED).done:
                    reason = future.result()
                    radiograph, _ = flying.pop(future)
                    yield radiograph, reason
        except BrokenProcessPool:
            lost += flying.values()


def _by_ray(targets: Sequence[Target], conversion: Conversion) -> Iterator[tuple[Radiograph, str | None]]:
    from radfact.llm.ray_cluster import RayWorkers

    options = {"size": conversion.size, "apply_windows": conversion.apply_windows}
    spread = RayWorkers(_RayWorker, "convert", "radiographs", options, workers=conversion.workers, max_chunk=256)
    for index, reason in spread.stream(targets):
        yield targets[index][0], reason


class _RayWorker:
    """Converts radiographs in a process of a Ray cluster."""

    def __init__(self, _: str, *, size: int, apply_windows: bool) -> None:
        self.work = partial(convert_radiograph, size=size, apply_windows=apply_windows)

    def convert(self, targets: Sequence[Target]) -> list[str | None]:
        """Reasons, None for radiographs that were converted."""
        return [self.work(radiograph, target) for radiograph, target in targets]

    def usage(self) -> dict[str, int]:
        """Nothing is counted but what the driver counts."""
        return {}
