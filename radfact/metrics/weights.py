"""Catalog of the weights that metrics need: where they are published, under which license, and their checksums."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

CATALOG = Path(__file__).with_name("weights.yaml")


@dataclass(frozen=True, slots=True)
class WeightsFile:
    """A file to download.

    Attributes:
        path: of the file in the folder of the weights.
        url: source address.
        bytes: published size; None if unknown.
        sha256: published checksum; None if unknown.
        unpack: of an archive, the folder inside it whose content is kept, and "." all of it; None for other files.
    """

    path: str
    url: str
    bytes: int | None = None
    sha256: str | None = None
    unpack: str | None = None


@dataclass(frozen=True, slots=True)
class WeightsEntry:
    """Weights that are published.

    Attributes:
        name: of their folder, as in `Requirements.weights`.
        title: what they are.
        license: license, or who states which.
        license_url: page with the license.
        files: files to download.
        note: what is not verified, and other sources; None for nothing.
    """

    name: str
    title: str
    license: str
    license_url: str
    files: tuple[WeightsFile, ...]
    note: str | None = None


@cache
def catalog() -> Mapping[str, WeightsEntry]:
    """Read the catalog of weights by name."""
    from radfact.io.yaml_files import read_yaml

    entries = {}
    for name, fields in read_yaml(CATALOG).items():
        files = tuple(WeightsFile(**file) for file in fields.pop("files"))
        entries[name] = WeightsEntry(name=name, files=files, **fields)
    return entries
