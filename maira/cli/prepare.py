"""`maira prepare SOURCE`: convert a data set to a manifest and PNG files."""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from pydantic import BeforeValidator, NonNegativeInt
from rich.console import Console

from maira.cli.options import PreparedFolder
from maira.cli.show import exit_with_failures, print_line, show_progress
from maira.data.images import MAX_SIZE
from maira.data.pairing import SPLITS, Priors, Rules, make_samples
from maira.data.preparation import Conversion, PreparationResult, prepare
from radfact.cli.command import with_options
from radfact.errors import ErrorCode, InputError
from radfact.io.jsonl import write_jsonl
from radfact.options import Option

if TYPE_CHECKING:
    from maira.data.archive import Archive
    from maira.data.manifest import Failure
    from maira.data.pairing import SampleMaker
    from maira.data.sources.mimic_cxr import Layout

app = typer.Typer(help="Convert a data set to a manifest and PNG files.", no_args_is_help=True)

SOURCE_FILES = "source_files.jsonl"
"""The DICOM file of each sample; other files of a prepared folder do not name them."""


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


class PrepareOptions(Conversion):
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

    def rules(self, train_priors: Priors) -> Rules:
        """Return the rules of making samples, with the priors of training samples in the paper."""
        chosen: Priors = self.priors or train_priors
        others: Priors = "none" if chosen == "none" else "one"
        return Rules(self.seed, chosen, others, self.draw_splits, self.split or None)


Language = Literal["en", "es"]
_Root = Annotated[Path, typer.Option(help="Folder of the data set.")]
_Metadata = Annotated[
    Path | None,
    typer.Option(help="Folder of the other release, with the tables (of JPEG) or reports (of DICOM). Default: --root."),
]
_Images = Annotated[
    Path | None, typer.Option(help="Folder that image paths are relative to. Default: the folder of the file.")
]
_ArchiveImages = Annotated[Path | None, typer.Option(help="Folder of the images. Default: --root.")]
_Reports = Annotated[Path | None, typer.Option(help="English reports of PadChest (CSV or JSON Lines).")]
_MsCxr = Annotated[
    Path | None, typer.Option(help="Folder of MS-CXR; its validation and test patients are removed from training.")
]
_LanguageOption = Annotated[Language, typer.Option(help="Language of the reports.")]


@app.command("mimic-cxr")
@with_options
def mimic_cxr(
    root: _Root,
    out: PreparedFolder,
    options: PrepareOptions,
    metadata: _Metadata = None,
    ms_cxr: _MsCxr = None,
) -> None:
    """MIMIC-CXR: DICOM files and free-text reports."""
    _mimic(root, out, options, metadata, ms_cxr, "dicom")


@app.command("mimic-cxr-jpg")
@with_options
def mimic_cxr_jpg(
    root: _Root,
    out: PreparedFolder,
    options: PrepareOptions,
    metadata: _Metadata = None,
    ms_cxr: _MsCxr = None,
) -> None:
    """MIMIC-CXR-JPG: JPEG files, and the reports of MIMIC-CXR."""
    _mimic(root, out, options, metadata, ms_cxr, "jpg")


@app.command("ms-cxr")
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


@app.command("padchest")
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


@app.command("padchest-gr")
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


@app.command("iu-xray")
@with_options
def iu_xray(root: _Root, out: PreparedFolder, options: PrepareOptions) -> None:
    """IU-Xray (Open-i): XML reports, PNG or DICOM files."""
    from maira.data.sources.iu_xray import read_iu_xray

    _prepare_archive(read_iu_xray(root), root, out, options)


@app.command("chexpert-plus")
@with_options
def chexpert_plus(root: _Root, out: PreparedFolder, options: PrepareOptions, images: _ArchiveImages = None) -> None:
    """CheXpert Plus: DICOM, PNG or JPEG files, and a table of reports.

    --images is the folder with train and valid.
    """
    from maira.data.sources.chexpert_plus import read_chexpert_plus

    _prepare_archive(read_chexpert_plus(root, images), images or root, out, options)


@app.command("rexgradient")
@with_options
def rexgradient(root: _Root, out: PreparedFolder, options: PrepareOptions, images: _ArchiveImages = None) -> None:
    """ReXGradient-160K: PNG files, and reports as JSON.

    --images is the folder with deid_png.
    """
    from maira.data.sources.rexgradient import read_rexgradient

    _prepare_archive(read_rexgradient(root, images), images or root, out, options)


@app.command("interpret-cxr")
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


@app.command("coco")
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


@app.command("table")
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

    read = read_table(file, images, options.rules("one"))
    _report(_convert("table", str(read.images), read.make, read.failures, out, options), out, options)


@app.command("dicom")
@with_options
def dicom(
    files: Annotated[list[Path], typer.Argument(help="DICOM files or folders; each file is one frontal radiograph.")],
    out: PreparedFolder,
    options: Conversion,
    file_names: Annotated[
        bool,
        typer.Option(
            "--file-names",
            help="Name samples after their files, which often contain names of patients. Default: a hash of the SOP "
            "instance UID.",
        ),
    ] = False,
) -> None:
    """Convert radiographs to 8-bit PNG (MAIRA-2, appendix B.4), and write a manifest with one study per radiograph."""
    from maira.data.sources.dicom import find_radiographs, name_instances, samples_of

    unread: list[Failure] = []
    found = find_radiographs(files)
    named = name_instances(found, unread, keep_names=file_names)
    # A digest, since the record does not have to name the files.
    origin = hashlib.sha256("\n".join([*map(str, found.values()), str(file_names)]).encode()).hexdigest()
    prepared = _convert("dicom", origin, partial(samples_of, named), unread, out, options)
    names = [study.sample_id for study in prepared.studies]
    write_jsonl(out / SOURCE_FILES, ({"sample_id": name, "file": str(named[name])} for name in names))
    _report(prepared, out, options)


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
    make = partial(make_samples, archive, options.rules(train_priors))
    _report(_convert(archive.source, str(images.absolute()), make, archive.failures, out, options), out, options)


def _convert(
    source: str, origin: str, make: SampleMaker, unread: Iterable[Failure], out: Path, options: Conversion
) -> PreparationResult:
    with show_progress("converting radiographs") as on_progress:
        return prepare(source, origin, make, out, options, unread=unread, on_progress=on_progress)


def _report(prepared: PreparationResult, out: Path, options: Conversion) -> None:
    """Print what was prepared; samples skipped by a rule, such as a study without findings, are not errors."""
    console, studies = Console(), prepared.studies
    print_line(console, f"{len(studies)} samples, {prepared.converted} radiographs converted: {out}/manifest.jsonl")
    is_drawn = isinstance(options, PrepareOptions) and options.draw_splits is not None
    if is_drawn and (lone := sum(study.patient_id is None for study in studies)):
        print_line(console, f"samples without patient_id, assigned to splits by study: {lone}")
    if unreported := sum(not (s.findings or s.grounded_findings or s.phrases) for s in studies):
        print_line(console, f"samples without a report, for drafting only: {unreported}")
    errors = [failure for failure in prepared.failures if failure.stage != "select"]
    if skipped := Counter(failure.reason for failure in prepared.failures if failure.stage == "select"):
        reasons = ", ".join(f"{reason} ({count})" for reason, count in skipped.most_common())
        print_line(console, f"skipped by the rules: {reasons} (failures.jsonl)")
    exit_with_failures(console, [(str(failure.source or failure.sample_id), failure.reason) for failure in errors])
