"""Data as text for a model to read, and a model's text as data: YAML or JSON, fenced or not."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

EMPTY_WORDS = frozenset({"", "null", "none", "~", "[]", "{}", "n/a", "''", '""'})
"""What models write, in lower case, where there is nothing to write."""

_FENCE = re.compile(r"```[\w-]*[ \t]*\r?\n(.*?)(?:```|\Z)", re.DOTALL)
_BULLET = re.compile(r"^(?:[-*•]|\d+[.)])(?:\s+(.*))?$")
_FENCE_MARK = re.compile(r"^[ \t]*```|```[ \t]*\r?$", re.MULTILINE)
# As most models write them, then Magistral, then gpt-oss with its special tokens and without. Templates often begin the
# thought themselves, so that an answer has the end alone, and not always on a line of its own.
_THOUGHT = re.compile(r"\s*(?:<think>|\[THINK\]|<\|channel\|>analysis|analysis(?=[A-Z]))")
_END_OF_THOUGHT = re.compile(r"</think>|\[/THINK\]|<\|channel\|>final[^\n]*?<\|message\|>|assistantfinal")


def dump_yaml(value: Any) -> str:
    """Exactly what `yaml.safe_dump(value, sort_keys=False)` gives, mostly by the faster C library.

    The published implementation writes its prompts so: lines fold at 80 columns, other than ASCII is escaped.

    Args:
        value: mappings and lists of texts.
    """
    import yaml

    if getattr(yaml, "__with_libyaml__", False) and _is_plain(value):
        return str(yaml.dump(value, Dumper=yaml.CSafeDumper, sort_keys=False))
    return str(yaml.safe_dump(value, sort_keys=False))


def _is_plain(value: Any) -> bool:
    """Whether all texts are of printable ASCII; the C library folds escaped texts at other places."""
    if isinstance(value, str):
        return value.isascii() and value.isprintable()
    if isinstance(value, dict):
        return all(_is_plain(item) for item in value.values())
    return all(_is_plain(item) for item in value) if isinstance(value, list) else True


def after_thought(text: str) -> str:
    """What a model says after it has thought aloud: all of it where it has not, nothing where it never came to an end.

    The last mark of an end counts. An answer that quotes a report in which such a mark was left is cut there as well,
    and is then found unreadable: better than a verdict out of a thought.
    """
    ends = [match.end() for match in _END_OF_THOUGHT.finditer(text)]
    if ends:
        return text[ends[-1] :]
    return "" if _THOUGHT.match(text) else text


def bodies(text: str) -> Iterator[str]:
    """Where in an answer its data may stand, best first: in fences, then all that is said after thinking aloud."""
    text = after_thought(text)
    for fenced in _FENCE.findall(text):
        yield fenced.strip()
    yield _FENCE_MARK.sub("", text).strip()


def read_data(body: str) -> Any:
    """JSON or YAML as mappings, lists and texts; None if it is neither.

    Scalars of YAML stay as they are written, so that No and True stay words.
    """
    import yaml

    try:
        if body[:1] in ("{", "["):
            try:
                return json.loads(body)
            except json.JSONDecodeError:
                pass  # YAML's flow style is more tolerant, for example of a comma at the end.
        return yaml.load(body, Loader=getattr(yaml, "CBaseLoader", yaml.BaseLoader))
    except (yaml.YAMLError, ValueError, RecursionError):
        return None


def read_list(lines: list[str]) -> list[str]:
    """The texts of a list that is no YAML as a whole, as with a colon inside a sentence.

    Args:
        lines: what follows the list's key, its own line first.
    """
    block = "\n".join(lines).strip()
    if block.startswith("[") and isinstance(data := read_data(block[: block.rfind("]") + 1]), list):
        return [text for item in data if isinstance(item, str) and (text := item.strip())]
    items: list[str] = []
    for line in block.splitlines():
        text = line.strip(" \t\r,[]{}")
        if bullet := _BULLET.match(text):
            items.append(bullet[1] or "")
        elif text[:1] in ('"', "'") or (text and not items):
            items.append(text)
        elif text:
            items[-1] += f" {text}"
    return [text for item in items if (text := unquoted(item)).lower() not in EMPTY_WORDS]


def unquoted(text: str) -> str:
    """A text without the pair of quotation marks around it."""
    text = text.strip()
    return text[1:-1] if len(text) > 1 and text[0] == text[-1] and text[0] in "\"'" else text
