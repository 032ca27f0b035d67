"""Parse responses of the LLM judge: strict on content, lenient on form (YAML or JSON, fenced or not, loose quotes)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from difflib import SequenceMatcher
from typing import Any, get_args

from radfact.judges.protocol import Relation, Status, Verdict
from radfact.llm.response_text import EMPTY_WORDS, bodies, read_data, read_list, unquoted
from radfact.records import normalize_text

EVIDENCE_COVER = 0.6
"""Share of a quoted evidence text that the longest common substring with a premise must cover."""

_STATUSES: Mapping[str, tuple[Status, Relation | None]] = {
    **dict.fromkeys(("entailment", "entailed", "yes", "true"), ("entailment", None)),
    **dict.fromkeys(("not entailment", "not entailed", "non entailment", "no", "false"), ("not_entailment", None)),
    **dict.fromkeys(("contradiction", "contradicted"), ("not_entailment", "contradiction")),
    "neutral": ("not_entailment", "neutral"),
}
"""Status, and the relation if the prompt asks for three statuses, by what models write."""
_STATUS_LINE = re.compile(r"^\s*[\"'*]*status[\"'*]*\s*:", re.IGNORECASE | re.MULTILINE)
_NUMBER = re.compile(r"\d+")

Fields = Mapping[str, Any]


def parse_response(text: str, premises: Sequence[str]) -> tuple[Verdict, int]:
    """Parse the response to one query; also return the number of evidence texts that match no premise."""
    items, are_listed = _read_items(text)
    if are_listed and len(items) > 1:
        raise ValueError(f"expected one status, found a list of {len(items)}")
    # Some models continue with invented queries and answers; the first answer is the requested one.
    return _to_verdict(next(iter(items), {}), premises)


def parse_report_response(
    text: str, premises: Sequence[str], hypotheses: Sequence[str]
) -> tuple[dict[int, tuple[Verdict, int]], list[str]]:
    """Return valid verdicts with their numbers of dropped quotations, by hypothesis, and problems of the rest."""
    verdicts: dict[int, tuple[Verdict, int]] = {}
    problems: list[str] = []
    invalid: set[int] = set()
    for item in _read_items(text)[0]:
        index = None
        try:
            index = _hypothesis_index(item, hypotheses)
            verdict = _to_verdict(item, premises)
        except ValueError as error:
            number = "" if index is None else f"number {index + 1}: "
            problems.append(f"{number}{error}")
            if index is not None:
                invalid.add(index)
            continue
        first = verdicts.setdefault(index, verdict)
        # "neutral" and "not_entailment" are the same status.
        if (replace(first[0], relation=None), first[1]) != (replace(verdict[0], relation=None), verdict[1]):
            problems.append(f"number {index + 1} is answered twice, differently")
            invalid.add(index)
    for index in invalid:
        verdicts.pop(index, None)
    missing = sorted(set(range(len(hypotheses))) - set(verdicts) - invalid)
    if missing:
        problems.append(f"no answer to number {', '.join(str(index + 1) for index in missing)}")
    return verdicts, problems


def match_evidence(quoted: str, premises: Sequence[str]) -> int | None:
    """Return the index of the first premise that a quotation means; None if none has enough in common with it."""
    if quoted in premises:
        return list(premises).index(quoted)
    text, normalized = normalize_text(quoted), [normalize_text(premise) for premise in premises]
    if text in normalized:
        return normalized.index(text)
    best, best_size = None, 0
    for index, premise in enumerate(normalized):
        size = SequenceMatcher(None, text, premise, autojunk=False).find_longest_match().size
        if size > best_size:
            best, best_size = index, size
    return best if text and best_size >= EVIDENCE_COVER * len(text) else None


def _to_verdict(fields: Fields, premises: Sequence[str]) -> tuple[Verdict, int]:
    words = _normalize_status(fields.get("status"))
    if words not in _STATUSES:
        found = f"found '{words:.40}'" if words else "found none"
        raise ValueError(f"status must be {' or '.join(get_args(Status))}, {found}")
    status, relation = _STATUSES[words]
    matches = [match_evidence(quoted, premises) for quoted in texts_of(fields.get("evidence"))]
    evidence = tuple(sorted({match for match in matches if match is not None}))
    if status == "entailment" and not evidence:
        raise ValueError("entailment needs evidence: quote at least one sentence of the reference word for word")
    return Verdict(status, evidence, relation=relation), matches.count(None)


def _normalize_status(status: Any) -> str:
    """Return a status as words in lower case; true and false of JSON are accepted."""
    text = str(status) if isinstance(status, str | bool) else ""
    return " ".join(re.split(r"[\s_-]+", text.strip(" .*\"'`").lower()))


def texts_of(value: Any) -> list[str]:
    """Return the texts of a list, or a text as the only one, without those that models write for an empty value."""
    texts = value if isinstance(value, list) else [value]
    stripped = [text.strip() for text in texts if isinstance(text, str)]
    return [text for text in stripped if text.lower() not in EMPTY_WORDS]


def has_texts(value: Any) -> bool:
    """Return whether a value is a text, null, or a list of these."""
    return all(isinstance(text, str | None) for text in (value if isinstance(value, list) else [value]))


def _read_items(text: str) -> tuple[list[Fields], bool]:
    """Return the fields of each verdict of a response, and whether they were a list, and not one after the other."""
    for body in bodies(text):
        data = read_data(body)
        if isinstance(data, str | bool) and _normalize_status(data) in _STATUSES:
            return [{"status": data}], True
        if isinstance(data, dict) and not _verdict_fields(data):
            lists = [value for value in data.values() if isinstance(value, list)]
            by_number = [{"number": key, **value} if isinstance(value, dict) else value for key, value in data.items()]
            data = lists[0] if lists else by_number
        are_listed = True
        items: list[Fields] = [_verdict_fields(item) for item in (data if isinstance(data, list) else [data])]
        # In one mapping, YAML keeps the last of several verdicts.
        if not items or not all(items) or len(items) == 1 < len(_STATUS_LINE.findall(body)):
            items, are_listed = [block for block in _blocks(body) if "status" in block], False
        if items:
            return items, are_listed
    return [], False


def _verdict_fields(data: Any) -> dict[str, Any]:
    """Return a mapping with a status and readable evidence with keys in lower case; empty for other data."""
    if not isinstance(data, dict):
        return {}
    fields = {str(key).strip().lower(): value for key, value in data.items() if isinstance(key, str | int)}
    return fields if "status" in fields and has_texts(fields.get("evidence")) else {}


def _blocks(body: str) -> list[dict[str, Any]]:
    """Read verdicts line by line if the whole is no YAML; a number or a repeated key begins the next verdict."""
    blocks: list[dict[str, Any]] = []
    for key, lines in fields_by_line(body, "number|phrase|evidence|status", first="number|phrase"):
        if not blocks or key in blocks[-1] or key == "number":
            blocks.append({})
        blocks[-1][key] = read_list(lines) if key == "evidence" else unquoted(lines[0].strip(" \t,}"))
    return blocks


def fields_by_line(body: str, keys: str, first: str) -> list[tuple[str, list[str]]]:
    """Return each of the `keys` (k1|k2) with the lines up to the next; the `first` ones may begin an item of a list."""
    pattern = rf"^[\s{{*\"']*(?:-\s+[{{*\"']*(?={first}))?({keys})[\"'*]*\s*:[*\s]*(.*)$"
    fields: list[tuple[str, list[str]]] = []
    for line in body.splitlines():
        if match := re.match(pattern, line, re.IGNORECASE):
            fields.append((match[1].lower(), [match[2]]))
        elif fields:
            fields[-1][1].append(line)
    return fields


def _hypothesis_index(item: Fields, hypotheses: Sequence[str]) -> int:
    """Return the index of the hypothesis of an item; ValueError if number and quoted text name none, or two."""
    phrase, number = item.get("phrase"), _NUMBER.search(str(item.get("number", "")))
    text = normalize_text(phrase) if isinstance(phrase, str) else ""
    quoted = [index for index, hypothesis in enumerate(hypotheses) if text and normalize_text(hypothesis) == text]
    index = int(number[0]) - 1 if number and len(number[0]) < 9 else -1
    if not 0 <= index < len(hypotheses):
        if not quoted:
            shown = f"number {number[0]:.9}" if number else "an answer without a number"
            raise ValueError(f"{shown} belongs to none of the {len(hypotheses)} hypotheses")
        return quoted[0]
    if quoted and index not in quoted:
        raise ValueError(f"number {index + 1} quotes the hypothesis of number {quoted[0] + 1}")
    return index
