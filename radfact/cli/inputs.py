"""What `radfact score` reads, and the folder that it writes to, checked before anything is asked or written."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from radfact.cli.options import Missing
from radfact.errors import InputError

if TYPE_CHECKING:
    from radfact.io.pairs import Pairs


def read_reports(
    pairs: Path | None,
    candidates: Path | None,
    references: Path | None,
    *,
    missing: Missing = Missing.REFUSE,
    narrative: bool | None = None,
) -> Pairs:
    """The pairs as the user wants them taken: as the files have them, as narratives, or only if grounded.

    Raises:
        InputError: files that do not go together or cannot be read, no pairs, or a narrative where none should be.
    """
    from radfact.io.pairs import read_candidates_and_references, read_pairs

    if pairs is not None and candidates is None and references is None:
        read = read_pairs(pairs)
    elif pairs is None and candidates is not None and references is not None:
        read = read_candidates_and_references(candidates, references, missing=missing.value)
    else:
        raise InputError("expected either a file of pairs, or both --candidates and --references")
    if not (len(read) or read.left_out):
        why = "; none of these drafts has a reference report" if read.unreferenced else ""
        raise InputError(f"no pairs to score{why}", file=pairs or candidates)
    return _as_asked(read, narrative)


def with_images(references: Path | None) -> Path | None:
    """The references as manifest of the page; a COCO file is none."""
    return _json_lines(references)


def drafts_apart(unscored: Path | None, candidates: Path | None, read: Pairs) -> tuple[Path | None, Sequence[str]]:
    """The file of drafts without a reference for the page, and which of it (none named: all).

    Args:
        unscored: as the user named it; without one it is the candidates where some of these have no reference.
        candidates: the file that the pairs were read from; a COCO file is no drafts.
        read: the pairs.
    """
    if unscored is not None or not read.unreferenced:
        return unscored, ()
    return _json_lines(candidates), read.unreferenced


def check_files(*paths: Path | None) -> None:
    """Say at once, not after the judging, that a file is not there.

    Raises:
        InputError: one that is named is no file.
    """
    for path in paths:
        if path is not None and not path.is_file():
            raise InputError("no such file", file=path)


def check_images(manifest: Path | None, unscored: Path | None, read: Pairs) -> None:
    """Say at once, not after the judging, that a manifest has no images for the page.

    Args:
        manifest: as the user named it.
        unscored: drafts without a reference, which are on the page too.
        read: the pairs.

    Raises:
        InputError: it has none of the studies, or one of the files cannot be read.
    """
    from radfact.html.page import check_manifest
    from radfact.io.pairs import read_drafts

    if manifest is not None:
        drafts = read.unreferenced if unscored is None else list(read_drafts(unscored))
        check_manifest(manifest, [*(one.sample_id for one in read), *read.left_out, *drafts])


def check_folder(folder: Path) -> None:
    """Say at once that results cannot be written into a folder, which need not be there yet.

    Raises:
        InputError: it, or a folder above it, is a file.
    """
    existing = next(place for place in (folder, *folder.absolute().parents) if place.exists())
    if not existing.is_dir():
        raise InputError("expected a folder for the results, found a file", file=existing)
    if not os.access(existing, os.W_OK):
        raise InputError("the folder for the results cannot be written to", file=existing)


def _json_lines(path: Path | None) -> Path | None:
    return path if path is not None and path.suffix.lower() == ".jsonl" else None


def _as_asked(pairs: Pairs, narrative: bool | None) -> Pairs:
    from dataclasses import replace

    from radfact.records import narrative as as_text

    if narrative is None:
        return pairs
    if narrative:
        texts = (replace(one, candidate=as_text(one.candidate), reference=as_text(one.reference)) for one in pairs)
        return replace(pairs, pairs=tuple(texts))
    for one in pairs:
        if isinstance(one.candidate, str) or isinstance(one.reference, str):
            raise InputError(f"--grounded needs lists of sentences; sample '{one.sample_id}' has a narrative")
    return pairs
