"""Write data as YAML for a model, and read YAML or JSON from its responses, fenced or not."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from radfact.records import as_input_error

ModelT = TypeVar("ModelT", bound=BaseModel)

EMPTY_WORDS = frozenset({"", "null", "none", "~", "[]", "{}", "n/a", "''", '""'})
"""Texts, in lower case, that models write for an empty value."""
_FENCE = re.compile(r"```[\w-]*[ \t]*\r?\n(.*?)(?:```|\Z)", re.DOTALL)
_MAX_DEPTH = 1000
_TEXT_PARTS = frozenset({"text", "output_text"})
_REASONING_FIELDS = ("reasoning_content", "reasoning", "thinking")
_BULLET = re.compile(r"^(?:[-*•]|\d+[.)])(?:\s+(.*))?$")
_FENCE_MARK = re.compile(r"^[ \t]*```|```[ \t]*\r?$", re.MULTILINE)
# Reasoning marks of most models, then of Magistral, then of gpt-oss with and without its special tokens. Templates
# often write the begin mark, so that a response has only the end mark.
_TAGS = "(?i:think|thinking|thoughts?|reasoning|analysis|reflection|scratchpad)"
_REASONING = re.compile(rf"\s*(?:<{_TAGS}>|\[THINK\]|<\|channel\|>analysis|analysis(?=[A-Z]))")
_END_OF_REASONING = re.compile(rf"</{_TAGS}>|\[/THINK\]|<\|channel\|>final[^\n]*?<\|message\|>|assistantfinal")
_ANSWER_TAG = re.compile(r"</?(?:final[ _-]?)?(?:answer|output|response|result)>", re.IGNORECASE)


def dump_yaml(value: Any) -> str:
    """Return mappings and lists of texts as `yaml.safe_dump` does, the format of the published prompts."""
    import yaml

    if getattr(yaml, "__with_libyaml__", False) and _is_plain(value):
        return str(yaml.dump(value, Dumper=yaml.CSafeDumper, sort_keys=False))
    return str(yaml.safe_dump(value, sort_keys=False))


def _is_plain(value: Any) -> bool:
    """Return whether all texts are printable ASCII; the C library folds escaped texts differently."""
    if isinstance(value, str):
        return value.isascii() and value.isprintable()
    if isinstance(value, dict):
        return all(_is_plain(item) for item in value.values())
    return all(_is_plain(item) for item in value) if isinstance(value, list) else True


def strip_reasoning(text: str) -> str:
    """Return the response after the last end of reasoning text, without tags; empty if the reasoning did not end."""
    ends = [match.end() for match in _END_OF_REASONING.finditer(text)]
    if not ends and _REASONING.match(text):
        return ""
    return _ANSWER_TAG.sub("", text[ends[-1] :] if ends else text)


def message_text(message: Mapping[str, Any]) -> str:
    """Return the text of a message or of its parts; without one, its reasoning as reasoning that did not end."""
    content = message.get("content") or ""
    if isinstance(content, list):
        parts = [{"text": part} if isinstance(part, str) else part for part in content]
        content = "".join(part["text"] for part in parts if part.get("type", "text") in _TEXT_PARTS)
    if not isinstance(content, str):
        raise ValueError("expected a text or a list of parts")
    reasoning = next((message[name] for name in _REASONING_FIELDS if message.get(name)), None)
    return content if content.strip() or reasoning is None else f"<think>{reasoning}"


def bodies(text: str) -> Iterator[str]:
    """Yield the parts of a response that may hold its data: fenced blocks, then all text after the reasoning."""
    text = strip_reasoning(text)
    for fenced in _FENCE.findall(text):
        yield fenced.strip()
    yield _FENCE_MARK.sub("", text).strip()


def read_data(body: str) -> Any:
    """Parse JSON or YAML, whose scalars stay texts ("No"), into mappings, lists and texts; None if it is neither."""
    import yaml

    try:
        if body[:1] in ("{", "["):
            try:
                return json.loads(body, object_pairs_hook=_unique_keys)
            except json.JSONDecodeError:
                pass  # YAML's flow style is more tolerant, for example of a comma at the end.
        loader = getattr(yaml, "CBaseLoader", yaml.BaseLoader)
        # The C library builds what is nested by recursion without a limit; its events need none.
        depth = 0
        for event in yaml.parse(body, Loader=loader) if len(body) > _MAX_DEPTH else ():
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > _MAX_DEPTH:
                return None
        return yaml.load(body, Loader=loader)
    except (yaml.YAMLError, ValueError, RecursionError):
        return None


def parse_json(text: str, model: type[ModelT]) -> ModelT:
    """Parse the JSON object of a response; ValueError without one, for a key twice or a field that does not fit."""
    *fenced, body = bodies(text)
    # The text around the only fenced object may have braces, too.
    if len(objects := [part for part in fenced if part.startswith("{")]) == 1:
        body = objects[0]
    start, end = body.find("{"), body.rfind("}")
    if start < 0:
        raise ValueError("expected a JSON object, found none")
    try:
        data = json.loads(body[start : end + 1], object_pairs_hook=_unique_keys)
        return model.model_validate(data)
    except json.JSONDecodeError as error:
        raise ValueError(f"expected one JSON object: {error}") from None
    except RecursionError:
        raise ValueError("expected the format in the instructions, found JSON that is nested too deeply") from None
    except ValidationError as error:
        first = as_input_error(error, kind=model)
        raise ValueError(f"{first.field}: {first.message}" if first.field else first.message) from None


def _unique_keys(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        raise ValueError("expected unique keys, found a duplicate key in an object")
    return values


def read_list(lines: list[str]) -> list[str]:
    """Read the texts of a list that is no valid YAML, as with a colon inside a sentence; without the list's key."""
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
    """Return a text without the pair of quotation marks around it."""
    text = text.strip()
    return text[1:-1] if len(text) > 1 and text[0] == text[-1] and text[0] in "\"'" else text
