"""The results page: one HTML file that shows figures, studies, boxes and verdicts without a network."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import ConfigDict, Field, NonNegativeInt

from radfact.errors import InputError, check_unique_id
from radfact.html.green_summary import green_section
from radfact.html.images import MOST_EMBEDDED, keep_images, load_images
from radfact.html.markup import Row, Scores, render
from radfact.io.jsonl import open_atomic, read_json, read_jsonl
from radfact.records import Box, Mask, parse_sentences, validated

Place = Literal["inside", "beside"]
"""Where the images of a page are: in its file, or as files in a folder beside it."""

_BESIDE = "report_images"
_IMAGES = ("frontal", "lateral", "prior_frontal")
_SHOWN = {"text", "boxes", "masks", "prior_boxes", "status", "spatial", "why"}
_CONTEXT = ("indication", "technique", "comparison", "prior_report")


class _Sample(Row):
    model_config = ConfigDict(extra="allow", coerce_numbers_to_str=True)
    sample_id: str
    failure: str | None = None
    failures: dict[str, str] = Field(default_factory=dict)

    @property
    def reason(self) -> str | None:
        """Why it was not scored: by the one metric, or by which of several."""
        return "; ".join(f"{metric}: {why}" for metric, why in self.failures.items()) or self.failure


class _Detail(Row):
    sample_id: str
    details: dict[str, Any] = Field(default_factory=dict)


class _Sentence(Row):
    sample_id: str
    side: Literal["candidate", "reference"]
    index: NonNegativeInt
    text: str
    boxes: tuple[Box, ...] | None = None
    masks: tuple[Mask, ...] | None = None
    prior_boxes: tuple[Box, ...] | None = None
    status: str | None = None
    evidence: tuple[NonNegativeInt, ...] | None = None
    spatial: str | None = None
    why: str | None = None


class _Study(Row):
    sample_id: str
    frontal: str | None = None
    lateral: str | None = None
    prior_frontal: str | None = None
    indication: str | None = None
    technique: str | None = None
    comparison: str | None = None
    prior_report: str | None = None


class _Draft(Row):
    sample_id: str
    report: Any
    model: str | None = None


def page_record(
    folder: Path,
    manifest: Path | None,
    notes: Sequence[str],
    unscored: Path | None,
    drafts: Sequence[str] = (),
    images: Place | None = None,
) -> dict[str, Any]:
    """What `run.json` should hold under `page` so that the page can be drawn again; paths are relative to `folder`.

    Args:
        folder, manifest, notes, unscored, images: as `write_page` takes them.
        drafts: those of `unscored` that are shown, by `sample_id`; none named: all.
    """
    paths = {"manifest": manifest, "unscored": unscored}
    return {
        **{name: None if path is None else os.path.relpath(path, folder) for name, path in paths.items()},
        "drafts": list(drafts),
        "notes": list(notes),
        "images": images,
    }


def write_page(
    folder: Path,
    *,
    manifest: Path | None = None,
    notes: Sequence[str] | None = None,
    unscored: Path | None = None,
    images: Place | None = None,
) -> Path:
    """Write `report.html` into a results folder: its figures, and each study as in figure E.1 of paper 004.

    Images lie inside the page or in `report_images/` beside it, and are written before the page that shows them. One
    that cannot be read is shown as missing. Text of reports is data: nothing in it can become markup. What is not given
    is taken from `page` in `run.json`, as `page_record` makes it; a file named there that is gone is said on the page.

    Args:
        folder: results folder with `scores.json`, `samples.jsonl`, `sentences.jsonl` and, if there, `run.json`.
        manifest: records by `sample_id` with images (paths relative to the manifest, or absolute) and context.
        notes: plain sentences for the banner, such as what the figures are not.
        unscored: drafts without a reference, shown apart and in no figure; their images come from the
            `manifest.jsonl` beside that file, or else from `manifest`.
        images: where the images go; None puts those of up to `MOST_EMBEDDED` studies inside, of more beside.

    Returns:
        The path of the page.

    Raises:
        InputError: a file is missing or holds what the page cannot show, or the manifest has none of the studies;
            nothing is written then.
    """
    folder, given = Path(folder), manifest
    scores = validated(Scores, read_json(folder / "scores.json"), file=folder / "scores.json")
    run = _read_run(folder / "run.json")
    record = validated(_PageRecord, run.get("page") or {}, file=folder / "run.json")
    chosen = set(record.drafts if unscored is None else ())
    manifest, notes, unscored = _sources(folder, record, manifest, notes, unscored)
    studies = _read_studies(folder, list(scores.figures), [name for name in scores.metrics if name != "radfact"])
    drafts = _read_drafts(Path(unscored)) if unscored else []
    drafts = [draft for draft in drafts if not chosen or draft["sample_id"] in chosen]
    if given is not None and (studies or drafts):
        check_manifest(Path(given), [study["sample_id"] for study in (*studies, *drafts)])

    sources = [] if manifest is None else [Path(manifest)]
    beside = Path(unscored).parent / "manifest.jsonl" if unscored else None
    own = [beside] if beside is not None and beside.exists() else []
    _attach(studies, sources)
    _attach(drafts, own + sources)
    few = len(studies) + len(drafts) <= MOST_EMBEDDED
    inside = (images or record.images or ("inside" if few else "beside")) == "inside"
    load_images([*studies, *drafts], None if inside else folder / _BESIDE)

    page = render(
        f"{'Results' if scores.metrics else 'RadFact results'}: {folder.resolve().name}",
        scores,
        run,
        studies,
        drafts,
        notes,
        green_section(folder),
    )
    with open_atomic(folder / "report.html", "wb") as handle:
        # JSON may smuggle in half a surrogate pair, which no UTF-8 file can hold.
        handle.write(page.encode("utf-8", "replace"))
    keep_images([*studies, *drafts], folder / _BESIDE)
    return folder / "report.html"


def check_manifest(manifest: Path, sample_ids: Sequence[str]) -> None:
    """Make sure that a manifest has images for a page.

    Args:
        manifest: as for `write_page`.
        sample_ids: of the studies on the page.

    Raises:
        InputError: it has none of these studies, or cannot be read.
    """
    wanted = set(sample_ids)
    known = (validated(_Study, row, file=manifest, line=line).sample_id for line, row in read_jsonl(manifest))
    if wanted.isdisjoint(known):
        raise InputError(
            f"none of the page's studies is in it; expected records of them, as of '{sample_ids[0]}'",
            file=manifest,
            field="sample_id",
        )


def _read_run(path: Path) -> dict[str, Any]:
    run = read_json(path) if path.exists() else {}
    if not isinstance(run, dict):
        raise InputError(f"expected one JSON object, found {type(run).__name__}", file=path)
    return run


class _PageRecord(Row):
    manifest: str | None = None
    unscored: str | None = None
    drafts: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    images: Place | None = None


def _sources(
    folder: Path,
    record: _PageRecord,
    manifest: Path | None,
    notes: Sequence[str] | None,
    unscored: Path | None,
) -> tuple[Path | None, list[str], Path | None]:
    """The manifest, the notes and the unscored drafts: each as given, or else as the run had it."""
    said = list(record.notes if notes is None else notes)
    paths = []
    for given, named, what in (
        (manifest, record.manifest, "The manifest with the images"),
        (unscored, record.unscored, "The drafts without a reference"),
    ):
        path = folder / named if given is None and named is not None else given
        if given is None and path is not None and not path.is_file():
            said.append(f"{what} ({path.name}) is not where the run had it, so this page is without.")
            path = None
        paths.append(path)
    return paths[0], said, paths[1]


def _read_studies(folder: Path, names: Sequence[str], metrics: Sequence[str]) -> list[dict[str, Any]]:
    """Samples in input order, each with its per-sample figures and the sentences of both sides."""
    path = folder / "samples.jsonl"
    studies: dict[str, dict[str, Any]] = {}
    seen: dict[str, int] = {}
    for line, row in read_jsonl(path):
        sample = validated(_Sample, row, file=path, line=line)
        check_unique_id(seen, sample.sample_id, line, file=path)
        studies[sample.sample_id] = {
            "sample_id": sample.sample_id,
            "scored": True,
            "figures": {name: _figure(row[name], path, line, name) for name in names if name in row},
            "failure": sample.reason,
            "candidate": [],
            "reference": [],
        }
    _add_sentences(studies, folder / "sentences.jsonl")
    for metric in metrics:
        _add_details(studies, folder / "metrics" / f"{metric}.jsonl", metric)
    return list(studies.values())


def _add_details(studies: Mapping[str, dict[str, Any]], path: Path, metric: str) -> None:
    """What a metric says of each study; RadFact's is its sentences."""
    for line, row in read_jsonl(path) if path.is_file() else ():
        detail = validated(_Detail, row, file=path, line=line)
        if detail.details and detail.sample_id in studies:
            studies[detail.sample_id].setdefault("details", {})[metric] = detail.details


def _add_sentences(studies: Mapping[str, dict[str, Any]], path: Path) -> None:
    lines: dict[tuple[str, str, int], int] = {}
    rows: dict[tuple[str, str, int], _Sentence] = {}
    for line, row in read_jsonl(path):
        sentence = validated(_Sentence, row, file=path, line=line)
        key: tuple[str, str, int] = (sentence.sample_id, sentence.side, sentence.index)
        if sentence.sample_id not in studies:
            raise InputError(f"{key[0]!r} is not in samples.jsonl", file=path, line=line, field="sample_id")
        if key in rows:
            message = f"{key[1]} sentence {key[2]} of {key[0]!r} stands in line {lines[key]} too"
            raise InputError(message, file=path, line=line, field="index")
        rows[key], lines[key] = sentence, line
    for key in sorted(rows):
        sample_id, side, index = key
        sentences = studies[sample_id][side]
        if index != len(sentences):
            message = f"there is no {side} sentence {len(sentences)} of {sample_id!r} before this one"
            raise InputError(message, file=path, line=lines[key], field="index")
        evidence = rows[key].evidence or ()
        other = "reference" if side == "candidate" else "candidate"
        for at in evidence:
            if (sample_id, other, at) not in rows:
                message = f"{sample_id!r} has no {other} sentence {at}"
                raise InputError(message, file=path, line=lines[key], field="evidence")
        shown = rows[key].model_dump(include=_SHOWN, exclude_none=True)
        sentences.append({**shown, "evidence": evidence})


def _figure(value: Any, file: Path, line: int, name: str) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or value - value != 0:
        raise InputError(f"expected a finite number or null, found {value!r}", file=file, line=line, field=name)
    return float(value)


def _read_drafts(path: Path) -> list[dict[str, Any]]:
    drafts: dict[str, dict[str, Any]] = {}
    seen: dict[str, int] = {}
    for line, row in read_jsonl(path):
        draft = validated(_Draft, row, file=path, line=line)
        check_unique_id(seen, draft.sample_id, line, file=path)
        report = draft.report
        if isinstance(report, str):
            report = [{"text": report}] if report.strip() else []
        sentences = parse_sentences(report, file=path, line=line)
        drafts[draft.sample_id] = {
            "sample_id": draft.sample_id,
            "scored": False,
            "model": draft.model,
            "candidate": [{**s.model_dump(include=_SHOWN, exclude_none=True), "evidence": ()} for s in sentences],
        }
    return list(drafts.values())


def _attach(studies: Sequence[dict[str, Any]], manifests: Iterable[Path]) -> None:
    """Give each study its context and the paths of its images from the first manifest that knows it."""
    wanted = {study["sample_id"]: study for study in studies}
    for path in manifests:
        for line, row in read_jsonl(path):
            record = validated(_Study, row, file=path, line=line)
            study = wanted.pop(record.sample_id, None)
            if study is None:
                continue
            study.update(record.model_dump(include=set(_CONTEXT)))
            named = {kind: getattr(record, kind) for kind in _IMAGES}
            study["images"] = {kind: path.parent / name if name else None for kind, name in named.items()}
