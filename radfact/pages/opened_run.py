"""A run that is open in the viewer: the columns of its list of studies, and each study as the page shows it."""

from __future__ import annotations

import gc
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from radfact.errors import InputError
from radfact.pages.images import as_jpeg, image_size
from radfact.pages.page import PageContent
from radfact.pages.studies import StudyList
from radfact.results.reader import read_scores
from radfact.results.schema import scores_with_value

FULL_SIDE = 2048
"""Longest side in pixels of an enlarged image."""
_CACHED_IMAGES = 200
_FILES = ("scores.json", "samples.jsonl", "sentences.jsonl", "run.json")


class OpenedRun:
    """A run whose studies are listed; each is read from disk when it is shown."""

    def __init__(self, name: str, folder: Path) -> None:
        """Read a run."""
        self.name, self.folder = name, folder
        self.version = version_of(folder)
        self.columns = StudyList(list(scores_with_value(read_scores(folder).scores)))
        # The collector would examine the columns again and again while they grow, which takes a third of the time.
        gc.disable()
        try:
            self.content = PageContent(folder, listed=self.columns)
        finally:
            gc.enable()
        self.columns.finish()
        drafts = self.content.drafts
        self.has_regions = self.columns.has_regions or any(
            sentence.get("boxes") or sentence.get("masks") for draft in drafts for sentence in draft["candidate"]
        )
        self._drafts = {draft["sample_id"]: draft for draft in drafts}

    def study(self, sample_id: str) -> dict[str, Any] | None:
        """Return a study in the form of the page's script, with the URLs of its images; None if there is none."""
        index = self.columns.indices.get(sample_id)
        if index is None and sample_id not in self._drafts:
            return None
        study = dict(self._drafts[sample_id] if index is None else self.content.show(index))
        if "images" in study:
            study["images"] = {
                kind: path and self._describe(sample_id, kind, path) for kind, path in study["images"].items()
            }
        return study

    def search(self, text: str) -> list[int]:
        """Return the indices of the scored studies that contain every word of a text, in reports or context."""
        return self.columns.search(text)

    def _describe(self, sample_id: str, kind: str, path: Path) -> dict[str, Any]:
        try:
            width, height = image_size(path)
        except InputError as error:
            return {"message": f"{path.name}: {error.message}"}
        src = f"/image?{urlencode({'run': self.name, 'study': sample_id, 'kind': kind})}"
        return {"src": src, "full": f"{src}&full=1", "width": width, "height": height}

    def jpeg(self, sample_id: str, kind: str, *, full: bool) -> bytes | None:
        """Return an image of a study as JPEG; None if the run has no such image, or it cannot be read."""
        if sample_id in self.columns.indices:
            path = self.content.context.images(sample_id).get(kind)
        else:
            path = self._drafts.get(sample_id, {}).get("images", {}).get(kind)
        try:
            return None if path is None else _jpeg(path, path.stat().st_mtime_ns, full)
        except (InputError, OSError):
            return None


def version_of(folder: Path) -> tuple[tuple[int, int], ...]:
    """Return a value that changes when the files of a run change."""
    states = [path.stat() for name in _FILES if (path := folder / name).exists()]
    return tuple((state.st_mtime_ns, state.st_size) for state in states)


@lru_cache(_CACHED_IMAGES)
def _jpeg(path: Path, _: int, full: bool) -> bytes:
    return as_jpeg(path, FULL_SIDE)[0] if full else as_jpeg(path)[0]
