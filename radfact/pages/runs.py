"""Runs below some folders: their names, main scores, and why one cannot be opened."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from radfact.errors import ErrorCode, InputError, RunError
from radfact.io.jsonl import read_json
from radfact.io.outputs import RECORD, RESULTS_FOLDER
from radfact.pages.images import LONGEST_SIDE, as_jpeg, image_size
from radfact.pages.page import PageContent
from radfact.results.display import main_scores
from radfact.results.reader import read_run, read_scores
from radfact.results.schema import METRICS_FOLDER, ScoreRecord, describe_models, scores_with_value

_SKIPPED = frozenset({"cache", "metrics", "report_images"})
"""Folders of a run."""
_MAX_NAMED = 3


@dataclass(frozen=True, slots=True)
class RunSummary:
    """A results folder in the list of runs, or the reason why it cannot be read."""

    name: str
    folder: Path
    reason: str | None = None
    file: str = ""
    """Name of the file of the candidates; empty if they were not read from one."""
    model: str = ""
    judge: str = ""
    date: datetime | None = None
    samples: int | None = None
    scores: Mapping[str, ScoreRecord] = field(default_factory=dict)
    groups: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Scores that have a value by metric, the main ones first."""
    main: Sequence[str] = ()

    @property
    def label(self) -> str:
        return run_label(self.name, self.file)

    @property
    def url(self) -> str:
        return run_url(self.name)


def run_label(name: str, file: str) -> str:
    """Return the file of the candidates with the name of the run, or the name alone."""
    return f"{file} ({name})" if file else name


def _candidate_file(files: Sequence[str]) -> str:
    return Path(files[0]).name if files else ""


def run_url(name: str) -> str:
    return f"/run/{quote(name)}"


def find_runs(folders: Sequence[Path]) -> dict[str, RunSummary]:
    """Return the runs in and below folders by name, in the order of their paths; links to folders are not followed."""
    for folder in folders:
        if not folder.is_dir():
            raise InputError("expected a folder, found none", code=ErrorCode.FILE_NOT_FOUND, file=folder)
    runs: dict[str, RunSummary] = {}
    known: set[Path] = set()
    for label, folder in _labels(folders).items():
        for path in _walk(folder):
            if (real := path.resolve()) not in known:
                known.add(real)
                name = "/".join((label, *path.relative_to(folder).parts))
                runs[name] = _summarize(name, path)
    return runs


def _labels(folders: Sequence[Path]) -> dict[str, Path]:
    """Return the folders by name; those of the same name by as many parents as tell them apart."""
    paths = list(dict.fromkeys(folder.resolve() for folder in folders))
    labels = {}
    for path in paths:
        parts = path.parts[1:] or ("root",)
        depth = 1
        while depth < len(parts) and any(other.parts[-depth:] == parts[-depth:] for other in paths if other != path):
            depth += 1
        labels["/".join(parts[-depth:])] = path
    return labels


def _walk(folder: Path) -> Iterator[Path]:
    """Yield the results folders in and below a folder, in order."""
    for path, subfolders, files in os.walk(folder):
        subfolders[:] = sorted(name for name in subfolders if name not in _SKIPPED and not name.startswith("."))
        if _is_run(Path(path), files):
            yield Path(path)


def _is_run(folder: Path, files: Sequence[str]) -> bool:
    if "scores.json" in files or {"samples.jsonl", "run.json"} <= set(files):
        return True
    if RECORD not in files:
        return False
    try:
        record = read_json(folder / RECORD)
    except (InputError, RunError):
        return False
    return isinstance(record, dict) and record.get("content") == RESULTS_FOLDER.content


def _summarize(name: str, folder: Path) -> RunSummary:
    try:
        scores, run = read_scores(folder), read_run(folder)
        date = datetime.fromtimestamp((folder / "scores.json").stat().st_mtime)
    except (InputError, RunError) as error:
        return RunSummary(name, folder, reason=str(error))
    except OSError as error:
        return RunSummary(name, folder, reason=f"cannot be read: {error.strerror}")
    count, main = scores.counts.get("samples"), main_scores(scores)
    with_value, models = scores_with_value(scores.scores), run.input.models
    more = len(models) - _MAX_NAMED
    judges = set(describe_models(scores).values())
    # Such as the judge "offline", named again by a metric whose narratives were split as well.
    own = sorted(judge for judge in judges if not any(other.startswith(f"{judge}, ") for other in judges))
    return RunSummary(
        name,
        folder,
        file=_candidate_file(run.input.files),
        model=", ".join(models[:_MAX_NAMED]) + (f" and {more} more" if more > 0 else ""),
        judge="; ".join(own) or "–",
        date=date,
        samples=count if isinstance(count, int) else None,
        scores=with_value,
        groups={
            metric: list(dict.fromkeys(name for name in (*names, *scores.metrics[metric].scores) if name in with_value))
            for metric, names in main.items()
        },
        main=[name for names in main.values() for name in names],
    )


FULL_SIDE = 2048
"""Longest side in pixels of an enlarged image."""
_CACHED_IMAGES = 200
_FILES = ("scores.json", "samples.jsonl", "sentences.jsonl", "run.json")


class OpenedRun(PageContent):
    """A run whose studies are listed; each is read from disk when it is shown."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name, self.version = name, version_of(folder)
        super().__init__(folder)
        self.file = _candidate_file(self.run.get("input", {}).get("files", ()))
        self.label = run_label(name, self.file)
        self._drafts = {draft["sample_id"]: draft for draft in self.drafts}
        self.has_regions = self.studies.has_regions or any(
            sentence.get("boxes") or sentence.get("masks") for draft in self.drafts for sentence in draft["candidate"]
        )

    def study(self, sample_id: str) -> dict[str, Any] | None:
        """Return a study in the form of the page's script, with the URLs of its images; None if there is none."""
        if sample_id in self.studies.indices:
            study = self.show(sample_id)
        elif sample_id in self._drafts:
            study = dict(self._drafts[sample_id])
        else:
            return None
        if "images" in study:
            study["images"] = {
                kind: path and self._describe(sample_id, kind, path) for kind, path in study["images"].items()
            }
        return study

    def search(self, text: str) -> list[int]:
        """Return the indices of the scored studies that contain every word of a text, in reports or context."""
        return self.studies.search(text)

    def _describe(self, sample_id: str, kind: str, path: Path) -> dict[str, Any]:
        try:
            width, height = image_size(path)
        except InputError as error:
            return {"message": f"{path.name}: {error.message}"}
        src = f"/image?{urlencode({'run': self.name, 'study': sample_id, 'kind': kind})}"
        return {"src": src, "full": f"{src}&full=1", "width": width, "height": height}

    def jpeg(self, sample_id: str, kind: str, *, full: bool) -> bytes | None:
        """Return an image of a study as JPEG; None if the run has no such image, or it cannot be read."""
        is_study = sample_id in self.studies.indices
        study = self.context.of(sample_id) if is_study else self._drafts.get(sample_id, {})
        try:
            path = study.get("images", {}).get(kind)
            return None if path is None else _jpeg(path, path.stat().st_mtime_ns, full)
        except (InputError, OSError):
            return None


def version_of(folder: Path) -> tuple[tuple[int, int], ...]:
    """Return a value that changes when the files of a run change."""
    paths = [*(folder / name for name in _FILES), *sorted((folder / METRICS_FOLDER).glob("*"))]
    states = [path.stat() for path in paths if path.exists()]
    return tuple((state.st_mtime_ns, state.st_size) for state in states)


@lru_cache(_CACHED_IMAGES)
def _jpeg(path: Path, _: int, full: bool) -> bytes:
    return as_jpeg(path, FULL_SIDE if full else LONGEST_SIDE)[0]
