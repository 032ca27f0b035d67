"""`maira prepare SOURCE`: convert a data set to a manifest and PNG files."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from pydantic import BeforeValidator, Field, NonNegativeInt, PositiveInt
from rich.console import Console

from maira.cli.options import PreparedFolder
from maira.cli.show import exit_with_failures, print_line, show_progress
from maira.data.image_check import ImageCheckOption
from maira.data.images import MAX_SIZE
from maira.data.pairing import SPLITS, Priors
from radfact.cli.command import with_options
from radfact.errors import ErrorCode, InputError
from radfact.options import Option, Options

if TYPE_CHECKING:
    from maira.data.archive import Archive
    from maira.data.manifest import Failure
    from maira.data.pairing import Rules, SampleMaker
    from maira.data.sources.mimic_cxr import Layout


def _parse_shares(value: Any) -> Any:
    """Return the fractions of the splits from text such as `train=0.8,test=0.2`."""
    shares: dict[str, float] = {}
    for part in value.split(",") if isinstance(value, str) else [f"{name}={share}" for name, share in value.items()]:
        name, _, share = part.strip().partition("=")
        if name in shares:
            raise InputError(f"duplicate split '{name}'", code=ErrorCode.DUPLICATE)
        try:
            shares[name] = float(share)
        except ValueError:
            shares[name] = -1.0
        if name not in SPLITS or not 0 <= shares[name] < math.inf:
            raise InputError(
                f"expected fractions for {', '.join(SPLITS)} such as train=0.8,validate=0.1,test=0.1, found '{part}'",
                code=ErrorCode.INVALID_OPTION,
            )
    if not math.isclose(total := sum(shares.values()), 1, abs_tol=1e-6):
        raise InputError(f"expected fractions with the sum 1, found the sum {total:g}", code=ErrorCode.INVALID_OPTION)
    return shares


class PrepareOptions(Options):
    """Selection of samples and conversion of images; defaults as in the MAIRA-2 paper."""

    split: Annotated[tuple[str, ...], Option("Split to prepare; repeatable. Default: all.")] = ()
    draw_splits: Annotated[
        Mapping[str, float] | None,
        BeforeValidator(_parse_shares),
        Option(
            "Draw random splits by patient instead of using those of the data set, such as "
            "train=0.8,validate=0.1,test=0.1.",
            cli_type=str,
        ),
    ] = None
    seed: Annotated[NonNegativeInt, Option("Random seed: laterals, priors, splits.")] = 0
    priors: Annotated[
        Priors | None, Option("Prior radiographs of a training sample. Default: as in the paper for this data set.")
    ] = None
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


Language = Literal["en", "es"]
_Root = Annotated[Path, typer.Option(help="Folder of the data set.")]
_Images = Annotated[
    Path | None, typer.Option(help="Folder that image paths are relative to. Default: the folder of the file.")
]
_ArchiveImages = Annotated[Path | None, typer.Option(help="Folder of the images. Default: --root.")]
_Reports = Annotated[Path | None, typer.Option(help="English reports of PadChest (CSV or JSON Lines).")]
_MsCxr = Annotated[
    Path | None, typer.Option(help="Folder of MS-CXR; its validation and test patients are removed from training.")
]
_LanguageOption = Annotated[Language, typer.Option(help="Language of the reports.")]


@with_options
def mimic_cxr(
    root: _Root,
    out: PreparedFolder,
    options: PrepareOptions,
    metadata: Annotated[
        Path | None, typer.Option(help="Folder with the tables of the JPEG release. Default: --root.")
    ] = None,
    ms_cxr: _MsCxr = None,
) -> None:
    """MIMIC-CXR: DICOM files and free-text reports."""
    _mimic(root, out, options, metadata, ms_cxr, "dicom")


@with_options
def mimic_cxr_jpg(
    root: _Root,
    out: PreparedFolder,
    options: PrepareOptions,
    metadata: Annotated[
        Path | None, typer.Option(help="Folder with the reports of the DICOM release. Default: --root.")
    ] = None,
    ms_cxr: _MsCxr = None,
) -> None:
    """MIMIC-CXR-JPG: JPEG files, and the reports of MIMIC-CXR."""
    _mimic(root, out, options, metadata, ms_cxr, "jpg")


@with_options
def ms_cxr(
    root: _Root,
    out: PreparedFolder,
    options: PrepareOptions,
    images: Annotated[Path, typer.Option(help="Folder of MIMIC-CXR or MIMIC-CXR-JPG.")],
) -> None:
    """MS-CXR: phrases with boxes on radiographs of MIMIC-CXR."""
    from maira.data.sources.ms_cxr import read_ms_cxr

    _prepare_archive(read_ms_cxr(root, images), images, out, options)


@with_options
def padchest(
    root: _Root,
    out: PreparedFolder,
    options: PrepareOptions,
    reports: _Reports = None,
    splits: Annotated[Path | None, typer.Option(help="Table of the official splits, from PadChest-GR.")] = None,
    language: _LanguageOption = "en",
    pediatric: Annotated[bool, typer.Option("--pediatric", help="Include pediatric studies.")] = False,
) -> None:
    """PadChest: 16 bit PNG files in folders or zips, and a table of reports."""
    from maira.data.sources.padchest import read_padchest

    if reports is None and language == "en":
        message = "no study has findings without English reports; give them, or use --language es"
        raise InputError(message, code=ErrorCode.MISSING_OPTION, field="reports")
    _prepare_archive(
        read_padchest(root, reports=reports, splits=splits, language=language, pediatric=pediatric), root, out, options
    )


@with_options
def padchest_gr(
    root: _Root,
    out: PreparedFolder,
    options: PrepareOptions,
    padchest: Annotated[
        Path | None, typer.Option(help="Folder of PadChest, for laterals and previous studies.")
    ] = None,
    reports: _Reports = None,
    language: _LanguageOption = "en",
) -> None:
    """PadChest-GR: grounded reports on radiographs of PadChest."""
    from maira.data.sources.padchest_gr import read_padchest_gr

    _prepare_archive(read_padchest_gr(root, padchest=padchest, reports=reports, language=language), root, out, options)


@with_options
def iu_xray(root: _Root, out: PreparedFolder, options: PrepareOptions) -> None:
    """IU-Xray (Open-i): XML reports, PNG or DICOM files."""
    from maira.data.sources.iu_xray import read_iu_xray

    _prepare_archive(read_iu_xray(root), root, out, options)


@with_options
def chexpert_plus(root: _Root, out: PreparedFolder, options: PrepareOptions, images: _ArchiveImages = None) -> None:
    """CheXpert Plus: DICOM, PNG or JPEG files, and a table of reports.

    --images is the folder with train and valid.
    """
    from maira.data.sources.chexpert_plus import read_chexpert_plus

    _prepare_archive(read_chexpert_plus(root, images), images or root, out, options)


@with_options
def rexgradient(root: _Root, out: PreparedFolder, options: PrepareOptions, images: _ArchiveImages = None) -> None:
    """ReXGradient-160K: PNG files, and reports as JSON.

    --images is the folder with deid_png.
    """
    from maira.data.sources.rexgradient import read_rexgradient

    _prepare_archive(read_rexgradient(root, images), images or root, out, options)


@with_options
def interpret_cxr(
    file: Annotated[
        Path,
        typer.Option(
            "--root", help="Table (CSV, JSON or JSON Lines), or the folder with train.csv, validation.csv, ..."
        ),
    ],
    out: PreparedFolder,
    options: PrepareOptions,
    images: _Images = None,
    views: Annotated[
        list[Path] | None,
        typer.Option(help="Table of MIMIC-CXR, PadChest or OpenI with the views of its images; repeatable."),
    ] = None,
) -> None:
    """interpret-cxr (RRG24): tables with findings, impression and images of five data sets.

    Images without a view in their names or in --views are skipped and reported.
    """
    from maira.data.sources.interpret_cxr import read_interpret_cxr

    folder = images or (file if file.is_dir() else file.parent)
    _prepare_archive(read_interpret_cxr(file, images, views or ()), folder, out, options)


@with_options
def coco(
    file: Annotated[Path, typer.Option("--root", help="COCO file (JSON).")],
    out: PreparedFolder,
    options: PrepareOptions,
    images: _Images = None,
) -> None:
    """COCO file: detections become grounded findings, captions become findings."""
    from maira.data.sources.coco import read_coco_studies

    _prepare_archive(read_coco_studies(file, images), images or file.parent, out, options)


@with_options
def table(
    file: Annotated[
        Path, typer.Option("--root", help="Table of studies (CSV or JSON Lines), or the folder with studies.csv.")
    ],
    out: PreparedFolder,
    options: PrepareOptions,
    images: _Images = None,
) -> None:
    """Table with the columns of a manifest, such as a hospital export; images are PNG, JPEG or DICOM files.

    Rows without a report are included, for drafting. Cells that are empty, NaN, N/A or null are missing values.
    """
    from maira.data.sources.table import read_table

    read = read_table(file, images, _rules(options, "one"))
    _prepare("table", read.images, read.make, read.failures, out, options)


SOURCES = {
    "mimic-cxr": mimic_cxr,
    "mimic-cxr-jpg": mimic_cxr_jpg,
    "ms-cxr": ms_cxr,
    "padchest": padchest,
    "padchest-gr": padchest_gr,
    "iu-xray": iu_xray,
    "chexpert-plus": chexpert_plus,
    "rexgradient": rexgradient,
    "interpret-cxr": interpret_cxr,
    "coco": coco,
    "table": table,
}
"""Commands by source."""


def _mimic(
    root: Path, out: Path, options: PrepareOptions, metadata: Path | None, ms_cxr: Path | None, layout: Layout
) -> None:
    from maira.data.sources.mimic_cxr import read_mimic_cxr
    from maira.data.sources.ms_cxr import hold_out

    if ms_cxr is not None and options.draw_splits is not None:
        message = "random splits could train on patients that --ms-cxr removes from training; use one of both options"
        raise InputError(message, code=ErrorCode.CONFLICTING_OPTIONS, field="draw_splits")
    archive = read_mimic_cxr(root, layout, metadata=metadata)
    _prepare_archive(archive if ms_cxr is None else hold_out(archive, ms_cxr), root, out, options, train_priors="every")


def _prepare_archive(
    archive: Archive, images: Path, out: Path, options: PrepareOptions, train_priors: Priors = "one"
) -> None:
    from maira.data.pairing import make_samples

    make = partial(make_samples, archive, _rules(options, train_priors))
    _prepare(archive.source, images, make, archive.failures, out, options)


def _prepare(
    source: str, images: Path, make: SampleMaker, unread: list[Failure], out: Path, options: PrepareOptions
) -> None:
    from maira.data.preparation import Conversion, prepare

    conversion = Conversion(
        options.size,
        options.apply_windows,
        options.image_check,
        options.workers,
        options.engine,
        link_originals=options.link_originals,
    )
    with show_progress("converting radiographs") as on_progress:
        prepared = prepare(source, images, make, out, conversion, unread=unread, on_progress=on_progress)
    console = Console()
    print_line(
        console,
        f"{len(prepared.studies)} samples, {prepared.converted} radiographs converted: {out}/manifest.jsonl",
    )
    if options.draw_splits is not None and (lone := sum(study.patient_id is None for study in prepared.studies)):
        print_line(console, f"samples without patient_id, assigned to splits by study: {lone}")
    if unreported := sum(not (s.findings or s.grounded_findings or s.phrases) for s in prepared.studies):
        print_line(console, f"samples without a report, for drafting only: {unreported}")
    # Samples skipped by a rule, such as a study without findings, are not errors.
    errors = [failure for failure in prepared.failures if failure.stage != "select"]
    if skipped := Counter(failure.reason for failure in prepared.failures if failure.stage == "select"):
        reasons = ", ".join(f"{reason} ({count})" for reason, count in skipped.most_common())
        print_line(console, f"skipped by the rules: {reasons} (failures.jsonl)")
    exit_with_failures(console, [(str(failure.source or failure.sample_id), failure.reason) for failure in errors])


def _rules(options: PrepareOptions, train_priors: Priors) -> Rules:
    from maira.data.pairing import Rules

    chosen: Priors = options.priors or train_priors
    others: Priors = "none" if chosen == "none" else "one"
    return Rules(options.seed, chosen, others, options.draw_splits, options.split or None)
