"""The web browser of this machine."""

from __future__ import annotations

import os
import sys
import webbrowser


def has_screen() -> bool:
    return not sys.platform.startswith("linux") or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


def browser_name() -> str | None:
    """Return the name of the browser that `webbrowser` uses; None if there is none."""
    try:
        return webbrowser.get().name or "the system's"
    except webbrowser.Error:
        return None
