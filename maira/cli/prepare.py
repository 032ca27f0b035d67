"""`maira prepare SOURCE`: convert a data set to a manifest and PNG files."""

from __future__ import annotations

import hashlib
import math
import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import BeforeValidator, NonNegativeInt
from rich.console import Console

from maira.cli.options import PreparedFolder
from maira.cli.show import exit_with_failures, print_line, show_progress
from maira.data.archive import Archive
from maira.data.images import MAX_SIZE
from maira.data.manifest import Failure
from maira.data.pairing import SPLITS, Priors, Rules, SampleMaker, make_samples
from maira.data.preparation import Conversion, PreparationResult, prepare
from maira.data.sources.chexpert_plus import read_chexpert_plus
from maira.data.sources.coco import read_coco_studies
from maira.data.sources.interpret_cxr import read_interpret_cxr
from maira.data.sources.iu_xray import read_iu_xray
from maira.data.sources.mimic_cxr import SOURCE as MIMIC_CXR
from maira.data.sources.mimic_cxr import read_mimic_cxr
from maira.data.sources.ms_cxr import read_ms_cxr
from maira.data.sources.padchest import read_padchest
from maira.data.sources.padchest_gr import read_padchest_gr
from maira.data.sources.rexgradient import read_rexgradient
from maira.data.sources.table import DATE, FIELDS, NO_FINDINGS, SECTIONS, Table, find_studies, is_reported, read_table
from radfact.cli.command import with_options
from radfact.cli.tables import show_rows
from radfact.errors import ErrorCode, InputError
from radfact.io.columns import check_columns
from radfact.io.csv_tables import write_csv
from radfact.io.jsonl import write_jsonl
from radfact.judges.options import JudgeOptions
from radfact.options import Option, only, parse_key_values

app = typer.Typer(help="Convert a data set to a manifest and PNG files.", no_args_is_help=True)

SOURCE_FILES = "source_files.jsonl"
"""The DICOM file of each sample; other files of a prepared folder do not name them."""


def _parse_shares(value: Any) -> Any:
    """Return the fractions of the splits from text such as `train=0.8,test=0.2`."""
    parts = parse_key_values(value.replace(" ", "").split(","), "draw_splits") if isinstance(value, str) else value
    try:
        shares = {name: float(share) for name, share in parts.items()}
    except ValueError:
        shares = {}
    if not shares or not all(name in SPLITS and 0 <= share < math.inf for name, share in shares.items()):
        expected = f"fractions for {', '.join(SPLITS)} such as train=0.8,validate=0.1,test=0.1"
        raise InputError(f"expected {expected}, found '{value}'", code=ErrorCode.INVALID_OPTION)
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


_BASE_FOLDER = "Folder that image paths are relative to. Default: the folder of the file."
_HELP = {
    "root": "Folder of the data set.",
    "metadata": "Folder of the other release, with the tables (of JPEG) or reports (of DICOM). Default: --root.",
    "ms_cxr": "Folder of MS-CXR; its validation and test patients are removed from training.",
    "images": "Folder of the images. Default: --root.",
    "padchest": "Folder of PadChest, for laterals and previous studies.",
    "reports": "English reports of PadChest (CSV or JSON Lines).",
    "splits": "Table of the official splits, from PadChest-GR.",
    "language": "Language of the reports.",
    "pediatric": "Include pediatric studies.",
    "views": "Table of MIMIC-CXR, PadChest or OpenI with the views of its images; repeatable.",
}
"""Options of the commands: parameters of the readers by name. Other parameters of a reader are no options."""


def _add_source(name: str, read: Callable[..., Archive], summary: str, **help: str) -> None:
    """Add the command of a reader: its options are those parameters of the reader that have a help text."""

    def command(root: Path, out: PreparedFolder, options: PrepareOptions, **values: Any) -> None:
        if values.get("ms_cxr") is not None and options.draw_splits is not None:
            message = (
                "random splits could train on patients that --ms-cxr removes from training; use one of both options"
            )
            raise InputError(message, code=ErrorCode.CONFLICTING_OPTIONS, field="draw_splits")
        if name == "padchest" and values["reports"] is None and values["language"] == "en":
            message = "no study has findings without English reports; give them, or use --language es"
            raise InputError(message, code=ErrorCode.MISSING_OPTION, field="reports")
        archive = read(root, **values)
        images = values.get("images") or (root if root.is_dir() else root.parent)
        make = partial(make_samples, archive, options.rules("every" if archive.source == MIMIC_CXR else "one"))
        _report(_convert(archive.source, str(images.absolute()), make, archive.failures, out, options), out, options)

    parameters = dict(signature(command, eval_str=True).parameters)
    del parameters["values"]
    for parameter in signature(read, eval_str=True).parameters.values():
        if text := (_HELP | help).get(parameter.name):
            flags = [f"--{parameter.name}"] if parameter.annotation is bool else []
            option = Annotated[parameter.annotation, typer.Option(*flags, help=text)]  # type: ignore[name-defined]
            parameters[parameter.name] = parameter.replace(annotation=option)
    keywords = [parameter.replace(kind=Parameter.KEYWORD_ONLY) for parameter in parameters.values()]
    command.__signature__ = Signature(keywords)  # type: ignore[attr-defined]
    app.command(name, help=summary)(with_options(command))


_add_source("mimic-cxr", partial(read_mimic_cxr, release="dicom"), "MIMIC-CXR: DICOM files and free-text reports.")
_add_source(
    "mimic-cxr-jpg", partial(read_mimic_cxr, release="jpg"), "MIMIC-CXR-JPG: JPEG files, and the reports of MIMIC-CXR."
)
_add_source(
    "ms-cxr",
    read_ms_cxr,
    "MS-CXR: phrases with boxes on radiographs of MIMIC-CXR.",
    images="Folder of MIMIC-CXR or MIMIC-CXR-JPG.",
)
_add_source("padchest", read_padchest, "PadChest: 16 bit PNG files in folders or zips, and a table of reports.")
_add_source("padchest-gr", read_padchest_gr, "PadChest-GR: grounded reports on radiographs of PadChest.")
_add_source("iu-xray", read_iu_xray, "IU-Xray (Open-i): XML reports, PNG or DICOM files.")
_add_source(
    "chexpert-plus",
    read_chexpert_plus,
    "CheXpert Plus: DICOM, PNG or JPEG files, and a table of reports.\n\n--images is the folder with train and valid.",
)
_add_source(
    "rexgradient",
    read_rexgradient,
    "ReXGradient-160K: PNG files, and reports as JSON.\n\n--images is the folder with deid_png.",
)
_add_source(
    "interpret-cxr",
    read_interpret_cxr,
    "interpret-cxr (RRG24): tables with findings, impression and images of five data sets.\n\n"
    "Images without a view in their names or in --views are skipped and reported.",
    root="Table (CSV, JSON or JSON Lines), or the folder with train.csv, validation.csv, ...",
    images=_BASE_FOLDER,
)
_add_source(
    "coco",
    read_coco_studies,
    "COCO file: detections become grounded findings, captions become findings.",
    root="COCO file (JSON).",
    images=_BASE_FOLDER,
)


@app.command("table")
@with_options
def prepare_table(
    root: Annotated[
        Path,
        typer.Option(help="Table of studies (CSV or JSON Lines), the folder with studies.csv, or a folder of images."),
    ],
    out: PreparedFolder,
    judge: Annotated[JudgeOptions, only("judge", "judge_args", "base_url", "concurrency", "max_invalid")],
    options: PrepareOptions,
    images: Annotated[Path | None, typer.Option(help=_BASE_FOLDER)] = None,
    columns: Annotated[
        str | None,
        typer.Option(
            metavar="FIELD=NAME,...",
            help="Own names of columns, such as sample_id=Accession,frontal=Image,report=Text. Fields: those of a "
            f"manifest (docs/files.md), {DATE}, and report.",
        ),
    ] = None,
    preview: Annotated[
        bool, typer.Option("--preview", help="Print the first rows as samples, and write nothing.")
    ] = False,
) -> None:
    """Table with the columns of a manifest, such as a hospital export; images are PNG, JPEG or DICOM files.

    A column `report` is divided into sections by its headings, or by a language model (--judge) if these name no
    findings. Rows without a report are included, for drafting. Cells that are empty, NaN, N/A or null are missing
    values. For a folder of images without a table, a table is proposed.
    """
    from maira.data.sources.section_model import PARAMETERS, extract_sections

    if root.is_dir() and find_studies(root) is None:
        _propose(root, out, preview)
        return
    pairs = [pair.strip() for pair in columns.split(",")] if columns else []
    names = check_columns(parse_key_values(pairs, "columns"), FIELDS, {})
    if judge.judge is None and (unused := judge.as_arguments()):
        raise InputError("only available with --judge", code=ErrorCode.CONFLICTING_OPTIONS, field=unused[0])
    extract = None
    if judge.judge is not None and not preview:
        extract = partial(extract_sections, client=judge.load_client(PARAMETERS, out.parent / "cache"))
    table = read_table(root, images, names, extract)
    _print_table(table, preview)
    if preview:
        return
    origin = str((images or (root if root.is_dir() else root.parent)).absolute())
    make = partial(table.make, options.rules("one"))
    _report(_convert(table.source, origin, make, table.failures, out, options), out, options)


def _propose(folder: Path, out: Path, preview: bool) -> None:
    """Write the table that a folder of images suggests beside the output folder, or print its first rows."""
    from maira.data.sources.proposal import COLUMNS, propose_table

    if tables := sorted(path for path in folder.iterdir() if path.name.lower().endswith((".csv", ".csv.gz", ".jsonl"))):
        message = f"expected studies.csv or studies.jsonl in this folder; for another table: --root {tables[0]}"
        raise InputError(message, code=ErrorCode.FILE_NOT_FOUND, file=folder)
    rows, remarks = propose_table(folder)
    if not rows:
        found = "; ".join(remarks) or "none"
        message = f"expected studies.csv, studies.jsonl or frontal radiographs in this folder, found {found}"
        raise InputError(message, code=ErrorCode.FILE_NOT_FOUND, file=folder)
    file, console = out.with_name(f"{out.name}.csv"), Console()
    if file.exists():
        message = f"exists; prepare it with --root {file} --images {folder}, or remove it for a new proposal"
        raise InputError(message, code=ErrorCode.OUTPUT_CONFLICT, file=file)
    if preview:
        show_rows(console, COLUMNS, (row.values() for row in rows[:3]), title=f"{len(rows)} rows")
    else:
        write_csv(file, COLUMNS, [list(row.values()) for row in rows])
        print_line(console, f"no table in {folder}; proposed one with {len(rows)} rows: {file}")
    for remark in remarks:
        print_line(console, remark)
    command = shlex.join(map(str, ("maira", "prepare", "table", "--root", file, "--images", folder, "--out", out)))
    print_line(console, f"Check the table, add the reports, then: {command}")


def _print_table(table: Table, with_rows: bool) -> None:
    """Print what was read, and the first rows only if asked for: they are texts of patients."""
    console = Console()
    for row in table.rows[: 3 * with_rows]:
        values = row.study.model_dump(mode="json", exclude_none=True)
        for name, value in (values | ({DATE: row.date} if row.date else {})).items():
            print_line(console, f"{name}: {value!s:.160}")
        print_line(console, "")
    reported = [row.study for row in table.rows if row.report is not None]
    counts = [f"{name} {sum(bool(getattr(study, name)) for study in reported)}" for name in SECTIONS]
    sections = f"; sections of {len(reported)} reports: {', '.join(counts)}" if reported else ""
    print_line(console, f"{len(table.rows)} rows{sections}")
    if lacking := sum(failure.reason == NO_FINDINGS for failure in table.failures):
        print_line(console, f"reports without a findings section: {lacking}; a model (--judge) can look for it")
    if table.archive and (lone := sum(row.date is None or row.study.patient_id is None for row in table.rows)):
        print_line(console, f"rows without patient_id or {DATE}, for which no priors are selected: {lone}")
    if table.unused:
        is_unreported = not any(row.report is not None or is_reported(row.study) for row in table.rows)
        hint = "; none is used as report: name it with --columns report=NAME" if is_unreported else ""
        print_line(console, f"columns that are not used: {', '.join(table.unused)}{hint}")


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
    if unreported := sum(not is_reported(study) for study in studies):
        print_line(console, f"samples without a report, for drafting only: {unreported}")
    by_stage: dict[str, list[Failure]] = {}
    for failure in prepared.failures:
        stage = failure.stage if failure.stage in ("select", "sections", "doubt") else "error"
        by_stage.setdefault(stage, []).append(failure)
    if skipped := Counter(failure.reason for failure in by_stage.get("select", ())):
        # What else a folder contains is counted in its reason.
        counted = (reason if " in " in reason else f"{reason} ({count})" for reason, count in skipped.most_common())
        print_line(console, f"skipped by the rules: {', '.join(counted)} (failures.jsonl)")
    for failure in by_stage.get("doubt", ())[:10]:
        print_line(console, failure.reason, "yellow")
    errors = by_stage.get("error", ())
    exit_with_failures(console, [(str(failure.source or failure.sample_id), failure.reason) for failure in errors])
