"""A run in memory: the columns of its list of studies, and each study as the page shows it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from radfact.errors import InputError
from radfact.io.jsonl import CompressedRows
from radfact.pages.images import as_jpeg, image_size
from radfact.pages.page import PageContent
from radfact.pages.runs import RunSummary
from radfact.pages.studies import StudyList

FULL_SIDE = 2048
"""Longest side in pixels of an enlarged image."""
_CACHED_IMAGES = 200
_FILES = ("scores.json", "samples.jsonl", "sentences.jsonl", "run.json")
_SEARCH_FIELDS = ("sample_id", "indication", "comparison", "technique", "prior_report", "failure")


class OpenedRun:
    """A run whose studies are read.

    Attributes:
        name: of the run.
        folder: results folder.
        head: content above the studies.
        columns: of the list of studies.
        drafts: ids of the drafts without a reference.
        has_regions: whether any sentence has boxes or masks.
        version: changes when the files of the run change.
    """

    def __init__(self, summary: RunSummary) -> None:
        """Read a run.

        Raises:
            InputError: a file is missing or does not match its schema.
        """
        self.name, self.folder = summary.name, summary.folder
        self.version = version_of(self.folder)
        content = PageContent(self.folder)
        self.head = content.head
        self.columns = StudyList(list(self.head.scores.scores))
        self._studies = CompressedRows()
        self._images: dict[str, dict[str, Path | None]] = {}
        self.has_regions = False
        for study in content.studies():
            self.columns.add([study])
            self._append(study)
        self.drafts = [draft["sample_id"] for draft in content.drafts]
        for draft in content.drafts:
            self._append(draft)

    def _append(self, study: dict[str, Any]) -> None:
        if "images" in study:
            self._images[study["sample_id"]] = study.pop("images")
        sentences = [*study["candidate"], *study.get("reference", ())]
        self.has_regions |= any(sentence.get("boxes") or sentence.get("masks") for sentence in sentences)
        self._studies.append(study)

    @cached_property
    def indices(self) -> Mapping[str, int]:
        """Index of each study and draft by its id; where both have an id, that of the study."""
        ids = [*self.columns.ids, *self.drafts]
        return {sample_id: index for index, sample_id in reversed(list(enumerate(ids)))}

    def study(self, sample_id: str) -> dict[str, Any] | None:
        """Return a study in the form of the page's script, with the URLs of its images; None if there is none."""
        if sample_id not in self.indices:
            return None
        study = self._studies[self.indices[sample_id]]
        if sample_id in self._images:
            study["images"] = {
                kind: path and self._describe(sample_id, kind, path) for kind, path in self._images[sample_id].items()
            }
        return study

    def _describe(self, sample_id: str, kind: str, path: Path) -> dict[str, Any]:
        try:
            width, height = image_size(path)
        except InputError as error:
            return {"message": f"{path.name}: {error.message}"}
        src = f"/image?{urlencode({'run': self.name, 'study': sample_id, 'kind': kind})}"
        return {"src": src, "full": f"{src}&full=1", "width": width, "height": height}

    def jpeg(self, sample_id: str, kind: str, *, full: bool) -> bytes | None:
        """Return an image of a study as JPEG; None if the run has no such image, or it cannot be read.

        Args:
            sample_id: of the study.
            kind: "frontal", "lateral" or "prior_frontal".
            full: for the enlarged view, instead of the card.
        """
        path = self._images.get(sample_id, {}).get(kind)
        try:
            return None if path is None else _jpeg(path, path.stat().st_mtime_ns, full)
        except (InputError, OSError):
            return None

    def search(self, text: str) -> list[int]:
        """Return the indices of the scored studies that contain every word of a text, in reports or context."""
        words = text.lower().split()
        return [index for index, study in enumerate(self._studies[: len(self.columns.ids)]) if _contains(study, words)]


def _contains(study: Mapping[str, Any], words: Sequence[str]) -> bool:
    texts = [study.get(name) for name in _SEARCH_FIELDS]
    texts += [sentence["text"] for side in ("candidate", "reference") for sentence in study[side]]
    searched = "\n".join(filter(None, texts)).lower()
    return all(word in searched for word in words)


def version_of(folder: Path) -> tuple[tuple[int, int], ...]:
    """Return a value that changes when the files of a run change.

    Raises:
        OSError: the folder cannot be read.
    """
    states = [path.stat() for name in _FILES if (path := folder / name).exists()]
    return tuple((state.st_mtime_ns, state.st_size) for state in states)


@lru_cache(_CACHED_IMAGES)
def _jpeg(path: Path, _: int, full: bool) -> bytes:
    return as_jpeg(path, FULL_SIDE)[0] if full else as_jpeg(path)[0]
