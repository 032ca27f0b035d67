"""Whether a results folder is of the same reports as a set, or as another folder."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from radfact.errors import list_some
from radfact.records import Pair, digest
from radfact.results.reader import read_digests


@dataclass(frozen=True, slots=True)
class Match:
    """The samples of a results folder beside those of a set.

    Attributes:
        folder: its name.
        missing: ids of the set that it lacks.
        unknown: ids that the set lacks.
        other_texts: ids whose candidate or reference is another text there.
    """

    folder: str
    missing: Sequence[str]
    unknown: Sequence[str]
    other_texts: Sequence[str]

    def notes(self) -> list[str]:
        """What a reader must know, a sentence each."""
        said = (
            (self.missing, "of the set are not in it"),
            (self.unknown, "of its samples are not in the set"),
            (self.other_texts, "have other texts in it than in the set: figures of other reports, or another splitter"),
        )
        return [f"{self.folder}: {len(ids)} {what} ({list_some(ids)})." for ids, what in said if ids]


def match(folder: Path, wanted: Mapping[str, str | None]) -> Match:
    """Set the samples of a results folder beside others by id and text.

    Args:
        folder: the results folder.
        wanted: id -> digest of its reports, as `digests_of` or `read_digests` gives it; None = not known.

    Raises:
        InputError: a file of the folder is missing or wrong.
    """
    there = read_digests(folder)
    shared = [(key, one, there[key]) for key, one in wanted.items() if key in there]
    return Match(
        folder.name,
        [key for key in wanted if key not in there],
        [key for key in there if key not in wanted],
        [key for key, one, other in shared if None not in (one, other) and one != other],
    )


def digests_of(pairs: Iterable[Pair]) -> dict[str, str | None]:
    """The digest of each pair's reports, by id."""
    return {one.sample_id: digest(one.candidate, one.reference) for one in pairs}
