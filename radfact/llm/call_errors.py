"""Why a call brought no answer: which troubles pass, how long a server wants to wait, and what may be said of it."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, Literal

CallErrorKind = Literal["unreachable", "busy", "broken", "slow", "refused", "stopped"]
"""unreachable: no connection; busy: asked to wait; broken: an error or half an answer; slow: no answer in time;
refused: this question is; stopped: every question is."""

ATTEMPTS: Mapping[CallErrorKind, int] = {"unreachable": 24, "busy": 24, "broken": 8, "slow": 3}
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
_UNSUPPORTED = ("unsupported_value", "unsupported_parameter")
_LIMIT, _LIMIT_ELSEWHERE = "max_tokens", "max_completion_tokens"
# A name in quotes; one before a colon is the request's own, repeated.
_QUOTED = re.compile(r"""(?P<mark>['"`])(?P<name>\w+)(?P=mark)(?!\s*:)""")
_PAGE = re.compile(r"\s*(?:<(?:!--.*?--|\?xml.*?\?)>\s*)*<(?:!doctype\s+)?html\b", re.IGNORECASE | re.DOTALL)
_WITHHELD = frozenset(
    {
        "blocklist",
        "content_filter",
        "content_filtered",
        "guardrail_intervened",
        "prohibited_content",
        "recitation",
        "refusal",
        "safety",
        "spii",
    }
)
"""Providers' words for an answer that a filter ended, in lower case."""
_SECRET_NAME = re.compile(r"KEY|TOKEN|SECRET|PASSWORD|CREDENTIAL", re.IGNORECASE)
_WORD = re.compile(r"\w+")
_WINDOW = 3
_SHOWN = 200


class CallError(Exception):
    """A call without an answer.

    Args:
        trouble: what kind it is, which decides whether the call is tried again.
        what: a few words of our own, such as "HTTP 503".
        said: the server's own message; shown only through `shown`.
        retry_after: seconds that the server wants the client to wait, if it says.
    """

    def __init__(self, trouble: CallErrorKind, what: str, *, said: str = "", retry_after: float | None = None) -> None:
        super().__init__(what)
        self.trouble, self.what, self.said, self.retry_after = trouble, what, said, retry_after


def status_error(status: int, said: str = "", wait: str | None = None) -> CallError:
    """The fault that an HTTP status means; `said` is the error's message, `wait` the header Retry-After."""
    what = f"HTTP {status}"
    if status == 429 and _NO_QUOTA in said:
        return CallError("stopped", f"the account has no quota left ({what})")
    if status in _STOPPED:
        return CallError("stopped", f"{_STOPPED[status]} ({what})")
    if 300 <= status < 400:
        return CallError("stopped", f"the server is at another address than the base URL ({what})")
    if status in _BUSY or status >= 500:
        trouble: CallErrorKind = "busy" if status in _BUSY else "broken"
        return CallError(trouble, what, said=said, retry_after=retry_after(wait))
    return CallError("refused", what, said=said)


def page_error() -> CallError:
    """The fault that a web page in the place of an answer means: no waiting turns it into one."""
    return CallError("stopped", "this address answers with a web page; check the base URL (it mostly ends in /v1)")


def is_page(text: str) -> bool:
    """Whether a text is a web page."""
    return _PAGE.match(text) is not None


def check_withheld(endings: Iterable[object], refusal: object) -> None:
    """Refuse an answer that the provider keeps to itself: to ask for a repair of it is of no use.

    Args:
        endings: what the provider says of why the answer ended.
        refusal: the model's own words in the place of an answer, if there are any.

    Raises:
        CallError: it is one.
    """
    for ending in endings:
        if str(ending).lower() in _WITHHELD:
            raise CallError("refused", f"the provider's filter withholds the answer ({ending})")
    if refusal:
        raise CallError("refused", "the model refuses to answer", said=str(refusal))


def leaving_out(said: str, parameters: Mapping[str, Any]) -> str:
    """The option that leaves out a parameter which a refusal is about, whatever the question was; empty if it is not.

    Args:
        said: the server's message, with the name in quotes. A limit of tokens may also be too high for one question,
            so that it has to be called unsupported.
        parameters: those that were sent.
    """
    quoted = {match["name"] for match in _QUOTED.finditer(said)}
    unsupported = any(word in said for word in _UNSUPPORTED)
    options = {
        name: f"--judge-arg {name}=null"
        for name in parameters
        if name in quoted and (unsupported or "tokens" not in name)
    }
    if _LIMIT in options and _LIMIT_ELSEWHERE in quoted:
        options[_LIMIT] += f" --judge-arg {_LIMIT_ELSEWHERE}={parameters[_LIMIT]}"
    return " or ".join(options.values())


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
