"""Catalog of the weights that metrics need: where they are published, under which license, and their checksums."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

CATALOG = Path(__file__).with_name("weights.yaml")


@dataclass(frozen=True, slots=True)
class WeightsFile:
    """A file to download, with its published size and checksum, or an archive, of which the folder `unpack` is kept."""

    path: str
    url: str
    bytes: int | None = None
    sha256: str | None = None
    unpack: str | None = None


@dataclass(frozen=True, slots=True)
class WeightsEntry:
    """Published weights by the name of their folder; the `note` says what is not verified, and names other sources."""

    name: str
    title: str
    license: str
    license_url: str
    files: tuple[WeightsFile, ...]
    note: str | None = None
    package: str | None = None
    """How to install the files with the system's packages, instead of fetching them."""


@cache
def catalog() -> Mapping[str, WeightsEntry]:
    from radfact.io.yaml_files import read_yaml

    entries = {}
    for name, fields in read_yaml(CATALOG).items():
        files = tuple(WeightsFile(**file) for file in fields.pop("files"))
        entries[name] = WeightsEntry(name=name, files=files, **fields)
    return entries


def find_lack(folder: Path, files: Sequence[str]) -> str | None:
    """Return which file a folder of weights lacks, if any; names separated by `|` are alternatives."""
    for names in files:
        if not any((folder / name).exists() for name in names.split("|")):
            return f"{folder} has no {names.replace('|', ' or ')}"
    return None
