"""The results page: one HTML file with scores, studies, boxes and verdicts that needs no network."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from itertools import islice
from pathlib import Path
from typing import Any

from radfact.errors import ErrorCode, InputError
from radfact.findings.details import FindingTable
from radfact.io.jsonl import open_atomic, read_jsonl
from radfact.io.outputs import record_files, replace_folder
from radfact.pages.findings import findings_section
from radfact.pages.green_summary import green_section
from radfact.pages.images import MAX_EMBEDDED, image_names, load_images, remove_unused_images
from radfact.pages.markup import PageHead, Part, part_name, render, render_list, render_part
from radfact.pages.studies import ManifestRow, StudyContext, StudyList, iter_studies, read_drafts
from radfact.records import validate_model
from radfact.results.options import ImagePlace, PageOptions
from radfact.results.reader import finding_metrics_of, iter_samples, read_run, read_scores
from radfact.results.schema import RADFACT, PageRecord, scores_with_value

MAX_STUDIES = 20_000
"""Maximum number of studies on one page: 45 MB, or 95 MB with reasons and findings, which a browser opens in seconds.
More are on separate pages."""
STUDIES_PER_PART = 1000
"""Studies on each separate page."""

_PART_FOLDER = "report_pages"
_IMAGE_FOLDER = "report_images"


def page_record(options: PageOptions, folder: Path) -> PageRecord:
    """Return the record in `run.json` from which the page can be drawn again.

    Args:
        options: of the page.
        folder: results folder, to which the paths of the record are relative.
    """
    return PageRecord(
        manifest=None if options.manifest is None else os.path.relpath(options.manifest, folder),
        unscored=None if options.unscored is None else os.path.relpath(options.unscored, folder),
        drafts=options.drafts,
        notes=options.notes,
        images=options.images,
    )


def write_page(
    folder: Path,
    *,
    manifest: Path | None = None,
    notes: Sequence[str] | None = None,
    unscored: Path | None = None,
    images: ImagePlace | None = None,
    base: Path | None = None,
) -> Path:
    """Write `report.html` into a results folder: its scores, and each study as in MAIRA-2, figure E.1.

    With more than `MAX_STUDIES` studies, `report.html` lists them, and `report_pages/` has a page for each
    `STUDIES_PER_PART` of them.

    Images are inside the page or in `report_images/`, and are written before the page that shows them. An image that
    cannot be read is shown as missing. Text of reports is data and cannot become markup. Options that are not given
    come from `page` in `run.json`; a file named there that no longer exists is mentioned on the page.

    Args:
        folder: results folder.
        manifest: records by `sample_id` with images (paths relative to the manifest, or absolute) and context.
        notes: sentences for the banner, such as a limitation of the scores.
        unscored: drafts without a reference, shown separately and not scored; their images come from the
            `manifest.jsonl` in the same folder, or else from `manifest`.
        images: where the images go; by default inside the page for up to `MAX_EMBEDDED` studies.
        base: results folder that the files of `folder` will be moved to, to which recorded paths are relative.

    Returns:
        The path of the page.

    Raises:
        InputError: a file is missing or does not match its schema, or the manifest has none of the studies; nothing is
            written then.
    """
    folder = Path(folder)
    content = PageContent(folder, base, manifest=manifest, notes=notes, unscored=unscored)
    head, drafts, sample_ids = content.head, content.drafts, content.sample_ids
    few = len(sample_ids) + len(drafts) <= MAX_EMBEDDED
    inside = (images or content.record.images or ("inside" if few else "beside")) == "inside"
    image_folder = None if inside else folder / _IMAGE_FOLDER
    load_images(drafts, image_folder)
    shown_images = image_names(drafts)
    is_one_page = len(sample_ids) <= MAX_STUDIES
    tables = head.finding_tables

    def batches() -> Iterator[list[dict[str, Any]]]:
        """Yield studies with images; one batch is in memory at a time."""
        studies = content.studies()
        while batch := list(islice(studies, None if is_one_page else STUDIES_PER_PART)):
            load_images(batch, image_folder, "" if is_one_page else "../")
            shown_images.update(image_names(batch))
            yield batch

    with nullcontext() if is_one_page else replace_folder(folder / _PART_FOLDER) as part_folder:
        if part_folder:
            studies = _write_parts(part_folder, head, batches(), len(sample_ids))
            sections = findings_section(tables) + green_section(folder)
            page = render_list(head, studies, drafts, sections, f"{_PART_FOLDER}/", STUDIES_PER_PART)
        else:
            shown = next(batches(), [])
            page = render(head, shown, drafts, findings_section(tables) + green_section(folder))
        with open_atomic(folder / "report.html", "wb") as handle:
            handle.write(_encode(page))
    if is_one_page:
        shutil.rmtree(folder / _PART_FOLDER, ignore_errors=True)
    remove_unused_images(shown_images, folder / _IMAGE_FOLDER)
    parts = [path for name in (_IMAGE_FOLDER, _PART_FOLDER) for path in (folder / name).glob("*.*")]
    record_files(folder, [folder / "report.html", *parts])
    return folder / "report.html"


class PageContent:
    """What the page of a results folder shows.

    Attributes:
        record: `page` in `run.json`.
        head: content above the studies; its tables of findings are filled while `studies` is read.
        sample_ids: ids of the studies, in order.
        drafts: without a reference, with report sections and image paths.
    """

    def __init__(
        self,
        folder: Path,
        base: Path | None = None,
        *,
        manifest: Path | None = None,
        notes: Sequence[str] | None = None,
        unscored: Path | None = None,
    ) -> None:
        """Read everything but the studies.

        Args:
            folder: results folder.
            base: as in `write_page`.
            manifest: as in `write_page`.
            notes: as in `write_page`.
            unscored: as in `write_page`.

        Raises:
            InputError: as in `write_page`.
        """
        self._folder, manifest_option = folder, manifest
        base = folder if base is None else base
        scores, run = read_scores(folder), read_run(folder)
        self.record = run.page or PageRecord()
        shown_drafts = set(self.record.drafts if unscored is None else ())
        manifest, notes, unscored = _sources(base, self.record, manifest, notes, unscored)
        self.sample_ids = [sample.sample_id for sample in iter_samples(folder, list(scores.scores))]
        if (expected := scores.counts.get("samples", len(self.sample_ids))) != len(self.sample_ids):
            message = f"expected {expected} samples as in scores.json, found {len(self.sample_ids)}"
            raise InputError(message, code=ErrorCode.MISMATCH, file=folder / "samples.jsonl")
        drafts = read_drafts(Path(unscored)) if unscored else []
        self.drafts = [draft for draft in drafts if not shown_drafts or draft["sample_id"] in shown_drafts]
        if manifest_option is not None and (self.sample_ids or self.drafts):
            check_manifest(Path(manifest_option), [*self.sample_ids, *(draft["sample_id"] for draft in self.drafts)])
        sources = [] if manifest is None else [Path(manifest)]
        neighbor = Path(unscored).parent / "manifest.jsonl" if unscored else None
        own = [neighbor] if neighbor is not None and neighbor.exists() else []
        StudyContext(own + sources).add_to(self.drafts)
        self._context = StudyContext(sources)
        if drawn_from := scores.counts.get("drawn_from"):
            notes = [f"A random sample: {len(self.sample_ids)} of {drawn_from} studies.", *notes]
        with_value = scores_with_value(scores.scores)
        self.head = PageHead(
            f"{'RadFact results' if list(scores.metrics) == [RADFACT] else 'Results'}: {base.resolve().name}",
            scores.model_copy(update={"scores": with_value}),
            run.model_dump(mode="json", exclude_unset=True),
            notes,
            [name for name in scores.scores if name not in with_value],
            {metric: FindingTable() for metric in finding_metrics_of(scores)},
        )

    def studies(self) -> Iterator[dict[str, Any]]:
        """Yield the studies with report sections and image paths.

        Raises:
            InputError: as `iter_studies`.
        """
        metrics = [name for name in self.head.scores.metrics if name != RADFACT]
        names = list(self.head.scores.scores)
        for study in iter_studies(self._folder, names, metrics, self.sample_ids, self.head.finding_tables):
            self._context.add_to([study])
            yield study


def _write_parts(folder: Path, head: PageHead, batches: Iterable[list[dict[str, Any]]], total: int) -> StudyList:
    """Write one page per batch, and return the list of studies for the main page.

    Args:
        folder: folder of the pages.
        head: head of the main page.
        batches: studies of each page.
        total: number of all studies.
    """
    study_list = StudyList(list(head.scores.scores))
    for number, batch in enumerate(batches, start=1):
        first = len(study_list.ids) + 1
        study_list.add(batch)
        part = Part(number, first, len(study_list.ids), total)
        with open_atomic(folder / part_name(number), "wb") as handle:
            handle.write(_encode(render_part(head, batch, part)))
    return study_list


def _encode(page: str) -> bytes:
    # JSON can hold half a surrogate pair, which UTF-8 cannot.
    return page.encode("utf-8", "replace")


def check_manifest(manifest: Path, sample_ids: Sequence[str]) -> None:
    """Check that a manifest has images for a page.

    Args:
        manifest: as for `write_page`.
        sample_ids: of the studies on the page.

    Raises:
        InputError: the manifest has none of these studies, or cannot be read.
    """
    rows = read_jsonl(manifest)
    known = (validate_model(ManifestRow, row, file=manifest, line=line).sample_id for line, row in rows)
    if set(sample_ids).isdisjoint(known):
        raise InputError(
            f"expected records of the studies of the page, such as '{sample_ids[0]}', found none",
            code=ErrorCode.MISMATCH,
            file=manifest,
            field="sample_id",
        )


def _sources(
    folder: Path,
    record: PageRecord,
    manifest: Path | None,
    notes: Sequence[str] | None,
    unscored: Path | None,
) -> tuple[Path | None, list[str], Path | None]:
    """Return manifest, notes and unscored drafts: as given, or else from the record of the run."""
    shown_notes = list(record.notes if notes is None else notes)
    paths = []
    for option, recorded, label in (
        (manifest, record.manifest, "The manifest with the images"),
        (unscored, record.unscored, "The drafts without a reference"),
    ):
        path = folder / recorded if option is None and recorded is not None else option
        if option is None and path is not None and not path.is_file():
            shown_notes.append(f"{label} ({path.name}) is no longer where it was during the run.")
            path = None
        paths.append(path)
    return paths[0], shown_notes, paths[1]
