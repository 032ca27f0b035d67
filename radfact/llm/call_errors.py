"""Errors of calls to a model: which kinds are retried, how long a server asks to wait, and what messages may show."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any, Literal

from radfact.errors import option_error

CallErrorKind = Literal["unreachable", "busy", "broken", "slow", "refused", "stopped"]
"""unreachable: no connection; busy: the server asks to wait; broken: a server error or half a response; slow: timeout;
refused: this request is refused; stopped: every request is refused."""

MAX_ATTEMPTS: Mapping[CallErrorKind, int] = {"unreachable": 24, "busy": 24, "broken": 8, "slow": 3}
"""Maximum attempts of one call by kind of error. With the backoff of `client.py` (full jitter up to a minute), 24
attempts take about nine minutes, enough for a server to restart."""
MAX_WAIT = 300.0
"""Upper bound in seconds on the Retry-After of a server."""

_BUSY = frozenset({408, 409, 425, 429, 503, 529})
PROVIDERS: Mapping[str, Any] = json.loads(Path(__file__).with_name("providers.json").read_text("utf-8"))
"""Packages, keys and messages of providers; `fatal` patterns have the meaning of a status in any reply."""


def _any_of(patterns: Iterable[str]) -> re.Pattern[str]:
    return re.compile("|".join(patterns), re.IGNORECASE | re.DOTALL)


_STOPPED: Mapping[str, str] = PROVIDERS["stopped"]
_FATAL = {
    status: _any_of(rf"(?<![\w-])(?:{words})(?![\w-])" for words in patterns)
    for status, patterns in PROVIDERS["fatal"].items()
}
_NO_SYSTEM_ROLE, _WITHHELD = _any_of(PROVIDERS["no_system_role"]), _any_of(PROVIDERS["withheld"])
_STATUS = re.compile(r"[45]\d\d")
_LARGEST_COUNT = 1 << 53
_UNSUPPORTED = ("unsupported_value", "unsupported_parameter")
_LIMIT, _LIMIT_ELSEWHERE = "max_tokens", "max_completion_tokens"
# A name in quotes; a name before a colon is quoted from the request itself.
_QUOTED = re.compile(r"""(?P<mark>['"`])(?P<name>\w+)(?P=mark)(?!\s*:)""")
_PAGE = re.compile(r"\s*(?:<(?:!--.*?--|\?xml.*?\?)>\s*)*<(?:!doctype\s+)?html\b", re.IGNORECASE | re.DOTALL)
_SECRET_NAME = re.compile(r"KEY|TOKEN|SECRET|PASSWORD|CREDENTIAL", re.IGNORECASE)
_WORD = re.compile(r"\w+")
_WINDOW = 3
# From the first mark to the last: an apostrophe ends no quote.
_QUOTES = re.compile(r"""(['"]).*\1""", re.DOTALL)
_SHOWN = 200
_LETTERS = re.compile(r"[^\W_]+")
_MASK = "[...]"
_MASKS = re.compile(r"\[\.\.\.\](?:[\W_]*\[\.\.\.\])+")
"""Masked words in a row, with what is between them."""


class CallError(Exception):
    """A call to a model that returned no response.

    Attributes:
        kind: decides whether the call is retried.
        reason: a short description such as "HTTP 503".
        server_message: message of the server; shown only through `safe_message`.
        retry_after: seconds that the server asks the client to wait, if known.
    """

    def __init__(
        self, kind: CallErrorKind, reason: str, *, server_message: str = "", retry_after: float | None = None
    ) -> None:
        super().__init__(reason)
        self.kind, self.reason, self.server_message, self.retry_after = kind, reason, server_message, retry_after


def status_error(status: int, server_message: str = "", wait: str | None = None) -> CallError:
    """Return the error of an HTTP status of 300 or above; `wait` is the header Retry-After."""
    reason = f"HTTP {status}"
    for fatal, words in _FATAL.items():
        if match := words.search(server_message):
            return CallError("stopped", f"{_STOPPED[fatal]} ({reason}, {match[0]})")
    if str(status) in _STOPPED:
        return CallError("stopped", f"{_STOPPED[str(status)]} ({reason})")
    if status < 400:
        return CallError("stopped", f"the server is at another address than the base URL ({reason})")
    if status in _BUSY or status >= 500:
        kind: CallErrorKind = "busy" if status in _BUSY else "broken"
        return CallError(kind, reason, server_message=server_message, retry_after=retry_after(wait))
    return CallError("refused", reason, server_message=server_message)


def body_error(body: Mapping[str, Any]) -> CallError | None:
    """Return the error in the body of a reply with status 200; None if it has none."""
    if not (error := body.get("error")):
        return None
    codes = [str(error.get(name)) for name in ("code", "status")] if isinstance(error, Mapping) else []
    status = next(filter(_STATUS.fullmatch, codes), "500")
    return status_error(int(status), error_message({"error": error}))


def incomplete_error() -> CallError:
    return CallError("broken", "an incomplete response, or not of the chat-completions protocol")


def token_count(value: Any) -> int:
    """Return a number of tokens from a reply; CallError if it is no whole number or no real count."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not 0 <= value < _LARGEST_COUNT or value != int(value):
        raise CallError("broken", "a response whose number of tokens is no whole number")
    return int(value)


def refuses_system_role(error: CallError) -> bool:
    """Return whether an error says that the model has no role of the system message."""
    return bool(_NO_SYSTEM_ROLE.search(f"{error.reason} {error.server_message}"))


def page_error(text: str) -> CallError | None:
    """Return the error of a web page instead of a response, which no retry would change; None for other texts."""
    if not _PAGE.match(text):
        return None
    return CallError("stopped", "this address answers with a web page; check the base URL (it mostly ends in /v1)")


def check_withheld(finish_reasons: Iterable[object], refusal: object) -> None:
    """Raise CallError if the provider's filter or the model withheld the response: a repair would not help."""
    for finish_reason in finish_reasons:
        if _WITHHELD.fullmatch(str(finish_reason)):
            raise CallError("refused", f"the provider's filter withholds the answer ({finish_reason})")
    if refusal:
        raise CallError("refused", "the model refuses to answer", server_message=str(refusal))


def option_without_parameter(server_message: str, parameters: Mapping[str, Any]) -> str:
    """Return the option that omits a parameter, in quotes, that the server refuses in every request; else empty."""
    quoted = {match["name"] for match in _QUOTED.finditer(server_message)}
    unsupported = any(word in server_message for word in _UNSUPPORTED)
    options = {
        name: f"--judge-arg {name}=null"
        for name in parameters
        if name in quoted and (unsupported or "tokens" not in name)
    }
    if _LIMIT in options and _LIMIT_ELSEWHERE in quoted:
        options[_LIMIT] += f" --judge-arg {_LIMIT_ELSEWHERE}={parameters[_LIMIT]}"
    return " or ".join(options.values())


def error_message(body: Any) -> str:
    """Return the message of a server's error: its `message` or `detail` with its `code`, since layouts differ."""
    error = body.get("error", body) if isinstance(body, Mapping) else body
    if not isinstance(error, Mapping):
        return str(error)
    parts = [error.get("message") or error.get("detail"), error.get("code")]
    kind = str(error.get("type"))
    if any(words.search(kind) for words in _FATAL.values()):
        parts.append(kind)
    return " ".join(str(part) for part in parts if part)


def retry_after(value: str | None) -> float | None:
    """Return the seconds of a Retry-After header (seconds or an HTTP date), from 0 to MAX_WAIT; None if unreadable."""
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
    return min(max(seconds, 0.0), MAX_WAIT) if seconds == seconds else None


def check_key(name: str, key: str) -> None:
    """Refuse a key of the environment variable `name` that cannot be sent in a header, without quoting it."""
    if not (key.isascii() and key.isprintable()):
        message = "expected one line of ASCII letters, digits and signs, found other characters; set the key again"
        raise option_error(message, name)


def redact(text: str) -> str:
    """Return `text` with the values of all keys, tokens, secrets and passwords of the environment masked."""
    for name, value in os.environ.items():
        if len(value) >= 6 and _SECRET_NAME.search(name):
            text = text.replace(value, "***")
    return text


def safe_message(server_message: str, contents: Iterable[str] = ()) -> str:
    """Return a server's message as one short line without keys; empty if it repeats three words of `contents`."""
    line = " ".join(redact(server_message).split())[:_SHOWN]
    windows = _windows(line)
    if windows and any(not windows.isdisjoint(_windows(content)) for content in contents):
        return ""
    return line


def without_quotes(problem: str) -> str:
    """Return a problem of a response without quotes of three words or more, which may repeat a report."""
    return _QUOTES.sub(lambda quoted: "'...'" if len(_WORD.findall(quoted[0])) >= _WINDOW else quoted[0], problem)


def excerpt(response: str, private: Iterable[str]) -> str:
    """Return the beginning of a response in one line, without keys and without any word of the private texts."""
    words = {word.casefold() for text in private for word in _LETTERS.findall(text)}
    line = " ".join(redact(response).split())
    line = _LETTERS.sub(lambda word: _MASK if word[0].casefold() in words else word[0], line)
    line = _MASKS.sub(_MASK, line)
    return line if len(line) <= _SHOWN else f"{line[:_SHOWN]}..."


def _windows(text: str) -> set[tuple[str, ...]]:
    words = _WORD.findall(text.lower())
    return {tuple(words[i : i + _WINDOW]) for i in range(len(words) - _WINDOW + 1)}
