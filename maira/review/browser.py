"""The browser that a review is shown in, where there is one to show it."""

from __future__ import annotations

import os
import sys
import webbrowser


def has_screen() -> bool:
    """Whether a window can be opened here."""
    return not sys.platform.startswith("linux") or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


def browser_name() -> str | None:
    """The name of what Python's `webbrowser` opens pages with; None where it finds nothing."""
    try:
        return webbrowser.get().name or "the system's"
    except webbrowser.Error:
        return None
