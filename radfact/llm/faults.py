"""Why a call brought no answer: which troubles pass, how long a server wants to wait, and what may be said of it."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, Literal

Trouble = Literal["unreachable", "busy", "broken", "slow", "refused", "stopped"]
"""unreachable: no connection; busy: asked to wait; broken: an error or half an answer; slow: no answer in time;
refused: this question is; stopped: every question is."""

ATTEMPTS: Mapping[Trouble, int] = {"unreachable": 24, "busy": 24, "broken": 8, "slow": 3}
"""How often one call is tried when a trouble may pass. With the waits of `client.py` (full jitter up to a minute), 24
attempts are about nine minutes: a server that is restarted is waited for."""

LONGEST_WAIT = 300.0
"""Seconds beyond which a server's Retry-After is not followed."""

_BUSY = frozenset({408, 409, 425, 429, 503, 529})
_STOPPED = {
    401: "the key was refused; set the provider's key in the environment",
    402: "the account cannot pay for the call",
    403: "access was refused; check the key's rights",
    404: "no such model or address; check the model's name and the base URL (it mostly ends in /v1)",
    405: "this address takes no questions; check the base URL (it mostly ends in /v1)",
    407: "the proxy wants a user name and password",
}
_NO_QUOTA = "insufficient_quota"
_SECRET_NAME = re.compile(r"KEY|TOKEN|SECRET|PASSWORD|CREDENTIAL", re.IGNORECASE)
_WORD = re.compile(r"\w+")
_WINDOW = 3
_SHOWN = 200


class CallFault(Exception):
    """A call without an answer.

    Args:
        trouble: what kind it is, which decides whether the call is tried again.
        what: a few words of our own, such as "HTTP 503".
        said: the server's own message; shown only through `shown`.
        retry_after: seconds that the server wants the client to wait, if it says.
    """

    def __init__(self, trouble: Trouble, what: str, *, said: str = "", retry_after: float | None = None) -> None:
        super().__init__(what)
        self.trouble, self.what, self.said, self.retry_after = trouble, what, said, retry_after


def status_fault(status: int, said: str = "", wait: str | None = None) -> CallFault:
    """The fault that an HTTP status means; `said` is the error's message, `wait` the header Retry-After."""
    what = f"HTTP {status}"
    if status == 429 and _NO_QUOTA in said:
        return CallFault("stopped", f"the account has no quota left ({what})")
    if status in _STOPPED:
        return CallFault("stopped", f"{_STOPPED[status]} ({what})")
    if 300 <= status < 400:
        return CallFault("stopped", f"the server is at another address than the base URL ({what})")
    if status in _BUSY or status >= 500:
        trouble: Trouble = "busy" if status in _BUSY else "broken"
        return CallFault(trouble, what, said=said, retry_after=retry_after(wait))
    return CallFault("refused", what, said=said)


def error_message(body: Any) -> str:
    """The message in a server's error, `message` or `detail` with its `code`, as servers do not agree on a layout."""
    error = body.get("error", body) if isinstance(body, Mapping) else body
    if not isinstance(error, Mapping):
        return str(error)
    return " ".join(str(part) for part in (error.get("message") or error.get("detail"), error.get("code")) if part)


def retry_after(value: str | None) -> float | None:
    """Seconds to wait from a Retry-After header (seconds or an HTTP date), from 0 to LONGEST_WAIT; None if unread."""
    if value is None:
        return None
    try:
        seconds = float(value)
    except ValueError:
        try:
            date = parsedate_to_datetime(value)
        except ValueError:
            return None
        seconds = (date.replace(tzinfo=date.tzinfo or UTC) - datetime.now(UTC)).total_seconds()
    return min(max(seconds, 0.0), LONGEST_WAIT) if seconds == seconds else None


def redact(text: str) -> str:
    """`text` without the value of any key, token, secret or password of the environment."""
    for name, value in os.environ.items():
        if len(value) >= 6 and _SECRET_NAME.search(name):
            text = text.replace(value, "***")
    return text


def shown(said: str, contents: Iterable[str] = ()) -> str:
    """A server's message as one short line for people: without keys, and empty where it repeats the conversation.

    Args:
        said: the message.
        contents: what was sent; reports are patients' data and prompts are long, so a message that has three words
            in a row from them is not shown.
    """
    line = " ".join(redact(said).split())[:_SHOWN]
    windows = _windows(line)
    if windows and any(not windows.isdisjoint(_windows(content)) for content in contents):
        return ""
    return line


def _windows(text: str) -> set[tuple[str, ...]]:
    words = _WORD.findall(text.lower())
    return {tuple(words[i : i + _WINDOW]) for i in range(len(words) - _WINDOW + 1)}
