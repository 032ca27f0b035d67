"""`maira prepare SOURCE`: convert an archive to a manifest and PNG files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from functools import partial, wraps
from inspect import Parameter, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from maira.cli.show import exit_with_failures, print_line, show_progress
from radfact.errors import ErrorCode, InputError

if TYPE_CHECKING:
    from data.archive import Archive
    from data.manifest import Failure
    from data.pairing import Priors, Rules, SampleMaker
    from data.sources.mimic_cxr import Layout


class Engine(StrEnum):
    """Engine of the conversion."""

    LOCAL = "local"
    RAY = "ray"


class PriorChoice(StrEnum):
    """Which frontal radiographs of the prior study training samples show."""

    EVERY = "every"
    ONE = "one"
    NONE = "none"


class Language(StrEnum):
    """Language of PadChest's sentences."""

    ENGLISH = "en"
    SPANISH = "es"


@dataclass(frozen=True)
class Common:
    """Options of all sources; defaults as in MAIRA-2."""

    out: Annotated[Path, typer.Option(help="Folder to write.")]
    split: Annotated[list[str] | None, typer.Option(help="Split to prepare; repeatable (default: all).")] = None
    draw_splits: Annotated[
        str | None,
        typer.Option(
            help="Random splits by patient, such as train=0.8,validate=0.1,test=0.1, instead of the archive's."
        ),
    ] = None
    seed: Annotated[int, typer.Option(help="Seed of random laterals, priors and splits.")] = 0
    priors: Annotated[
        PriorChoice | None,
        typer.Option(help="Prior radiographs of a training sample (default: as in MAIRA-2 for the source)."),
    ] = None
    size: Annotated[int, typer.Option(help="Shorter side of the radiographs in pixels.", min=14)] = 518
    apply_windows: Annotated[
        bool, typer.Option("--apply-windows", help="Apply the VOI windows of DICOM files (not done in MAIRA-2).")
    ] = False
    engine: Annotated[Engine, typer.Option(help="Processes of this machine, or a Ray cluster.")] = Engine.LOCAL
    workers: Annotated[
        int | None, typer.Option(help="Number of processes (default: 1, or the cluster's CPUs).", min=1)
    ] = None


def with_common(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options of `Common` to a command, which receives them as its argument `common`."""
    shared = signature(Common, eval_str=True).parameters
    own = [p for name, p in signature(command, eval_str=True).parameters.items() if name != "common"]

    @wraps(command)
    def bundled(**values: Any) -> None:
        command(**{p.name: values[p.name] for p in own}, common=Common(**{name: values[name] for name in shared}))

    parameters = [p.replace(kind=Parameter.KEYWORD_ONLY) for p in (*own, *shared.values())]
    bundled.__signature__ = signature(command).replace(parameters=parameters)  # type: ignore[attr-defined]
    bundled.__annotations__ = {p.name: p.annotation for p in parameters}
    return bundled


_Root = Annotated[Path, typer.Option(help="Folder of the archive.")]
_Images = Annotated[Path | None, typer.Option(help="Base folder of image paths (default: the file's folder).")]
_Reports = Annotated[Path | None, typer.Option(help="PadChest's English reports: a table (CSV, JSON Lines).")]
_MsCxr = Annotated[
    Path | None, typer.Option(help="Folder of MS-CXR; its validation and test patients are removed from training.")
]
_LanguageOption = Annotated[Language, typer.Option(help="Language of the reports.")]


@with_common
def mimic_cxr(
    root: _Root,
    common: Common,
    metadata: Annotated[
        Path | None, typer.Option(help="Folder of the tables of the JPEG release (default: the archive's).")
    ] = None,
    ms_cxr: _MsCxr = None,
) -> None:
    """MIMIC-CXR: DICOM files and free-text reports."""
    _mimic(root, common, metadata, ms_cxr, "dicom")


@with_common
def mimic_cxr_jpg(
    root: _Root,
    common: Common,
    metadata: Annotated[
        Path | None, typer.Option(help="Folder of the reports of the DICOM release (default: the archive's).")
    ] = None,
    ms_cxr: _MsCxr = None,
) -> None:
    """MIMIC-CXR-JPG: JPEG files, and the reports of MIMIC-CXR."""
    _mimic(root, common, metadata, ms_cxr, "jpg")


@with_common
def ms_cxr(
    root: _Root,
    common: Common,
    images: Annotated[Path, typer.Option(help="Folder of MIMIC-CXR or MIMIC-CXR-JPG.")],
) -> None:
    """MS-CXR: phrases with boxes on radiographs of MIMIC-CXR."""
    from data.sources.ms_cxr import read_ms_cxr

    _prepare_archive(read_ms_cxr(root, images), images, common)


@with_common
def padchest(
    root: _Root,
    common: Common,
    reports: _Reports = None,
    splits: Annotated[Path | None, typer.Option(help="PadChest-GR's table of official splits.")] = None,
    language: _LanguageOption = Language.ENGLISH,
    pediatric: Annotated[bool, typer.Option("--pediatric", help="Include pediatric studies.")] = False,
) -> None:
    """PadChest: 16 bit PNG files in folders or zips, and a table of reports."""
    from data.sources.padchest import read_padchest

    if reports is None and language is Language.ENGLISH:
        message = "no study has findings without English reports; give them, or use --language es"
        raise InputError(message, code=ErrorCode.MISSING_OPTION, field="--reports")
    _prepare_archive(
        read_padchest(root, reports=reports, splits=splits, language=language.value, pediatric=pediatric), root, common
    )


@with_common
def padchest_gr(
    root: _Root,
    common: Common,
    padchest: Annotated[
        Path | None, typer.Option(help="Folder of PadChest, for laterals and previous studies.")
    ] = None,
    reports: _Reports = None,
    language: _LanguageOption = Language.ENGLISH,
) -> None:
    """PadChest-GR: grounded reports on radiographs of PadChest."""
    from data.sources.padchest_gr import read_padchest_gr

    _prepare_archive(read_padchest_gr(root, padchest=padchest, reports=reports, language=language.value), root, common)


@with_common
def iu_xray(root: _Root, common: Common) -> None:
    """IU-Xray (Open-i): XML reports, PNG or DICOM files."""
    from data.sources.iu_xray import read_iu_xray

    _prepare_archive(read_iu_xray(root), root, common)


@with_common
def coco(
    file: Annotated[Path, typer.Option("--root", help="COCO file (JSON).")], common: Common, images: _Images = None
) -> None:
    """Any COCO file: detections become grounded findings, captions findings."""
    from data.sources.coco import read_coco_studies

    _prepare_archive(read_coco_studies(file, images), images or file.parent, common)


@with_common
def table(
    file: Annotated[
        Path, typer.Option("--root", help="Table of studies (CSV, JSON Lines), or the folder of studies.csv.")
    ],
    common: Common,
    images: _Images = None,
) -> None:
    """Table with the columns of a manifest, such as a hospital's export; images PNG, JPEG or DICOM.

    Rows without a report are included, to draft one for. Cells that are empty, NaN, N/A or null are missing values.
    """
    from data.sources.table import read_table

    read = read_table(file, images, _rules(common, "one"))
    _prepare("table", read.images, read.make, read.failures, common)


SOURCES = {
    "mimic-cxr": mimic_cxr,
    "mimic-cxr-jpg": mimic_cxr_jpg,
    "ms-cxr": ms_cxr,
    "padchest": padchest,
    "padchest-gr": padchest_gr,
    "iu-xray": iu_xray,
    "coco": coco,
    "table": table,
}
"""Commands by source."""


def _mimic(root: Path, common: Common, metadata: Path | None, ms_cxr: Path | None, layout: Layout) -> None:
    from data.sources.mimic_cxr import read_mimic_cxr
    from data.sources.ms_cxr import hold_out

    if ms_cxr is not None and common.draw_splits is not None:
        message = "random splits could train on patients that --ms-cxr removes from training; use one of both options"
        raise InputError(message, code=ErrorCode.CONFLICTING_OPTIONS, field="--draw-splits")
    archive = read_mimic_cxr(root, layout, metadata=metadata)
    _prepare_archive(archive if ms_cxr is None else hold_out(archive, ms_cxr), root, common, train_priors="every")


def _prepare_archive(archive: Archive, images: Path, common: Common, train_priors: Priors = "one") -> None:
    from data.pairing import make_samples

    make = partial(make_samples, archive, _rules(common, train_priors))
    _prepare(archive.source, images, make, archive.failures, common)


def _prepare(source: str, images: Path, make: SampleMaker, unread: list[Failure], common: Common) -> None:
    from data.preparation import Conversion, prepare

    conversion = Conversion(common.size, common.apply_windows, common.workers, common.engine.value)
    with show_progress("converting radiographs") as on_progress:
        prepared = prepare(source, images, make, common.out, conversion, unread=unread, on_progress=on_progress)
    console = Console()
    print_line(
        console,
        f"{len(prepared.studies)} samples, {prepared.converted} radiographs converted: {common.out}/manifest.jsonl",
    )
    if common.draw_splits is not None and (
        without_patient := sum(study.patient_id is None for study in prepared.studies)
    ):
        print_line(console, f"samples without patient_id, assigned to splits by study: {without_patient}")
    if unreported := sum(not (s.findings or s.grounded_findings or s.phrases) for s in prepared.studies):
        print_line(console, f"samples without a report, for drafting only: {unreported}")
    # Samples skipped by a rule, such as a study without findings, are not errors.
    errors = [failure for failure in prepared.failures if failure.stage != "select"]
    if skipped := Counter(failure.reason for failure in prepared.failures if failure.stage == "select"):
        reasons = ", ".join(f"{reason} ({count})" for reason, count in skipped.most_common())
        print_line(console, f"skipped by the rules: {reasons} (failures.jsonl)")
    exit_with_failures(console, [(str(failure.source or failure.sample_id), failure.reason) for failure in errors])


def _rules(common: Common, train_priors: Priors) -> Rules:
    from data.pairing import Rules

    chosen: Priors = train_priors if common.priors is None else common.priors.value
    others: Priors = "none" if chosen == "none" else "one"
    return Rules(common.seed, chosen, others, _shares(common.draw_splits), common.split)


def _shares(text: str | None) -> dict[str, float] | None:
    """Parse shares of splits such as `train=0.8,test=0.2`."""
    from data.pairing import SPLITS

    if text is None:
        return None
    shares: dict[str, float] = {}
    for part in text.split(","):
        name, _, value = part.strip().partition("=")
        try:
            shares[name] = float(value)
        except ValueError:
            shares[name] = -1.0
        if name not in SPLITS or not 0 <= shares[name] < float("inf"):
            message = f"expected shares of {', '.join(SPLITS)} such as train=0.8,validate=0.1,test=0.1, found '{part}'"
            raise InputError(message, field="--draw-splits")
    if not sum(shares.values()):
        raise InputError("expected a share above 0", code=ErrorCode.INVALID_OPTION, field="--draw-splits")
    return shares
