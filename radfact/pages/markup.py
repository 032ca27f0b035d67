"""Pages from Jinja templates: one file each, with its styles, scripts and data, and names of scores for a person."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import zlib
from collections.abc import Sequence
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from markupsafe import Markup

from radfact.results.display import words

STATIC = resources.files("radfact.pages") / "static"
"""Styles and scripts of pages."""
TEMPLATES = resources.files("radfact.pages") / "templates"
SERVED = "connect-src 'self'; form-action 'self'"
"""What the content security policy of a page that a server sends allows in addition."""

# The same as in `visibleText` of viewer.js.
_BIDIRECTIONAL = re.compile("[\u202a-\u202e\u2066-\u2069]")


def assemble(
    body: Traversable,
    styles: Sequence[Traversable],
    scripts: Sequence[Traversable] = (),
    data: Any = None,
    *,
    policy: str = "form-action 'none'",
    **context: Any,
) -> str:
    """Return a page in one file: styles, scripts, data, and a content security policy that allows nothing else."""
    style, script = ("".join(part.read_text("utf-8") for part in parts) for parts in (styles, scripts))
    hashes = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode("ascii") for text in (script, style)]
    policy = (
        f"default-src 'none'; script-src 'sha256-{hashes[0]}'; style-src 'sha256-{hashes[1]}'; "
        f"img-src data: file: 'self'; base-uri 'none'; {policy}"
    )
    # Compressed, the data of 5,000 studies take 2 MB instead of 17 MB.
    packed = zlib.compress(json.dumps(data or {}, allow_nan=False, separators=(",", ":")).encode())
    trusted = {"policy": policy, "data": base64.b64encode(packed).decode(), "style": style, "script": script}
    template = _template(body.read_text("utf-8"))
    return template.render(context, **{name: Markup(value) for name, value in trusted.items()})


@cache
def _template(source: str) -> Template:
    environment = Environment(
        loader=PackageLoader("radfact.pages", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_show_controls,
    )
    environment.filters |= {"score_name": words, "number": format_number}
    return environment.from_string(source)


def _show_controls(value: Any) -> Any:
    """Write out the bidirectional controls of a text, so that they cannot reorder it."""
    if isinstance(value, Markup) or not isinstance(value, str):
        return value
    return _BIDIRECTIONAL.sub(lambda match: f"[U+{ord(match[0]):04X}]", value)


def format_number(value: float | None) -> str:
    """Return a score with three decimals; a dash for none."""
    return "–" if value is None else f"{value:.3f}"
