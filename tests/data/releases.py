"""Miniatures of the releases that readers read, from `releases/*.yaml`, and studies as plain values."""

import gzip
import json
import re
import shutil
import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import fields
from io import BytesIO
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import yaml

from maira.data.archive import ArchiveStudy, Radiograph

FOLDER = Path(__file__).parent / "releases"
Release = dict[str, Any]


def load_release(name: str) -> Release:
    """Return the files, images and cases of a release."""
    release: Release = yaml.safe_load((FOLDER / f"{name}.yaml").read_text(encoding="utf-8"))
    return release


def write_release(root: Path, release: Release) -> Path:
    """Write the files of a release, and empty images: a reader opens none."""
    for name in release.get("images", ()):
        write_file(root, name, "")
    for name, content in release["files"].items():
        write_file(root, name, content)
    return root


def write_file(root: Path, name: str, content: Any) -> None:
    """Write a file: a text, members of a `.zip` or `.tgz` archive, or a value as JSON. None removes it.

    A name ending in `.gz` is compressed.
    """
    path = root / name
    if content is None:
        shutil.rmtree(path) if path.is_dir() else path.unlink()
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".zip" and isinstance(content, dict):
        with ZipFile(path, "w") as packed:
            for member, text in content.items():
                packed.writestr(member, text)
    elif path.suffix == ".tgz" and isinstance(content, dict):
        with tarfile.open(path, "w:gz") as packed_reports:
            for member, text in content.items():
                info = tarfile.TarInfo(member)
                info.size = len(text)
                packed_reports.addfile(info, BytesIO(text.encode("ascii")))
    else:
        text = content if isinstance(content, str) else json.dumps(content)
        data = text.encode("utf-8", "surrogateescape")
        path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)


def change_file(path: Path, changes: Mapping[str, str]) -> None:
    """Replace the first place of each text, which must be in the file."""
    compressed = path.suffix == ".gz"
    data = gzip.decompress(path.read_bytes()) if compressed else path.read_bytes()
    for old, new in changes.items():
        assert old.encode() in data, old
        data = data.replace(old.encode(), new.encode(), 1)
    path.write_bytes(gzip.compress(data) if compressed else data)


def cases(named: dict[str, dict[str, Any]]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield name and values of each case; one with `each` is a case for each of its variants."""
    for name, case in named.items():
        variants = case.pop("each", [{}])
        for number, variant in enumerate(variants):
            yield (f"{name}, {number}" if len(variants) > 1 else name), case | variant


def plain_study(study: ArchiveStudy, root: Path) -> dict[str, Any]:
    """Return the fields of a study as YAML has them."""
    values = {field.name: getattr(study, field.name) for field in fields(study)}
    values["radiographs"] = [_plain_radiograph(radiograph, root) for radiograph in study.radiographs]
    for name in ("grounded_findings", "phrases"):
        if (sentences := getattr(study, name)) is not None:
            values[name] = [[sentence.text, *_plain_boxes(sentence.boxes)] for sentence in sentences]
    if study.labels is not None:
        values["labels"] = [[label.kind, label.side, *_plain_boxes(label.boxes)] for label in study.labels]
    plain: dict[str, Any] = json.loads(json.dumps(values, default=str))
    return plain


def without_digest(key: str) -> str:
    """Return the name of a radiograph without the digest of its path."""
    return re.sub("-[0-9a-f]{10}$", "", key)


def _plain_radiograph(radiograph: Radiograph, root: Path) -> str:
    key = without_digest(radiograph.key)
    member = "" if radiograph.member is None else f"!{radiograph.member}"
    size = "" if radiograph.size is None else " {}x{}".format(*radiograph.size)
    inverted = " inverted" if radiograph.is_inverted else ""
    return f"{key}: {radiograph.view} {radiograph.path.relative_to(root)}{member}{size}{inverted}"


def _plain_boxes(boxes: Any) -> list[list[float]]:
    return [[round(corner, 9) for corner in box.as_tuple()] for box in boxes or ()]
