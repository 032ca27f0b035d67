"""Images of a page: reduced, inside the page or in a folder, or a message where one cannot be shown."""

from __future__ import annotations

import base64
import hashlib
import os
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from pathlib import Path
from typing import Any
from urllib.parse import quote

from radfact.errors import ErrorCode, InputError
from radfact.io.jsonl import open_atomic

LONGEST_SIDE = 640
"""Longest side of a displayed image in pixels; boxes are relative and do not depend on it."""

MAX_EMBEDDED = 200
"""Maximum number of studies with embedded images; with more, a browser loads image files when they come into view."""

_DIGITS = 24
_NAME = re.compile(rf"[0-9a-f]{{{_DIGITS}}}\.jpg")


def load_images(studies: Sequence[dict[str, Any]], folder: Path | None) -> None:
    """Replace the paths in `images` of studies by records for the viewer; without a folder for files, embed them."""
    paths = {path for study in studies for path in study.get("images", {}).values() if path is not None}
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        loaded = dict(zip(paths, pool.map(lambda path: _load_image(path, folder), paths), strict=True))
    for study in studies:
        if "images" in study:
            study["images"] = {kind: path and loaded[path] for kind, path in study["images"].items()}


def remove_unused_images(studies: Sequence[dict[str, Any]], folder: Path) -> None:
    """Remove image files that none of the studies shows after `load_images`, and the folder if it is empty then."""
    if not folder.is_dir():
        return
    images = [image for study in studies for image in study.get("images", {}).values() if image]
    shown = {image["src"].rpartition("/")[2] for image in images if "src" in image}
    for path in folder.iterdir():
        if path.name not in shown and _NAME.fullmatch(path.name):
            path.unlink()
    if not any(folder.iterdir()):
        folder.rmdir()


def _load_image(path: Path, folder: Path | None) -> dict[str, Any]:
    if not path.is_file():
        return {"message": f"{path.name}: no such image"}
    try:
        jpeg, width, height = as_jpeg(path, LONGEST_SIDE)
    except InputError as error:
        return {"message": f"{path.name}: {error.message}"}
    if folder is None:
        src = f"data:image/jpeg;base64,{base64.b64encode(jpeg).decode('ascii')}"
    else:
        # Named by content, so that an earlier page never shows an image of another study while this one is written.
        name = f"{hashlib.sha256(jpeg).hexdigest()[:_DIGITS]}.jpg"
        src = f"{quote(folder.name)}/{name}"
        if not (folder / name).exists():
            with open_atomic(folder / name, "wb") as handle:
                handle.write(jpeg)
    return {"src": src, "width": width, "height": height}


def image_size(path: Path) -> tuple[int, int]:
    """Return width and height of an image in pixels."""
    from PIL import Image

    if not path.is_file():
        raise InputError("no such image", code=ErrorCode.FILE_NOT_FOUND, file=path)
    try:
        with Image.open(path) as image:
            return image.size
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):
        raise InputError("this image cannot be read", code=ErrorCode.INVALID_FORMAT, file=path) from None


def as_jpeg(path: Path, longest: int) -> tuple[bytes, int, int]:
    """Return the image as JPEG without metadata, and width and height of the original in pixels."""
    import numpy as np
    from PIL import Image

    try:
        with Image.open(path) as image:
            width, height = image.size
            image.draft(None, (longest, longest))
            if image.mode.startswith(("I", "F")):
                pixels = np.asarray(image, dtype=np.float64)
                low, high = pixels.min(), pixels.max()
                shown = Image.fromarray(np.uint8((pixels - low) * (255 / max(high - low, 1e-9))))
            else:
                shown = image.convert("L" if image.mode in ("1", "L", "LA") else "RGB")
        shown.thumbnail((longest, longest), Image.Resampling.LANCZOS, reducing_gap=3)
        buffer = BytesIO()
        shown.save(buffer, "JPEG", quality=85, optimize=True)
    # Pillow reports damaged files by these exceptions, depending on the format.
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):
        raise InputError("this image cannot be read", code=ErrorCode.INVALID_FORMAT, file=path) from None
    return buffer.getvalue(), width, height
