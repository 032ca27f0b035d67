"""A Sphinx extension that adapts what other extensions and the theme make: links of the notebooks, heading levels."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sphinx.application import Sphinx

REPOSITORY = "https://github.com/maira-radfact/maira-radfact/blob/main"

_PAGE = re.compile(r"\[([^\[\]]*)\]\((\.\./docs/|)([\w-]+)\.(?:ipynb|md)\)")
_FILE = re.compile(r"\]\(\.\./([\w./-]+)\)")


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the extension."""
    app.connect("source-read", _rewrite_links)
    # After the theme, which makes the navigation.
    app.connect("html-page-context", _set_heading_levels, priority=900)
    return {"parallel_read_safe": True}


def _rewrite_links(_app: Sphinx, name: str, source: list[str]) -> None:
    """Point links of docs/notebooks, a link to the folder of notebooks, to pages or to the repository."""
    if name.startswith("notebooks/"):
        text = _PAGE.sub(lambda link: f"{{doc}}`{link[1]} <{'/' if link[2] else ''}{link[3]}>`", source[0])
        source[0] = _FILE.sub(rf"]({REPOSITORY}/\1)", text)


def _set_heading_levels(_app: Sphinx, _page: str, _template: str, context: dict[str, Any], _doctree: object) -> None:
    """Give the captions of the navigation a level: screen readers need it, and Sphinx writes none."""
    tree = context["furo_navigation_tree"]
    context["furo_navigation_tree"] = tree.replace('role="heading"', 'role="heading" aria-level="2"')
