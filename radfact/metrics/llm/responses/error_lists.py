"""Parser of CheXprompt's response format: a list of pairs for each significance, such as [(A, 1), (B, 0), ...]."""

from __future__ import annotations

import re

from radfact.error_categories import ERROR_CATEGORIES
from radfact.llm.response_text import strip_reasoning
from radfact.metrics.llm.responses.counts import strip_markup

_HEADER = re.compile(
    r"number\s+of\s+clinically\s+(significant|insignificant)\s+errors\s+by\s+type[\"']?\s*:", re.IGNORECASE
)
_FENCE = re.compile(r"^[ \t]*```[\w-]*[ \t]*$", re.MULTILINE)
_QUOTE = r"[\"'“”‘’]?"
_PAIR = re.compile(
    rf"[\s,;()\[\]{{}}•\"'-]*{_QUOTE}(?P<letter>[A-Z]){_QUOTE}\s*[,:=]\s*{_QUOTE}(?P<count>[0-9]{{1,2}}){_QUOTE}"
    r"(?!\w|\.[0-9]|\s*[/%])",
    re.IGNORECASE,
)
_END_OF_LIST = re.compile(r"[^\w\n]*(?:\n|\Z)")
HAS_PAIR = re.compile(
    rf"(?:[(\[]\s*{_QUOTE}[A-F]{_QUOTE}\s*,|(?<!\w)[A-F]{_QUOTE}\s*[:=])\s*{_QUOTE}[0-9]", re.IGNORECASE
)


def parse_error_lists(text: str) -> dict[str, dict[str, int]]:
    """Parse the numbers of significant and insignificant errors by letter.

    Each list has each letter once; the authors' parser also accepts missing, repeated and unknown ones.
    """
    response = _FENCE.sub("", strip_reasoning(text))
    response = "\n".join(strip_markup(line) for line in response.splitlines())
    _, *parts = _HEADER.split(response)
    lists: dict[str, dict[str, int]] = {}
    for kind, body in zip(map(str.lower, parts[::2]), parts[1::2], strict=True):
        counts = _parse_list(body, kind)
        if lists.setdefault(kind, counts) != counts:
            raise ValueError(f"it has two lists of clinically {kind} errors that differ; give one")
    for kind in ("significant", "insignificant"):
        if kind not in lists:
            raise ValueError(f"it has no line 'Number of clinically {kind} errors by type: [(A, n_A), ...]'")
    return lists


def _parse_list(body: str, kind: str) -> dict[str, int]:
    pairs: list[tuple[str, int]] = []
    position = 0
    while match := _PAIR.match(body, position):
        pairs.append((match["letter"].lower(), int(match["count"])))
        position = match.end()
    letters = sorted(letter for letter, _ in pairs)
    if letters != sorted(ERROR_CATEGORIES):
        found = ", ".join(letters).upper() or "none"
        raise ValueError(
            f"expected one count of each of A to F in the list of clinically {kind} errors, found counts of {found}; "
            "write it as [(A, n_A), (B, n_B), (C, n_C), (D, n_D), (E, n_E), (F, n_F)]"
        )
    rest = body[position:].partition("Explanation")[0]
    if not _END_OF_LIST.match(rest) or HAS_PAIR.search(rest):
        raise ValueError(f"expected the list of clinically {kind} errors alone, found more text after it")
    return dict(pairs)
